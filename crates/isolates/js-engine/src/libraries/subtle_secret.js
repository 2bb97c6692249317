// crypto.subtle: AES-GCM and AES-CBC, HKDF and PBKDF2.
(native) => {
  native.demand("subtle");
  const {
    algorithms, HASHES, unsupported, badData, failed, bytesOf, hashName, makeKey, materialOf, secretOf, exportSecret, positive,
  } = native.cryptoKit;
  const NONE = new Uint8Array(0);
  const AES_USAGES = ["encrypt", "decrypt", "wrapKey", "unwrapKey"];
  const SIZES = [128, 192, 256];

  function aesBits(algorithm) {
    if (!SIZES.includes(algorithm.length)) throw failed(`the length of an AES key is ${native.quote(algorithm.length)}; it has 128, 192 or 256 bits`);
    return algorithm.length;
  }

  function ivOf(algorithm, bytes) {
    const iv = bytesOf(algorithm.iv, `${algorithm.name}: the iv`);
    if (iv.length !== bytes) throw failed(`the iv has ${iv.length} bytes; it has to have ${bytes}`);
    return iv;
  }

  // `run(direction, algorithm, key, data)` encrypts with "+" and decrypts with "-".
  function aes(name, suffix, run) {
    const facts = (material) => ({ type: "secret", material, algorithm: { name, length: material.length * 8 } });
    const algOf = (material) => `A${material.length * 8}${suffix}`;
    const done = (bytes, what) => {
      if (!bytes) throw failed(what);
      return bytes;
    };
    algorithms.set(name, {
      name,
      importKey(format, data, algorithm, extractable, usages) {
        const material = secretOf(format, data, algOf, extractable, usages);
        if (!SIZES.includes(material.length * 8)) throw badData(`the AES key has ${material.length} bytes; it has to have 16, 24 or 32`);
        return makeKey(facts(material), extractable, usages, AES_USAGES);
      },
      generateKey: (algorithm, extractable, usages) => makeKey(facts(native.randomBytes(aesBits(algorithm) / 8)), extractable, usages, AES_USAGES),
      keyBits: aesBits,
      exportKey: (format, key) => exportSecret(format, key, algOf(materialOf(key))),
      encrypt: (algorithm, key, data) => done(run("+", algorithm, materialOf(key), data), "encrypt: the data is too long"),
      decrypt: (algorithm, key, data) => done(run("-", algorithm, materialOf(key), data), "decrypt: the data was changed, or the key or the iv is another one"),
    });
  }
  aes("AES-GCM", "GCM", (direction, algorithm, key, data) => {
    if (algorithm.tagLength !== undefined && algorithm.tagLength !== 128) throw unsupported(`AES-GCM: a tag of ${native.quote(algorithm.tagLength)} bits is not supported; one of 128 is`);
    const additional = algorithm.additionalData === undefined ? NONE : native.bytesOf(algorithm.additionalData);
    return native.aes(`gcm${direction}`, key, ivOf(algorithm, 12), additional, data);
  });
  aes("AES-CBC", "CBC", (direction, algorithm, key, data) => native.aes(`cbc${direction}`, key, ivOf(algorithm, 16), NONE, data));

  const MAX_BYTES = 65_536;
  function bytesAskedFor(length) {
    const bits = Number(length);
    if (length === null || !Number.isInteger(bits) || bits < 0 || bits % 8 || bits / 8 > MAX_BYTES) throw failed(`the length is ${native.quote(length)}; it has to be a multiple of 8 up to ${MAX_BYTES * 8}`);
    return bits / 8;
  }

  function derivation(name, derive) {
    algorithms.set(name, {
      name,
      importKey(format, data, algorithm, extractable, usages) {
        if (format !== "raw") throw unsupported(`importKey: the format ${native.quote(format)} is not supported for ${name}; raw is`);
        if (extractable) throw new DOMException(`a key of ${name} cannot be extractable`, "SyntaxError");
        const material = bytesOf(data, "importKey: the key").slice();
        return makeKey({ type: "secret", material, algorithm: { name } }, false, usages, ["deriveKey", "deriveBits"]);
      },
      deriveBits: (algorithm, key, length) => derive(algorithm, hashName(algorithm.hash), materialOf(key), bytesAskedFor(length)),
    });
  }
  derivation("HKDF", (algorithm, hash, key, bytes) => {
    const found = native.hkdf(hash, key, bytesOf(algorithm.salt, "HKDF: the salt"), bytesOf(algorithm.info, "HKDF: the info"), bytes);
    if (!found) throw failed(`HKDF with ${hash} gives at most ${255 * HASHES[hash][0] * 8} bits`);
    return found;
  });
  derivation("PBKDF2", (algorithm, hash, key, bytes) => {
    const iterations = positive(algorithm.iterations, "PBKDF2: iterations", 0xffffffff);
    return native.pbkdf2(hash, key, bytesOf(algorithm.salt, "PBKDF2: the salt"), iterations, bytes);
  });
};
