// Headers (fetch standard). Names and values are checked natively; those of the event stay in its message until more than
// one of them is looked at.
(native) => {
  // In place of `init`: the headers of the event.
  const OF_EVENT = {};

  function checkedName(name) {
    const text = typeof name === "string" ? name : String(name);
    const key = native.headerName(text);
    if (key === undefined) throw new TypeError(`invalid header name: ${JSON.stringify(text)}`);
    return key;
  }
  function checkedValue(value) {
    const text = native.headerValue(typeof value === "string" ? value : String(value));
    if (typeof text === "string") return text;
    if (text) throw new TypeError("invalid header value: it has a line break or a NUL");
    throw new TypeError("invalid header value: it has a character outside of Latin-1; encodeURIComponent makes it fit");
  }

  let listOf;
  let headersOf;

  class Headers {
    // `[name, value, …]` with names in lower case; undefined while they are in the event's message.
    #list = [];
    #fixed = false;
    static {
      listOf = (headers) => headers.#list ?? (headers.#list = native.eventHeaders());
      native.fixHeaders = (headers) => { headers.#fixed = true; };
      // From `[name, value, …]` with names in lower case already.
      headersOf = (flat) => {
        const headers = new Headers();
        headers.#list = flat;
        return headers;
      };
    }
    constructor(init) {
      if (init === undefined || init === null) return;
      if (init === OF_EVENT) this.#list = undefined;
      else if (init instanceof Headers) this.#list = listOf(init).slice();
      else if (typeof init[Symbol.iterator] === "function") {
        for (const pair of init) {
          const both = [...pair];
          if (both.length !== 2) throw new TypeError("each header must have a name and a value");
          this.#list.push(checkedName(both[0]), checkedValue(both[1]));
        }
      } else {
        for (const name of Object.keys(init)) this.#list.push(checkedName(name), checkedValue(init[name]));
      }
    }
    #check() {
      if (this.#fixed) throw new TypeError("these headers are immutable; change a copy: new Headers(headers) or new Response(response.body, response)");
    }
    append(name, value) {
      const key = checkedName(name);
      const text = checkedValue(value);
      this.#check();
      listOf(this).push(key, text);
    }
    delete(name) {
      const key = checkedName(name);
      this.#check();
      const list = listOf(this);
      this.#list = list.filter((_, index) => list[index & ~1] !== key);
    }
    get(name) {
      const key = checkedName(name);
      const list = this.#list;
      if (list === undefined) return native.eventHeader(key);
      let found = null;
      for (let i = 0; i < list.length; i += 2) {
        if (list[i] === key) found = found === null ? list[i + 1] : `${found}, ${list[i + 1]}`;
      }
      return found;
    }
    getSetCookie() { return listOf(this).filter((_, index, list) => (index & 1) === 1 && list[index - 1] === "set-cookie"); }
    has(name) {
      const key = checkedName(name);
      const list = this.#list;
      if (list === undefined) return native.eventHeader(key) !== null;
      for (let i = 0; i < list.length; i += 2) if (list[i] === key) return true;
      return false;
    }
    set(name, value) {
      const key = checkedName(name);
      const text = checkedValue(value);
      this.#check();
      const list = listOf(this);
      let first = 0;
      while (first < list.length && list[first] !== key) first += 2;
      if (first === list.length) list.push(key, text);
      else {
        list[first + 1] = text;
        this.#list = list.filter((_, index) => index <= first + 1 || list[index & ~1] !== key);
      }
    }
    forEach(visit, self) { for (const [name, value] of this) visit.call(self, value, name, this); }
    *entries() {
      const names = [...new Set(listOf(this).filter((_, index) => (index & 1) === 0))].sort();
      for (const name of names) {
        if (name === "set-cookie") for (const value of this.getSetCookie()) yield [name, value];
        else yield [name, this.get(name)];
      }
    }
    *keys() { for (const [name] of this) yield name; }
    *values() { for (const [, value] of this) yield value; }
    [Symbol.iterator]() { return this.entries(); }
  }

  native.headerList = listOf;
  native.headersOf = headersOf;
  native.headersOfEvent = () => new Headers(OF_EVENT);
  native.define({ Headers });
};
