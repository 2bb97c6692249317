// CompressionStream and DecompressionStream (compression standard); the work is done natively.
(native) => {
  native.demand("transform");
  const FORMATS = ["gzip", "deflate", "deflate-raw"];

  function transformer(name, format, decompress) {
    if (!FORMATS.includes(format)) throw new TypeError(`${name}: the format ${native.quote(format)} is not supported; ${FORMATS.join(", ")} are`);
    const codec = native.codecOpen(format, decompress);
    return {
      async transform(chunk, controller) {
        if (!ArrayBuffer.isView(chunk) && !(chunk instanceof ArrayBuffer)) throw new TypeError(`${name}: a chunk is ${native.quote(chunk)}, not bytes`);
        const bytes = native.bytesOf(chunk).slice();
        let at = 0;
        let pieces = 0;
        while (at < bytes.length) {
          if (pieces) await native.relief(controller);
          const [output, next] = native.codecPush(codec, bytes, at);
          at = next;
          if (output.length === 0) continue;
          controller.enqueue(output);
          pieces++;
        }
      },
      flush(controller) {
        const output = native.codecEnd(codec);
        if (output.length) controller.enqueue(output);
      },
      cancel() { native.codecClose(codec); },
    };
  }

  class CompressionStream extends TransformStream {
    constructor(format) { super(transformer("CompressionStream", String(format), false)); }
  }
  class DecompressionStream extends TransformStream {
    constructor(format) { super(transformer("DecompressionStream", String(format), true)); }
  }

  native.define({ CompressionStream, DecompressionStream });
};
