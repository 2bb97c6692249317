// console: every line goes to the function's log.
(native) => {
  const levels = { trace: 0, debug: 1, log: 2, info: 2, dir: 2, warn: 3, error: 4 };

  const { stringify } = JSON;
  const quoted = (text) => stringify(text);

  const IDENTIFIER = /^[A-Za-z_$][\w$]*$/;
  const MAX_ITEMS = 100;
  const MAX_PARTS = 10_000;
  // What the runtime's own objects show, whose parts are private: those that reading leaves as they are.
  const PAIRS = [];
  const SHAPES = {
    Headers: PAIRS, URLSearchParams: PAIRS, FormData: PAIRS, Blob: ["size", "type"], File: ["name", "size", "type"],
    Request: ["method", "url", "headers"], Response: ["status", "url", "headers"], Event: ["type"], CustomEvent: ["type", "detail"],
    AbortSignal: ["aborted", "reason"], ReadableStream: ["locked"], WritableStream: ["locked"],
  };

  // Why reading something failed. What was thrown may throw again.
  function reason(error) {
    try {
      return String(error instanceof Error ? error.message : error);
    } catch {
      return "no message";
    }
  }

  // A property as text; "" if there is none or it cannot be read.
  native.textOf = (object, key) => {
    try {
      const value = object[key];
      return value === undefined ? "" : inspect(value, 0, [], { parts: 0 });
    } catch {
      return "";
    }
  };

  // Shows a value as people expect it in a log: at most four levels deep and cycles cut. Reading a value may run
  // the user's code (getters, proxies), and whatever that throws is shown instead.
  function inspect(value, depth, seen, shown) {
    try {
      if (++shown.parts > MAX_PARTS) return "…";
      return describe(value, depth, seen, shown);
    } catch (error) {
      return `[unreadable: ${reason(error)}]`;
    }
  }

  function describe(value, depth, seen, shown) {
    switch (typeof value) {
      case "string": return depth === 0 ? value : quoted(value);
      case "bigint": return `${value}n`;
      case "function": return `[function ${native.textOf(value, "name") || "anonymous"}]`;
      case "object": break;
      default: return String(value);
    }
    if (value === null) return "null";
    if (seen.includes(value)) return "[circular]";
    const inner = [...seen, value];
    const show = (part) => inspect(part, depth + 1, inner, shown);
    const read = (key) => {
      let part;
      try { part = value[key]; } catch (error) { return `[getter threw: ${reason(error)}]`; }
      return show(part);
    };
    const more = (length) => (length > MAX_ITEMS ? [`… ${length - MAX_ITEMS} more`] : []);
    if (value instanceof Error) {
      const message = native.textOf(value, "message");
      const head = `${native.textOf(value, "name") || "Error"}${message && ": "}${message}`;
      const cause = depth > 3 || value.cause === undefined ? "" : `\ncaused by: ${show(value.cause)}`;
      return `${head}\n${native.textOf(value, "stack")}`.trimEnd() + cause;
    }
    if (value instanceof Date) return Number.isNaN(value.getTime()) ? "Invalid Date" : value.toISOString();
    if (value instanceof RegExp) return String(value);
    if (depth > 3) return Array.isArray(value) ? "[array]" : "[object]";
    if (Array.isArray(value)) {
      const items = Array.from({ length: Math.min(value.length, MAX_ITEMS) }, (_, index) => read(index));
      return `[${[...items, ...more(value.length)].join(", ")}]`;
    }
    const name = typeof value.constructor === "function" ? native.textOf(value.constructor, "name") : "";
    if (ArrayBuffer.isView(value) && value[Symbol.iterator]) {
      return `${name}(${value.length}) [${Array.from(value.subarray(0, 50)).join(", ")}${value.length > 50 ? ", …" : ""}]`;
    }
    if (value instanceof Map || value instanceof Set) {
      const items = [];
      for (const [key, item] of value.entries()) {
        if (items.push(value instanceof Map ? `${show(key)} => ${show(item)}` : show(item)) === MAX_ITEMS) break;
      }
      return `${name}(${value.size}) {${[...items, ...more(value.size)].join(", ")}}`;
    }
    const title = name && name !== "Object" ? `${name} ` : "";
    const shape = native.classes.has(value.constructor) ? SHAPES[name] : undefined;
    if (shape === PAIRS) {
      const pairs = [...value].map(([key, item]) => `${quoted(key)} => ${show(item)}`);
      return `${title}{${[...pairs.slice(0, MAX_ITEMS), ...more(pairs.length)].join(", ")}}`;
    }
    if (shape) return `${title}{ ${shape.map((key) => `${key}: ${read(key)}`).join(", ")} }`;
    const keys = Object.keys(value);
    // What keeps its parts private shows what it would send: the event, the context, a URL.
    if (keys.length === 0 && typeof value.toJSON === "function") return `${title}${show(value.toJSON())}`;
    const parts = keys.slice(0, MAX_ITEMS).map((key) => `${IDENTIFIER.test(key) ? key : quoted(key)}: ${read(key)}`);
    return `${title}{${parts.length ? ` ${[...parts, ...more(keys.length)].join(", ")} ` : ""}}`;
  }

  native.inspect = (value) => inspect(value, 0, [], { parts: 0 });
  // The same with quotes around a text.
  native.quote = (value) => (typeof value === "string" ? quoted(value) : native.inspect(value));

  // The node keeps the beginning of a line only; more would cost the memory of copying it.
  const MAX_LINE = 16 * 1024;
  const line = (values) => {
    const text = values.map(native.inspect).join(" ");
    return text.length > MAX_LINE ? `${text.slice(0, MAX_LINE)}… (${text.length - MAX_LINE} characters cut)` : text;
  };

  const console = {};
  for (const [name, level] of Object.entries(levels)) {
    console[name] = (...values) => native.log(level, line(values));
  }
  console.assert = (condition, ...values) => {
    if (!condition) native.log(4, `assertion failed${values.length ? `: ${line(values)}` : ""}`);
  };
  const counts = new Map();
  const timers = new Map();
  Object.assign(console, {
    count(label = "default") {
      counts.set(String(label), (counts.get(String(label)) ?? 0) + 1);
      native.log(2, `${label}: ${counts.get(String(label))}`);
    },
    countReset(label = "default") { counts.delete(String(label)); },
    time(label = "default") { timers.set(String(label), performance.now()); },
    timeLog(label = "default", ...values) {
      const began = timers.get(String(label));
      if (began === undefined) return native.log(3, `there is no timer ${label}`);
      native.log(2, [`${label}: ${(performance.now() - began).toFixed(3)} ms`, ...(values.length ? [line(values)] : [])].join(" "));
    },
    timeEnd(label = "default") {
      console.timeLog(label);
      timers.delete(String(label));
    },
    table: console.log,
    group: (...values) => { if (values.length) console.log(...values); },
    groupCollapsed: (...values) => { if (values.length) console.log(...values); },
    groupEnd() {},
    clear() {},
  });
  Object.defineProperty(globalThis, "console", { value: console, writable: true, configurable: true });

  native.logger = Object.freeze(Object.fromEntries(
    ["trace", "debug", "info", "warn", "error"].map((name) => [name, console[name]]),
  ));
};
