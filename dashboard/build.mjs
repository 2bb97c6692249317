// Builds `dist/`, which is committed: a build of the node needs no npm. `npm run build` after a change in `src/`.
import { copyFile, mkdir, readdir, readFile, rm, writeFile } from "node:fs/promises";
import { build } from "esbuild";

const out = new URL("dist/", import.meta.url);
await mkdir(out, { recursive: true });
for (const name of await readdir(out)) await rm(new URL(name, out));
const { metafile } = await build({
    absWorkingDir: new URL(".", import.meta.url).pathname,
    entryPoints: { app: "src/main.tsx", style: "src/style/style.css" },
    outdir: "dist",
    bundle: true,
    minify: true,
    format: "esm",
    target: ["chrome100", "firefox100", "safari15.4"],
    charset: "utf8",
    legalComments: "none",
    metafile: true,
    logLevel: "warning",
});
await writeFile(new URL("licenses.txt", out), await licenses(Object.keys(metafile.inputs)));
for (const name of ["index.html", "icon.svg"]) {
    await copyFile(new URL(`src/${name}`, import.meta.url), new URL(name, out));
}

/** Licence texts of the packages that the bundle has parts of: their file, or the notices of their sources and the licence they name. */
async function licenses(inputs) {
    const packages = new Map();
    for (const input of inputs) {
        const folder = /^node_modules\/(?:@[^/]+\/)?[^/]+/.exec(input)?.[0];
        if (folder) packages.set(folder, [...(packages.get(folder) ?? []), input]);
    }
    const texts = [];
    for (const [folder, files] of [...packages].sort(([one], [other]) => (one < other ? -1 : 1))) {
        const at = new URL(`${folder}/`, import.meta.url);
        const { name, version, license } = JSON.parse(await readFile(new URL("package.json", at), "utf8"));
        const file = (await readdir(at)).find((file) => /^licen[cs]e/i.test(file));
        const text = file ? await readFile(new URL(file, at), "utf8") : `${await notices(files)}\n\n${await fullText(name, license)}`;
        texts.push(`${name} ${version} (${license.replace(/[()]/g, "")})\n\n${text.trim()}\n`);
    }
    return texts.join(`\n${"-".repeat(72)}\n\n`);
}

/** The distinct comments with a copyright at the beginnings of sources. */
async function notices(files) {
    const found = new Set();
    for (const file of files) {
        const lines = (await readFile(new URL(file, import.meta.url), "utf8")).split("\n");
        const end = lines.findIndex((line) => !line.startsWith("//"));
        const text = lines.slice(0, end).map((line) => line.replace(/^\/\/ ?/, "")).join("\n");
        if (/copyright/i.test(text)) found.add(text.trim());
    }
    return [...found].sort().join("\n\n");
}

/** The text of the Apache License is that of this project. The notice of a source has all of the BSD licence. */
async function fullText(name, license) {
    if (!/^\(?Apache-2\.0( AND BSD-3-Clause)?\)?$/.test(license)) throw new Error(`${name} has no file with its licence ${license}`);
    const text = await readFile(new URL("../LICENSE", import.meta.url), "utf8");
    return text.slice(0, text.indexOf("APPENDIX:")).trimEnd().replace(/^\n+/, "");
}
