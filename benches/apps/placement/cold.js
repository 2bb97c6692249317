// coldstart and scale-to-zero: a function with 42.8 MB of dependencies, of which an invocation reads a little.
const FILES = 4;

export default function cold(event, context) {
  let sum = 0;
  for (let number = 0; number < FILES; number++) {
    const data = context.asset(`cold/dependencies-${number}.bin`);
    for (let at = 0; at < data.length; at += 1 << 20) sum += data[at];
  }
  return { sum };
}
