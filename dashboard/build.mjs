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

/** Names, versions and licences of the packages that the bundle has parts of. */
async function licenses(inputs) {
    const folders = new Set(inputs.map((input) => /^node_modules\/(?:@[^/]+\/)?[^/]+/.exec(input)?.[0]).filter(Boolean));
    const texts = [];
    for (const folder of [...folders].sort()) {
        const at = new URL(`${folder}/`, import.meta.url);
        const { name, version, license } = JSON.parse(await readFile(new URL("package.json", at), "utf8"));
        const file = (await readdir(at)).find((file) => /^licen[cs]e/i.test(file));
        const text = file ? await readFile(new URL(file, at), "utf8") : `Licence: ${license} (https://spdx.org/licenses/)`;
        texts.push(`${name} ${version}\n\n${text.trim()}\n`);
    }
    return texts.join(`\n${"-".repeat(72)}\n\n`);
}
