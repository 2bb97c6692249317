// URL and URLSearchParams (WHATWG URL standard); parsing is done natively.
(native) => {
  const PARTS = ["href", "origin", "protocol", "username", "password", "host", "hostname", "port", "pathname", "search", "hash"];

  const encode = (text) =>
    encodeURIComponent(text.toWellFormed()).replace(/%20/g, "+").replace(/[!'()~]/g, (c) => `%${c.charCodeAt(0).toString(16).toUpperCase()}`);

  function decode(text) {
    if (!/[%+]/.test(text)) return text;
    const raw = native.encode(text.replace(/\+/g, " "));
    const bytes = new Uint8Array(raw.length);
    let length = 0;
    for (let i = 0; i < raw.length; i++) {
      if (raw[i] === 0x25 && i + 2 < raw.length) {
        const hex = String.fromCharCode(raw[i + 1], raw[i + 2]);
        if (/^[0-9a-f]{2}$/i.test(hex)) {
          bytes[length++] = parseInt(hex, 16);
          i += 2;
          continue;
        }
      }
      bytes[length++] = raw[i];
    }
    return native.decode(bytes.subarray(0, length), false);
  }

  const parse = (text) =>
    text.split("&").filter((part) => part !== "").map((part) => {
      const at = part.indexOf("=");
      return at < 0 ? [decode(part), ""] : [decode(part.slice(0, at)), decode(part.slice(at + 1))];
    });

  let changed;

  class URLSearchParams {
    #list = [];
    #url;
    static {
      changed = {
        attach: (params, url) => { params.#url = url; },
        replace: (params, search) => { params.#list = parse(search.replace(/^\?/, "")); },
      };
    }
    constructor(init = "") {
      if (typeof init === "object" && init !== null) {
        if (typeof init[Symbol.iterator] === "function") {
          for (const pair of init) {
            const both = [...pair];
            if (both.length !== 2) throw new TypeError("each pair must have a name and a value");
            this.#list.push(both.map(String));
          }
        } else {
          this.#list = Object.entries(init).map(([name, value]) => [name, String(value)]);
        }
      } else {
        this.#list = parse(String(init).replace(/^\?/, ""));
      }
    }
    #update() { this.#url?.(this.toString()); }
    get size() { return this.#list.length; }
    append(name, value) { this.#list.push([String(name), String(value)]); this.#update(); }
    delete(name, value) {
      this.#list = this.#list.filter(([n, v]) => n !== String(name) || (value !== undefined && v !== String(value)));
      this.#update();
    }
    get(name) { return this.#list.find(([n]) => n === String(name))?.[1] ?? null; }
    getAll(name) { return this.#list.filter(([n]) => n === String(name)).map(([, v]) => v); }
    has(name, value) { return this.#list.some(([n, v]) => n === String(name) && (value === undefined || v === String(value))); }
    set(name, value) {
      const at = this.#list.findIndex(([n]) => n === String(name));
      if (at < 0) this.#list.push([String(name), String(value)]);
      else {
        this.#list[at][1] = String(value);
        this.#list = this.#list.filter(([n], index) => index <= at || n !== String(name));
      }
      this.#update();
    }
    sort() { this.#list.sort(([a], [b]) => (a < b ? -1 : a > b ? 1 : 0)); this.#update(); }
    forEach(visit, self) { for (const [name, value] of this.#list) visit.call(self, value, name, this); }
    *entries() { for (const [name, value] of this.#list) yield [name, value]; }
    *keys() { for (const [name] of this.#list) yield name; }
    *values() { for (const [, value] of this.#list) yield value; }
    [Symbol.iterator]() { return this.entries(); }
    toString() { return this.#list.map(([name, value]) => `${encode(name)}=${encode(value)}`).join("&"); }
  }

  class URL {
    #parts;
    #params;
    constructor(url, base) {
      const parts = native.parseUrl(String(url), base === undefined ? undefined : String(base));
      if (!parts) throw new TypeError(`Invalid URL: ${url}`);
      this.#parts = parts;
    }
    static canParse(url, base) { return Boolean(native.parseUrl(String(url), base === undefined ? undefined : String(base))); }
    static parse(url, base) { return URL.canParse(url, base) ? new URL(url, base) : null; }
    get searchParams() {
      if (!this.#params) {
        this.#params = new URLSearchParams(this.search);
        changed.attach(this.#params, (search) => { this.#set("search", search); });
      }
      return this.#params;
    }
    #set(part, value) { this.#parts = native.setUrl(this.#parts[0], part, String(value)) ?? this.#parts; }
    static {
      PARTS.forEach((part, index) => {
        const get = { [part]() { return this.#parts[index]; } }[part];
        const set = part === "origin" ? undefined : function (value) {
          if (part === "href") this.#parts = new URL(value).#parts;
          else this.#set(part, value);
          if (this.#params && (part === "search" || part === "href")) changed.replace(this.#params, this.search);
        };
        Object.defineProperty(URL.prototype, part, { get, set, enumerable: true, configurable: true });
      });
    }
    toString() { return this.href; }
    toJSON() { return this.href; }
  }

  native.define({ URL, URLSearchParams });
};
