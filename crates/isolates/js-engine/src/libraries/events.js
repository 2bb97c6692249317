// Event, EventTarget, CustomEvent, AbortController, AbortSignal (DOM standard, as far as there is no tree).
(native) => {
  let begin;
  let stopped;

  class Event {
    #type;
    #options;
    #target = null;
    #prevented = false;
    #stop = false;
    #time = performance.now();
    static {
      begin = (event, target) => { event.#target = target; };
      stopped = (event) => event.#stop;
      const phases = { NONE: 0, CAPTURING_PHASE: 1, AT_TARGET: 2, BUBBLING_PHASE: 3 };
      for (const [name, value] of Object.entries(phases)) Object.defineProperty(Event, name, { value, enumerable: true });
    }
    constructor(type, options = {}) {
      if (arguments.length === 0) throw new TypeError("Event: the type is missing");
      this.#type = String(type);
      this.#options = options ?? {};
    }
    get type() { return this.#type; }
    get target() { return this.#target; }
    get currentTarget() { return this.#target; }
    get srcElement() { return this.#target; }
    get eventPhase() { return this.#target ? 2 : 0; }
    get bubbles() { return Boolean(this.#options.bubbles); }
    get cancelable() { return Boolean(this.#options.cancelable); }
    get composed() { return Boolean(this.#options.composed); }
    get defaultPrevented() { return this.#prevented; }
    get returnValue() { return !this.#prevented; }
    get isTrusted() { return false; }
    get timeStamp() { return this.#time; }
    composedPath() { return this.#target ? [this.#target] : []; }
    preventDefault() { this.#prevented ||= this.cancelable; }
    stopPropagation() {}
    stopImmediatePropagation() { this.#stop = true; }
  }

  class CustomEvent extends Event {
    #detail;
    constructor(type, options = {}) {
      super(type, options);
      this.#detail = options?.detail ?? null;
    }
    get detail() { return this.#detail; }
  }

  class EventTarget {
    #listeners = [];
    addEventListener(type, listener, options = {}) {
      if (listener === null || listener === undefined) return;
      if (typeof listener !== "function" && typeof listener !== "object") {
        throw new TypeError("addEventListener: the listener is neither a function nor an object");
      }
      const { once = false, signal, capture = false } = typeof options === "object" && options !== null ? options : { capture: Boolean(options) };
      if (signal?.aborted) return;
      const name = String(type);
      if (this.#find(name, listener, capture) >= 0) return;
      this.#listeners.push({ type: name, listener, once, capture: Boolean(capture) });
      signal?.addEventListener("abort", () => this.removeEventListener(name, listener, { capture }), { once: true });
    }
    removeEventListener(type, listener, options = {}) {
      const at = this.#find(String(type), listener, typeof options === "object" && options !== null ? options.capture : options);
      if (at >= 0) this.#listeners = this.#listeners.filter((_, index) => index !== at);
    }
    #find(type, listener, capture) {
      return this.#listeners.findIndex((known) => known.type === type && known.listener === listener && known.capture === Boolean(capture));
    }
    dispatchEvent(event) {
      if (!(event instanceof Event)) throw new TypeError("dispatchEvent: expected an Event");
      begin(event, this);
      for (const known of this.#listeners) {
        if (known.type !== event.type || !this.#listeners.includes(known)) continue;
        if (known.once) this.#listeners = this.#listeners.filter((other) => other !== known);
        // One listener's failure is not the others' affair.
        try {
          if (typeof known.listener === "function") known.listener.call(this, event);
          else known.listener.handleEvent(event);
        } catch (error) {
          native.reportError(error);
        }
        if (stopped(event)) break;
      }
      return !event.defaultPrevented;
    }
  }

  let make;
  let abort;
  let follow;
  const MADE = Symbol("made here");

  class AbortSignal extends EventTarget {
    #aborted = false;
    #reason;
    #handler = null;
    #first = [];
    #followers = [];
    static {
      make = () => new AbortSignal(MADE);
      abort = (signal, reason) => {
        if (signal.#aborted) return;
        signal.#aborted = true;
        signal.#reason = reason === undefined ? new DOMException("This operation was aborted", "AbortError") : reason;
        for (const react of signal.#first.splice(0)) react(signal.#reason);
        signal.dispatchEvent(new Event("abort"));
        for (const follower of signal.#followers.splice(0)) abort(follower, signal.#reason);
      };
      follow = (signal, source) => { source.#followers.push(signal); };
      // What the runtime itself does on an abort, before any listener; gives the way to forget it.
      native.onAbort = (signal, react) => {
        signal.#first.push(react);
        return () => { signal.#first = signal.#first.filter((known) => known !== react); };
      };
    }
    constructor(made) {
      if (made !== MADE) throw new TypeError("AbortSignal is made by AbortController, AbortSignal.abort, .timeout or .any");
      super();
    }
    static abort(reason) { const signal = make(); abort(signal, reason); return signal; }
    static timeout(milliseconds) {
      const ms = Number(milliseconds);
      if (!(ms >= 0 && ms <= Number.MAX_SAFE_INTEGER)) throw new TypeError(`AbortSignal.timeout: ${native.quote(milliseconds)} is no number of milliseconds`);
      const signal = make();
      native.waitFor(native.sleep(Math.floor(ms)), { resolve: () => abort(signal, new DOMException("The operation timed out", "TimeoutError")) });
      return signal;
    }
    static any(signals) {
      const all = [...signals];
      if (!all.every((signal) => signal instanceof AbortSignal)) throw new TypeError("AbortSignal.any: expected AbortSignals");
      const result = make();
      const aborted = all.find((signal) => signal.aborted);
      if (aborted) abort(result, aborted.reason);
      else for (const signal of all) follow(result, signal);
      return result;
    }
    get aborted() { return this.#aborted; }
    get reason() { return this.#reason; }
    throwIfAborted() { if (this.#aborted) throw this.#reason; }
    get onabort() { return this.#handler; }
    set onabort(handler) {
      if (this.#handler) this.removeEventListener("abort", this.#handler);
      this.#handler = typeof handler === "function" ? handler : null;
      if (this.#handler) this.addEventListener("abort", this.#handler);
    }
  }

  class AbortController {
    #signal = make();
    get signal() { return this.#signal; }
    abort(reason) { abort(this.#signal, reason); }
  }

  native.newSignal = make;
  native.AbortSignal = AbortSignal;
  native.define({ Event, CustomEvent, EventTarget, AbortSignal, AbortController });
};
