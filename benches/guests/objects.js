// Adds to a counter of an object, reads it, or adds what numbers make; objects/ does the same in Rust. What to do is in the
// path, as `/do/object` with numbers of 32 bits as the body, or is the body as JSON.
export default async function objects(event, context) {
  const [, what, object] = event.path.split("/");
  const work = what ? { do: what, object } : event.json();
  const counter = context.object(work.object).counter("n");
  let value = 0;
  switch (work.do) {
    case "add":
      for (let i = 0; i < work.n; i++) await counter.add(1);
      return value;
    case "add-unawaited":
      for (let i = 0; i < work.n; i++) counter.add(1);
      return value;
    case "read":
      for (let i = 0; i < work.n; i++) value += await counter.value();
      return value;
    case "reduce": {
      const { buffer, byteOffset, byteLength } = event.bytes();
      value = new Int32Array(buffer, byteOffset, byteLength / 4).reduce((sum, number) => sum + number, 0);
      await counter.add(value);
      return value;
    }
    default:
      throw new TypeError(`${work.do} is not a work`);
  }
}
