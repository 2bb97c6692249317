// What few lines of a log need: formats, groups, tables, counters and timers.
(native) => {
  native.demand("inspect");
  const { inspectAs, inspectWith } = native;

  // Whether an object says itself how it is a text: by a method that is none of the language's.
  function hasOwnText(value) {
    if (native.classes.has(value.constructor)) return typeof value.toJSON === "function" && typeof value.toJSON() === "string";
    return typeof value.toString === "function" && !Function.prototype.toString.call(value.toString).includes("[native code]");
  }

  function asText(value) {
    if (typeof value === "bigint" || typeof value === "number") return inspectAs(value);
    if (typeof value !== "object" || value === null) return String(value);
    return hasOwnText(value) ? String(value) : inspectAs(value, { depth: 0 });
  }

  const asNumber = (value, parse) => (typeof value === "symbol" || (typeof value === "object" && parse !== Number) ? "NaN" : inspectAs(parse(value)));

  function asJson(value) {
    try {
      return JSON.stringify(value) ?? "undefined";
    } catch (error) {
      if (/circular/i.test(native.textOf(error, "message"))) return "[Circular]";
      throw error;
    }
  }

  const FORMATS = {
    s: asText,
    d: (value) => (typeof value === "bigint" ? `${value}n` : typeof value === "object" ? "NaN" : asNumber(value, Number)),
    i: (value) => (typeof value === "bigint" ? `${value}n` : asNumber(value, Number.parseInt)),
    f: (value) => (typeof value === "symbol" ? "NaN" : inspectAs(Number.parseFloat(value))),
    j: asJson,
    o: (value) => inspectAs(value, { depth: 4, hidden: true }),
    O: (value) => inspectAs(value),
    c: () => "",
  };

  function tried(format, value) {
    try {
      return format(value);
    } catch {
      return inspectAs(value);
    }
  }

  // The values as a line: the first one may be a format of the others.
  native.format = (values) => {
    const [first, ...others] = values;
    const parts = [];
    let rest = values;
    if (typeof first === "string" && others.length) {
      let used = 0;
      parts.push(first.replace(/%([sdifjoOc%])/g, (all, letter) => {
        if (letter === "%") return "%";
        return used < others.length ? tried(FORMATS[letter], others[used++]) : all;
      }));
      rest = others.slice(used);
    }
    for (const value of rest) parts.push(typeof value === "string" ? value : inspectAs(value));
    return parts.join(" ");
  };

  const counts = new Map();
  const timers = new Map();
  let indent = "";

  native.indented = (text) => (indent === "" ? text : indent + text.replaceAll("\n", `\n${indent}`));
  native.resetConsole = () => {
    counts.clear();
    timers.clear();
    indent = "";
    native.grouped = false;
  };

  function duration(ms) {
    if (ms < 1000) return `${ms.toFixed(3)}ms`;
    if (ms < 60_000) return `${(ms / 1000).toFixed(3)}s`;
    return `${Math.floor(ms / 60_000)}:${((ms % 60_000) / 1000).toFixed(3).padStart(6, "0")} (m:ss.mmm)`;
  }

  function elapsed(method, label, values) {
    const began = timers.get(label);
    if (began === undefined) return native.print(3, [`console.${method}: there is no timer ${label}`]);
    return native.print(2, [`${label}: ${duration(performance.now() - began)}`, ...values]);
  }

  // --- tables ---

  const cell = (value) => inspectAs(value, {
    depth: typeof value === "object" && value !== null && !Array.isArray(value) && Object.keys(value).length > 2 ? -1 : 0, joined: 3, width: Infinity,
  });

  function drawn(head, rows) {
    const widths = head.map((title, column) => Math.max(...[title, ...rows.map((row) => row[column])].map((text) => text.length)) + 2);
    const line = (left, middle, right) => left + widths.map((width) => "─".repeat(width)).join(middle) + right;
    const row = (cells) => `│${cells.map((text, column) => ` ${text}`.padEnd(widths[column])).join("│")}│`;
    return [line("┌", "┬", "┐"), row(head), line("├", "┼", "┤"), ...rows.map(row), line("└", "┴", "┘")].join("\n");
  }

  const MAX_ROWS = 1000;

  // Index and value of each row; a map has keys beside.
  function entriesOf(data) {
    if (data instanceof Map) return ["(iteration index)", [...data].map(([key, value], index) => [String(index), value, key])];
    if (data instanceof Set) return ["(iteration index)", [...data].map((value, index) => [String(index), value])];
    return ["(index)", Object.keys(data).map((key) => [key, data[key]])];
  }

  function table(data, columns) {
    if (typeof data !== "object" || data === null) return undefined;
    const [first, entries] = entriesOf(data);
    const titles = new Set(columns ?? []);
    const isRow = (value) => (typeof value === "object" && value !== null) || typeof value === "function";
    const shown = entries.slice(0, MAX_ROWS);
    if (!columns) for (const [, value] of shown) if (isRow(value)) for (const key of Object.keys(value)) titles.add(key);
    const keys = data instanceof Map ? ["Key"] : [];
    const values = shown.some(([, value]) => !isRow(value)) ? ["Values"] : [];
    const rows = shown.map(([index, value, key]) => [
      index, ...(keys.length ? [cell(key)] : []), ...[...titles].map((title) => (isRow(value) && Object.hasOwn(value, title) ? cell(value[title]) : "")),
      ...(values.length ? [isRow(value) ? "" : cell(value)] : []),
    ]);
    return drawn([first, ...keys, ...titles, ...values], rows);
  }

  native.rare = {
    assert(condition, ...values) {
      if (condition) return;
      if (typeof values[0] === "string") native.print(4, [`Assertion failed: ${values[0]}`, ...values.slice(1)]);
      else native.print(4, values.length ? ["Assertion failed:", ...values] : ["Assertion failed"]);
    },
    count(label = "default") {
      const name = String(label);
      counts.set(name, (counts.get(name) ?? 0) + 1);
      native.print(2, [`${name}: ${counts.get(name)}`]);
    },
    countReset(label = "default") {
      if (!counts.delete(String(label))) native.print(3, [`console.countReset: there is no counter ${String(label)}`]);
    },
    time(label = "default") {
      if (timers.has(String(label))) native.print(3, [`console.time: there is a timer ${String(label)} already`]);
      else timers.set(String(label), performance.now());
    },
    timeLog(label = "default", ...values) { elapsed("timeLog", String(label), values); },
    timeEnd(label = "default") {
      elapsed("timeEnd", String(label), []);
      timers.delete(String(label));
    },
    group(...values) {
      if (values.length) native.print(2, values);
      indent = `${indent}  `.slice(0, 100);
      native.grouped = true;
    },
    groupEnd() {
      indent = indent.slice(2);
      native.grouped = indent !== "";
    },
    dir(value, options) { native.write(2, native.indented(inspectWith(value, options ?? {}))); },
    table(data, columns) {
      const text = table(data, columns);
      if (text === undefined) native.print(2, [data]);
      else native.write(2, native.indented(text));
    },
    trace(...values) {
      const stack = String(new Error().stack).split("\n").filter((line) => !line.includes("edgefaas:")).join("\n").trimEnd();
      native.write(0, native.indented(`Trace${values.length ? ": " : ""}${native.format(values)}\n${stack}`));
    },
  };
  native.rare.groupCollapsed = native.rare.group;
};
