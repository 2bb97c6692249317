// Takes the examples out of the README, so that the compiler sees what readers see.
import { mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";

const folder = new URL("build/", import.meta.url);
rmSync(folder, { recursive: true, force: true });
mkdirSync(folder);

const readme = readFileSync(new URL("../README.md", import.meta.url), "utf8");
const examples = [...readme.matchAll(/^```(ts|js)\n(.*?)^```$/gms)];
if (examples.length < 3) throw new Error(`the README has ${examples.length} examples; at least 3 were expected`);
examples.forEach(([, language, code], index) => writeFileSync(new URL(`example${index}.${language}`, folder), code));
