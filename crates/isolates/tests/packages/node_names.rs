//! Modules of Node.js in a pure form.

use serde_json::json;

use super::App;
use crate::support::{Bench, call};

#[tokio::test]
async fn modules_of_node_work() {
    let app = App::new(&[(
        "main.js",
        r#"
        import { Buffer } from "node:buffer";
        import EventEmitter, { once } from "events";
        import util, { format, promisify, inspect } from "node:util";
        import path, { join } from "path";
        import { parse, fileURLToPath, URL as Same } from "node:url";
        import { stringify } from "querystring";
        import { StringDecoder } from "string_decoder";
        import assert from "node:assert";
        import { createHash, createHmac, randomBytes, randomUUID, timingSafeEqual } from "node:crypto";
        import process, { nextTick } from "node:process";
        import { Readable, Transform, pipeline } from "node:stream";
        export default async () => {
            const emitter = new EventEmitter();
            const happened = once(emitter, "x");
            emitter.emit("x", 5);
            const decoder = new StringDecoder("utf8");
            const parts = decoder.write(Buffer.from([0xe2, 0x82])) + decoder.write(Buffer.from([0xac]));
            let refused;
            try { assert.deepStrictEqual({ a: 1 }, { a: 2 }); } catch (error) { refused = error.code; }
            const chunks = [];
            const upper = new Transform({ transform(chunk, _, done) { done(null, chunk.toString().toUpperCase()); } });
            await promisify(pipeline)(Readable.from(["a", "b"]), upper, async (source) => { for await (const c of source) chunks.push(String(c)); });
            return {
                buffer: [Buffer.from("héllo").toString("base64"), Buffer.from("ff00", "hex").readUInt16BE(0), Buffer.concat([Buffer.alloc(1)]).length],
                events: await happened,
                util: [format("%s is %d", "x", 4), inspect({ a: [1] }), util.isDeepStrictEqual({ a: 1 }, { a: 1 })],
                path: [join("a", "../b"), path.extname("c.txt"), path.posix === path],
                url: [parse("http://h:1/p?q=1", true).query.q, fileURLToPath("file:///a%20b"), Same === URL],
                query: stringify({ a: [1, 2] }),
                decoder: parts,
                assert: refused,
                hash: ["md5", "sha1", "sha224", "sha256", "SHA384", "sha512"].map((name) => createHash(name).update("a").update(Buffer.from("bc")).digest("hex").slice(0, 16)),
                hmac: createHmac("sha256", "key").update("data").digest("base64"),
                random: [randomBytes(16).length, randomUUID().length, timingSafeEqual(Buffer.from("a"), Buffer.from("a"))],
                process: [await new Promise((resolve) => nextTick(resolve, "ticked")), process.env.NODE_ENV, process.versions.node === undefined],
                stream: chunks.join(""),
                globals: [typeof globalThis.Buffer, typeof globalThis.process],
            };
        };"#,
    )]);
    let expected = json!({
        "buffer": ["aMOpbGxv", 0xff00, 1],
        "events": [5],
        "util": ["x is 4", "{ a: [ 1 ] }", true],
        "path": ["b", ".txt", true],
        "url": ["1", "/a b", true],
        "query": "a=1&a=2",
        "decoder": "€",
        "assert": "ERR_ASSERTION",
        "hash": ["900150983cd24fb0", "a9993e364706816a", "23097d223405d822", "ba7816bf8f01cfea", "cb00753f45a35e8b", "ddaf35a193617aba"],
        "hmac": "UDH+PZicbRU3oBP6bnOdojRj/a7DtwE32Cjjas4iG9A=",
        "random": [16, 36, true],
        "process": ["ticked", "production", true],
        "stream": "AB",
        "globals": ["undefined", "undefined"],
    });
    assert_eq!(app.answer().await, expected);
}

#[tokio::test]
async fn globals_of_node_are_for_common_js_that_mentions_them() {
    let app = App::new(&[
        ("main.js", "import p from 'p'; import q from 'q'; export default () => [p, q];"),
        (
            "node_modules/p/index.js",
            "module.exports = [Buffer.from('a').length, process.platform, global === globalThis, typeof setImmediate,\n\
             Buffer === require('buffer').Buffer, typeof window];",
        ),
        (
            "node_modules/q/index.js",
            "var Buffer = 1, process = 2; module.exports = [Buffer, process, typeof globalThis.Buffer];",
        ),
    ]);
    let expected = json!([[1, "edgefaas", true, "function", true, "undefined"], [1, 2, "undefined"]]);
    assert_eq!(app.answer().await, expected);
}

#[tokio::test]
async fn a_function_pays_only_for_the_modules_that_it_imports() {
    let bench = Bench::new();
    let filled = async |source: &str| {
        let app = App::new(&[("main.js", source)]);
        let graph = app.collect().unwrap();
        (graph.modules.len(), bench.prepare(&graph).await.unwrap().filled_bytes())
    };
    let (modules, plain) = filled("export default () => 1;").await;
    assert_eq!(modules, 1);
    let (_, path) = filled("import { join } from 'path'; export default () => join('a', 'b');").await;
    let (_, stream) =
        filled("import { Readable } from 'stream'; export default () => typeof Readable;").await;
    assert!(plain < path && path < stream, "{plain} {path} {stream}");
    let reply =
        bench.prepare(&App::new(&[("main.js", "export default () => 1;")]).collect().unwrap()).await;
    let reply = bench.run(&reply.unwrap(), call("")).await.result;
    assert_eq!(crate::json(reply), json!(1));
}
