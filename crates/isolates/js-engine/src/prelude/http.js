// Headers, Request and Response (WHATWG fetch standard) with bodies held in memory.
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
    return text;
  }

  let listOf;
  let headersOf;

  class Headers {
    #list = [];
    static {
      listOf = (headers) => headers.#list;
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
    append(name, value) { this.#list.push([checkedName(name), checkedValue(value)]); }
    delete(name) { const key = checkedName(name); this.#list = this.#list.filter(([n]) => n !== key); }
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

  // A body as text or bytes, and the content type it implies.
  function extract(body) {
    if (body === undefined || body === null) return [null, undefined];
    if (typeof body === "string") return [body, "text/plain;charset=UTF-8"];
    if (body instanceof URLSearchParams) return [body.toString(), "application/x-www-form-urlencoded;charset=UTF-8"];
    if (ArrayBuffer.isView(body) || body instanceof ArrayBuffer) return [native.bytesOf(body).slice(), undefined];
    return [String(body), "text/plain;charset=UTF-8"];
  }

  class Body {
    #body = null;
    #used = false;
    _setBody(body, headers) {
      const [data, type] = extract(body);
      this.#body = data;
      if (type && !headers.has("content-type")) headers.append("content-type", type);
    }
    _peekBody() { return this.#body; }
    get bodyUsed() { return this.#used; }
    #take() {
      if (this.#used) throw new TypeError("the body has been read already");
      this.#used = this.#body !== null;
      return typeof this.#body === "function" ? this.#body() : this.#body;
    }
    async text() {
      const body = this.#take();
      return body === null ? "" : typeof body === "string" ? body : native.decode(body, false);
    }
    async json() {
      const body = this.#take();
      return JSON.parse(body === null ? "" : typeof body === "string" ? body : native.decode(body, false));
    }
    async bytes() {
      const body = this.#take();
      return body === null ? new Uint8Array(0) : typeof body === "string" ? native.encode(body) : body.slice();
    }
    async arrayBuffer() { return (await this.bytes()).buffer; }
    _lazyBody(read) { this.#body = read; }
    _copyBody(from) {
      if (from.bodyUsed) throw new TypeError("the body has been read already");
      this.#body = from._peekBody();
    }
  }
  for (const name of ["_setBody", "_peekBody", "_lazyBody", "_copyBody"]) {
    Object.defineProperty(Body.prototype, name, { enumerable: false });
  }

  class Request extends Body {
    #method = "GET";
    #url;
    #headers;
    #signal;
    constructor(input, init = {}) {
      super();
      if (input instanceof Request) {
        this.#method = input.method;
        this.#url = input.url;
        this.#headers = new Headers(init.headers ?? input.headers);
        if (init.body === undefined) this._copyBody(input);
      } else {
        this.#url = new URL(input).href;
        this.#headers = new Headers(init.headers);
      }
      if (init.method !== undefined) {
        const method = String(init.method);
        if (!TOKEN.test(method)) throw new TypeError(`invalid method: ${JSON.stringify(method)}`);
        this.#method = /^(delete|get|head|options|post|put)$/i.test(method) ? method.toUpperCase() : method;
      }
      if (init.body !== undefined && init.body !== null) {
        if (this.#method === "GET" || this.#method === "HEAD") throw new TypeError(`a ${this.#method} request has no body`);
        this._setBody(init.body, this.#headers);
      }
      this.#signal = init.signal ?? null;
    }
    get method() { return this.#method; }
    get url() { return this.#url; }
    get headers() { return this.#headers; }
    get signal() { return this.#signal; }
    clone() { return new Request(this); }
    static {
      native.incomingRequest = (method, url, headers) => {
        const request = new Request(url);
        request.#method = method;
        request.#headers = headers;
        request._lazyBody(() => native.bodyBytes());
        return request;
      };
    }
  }

  class Response extends Body {
    #status;
    #statusText;
    #headers;
    constructor(body = null, init = {}) {
      super();
      const status = init.status === undefined ? 200 : Number(init.status);
      if (!Number.isInteger(status) || status < 200 || status > 599) throw new RangeError(`invalid status: ${init.status}`);
      this.#status = status;
      this.#statusText = init.statusText === undefined ? "" : String(init.statusText);
      this.#headers = new Headers(init.headers);
      if (body !== null && body !== undefined) {
        if (status === 204 || status === 205 || status === 304) throw new TypeError(`a ${status} response has no body`);
        this._setBody(body, this.#headers);
      }
    }
    static json(data, init = {}) {
      const text = JSON.stringify(data);
      if (text === undefined) throw new TypeError("the value cannot be written as JSON");
      const headers = new Headers(init.headers);
      if (!headers.has("content-type")) headers.set("content-type", "application/json");
      return new Response(text, { ...init, headers });
    }
    static redirect(url, status = 302) {
      if (![301, 302, 303, 307, 308].includes(status)) throw new RangeError(`invalid redirect status: ${status}`);
      return new Response(null, { status, headers: { location: new URL(url).href } });
    }
    static error() { throw new TypeError("Response.error() is not supported"); }
    get status() { return this.#status; }
    get statusText() { return this.#statusText; }
    get ok() { return this.#status >= 200 && this.#status <= 299; }
    get headers() { return this.#headers; }
    get type() { return "default"; }
    get redirected() { return false; }
    get url() { return ""; }
    clone() {
      const copy = new Response(null, { status: this.#status, statusText: this.#statusText, headers: this.#headers });
      copy._copyBody(this);
      return copy;
    }
  }

  // `[status, [name, value, …], body]`, or what is wrong with the Response: its parts may be overridden.
  native.responseParts = (value) => {
    if (!(value instanceof Response)) return null;
    if (value.bodyUsed) return "the Response's body has been read already; return response.clone()";
    const { status, headers } = value;
    if (!Number.isInteger(status) || status < 200 || status > 599) {
      return `the Response's status is ${native.quote(status)}, not a whole number from 200 to 599`;
    }
    if (!(headers instanceof Headers)) return `the Response's headers are ${native.quote(headers)}, not Headers`;
    return [status, listOf(headers).flat(), value._peekBody()];
  };
  native.headersOf = headersOf;
  native.define({ Headers, Request, Response });
};
