// What CommonJS modules share at run time.

/** Runs a module's `body` once and gives its exports. One that throws can be required again. */
export function run(path, find, keep, body) {
  const module = { exports: {}, id: path, path: folder(path), filename: "/" + path, loaded: false, children: [], paths: [] };
  const require = (id) => {
    // A module's exports may be any value, also `undefined`.
    const found = find(id);
    if (found === run) throw missing(id, path);
    return found;
  };
  require.resolve = (id) => { throw missing(id, path); };
  require.cache = {};
  require.extensions = {};
  module.require = require;
  keep(module);
  try {
    body(module.exports, require, module, module.filename, module.path);
  } catch (error) {
    keep(undefined);
    throw error;
  }
  module.loaded = true;
  return module.exports;
}

function folder(path) {
  return "/" + path.slice(0, Math.max(path.lastIndexOf("/"), 0));
}

function missing(id, path) {
  const message = `Cannot find module '${id}', required by ${path}: it was not deployed, since its name was computed or it is not available here`;
  return Object.assign(new Error(message), { code: "MODULE_NOT_FOUND" });
}

/** The default import of a CommonJS module by Babel's rule. */
export function imported(exported) {
  return exported?.__esModule ? exported.default : exported;
}

const objects = new WeakMap();

/** An ES module as `require` gives it: marked, so that `default` is found; or what it exports as "module.exports". */
export function namespace(module) {
  const names = Reflect.ownKeys(module).filter((name) => typeof name === "string");
  if (names.includes("module.exports")) return module["module.exports"];
  let object = objects.get(module);
  if (!object) {
    object = {};
    Object.defineProperty(object, "__esModule", { value: true });
    // Getters, since a module in a cycle may have no values yet.
    for (const name of names) {
      if (name !== "__esModule") Object.defineProperty(object, name, { get: () => module[name], enumerable: true });
    }
    objects.set(module, object);
  }
  return object;
}
