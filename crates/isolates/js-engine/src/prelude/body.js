// What Request and Response have in common: a body, held in memory unless it is a stream.
(native) => {
  // The body as text, bytes or a stream, and the content type it implies.
  function extract(body) {
    if (typeof body === "string") return [body, "text/plain;charset=UTF-8"];
    if (body instanceof URLSearchParams) return [body.toString(), "application/x-www-form-urlencoded;charset=UTF-8"];
    if (ArrayBuffer.isView(body) || body instanceof ArrayBuffer) return [native.bytesOf(body).slice(), undefined];
    // Where these were never loaded, nothing can be one of them.
    if (native.Blob && body instanceof native.Blob) return [native.bytesIn(body), body.type || undefined];
    if (native.FormData && body instanceof native.FormData) return native.encodeForm(body);
    if (native.isReadable?.(body)) {
      if (body.locked || native.disturbed(body)) throw new TypeError("the stream is locked or has been read already");
      return [body, undefined];
    }
    if (typeof body === "object" && typeof body[Symbol.asyncIterator] === "function") return [ReadableStream.from(body), undefined];
    return [String(body), "text/plain;charset=UTF-8"];
  }

  const textOf = (body) => {
    if (body === null) return "";
    const text = typeof body === "string" ? body : native.decode(body, false);
    return text.charCodeAt(0) === 0xfeff ? text.slice(1) : text;
  };
  const jsonOf = (body) => JSON.parse(textOf(body));

  // The body of the event, which is read when it is asked for.
  const OF_EVENT = () => native.bodyBytes();

  const reject = Promise.reject.bind(Promise);

  class Body {
    // null, text, bytes, or a function that gives bytes; null as well once there is a stream.
    #data = null;
    #stream = null;
    #used = false;
    // Whether nothing else refers to the bytes, so that they need no copy when they are read.
    #owned = false;
    // The content type that the body implies, where there are no headers yet.
    #implied;
    static {
      native.body = {
        set(body, value, headers) {
          const [data, type] = extract(value);
          if (typeof data === "object" && !(data instanceof Uint8Array)) body.#stream = data;
          else body.#data = data;
          if (!type) return;
          if (headers === undefined) body.#implied = type;
          else if (!headers.has("content-type")) headers.append("content-type", type);
        },
        implied: (body) => (body.#implied === undefined ? [] : ["content-type", body.#implied]),
        setEvent(body) { body.#data = OF_EVENT; },
        setOwned(body, bytes) {
          body.#data = bytes;
          body.#owned = true;
        },
        clone(to, from) {
          from.#unused();
          from.#look();
          if (!from.#stream) {
            to.#data = from.#data;
            from.#owned = false;
            return;
          }
          const whole = native.wholeOf(from.#stream);
          if (whole) to.#data = whole;
          else [from.#stream, to.#stream] = from.#stream.tee();
        },
        // Moves the body: it counts as read where it was.
        move(to, from) {
          from.#unused();
          from.#look();
          const whole = from.#stream && native.wholeOf(from.#stream);
          if (!from.#stream) {
            to.#data = from.#data;
            to.#owned = from.#owned;
          } else if (whole) {
            to.#data = whole;
            native.exhaust(from.#stream);
          } else to.#stream = ReadableStream.from(from.#stream);
          from.#used = from.#data !== null || from.#stream !== null;
        },
        // For sending: text or bytes at once, or a promise of bytes if it is a stream, which an abort ends.
        take: (body, signal) => body.#take(signal),
        locked: (body) => Boolean(body.#stream?.locked),
        // A promise of the same Response with its stream read into memory; undefined if that is not needed.
        gather(body) {
          if (!body.#stream) return undefined;
          const keep = (bytes) => {
            body.#data = bytes;
            body.#stream = null;
            body.#used = false;
            return body;
          };
          const bytes = body.#take();
          if (bytes instanceof Promise) return bytes.then(keep);
          keep(bytes);
          return undefined;
        },
        filled(body) {
          body.#look();
          return body.#data !== null || body.#stream !== null;
        },
        peek: (body) => (typeof body.#data === "function" ? body.#data() : body.#data),
      };
    }
    get body() {
      this.#look();
      if (this.#stream === null && this.#data !== null) {
        native.demand("streams");
        const data = typeof this.#data === "function" ? this.#data() : this.#data;
        this.#stream = native.streamOf(typeof data === "string" ? native.encode(data) : data.slice());
        this.#data = null;
        if (this.#used) native.exhaust(this.#stream);
      }
      return this.#stream;
    }
    get bodyUsed() { return this.#used || (this.#stream !== null && native.disturbed(this.#stream)); }
    #unused() {
      if (this.bodyUsed) throw new TypeError("the body has been read already; use clone() before reading it twice");
      if (this.#stream?.locked) throw new TypeError("the body is locked to a reader");
    }
    // The body of the event is its text if `asText`.
    #take(signal, asText) {
      this.#unused();
      if (this.#stream) {
        const whole = native.wholeOf(this.#stream);
        if (!whole) return native.readAll(this.#stream, signal);
        native.exhaust(this.#stream);
        return whole;
      }
      this.#look();
      this.#used = this.#data !== null;
      if (typeof this.#data !== "function") return this.#data;
      return asText ? native.bodyText() : this.#data();
    }
    // A promise of what `convert` makes of the body, settled unless it is a stream.
    #read(convert) {
      const taken = this.#take(undefined, true);
      return taken instanceof Promise ? taken.then(convert) : native.fulfilled(convert(taken));
    }
    // An event without a body is a request whose body is null.
    #look() {
      if (this.#data === OF_EVENT && native.bodyIsEmpty()) this.#data = null;
    }
    async #bytes() {
      const taken = this.#take();
      if (taken === null) return new Uint8Array(0);
      if (typeof taken === "string") return native.encode(taken);
      return taken instanceof Promise || this.#owned ? taken : taken.slice();
    }
    text() {
      try {
        return this.#read(textOf);
      } catch (error) {
        return reject(error);
      }
    }
    json() {
      try {
        return this.#read(jsonOf);
      } catch (error) {
        return reject(error);
      }
    }
    async bytes() { return this.#bytes(); }
    async arrayBuffer() { return (await this.#bytes()).buffer; }
    async blob() {
      native.demand("blob");
      const bytes = await this.#bytes();
      return new native.Blob([bytes], { type: this.headers.get("content-type") ?? "" });
    }
    async formData() {
      native.demand("blob");
      const type = this.headers.get("content-type");
      return native.parseForm(await this.#bytes(), type);
    }
  }

  native.Body = Body;
};
