// What was thrown, and why a reply cannot be JSON, in words.
(native) => {
  const { stringify } = JSON;

  function isError(value) {
    try {
      return value instanceof Error;
    } catch {
      return false;
    }
  }

  // `throw` takes any value; objects like errors, a DOMException among them, are read as errors.
  function parts(value) {
    if (typeof value === "string") return ["", value || "the function threw an empty string", ""];
    if (typeof value !== "object" || value === null) return ["", `the function threw ${native.inspect(value)}`, ""];
    const message = native.textOf(value, "message");
    const error = isError(value);
    if (error || message) {
      return [native.textOf(value, "name") || (error ? "Error" : ""), message, native.textOf(value, "stack")];
    }
    let json;
    try { json = stringify(value); } catch { /* it is shown as in a log */ }
    return ["", `the function threw ${json === undefined || json === "{}" ? native.inspect(value) : json}`, ""];
  }

  // `[name, message, stack]`, each "" if there is none.
  native.describe = (value) => parts(value).map((text) => (text.isWellFormed() ? text : text.toWellFormed()));

  // The first part that JSON.stringify refuses, looking as it does; undefined if it is none.
  function unfit(value, path, above) {
    if (typeof value?.toJSON === "function") value = value.toJSON();
    if (typeof value === "bigint") return `${path} is a BigInt; return Number(value) or String(value)`;
    if (typeof value !== "object" || value === null) return undefined;
    const cycle = above.find(([known]) => known === value);
    if (cycle) return `${path} is ${cycle[1]} again, a circular reference; return a copy without it`;
    const inner = [...above, [value, path]];
    for (const key of Object.keys(value)) {
      const at = Array.isArray(value) ? `[${key}]` : /^[A-Za-z_$][\w$]*$/.test(key) ? `.${key}` : `[${stringify(key)}]`;
      const found = unfit(value[key], path + at, inner);
      if (found) return found;
    }
    return undefined;
  }
  native.unfit = (value) => unfit(value, "reply", []);
};
