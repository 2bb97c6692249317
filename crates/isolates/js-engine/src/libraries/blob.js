// Blob and File (file API), FormData (XHR standard) and multipart/form-data, all held in memory.
(native) => {
  const isText = (part) => typeof part === "string";
  let bytesIn;

  class Blob {
    #bytes;
    #type;
    static { bytesIn = (blob) => blob.#bytes; }
    constructor(parts = [], { type = "", endings = "transparent" } = {}) {
      if (typeof parts !== "object" || parts === null || typeof parts[Symbol.iterator] !== "function") {
        throw new TypeError("Blob: the parts are not a list");
      }
      if (endings !== "transparent" && endings !== "native") throw new TypeError(`Blob: there is no endings ${native.quote(endings)}`);
      this.#bytes = native.join([...parts].map((part) => {
        if (part instanceof Blob) return part.#bytes;
        if (ArrayBuffer.isView(part) || part instanceof ArrayBuffer) return native.bytesOf(part).slice();
        const text = String(part);
        return native.encode(endings === "native" ? text.replace(/\r\n?/g, "\n") : text);
      }));
      const text = String(type);
      this.#type = /[^\x20-\x7e]/.test(text) ? "" : text.toLowerCase();
    }
    get size() { return this.#bytes.length; }
    get type() { return this.#type; }
    slice(start = 0, end = this.size, type = "") {
      const part = new Blob([], { type });
      const at = (index) => (index < 0 ? Math.max(this.size + index, 0) : Math.min(index, this.size));
      const [from, to] = [at(Math.trunc(start) || 0), at(Math.trunc(end) || 0)];
      part.#bytes = this.#bytes.subarray(from, Math.max(from, to));
      return part;
    }
    async text() { return native.decode(this.#bytes, false).replace(/^\ufeff/, ""); }
    async arrayBuffer() { return this.#bytes.slice().buffer; }
    async bytes() { return this.#bytes.slice(); }
    stream() { native.demand("streams"); return native.streamOf(this.#bytes.slice()); }
  }

  class File extends Blob {
    #name;
    #modified;
    constructor(parts, name, options = {}) {
      if (arguments.length < 2) throw new TypeError("File: expected the parts and a name");
      super(parts, options);
      this.#name = String(name);
      this.#modified = options.lastModified === undefined ? Date.now() : Number(options.lastModified);
    }
    get name() { return this.#name; }
    get lastModified() { return this.#modified; }
    get webkitRelativePath() { return ""; }
  }

  function entry(value, name) {
    if (!(value instanceof Blob)) {
      if (name !== undefined) throw new TypeError("FormData: only a Blob has a file name");
      return String(value).toWellFormed();
    }
    if (value instanceof File && name === undefined) return value;
    return new File([value], name ?? value.name ?? "blob", { type: value.type, lastModified: value.lastModified });
  }

  class FormData {
    #list = [];
    constructor(form) {
      if (form !== undefined) throw new TypeError("FormData: there are no forms here; start empty and append");
    }
    append(name, value, file) { this.#list.push([String(name).toWellFormed(), entry(value, file)]); }
    delete(name) { this.#list = this.#list.filter(([n]) => n !== String(name)); }
    get(name) { return this.#list.find(([n]) => n === String(name))?.[1] ?? null; }
    getAll(name) { return this.#list.filter(([n]) => n === String(name)).map(([, v]) => v); }
    has(name) { return this.#list.some(([n]) => n === String(name)); }
    set(name, value, file) {
      const pair = [String(name).toWellFormed(), entry(value, file)];
      const at = this.#list.findIndex(([n]) => n === pair[0]);
      if (at < 0) this.#list.push(pair);
      else {
        this.#list[at] = pair;
        this.#list = this.#list.filter(([n], index) => index <= at || n !== pair[0]);
      }
    }
    forEach(visit, self) { for (const [name, value] of this.#list) visit.call(self, value, name, this); }
    *entries() { for (const [name, value] of this.#list) yield [name, value]; }
    *keys() { for (const [name] of this.#list) yield name; }
    *values() { for (const [, value] of this.#list) yield value; }
    [Symbol.iterator]() { return this.entries(); }
  }

  const escaped = (name) => name.replace(/\n/g, "%0A").replace(/\r/g, "%0D").replace(/"/g, "%22");

  // `[bytes, content type]`.
  native.encodeForm = (form) => {
    const boundary = `----edgefaas${Array.from({ length: 4 }, () => Math.trunc(Math.random() * 2 ** 32).toString(16).padStart(8, "0")).join("")}`;
    const parts = [];
    for (const [name, value] of form) {
      const head = `--${boundary}\r\nContent-Disposition: form-data; name="${escaped(name.replace(/\r\n|\r|\n/g, "\r\n"))}"`;
      if (isText(value)) parts.push(native.encode(`${head}\r\n\r\n${value.replace(/\r\n|\r|\n/g, "\r\n")}\r\n`));
      else {
        const type = value.type || "application/octet-stream";
        parts.push(native.encode(`${head}; filename="${escaped(value.name)}"\r\nContent-Type: ${type}\r\n\r\n`), bytesIn(value), native.encode("\r\n"));
      }
    }
    parts.push(native.encode(`--${boundary}--\r\n`));
    return [native.join(parts), `multipart/form-data; boundary=${boundary}`];
  };

  // The value of a parameter such as `name="a"`; undefined if there is none.
  function parameter(text, name) {
    const found = new RegExp(`(?:^|;)\\s*${name}\\s*=\\s*(?:"((?:[^"\\\\]|\\\\.)*)"|([^;\\s]*))`, "i").exec(text);
    return found ? (found[1] ?? found[2]) : undefined;
  }
  const unescaped = (text) => text.replace(/%0A/g, "\n").replace(/%0D/g, "\r").replace(/%22/g, '"').replace(/\\(["\\])/g, "$1");

  native.parseForm = (bytes, type) => {
    const kind = (type ?? "").split(";")[0].trim().toLowerCase();
    const form = new FormData();
    if (kind === "application/x-www-form-urlencoded") {
      for (const [name, value] of new URLSearchParams(native.decode(bytes, false))) form.append(name, value);
      return form;
    }
    if (kind !== "multipart/form-data") {
      throw new TypeError(`formData: the content type is ${type ? native.quote(type) : "missing"}; it can be multipart/form-data or application/x-www-form-urlencoded`);
    }
    const boundary = parameter(type, "boundary");
    if (!boundary) throw new TypeError("formData: the content type names no boundary");
    // `[head, start, end, …]` of the parts.
    const parts = native.splitForm(bytes, boundary);
    if (!parts) throw new TypeError("formData: the body is not complete multipart/form-data with the boundary of its content type");
    for (let i = 0; i < parts.length; i += 3) {
      const head = Object.fromEntries(parts[i].split("\r\n").map((line) => {
        const at = line.indexOf(":");
        return [line.slice(0, at).trim().toLowerCase(), line.slice(at + 1).trim()];
      }));
      const disposition = head["content-disposition"] ?? "";
      const name = parameter(disposition, "name");
      if (!/^form-data\s*(;|$)/i.test(disposition) || name === undefined) throw new TypeError("formData: a part has no name");
      const content = bytes.subarray(parts[i + 1], parts[i + 2]);
      const file = parameter(disposition, "filename");
      if (file === undefined) form.append(unescaped(name), native.decode(content, false));
      else form.append(unescaped(name), new File([content], unescaped(file), { type: head["content-type"] ?? "text/plain" }));
    }
    return form;
  };

  native.bytesIn = bytesIn;
  native.Blob = Blob;
  native.File = File;
  native.FormData = FormData;
  native.define({ Blob, File, FormData });
};
