// console: every line goes to the function's log.
(native) => {
  const levels = { trace: 0, debug: 1, log: 2, info: 2, dir: 2, warn: 3, error: 4 };

  const quoted = (text) => JSON.stringify(text);

  // Shows a value as people expect it in a log: at most four levels deep and cycles cut.
  function inspect(value, depth, seen) {
    switch (typeof value) {
      case "string": return depth === 0 ? value : quoted(value);
      case "bigint": return `${value}n`;
      case "function": return `[function ${value.name || "anonymous"}]`;
      case "object": break;
      default: return String(value);
    }
    if (value === null) return "null";
    if (value instanceof Error) {
      const cause = value.cause === undefined ? "" : `\ncaused by: ${inspect(value.cause, depth + 1, seen)}`;
      return `${value.name}: ${value.message}\n${value.stack ?? ""}`.trimEnd() + cause;
    }
    if (value instanceof Date) return Number.isNaN(value.getTime()) ? "Invalid Date" : value.toISOString();
    if (value instanceof RegExp) return String(value);
    if (seen.includes(value)) return "[circular]";
    if (depth > 3) return Array.isArray(value) ? "[array]" : "[object]";
    const inner = [...seen, value];
    const show = (part) => inspect(part, depth + 1, inner);
    if (Array.isArray(value)) return `[${value.slice(0, 100).map(show).join(", ")}${value.length > 100 ? ", …" : ""}]`;
    if (ArrayBuffer.isView(value) && value[Symbol.iterator]) {
      return `${value.constructor.name}(${value.length}) [${Array.from(value.subarray(0, 50)).join(", ")}${value.length > 50 ? ", …" : ""}]`;
    }
    if (value instanceof Map) return `Map(${value.size}) {${[...value].map(([k, v]) => `${show(k)} => ${show(v)}`).join(", ")}}`;
    if (value instanceof Set) return `Set(${value.size}) {${[...value].map(show).join(", ")}}`;
    const name = value.constructor?.name;
    const shown = Object.keys(value).map((key) => `${/^[A-Za-z_$][\w$]*$/.test(key) ? key : quoted(key)}: ${show(value[key])}`);
    return `${name && name !== "Object" ? `${name} ` : ""}{${shown.length ? ` ${shown.join(", ")} ` : ""}}`;
  }

  const line = (values) => values.map((value) => inspect(value, 0, [])).join(" ");

  const console = {};
  for (const [name, level] of Object.entries(levels)) {
    console[name] = (...values) => native.log(level, line(values));
  }
  console.assert = (condition, ...values) => {
    if (!condition) native.log(4, `assertion failed${values.length ? `: ${line(values)}` : ""}`);
  };
  Object.defineProperty(globalThis, "console", { value: console, writable: true, configurable: true });

  native.logger = Object.freeze(Object.fromEntries(
    ["trace", "debug", "info", "warn", "error"].map((name) => [name, console[name]]),
  ));
};
