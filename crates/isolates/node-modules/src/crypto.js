const { md5, sha1, ripemd160 } = require('@noble/hashes/legacy.js');
const { sha224, sha256, sha384, sha512, sha512_224, sha512_256 } = require('@noble/hashes/sha2.js');
const { sha3_224, sha3_256, sha3_384, sha3_512 } = require('@noble/hashes/sha3.js');
const { hmac } = require('@noble/hashes/hmac.js');
const { pbkdf2 } = require('@noble/hashes/pbkdf2.js');
const { hkdf } = require('@noble/hashes/hkdf.js');
const { Buffer } = require('buffer');

const HASHES = {
  md5, sha1, sha224, sha256, sha384, sha512, ripemd160, rmd160: ripemd160,
  'sha512-224': sha512_224, 'sha512-256': sha512_256,
  'sha3-224': sha3_224, 'sha3-256': sha3_256, 'sha3-384': sha3_384, 'sha3-512': sha3_512,
};

function algorithm(name) {
  const key = String(name).toLowerCase().replace(/^rsa-/, '');
  const found = Object.hasOwn(HASHES, key) ? HASHES[key] : HASHES[key.replace('-', '')];
  if (found) return found;
  throw Object.assign(new Error(`Digest method not supported: ${name}`), { code: 'ERR_CRYPTO_INVALID_DIGEST' });
}

function bytes(value, encoding) {
  if (typeof value === 'string') return Buffer.from(value, encoding);
  if (ArrayBuffer.isView(value)) return new Uint8Array(value.buffer, value.byteOffset, value.byteLength);
  if (value instanceof ArrayBuffer) return new Uint8Array(value);
  throw Object.assign(new TypeError('The data must be a string, a Buffer, a TypedArray or a DataView'), { code: 'ERR_INVALID_ARG_TYPE' });
}

const encoded = (digest, encoding) => {
  const buffer = Buffer.from(digest.buffer, digest.byteOffset, digest.byteLength);
  return encoding && encoding !== 'buffer' ? buffer.toString(encoding) : buffer;
};

class Hash {
  #state;
  #ended = false;
  constructor(state) { this.#state = state; }
  #open() {
    if (this.#ended) throw Object.assign(new Error('Digest already called'), { code: 'ERR_CRYPTO_HASH_FINALIZED' });
  }
  update(data, encoding) {
    this.#open();
    this.#state.update(bytes(data, encoding));
    return this;
  }
  digest(encoding) {
    this.#open();
    this.#ended = true;
    return encoded(this.#state.digest(), encoding);
  }
  copy() {
    this.#open();
    return new this.constructor(this.#state.clone());
  }
}
class Hmac extends Hash {}

function randomFillSync(target, offset = 0, size = target.byteLength - offset) {
  const view = new Uint8Array(target.buffer ?? target, (target.byteOffset ?? 0) + offset, size);
  for (let at = 0; at < size; at += 65536) crypto.getRandomValues(view.subarray(at, Math.min(at + 65536, size)));
  return target;
}

// Node's calls with a callback answer in a later turn.
const answer = (make, callback) => {
  let value;
  try { value = make(); } catch (error) { queueMicrotask(() => callback(error)); return; }
  queueMicrotask(() => callback(null, value));
};

function randomBytes(size, callback) {
  if (callback) return answer(() => randomBytes(size), callback);
  return randomFillSync(Buffer.alloc(size));
}

function randomInt(low, high, callback) {
  if (high === undefined || typeof high === 'function') [low, high, callback] = [0, low, high];
  if (callback) return answer(() => randomInt(low, high), callback);
  const range = high - low;
  if (!Number.isSafeInteger(range) || range <= 0 || range > 2 ** 48) throw new RangeError('The range must be from 1 to 2 ** 48');
  const limit = 2 ** 48 - (2 ** 48 % range);
  for (;;) {
    const [high16, low32] = [randomBytes(2).readUInt16BE(0), randomBytes(4).readUInt32BE(0)];
    const value = high16 * 2 ** 32 + low32;
    if (value < limit) return low + (value % range);
  }
}

function timingSafeEqual(a, b) {
  [a, b] = [bytes(a), bytes(b)];
  if (a.length !== b.length) {
    throw Object.assign(new RangeError('Input buffers must have the same byte length'), { code: 'ERR_CRYPTO_TIMING_SAFE_EQUAL_LENGTH' });
  }
  let difference = 0;
  for (let at = 0; at < a.length; at += 1) difference |= a[at] ^ b[at];
  return difference === 0;
}

const pbkdf2Sync = (password, salt, iterations, length, digest) =>
  encoded(pbkdf2(algorithm(digest), bytes(password), bytes(salt), { c: iterations, dkLen: length }));
const hkdfSync = (digest, key, salt, info, length) =>
  hkdf(algorithm(digest), bytes(key), bytes(salt), bytes(info), length).slice().buffer;

module.exports = {
  createHash: (name) => new Hash(algorithm(name).create()),
  createHmac: (name, key) => new Hmac(hmac.create(algorithm(name), bytes(key))),
  hash: (name, data, encoding = 'hex') => encoded(algorithm(name)(bytes(data)), encoding),
  getHashes: () => Object.keys(HASHES),
  getRandomValues: (target) => crypto.getRandomValues(target),
  randomUUID: () => crypto.randomUUID(),
  randomBytes, pseudoRandomBytes: randomBytes, randomFillSync, randomInt, timingSafeEqual, Hash, Hmac,
  randomFill: (target, ...rest) => { const callback = rest.pop(); answer(() => randomFillSync(target, ...rest), callback); },
  pbkdf2Sync,
  pbkdf2: (...values) => { const callback = values.pop(); answer(() => pbkdf2Sync(...values), callback); },
  hkdfSync,
  hkdf: (...values) => { const callback = values.pop(); answer(() => hkdfSync(...values), callback); },
  webcrypto: crypto,
  get subtle() { return crypto.subtle; },
};
