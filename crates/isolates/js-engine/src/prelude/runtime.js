// Tickets, timers, clock and randomness.
(native) => {
  const waiting = new Map();

  // A promise for what a ticket stands for.
  native.await = (ticket) => new Promise((resolve, reject) => waiting.set(ticket, { resolve, reject }));
  // The same with functions to call; `reject` may be missing where nothing can fail.
  native.waitFor = (ticket, waiter) => { waiting.set(ticket, waiter); };
  native.dropTicket = (ticket) => {
    waiting.delete(ticket);
    native.cancel(ticket);
  };

  native.settle = (ticket, ok, value) => {
    const waiter = waiting.get(ticket);
    if (!waiter) return;
    waiting.delete(ticket);
    if (ok) waiter.resolve(value);
    else waiter.reject(value);
  };

  native.makeError = (code, message) => {
    const error = new Error(message);
    error.code = code;
    return error;
  };

  const timers = new Map();
  let lastTimer = 0;

  function start(id, delay, fire) {
    const ms = Math.min(Math.max(Number(delay) || 0, 0), 0x7fffffff);
    const ticket = native.sleep(ms);
    timers.set(id, ticket);
    waiting.set(ticket, { resolve: fire });
  }

  // A callback that throws is reported as an unhandled rejection, as nobody can catch it.
  const run = (callback, values) => { Promise.try(callback, ...values); };

  function setTimeout(callback, delay = 0, ...values) {
    if (typeof callback !== "function") throw new TypeError("setTimeout: the callback is not a function");
    const id = ++lastTimer;
    start(id, delay, () => { timers.delete(id); run(callback, values); });
    return id;
  }

  function setInterval(callback, delay = 0, ...values) {
    if (typeof callback !== "function") throw new TypeError("setInterval: the callback is not a function");
    const id = ++lastTimer;
    const again = () => {
      start(id, Math.max(Number(delay) || 0, 1), () => { again(); run(callback, values); });
    };
    again();
    return id;
  }

  function clearTimeout(id) {
    const ticket = timers.get(id);
    if (ticket === undefined) return;
    timers.delete(id);
    native.dropTicket(ticket);
  }

  Math.random = { random: () => native.random() }.random;

  const hex = (bytes) => Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
  class Crypto {
    constructor() { if (crypto) throw new TypeError("there is one Crypto: crypto"); }
    get subtle() {
      native.demand("subtle");
      return native.subtle;
    }
    getRandomValues(view) {
      if (!ArrayBuffer.isView(view) || view instanceof DataView || /^(Float|BigFloat)/.test(view.constructor.name)) {
        throw new DOMException("getRandomValues: expected an integer typed array", "TypeMismatchError");
      }
      if (view.byteLength > 65536) throw new DOMException("getRandomValues: at most 65536 bytes", "QuotaExceededError");
      new Uint8Array(view.buffer, view.byteOffset, view.byteLength).set(native.randomBytes(view.byteLength));
      return view;
    }
    randomUUID() {
      const bytes = native.randomBytes(16);
      bytes[6] = (bytes[6] & 0x0f) | 0x40;
      bytes[8] = (bytes[8] & 0x3f) | 0x80;
      const text = hex(bytes);
      return [text.slice(0, 8), text.slice(8, 12), text.slice(12, 16), text.slice(16, 20), text.slice(20)].join("-");
    }
  }
  let crypto;
  crypto = new Crypto();

  // The engine's own clock began when the snapshot was made; this one begins with the invocation.
  const clock = globalThis.performance;
  const now = clock.now.bind(clock);
  const { timeOrigin } = clock;
  let began = now();
  native.startClock = () => { began = now(); };
  const performance = {
    now() { return now() - began; },
    get timeOrigin() { return timeOrigin + began; },
    toJSON() { return { timeOrigin: this.timeOrigin }; },
  };

  function reportError(error) {
    if (arguments.length === 0) throw new TypeError("reportError: the error is missing");
    native.log(4, `uncaught: ${native.inspect(error)}`);
  }
  native.reportError = reportError;

  native.define({
    setTimeout, clearTimeout, setInterval, clearInterval: clearTimeout, crypto, Crypto, performance, reportError,
    self: globalThis,
    navigator: Object.freeze({ userAgent: "edgefaas" }),
  });
};
