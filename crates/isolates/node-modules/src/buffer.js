const { Blob, File, atob, btoa } = globalThis;
module.exports = Object.assign({}, require('../node_modules/buffer'), {
  Blob, File, atob, btoa,
  constants: { MAX_LENGTH: 0x7fffffff, MAX_STRING_LENGTH: 0x3fffffff },
  isUtf8: (bytes) => { try { new TextDecoder('utf-8', { fatal: true }).decode(bytes); return true; } catch { return false; } },
  isAscii: (bytes) => new Uint8Array(bytes.buffer ?? bytes, bytes.byteOffset ?? 0, bytes.byteLength).every((byte) => byte < 128),
});
