// URL and URLSearchParams (WHATWG URL standard); parsing is done natively.
(native) => {
  // Where a part lies in the href, as indexes of what `parseUrl` gives: `[href, begin, end, …]`, all of ASCII.
  const PLACES = {
    username: [2, 3], password: [4, 5], host: [6, 9], hostname: [6, 7], port: [8, 9], pathname: [10, 11],
  };
  const PARTS = ["href", "origin", "protocol", "username", "password", "host", "hostname", "port", "pathname", "search", "hash"];
  // Their origin is what the URL begins with.
  const PLAIN_ORIGIN = ["http", "https", "ws", "wss", "ftp"];

  const READ = {
    href: (parts) => parts[0],
    origin(parts) {
      const scheme = parts[0].slice(0, parts[1]);
      return PLAIN_ORIGIN.includes(scheme) ? `${scheme}://${parts[0].slice(parts[6], parts[9])}` : native.urlOrigin(parts[0]);
    },
    protocol: (parts) => parts[0].slice(0, parts[1] + 1),
    // Without what it has: "?" and "#" alone are nothing.
    search: (parts) => (parts[12] - parts[11] > 1 ? parts[0].slice(parts[11], parts[12]) : ""),
    hash: (parts) => (parts[0].length - parts[12] > 1 ? parts[0].slice(parts[12]) : ""),
  };
  for (const [part, [from, to]] of Object.entries(PLACES)) READ[part] = (parts) => parts[0].slice(parts[from], parts[to]);

  let changed;

  class URLSearchParams {
    // `[name, value, …]`
    #list = [];
    #url;
    static {
      changed = {
        attach: (params, url) => { params.#url = url; },
        replace: (params, search) => { params.#list = native.parseQuery(search); },
      };
    }
    constructor(init = "") {
      if (typeof init === "object" && init !== null) {
        if (typeof init[Symbol.iterator] === "function") {
          for (const pair of init) {
            const both = [...pair];
            if (both.length !== 2) throw new TypeError("each pair must have a name and a value");
            this.#list.push(String(both[0]), String(both[1]));
          }
        } else {
          for (const [name, value] of Object.entries(init)) this.#list.push(name, String(value));
        }
      } else if (init !== "") {
        this.#list = native.parseQuery(String(init));
      }
    }
    #update() { this.#url?.(this.toString()); }
    get size() { return this.#list.length / 2; }
    append(name, value) { this.#list.push(String(name), String(value)); this.#update(); }
    delete(name, value) {
      const [key, text] = [String(name), value === undefined ? undefined : String(value)];
      const list = this.#list;
      this.#list = list.filter((_, i) => list[i & ~1] !== key || (text !== undefined && list[i | 1] !== text));
      this.#update();
    }
    #find(name) {
      const list = this.#list;
      for (let i = 0; i < list.length; i += 2) if (list[i] === name) return i;
      return -1;
    }
    get(name) {
      const at = this.#find(String(name));
      return at < 0 ? null : this.#list[at + 1];
    }
    getAll(name) {
      const key = String(name);
      return this.#list.filter((_, i, list) => (i & 1) === 1 && list[i - 1] === key);
    }
    has(name, value) {
      if (value === undefined) return this.#find(String(name)) >= 0;
      const [key, text] = [String(name), String(value)];
      return this.#list.some((other, i, list) => (i & 1) === 1 && list[i - 1] === key && other === text);
    }
    set(name, value) {
      const [key, text] = [String(name), String(value)];
      const at = this.#find(key);
      if (at < 0) this.#list.push(key, text);
      else {
        const list = this.#list;
        list[at + 1] = text;
        this.#list = list.filter((_, i) => i <= at + 1 || list[i & ~1] !== key);
      }
      this.#update();
    }
    sort() {
      this.#list = [...this.entries()].sort(([a], [b]) => (a < b ? -1 : a > b ? 1 : 0)).flat();
      this.#update();
    }
    forEach(visit, self) { for (const [name, value] of this) visit.call(self, value, name, this); }
    *entries() { for (let i = 0; i < this.#list.length; i += 2) yield [this.#list[i], this.#list[i + 1]]; }
    *keys() { for (let i = 0; i < this.#list.length; i += 2) yield this.#list[i]; }
    *values() { for (let i = 1; i < this.#list.length; i += 2) yield this.#list[i]; }
    [Symbol.iterator]() { return this.entries(); }
    toString() { return native.formatQuery(this.#list); }
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
      for (const part of PARTS) {
        const read = READ[part];
        const get = { [part]() { return read(this.#parts); } }[part];
        const set = part === "origin" ? undefined : function (value) {
          if (part === "href") this.#parts = new URL(value).#parts;
          else this.#set(part, value);
          if (this.#params && (part === "search" || part === "href")) changed.replace(this.#params, this.search);
        };
        Object.defineProperty(URL.prototype, part, { get, set, enumerable: true, configurable: true });
      }
    }
    toString() { return this.href; }
    toJSON() { return this.href; }
  }

  native.define({ URL, URLSearchParams });
};
