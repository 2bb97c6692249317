//! Events, cryptography, clocks, clones, and what is fresh in each invocation.

use edgefaas_isolates::LogLevel;
use serde_json::json;

use super::answer;
use crate::support::{Bench, WALL_UNIX_MS, call, graph};

#[tokio::test]
async fn events_reach_their_listeners() {
    let bench = Bench::new();
    let seen = answer(
        &bench,
        r#"
        const seen = [];
        const target = new (class Mine extends EventTarget {})();
        const listener = (event) => seen.push([event.type, event.detail, event.target === target]);
        target.addEventListener("x", listener);
        target.addEventListener("x", listener);
        target.addEventListener("x", { handleEvent() { throw new Error("in a listener"); } }, { once: true });
        target.addEventListener("x", (event) => event.preventDefault());
        target.addEventListener("y", (event) => { event.stopImmediatePropagation(); seen.push("first"); });
        target.addEventListener("y", () => seen.push("never"));
        const controller = new AbortController();
        target.addEventListener("z", () => seen.push("never"), { signal: controller.signal });
        controller.abort();
        seen.push(target.dispatchEvent(new CustomEvent("x", { detail: 7, cancelable: true })));
        target.removeEventListener("x", listener);
        target.dispatchEvent(new Event("x"));
        target.dispatchEvent(new Event("y"));
        target.dispatchEvent(new Event("z"));
        const { signal } = controller;
        let thrown;
        try { signal.throwIfAborted(); } catch (error) { thrown = [error.name, error instanceof DOMException, error === signal.reason]; }
        let illegal;
        try { new AbortSignal(); } catch (error) { illegal = error.constructor.name; }
        reportError(new Error("reported"));
        return [...seen, thrown, illegal, AbortSignal.any([AbortSignal.abort(1), signal]).reason, AbortSignal.any([]).aborted];"#,
    )
    .await;
    assert_eq!(
        seen,
        json!([["x", 7, true], false, "first", ["AbortError", true, true], "TypeError", 1, false])
    );
    let logs = bench.record().logs;
    assert_eq!(logs.len(), 2, "{logs:?}");
    assert!(
        logs[0].0 == LogLevel::Error && logs[0].1.starts_with("uncaught: Error: in a listener"),
        "{logs:?}"
    );
    assert!(logs.iter().all(|(_, line)| !line.contains("edgefaas:")), "{logs:?}");
}

#[tokio::test]
async fn hashes_and_hmac_are_those_of_the_standards() {
    let seen = answer(
        &Bench::new(),
        r#"
        const utf8 = (text) => new TextEncoder().encode(text);
        const hex = (buffer) => [...new Uint8Array(buffer)].map((byte) => byte.toString(16).padStart(2, "0")).join("");
        const digests = {};
        for (const name of ["SHA-1", "sha-256", "SHA-384", "SHA-512"]) digests[name] = hex(await crypto.subtle.digest({ name }, utf8("abc"))).slice(0, 16);
        // RFC 4231, test case 2.
        const key = await crypto.subtle.importKey("raw", utf8("Jefe"), { name: "HMAC", hash: "SHA-256" }, true, ["sign", "verify"]);
        const data = utf8("what do ya want for nothing?");
        const code = await crypto.subtle.sign("HMAC", key, data);
        const jwk = await crypto.subtle.exportKey("jwk", key);
        const again = await crypto.subtle.importKey("jwk", jwk, { name: "HMAC", hash: { name: "SHA-256" } }, false, ["verify"]);
        const verified = [await crypto.subtle.verify("HMAC", again, code, data), await crypto.subtle.verify("HMAC", again, code.slice(1), data)];
        const made = await crypto.subtle.generateKey({ name: "HMAC", hash: "SHA-512" }, true, ["sign"]);
        const wrong = [];
        for (const attempt of [
            () => crypto.subtle.digest("MD5", data), () => crypto.subtle.sign("HMAC", again, data), () => crypto.subtle.exportKey("raw", again),
            () => crypto.subtle.importKey("raw", data, "AES-GCM", false, ["encrypt"]), () => crypto.subtle.encrypt({ name: "AES-GCM" }, key, data),
            () => crypto.subtle.importKey("raw", data, { name: "HMAC", hash: "SHA-1" }, false, ["encrypt"]),
            () => crypto.subtle.importKey("spki", data, { name: "HMAC", hash: "SHA-1" }, false, ["sign"]),
        ]) await attempt().catch((error) => wrong.push(error.name));
        return [digests, hex(code), jwk, verified, made.algorithm, wrong, crypto instanceof Crypto, crypto.subtle instanceof SubtleCrypto, key instanceof CryptoKey];"#,
    )
    .await;
    assert_eq!(
        seen,
        json!([
            {
                "SHA-1": "a9993e364706816a", "sha-256": "ba7816bf8f01cfea",
                "SHA-384": "cb00753f45a35e8b", "SHA-512": "ddaf35a193617aba",
            },
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843",
            { "kty": "oct", "k": "SmVmZQ", "alg": "HS256", "key_ops": ["sign", "verify"], "ext": true },
            [true, false],
            { "name": "HMAC", "hash": { "name": "SHA-512" }, "length": 1024 },
            ["NotSupportedError", "InvalidAccessError", "InvalidAccessError", "DataError", "InvalidAccessError", "SyntaxError", "NotSupportedError"],
            true,
            true,
            true,
        ])
    );
}

#[tokio::test]
async fn clones_keep_what_they_hold() {
    let seen = answer(
        &Bench::new(),
        r#"
        const shared = { n: 1 };
        const value = {
            map: new Map([[shared, new Set([shared])]]), date: new Date(7), pattern: /a+/gi, floats: new Float32Array([1.5, 2]),
            view: new DataView(new ArrayBuffer(4), 1, 2), big: 5n, error: new RangeError("bad", { cause: "why" }), list: [1, , 3],
            boxed: Object("s"), nothing: undefined, ["__proto__"]: { n: 1 },
        };
        value.self = value;
        const copy = structuredClone(value);
        const [[key, set]] = copy.map;
        const refused = [];
        for (const bad of [() => 1, Symbol("s"), Promise.resolve(), new WeakMap(), { deep: [() => 1] }, new Headers(), new Response("x")]) {
            try { structuredClone(bad); } catch (error) { refused.push(error.name); }
        }
        return [copy.self === copy, key !== shared && set.has(key), copy.date.getTime(), String(copy.pattern), [...copy.floats], copy.floats.constructor.name,
            [copy.view.byteOffset, copy.view.byteLength], String(copy.big), [copy.error instanceof RangeError, copy.error.message, copy.error.cause],
            1 in copy.list, "nothing" in copy, Object.getPrototypeOf(copy) === Object.prototype, refused];"#,
    )
    .await;
    assert_eq!(
        seen,
        json!([
            true,
            true,
            7,
            "/a+/gi",
            [1.5, 2],
            "Float32Array",
            [1, 2],
            "5",
            [true, "bad", "why"],
            false,
            true,
            true,
            [
                "DataCloneError",
                "DataCloneError",
                "DataCloneError",
                "DataCloneError",
                "DataCloneError",
                "DataCloneError",
                "DataCloneError"
            ],
        ])
    );
}

#[tokio::test]
async fn the_clock_of_an_invocation_is_its_own() {
    let bench = Bench::new();
    let source = r#"
        const atDeploy = performance.timeOrigin;
        export default async () => {
            const began = performance.now();
            const wall = Date.now();
            let ended = began;
            while (ended === began || Date.now() === wall) ended = performance.now();
            const origin = performance.timeOrigin;
            return [began >= 0 && began < 1000, ended > began, Date.now() > wall, Math.abs(origin + began - wall) < 1000, origin >= atDeploy, origin];
        };"#;
    let program = bench.prepare(&graph("f.js", source)).await.unwrap();
    bench.set_wall(WALL_UNIX_MS + 60_000);
    let first = crate::json(bench.run(&program, call("")).await.result);
    bench.set_wall(WALL_UNIX_MS + 120_000);
    let second = crate::json(bench.run(&program, call("")).await.result);
    for seen in [&first, &second] {
        assert_eq!(seen.as_array().unwrap()[..5], [true; 5].map(serde_json::Value::from), "{seen}");
    }
    assert!(second[5].as_f64() > first[5].as_f64());
}

#[tokio::test]
async fn globals_are_ordinary_whether_used_or_not() {
    let bench = Bench::new();
    let seen = answer(
        &bench,
        r#"
        const name = (parts) => parts.join("");
        const found = {};
        // Spelled so that nothing of it is in the snapshot.
        for (const parts of [["Blo", "b"], ["ReadableStrea", "m"], ["TransformStrea", "m"], ["AbortControlle", "r"], ["CryptoKe", "y"]]) {
            found[name(parts)] = [name(parts) in globalThis, typeof globalThis[name(parts)], globalThis[name(parts)] === globalThis[name(parts)],
                Object.keys(globalThis).includes(name(parts)), Object.getOwnPropertyDescriptor(globalThis, name(parts)).writable];
        }
        globalThis[name(["Fil", "e"])] = 5;
        return [found, globalThis[name(["Fil", "e"])], [..."ab"].map((x) => new Response(x)[name(["bod", "y"])].constructor.name)];"#,
    )
    .await;
    let usual = json!([true, "function", true, false, true]);
    assert_eq!(
        seen,
        json!([
            { "Blob": usual, "ReadableStream": usual, "TransformStream": usual, "AbortController": usual, "CryptoKey": usual },
            5,
            ["ReadableStream", "ReadableStream"],
        ])
    );
}

#[tokio::test]
async fn a_giant_log_line_is_cut() {
    let bench = Bench::new();
    let seen = answer(
        &bench,
        r#"console.log("x".repeat(12 << 20)); console.log("y", ["z".repeat(1 << 20)]); return 1;"#,
    )
    .await;
    assert_eq!(seen, json!(1));
    let logs = bench.record().logs;
    assert_eq!(logs.len(), 2);
    for ((_, line), end) in logs.iter().zip([" characters cut)", "'... 1038576 more characters\n]"]) {
        assert!(line.len() < 20_000 && line.ends_with(end), "{}", line.len());
    }
}

#[tokio::test]
async fn logs_show_what_the_runtimes_objects_hold() {
    let bench = Bench::new();
    let seen = answer(
        &bench,
        r#"
        const response = new Response("x", { status: 201, headers: { a: "b" } });
        const form = new FormData();
        form.append("f", new File(["xy"], "n"));
        for (const value of [response, new Request("http://h/p"), new URLSearchParams("a=1&a=2"), form, new Blob(["x"]), AbortSignal.abort(5), { h: new Headers() }]) {
            console.log(value);
        }
        return [response.bodyUsed, String(response), JSON.stringify(response.headers)];"#,
    )
    .await;
    assert_eq!(seen, json!([false, "[object Response]", "{}"]));
    let logs: Vec<String> = bench.record().logs.into_iter().map(|(_, line)| line).collect();
    assert_eq!(
        logs,
        [
            "Response {\n  status: 201,\n  url: '',\n  headers: Headers { 'a' => 'b', 'content-type' => 'text/plain;charset=UTF-8' }\n}",
            "Request { method: 'GET', url: 'http://h/p', headers: Headers {} }",
            "URLSearchParams { 'a' => '1', 'a' => '2' }",
            "FormData { 'f' => File { name: 'n', size: 2, type: '' } }",
            "Blob { size: 1, type: '' }",
            "AbortSignal { aborted: true, reason: 5 }",
            "{ h: Headers {} }",
        ]
    );
}
