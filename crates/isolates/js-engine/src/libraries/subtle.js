// crypto.subtle: digests and HMAC; the work is done natively.
(native) => {
  const HASHES = { "SHA-1": [20, 64, "HS1"], "SHA-256": [32, 64, "HS256"], "SHA-384": [48, 128, "HS384"], "SHA-512": [64, 128, "HS512"] };
  const unsupported = (what) => new DOMException(what, "NotSupportedError");
  const refused = (what) => new DOMException(what, "InvalidAccessError");
  const known = Object.keys(HASHES).join(", ");

  function hashName(algorithm) {
    const name = String(typeof algorithm === "object" && algorithm !== null ? algorithm.name : algorithm).toUpperCase();
    if (!Object.hasOwn(HASHES, name)) throw unsupported(`there is no hash ${native.quote(name)}; there are ${known}`);
    return name;
  }
  function onlyHmac(algorithm, what) {
    const name = String(typeof algorithm === "object" && algorithm !== null ? algorithm.name : algorithm);
    if (name.toUpperCase() !== "HMAC") throw unsupported(`${what}: ${native.quote(name)} is not supported; HMAC is`);
  }

  const MADE = Symbol("made here");
  let secretOf;

  class CryptoKey {
    #secret;
    #facts;
    static { secretOf = (key) => key.#secret; }
    constructor(made, secret, facts) {
      if (made !== MADE) throw new TypeError("a CryptoKey is made by crypto.subtle.importKey or generateKey");
      this.#secret = secret;
      this.#facts = facts;
    }
    get type() { return "secret"; }
    get extractable() { return this.#facts.extractable; }
    get algorithm() { return this.#facts.algorithm; }
    get usages() { return this.#facts.usages; }
  }

  function makeKey(secret, hash, extractable, usages) {
    const wanted = [...usages];
    const odd = wanted.find((usage) => usage !== "sign" && usage !== "verify");
    if (odd !== undefined) throw new DOMException(`an HMAC key cannot be used to ${odd}; it can sign and verify`, "SyntaxError");
    if (wanted.length === 0) throw new DOMException("the key's usages are empty; name sign, verify or both", "SyntaxError");
    const algorithm = { name: "HMAC", hash: { name: hash }, length: secret.length * 8 };
    return new CryptoKey(MADE, secret, { extractable: Boolean(extractable), algorithm, usages: [...new Set(wanted)] });
  }

  function usable(algorithm, key, usage) {
    onlyHmac(algorithm, usage);
    if (!(key instanceof CryptoKey)) throw new TypeError(`${usage}: the key is ${native.quote(key)}, not a CryptoKey`);
    if (!key.usages.includes(usage)) throw refused(`the key was not imported to ${usage}; its usages are ${key.usages.join(", ")}`);
    return [key.algorithm.hash.name, secretOf(key)];
  }

  const toUrl = (bytes) => native.toBase64(bytes).replace(/\+/g, "-").replace(/\//g, "_").replace(/=+$/, "");
  const fromUrl = (text) => native.fromBase64(String(text).replace(/-/g, "+").replace(/_/g, "/"));

  class SubtleCrypto {
    constructor(made) { if (made !== MADE) throw new TypeError("there is one SubtleCrypto: crypto.subtle"); }
    async digest(algorithm, data) {
      return native.digest(hashName(algorithm), native.bytesOf(data)).buffer;
    }
    async importKey(format, data, algorithm, extractable, usages) {
      onlyHmac(algorithm, "importKey");
      const hash = hashName(algorithm.hash);
      let secret;
      if (format === "raw") secret = native.bytesOf(data).slice();
      else if (format === "jwk") {
        if (data?.kty !== "oct" || typeof data.k !== "string") throw new DOMException("the JWK has to be of kty \"oct\" with k", "DataError");
        if (data.alg !== undefined && data.alg !== HASHES[hash][2]) throw new DOMException(`the JWK's alg is ${native.quote(data.alg)}, not ${HASHES[hash][2]}`, "DataError");
        secret = fromUrl(data.k);
        if (!secret) throw new DOMException("the JWK's k is not base64url", "DataError");
      } else throw unsupported(`importKey: the format ${native.quote(format)} is not supported; raw and jwk are`);
      if (secret.length === 0) throw new DOMException("the key is empty", "DataError");
      return makeKey(secret, hash, extractable, usages);
    }
    async generateKey(algorithm, extractable, usages) {
      onlyHmac(algorithm, "generateKey");
      const hash = hashName(algorithm.hash);
      const bytes = algorithm.length === undefined ? HASHES[hash][1] : Math.ceil(algorithm.length / 8);
      if (!(bytes > 0 && bytes <= 65_536)) throw new DOMException("generateKey: the length is out of range", "OperationError");
      return makeKey(native.randomBytes(bytes), hash, extractable, usages);
    }
    async exportKey(format, key) {
      if (!(key instanceof CryptoKey)) throw new TypeError("exportKey: expected a CryptoKey");
      if (!key.extractable) throw refused("the key is not extractable");
      if (format === "raw") return secretOf(key).slice().buffer;
      if (format !== "jwk") throw unsupported(`exportKey: the format ${native.quote(format)} is not supported; raw and jwk are`);
      return { kty: "oct", k: toUrl(secretOf(key)), alg: HASHES[key.algorithm.hash.name][2], key_ops: [...key.usages], ext: true };
    }
    async sign(algorithm, key, data) {
      return native.hmac(...usable(algorithm, key, "sign"), native.bytesOf(data)).buffer;
    }
    async verify(algorithm, key, signature, data) {
      return native.hmacIs(...usable(algorithm, key, "verify"), native.bytesOf(data), native.bytesOf(signature));
    }
  }
  for (const name of ["encrypt", "decrypt", "deriveBits", "deriveKey", "wrapKey", "unwrapKey"]) {
    const method = { async [name]() { throw unsupported(`crypto.subtle.${name} is not supported; there are digest and HMAC's sign and verify`); } }[name];
    Object.defineProperty(SubtleCrypto.prototype, name, { value: method, writable: true, configurable: true });
  }

  native.subtle = new SubtleCrypto(MADE);
  native.define({ CryptoKey, SubtleCrypto });
};
