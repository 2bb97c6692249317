// crypto.subtle: RSA, ECDSA and Ed25519.
(native) => {
  native.demand("subtle");
  const {
    algorithms, HASHES, unsupported, badData, failed, bytesOf, hashName, makeKey, materialOf, toUrl, fromUrl, checkJwk,
  } = native.cryptoKit;

  // Members of a JWK, public and private, in the order of the natives.
  const RSA = { kty: "RSA", public: ["n", "e"], private: ["n", "e", "d", "p", "q", "dp", "dq", "qi"] };
  const EC = { kty: "EC", public: ["x", "y"], private: ["x", "y", "d"] };
  const OKP = { kty: "OKP", public: ["x"], private: ["x", "d"] };
  const PART = { spki: "public", raw: "public", pkcs8: "private" };

  // The bytes of a key and which part of a pair it is.
  function read(kind, format, data, jwk, alg, extractable, usages) {
    if (format === "jwk") {
      checkJwk(data, jwk.kty, alg, extractable, usages);
      if (jwk !== RSA && data.crv !== kind) throw badData(`the JWK's crv is ${native.quote(data.crv)}, not ${kind}`);
      if (data.oth !== undefined) throw unsupported("RSA keys of more than two primes are not supported");
      const part = data.d === undefined ? "public" : "private";
      const parts = jwk[part].map((member) => fromUrl(data, member));
      const sizes = { "P-256": 32, "P-384": 48, Ed25519: 32 };
      const odd = jwk[part].find((member, index) => jwk !== RSA && parts[index].length !== sizes[kind]);
      if (odd) throw badData(`the JWK's ${odd} does not have ${sizes[kind]} bytes`);
      return [part, native.keyOfParts(kind, part, parts)];
    }
    if (!Object.hasOwn(PART, format) || (format === "raw" && kind === "RSA")) {
      throw unsupported(`importKey: the format ${native.quote(format)} is not supported for this key; ${kind === "RSA" ? "" : "raw, "}spki, pkcs8 and jwk are`);
    }
    return [PART[format], native.keyOf(kind, format, bytesOf(data, "importKey: the key"))];
  }

  const usagesOf = (part) => [part === "public" ? "verify" : "sign"];

  function imported(kind, jwk, alg, facts, format, data, extractable, usages) {
    const [part, material] = read(kind, format, data, jwk, alg, extractable, usages);
    if (!material) throw badData(`importKey: the data is no ${part} key of ${kind} in the format ${format}`);
    return makeKey({ type: part, material, algorithm: facts(part, material) }, extractable, usages, usagesOf(part));
  }

  function exported(kind, jwk, alg, format, key) {
    const [part, material] = [key.type, materialOf(key)];
    if (format === "raw" && part === "public" && kind !== "RSA") return material.slice().buffer;
    if (format === "jwk") {
      const found = native.keyParts(kind, part, material);
      const members = Object.fromEntries(jwk[part].map((member, index) => [member, toUrl(found[index])]));
      const crv = jwk === RSA ? {} : { crv: kind };
      return { kty: jwk.kty, ...crv, ...members, ...(alg && { alg }), key_ops: [...key.usages], ext: key.extractable };
    }
    const bytes = PART[format] === part && format !== "raw" ? native.keyAs(kind, format, material) : undefined;
    if (!bytes) throw new DOMException(`exportKey: a ${part} key of ${kind} cannot be exported as ${native.quote(format)}`, "InvalidAccessError");
    return bytes.buffer;
  }

  // A new pair of keys. Some bytes are no key of a curve; one in 2^32 at most.
  function pair(kind, bytes, algorithm, extractable, usages) {
    let secret;
    while (!secret) secret = native.keyOfSeed(kind, native.randomBytes(bytes));
    const wanted = [...usages];
    const odd = wanted.find((usage) => usage !== "sign" && usage !== "verify");
    if (odd !== undefined) throw new DOMException(`a key of ${kind} cannot be used to ${odd}; it can sign and verify`, "SyntaxError");
    const of = (usage) => wanted.filter((other) => other === usage);
    return {
      publicKey: makeKey({ type: "public", material: native.publicKey(kind, secret), algorithm }, true, of("verify"), ["verify"]),
      privateKey: makeKey({ type: "private", material: secret, algorithm }, extractable, of("sign"), ["sign"]),
    };
  }

  function signed(signature) {
    if (!signature) throw failed("sign: the key does not fit this hash");
    return signature;
  }

  function rsa(name, scheme, prefix, saltOf) {
    const algOf = (hash) => `${prefix}${HASHES[hash][2]}`;
    const facts = (hash) => (part, material) => {
      const [n, e] = native.keyParts("RSA", part, material);
      const bits = n.length * 8 - Math.clz32(n[0]) + 24;
      return { name, modulusLength: bits, publicExponent: e, hash: { name: hash } };
    };
    algorithms.set(name.toUpperCase(), {
      name,
      importKey(format, data, algorithm, extractable, usages) {
        const hash = hashName(algorithm.hash);
        return imported("RSA", RSA, algOf(hash), facts(hash), format, data, extractable, usages);
      },
      exportKey: (format, key) => exported("RSA", RSA, algOf(key.algorithm.hash.name), format, key),
      sign: (algorithm, key, data) => signed(native.keySign(scheme, key.algorithm.hash.name, saltOf(algorithm, key), materialOf(key), data)),
      verify: (algorithm, key, signature, data) => native.keyVerify(scheme, key.algorithm.hash.name, saltOf(algorithm, key), materialOf(key), signature, data),
    });
  }
  rsa("RSASSA-PKCS1-v1_5", "PKCS1", "RS", () => 0);
  rsa("RSA-PSS", "PSS", "PS", (algorithm, key) => {
    const salt = Number(algorithm.saltLength);
    const most = Math.ceil((key.algorithm.modulusLength - 1) / 8) - HASHES[key.algorithm.hash.name][0] - 2;
    if (!Number.isInteger(salt) || salt < 0 || salt > most) throw failed(`RSA-PSS: saltLength is ${native.quote(algorithm.saltLength)}; for this key it is from 0 to ${most}`);
    return salt;
  });

  const CURVES = { "P-256": [32, "ES256"], "P-384": [48, "ES384"] };
  function curveOf(algorithm) {
    const curve = String(algorithm.namedCurve);
    if (!Object.hasOwn(CURVES, curve)) throw unsupported(`ECDSA: the curve ${native.quote(curve)} is not supported; P-256 and P-384 are`);
    return curve;
  }
  algorithms.set("ECDSA", {
    name: "ECDSA",
    importKey(format, data, algorithm, extractable, usages) {
      const curve = curveOf(algorithm);
      return imported(curve, EC, CURVES[curve][1], () => ({ name: "ECDSA", namedCurve: curve }), format, data, extractable, usages);
    },
    generateKey(algorithm, extractable, usages) {
      const curve = curveOf(algorithm);
      return pair(curve, CURVES[curve][0], { name: "ECDSA", namedCurve: curve }, extractable, usages);
    },
    exportKey: (format, key) => exported(key.algorithm.namedCurve, EC, undefined, format, key),
    sign: (algorithm, key, data) => signed(native.keySign(key.algorithm.namedCurve, hashName(algorithm.hash), 0, materialOf(key), data)),
    verify: (algorithm, key, signature, data) => native.keyVerify(key.algorithm.namedCurve, hashName(algorithm.hash), 0, materialOf(key), signature, data),
  });

  algorithms.set("ED25519", {
    name: "Ed25519",
    importKey(format, data, algorithm, extractable, usages) {
      // "EdDSA" is the name of before.
      const alg = data?.alg === "EdDSA" ? "EdDSA" : "Ed25519";
      return imported("Ed25519", OKP, alg, () => ({ name: "Ed25519" }), format, data, extractable, usages);
    },
    generateKey: (algorithm, extractable, usages) => pair("Ed25519", 32, { name: "Ed25519" }, extractable, usages),
    exportKey: (format, key) => exported("Ed25519", OKP, "Ed25519", format, key),
    sign: (algorithm, key, data) => native.keySign("Ed25519", "", 0, materialOf(key), data),
    verify: (algorithm, key, signature, data) => native.keyVerify("Ed25519", "", 0, materialOf(key), signature, data),
  });
};
