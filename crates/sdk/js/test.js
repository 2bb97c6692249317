// The tests of one file. They are registered when `edgefaas test` deploys the file; each run of one is an invocation of its own, which starts from
// the same snapshot. A test reaches the node through the door of `edgefaas test`, whose address is in the configuration.

const tests = [];
const DEFAULT_TIMEOUT_MS = 10_000;
const MAX_TIMEOUT_MS = 300_000;
const MAX_OPEN = 150;

function register(mode, name, options, body) {
  if (typeof options === "function") [options, body] = [{}, options];
  if (typeof name !== "string" || !name) throw new TypeError("a test needs a name: test(\"adds up\", async (t) => { … })");
  if (typeof body !== "function" && mode !== "skip") throw new TypeError(`the test ${JSON.stringify(name)} has no function`);
  if (tests.some((test) => test.name === name)) throw new TypeError(`two tests have the name ${JSON.stringify(name)}`);
  const timeout = options?.timeout ?? DEFAULT_TIMEOUT_MS;
  if (!(timeout > 0 && timeout <= MAX_TIMEOUT_MS)) {
    throw new TypeError(`the timeout of the test ${JSON.stringify(name)} is ${shown(timeout)}, and has to be 1 to ${MAX_TIMEOUT_MS} ms`);
  }
  tests.push({ name, mode, body, timeout });
}

/** Registers a test. */
export function test(name, options, body) {
  register("run", name, options, body);
}
test.skip = (name, options, body) => register("skip", name, options, body);
test.only = (name, options, body) => register("only", name, options, body);

export class AssertionError extends Error {
  constructor(message, details = {}) {
    super(message);
    this.name = "AssertionError";
    Object.assign(this, details);
  }
}

const shown = (value) => {
  if (typeof value === "string") return JSON.stringify(value);
  if (typeof value === "number") return String(value);
  if (value instanceof Error) return String(value);
  if (value instanceof RegExp || typeof value === "bigint" || typeof value === "function") return String(value);
  if (value instanceof Map || value instanceof Set) return `${value.constructor.name} ${shown([...value])}`;
  try {
    return JSON.stringify(value, null, 2) ?? String(value);
  } catch {
    return String(value);
  }
};

function fail(message, fallback, details) {
  if (message instanceof Error) throw message;
  throw new AssertionError(message ?? fallback, details);
}

const compared = (expected, actual) => `expected: ${shown(expected)}\nactual:   ${shown(actual)}`;

function same(a, b) {
  if (Object.is(a, b)) return true;
  if (typeof a !== "object" || typeof b !== "object" || !a || !b) return false;
  if (Object.getPrototypeOf(a) !== Object.getPrototypeOf(b)) return false;
  if (a instanceof Date) return a.getTime() === b.getTime();
  if (a instanceof RegExp || a instanceof Error) return String(a) === String(b);
  if (a instanceof Set) return a.size === b.size && [...a].every((x) => b.has(x) || [...b].some((y) => same(x, y)));
  if (a instanceof Map) return a.size === b.size && [...a].every(([key, value]) => b.has(key) && same(value, b.get(key)));
  const keys = Object.keys(a);
  return keys.length === Object.keys(b).length && keys.every((key) => Object.hasOwn(b, key) && same(a[key], b[key]));
}

function fits(error, expected, message) {
  const is = typeof expected === "function" ? error instanceof expected : expected?.test(String(error?.message ?? error));
  if (expected !== undefined && !is) fail(message, `another error was thrown\n${compared(expected, error)}`);
}

/** Fails the test if `value` is falsy. */
export function assert(value, message) {
  if (!value) fail(message, `${shown(value)} is not truthy`);
}
assert.ok = assert;
assert.equal = (actual, expected, message) => {
  if (!Object.is(actual, expected)) fail(message, `the values are not the same\n${compared(expected, actual)}`, { actual, expected });
};
assert.notEqual = (actual, unwanted, message) => {
  if (Object.is(actual, unwanted)) fail(message, `both are ${shown(actual)}`);
};
assert.deepEqual = (actual, expected, message) => {
  if (!same(actual, expected)) fail(message, `the values are not equal\n${compared(expected, actual)}`, { actual, expected });
};
assert.match = (text, pattern, message) => {
  if (!pattern.test(text)) fail(message, `the text does not match\n${compared(pattern, text)}`);
};
assert.throws = (call, expected, message) => {
  try {
    call();
  } catch (error) {
    return fits(error, expected, message);
  }
  fail(message, "nothing was thrown");
};
assert.rejects = async (promise, expected, message) => {
  try {
    await (typeof promise === "function" ? promise() : promise);
  } catch (error) {
    return fits(error, expected, message);
  }
  fail(message, "the promise was not rejected");
};
assert.fail = (message = "the test failed") => fail(message);

const encoded = (bytes) => btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(""));
const decoded = (text) => Uint8Array.from(atob(text), (character) => character.charCodeAt(0));

/** A payload as a function would send it: text and bytes unchanged, all else as JSON. */
function payloadOf(value) {
  if (value === undefined || value === null) return encoded(new Uint8Array());
  if (value instanceof ArrayBuffer) return encoded(new Uint8Array(value));
  if (ArrayBuffer.isView(value)) return encoded(new Uint8Array(value.buffer, value.byteOffset, value.byteLength));
  return encoded(new TextEncoder().encode(typeof value === "string" ? value : JSON.stringify(value)));
}

class Message {
  #bytes;
  constructor({ topic, qos, retain, payload }) {
    [this.topic, this.qos, this.retain] = [topic, qos, retain];
    this.#bytes = decoded(payload);
  }
  bytes() {
    return this.#bytes;
  }
  text() {
    return new TextDecoder().decode(this.#bytes);
  }
  json() {
    return JSON.parse(this.text());
  }
}

class T {
  #door;
  #config;
  #taken = [];
  constructor(config, signal) {
    this.#config = config;
    this.signal = signal;
    this.token = config.token;
    let [operations, open] = [0, 0];
    this.#door = async (operation, request) => {
      // A function has about 200 requests under way at a time, and those behind them would begin when time has been advanced.
      if (open >= MAX_OPEN) throw new Error(`a test has at most ${MAX_OPEN} operations under way; await some of them first`);
      operations += 1;
      open += 1;
      try {
        return await carryOut(operation, request, operations);
      } finally {
        open -= 1;
      }
    };
    const carryOut = async (operation, request, number) => {
      const answer = await fetch(`${config.door}/${operation}`, {
        method: "POST",
        headers: { authorization: `Bearer ${config.key}`, "content-type": "application/json", "x-operation": String(number) },
        body: JSON.stringify(request),
        signal,
      });
      const text = await answer.text();
      if (!answer.ok) throw new Error(text);
      return text ? JSON.parse(text) : undefined;
    };
  }

  async publish(topic, payload, { qos = 0, retain = false } = {}) {
    await this.#door("publish", { topic, payload: payloadOf(payload), qos, retain });
  }

  async expectMessage(filter, { within = 5000, where = () => true } = {}) {
    const deadline = performance.now() + within;
    const skip = [...this.#taken];
    for (;;) {
      const left = Math.max(0, deadline - performance.now());
      const found = await this.#door("message", { filter, skip, within_ms: Math.round(left) });
      if (!found.message) {
        const others = found.topics.length ? `; since the test began there were ${found.topics.join(", ")}` : "";
        throw new AssertionError(`no message of ${filter} came within ${within} ms${others}`);
      }
      const message = new Message(found.message);
      skip.push(found.message.number);
      if (!(await where(message))) continue;
      this.#taken.push(found.message.number);
      return message;
    }
  }

  async expectNoMessage(filter, { within = 200 } = {}) {
    const found = await this.#door("message", { filter, skip: this.#taken, within_ms: within });
    if (found.message) {
      const message = new Message(found.message);
      throw new AssertionError(`a message of ${message.topic} came: ${message.text().slice(0, 200)}`);
    }
  }

  async call(name, data) {
    return valueOf(await this.#door("call", { name, data: payloadOf(data) }));
  }

  async fire(name, { schedule = "", at = Date.now() } = {}) {
    return valueOf(await this.#door("fire", { name, schedule, at_unix_ms: at }));
  }

  async advance(duration, { within = 5000 } = {}) {
    if (typeof duration !== "string" && !Number.isFinite(duration)) {
      throw new TypeError(`t.advance takes a duration such as "10m", or milliseconds, and not ${shown(duration)}`);
    }
    if (!Number.isInteger(within) || within < 0) {
      throw new TypeError(`within of t.advance is a whole number of milliseconds, and not ${shown(within)}`);
    }
    const { now_unix_ms: now } = await this.#door("advance", { by: duration, within_ms: within });
    setDate(now);
  }

  fetch(path, init = {}) {
    if (!path.startsWith("/")) throw new TypeError(`t.fetch takes a path of the gateway, such as "/rooms", and not ${shown(path)}`);
    return fetch(this.#config.gateway + path, { signal: this.signal, redirect: "manual", ...init });
  }

  object(name) {
    const app = this.#config.app;
    const read = (field) => this.#door("object", { app, object: name, field });
    return {
      name,
      get: async (field) => (await read(field))[field],
      value: () => read(""),
    };
  }

  async idle({ within = 5000 } = {}) {
    await this.#door("idle", { within_ms: within });
  }
}

const MachineDate = Date;

/** Lets `Date` of this test go on from `now`; a test is one invocation, and the time of an invocation is not advanced. */
function setDate(now) {
  const ahead = now - MachineDate.now();
  const time = () => MachineDate.now() + ahead;
  globalThis.Date = new Proxy(MachineDate, {
    apply: () => new MachineDate(time()).toString(),
    construct: (target, args, created) => Reflect.construct(target, args.length ? args : [time()], created),
    get: (target, key) => (key === "now" ? time : Reflect.get(target, key)),
  });
}

/** The value of a reply. */
function valueOf({ failure, reply }) {
  if (failure) throw Object.assign(new Error(failure.detail || failure.title), { status: failure.status });
  const bytes = decoded(reply.body);
  const text = () => new TextDecoder().decode(bytes);
  switch (reply.kind) {
    case "json":
      return JSON.parse(text());
    case "text":
      return text();
    case "bytes":
      return bytes;
    case "http":
      return new Response([101, 204, 205, 304].includes(reply.status) ? null : bytes, { status: reply.status, headers: reply.headers });
    default:
      return undefined;
  }
}

/** The function that `edgefaas test` calls: `{}` lists the tests, `{ run: NUMBER }` runs one. */
export default async function run(event, context) {
  const { run: number } = event.json();
  if (number === undefined) return tests.map(({ name, mode, timeout }) => ({ name, mode, timeout_ms: timeout }));
  const { body, timeout } = tests[number];
  const ended = new AbortController();
  const t = new T(context.config, ended.signal);
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new AssertionError(`the test did not end within ${timeout} ms`)), timeout);
  });
  try {
    await Promise.race([Promise.resolve().then(() => body(t)), late]);
    return { passed: true };
  } catch (error) {
    const isAssertion = error instanceof AssertionError;
    // By the log: the node turns its places into those of the source files.
    if (typeof error?.stack === "string") console.error(error.stack);
    return { passed: false, message: isAssertion ? error.message : String(error) };
  } finally {
    clearTimeout(timer);
    ended.abort();
  }
}
