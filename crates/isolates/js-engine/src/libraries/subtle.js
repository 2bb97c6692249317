// crypto.subtle: the keys, what all algorithms share, digests and HMAC. Other algorithms are in files of their own; the work
// is done natively.
(native) => {
  const HASHES = { "SHA-1": [20, 64, "1"], "SHA-256": [32, 64, "256"], "SHA-384": [48, 128, "384"], "SHA-512": [64, 128, "512"] };
  const USAGES = ["encrypt", "decrypt", "sign", "verify", "deriveKey", "deriveBits", "wrapKey", "unwrapKey"];
  // Names of algorithms in capitals, and the file that has each.
  const FILES = {
    HMAC: undefined, "RSASSA-PKCS1-V1_5": "subtle_public", "RSA-PSS": "subtle_public", ECDSA: "subtle_public", ED25519: "subtle_public",
    "AES-GCM": "subtle_secret", "AES-CBC": "subtle_secret", HKDF: "subtle_secret", PBKDF2: "subtle_secret",
  };

  const unsupported = (what) => new DOMException(what, "NotSupportedError");
  const refused = (what) => new DOMException(what, "InvalidAccessError");
  const badData = (what) => new DOMException(what, "DataError");
  const failed = (what) => new DOMException(what, "OperationError");
  const bytesOf = (value, what) => {
    if (value === undefined) throw new TypeError(`${what} is missing`);
    return native.bytesOf(value);
  };

  const nameOf = (algorithm) => String(typeof algorithm === "object" && algorithm !== null ? algorithm.name : algorithm);

  function hashName(algorithm) {
    const name = nameOf(algorithm).toUpperCase();
    if (!Object.hasOwn(HASHES, name)) throw unsupported(`there is no hash ${native.quote(nameOf(algorithm))}; there are ${Object.keys(HASHES).join(", ")}`);
    return name;
  }

  // What each algorithm can do, by its name in capitals.
  const algorithms = new Map();

  function implementation(algorithm, method) {
    const name = nameOf(algorithm).toUpperCase();
    if (Object.hasOwn(FILES, name) && FILES[name]) native.demand(FILES[name]);
    const found = algorithms.get(name);
    if (found && (method === undefined || found[method])) return found;
    const able = Object.keys(FILES).filter((known) => {
      if (FILES[known]) native.demand(FILES[known]);
      return method === undefined || algorithms.get(known)[method];
    });
    throw unsupported(`${method}: ${native.quote(nameOf(algorithm))} is not supported; ${able.map((known) => algorithms.get(known).name).join(", ")} are`);
  }

  const MADE = Symbol("made here");
  let materialOf;

  class CryptoKey {
    #material;
    #facts;
    static { materialOf = (key) => key.#material; }
    constructor(made, material, facts) {
      if (made !== MADE) throw new TypeError("a CryptoKey is made by crypto.subtle.importKey or generateKey");
      this.#material = material;
      this.#facts = facts;
    }
    get type() { return this.#facts.type; }
    get extractable() { return this.#facts.extractable; }
    get algorithm() { return this.#facts.algorithm; }
    get usages() { return this.#facts.usages; }
  }

  // A key of `{ type, material, algorithm }`; `allowed` are the usages that it can have.
  function makeKey(facts, extractable, usages, allowed) {
    const wanted = [...usages];
    const odd = wanted.find((usage) => !allowed.includes(usage));
    if (odd !== undefined) {
      const can = allowed.length ? `it can ${allowed.join(", ")}` : "its usages have to be empty";
      throw new DOMException(`this ${facts.type} ${facts.algorithm.name} key cannot be used to ${odd}; ${can}`, "SyntaxError");
    }
    if (wanted.length === 0 && facts.type !== "public") {
      throw new DOMException(`the key's usages are empty; name some of ${allowed.join(", ")}`, "SyntaxError");
    }
    const { type, material, algorithm } = facts;
    const ordered = USAGES.filter((usage) => wanted.includes(usage));
    return new CryptoKey(MADE, material, { type, algorithm, extractable: type === "public" || Boolean(extractable), usages: ordered });
  }

  const checkKey = (key, what) => {
    if (!(key instanceof CryptoKey)) throw new TypeError(`${what}: the key is ${native.quote(key)}, not a CryptoKey`);
  };

  // What does the work for a key, which has to be of the algorithm and for the usage.
  function usable(algorithm, key, usage, method = usage) {
    const found = implementation(algorithm, method);
    checkKey(key, usage);
    if (key.algorithm.name !== found.name) throw refused(`${usage}: the key is for ${key.algorithm.name}, not for ${found.name}`);
    if (!key.usages.includes(usage)) throw refused(`the key was not imported to ${usage}; its usages are ${key.usages.join(", ") || "none"}`);
    return found;
  }

  const toUrl = (bytes) => native.toBase64(bytes).replace(/\+/g, "-").replace(/\//g, "_").replace(/=+$/, "");

  // The bytes of a member of a JWK.
  function fromUrl(jwk, member) {
    const text = jwk[member];
    const bytes = typeof text === "string" && /^[\w-]+$/.test(text) ? native.fromBase64(text.replace(/-/g, "+").replace(/_/g, "/")) : undefined;
    if (!bytes) throw badData(`the JWK's ${member} is not base64url`);
    return bytes;
  }

  // Checks what a JWK says about itself.
  function checkJwk(jwk, kty, alg, extractable, usages) {
    if (typeof jwk !== "object" || jwk === null) throw new TypeError("importKey: a JWK is an object");
    if (jwk.kty !== kty) throw badData(`the JWK has to be of kty ${native.quote(kty)}, not ${native.quote(jwk.kty)}`);
    if (jwk.alg !== undefined && alg !== undefined && jwk.alg !== alg) throw badData(`the JWK's alg is ${native.quote(jwk.alg)}, not ${alg}`);
    if (jwk.ext === false && extractable) throw badData("the JWK's ext is false; import it as a key that is not extractable");
    const missing = Array.isArray(jwk.key_ops) ? [...usages].find((usage) => !jwk.key_ops.includes(usage)) : undefined;
    if (missing !== undefined) throw badData(`the JWK's key_ops do not have ${missing}`);
  }

  // Bytes of a secret key in the format `raw` or `jwk`.
  function secretOf(format, data, alg, extractable, usages) {
    if (format === "raw") return bytesOf(data, "importKey: the key").slice();
    if (format !== "jwk") throw unsupported(`importKey: the format ${native.quote(format)} is not supported for this key; raw and jwk are`);
    checkJwk(data, "oct", undefined, extractable, usages);
    const bytes = fromUrl(data, "k");
    const expected = alg(bytes);
    if (data.alg !== undefined && expected !== undefined && data.alg !== expected) throw badData(`the JWK's alg is ${native.quote(data.alg)}, not ${expected}`);
    return bytes;
  }

  function exportSecret(format, key, alg) {
    const material = materialOf(key);
    if (format === "raw") return material.slice().buffer;
    if (format !== "jwk") throw unsupported(`exportKey: the format ${native.quote(format)} is not supported for this key; raw and jwk are`);
    return { kty: "oct", k: toUrl(material), alg, key_ops: [...key.usages], ext: key.extractable };
  }

  function positive(value, what, most) {
    const number = Number(value);
    if (!Number.isInteger(number) || number <= 0 || number > most) throw failed(`${what} is ${native.quote(value)}; it has to be a whole number from 1 to ${most}`);
    return number;
  }

  Object.assign(native, { cryptoKit: {
    algorithms, HASHES, unsupported, refused, badData, failed, bytesOf, hashName, nameOf, makeKey, materialOf, toUrl, fromUrl, checkJwk, secretOf,
    exportSecret, positive, implementation,
  } });

  const hmacFacts = (material, hash) => ({ type: "secret", material, algorithm: { name: "HMAC", hash: { name: hash }, length: material.length * 8 } });
  algorithms.set("HMAC", {
    name: "HMAC",
    importKey(format, data, algorithm, extractable, usages) {
      const hash = hashName(algorithm.hash);
      const secret = secretOf(format, data, () => `HS${HASHES[hash][2]}`, extractable, usages);
      if (secret.length === 0) throw badData("the key is empty");
      return makeKey(hmacFacts(secret, hash), extractable, usages, ["sign", "verify"]);
    },
    generateKey(algorithm, extractable, usages) {
      const hash = hashName(algorithm.hash);
      const bits = algorithm.length === undefined ? HASHES[hash][1] * 8 : positive(algorithm.length, "generateKey: the length", 524_288);
      return makeKey(hmacFacts(native.randomBytes(Math.ceil(bits / 8)), hash), extractable, usages, ["sign", "verify"]);
    },
    keyBits: (algorithm) => (algorithm.length === undefined ? HASHES[hashName(algorithm.hash)][1] * 8 : Number(algorithm.length)),
    exportKey: (format, key) => exportSecret(format, key, `HS${HASHES[key.algorithm.hash.name][2]}`),
    sign: (algorithm, key, data) => native.hmac(key.algorithm.hash.name, materialOf(key), data),
    verify: (algorithm, key, signature, data) => native.hmacIs(key.algorithm.hash.name, materialOf(key), data, signature),
  });

  class SubtleCrypto {
    constructor(made) { if (made !== MADE) throw new TypeError("there is one SubtleCrypto: crypto.subtle"); }
    async digest(algorithm, data) {
      return native.digest(hashName(algorithm), bytesOf(data, "digest: the data")).buffer;
    }
    async importKey(format, data, algorithm, extractable, usages) {
      return implementation(algorithm, "importKey").importKey(format, data, algorithm, extractable, usages);
    }
    async generateKey(algorithm, extractable, usages) {
      return implementation(algorithm, "generateKey").generateKey(algorithm, extractable, usages);
    }
    async exportKey(format, key) {
      checkKey(key, "exportKey");
      if (!key.extractable) throw refused("the key is not extractable");
      return implementation(key.algorithm, "exportKey").exportKey(format, key);
    }
    async sign(algorithm, key, data) {
      return usable(algorithm, key, "sign").sign(algorithm, key, bytesOf(data, "sign: the data")).buffer;
    }
    async verify(algorithm, key, signature, data) {
      return usable(algorithm, key, "verify").verify(algorithm, key, bytesOf(signature, "verify: the signature"), bytesOf(data, "verify: the data"));
    }
    async encrypt(algorithm, key, data) {
      return usable(algorithm, key, "encrypt").encrypt(algorithm, key, bytesOf(data, "encrypt: the data")).buffer;
    }
    async decrypt(algorithm, key, data) {
      return usable(algorithm, key, "decrypt").decrypt(algorithm, key, bytesOf(data, "decrypt: the data")).buffer;
    }
    async deriveBits(algorithm, key, length) {
      return usable(algorithm, key, "deriveBits").deriveBits(algorithm, key, length).buffer;
    }
    async deriveKey(algorithm, key, derived, extractable, usages) {
      const deriving = usable(algorithm, key, "deriveKey", "deriveBits");
      const made = implementation(derived, "keyBits");
      const bytes = deriving.deriveBits(algorithm, key, made.keyBits(derived));
      return made.importKey("raw", bytes, derived, extractable, usages);
    }
    async wrapKey(format, key, wrapping, algorithm) {
      const found = usable(algorithm, wrapping, "wrapKey", "encrypt");
      const exported = await this.exportKey(format, key);
      const bytes = format === "jwk" ? native.encode(JSON.stringify(exported)) : new Uint8Array(exported);
      return found.encrypt(algorithm, wrapping, bytes).buffer;
    }
    async unwrapKey(format, data, wrapping, algorithm, unwrapped, extractable, usages) {
      const found = usable(algorithm, wrapping, "unwrapKey", "decrypt");
      const bytes = found.decrypt(algorithm, wrapping, bytesOf(data, "unwrapKey: the key"));
      let read = bytes;
      if (format === "jwk") {
        try {
          read = JSON.parse(native.decode(bytes));
        } catch {
          throw badData("unwrapKey: the key is no JWK");
        }
      }
      return this.importKey(format, read, unwrapped, extractable, usages);
    }
  }

  native.subtle = new SubtleCrypto(MADE);
  native.define({ CryptoKey, SubtleCrypto });
};
