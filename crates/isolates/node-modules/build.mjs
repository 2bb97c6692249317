// Bundles the modules of Node.js that have a pure form: `npm ci && node build.mjs`. The results are committed.
import { readFile, readdir, rm, writeFile, mkdir } from 'node:fs/promises';
import { builtinModules } from 'node:module';
import { readFileSync } from 'node:fs';
import { gunzipSync, gzipSync } from 'node:zlib';
import { build } from 'esbuild';

const out = 'bundled';
const licences = new Map();
const own = (await readdir('src')).map((file) => file.replace(/\.js$/, '').replace('-', '/'));

// A module that another one of these imports stays an import, so that there is one `Buffer`.
const shared = {
  name: 'shared',
  setup({ onResolve }) {
    onResolve({ filter: /^[a-z]/ }, ({ path, kind, importer }) => {
      if (kind === 'entry-point') return undefined;
      // `url` takes `qs` for Node's `querystring`.
      const name = path === 'qs' ? 'querystring' : path.replace(/^node:/, '').replace(/\/$/, '');
      if (own.includes(name)) return { path: `node:${name}`, external: true };
      if (builtinModules.includes(name)) throw new Error(`${importer} needs ${name}, which has no pure form`);
      return undefined;
    });
  },
};

await rm(out, { recursive: true, force: true });
await mkdir(out);
for (const name of own) {
  const file = name.replace('/', '-');
  const { outputFiles, metafile } = await build({
    entryPoints: [`src/${file}.js`],
    bundle: true,
    write: false,
    format: 'cjs',
    platform: 'browser',
    target: 'es2023',
    minifySyntax: true,
    minifyWhitespace: true,
    define: { 'process.env.NODE_ENV': '"production"', 'process.env.NODE_DEBUG': '""' },
    legalComments: 'none',
    metafile: true,
    plugins: [shared],
  });
  await writeFile(`${out}/${file}.js.gz`, gzipSync(outputFiles[0].contents, { level: 9 }));
  for (const input of Object.keys(metafile.inputs)) {
    const folder = input.match(/^(node_modules\/(?:@[^/]+\/)?[^/]+)\//)?.[1];
    if (folder) licences.set(folder, name);
  }
}

const texts = [];
for (const folder of [...licences.keys()].sort()) {
  const { name, version, license, licenses } = JSON.parse(await readFile(`${folder}/package.json`, 'utf8'));
  const file = (await readdir(folder)).find((entry) => /^licen[cs]e/i.test(entry));
  const text = file ? await readFile(`${folder}/${file}`, 'utf8') : '';
  texts.push(`${name} ${version} (${license ?? licenses[0].type})\n\n${text.trim()}\n`);
}
await writeFile(`${out}/LICENSES.txt`, texts.join(`\n${'-'.repeat(80)}\n\n`));

// The names that each of them exports: an import of another one is refused at the deploy.
const loaded = new Map();
const load = (name) => {
  if (!loaded.has(name)) {
    const module = { exports: {} };
    loaded.set(name, module);
    const text = gunzipSync(readFileSync(`${out}/${name.replace('/', '-')}.js.gz`)).toString();
    new Function('module', 'exports', 'require', text)(module, module.exports, (other) => load(other.replace(/^node:/, '')));
  }
  return loaded.get(name).exports;
};
// That of `console` has the names of the engine.
const names = own.filter((name) => name !== 'console').sort().map((name) => {
  const exported = new Set();
  for (let object = load(name); object && object !== Object.prototype && object !== Function.prototype; object = Object.getPrototypeOf(object)) {
    for (const key of Object.getOwnPropertyNames(object)) exported.add(key);
  }
  return `${name}: ${[...exported].filter((key) => /^[\w$]+$/.test(key)).sort().join(' ')}\n`;
});
await writeFile(`${out}/exports.txt`, names.join(''));
