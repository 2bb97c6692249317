// The handler, and the event and context it is given. Both read what is asked for only.
(native) => {
  const KINDS = ["http", "mqtt", "cron", "object", "call", "workflow"];

  class Event {
    #fields;
    #headers;
    #properties;
    get kind() { return KINDS[native.kind()]; }
    json() { return native.bodyJson(); }
    text() { return native.bodyText(); }
    bytes() { return native.bodyBytes(); }
    #field(kind, index) {
      if (native.kind() !== kind) return undefined;
      this.#fields ??= native.fields();
      return this.#fields[index];
    }
    // http
    get method() { return this.#field(0, 0); }
    get path() { return this.#field(0, 1); }
    get query() { return this.#field(0, 2); }
    get headers() { return native.kind() === 0 ? (this.#headers ??= native.headersOf(this.#field(0, 3))) : undefined; }
    // mqtt
    get topic() { return this.#field(1, 0); }
    get qos() { return this.#field(1, 1); }
    get retain() { return this.#field(1, 2); }
    get properties() {
      if (native.kind() !== 1) return undefined;
      if (!this.#properties) {
        const flat = this.#field(1, 6);
        const userProperties = [];
        for (let i = 0; i < flat.length; i += 2) userProperties.push([flat[i], flat[i + 1]]);
        this.#properties = {
          contentType: this.#field(1, 3),
          responseTopic: this.#field(1, 4),
          correlationData: this.#field(1, 5),
          userProperties,
        };
      }
      return this.#properties;
    }
    // cron
    get schedule() { return this.#field(2, 0); }
    get cron() { return this.#field(2, 0); }
    get scheduledTime() { return this.#field(2, 1); }
    // object
    get object() { return this.#field(3, 0); }
    get field() { return this.#field(3, 1); }
    // call
    get caller() { return this.#field(4, 0); }
    // workflow
    get workflow() { return this.#field(5, 0); }
    get instance() { return this.#field(5, 1); }
    get task() { return this.#field(5, 2); }
  }

  // What goes over the wire: text and bytes as they are, anything else as JSON.
  function payload(value) {
    if (value === undefined || value === null || typeof value === "string") return value;
    if (ArrayBuffer.isView(value) || value instanceof ArrayBuffer) return native.bytesOf(value);
    const json = JSON.stringify(value);
    if (json === undefined) throw new TypeError(`a ${typeof value} cannot be sent`);
    return json;
  }

  function flatProperties(properties) {
    if (properties === undefined || properties === null) return undefined;
    const pairs = typeof properties[Symbol.iterator] === "function" ? [...properties] : Object.entries(properties);
    return pairs.flatMap(([name, value]) => [String(name), String(value)]);
  }

  async function publish(topic, value, options) {
    if (options === undefined) return native.publish(String(topic), payload(value));
    return native.publish(
      String(topic), payload(value), options.qos, options.retain, options.contentType, options.responseTopic,
      options.correlationData === undefined ? undefined : payload(options.correlationData),
      flatProperties(options.userProperties),
    );
  }

  async function call(name, data) {
    return native.await(native.call(String(name), payload(data)));
  }

  class Counter {
    #object;
    #field;
    constructor(object, field) { this.#object = object; this.#field = field; }
    async add(amount = 1) {
      if (!Number.isSafeInteger(amount)) throw new TypeError(`a counter takes whole numbers, not ${String(amount)}`);
      return native.counterAdd(this.#object, this.#field, amount);
    }
    async value() { return native.counterValue(this.#object, this.#field); }
  }

  class Register {
    #object;
    #field;
    constructor(object, field) { this.#object = object; this.#field = field; }
    async set(value) {
      const json = JSON.stringify(value);
      if (json === undefined) throw new TypeError(`a register cannot hold a ${typeof value}`);
      return native.registerSet(this.#object, this.#field, json);
    }
    async get() { return native.registerGet(this.#object, this.#field); }
  }

  class StatefulObject {
    #name;
    constructor(name) { this.#name = name; }
    get name() { return this.#name; }
    counter(field) { return new Counter(this.#name, String(field)); }
    register(field) { return new Register(this.#name, String(field)); }
  }

  const object = (name) => new StatefulObject(String(name));

  // Secrets are fetched when they are read, so that they stay out of memory otherwise.
  function secretsObject() {
    const secrets = {};
    for (const name of native.secretNames() ?? []) {
      Object.defineProperty(secrets, name, { get: () => native.secret(name), enumerable: true, configurable: true });
    }
    return secrets;
  }

  class Context {
    #meta;
    #config;
    #secrets;
    get #facts() { return (this.#meta ??= native.meta() ?? []); }
    get invocationId() { return this.#facts[0]; }
    get function() { return this.#facts[1]; }
    get deadline() { return this.#facts[2]; }
    get config() { return (this.#config ??= native.config() ?? {}); }
    get secrets() { return (this.#secrets ??= secretsObject()); }
    get log() { return native.logger; }
    get publish() { return publish; }
    get call() { return call; }
    get object() { return object; }
    waitUntil(promise) { native.hold(Promise.resolve(promise)); }
    passThroughOnException() {}
  }

  function environment(context) {
    const env = { ...context.config };
    Object.defineProperties(env, Object.getOwnPropertyDescriptors(context.secrets));
    env.publish = publish;
    env.call = call;
    env.object = object;
    return env;
  }

  function incomingRequest(event) {
    if (native.kind() !== 0) return native.incomingRequest("POST", "http://localhost/", native.headersOf([]));
    const headers = event.headers;
    const host = headers.get("host") ?? "localhost";
    const query = event.query ? `?${event.query}` : "";
    return native.incomingRequest(event.method, `http://${host}${event.path}${query}`, headers);
  }

  let handler;
  let single = false;

  native.install = (value) => {
    if (typeof value === "function") {
      handler = value;
      single = true;
      return true;
    }
    const methods = ["fetch", "message", "scheduled"];
    if (typeof value !== "object" || value === null || !methods.some((name) => typeof value[name] === "function")) return false;
    handler = value;
    return true;
  };

  function answer() {
    const event = new Event();
    const context = new Context();
    if (single) return handler(event, context);
    const kind = KINDS[native.kind()];
    const env = environment(context);
    if (kind === "mqtt" && typeof handler.message === "function") return handler.message(event, env, context);
    if (kind === "cron" && typeof handler.scheduled === "function") return handler.scheduled(event, env, context);
    // A direct call of an HTTP function is a POST of the data.
    if (kind !== "mqtt" && kind !== "cron" && typeof handler.fetch === "function") {
      return handler.fetch(incomingRequest(event), env, context);
    }
    const wanted = { mqtt: "message", cron: "scheduled" }[kind] ?? "fetch";
    throw new TypeError(`the default export has no ${wanted}() to handle this ${kind} event`);
  }

  native.dispatch = () => {
    const value = answer();
    const thenable = typeof value === "object" && value !== null && typeof value.then === "function";
    return thenable ? Promise.resolve(value) : value;
  };
};
