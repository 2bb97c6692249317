// Compiles the JavaScript engine once, before all tests: each node would compile it anew at its first start.
import { rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { ENGINE_CODE, Node } from "./node";

export default async function compile(): Promise<void> {
    await rm(ENGINE_CODE, { recursive: true, force: true });
    const node = await Node.at(ENGINE_CODE);
    await writeFile(join(node.home, "f.js"), "export default () => 1;");
    await node.cli(["deploy", "f.js"]);
    await node.end("SIGTERM");
}
