// ReadableStream (streams standard) with its default reader; byte streams are read as others are.
(native) => {
  const noop = () => {};
  let stateOf;
  let isStream;
  const invoke = (call, ...values) => new Promise((resolve) => { resolve(call(...values)); });
  const handled = (promise) => { promise.catch(noop); return promise; };
  const failing = (error) => handled(Promise.reject(error));
  Object.assign(native, { noop, invoke, handled, states: new WeakSet() });

  // `[high water mark, size]` of a queuing strategy.
  native.strategy = (strategy, least) => {
    const { highWaterMark = least, size } = strategy ?? {};
    const mark = Number(highWaterMark);
    if (!(mark >= 0)) throw new RangeError(`highWaterMark is ${native.quote(highWaterMark)}, not a number from 0 on`);
    if (size !== undefined && typeof size !== "function") throw new TypeError("size is not a function");
    return [mark, size ? (chunk) => size(chunk) : () => 1];
  };
  native.sizeOf = (stream, chunk) => {
    const size = Number(stream.size(chunk));
    if (!(size >= 0 && size < Infinity)) throw new RangeError(`a chunk's size is ${size}, not a number from 0 on`);
    return size;
  };
  native.method = (object, name, otherwise) => {
    const method = object?.[name];
    if (method === undefined || method === null) return otherwise;
    if (typeof method !== "function") throw new TypeError(`${name} is not a function`);
    return (...values) => method.apply(object, values);
  };

  const room = (s) => (s.state === "errored" ? null : s.state === "closed" ? 0 : s.mark - s.total);

  function pullIfNeeded(s) {
    if (s.state !== "readable" || s.closing || !s.started) return;
    if (!(s.reader?.requests.length > 0) && room(s) <= 0) return;
    if (s.pulling) { s.again = true; return; }
    s.pulling = true;
    invoke(s.pull, s.controller).then(() => {
      s.pulling = false;
      if (!s.again) return;
      s.again = false;
      pullIfNeeded(s);
    }, (error) => fail(s, error));
  }

  function close(s) {
    if (s.state !== "readable") return;
    s.state = "closed";
    clear(s);
    if (!s.reader) return;
    s.reader.closed.resolve();
    for (const request of s.reader.requests.splice(0)) request.close();
  }

  function fail(s, error) {
    if (s.state !== "readable") return;
    s.state = "errored";
    s.error = error;
    s.queue = [];
    s.total = 0;
    clear(s);
    if (!s.reader) return;
    s.reader.closed.reject(error);
    for (const request of s.reader.requests.splice(0)) request.fail(error);
  }

  // What the source holds on to is not needed any more.
  function clear(s) { s.pull = s.cancel = s.size = noop; }

  function requestClose(s) {
    s.closing = true;
    if (s.queue.length === 0) close(s);
  }

  function enqueue(s, chunk) {
    if (s.reader?.requests.length > 0) s.reader.requests.shift().chunk(chunk);
    else {
      let size;
      try {
        size = native.sizeOf(s, chunk);
      } catch (error) {
        fail(s, error);
        throw error;
      }
      s.queue.push([chunk, size]);
      s.total += size;
    }
    pullIfNeeded(s);
  }

  function read(s, request) {
    s.disturbed = true;
    if (s.state === "closed") return request.close();
    if (s.state === "errored") return request.fail(s.error);
    if (s.queue.length === 0) {
      s.reader.requests.push(request);
      return pullIfNeeded(s);
    }
    const [chunk, size] = s.queue.shift();
    s.total -= size;
    if (s.closing && s.queue.length === 0) close(s);
    else pullIfNeeded(s);
    request.chunk(chunk);
  }

  function cancel(s, reason) {
    s.disturbed = true;
    if (s.state === "closed") return Promise.resolve();
    if (s.state === "errored") return failing(s.error);
    const end = s.cancel;
    s.queue = [];
    s.total = 0;
    close(s);
    return invoke(end, reason).then(noop);
  }

  function acquire(s) {
    if (s.reader) throw new TypeError("the stream is locked to a reader");
    const reader = { stream: s, requests: [], closed: Promise.withResolvers() };
    handled(reader.closed.promise);
    s.reader = reader;
    if (s.state === "closed") reader.closed.resolve();
    if (s.state === "errored") reader.closed.reject(s.error);
    return reader;
  }

  function release(reader) {
    const s = reader.stream;
    if (!s) return;
    const error = new TypeError("the reader was released");
    if (s.state === "readable") reader.closed.reject(error);
    else {
      reader.closed = Promise.withResolvers();
      reader.closed.reject(error);
      handled(reader.closed.promise);
    }
    reader.stream = s.reader = undefined;
    for (const request of reader.requests.splice(0)) request.fail(error);
  }

  class ReadableStreamDefaultController {
    #s;
    constructor(s) {
      if (!native.isState(s)) throw new TypeError("a controller is made with its stream");
      this.#s = s;
    }
    get desiredSize() { return room(this.#s); }
    get byobRequest() { return null; }
    #open(what) {
      if (this.#s.closing || this.#s.state !== "readable") throw new TypeError(`${what}: the stream is closed already`);
    }
    close() { this.#open("close"); requestClose(this.#s); }
    enqueue(chunk) { this.#open("enqueue"); enqueue(this.#s, chunk); }
    error(error) { fail(this.#s, error); }
  }

  const asRequest = ({ resolve, reject }) => ({
    chunk: (value) => resolve({ value, done: false }),
    close: () => resolve({ value: undefined, done: true }),
    fail: reject,
  });

  class ReadableStreamDefaultReader {
    #reader;
    constructor(stream) {
      if (!(stream instanceof ReadableStream)) throw new TypeError("expected a ReadableStream");
      this.#reader = acquire(stateOf(stream));
    }
    get closed() { return this.#reader.closed.promise; }
    read() {
      const { stream } = this.#reader;
      if (!stream) return Promise.reject(new TypeError("the reader was released"));
      const result = Promise.withResolvers();
      read(stream, asRequest(result));
      return result.promise;
    }
    cancel(reason) {
      const { stream } = this.#reader;
      return stream ? cancel(stream, reason) : Promise.reject(new TypeError("the reader was released"));
    }
    releaseLock() { release(this.#reader); }
  }

  // Chunks one after the other; what ends the loop early cancels the stream.
  class Chunks {
    #reader;
    #keep;
    #last = Promise.resolve();
    #done = false;
    constructor(reader, keep) { this.#reader = reader; this.#keep = keep; }
    #queue(step) { return (this.#last = this.#last.then(step, step)); }
    next() {
      return this.#queue(() => new Promise((resolve, reject) => {
        const end = () => { this.#done = true; release(this.#reader); };
        if (this.#done) return resolve({ value: undefined, done: true });
        read(this.#reader.stream, {
          chunk: (value) => resolve({ value, done: false }),
          close: () => { end(); resolve({ value: undefined, done: true }); },
          fail: (error) => { end(); reject(error); },
        });
      }));
    }
    return(value) {
      return this.#queue(async () => {
        if (this.#done) return { value, done: true };
        this.#done = true;
        const { stream } = this.#reader;
        const ended = this.#keep ? undefined : cancel(stream, value);
        release(this.#reader);
        await ended;
        return { value, done: true };
      });
    }
    [Symbol.asyncIterator]() { return this; }
  }

  class ReadableStream {
    #s;
    static {
      stateOf = (stream) => stream.#s;
      isStream = (value) => typeof value === "object" && value !== null && #s in value;
    }
    constructor(source = {}, strategy = {}) {
      if (source === null || (typeof source !== "object" && typeof source !== "function")) throw new TypeError("ReadableStream: the source is not an object");
      const kind = source.type;
      if (kind !== undefined && kind !== "bytes") throw new TypeError(`ReadableStream: there is no type ${native.quote(kind)}`);
      const [mark, size] = native.strategy(strategy, kind === "bytes" ? 0 : 1);
      const s = {
        state: "readable", error: undefined, reader: undefined, disturbed: false, queue: [], total: 0, mark, size,
        started: false, closing: false, pulling: false, again: false, controller: undefined, whole: undefined,
        pull: native.method(source, "pull", noop), cancel: native.method(source, "cancel", noop),
      };
      const start = native.method(source, "start", noop);
      this.#s = s;
      native.states.add(s);
      s.controller = new ReadableStreamDefaultController(s);
      Promise.resolve(start(s.controller)).then(() => { s.started = true; pullIfNeeded(s); }, (error) => fail(s, error));
    }
    static from(values) {
      if (values === null || values === undefined) throw new TypeError("ReadableStream.from: expected something to iterate over");
      const open = values[Symbol.asyncIterator] ?? values[Symbol.iterator];
      if (typeof open !== "function") throw new TypeError("ReadableStream.from: expected something to iterate over");
      const items = open.call(values);
      return new ReadableStream({
        async pull(controller) {
          const { value, done } = await items.next();
          if (done) controller.close();
          else controller.enqueue(await value);
        },
        async cancel(reason) { await items.return?.(reason); },
      }, { highWaterMark: 0 });
    }
    get locked() { return Boolean(this.#s.reader); }
    cancel(reason) {
      return this.locked ? Promise.reject(new TypeError("the stream is locked to a reader")) : cancel(this.#s, reason);
    }
    getReader(options) {
      if (options?.mode !== undefined) throw new TypeError("getReader: there are default readers only; leave out mode");
      return new ReadableStreamDefaultReader(this);
    }
    tee() { return native.tee(this.#s); }
    pipeTo(target, options = {}) {
      try {
        native.demand("writable");
        return native.pipe(this, this.#s, target, options ?? {});
      } catch (error) {
        return Promise.reject(error);
      }
    }
    pipeThrough(pair, options = {}) {
      const { readable, writable } = pair;
      if (!isStream(readable)) throw new TypeError("pipeThrough: expected { readable, writable }");
      native.demand("writable");
      handled(native.pipe(this, this.#s, writable, options ?? {}));
      return readable;
    }
    values(options) { return new Chunks(acquire(this.#s), Boolean(options?.preventCancel)); }
    [Symbol.asyncIterator](options) { return this.values(options); }
  }

  native.tee = (s) => {
    const reader = acquire(s);
    const branches = [];
    const reasons = [];
    const ended = Promise.withResolvers();
    let reading = false;
    let more = false;
    const pull = () => {
      if (reading) { more = true; return; }
      reading = true;
      read(s, {
        // Readers of one branch must not see what the other's did in the same turn.
        chunk: (chunk) => queueMicrotask(() => {
          for (const branch of branches) if (!branch.done) enqueue(branch.s, chunk);
          reading = false;
          if (more) { more = false; pull(); }
        }),
        close: () => {
          for (const branch of branches) if (!branch.done) requestClose(branch.s);
          if (!branches.every((branch) => branch.done)) ended.resolve();
        },
        fail: noop,
      });
    };
    for (const index of [0, 1]) {
      const stream = new ReadableStream({
        pull,
        cancel: (reason) => {
          reasons[index] = reason;
          branches[index].done = true;
          if (branches.every((branch) => branch.done)) ended.resolve(cancel(s, reasons));
          return ended.promise;
        },
      });
      branches.push({ stream, s: stateOf(stream), done: false });
    }
    reader.closed.promise.catch((error) => {
      for (const branch of branches) fail(branch.s, error);
      ended.resolve();
    });
    return branches.map((branch) => branch.stream);
  };

  // A stream of bytes that are there already.
  native.streamOf = (bytes) => {
    const stream = new ReadableStream({
      pull(controller) {
        if (bytes.length > 0) controller.enqueue(bytes);
        controller.close();
        stateOf(stream).whole = undefined;
      },
    }, { highWaterMark: 0 });
    stateOf(stream).whole = bytes;
    return stream;
  };
  // All of what such a stream would give, if nobody has begun to read it.
  native.wholeOf = (stream) => {
    const s = stateOf(stream);
    return s.disturbed || s.reader ? undefined : s.whole;
  };
  native.disturbed = (stream) => stateOf(stream).disturbed;
  // As if it had been read to its end.
  native.exhaust = (stream) => {
    const s = stateOf(stream);
    s.disturbed = true;
    s.whole = undefined;
    close(s);
  };
  native.readAll = (stream, signal) => {
    const reader = acquire(stateOf(stream));
    const chunks = [];
    return new Promise((resolve, reject) => {
      const end = (error) => {
        handled(cancel(reader.stream, error));
        reject(error);
      };
      if (signal) native.onAbort(signal, end);
      // A source that is always ready must not fill the stack.
      const next = () => read(reader.stream, {
        chunk: (chunk) => {
          if (!ArrayBuffer.isView(chunk) && !(chunk instanceof ArrayBuffer)) {
            const what = typeof chunk === "string" ? "a string; pipe it through a TextEncoderStream" : native.inspect(chunk);
            return end(new TypeError(`a body's stream must give bytes (Uint8Array), not ${what}`));
          }
          chunks.push(native.bytesOf(chunk).slice());
          queueMicrotask(next);
        },
        close: () => resolve(native.join(chunks)),
        fail: reject,
      });
      next();
    });
  };
  native.isState = (value) => native.states.has(value);
  native.isReadable = isStream;
  native.readable = { acquire, release, read, cancel, enqueue, fail, close: requestClose, room, state: stateOf };

  class CountQueuingStrategy {
    #mark;
    constructor({ highWaterMark }) { this.#mark = Number(highWaterMark); }
    get highWaterMark() { return this.#mark; }
    get size() { return () => 1; }
  }
  class ByteLengthQueuingStrategy {
    #mark;
    constructor({ highWaterMark }) { this.#mark = Number(highWaterMark); }
    get highWaterMark() { return this.#mark; }
    get size() { return (chunk) => chunk.byteLength; }
  }

  native.define({
    ReadableStream, ReadableStreamDefaultReader, ReadableStreamDefaultController, CountQueuingStrategy, ByteLengthQueuingStrategy,
  });
};
