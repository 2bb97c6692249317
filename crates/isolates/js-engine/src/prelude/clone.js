// structuredClone (HTML standard) for the types there are.
(native) => {
  const refuse = (what) => new DOMException(`${what} cannot be cloned`, "DataCloneError");
  const errors = { EvalError, RangeError, ReferenceError, SyntaxError, TypeError, URIError };

  function copy(value, seen) {
    if (typeof value === "function") throw refuse(`function ${value.name}`);
    if (typeof value === "symbol") throw refuse("a symbol");
    if (typeof value !== "object" || value === null) return value;
    if (seen.has(value)) return seen.get(value);
    const remember = (result) => { seen.set(value, result); return result; };
    if (value instanceof Boolean || value instanceof Number || value instanceof String || value instanceof BigInt) return remember(Object(value.valueOf()));
    if (value instanceof Date) return remember(new Date(value.getTime()));
    if (value instanceof RegExp) return remember(new RegExp(value.source, value.flags));
    if (value instanceof ArrayBuffer && value.detached) throw refuse("a detached ArrayBuffer");
    if (value instanceof ArrayBuffer) return remember(value.slice(0));
    if (ArrayBuffer.isView(value)) {
      const buffer = copy(value.buffer, seen);
      return remember(new value.constructor(buffer, value.byteOffset, value.length ?? value.byteLength));
    }
    if (value instanceof Map) {
      const result = remember(new Map());
      for (const [key, item] of [...value]) result.set(copy(key, seen), copy(item, seen));
      return result;
    }
    if (value instanceof Set) {
      const result = remember(new Set());
      for (const item of [...value]) result.add(copy(item, seen));
      return result;
    }
    if (value instanceof DOMException) return remember(new DOMException(value.message, value.name));
    if (value instanceof Error) {
      const result = remember(new (errors[value.name] ?? Error)(value.message));
      if ("cause" in value) result.cause = copy(value.cause, seen);
      Object.defineProperty(result, "stack", { value: value.stack, writable: true, configurable: true });
      return result;
    }
    if (native.File && value instanceof native.File) {
      return remember(new native.File([value], value.name, { type: value.type, lastModified: value.lastModified }));
    }
    if (native.Blob && value instanceof native.Blob) return remember(new native.Blob([value], { type: value.type }));
    for (const known of native.classes) if (value instanceof known) throw refuse(`a ${known.name}`);
    if (value instanceof Promise || value instanceof WeakMap || value instanceof WeakSet || value instanceof WeakRef) {
      throw refuse(`a ${value.constructor.name}`);
    }
    const result = remember(Array.isArray(value) ? new Array(value.length) : {});
    for (const key of Object.keys(value)) {
      // Setting __proto__ would do something else.
      Object.defineProperty(result, key, { value: copy(value[key], seen), writable: true, enumerable: true, configurable: true });
    }
    return result;
  }

  function structuredClone(value, options = {}) {
    const transfer = new Set(options.transfer ?? []);
    for (const buffer of transfer) {
      if (!(buffer instanceof ArrayBuffer) || buffer.detached) throw refuse("what is in the transfer list and no ArrayBuffer");
    }
    const result = copy(value, new Map());
    for (const buffer of transfer) buffer.transfer();
    return result;
  }

  native.define({ structuredClone });
};
