// Answers after as many milliseconds as the query asks for; wait/ does the same in Rust.
export default async function wait(event) {
  const ms = Number(new URLSearchParams(event.query).get("ms"));
  await new Promise((resolve) => setTimeout(resolve, ms));
  return "hello";
}
