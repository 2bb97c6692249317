// Answers requests with a greeting and everything else with what it got; echo/ does the same in Rust.
export default function echo(event) {
  return event.kind === "http" ? "hello" : event.bytes();
}
