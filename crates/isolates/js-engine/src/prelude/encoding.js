// TextEncoder, TextDecoder, atob, btoa.
(native) => {
  const bytesOf = (input) => {
    if (input === undefined) return new Uint8Array(0);
    if (input instanceof Uint8Array) return input;
    if (ArrayBuffer.isView(input)) return new Uint8Array(input.buffer, input.byteOffset, input.byteLength);
    if (input instanceof ArrayBuffer) return new Uint8Array(input);
    throw new TypeError("expected an ArrayBuffer or a view of one");
  };
  native.bytesOf = bytesOf;

  class TextEncoder {
    get encoding() { return "utf-8"; }
    encode(text = "") { return native.encode(String(text)); }
    encodeInto(text, target) {
      let read = 0;
      let written = 0;
      for (const character of String(text)) {
        const bytes = native.encode(character);
        if (written + bytes.length > target.length) break;
        target.set(bytes, written);
        written += bytes.length;
        read += character.length;
      }
      return { read, written };
    }
  }

  // How many bytes at the end begin a character that is not complete.
  function incomplete(bytes) {
    for (let back = 1; back <= Math.min(3, bytes.length); back++) {
      const byte = bytes[bytes.length - back];
      if ((byte & 0xc0) === 0x80) continue;
      const needed = byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : byte >= 0xc0 ? 2 : 1;
      return needed > back ? back : 0;
    }
    return 0;
  }

  class TextDecoder {
    #rest = new Uint8Array(0);
    #started = false;
    // Another encoding than UTF-8.
    #other;
    constructor(label = "utf-8", { fatal = false, ignoreBOM = false } = {}) {
      if (!/^\s*(utf-?8|unicode-1-1-utf-8)\s*$/i.test(label)) {
        native.demand("encodings");
        this.#other = native.otherEncoding(String(label), Boolean(fatal));
        if (!this.#other) throw new RangeError(`encoding not supported: ${label}`);
      }
      this.fatal = Boolean(fatal);
      this.ignoreBOM = Boolean(ignoreBOM);
    }
    get encoding() { return this.#other ? this.#other.encoding : "utf-8"; }
    decode(input, { stream = false } = {}) {
      let bytes = bytesOf(input);
      if (this.#other) return this.#withoutMark(this.#other.decode(bytes, stream), stream);
      if (this.#rest.length) {
        const joined = new Uint8Array(this.#rest.length + bytes.length);
        joined.set(this.#rest);
        joined.set(bytes, this.#rest.length);
        bytes = joined;
      }
      const keep = stream ? incomplete(bytes) : 0;
      this.#rest = bytes.slice(bytes.length - keep);
      const text = native.decode(bytes.subarray(0, bytes.length - keep), this.fatal);
      if (text === undefined) throw new TypeError("the bytes are not valid UTF-8");
      return this.#withoutMark(text, stream);
    }
    // A byte order mark is at the beginning only.
    #withoutMark(text, stream) {
      const marked = !this.#started && !this.ignoreBOM && text.charCodeAt(0) === 0xfeff;
      this.#started = stream && (this.#started || text.length > 0);
      return marked ? text.slice(1) : text;
    }
  }

  native.join = (chunks) => {
    if (chunks.length === 1) return chunks[0];
    const all = new Uint8Array(chunks.reduce((sum, chunk) => sum + chunk.length, 0));
    let at = 0;
    for (const chunk of chunks) {
      all.set(chunk, at);
      at += chunk.length;
    }
    return all;
  };

  const invalid = (message) => new DOMException(message, "InvalidCharacterError");

  function btoa(input) {
    const text = String(input);
    const bytes = new Uint8Array(text.length);
    for (let i = 0; i < text.length; i++) {
      const code = text.charCodeAt(i);
      if (code > 255) throw invalid("btoa: a character is outside of Latin-1");
      bytes[i] = code;
    }
    return native.toBase64(bytes);
  }

  function atob(input) {
    const text = String(input).replace(/[\t\n\f\r ]/g, "");
    const bytes = text.length % 4 === 1 ? undefined : native.fromBase64(text);
    if (bytes === undefined || bytes === null) throw invalid("atob: the text is not base64");
    let result = "";
    for (const byte of bytes) result += String.fromCharCode(byte);
    return result;
  }

  native.wellFormed = (text) => text.toWellFormed();
  native.setGlobal = (name, value) => {
    Object.defineProperty(globalThis, name, { value, writable: true, configurable: true, enumerable: false });
  };
  native.classes = new Set();
  // Globals of the runtime; its classes say their name, as many a library asks for it.
  native.define = (values) => {
    for (const [name, value] of Object.entries(values)) {
      native.setGlobal(name, value);
      if (!/^[A-Z]/.test(name)) continue;
      native.classes.add(value);
      Object.defineProperty(value.prototype, Symbol.toStringTag, { value: name, configurable: true });
    }
  };
  native.define({ TextEncoder, TextDecoder, atob, btoa });
};
