// Values as Node.js shows them in a log.
(native) => {
  const MAX_ITEMS = 100;
  const MAX_TEXT = 10_000;
  // A value of more parts is cut, however it is made.
  const MAX_PARTS = 10_000;
  const DEFAULTS = { depth: 2, width: 80, joined: 3, hidden: false };
  const CUSTOM = Symbol.for("nodejs.util.inspect.custom");
  const IDENTIFIER = /^[A-Za-z_$][\w$]*$/;

  // What the runtime's own objects show, whose parts are private: those that reading leaves as they are.
  const PAIRS = [];
  const SHAPES = {
    Headers: PAIRS, URLSearchParams: PAIRS, FormData: PAIRS, Blob: ["size", "type"], File: ["name", "size", "type"],
    Request: ["method", "url", "headers"], Response: ["status", "url", "headers"], Event: ["type"], CustomEvent: ["type", "detail"],
    AbortSignal: ["aborted", "reason"], ReadableStream: ["locked"], WritableStream: ["locked"], CryptoKey: ["type", "extractable", "algorithm", "usages"],
  };

  // Why reading something failed. What was thrown may throw again.
  function reason(error) {
    try {
      return String(error instanceof Error ? error.message : error);
    } catch {
      return "no message";
    }
  }

  const ESCAPES = { "\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r", "\\": "\\\\" };

  function quoted(text) {
    const quote = !text.includes("'") ? "'" : !text.includes('"') ? '"' : !text.includes("`") && !text.includes("${") ? "`" : "'";
    const escaped = text.replace(/[\0-\x1f\x7f-\x9f\\']|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g, (part) => {
      if (part === "'") return quote === "'" ? "\\'" : part;
      if (ESCAPES[part]) return ESCAPES[part];
      const code = part.charCodeAt(0);
      return code < 256 ? `\\x${code.toString(16).toUpperCase().padStart(2, "0")}` : `\\u${code.toString(16).toUpperCase()}`;
    });
    return quote + escaped + quote;
  }

  function textIn(text, state) {
    const rest = text.length - MAX_TEXT;
    const shown = rest > 0 ? text.slice(0, MAX_TEXT) : text;
    const tail = rest > 0 ? `... ${rest} more character${rest > 1 ? "s" : ""}` : "";
    if (state.joined && shown.length > 16 && shown.length > state.width - state.indent - 4) {
      return shown.split(/(?<=\n)/).map(quoted).join(` +\n${" ".repeat(state.indent + 2)}`) + tail;
    }
    return quoted(shown) + tail;
  }

  const numberText = (value) => (Object.is(value, -0) ? "-0" : String(value));

  function primitive(value, state) {
    switch (typeof value) {
      case "string": return textIn(value, state);
      case "number": return numberText(value);
      case "bigint": return `${value}n`;
      default: return String(value);
    }
  }

  const tagOf = (value) => {
    const tag = value[Symbol.toStringTag];
    return typeof tag === "string" ? tag : "";
  };

  // The name of a value's class; null if it has none.
  function className(value) {
    for (let at = value; at !== null; at = Object.getPrototypeOf(at)) {
      const descriptor = Object.getOwnPropertyDescriptor(at, "constructor");
      if (descriptor && typeof descriptor.value === "function" && typeof descriptor.value.name === "string" && descriptor.value.name !== ""
        && value instanceof descriptor.value) return descriptor.value.name;
    }
    return null;
  }

  // What stands before the parts: the class, a size, and the tag if it says more.
  function prefix(value, name, usual, size) {
    const sized = size === undefined ? "" : `(${size})`;
    const tag = tagOf(value);
    const tagged = tag !== "" && tag !== name ? `[${tag}] ` : "";
    return name === null ? `[${usual}${sized}: null prototype] ${tagged}` : `${name}${sized} ${tagged}`;
  }

  function functionHead(value, name, tag) {
    const text = Function.prototype.toString.call(value);
    const own = native.textOf(value, "name");
    if (/^class\b/.test(text)) {
      const parent = Object.getPrototypeOf(value);
      const above = typeof parent === "function" ? native.textOf(parent, "name") : "";
      const extending = above ? ` extends ${above}` : parent === null ? " extends [null prototype]" : "";
      return `[class ${own || "(anonymous)"}${extending}]`;
    }
    const kind = name === null ? "Function (null prototype)" : /Function$/.test(tag) ? tag : "Function";
    return own ? `[${kind}: ${own}]` : `[${kind} (anonymous)]`;
  }

  function errorHead(error, state) {
    const message = native.textOf(error, "message");
    let name = native.textOf(error, "name") || "Error";
    const own = className(error);
    if (own !== null && name === "Error" && own !== "Error") name = own;
    const head = `${name}${message && ": "}${message}`;
    // Frames of the runtime say nothing to its users.
    const stack = native.textOf(error, "stack").split("\n").filter((line) => !/[( ]edgefaas:/.test(line)).join("\n").trimEnd();
    // Other engines begin a stack with the name and the message.
    const whole = stack === "" ? `[${head}]` : stack.startsWith(name) || !/^\s+at /.test(stack) ? stack : `${head}\n${stack}`;
    return state.indent ? whole.replaceAll("\n", `\n${" ".repeat(state.indent)}`) : whole;
  }

  // Shows a value. Reading one may run the user's code (proxies, toStringTag), and whatever that throws is shown instead.
  function show(value, level, state) {
    if ((typeof value !== "object" && typeof value !== "function") || value === null) return primitive(value, state);
    try {
      if (++state.parts > MAX_PARTS) return "...";
      const custom = value[CUSTOM];
      if (typeof custom === "function") return customText(value, custom, level, state);
      if (state.above.includes(value)) {
        if (!state.circular.has(value)) state.circular.set(value, state.circular.size + 1);
        return `[Circular *${state.circular.get(value)}]`;
      }
      return describe(value, level, state);
    } catch (error) {
      return `[unreadable: ${reason(error)}]`;
    }
  }

  function customText(value, custom, level, state) {
    const options = { depth: state.depth - level, showHidden: state.hidden, breakLength: state.width, compact: state.joined, colors: false, stylize: String };
    const shown = custom.call(value, state.depth - level, options, native.inspectWith);
    return typeof shown === "string" ? shown.replaceAll("\n", `\n${" ".repeat(state.indent)}`) : show(shown, level, state);
  }

  // `{ braces, base, items, last, list }`: what surrounds the parts, what stands alone if there are none, the parts before and after
  // the properties, and the value itself if its indices are parts.
  function formOf(value, name, level, state) {
    const tag = tagOf(value);
    const inner = (item) => within(2, state, () => show(item, level + 1, state));
    if (Array.isArray(value)) {
      const head = name !== "Array" || (tag !== "" && tag !== name) ? prefix(value, name, "Array", value.length) : "";
      return { braces: [`${head}[`, "]"], items: () => arrayItems(value, inner, state), list: value };
    }
    if (value instanceof Set) {
      return { braces: [`${prefix(value, name, "Set", value.size)}{`, "}"], items: () => some(value.values(), value.size, inner) };
    }
    if (value instanceof Map) {
      return { braces: [`${prefix(value, name, "Map", value.size)}{`, "}"], items: () => some(value.entries(), value.size, ([key, item]) => `${inner(key)} => ${inner(item)}`) };
    }
    if (ArrayBuffer.isView(value) && !(value instanceof DataView)) {
      const items = () => {
        const shown = Array.from(value.subarray(0, MAX_ITEMS), (item) => primitive(item, state));
        if (value.length > MAX_ITEMS) shown.push(more(value.length - MAX_ITEMS));
        return shown;
      };
      return { braces: [`${prefix(value, name, tag, value.length)}[`, "]"], items, list: value };
    }
    if (value instanceof ArrayBuffer) {
      const bytes = Array.from(new Uint8Array(value, 0, Math.min(value.byteLength, 50)), (byte) => byte.toString(16).padStart(2, "0"));
      const rest = value.byteLength > 50 ? ` ... ${value.byteLength - 50} more byte${value.byteLength > 51 ? "s" : ""}` : "";
      return { braces: [`${prefix(value, name, "ArrayBuffer")}{`, "}"], items: () => [`[Uint8Contents]: <${bytes.join(" ")}${rest}>`, `byteLength: ${value.byteLength}`] };
    }
    if (value instanceof DataView) {
      const items = () => [`byteLength: ${value.byteLength}`, `byteOffset: ${value.byteOffset}`, `buffer: ${inner(value.buffer)}`];
      return { braces: [`${prefix(value, name, "DataView")}{`, "}"], items };
    }
    if (value instanceof Promise) {
      const [settled, result] = native.promiseState(value);
      const items = () => [settled === 0 ? "<pending>" : settled === 1 ? inner(result) : `<rejected> ${inner(result)}`];
      return { braces: [`${prefix(value, name, "Promise")}{`, "}"], items };
    }
    if (value instanceof WeakSet || value instanceof WeakMap) {
      return { braces: [`${prefix(value, name, tag)}{`, "}"], items: () => ["<items unknown>"] };
    }
    if (typeof value === "function") return { braces: ["{", "}"], base: functionHead(value, name, tag) };
    if (value instanceof Error) return { braces: ["{", "}"], base: errorHead(value, state), last: () => errorItems(value, inner) };
    if (value instanceof RegExp) return { braces: ["{", "}"], base: RegExp.prototype.toString.call(value) };
    if (value instanceof Date) {
      const time = Date.prototype.getTime.call(value);
      return { braces: ["{", "}"], base: Number.isNaN(time) ? "Invalid Date" : Date.prototype.toISOString.call(value) };
    }
    for (const Boxed of [Number, String, Boolean, BigInt, Symbol]) {
      if (value instanceof Boxed) return { braces: ["{", "}"], base: `[${Boxed.name}: ${primitive(Boxed.prototype.valueOf.call(value), { ...state, joined: 0 })}]`, skip: Boxed === String ? value.length : 0 };
    }
    const shape = native.classes.has(value.constructor) ? SHAPES[name] : undefined;
    if (shape === PAIRS) {
      const pairs = [...value];
      return { braces: [`${name} {`, "}"], items: () => some(pairs.values(), pairs.length, ([key, item]) => `${quoted(key)} => ${inner(item)}`) };
    }
    if (shape) return { braces: [`${name} {`, "}"], items: () => shape.map((key) => `${key}: ${inner(value[key])}`) };
    // What keeps its parts private shows what it would send: the event, the context, a URL.
    const json = (native.classes.has(value.constructor) || native.shown.has(value.constructor)) && typeof value.toJSON === "function" ? value.toJSON() : undefined;
    if (typeof json === "string") return { braces: ["{", "}"], base: `${name} ${quoted(json)}` };
    if (json !== undefined) return { braces: [`${name} {`, "}"], items: () => Object.keys(json).map((key) => `${IDENTIFIER.test(key) ? key : quoted(key)}: ${inner(json[key])}`) };
    if (Object.prototype.toString.call(value) === "[object Arguments]") return { braces: ["[Arguments] [", "]"], items: () => arrayItems(value, inner, state), list: value };
    const head = name === "Object" && (tag === "" || tag === name) ? "" : prefix(value, name, "Object");
    return { braces: [`${head}{`, "}"] };
  }

  const more = (count) => `... ${count} more item${count > 1 ? "s" : ""}`;

  function some(iterator, size, text) {
    const items = [];
    for (const item of iterator) {
      if (items.length === MAX_ITEMS) {
        items.push(more(size - MAX_ITEMS));
        break;
      }
      items.push(text(item));
    }
    return items;
  }

  function arrayItems(array, inner, state) {
    const items = [];
    let index = 0;
    while (index < array.length && items.length < MAX_ITEMS) {
      if (!Object.hasOwn(array, index)) {
        let end = index;
        // A long hole is not walked through.
        const next = array.length - index > MAX_PARTS ? Object.keys(array).find((key) => Number(key) > index) : undefined;
        if (next !== undefined && IDENTIFIER.test(next)) end = array.length;
        else if (array.length - index > MAX_PARTS) end = next === undefined ? array.length : Number(next);
        else while (end < array.length && !Object.hasOwn(array, end)) end++;
        items.push(`<${end - index} empty item${end - index > 1 ? "s" : ""}>`);
        index = end;
      } else {
        items.push(property(array, index, inner, state));
        index++;
      }
    }
    if (index < array.length) items.push(more(array.length - index));
    return items;
  }

  function errorItems(error, inner) {
    const items = [];
    const cause = Object.getOwnPropertyDescriptor(error, "cause");
    if (cause && !cause.enumerable) items.push(`[cause]: ${inner(cause.value)}`);
    const errors = Object.getOwnPropertyDescriptor(error, "errors");
    if (errors && !errors.enumerable && Array.isArray(errors.value)) items.push(`[errors]: ${inner(errors.value)}`);
    return items;
  }

  // The value of a property. Getters are named, not called.
  function property(value, key, inner) {
    const descriptor = Object.getOwnPropertyDescriptor(value, key);
    if (!descriptor) return inner(value[key]);
    if (descriptor.get) return descriptor.set ? "[Getter/Setter]" : "[Getter]";
    return descriptor.set ? "[Setter]" : inner(descriptor.value);
  }

  function within(spaces, state, run) {
    state.indent += spaces;
    try {
      return run();
    } finally {
      state.indent -= spaces;
    }
  }

  const isEmpty = (value) => Object.keys(value).length === 0 && (Array.isArray(value) ? value.length === 0
    : value instanceof Map || value instanceof Set ? value.size === 0
      : typeof value === "function" || value instanceof Date || value instanceof RegExp || Object.prototype.toString.call(value) === "[object Object]");

  function describe(value, level, state) {
    const name = className(value);
    if (level > state.depth && !isEmpty(value)) {
      if (Array.isArray(value)) return "[Array]";
      const tag = tagOf(value);
      const named = value instanceof Error || typeof value === "function" || value instanceof Date || value instanceof RegExp;
      if (!named) return `[${name ?? `${tag || "Object"}: null prototype`}${name !== null && tag && tag !== name ? ` [${tag}]` : ""}]`;
    }
    state.above.push(value);
    if (!isEmpty(value)) state.deepest = level;
    let text;
    try {
      text = withParts(value, name, level, state);
    } finally {
      state.above.pop();
    }
    const circle = state.circular.get(value);
    return circle === undefined ? text : `<ref *${circle}> ${text}`;
  }

  function withParts(value, name, level, state) {
    const { braces, base = "", items, last, list, skip = list?.length ?? 0 } = formOf(value, name, level, state);
    const parts = items ? items() : [];
    let keys = state.hidden ? Object.getOwnPropertyNames(value) : Object.keys(value);
    // The indices of a list are there already.
    if (list || skip) keys = keys.filter((key) => !/^\d+$/.test(key) || Number(key) >= skip);
    if (value instanceof Error) keys = keys.filter((key) => !(["stack", "message", "name"].includes(key) && !state.hidden));
    const symbols = Object.getOwnPropertySymbols(value).filter((symbol) => state.hidden || Object.prototype.propertyIsEnumerable.call(value, symbol));
    for (const key of [...keys.slice(0, MAX_ITEMS * 10), ...symbols]) {
      const descriptor = Object.getOwnPropertyDescriptor(value, key);
      const plain = typeof key === "symbol" ? `[${String(key)}]` : key === "__proto__" ? "['__proto__']" : IDENTIFIER.test(key) ? key : quoted(key);
      const label = descriptor && !descriptor.enumerable && typeof key === "string" ? `[${key}]` : plain;
      parts.push(`${label}: ${property(value, key, (item) => within(2, state, () => show(item, level + 1, state)))}`);
    }
    if (keys.length > MAX_ITEMS * 10) parts.push(`... ${keys.length - MAX_ITEMS * 10} more`);
    if (last) parts.push(...last());
    if (parts.length === 0) return base || `${braces[0]}${braces[1]}`;
    return joined(list && parts.length > 6 && state.joined ? columns(parts, list, state) : parts, parts.length, base, braces, level, state);
  }

  // On one line if it is short and has few levels, else one part a line.
  function joined(parts, count, base, [open, close], level, state) {
    const before = base ? `${base} ` : "";
    if (!state.joined) return `${before}${open} ${parts.join(", ")} ${close}`;
    if (state.deepest - level < state.joined && parts.length === count) {
      const start = parts.length + state.indent + open.length + base.length + 10;
      const length = parts.reduce((sum, part) => sum + part.length, parts.length + start);
      if (length <= state.width && !base.includes("\n") && !parts.some((part) => part.includes("\n"))) {
        return `${before}${open} ${parts.join(", ")} ${close}`;
      }
    }
    const line = `\n${" ".repeat(state.indent)}`;
    return `${before}${open}${line}  ${parts.join(`,${line}  `)}${line}${close}`;
  }

  // Items of a long list in columns of about the shape of a page.
  function columns(parts, list, state) {
    const rest = list.length > MAX_ITEMS && parts.at(-1).startsWith("... ") ? parts.at(-1) : undefined;
    const items = rest === undefined ? parts : parts.slice(0, -1);
    const widths = items.map((item) => item.length);
    const total = widths.reduce((sum, width) => sum + width + 2, 0);
    const widest = Math.max(...widths) + 2;
    if (widest * 3 + state.indent >= state.width || (total / widest <= 5 && widest > 8)) return parts;
    const typical = Math.max(widest - 3 - Math.sqrt(widest - total / parts.length), 1);
    const count = Math.min(Math.round(Math.sqrt(2.5 * typical * items.length) / typical), Math.floor((state.width - state.indent) / widest), state.joined * 4, 15);
    if (count <= 1) return parts;
    const inColumn = Array.from({ length: count }, (_, column) => Math.max(...widths.filter((_, index) => index % count === column)) + 2);
    const numeric = Array.prototype.every.call(items, (_, index) => typeof list[index] === "number" || typeof list[index] === "bigint");
    const rows = [];
    for (let at = 0; at < items.length; at += count) {
      const row = items.slice(at, at + count);
      const cells = row.map((item, column) => {
        const last = column === row.length - 1;
        const text = last ? item : `${item}, `;
        if (numeric) return text.padStart(inColumn[column] - (last ? 2 : 0));
        return last ? text : text.padEnd(inColumn[column]);
      });
      rows.push(cells.join(""));
    }
    if (rest !== undefined) rows.push(rest);
    return rows;
  }

  const stateOf = (options) => ({ ...DEFAULTS, ...options, indent: 0, parts: 0, above: [], circular: new Map(), deepest: 0 });

  // For logs; texts alone are shown without quotes by the caller.
  native.inspectAs = (value, options) => show(value, 0, stateOf(options));
  // For messages of errors: on one line.
  native.inspectLine = (value) => (typeof value === "string" ? value : show(value, 0, stateOf({ joined: 0, width: Infinity })));
  // With the options that Node.js has.
  native.inspectWith = (value, { depth = 2, showHidden = false, breakLength = 80, compact = 3 } = {}) => native.inspectAs(value, {
    depth: depth === null ? Infinity : depth, hidden: Boolean(showHidden), width: breakLength, joined: compact === true ? 0 : Number(compact) || 0,
  });
};
