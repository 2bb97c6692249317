// TransformStream (streams standard) and the streams of text that are made of it.
(native) => {
  native.demand("writable");
  const { noop, readable, writable } = native;
  let failBoth;
  let enqueueOn;
  let terminate;

  class TransformStreamDefaultController {
    #t;
    static {
      // For transforms that give much for little: waits until somebody reads.
      native.relief = async (controller) => {
        const t = controller.#t;
        while (t.pressure && t.s.state === "readable") await t.changed.promise;
        if (t.s.state !== "readable") throw t.s.error ?? new TypeError("the stream is closed already");
      };
    }
    constructor(t) {
      if (!native.isState(t)) throw new TypeError("a controller is made with its stream");
      this.#t = t;
    }
    get desiredSize() { return readable.room(this.#t.s); }
    enqueue(chunk) { enqueueOn(this.#t, chunk); }
    error(error) { failBoth(this.#t, error); }
    terminate() { terminate(this.#t); }
  }

  class TransformStream {
    #readable;
    #writable;
    constructor(transformer = {}, writableStrategy = {}, readableStrategy = {}) {
      const source = transformer ?? {};
      const [mark, size] = native.strategy(readableStrategy, 0);
      const transform = native.method(source, "transform", (chunk, controller) => controller.enqueue(chunk));
      const flush = native.method(source, "flush", noop);
      const cancel = native.method(source, "cancel", noop);
      const started = Promise.withResolvers();
      // Writes wait for as long as nobody reads.
      const t = { s: undefined, w: undefined, pressure: true, changed: Promise.withResolvers(), ended: undefined };
      native.states.add(t);
      const press = (pressure) => {
        t.changed.resolve();
        t.changed = Promise.withResolvers();
        t.pressure = pressure;
      };
      t.press = press;
      const controller = new TransformStreamDefaultController(t);
      const once = (act) => (t.ended ??= act());
      this.#writable = new WritableStream({
        start: () => started.promise,
        async write(chunk) {
          while (t.pressure) {
            await t.changed.promise;
            if (t.w.state === "erroring") throw t.w.error;
          }
          try {
            await transform(chunk, controller);
          } catch (error) {
            failBoth(t, error);
            throw error;
          }
        },
        close: () => once(async () => {
          try {
            await flush(controller);
          } catch (error) {
            failBoth(t, error);
            throw error;
          }
          if (t.s.state === "errored") throw t.s.error;
          if (t.s.state === "readable" && !t.s.closing) readable.close(t.s);
        }),
        abort: (reason) => once(async () => {
          try {
            await cancel(reason);
          } catch (error) {
            readable.fail(t.s, error);
            throw error;
          }
          readable.fail(t.s, reason);
        }),
      }, writableStrategy);
      t.w = writable.state(this.#writable);
      this.#readable = new ReadableStream({
        start: () => started.promise,
        pull: () => { press(false); return t.changed.promise; },
        cancel: (reason) => once(async () => {
          try {
            await cancel(reason);
          } finally {
            writable.fail(t.w, reason);
            press(false);
          }
        }),
      }, { highWaterMark: mark, size });
      t.s = readable.state(this.#readable);
      started.resolve(native.method(source, "start", noop)(controller));
    }
    get readable() { return this.#readable; }
    get writable() { return this.#writable; }
  }

  failBoth = (t, error) => {
    readable.fail(t.s, error);
    writable.fail(t.w, error);
    if (t.pressure) t.press(false);
  };
  enqueueOn = (t, chunk) => {
    if (t.s.state !== "readable" || t.s.closing) throw t.s.state === "errored" ? t.s.error : new TypeError("enqueue: the stream is closed already");
    readable.enqueue(t.s, chunk);
    const pressure = readable.room(t.s) <= 0 && !(t.s.reader?.requests.length > 0);
    if (pressure && !t.pressure) t.press(true);
  };
  terminate = (t) => {
    if (t.s.state === "readable" && !t.s.closing) readable.close(t.s);
    writable.fail(t.w, new TypeError("the transform was terminated"));
    if (t.pressure) t.press(false);
  };

  class TextEncoderStream extends TransformStream {
    constructor() {
      // A surrogate pair may be cut in two.
      let high = "";
      super({
        transform(chunk, controller) {
          let text = high + String(chunk);
          high = /[\ud800-\udbff]$/.test(text) ? text.slice(-1) : "";
          if (high) text = text.slice(0, -1);
          if (text) controller.enqueue(native.encode(text));
        },
        flush(controller) { if (high) controller.enqueue(native.encode(high)); },
      });
    }
    get encoding() { return "utf-8"; }
  }

  class TextDecoderStream extends TransformStream {
    #decoder;
    constructor(label = "utf-8", options = {}) {
      const decoder = new TextDecoder(label, options);
      super({
        transform(chunk, controller) {
          const text = decoder.decode(chunk, { stream: true });
          if (text) controller.enqueue(text);
        },
        flush(controller) {
          const text = decoder.decode();
          if (text) controller.enqueue(text);
        },
      });
      this.#decoder = decoder;
    }
    get encoding() { return this.#decoder.encoding; }
    get fatal() { return this.#decoder.fatal; }
    get ignoreBOM() { return this.#decoder.ignoreBOM; }
  }

  native.define({ TransformStream, TransformStreamDefaultController, TextEncoderStream, TextDecoderStream });
};
