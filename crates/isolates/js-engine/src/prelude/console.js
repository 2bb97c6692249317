// console: every line goes to the function's log. Lines of texts and numbers need no more than this file.
(native) => {
  const levels = { debug: 1, log: 2, info: 2, dirxml: 2, warn: 3, error: 4 };

  // A property as text; "" if there is none or it cannot be read.
  native.textOf = (object, key) => {
    try {
      const value = object[key];
      return typeof value === "string" ? value : value === undefined ? "" : native.inspect(value);
    } catch {
      return "";
    }
  };

  native.inspect = (value) => {
    if (typeof value !== "object" && typeof value !== "function") return typeof value === "bigint" ? `${value}n` : String(value);
    native.demand("inspect");
    return native.inspectLine(value);
  };
  const { stringify } = JSON;
  // The same with quotes around a text.
  native.quote = (value) => (typeof value === "string" ? stringify(value) : native.inspect(value));

  // The node keeps the beginning of a line only; more would cost the memory of copying it.
  const MAX_LINE = 16 * 1024;
  native.write = (level, text) => {
    native.log(level, text.length > MAX_LINE ? `${text.slice(0, MAX_LINE)}… (${text.length - MAX_LINE} characters cut)` : text);
  };

  const isPlain = (value) => typeof value === "string" || (typeof value === "number" && value !== 0) || value === 0 && 1 / value > 0
    || typeof value === "boolean" || value === undefined || value === null;

  native.grouped = false;
  native.print = (level, values) => {
    if (!native.grouped && values.every(isPlain) && !(values.length > 1 && typeof values[0] === "string" && values[0].includes("%"))) {
      native.write(level, values.length === 1 ? String(values[0]) : values.map(String).join(" "));
      return;
    }
    native.demand("console");
    native.write(level, native.indented(native.format(values)));
  };

  const console = {};
  for (const [name, level] of Object.entries(levels)) {
    console[name] = (...values) => native.print(level, values);
  }
  for (const name of [
    "assert", "count", "countReset", "time", "timeLog", "timeEnd", "group", "groupCollapsed", "groupEnd", "dir", "table", "trace",
  ]) {
    console[name] = (...values) => {
      native.demand("console");
      native.rare[name](...values);
    };
  }
  console.clear = () => {};
  Object.defineProperty(globalThis, "console", { value: console, writable: true, configurable: true });

  native.logger = Object.freeze({
    trace: (...values) => native.print(0, values),
    debug: console.debug,
    info: console.info,
    warn: console.warn,
    error: console.error,
  });
};
