const util = require('../node_modules/util');
const { TextEncoder, TextDecoder } = globalThis;
const ANSI = /[\u001B\u009B][[\]()#;?]*(?:\d{1,4}(?:;\d{0,4})*)?[\dA-PR-TZcf-nq-uy=><~]/g;
module.exports = Object.assign({}, util, {
  TextEncoder, TextDecoder,
  isArray: Array.isArray,
  isDeepStrictEqual: (a, b) => {
    try { require('assert').deepStrictEqual(a, b); return true; } catch { return false; }
  },
  stripVTControlCharacters: (text) => String(text).replace(ANSI, ''),
  toUSVString: (text) => String(text).toWellFormed(),
});
