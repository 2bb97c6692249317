// The app that the tests look at: a function that works, one that fails, one that logs markup, and a workflow that waits.
import { mkdir, writeFile } from "node:fs/promises";
import { join } from "node:path";
import type { Node } from "./node";

const MANIFEST = `app = "plant"
workflows = ["*.yaml"]

[functions.greet]
main = "greet.js"
triggers = [{ http = "/greet", methods = ["GET"] }]
permissions = { objects = ["counts"] }

[functions.broken]
main = "broken.js"

[functions.markup]
main = "markup.js"
`;

const SOURCES: Record<string, string> = {
    "greet.js": `export default async (event, context) => {
    const name = event.kind === "http" ? event.query : event.text();
    console.log("greeting", name);
    await context.object("counts").counter("greetings").add(1);
    return { hello: name };
};
`,
    "broken.js": `export default () => {
    throw new Error("the sensor gives no value");
};
`,
    "markup.js": `export default (event) => {
    console.log("<script>window.hit = 1</script><img src=x onerror='window.hit = 2'>");
    return event.text();
};
`,
    "wait.yaml": `document: { dsl: '1.0.3', namespace: plant, name: wait, version: '1.0.0' }
do:
  - first:
      call: greet
      with: ada
  - pause:
      wait: { hours: 1 }
`,
};

/** Deploys it, optionally with other sources. */
export async function deploy(node: Node, changed: Record<string, string> = {}): Promise<void> {
    const folder = join(node.home, "plant");
    await mkdir(folder, { recursive: true });
    const files = { "edgefaas.toml": MANIFEST, ...SOURCES, ...changed };
    for (const [name, text] of Object.entries(files)) await writeFile(join(folder, name), text);
    await node.cli(["deploy", folder]);
}
