// Headers (fetch standard).
(native) => {
  const TOKEN = /^[!#$%&'*+\-.^_`|~0-9A-Za-z]+$/;

  function checkedName(name) {
    const text = String(name);
    if (!TOKEN.test(text)) throw new TypeError(`invalid header name: ${JSON.stringify(text)}`);
    return text.toLowerCase();
  }
  function checkedValue(value) {
    const text = String(value).replace(/^[\t\n\r ]+|[\t\n\r ]+$/g, "");
    if (/[\0\n\r]/.test(text)) throw new TypeError("invalid header value: it has a line break or a NUL");
    if (/[^\0-\xff]/.test(text)) throw new TypeError("invalid header value: it has a character outside of Latin-1; encodeURIComponent makes it fit");
    return text;
  }

  let listOf;
  let headersOf;

  class Headers {
    #list = [];
    #fixed = false;
    static {
      listOf = (headers) => headers.#list;
      native.fixHeaders = (headers) => { headers.#fixed = true; };
      // From `[name, value, …]` with names in lower case already.
      headersOf = (flat) => {
        const headers = new Headers();
        for (let i = 0; i < flat.length; i += 2) headers.#list.push([flat[i], flat[i + 1]]);
        return headers;
      };
    }
    constructor(init) {
      if (init === undefined || init === null) return;
      if (init instanceof Headers) this.#list = listOf(init).map(([name, value]) => [name, value]);
      else if (typeof init[Symbol.iterator] === "function") {
        for (const pair of init) {
          const both = [...pair];
          if (both.length !== 2) throw new TypeError("each header must have a name and a value");
          this.append(both[0], both[1]);
        }
      } else for (const [name, value] of Object.entries(init)) this.append(name, value);
    }
    #check() {
      if (this.#fixed) throw new TypeError("these headers are immutable; change a copy: new Headers(headers) or new Response(response.body, response)");
    }
    append(name, value) {
      const pair = [checkedName(name), checkedValue(value)];
      this.#check();
      this.#list.push(pair);
    }
    delete(name) {
      const key = checkedName(name);
      this.#check();
      this.#list = this.#list.filter(([n]) => n !== key);
    }
    get(name) {
      const key = checkedName(name);
      const values = this.#list.filter(([n]) => n === key).map(([, v]) => v);
      return values.length ? values.join(", ") : null;
    }
    getSetCookie() { return this.#list.filter(([n]) => n === "set-cookie").map(([, v]) => v); }
    has(name) { const key = checkedName(name); return this.#list.some(([n]) => n === key); }
    set(name, value) {
      const key = checkedName(name);
      const text = checkedValue(value);
      this.#check();
      const at = this.#list.findIndex(([n]) => n === key);
      if (at < 0) this.#list.push([key, text]);
      else {
        this.#list[at][1] = text;
        this.#list = this.#list.filter(([n], index) => index <= at || n !== key);
      }
    }
    forEach(visit, self) { for (const [name, value] of this) visit.call(self, value, name, this); }
    *entries() {
      const names = [...new Set(this.#list.map(([n]) => n))].sort();
      for (const name of names) {
        if (name === "set-cookie") for (const value of this.getSetCookie()) yield [name, value];
        else yield [name, this.get(name)];
      }
    }
    *keys() { for (const [name] of this) yield name; }
    *values() { for (const [, value] of this) yield value; }
    [Symbol.iterator]() { return this.entries(); }
  }

  native.TOKEN = TOKEN;
  native.headerList = listOf;
  native.headersOf = headersOf;
  native.define({ Headers });
};
