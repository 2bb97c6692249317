// One instance of a JavaScript function on Node.js: `node worker.mjs FUNCTION.mjs`. Says `ready`, then answers each
// line, the event's body, with one.
import { pathToFileURL } from "node:url";
import { createInterface } from "node:readline";

const { default: handle } = await import(pathToFileURL(process.argv[2]));
console.log("ready");
for await (const body of createInterface({ input: process.stdin })) {
  console.log(await handle({ json: () => JSON.parse(body) }));
}
