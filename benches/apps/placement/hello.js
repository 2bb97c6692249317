// hellojs: greets a parameter.
export default function hello(event) {
  return `Hello, ${new URLSearchParams(event.query).get("name") ?? "stranger"}!`;
}
