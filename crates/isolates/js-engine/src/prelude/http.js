// Request and Response (fetch standard).
(native) => {
  const { Body, body: bodies, headersOf } = native;
  const TOKEN = /^[!#$%&'*+\-.^_`|~0-9A-Za-z]+$/;
  const METHODS = ["GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH"];
  const NO_BODY = [101, 103, 204, 205, 304];
  const REDIRECTS = ["follow", "error", "manual"];
  const some = (value) => value !== undefined && value !== null;

  // In place of the URL: the request of the event.
  const OF_EVENT = {};

  function checkedMethod(value) {
    if (METHODS.includes(value)) return value;
    const method = String(value);
    if (!TOKEN.test(method)) throw new TypeError(`invalid method: ${JSON.stringify(method)}`);
    if (/^(connect|trace|track)$/i.test(method)) throw new TypeError(`the method ${method} is not allowed`);
    return /^(delete|get|head|options|post|put)$/i.test(method) ? method.toUpperCase() : method;
  }

  // What the request of the event is asked for is read from the event's message then.
  class Request extends Body {
    #method;
    #url;
    #headers;
    #redirect = "follow";
    #signal;
    constructor(input, options = {}) {
      super();
      if (input === OF_EVENT) {
        bodies.setEvent(this);
        return;
      }
      this.#method = "GET";
      if (arguments.length === 0) throw new TypeError("Request: the URL is missing");
      const init = options ?? {};
      const from = input instanceof Request ? input : undefined;
      if (from) {
        this.#method = from.method;
        this.#url = from.url;
        this.#redirect = from.redirect;
        this.#signal = from.#signal;
      } else {
        const url = native.parseUrl(String(input));
        if (!url) throw new TypeError(`Invalid URL: ${native.quote(String(input))}; it has to be absolute, such as https://example.com/path`);
        if (url[3] > url[2] || url[5] > url[4]) throw new TypeError("a request's URL has no user name or password; use the header authorization");
        this.#url = url[0];
      }
      this.#headers = new Headers(init.headers ?? from?.headers);
      if (init.method !== undefined) this.#method = checkedMethod(init.method);
      if (init.redirect !== undefined) {
        if (!REDIRECTS.includes(init.redirect)) throw new TypeError(`redirect is ${native.quote(init.redirect)}; it can be ${REDIRECTS.join(", ")}`);
        this.#redirect = init.redirect;
      }
      if (init.signal !== undefined) {
        if (init.signal !== null && !(native.AbortSignal && init.signal instanceof native.AbortSignal)) {
          throw new TypeError(`signal is ${native.quote(init.signal)}, not an AbortSignal`);
        }
        this.#signal = init.signal ?? undefined;
      }
      const bare = this.#method === "GET" || this.#method === "HEAD";
      if (some(init.body)) {
        if (bare) throw new TypeError(`a ${this.#method} request has no body`);
        bodies.set(this, init.body, this.#headers);
      } else if (from && init.body === undefined) {
        if (bare && bodies.filled(from)) throw new TypeError(`a ${this.#method} request has no body`);
        bodies.move(this, from);
      }
    }
    get method() { return (this.#method ??= native.eventMethod()); }
    get url() { return (this.#url ??= native.eventUrl()); }
    get headers() { return (this.#headers ??= native.sharedHeaders()); }
    get redirect() { return this.#redirect; }
    get signal() {
      native.demand("events");
      return (this.#signal ??= native.newSignal());
    }
    clone() {
      const copy = new Request(this.url, { method: this.method, headers: this.headers, redirect: this.#redirect });
      copy.#signal = this.#signal;
      bodies.clone(copy, this);
      return copy;
    }
    static {
      native.requestOfEvent = () => new Request(OF_EVENT);
      native.signalOf = (request) => request.#signal;
    }
  }
  // What browsers have; there is neither a cache nor another origin here.
  const fixed = {
    cache: "default", credentials: "same-origin", destination: "", integrity: "", keepalive: false, mode: "cors",
    referrer: "about:client", referrerPolicy: "", duplex: "half",
  };
  for (const [name, value] of Object.entries(fixed)) {
    Object.defineProperty(Request.prototype, name, { get: () => value, enumerable: true, configurable: true });
  }

  class Response extends Body {
    #status = 200;
    #statusText = "";
    // Undefined while they are only what the body implies.
    #headers;
    #type = "default";
    #url = "";
    #redirected = false;
    constructor(body = null, options = {}) {
      super();
      const init = options ?? {};
      if (init.status !== undefined) {
        const status = Number(init.status);
        if (!Number.isInteger(status) || status < 200 || status > 599) throw new RangeError(`invalid status: ${init.status}`);
        this.#status = status;
      }
      if (init.statusText !== undefined) {
        this.#statusText = String(init.statusText);
        if (/[^\t\x20-\x7e\x80-\xff]/.test(this.#statusText)) throw new TypeError("invalid statusText");
      }
      if (some(init.headers)) this.#headers = new Headers(init.headers);
      if (some(body)) {
        if (NO_BODY.includes(this.#status)) throw new TypeError(`a ${this.#status} response has no body`);
        bodies.set(this, body, this.#headers);
      }
    }
    static json(data, init = {}) {
      const text = JSON.stringify(data);
      if (text === undefined) throw new TypeError("the value cannot be written as JSON");
      const headers = some(init.headers) ? new Headers(init.headers) : headersOf(["content-type", "application/json"]);
      if (!headers.has("content-type")) headers.set("content-type", "application/json");
      return new Response(text, { status: init.status, statusText: init.statusText, headers });
    }
    static redirect(url, status = 302) {
      if (![301, 302, 303, 307, 308].includes(status)) throw new RangeError(`invalid redirect status: ${status}`);
      const response = new Response(null, { status, headers: { location: new URL(url).href } });
      native.fixHeaders(response.headers);
      return response;
    }
    static error() {
      const response = new Response();
      response.#status = 0;
      response.#type = "error";
      native.fixHeaders(response.headers);
      return response;
    }
    get status() { return this.#status; }
    get statusText() { return this.#statusText; }
    get ok() { return this.#status >= 200 && this.#status <= 299; }
    get headers() { return (this.#headers ??= headersOf(bodies.implied(this))); }
    get type() { return this.#type; }
    get redirected() { return this.#redirected; }
    get url() { return this.#url; }
    clone() {
      const copy = new Response();
      bodies.clone(copy, this);
      copy.#headers = new Headers(this.headers);
      copy.#status = this.#status;
      copy.#statusText = this.#statusText;
      copy.#type = this.#type;
      copy.#url = this.#url;
      copy.#redirected = this.#redirected;
      return copy;
    }
    static {
      // The answer of another server to a request with `method`.
      native.fetchedResponse = (method, [status, headers, body, url, redirected]) => {
        const response = new Response();
        response.#status = status;
        response.#headers = headersOf(headers);
        native.fixHeaders(response.headers);
        response.#type = "basic";
        response.#url = url;
        response.#redirected = redirected;
        if (method !== "HEAD" && !NO_BODY.includes(status)) bodies.setOwned(response, body);
        return response;
      };
    }
  }

  // What is wrong with a Response to be sent, in words; its parts may be overridden.
  function fault(response, status, headers) {
    if (response.bodyUsed) return "the Response's body has been read already; return response.clone()";
    if (bodies.locked(response)) return "the Response's body is locked to a reader; release it, or return response.clone() from before";
    if (!Number.isInteger(status) || status < 200 || status > 599) {
      return `the Response's status is ${native.quote(status)}, not a whole number from 200 to 599`;
    }
    if (!(headers instanceof Headers)) return `the Response's headers are ${native.quote(headers)}, not Headers`;
    return undefined;
  }

  // `[status, [name, value, …], body]`, what is wrong with it, or a promise of the same Response without a
  // stream.
  native.responseParts = (value) => {
    if (!(value instanceof Response)) return null;
    const { status, headers } = value;
    const wrong = fault(value, status, headers);
    if (wrong) return wrong;
    return bodies.gather(value) ?? [status, native.headerList(headers), bodies.peek(value)];
  };
  native.define({ Request, Response });
};
