// The handler, and the event and context it is given. Both read what is asked for only.
(native) => {
  const KINDS = ["http", "mqtt", "cron", "object", "call", "workflow"];
  const { stringify } = JSON;

  // An isolate sees one event, so its parts and the context's are kept here and the two objects are made
  // before the snapshot is.
  let allFields;
  let headers;
  let properties;
  let change;

  // Those of the event and of its request.
  native.sharedHeaders = () => (headers ??= native.headersOfEvent());

  function field(kind, index) {
    if (native.kind() !== kind) return undefined;
    allFields ??= native.fields();
    return allFields[index];
  }

  // What the body of an object event says.
  function changed(part) {
    if (native.kind() !== 3) return undefined;
    if (!change) {
      const body = native.bodyText();
      const json = body === "" ? undefined : native.bodyJson();
      change = typeof json === "object" && json !== null ? json : {};
    }
    return Object.hasOwn(change, part) ? change[part] : undefined;
  }

  // `{ [name]: text }` if the bytes are UTF-8, else `{ [name + "Base64"]: base64 }`.
  function readable(name, bytes) {
    const text = native.decode(bytes, true);
    return typeof text === "string" ? { [name]: text } : { [`${name}Base64`]: native.toBase64(bytes) };
  }

  class Event {
    get kind() { return KINDS[native.kind()]; }
    json() { return native.bodyJson(); }
    text() { return native.bodyText(); }
    bytes() { return native.bodyBytes(); }
    // http
    get method() { return field(0, 0); }
    get path() { return field(0, 1); }
    get query() { return field(0, 2); }
    get headers() { return native.kind() === 0 ? native.sharedHeaders() : undefined; }
    // mqtt
    get topic() { return field(1, 0); }
    get qos() { return field(1, 1); }
    get retain() { return field(1, 2); }
    get properties() {
      if (native.kind() !== 1) return undefined;
      if (!properties) {
        const flat = field(1, 6);
        const userProperties = [];
        for (let i = 0; i < flat.length; i += 2) userProperties.push([flat[i], flat[i + 1]]);
        properties = {
          contentType: field(1, 3),
          responseTopic: field(1, 4),
          correlationData: field(1, 5),
          userProperties,
        };
      }
      return properties;
    }
    // cron
    get schedule() { return field(2, 0); }
    get cron() { return field(2, 0); }
    get scheduledTime() { return field(2, 1); }
    // object
    get object() { return field(3, 0); }
    get field() { return field(3, 1); }
    get type() { return changed("type"); }
    get previous() { return changed("previous"); }
    get value() { return changed("value"); }
    get deleted() { return changed("deleted"); }
    get origin() { return changed("origin"); }
    // call
    get caller() { return field(4, 0); }
    // workflow
    get workflow() { return field(5, 0); }
    get instance() { return field(5, 1); }
    get task() { return field(5, 2); }
    // The kind, what it brings, and the body.
    toJSON() {
      const names = [
        ["method", "path", "query"], ["topic", "qos", "retain"], ["schedule", "scheduledTime"], ["object", "field"],
        ["caller"], ["workflow", "instance", "task"],
      ][native.kind()];
      const shown = { kind: this.kind };
      for (const name of names) shown[name] = this[name];
      if (this.kind === "http") shown.headers = Object.fromEntries(this.headers);
      if (this.kind === "mqtt") {
        const { correlationData, ...properties } = this.properties;
        shown.properties = correlationData ? { ...properties, ...readable("correlationData", correlationData) } : properties;
      }
      return { ...shown, ...readable("body", this.bytes()) };
    }
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

  const PUBLISH_OPTIONS = ["qos", "retain", "contentType", "responseTopic", "correlationData", "userProperties"];

  function checkPublishOptions(options) {
    const known = PUBLISH_OPTIONS.join(", ");
    if (typeof options !== "object" || options === null || Array.isArray(options)) {
      throw new TypeError(`publish: the options are ${native.quote(options)}, not an object; it may have ${known}`);
    }
    for (const name of Object.keys(options)) {
      if (!PUBLISH_OPTIONS.includes(name)) throw new TypeError(`publish: there is no option ${JSON.stringify(name)}; there are ${known}`);
    }
    const { qos, retain } = options;
    if (qos !== undefined && ![0, 1, 2].includes(qos)) throw new TypeError(`publish: qos is 0, 1 or 2, not ${native.quote(qos)}`);
    if (retain !== undefined && typeof retain !== "boolean") {
      throw new TypeError(`publish: retain is true or false, not ${native.quote(retain)}`);
    }
  }

  async function publish(topic, value, options) {
    if (options !== undefined) checkPublishOptions(options);
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

  // The JSON of what a field shall hold.
  function jsonOf(method, value) {
    if (typeof value === "number" && !Number.isFinite(value)) throw new TypeError(`${method}: ${value} is no JSON value`);
    let json;
    try {
      json = stringify(value);
    } catch (error) {
      // A BigInt, a circular reference, or the value's own toJSON.
      if (!(error instanceof TypeError)) throw error;
      throw new TypeError(`${method}: the value cannot be JSON: ${error.message}`, { cause: error });
    }
    if (json === undefined) throw new TypeError(`${method}: ${value === undefined ? value : `a ${typeof value}`} is no JSON value`);
    // A lone surrogate, which is all that is written so, is no text that others could read.
    if (json.includes("\\ud")) json = json.replace(/\\(?:u(d[89a-f][0-9a-f]{2})|.)/g, (all, lone) => lone ? "\ufffd" : all);
    return json;
  }
  native.jsonOf = jsonOf;

  function wholeNumber(method, amount) {
    if (!Number.isSafeInteger(amount)) throw new TypeError(`${method}: a counter takes whole numbers, not ${native.quote(amount)}`);
    return amount;
  }
  native.wholeNumber = wholeNumber;

  // The name of a field or the key of a map.
  function nameOf(method, name) {
    if (typeof name === "string" && name.isWellFormed()) return name;
    if (typeof name === "number") return String(name);
    if (typeof name === "string") throw new TypeError(`${method}: a name is well-formed text, without lone surrogates`);
    throw new TypeError(`${method}: a name is text, not ${native.quote(name)}`);
  }
  native.nameOf = nameOf;

  // Promises of what is done at once. An `async` method would cost a coroutine for each call.
  const reject = Promise.reject.bind(Promise);
  const done = Object.freeze(Promise.resolve());

  class Counter {
    #object;
    #field;
    constructor(object, field) { this.#object = object; this.#field = field; }
    add(amount = 1) {
      try {
        native.counterAdd(this.#object, this.#field, wholeNumber("counter.add", amount));
        return done;
      } catch (error) {
        return reject(error);
      }
    }
    subtract(amount = 1) {
      try {
        native.counterAdd(this.#object, this.#field, -wholeNumber("counter.subtract", amount));
        return done;
      } catch (error) {
        return reject(error);
      }
    }
    value() {
      try {
        return native.counterValue(this.#object, this.#field);
      } catch (error) {
        return reject(error);
      }
    }
  }

  class Register {
    #object;
    #field;
    constructor(object, field) { this.#object = object; this.#field = field; }
    set(value) {
      try {
        native.registerSet(this.#object, this.#field, jsonOf("register.set", value));
        return done;
      } catch (error) {
        return reject(error);
      }
    }
    get() {
      try {
        return native.registerGet(this.#object, this.#field);
      } catch (error) {
        return reject(error);
      }
    }
  }

  class StatefulObject {
    #name;
    constructor(name) { this.#name = name; }
    get name() { return this.#name; }
    counter(field) { return new Counter(this.#name, nameOf("object.counter", field)); }
    register(field) { return new Register(this.#name, nameOf("object.register", field)); }
    // Without an argument all fields; a name that is missing by mistake is none.
    delete(...fields) {
      try {
        if (fields.length === 0) native.objectDelete(this.#name);
        else native.objectDelete(this.#name, nameOf("object.delete", fields[0]));
        return done;
      } catch (error) {
        return reject(error);
      }
    }
    // The other types are in a file of their own, as few functions use them.
    static {
      for (const type of [
        "gCounter", "boundedCounter", "mvRegister", "gSet", "set", "map", "flag", "ewFlag", "dwFlag", "list", "text", "json",
      ]) {
        const accessor = { [type](field) {
          const name = nameOf(`object.${type}`, field);
          native.demand("objects");
          return native.field(type, this.#name, name, []);
        } }[type];
        Object.defineProperty(this.prototype, type, { value: accessor, writable: true, configurable: true });
      }
    }
  }

  // Without an argument it is the function's own; a name that is missing by mistake is none.
  function object(...names) {
    if (names.length === 0) return new StatefulObject("");
    const name = nameOf("object", names[0]);
    if (name === "") throw new TypeError("object: a name has 1 to 255 bytes; without an argument it is the function's own object");
    return new StatefulObject(name);
  }

  const asset = (name) => native.asset(String(name));

  // Secrets are fetched when they are read, so that they stay out of memory otherwise.
  function secretsObject() {
    const secrets = {};
    for (const name of native.secretNames() ?? []) {
      Object.defineProperty(secrets, name, { get: () => native.secret(name), enumerable: true, configurable: true });
    }
    return secrets;
  }

  let allFacts;
  let config;
  let secrets;
  // Undefined until it is read, and then an object, or null in no cluster.
  let node;
  const facts = () => (allFacts ??= native.meta() ?? []);

  class Context {
    get invocationId() { return facts()[0]; }
    get function() { return facts()[1]; }
    get deadline() { return facts()[2]; }
    get config() { return (config ??= native.config() ?? {}); }
    // Read when it is asked for: the zone of a node may change.
    get node() {
      if (node === undefined) {
        node = native.node() ?? null;
        if (node !== null && node.zone === null) delete node.zone;
      }
      return node ?? undefined;
    }
    get secrets() { return (secrets ??= secretsObject()); }
    get log() { return native.logger; }
    get publish() { return publish; }
    get call() { return call; }
    get object() { return object; }
    get asset() { return asset; }
    waitUntil(promise) { native.hold(Promise.resolve(promise)); }
    passThroughOnException() {}
    // Without the secrets, as this is for logs.
    toJSON() {
      const { invocationId, function: name, deadline, config } = this;
      return { invocationId, function: name, deadline, config };
    }
  }

  const event = new Event();
  const context = new Context();

  // The environment of a handler with methods. The node is asked for what is in it when it is looked at first.
  let env;
  const { get, set, has, deleteProperty, defineProperty, ownKeys, getOwnPropertyDescriptor, preventExtensions } = Reflect;
  const operations = { get, set, has, deleteProperty, defineProperty, ownKeys, getOwnPropertyDescriptor, preventExtensions };

  function newEnvironment() {
    let filled = false;
    const fill = (target) => {
      filled = true;
      for (const values of [context.config, context.secrets]) {
        Object.defineProperties(target, Object.getOwnPropertyDescriptors(values));
      }
      Object.assign(target, { publish, call, object, asset });
    };
    const traps = {};
    for (const [name, operation] of Object.entries(operations)) {
      traps[name] = (target, ...rest) => {
        if (!filled) fill(target);
        return operation(target, ...rest);
      };
    }
    return new Proxy({}, traps);
  }

  let request;

  let handler;
  let single = false;

  // A router of Hono makes its matchers of the routes at the first match. Then no route can be added any more, so that
  // doing it now changes no answer: a request is matched before its handlers run.
  function makeMatchers(app) {
    try {
      const { router, routes } = app;
      const isRouter = typeof router?.name === "string" && ["add", "match"].every((name) => typeof router[name] === "function");
      if (isRouter && Array.isArray(routes) && routes.length > 0) router.match("GET", "/");
    } catch { /* the first request says it */ }
  }

  native.install = (value) => {
    single = typeof value === "function";
    if (single) {
      handler = value;
      return true;
    }
    const methods = ["fetch", "message", "scheduled"];
    if (typeof value !== "object" || value === null || !methods.some((name) => typeof value[name] === "function")) return false;
    handler = value;
    // They are in the snapshot then.
    env ??= newEnvironment();
    request ??= native.requestOfEvent();
    native.sharedHeaders();
    if (typeof value.fetch === "function") makeMatchers(value);
    return true;
  };

  function answer() {
    if (single) return handler(event, context);
    const kind = KINDS[native.kind()];
    env ??= newEnvironment();
    if (kind === "mqtt" && typeof handler.message === "function") return handler.message(event, env, context);
    if (kind === "cron" && typeof handler.scheduled === "function") return handler.scheduled(event, env, context);
    // A direct call of an HTTP function is a POST of the data.
    if (kind !== "mqtt" && kind !== "cron" && typeof handler.fetch === "function") {
      return handler.fetch((request ??= native.requestOfEvent()), env, context);
    }
    const wanted = { mqtt: "message", cron: "scheduled" }[kind] ?? "fetch";
    throw new TypeError(`the default export has no ${wanted}() to handle this ${kind} event`);
  }

  // What shows what it would send, as its parts are private.
  native.shown = new Set([Event, Context]);

  native.reset = () => {
    native.resetConsole?.();
    allFields = headers = properties = change = allFacts = config = secrets = node = env = request = undefined;
  };

  native.dispatch = () => {
    native.startClock();
    const value = answer();
    const thenable = typeof value === "object" && value !== null && typeof value.then === "function";
    return thenable ? Promise.resolve(value) : value;
  };
};
