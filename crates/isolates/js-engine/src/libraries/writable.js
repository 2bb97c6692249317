// WritableStream (streams standard), and pipes from readable streams to it.
(native) => {
  native.demand("streams");
  const { noop, invoke, handled, readable } = native;
  const CLOSE = Symbol("close");

  const room = (w) => (w.state === "errored" || w.state === "erroring" ? null : w.state === "closed" ? 0 : w.mark - w.total);
  const closing = (w) => Boolean(w.closeRequest || w.inFlightClose);

  function refreshReady(w) {
    const pressure = w.state === "writable" && !closing(w) && room(w) <= 0;
    if (w.pressure === pressure) return;
    w.pressure = pressure;
    if (!w.writer) return;
    if (pressure) w.writer.ready = Promise.withResolvers();
    else w.writer.ready.resolve();
  }

  function rejectReady(w, error) {
    if (!w.writer) return;
    const { ready } = w.writer;
    ready.reject(error);
    // It may have been settled before.
    w.writer.ready = Promise.withResolvers();
    w.writer.ready.reject(error);
    handled(ready.promise);
    handled(w.writer.ready.promise);
  }

  function startErroring(w, error) {
    w.state = "erroring";
    w.error = error;
    rejectReady(w, error);
    if (!w.inFlightWrite && !w.inFlightClose && w.started) finishErroring(w);
  }

  function finishErroring(w) {
    w.state = "errored";
    w.queue = [];
    w.total = 0;
    for (const request of w.writes.splice(0)) request.reject(w.error);
    const pending = w.pendingAbort;
    w.pendingAbort = undefined;
    if (!pending) return rejectClose(w);
    if (pending.wasErroring) {
      pending.reject(w.error);
      return rejectClose(w);
    }
    const end = w.abort;
    clear(w);
    invoke(end, pending.reason).then(() => { pending.resolve(); rejectClose(w); }, (error) => { pending.reject(error); rejectClose(w); });
  }

  function rejectClose(w) {
    clear(w);
    w.closeRequest?.reject(w.error);
    w.closeRequest = undefined;
    w.writer?.closed.reject(w.error);
  }

  function clear(w) { w.write = w.close = w.abort = w.size = noop; }

  function fail(w, error) {
    if (w.state === "writable") startErroring(w, error);
    else if (w.state === "erroring") finishErroring(w);
  }

  function advance(w) {
    if (!w.started || w.inFlightWrite || w.inFlightClose) return;
    if (w.state === "erroring") return finishErroring(w);
    if (w.state !== "writable" || w.queue.length === 0) return;
    const [chunk] = w.queue[0];
    if (chunk === CLOSE) return finishClose(w);
    const request = (w.inFlightWrite = w.writes.shift());
    invoke(w.write, chunk, w.controller).then(() => {
      w.inFlightWrite = undefined;
      request.resolve();
      const [, size] = w.queue.shift() ?? [undefined, 0];
      w.total -= size;
      refreshReady(w);
      advance(w);
    }, (error) => {
      w.inFlightWrite = undefined;
      request.reject(error);
      fail(w, error);
    });
  }

  function finishClose(w) {
    const request = (w.inFlightClose = w.closeRequest);
    w.closeRequest = undefined;
    w.queue.shift();
    const end = w.close;
    clear(w);
    invoke(end).then(() => {
      w.inFlightClose = undefined;
      request.resolve();
      w.state = "closed";
      w.pendingAbort?.resolve();
      w.pendingAbort = undefined;
      w.writer?.closed.resolve();
    }, (error) => {
      w.inFlightClose = undefined;
      request.reject(error);
      w.pendingAbort?.reject(error);
      w.pendingAbort = undefined;
      fail(w, error);
    });
  }

  function write(w, chunk) {
    let size = 1;
    try {
      size = native.sizeOf(w, chunk);
    } catch (error) {
      if (w.state === "writable" && !closing(w)) startErroring(w, error);
    }
    if (w.state === "errored" || w.state === "erroring") return handled(Promise.reject(w.error));
    if (closing(w) || w.state === "closed") return handled(Promise.reject(new TypeError("the stream is closed or being closed")));
    const request = Promise.withResolvers();
    handled(request.promise);
    w.writes.push(request);
    w.queue.push([chunk, size]);
    w.total += size;
    refreshReady(w);
    advance(w);
    return request.promise;
  }

  function close(w) {
    if (w.state === "closed" || w.state === "errored" || closing(w)) {
      return Promise.reject(w.state === "errored" ? w.error : new TypeError("the stream is closed or being closed"));
    }
    const request = (w.closeRequest = Promise.withResolvers());
    handled(request.promise);
    if (w.pressure && w.state === "writable") w.writer?.ready.resolve();
    w.pressure = false;
    w.queue.push([CLOSE, 0]);
    advance(w);
    return request.promise;
  }

  function abort(w, reason) {
    if (w.state === "closed" || w.state === "errored") return Promise.resolve();
    w.aborting?.(reason);
    if (w.state === "closed" || w.state === "errored") return Promise.resolve();
    if (w.pendingAbort) return w.pendingAbort.promise;
    const wasErroring = w.state === "erroring";
    w.pendingAbort = { ...Promise.withResolvers(), reason: wasErroring ? undefined : reason, wasErroring };
    handled(w.pendingAbort.promise);
    const { promise } = w.pendingAbort;
    if (!wasErroring) startErroring(w, reason);
    return promise;
  }

  function acquire(w) {
    if (w.writer) throw new TypeError("the stream is locked to a writer");
    const writer = { stream: w, ready: Promise.withResolvers(), closed: Promise.withResolvers() };
    handled(writer.ready.promise);
    handled(writer.closed.promise);
    w.writer = writer;
    if (w.state === "erroring" || w.state === "errored") writer.ready.reject(w.error);
    else if (!w.pressure) writer.ready.resolve();
    if (w.state === "closed") writer.closed.resolve();
    if (w.state === "errored") writer.closed.reject(w.error);
    return writer;
  }

  function release(writer) {
    const w = writer.stream;
    if (!w) return;
    const error = new TypeError("the writer was released");
    for (const name of ["ready", "closed"]) {
      writer[name].reject(error);
      writer[name] = Promise.withResolvers();
      writer[name].reject(error);
      handled(writer[name].promise);
    }
    writer.stream = w.writer = undefined;
  }

  class WritableStreamDefaultController {
    #w;
    #abort;
    constructor(w) {
      if (!native.isState(w)) throw new TypeError("a controller is made with its stream");
      this.#w = w;
      w.aborting = (reason) => this.#abort?.abort(reason);
    }
    get signal() { return (this.#abort ??= new AbortController()).signal; }
    error(error) { if (this.#w.state === "writable") startErroring(this.#w, error); }
  }

  class WritableStreamDefaultWriter {
    #writer;
    constructor(stream) {
      if (!(stream instanceof WritableStream)) throw new TypeError("expected a WritableStream");
      this.#writer = acquire(stateOf(stream));
    }
    #do(act, value) {
      const { stream } = this.#writer;
      return stream ? act(stream, value) : Promise.reject(new TypeError("the writer was released"));
    }
    get closed() { return this.#writer.closed.promise; }
    get ready() { return this.#writer.ready.promise; }
    get desiredSize() {
      if (!this.#writer.stream) throw new TypeError("the writer was released");
      return room(this.#writer.stream);
    }
    write(chunk) { return this.#do(write, chunk); }
    close() { return this.#do(close); }
    abort(reason) { return this.#do(abort, reason); }
    releaseLock() { release(this.#writer); }
  }

  let stateOf;
  let isStream;

  class WritableStream {
    #w;
    static {
      stateOf = (stream) => stream.#w;
      isStream = (value) => typeof value === "object" && value !== null && #w in value;
    }
    constructor(sink = {}, strategy = {}) {
      if (sink?.type !== undefined) throw new RangeError("WritableStream: a sink has no type");
      const [mark, size] = native.strategy(strategy, 1);
      const w = {
        state: "writable", error: undefined, writer: undefined, queue: [], total: 0, mark, size, started: false,
        pressure: mark <= 0, writes: [], inFlightWrite: undefined, closeRequest: undefined, inFlightClose: undefined,
        pendingAbort: undefined, aborting: undefined, controller: undefined,
        write: native.method(sink, "write", noop), close: native.method(sink, "close", noop), abort: native.method(sink, "abort", noop),
      };
      const start = native.method(sink, "start", noop);
      this.#w = w;
      native.states.add(w);
      w.controller = new WritableStreamDefaultController(w);
      const begun = (error) => { w.started = true; if (error) fail(w, ...error); advance(w); };
      Promise.resolve(start(w.controller)).then(() => begun(), (error) => begun([error]));
    }
    get locked() { return Boolean(this.#w.writer); }
    #unlocked(act, reason) {
      return this.locked ? Promise.reject(new TypeError("the stream is locked to a writer")) : act(this.#w, reason);
    }
    abort(reason) { return this.#unlocked(abort, reason); }
    close() { return this.#unlocked(close); }
    getWriter() { return new WritableStreamDefaultWriter(this); }
  }

  native.pipe = (source, s, target, { preventClose, preventAbort, preventCancel, signal }) => {
    if (!isStream(target)) throw new TypeError("expected a WritableStream");
    if (signal !== undefined && !(native.AbortSignal && signal instanceof native.AbortSignal)) throw new TypeError("signal is not an AbortSignal");
    const w = stateOf(target);
    if (source.locked || target.locked) throw new TypeError("a locked stream cannot be piped");
    const [reader, writer] = [readable.acquire(s), acquire(w)];
    s.disturbed = true;
    return new Promise((resolve, reject) => {
      let ending = false;
      let written = Promise.resolve();
      let forget = noop;
      const end = (act, failed, error) => {
        if (ending) return;
        ending = true;
        const finish = (bad, why) => {
          release(writer);
          readable.release(reader);
          forget();
          if (bad) reject(why);
          else resolve();
        };
        const flushed = w.state === "writable" && !closing(w) ? written.then(noop, noop) : Promise.resolve();
        flushed.then(() => (act ? act().then(() => finish(failed, error), (why) => finish(true, why)) : finish(failed, error)));
      };
      if (signal) {
        const react = (reason) => end(() => Promise.all([
          preventAbort || w.state !== "writable" ? undefined : abort(w, reason),
          preventCancel || s.state !== "readable" ? undefined : readable.cancel(s, reason),
        ]), true, reason);
        if (signal.aborted) return react(signal.reason);
        forget = native.onAbort(signal, react);
      }
      const closeTarget = () => {
        if (closing(w) || w.state === "closed") return Promise.resolve();
        return w.state === "errored" ? Promise.reject(w.error) : close(w);
      };
      reader.closed.promise.then(
        () => end(preventClose ? undefined : closeTarget, false),
        (error) => end(preventAbort ? undefined : () => abort(w, error), true, error),
      );
      writer.closed.promise.then(() => {
        const error = new TypeError("the target was closed");
        end(preventCancel ? undefined : () => readable.cancel(s, error), true, error);
      }, (error) => end(preventCancel ? undefined : () => readable.cancel(s, error), true, error));
      if (closing(w)) {
        const error = new TypeError("the target is being closed");
        return end(preventCancel ? undefined : () => readable.cancel(s, error), true, error);
      }
      const step = () => {
        if (ending) return;
        writer.ready.promise.then(() => {
          if (ending) return;
          readable.read(s, { chunk: (chunk) => { written = write(w, chunk); step(); }, close: noop, fail: noop });
        }, noop);
      };
      step();
    });
  };

  native.writable = { fail: (w, error) => { if (w.state === "writable") startErroring(w, error); }, state: stateOf };
  native.define({ WritableStream, WritableStreamDefaultWriter, WritableStreamDefaultController });
};
