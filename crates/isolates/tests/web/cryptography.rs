//! `crypto.subtle`: test vectors of the standards, and keys and signatures that `openssl` 3.0 made.

use std::path::Path;
use std::time::Duration;

use edgefaas_isolates::{Limits, RunError};
use serde_json::json;

use super::answer;
use crate::support::{Bench, call, graph};

/// Helpers of the functions below, and `OPENSSL`: keys, and signatures of a message.
const HELPERS: &str = concat!(
    r#"
    const OPENSSL = "#,
    include_str!("openssl.json"),
    r#";
    const subtle = crypto.subtle;
    const utf8 = (text) => new TextEncoder().encode(text);
    const hex = (buffer) => [...new Uint8Array(buffer)].map((byte) => byte.toString(16).padStart(2, "0")).join("");
    const unhex = (text) => Uint8Array.from(text.match(/../g) ?? [], (byte) => parseInt(byte, 16));
    const base64 = (text) => Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
    const thrown = async (run) => { try { return await run(); } catch (error) { return error.name; } };
    const message = utf8(OPENSSL.message);
"#
);

async fn run(body: &str) -> serde_json::Value {
    answer(&Bench::new(), &format!("{HELPERS}{body}")).await
}

/// Algorithm of a key, algorithm of a signature, its name, and the kind of key.
const SCHEMES: &str = r#"
    const schemes = [
        ["RS256", "RSA", { name: "RSASSA-PKCS1-v1_5", hash: "SHA-256" }, "RSASSA-PKCS1-v1_5"],
        ["RS512", "RSA", { name: "RSASSA-PKCS1-v1_5", hash: { name: "SHA-512" } }, "RSASSA-PKCS1-v1_5"],
        ["PS256", "RSA", { name: "RSA-PSS", hash: "SHA-256" }, { name: "RSA-PSS", saltLength: 32 }],
        ["ES256", "P-256", { name: "ECDSA", namedCurve: "P-256" }, { name: "ECDSA", hash: "SHA-256" }],
        ["ES384", "P-384", { name: "ECDSA", namedCurve: "P-384" }, { name: "ECDSA", hash: "SHA-384" }],
        ["Ed25519", "Ed25519", "Ed25519", { name: "Ed25519" }],
    ];
"#;

#[tokio::test]
async fn signatures_of_openssl_are_verified() {
    let seen = run(&format!(
        r#"{SCHEMES}
        const seen = {{}};
        for (const [name, kind, importing, algorithm] of schemes) {{
            const key = await subtle.importKey("spki", base64(OPENSSL.keys[kind].spki), importing, true, ["verify"]);
            const signature = base64(OPENSSL.signatures[name]);
            const changed = signature.slice();
            changed[20] ^= 1;
            seen[name] = [
                await subtle.verify(algorithm, key, signature, message), await subtle.verify(algorithm, key, changed, message),
                await subtle.verify(algorithm, key, signature, utf8("another text")), await subtle.verify(algorithm, key, signature.slice(1), message),
                await subtle.verify(algorithm, key, new Uint8Array(signature.length), message), await subtle.verify(algorithm, key, new Uint8Array(0), message),
                key.type, key.usages.join(), key.algorithm.modulusLength,
            ];
        }}
        return seen;"#
    ))
    .await;
    for name in ["RS256", "RS512", "PS256", "ES256", "ES384", "Ed25519"] {
        let bits = if name.starts_with('R') || name.starts_with('P') { json!(2048) } else { json!(null) };
        assert_eq!(
            seen[name],
            json!([true, false, false, false, false, false, "public", "verify", bits]),
            "{name}"
        );
    }
}

#[tokio::test]
async fn keys_of_openssl_sign_and_are_exported_as_they_came() {
    let seen = run(&format!(
        r#"{SCHEMES}
        const seen = {{}};
        for (const [name, kind, importing, algorithm] of schemes) {{
            const {{ spki, pkcs8 }} = OPENSSL.keys[kind];
            const secret = await subtle.importKey("pkcs8", base64(pkcs8), importing, true, ["sign"]);
            const open = await subtle.importKey("spki", base64(spki), importing, true, ["verify"]);
            const signature = await subtle.sign(algorithm, secret, message);
            const jwk = await subtle.exportKey("jwk", secret);
            const openJwk = await subtle.exportKey("jwk", open);
            const again = await subtle.importKey("jwk", jwk, importing, false, ["sign"]);
            const openAgain = await subtle.importKey("jwk", openJwk, importing, true, ["verify"]);
            seen[name] = [
                await subtle.verify(algorithm, open, signature, message),
                await subtle.verify(algorithm, openAgain, await subtle.sign(algorithm, again, message), message),
                hex(await subtle.exportKey("spki", openAgain)) === hex(base64(spki)),
                await subtle.exportKey("pkcs8", await subtle.importKey("jwk", jwk, importing, true, ["sign"])).then(hex) === hex(await subtle.exportKey("pkcs8", secret)),
                Object.keys(jwk).sort().join(), secret.type, Object.entries(openJwk).every(([key, value]) => key === "key_ops" || jwk[key] === value),
                kind === "RSA" ? "" : (await subtle.exportKey("raw", open)).byteLength,
                await thrown(() => subtle.exportKey("jwk", again)), await thrown(() => subtle.verify(algorithm, secret, signature, message)),
            ];
        }}
        return seen;"#
    ))
    .await;
    let shape = |members: &str, raw: serde_json::Value| {
        let refused = "InvalidAccessError";
        json!([true, true, true, true, members, "private", true, raw, refused, refused])
    };
    let rsa = "alg,d,dp,dq,e,ext,key_ops,kty,n,p,q,qi";
    for name in ["RS256", "RS512", "PS256"] {
        assert_eq!(seen[name], shape(rsa, json!("")), "{name}");
    }
    assert_eq!(seen["ES256"], shape("crv,d,ext,key_ops,kty,x,y", json!(65)));
    assert_eq!(seen["ES384"], shape("crv,d,ext,key_ops,kty,x,y", json!(97)));
    assert_eq!(seen["Ed25519"], shape("alg,crv,d,ext,key_ops,kty,x", json!(32)));
}

#[tokio::test]
async fn signatures_are_those_of_the_standards() {
    let seen = run(r#"
        // RFC 6979, A.2.5, with SHA-256 and "sample": there is no randomness in the signature.
        const url = (text) => btoa(String.fromCharCode(...unhex(text))).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
        const jwk = {
            kty: "EC", crv: "P-256", d: url("c9afa9d845ba75166b5c215767b1d6934e50c3db36e89b127b8a622b120f6721"),
            x: url("60fed4ba255a9d31c961eb74c6356d68c049b8923b61fa6ce669622e60f29fb6"), y: url("7903fe1008b8bc99a41ae9e95628bc64f2f1b20c2d7e9f5177a3c294d4462299"),
        };
        const curve = { name: "ECDSA", namedCurve: "P-256" };
        const ecdsa = await subtle.sign({ name: "ECDSA", hash: "SHA-256" }, await subtle.importKey("jwk", jwk, curve, false, ["sign"]), utf8("sample"));
        const others = await thrown(() => subtle.importKey("jwk", { ...jwk, d: url("02".repeat(32)) }, curve, false, ["sign"]));
        // RFC 8032, 7.1, test 3.
        const secret = unhex("302e020100300506032b657004220420c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7");
        const key = await subtle.importKey("pkcs8", secret, "Ed25519", false, ["sign"]);
        const open = await subtle.importKey("raw", unhex("fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025"), "Ed25519", false, ["verify"]);
        const signature = await subtle.sign("Ed25519", key, unhex("af82"));
        return [hex(ecdsa), others, hex(signature), await subtle.verify("Ed25519", open, signature, unhex("af82"))];"#)
    .await;
    assert_eq!(
        seen,
        json!([
            "efd48b2aacb6a8fd1140dd9cd45e81d69d2c877b56aaf991c34d0ea84eaf3716f7cb1c942d657c41d436c7a1b6e29f65f3e900dbb9aff4064dc4ab2f843acda8",
            "DataError",
            "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a",
            true
        ])
    );
}

#[tokio::test]
async fn encryption_and_derivation_are_those_of_the_standards() {
    let seen = run(r#"
        const aes = (key, name) => subtle.importKey("raw", unhex(key), name, true, ["encrypt", "decrypt"]);
        // The GCM specification, test case 4.
        const gcm = await aes("feffe9928665731c6d6a8f9467308308", "AES-GCM");
        const parameters = { name: "AES-GCM", iv: unhex("cafebabefacedbaddecaf888"), additionalData: unhex("feedfacedeadbeeffeedfacedeadbeefabaddad2") };
        const text = unhex("d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a721c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b39");
        const sealed = await subtle.encrypt(parameters, gcm, text);
        const broken = new Uint8Array(sealed.slice());
        broken[3] ^= 1;
        // SP 800-38A, F.2.1, whose padding is an additional block.
        const cbc = await aes("2b7e151628aed2a6abf7158809cf4f3c", "AES-CBC");
        const iv = unhex("000102030405060708090a0b0c0d0e0f");
        const chained = await subtle.encrypt({ name: "AES-CBC", iv }, cbc, unhex("6bc1bee22e409f96e93d7e117393172a"));
        // RFC 5869, test case 1; RFC 6070 and RFC 7914.
        const hkdf = await subtle.importKey("raw", new Uint8Array(22).fill(0x0b), "HKDF", false, ["deriveBits", "deriveKey"]);
        const hkdfParameters = { name: "HKDF", hash: "SHA-256", salt: unhex("000102030405060708090a0b0c"), info: unhex("f0f1f2f3f4f5f6f7f8f9") };
        const derived = await subtle.deriveBits(hkdfParameters, hkdf, 336);
        const password = (text) => subtle.importKey("raw", utf8(text), "PBKDF2", false, ["deriveBits"]);
        const pbkdf2 = async (text, hash, salt, iterations, bits) => hex(await subtle.deriveBits({ name: "PBKDF2", hash, salt: utf8(salt), iterations }, await password(text), bits));
        const made = await subtle.deriveKey(hkdfParameters, hkdf, { name: "AES-GCM", length: 256 }, true, ["encrypt"]);
        return [
            hex(sealed), hex(await subtle.decrypt(parameters, gcm, sealed)) === hex(text), await thrown(() => subtle.decrypt(parameters, gcm, broken)),
            await thrown(() => subtle.decrypt({ ...parameters, additionalData: unhex("00") }, gcm, sealed)),
            hex(chained).slice(0, 32), hex(await subtle.decrypt({ name: "AES-CBC", iv }, cbc, chained)), await thrown(() => subtle.decrypt({ name: "AES-CBC", iv }, cbc, chained.slice(1))),
            hex(derived), await pbkdf2("password", "SHA-1", "salt", 4096, 160), (await pbkdf2("passwd", "SHA-256", "salt", 1, 512)).slice(0, 32),
            hex(await subtle.exportKey("raw", made)) === hex(derived).slice(0, 64), made.algorithm,
        ];"#)
    .await;
    assert_eq!(
        seen,
        json!([
            "42831ec2217774244b7221b784d0d49ce3aa212f2c02a4e035c17e2329aca12e21d514b25466931c7d8f6a5aac84aa051ba30b396a0aac973d58e0915bc94fbc3221a5db94fae95ae7121a47",
            true,
            "OperationError",
            "OperationError",
            "7649abac8119b246cee98e9b12e9197d",
            "6bc1bee22e409f96e93d7e117393172a",
            "OperationError",
            "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865",
            "4b007901b765489abead49d926f721d065a429c1",
            "55ac046e56e3089fec1691c22544b605",
            true,
            { "name": "AES-GCM", "length": 256 }
        ])
    );
}

#[tokio::test]
async fn keys_are_made_and_wrapped() {
    let seen = run(r#"
        const seen = [];
        for (const [algorithm, signing] of [
            [{ name: "ECDSA", namedCurve: "P-256" }, { name: "ECDSA", hash: "SHA-256" }], [{ name: "ECDSA", namedCurve: "P-384" }, { name: "ECDSA", hash: "SHA-512" }],
            [{ name: "Ed25519" }, "Ed25519"],
        ]) {
            const { publicKey, privateKey } = await subtle.generateKey(algorithm, false, ["sign", "verify"]);
            const other = await subtle.generateKey(algorithm, false, ["sign", "verify"]);
            const signature = await subtle.sign(signing, privateKey, message);
            seen.push([await subtle.verify(signing, publicKey, signature, message), await subtle.verify(signing, other.publicKey, signature, message), privateKey.extractable, publicKey.extractable]);
        }
        for (const length of [128, 192, 256]) {
            const key = await subtle.generateKey({ name: "AES-GCM", length }, true, ["encrypt", "decrypt", "wrapKey", "unwrapKey"]);
            const iv = crypto.getRandomValues(new Uint8Array(12));
            const inner = await subtle.generateKey({ name: "HMAC", hash: "SHA-256" }, true, ["sign"]);
            const wrapped = await subtle.wrapKey("jwk", inner, key, { name: "AES-GCM", iv });
            const unwrapped = await subtle.unwrapKey("jwk", wrapped, key, { name: "AES-GCM", iv }, { name: "HMAC", hash: "SHA-256" }, true, ["sign"]);
            seen.push([(await subtle.exportKey("jwk", key)).alg, hex(await subtle.exportKey("raw", unwrapped)) === hex(await subtle.exportKey("raw", inner))]);
        }
        return seen;"#)
    .await;
    let pair = json!([true, false, false, true]);
    assert_eq!(seen, json!([pair, pair, pair, ["A128GCM", true], ["A192GCM", true], ["A256GCM", true]]));
}

#[tokio::test]
async fn what_is_no_key_is_refused() {
    let seen = run(r#"
        const rsa = { name: "RSASSA-PKCS1-v1_5", hash: "SHA-256" };
        const ec = { name: "ECDSA", namedCurve: "P-256" };
        const { spki, pkcs8 } = OPENSSL.keys.RSA;
        const jwk = { kty: "EC", crv: "P-256", x: "AA".padEnd(43, "A"), y: "AA".padEnd(43, "A") };
        const gcm = await subtle.generateKey({ name: "AES-GCM", length: 128 }, false, ["encrypt"]);
        const password = await subtle.importKey("raw", utf8("x"), "PBKDF2", false, ["deriveBits"]);
        return [
            await thrown(() => subtle.importKey("spki", base64(spki).slice(0, 100), rsa, false, ["verify"])), await thrown(() => subtle.importKey("spki", base64(spki), ec, false, ["verify"])),
            await thrown(() => subtle.importKey("pkcs8", base64(spki), rsa, false, ["sign"])), await thrown(() => subtle.importKey("spki", base64(spki), rsa, false, ["sign"])),
            await thrown(() => subtle.importKey("pkcs8", base64(pkcs8), rsa, false, [])), await thrown(() => subtle.importKey("jwk", jwk, ec, false, ["verify"])),
            await thrown(() => subtle.importKey("jwk", { ...jwk, crv: "P-384" }, ec, false, ["verify"])), await thrown(() => subtle.importKey("raw", new Uint8Array(65), ec, false, ["verify"])),
            await thrown(() => subtle.importKey("jwk", { kty: "RSA", n: "AQAB", e: "AQAB", alg: "RS512" }, rsa, false, ["verify"])),
            await thrown(() => subtle.importKey("raw", new Uint8Array(17), "AES-GCM", false, ["encrypt"])), await thrown(() => subtle.encrypt({ name: "AES-GCM", iv: new Uint8Array(11) }, gcm, message)),
            await thrown(() => subtle.encrypt({ name: "AES-GCM" }, gcm, message)), await thrown(() => subtle.encrypt({ name: "AES-CBC", iv: new Uint8Array(16) }, gcm, message)),
            await thrown(() => subtle.decrypt({ name: "AES-GCM", iv: new Uint8Array(12) }, gcm, message)), await thrown(() => subtle.deriveBits({ name: "PBKDF2", hash: "SHA-1", salt: message, iterations: 0 }, password, 8)),
            await thrown(() => subtle.deriveBits({ name: "PBKDF2", hash: "SHA-1", salt: message, iterations: 1 }, password, 1 << 30)),
            await thrown(() => subtle.generateKey({ ...rsa, modulusLength: 2048, publicExponent: new Uint8Array([1, 0, 1]) }, true, ["sign"])),
            await thrown(() => subtle.importKey("raw", message, "AES-CTR", false, ["encrypt"])), await thrown(() => subtle.generateKey({ name: "ECDSA", namedCurve: "P-521" }, true, ["sign"])),
        ];"#)
    .await;
    assert_eq!(
        seen,
        json!([
            "DataError",
            "DataError",
            "DataError",
            "SyntaxError",
            "SyntaxError",
            "DataError",
            "DataError",
            "DataError",
            "DataError",
            "DataError",
            "OperationError",
            "TypeError",
            "InvalidAccessError",
            "InvalidAccessError",
            "OperationError",
            "OperationError",
            "NotSupportedError",
            "NotSupportedError",
            "NotSupportedError"
        ])
    );
}

/// A derivation that never ends is the invocation's own: its processor time and its deadline end it.
#[tokio::test]
async fn a_long_derivation_ends_at_the_deadline() {
    let bench = Bench::new();
    let source = "export default async () => {
        const key = await crypto.subtle.importKey('raw', new Uint8Array(8), 'PBKDF2', false, ['deriveBits']);
        return crypto.subtle.deriveBits({ name: 'PBKDF2', hash: 'SHA-512', salt: new Uint8Array(8), iterations: 0xffffffff }, key, 512);
    };";
    let program = bench.prepare(&graph("f.js", source)).await.unwrap();
    let limits = Limits { timeout: Duration::from_millis(300), ..Limits::default() };
    let done = bench.run_within(&program, call(""), limits).await;
    assert!(matches!(done.result, Err(RunError::TimedOut { .. })), "{:?}", done.result);
    assert!(done.cpu > Duration::ZERO);
}

/// The npm packages `jose` and `iron-webcrypto`, unmodified: tokens by five algorithms, an encrypted one, and a sealed cookie.
#[tokio::test]
async fn tokens_and_sealed_cookies_of_packages() {
    let packages = std::env::var("EDGEFAAS_TEST_NODE_PATH").unwrap_or_default();
    let packages = Path::new(&packages);
    let names = ["jose", "iron-webcrypto", "uint8array-extras"];
    if let Some(missing) = names.iter().find(|name| !packages.join(name).join("package.json").exists()) {
        assert!(std::env::var_os("EDGEFAAS_NO_SKIP").is_none(), "the npm package {missing} is not there");
        return;
    }
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir(root.path().join("node_modules")).unwrap();
    for name in names {
        let copied = std::process::Command::new("cp")
            .arg("-r")
            .args([packages.join(name), root.path().join("node_modules")])
            .status();
        assert!(copied.unwrap().success());
    }
    let source = format!(
        r#"
        import * as jose from "jose";
        import * as iron from "iron-webcrypto";
        export default async () => {{
            {HELPERS}
            const pem = (label, text) => `-----BEGIN ${{label}}-----\n${{text.match(/.{{1,64}}/g).join("\n")}}\n-----END ${{label}}-----`;
            const seen = {{}};
            for (const [alg, kind] of [["RS256", "RSA"], ["PS256", "RSA"], ["ES256", "P-256"], ["ES384", "P-384"], ["EdDSA", "Ed25519"]]) {{
                const secret = await jose.importPKCS8(pem("PRIVATE KEY", OPENSSL.keys[kind].pkcs8), alg, {{ extractable: true }});
                const open = await jose.importSPKI(pem("PUBLIC KEY", OPENSSL.keys[kind].spki), alg, {{ extractable: true }});
                const token = await new jose.SignJWT({{ scope: "a" }}).setProtectedHeader({{ alg, kid: "1" }}).setIssuer("me").setExpirationTime("1h").sign(secret);
                const set = jose.createLocalJWKSet({{ keys: [{{ ...(await jose.exportJWK(open)), kid: "1", alg }}] }});
                const {{ payload }} = await jose.jwtVerify(token, set, {{ issuer: "me" }});
                const [head, , signature] = token.split(".");
                const forged = [head, jose.base64url.encode(JSON.stringify({{ scope: "all" }})), signature].join(".");
                seen[alg] = [payload.scope, await jose.jwtVerify(forged, open).catch((error) => error.code)];
            }}
            const password = crypto.getRandomValues(new Uint8Array(32));
            const sealed = await new jose.EncryptJWT({{ id: 7 }}).setProtectedHeader({{ alg: "dir", enc: "A256GCM" }}).encrypt(password);
            seen.encrypted = (await jose.jwtDecrypt(sealed, password)).payload.id;
            const key = "a password of at least thirty-two characters";
            const cookie = await iron.seal({{ user: "ada" }}, key, iron.defaults);
            seen.cookie = [cookie.slice(0, 8), await iron.unseal(cookie, key, iron.defaults), await iron.unseal(cookie + "x", key, iron.defaults).catch(() => "refused")];
            return seen;
        }};"#
    );
    std::fs::write(root.path().join("f.js"), source).unwrap();
    let graph = edgefaas_isolates::js::collect(&root.path().join("f.js"), root.path()).unwrap();
    let bench = Bench::new();
    let program = bench.prepare(&graph).await.unwrap();
    let seen = crate::json(bench.run(&program, call("")).await.result);
    let token = json!(["a", "ERR_JWS_SIGNATURE_VERIFICATION_FAILED"]);
    assert_eq!(
        seen,
        json!({
            "RS256": token, "PS256": token, "ES256": token, "ES384": token, "EdDSA": token, "encrypted": 7,
            "cookie": ["Fe26.2**", { "user": "ada" }, "refused"],
        })
    );
}

/// Prints what cryptography takes; `cargo test --release --test javascript what_cryptography_takes -- --ignored --nocapture`.
#[tokio::test]
#[ignore = "a measurement"]
async fn what_cryptography_takes() {
    let seen = run(&format!(
        r#"{SCHEMES}
        const seen = {{}};
        for (const [name, kind, importing, algorithm] of schemes) {{
            const time = async (run) => {{ const began = performance.now(); for (let i = 0; i < 10; i++) await run(); return Number(((performance.now() - began) / 10).toFixed(2)); }};
            const secret = await subtle.importKey("pkcs8", base64(OPENSSL.keys[kind].pkcs8), importing, true, ["sign"]);
            const open = await subtle.importKey("spki", base64(OPENSSL.keys[kind].spki), importing, true, ["verify"]);
            seen[name] = [await time(() => subtle.sign(algorithm, secret, message)), await time(() => subtle.verify(algorithm, open, base64(OPENSSL.signatures[name]), message))];
        }}
        const key = await subtle.importKey("raw", message, "PBKDF2", false, ["deriveBits"]);
        const began = performance.now();
        await subtle.deriveBits({{ name: "PBKDF2", hash: "SHA-256", salt: message, iterations: 100000 }}, key, 256);
        seen.pbkdf2 = performance.now() - began;
        return seen;"#
    ))
    .await;
    println!("milliseconds to sign and to verify: {seen}");
}
