// Answers after as many milliseconds as the query (`?ms=20`) asks for; wait/ does the same in Rust.
export default async function wait(event) {
  await new Promise((resolve) => setTimeout(resolve, Number(event.query.slice("ms=".length))));
  return "hello";
}
