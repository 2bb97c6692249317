//! `CompressionStream` and `DecompressionStream`.

use std::time::Duration;

use edgefaas_isolates::{Limits, RunError};
use serde_json::json;

use super::answer;
use crate::support::{Bench, call, graph};

const HELPERS: &str = r#"
    const collect = async (stream) => new Uint8Array(await new Response(stream).arrayBuffer());
    const through = (bytes, stream) => collect(new Blob([bytes]).stream().pipeThrough(stream));
    const base64 = (text) => Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
    const thrown = async (run) => { try { return await run(); } catch (error) { return `${error.name}: ${error.message}`; } };
    const text = (bytes) => new TextDecoder().decode(bytes);
"#;

async fn run(body: &str) -> serde_json::Value {
    answer(&Bench::new(), &format!("{HELPERS}{body}")).await
}

#[tokio::test]
async fn what_was_compressed_comes_back() {
    let seen = run(
        r#"
        const plain = new TextEncoder().encode(Array.from({ length: 20000 }, (_, index) => `line ${index}\n`).join(""));
        const seen = {};
        for (const format of ["gzip", "deflate", "deflate-raw"]) {
            const packed = await through(plain, new CompressionStream(format));
            const back = await through(packed, new DecompressionStream(format));
            // A byte at a time.
            const slow = new DecompressionStream(format);
            const read = collect(slow.readable);
            const writer = slow.writable.getWriter();
            for (const byte of packed.subarray(0, 3000)) await writer.write(new Uint8Array([byte]));
            await writer.write(packed.subarray(3000));
            await writer.close();
            seen[format] = [packed.length < plain.length / 3, text(back) === text(plain), text(await read) === text(plain), (await through(new Uint8Array(0), new CompressionStream(format))).length > 0];
        }
        return seen;"#,
    )
    .await;
    let all = json!([true, true, true, true]);
    assert_eq!(seen, json!({ "gzip": all, "deflate": all, "deflate-raw": all }));
}

/// Made by `gzip` and by Python's `zlib`.
#[tokio::test]
async fn data_of_other_programs_is_read() {
    let seen = run(
        r#"
        return [
            text(await through(base64("H4sIAAAAAAACA8tIzcnJVyjPL8pJAQCFEUoNCwAAAA=="), new DecompressionStream("gzip"))),
            text(await through(base64("eJzLSM3JyVcozy/KSQEAGgsEXQ=="), new DecompressionStream("deflate"))),
            text(await through(base64("y0jNyclXKM8vykkBAA=="), new DecompressionStream("deflate-raw"))),
        ];"#,
    )
    .await;
    assert_eq!(seen, json!(["hello world", "hello world", "hello world"]));
}

#[tokio::test]
async fn malformed_data_is_refused() {
    let seen = run(
        r#"
        const gzip = base64("H4sIAAAAAAACA8tIzcnJVyjPL8pJAQCFEUoNCwAAAA==");
        const zlib = base64("eJzLSM3JyVcozy/KSQEAGgsEXQ==");
        const changed = gzip.slice();
        changed[gzip.length - 6] ^= 1;
        const more = (bytes) => new Uint8Array([...bytes, 0]);
        const seen = [];
        for (const [bytes, format] of [
            [gzip.slice(0, -1), "gzip"], [gzip.slice(0, 15), "gzip"], [changed, "gzip"], [more(gzip), "gzip"], [zlib, "gzip"], [new Uint8Array(0), "gzip"],
            [zlib.slice(0, -1), "deflate"], [more(zlib), "deflate"], [gzip, "deflate"], [new Uint8Array(5).fill(255), "deflate-raw"], [new Uint8Array(0), "deflate-raw"],
        ]) seen.push(await thrown(() => through(bytes, new DecompressionStream(format))).then((text) => text.slice(0, 30)));
        seen.push(await thrown(() => new CompressionStream("brotli")));
        seen.push(await thrown(() => collect(ReadableStream.from(["text"]).pipeThrough(new CompressionStream("gzip")))).then((text) => text.slice(0, 40)));
        const stream = new DecompressionStream("gzip");
        await stream.readable.cancel("enough");
        seen.push(await stream.writable.getWriter().write(gzip).catch((error) => error));
        return seen;"#,
    )
    .await;
    let malformed = "TypeError: the compressed data";
    let mut expected = vec![malformed; 11];
    expected.push("TypeError: CompressionStream: the format \"brotli\" is not supported; gzip, deflate, deflate-raw are");
    expected.push("TypeError: CompressionStream: a chunk is");
    expected.push("enough");
    assert_eq!(seen, json!(expected));
}

/// 200 MiB of zeros in 200 kB: a reader that keeps nothing sees all of it, one that keeps all runs into its limit.
#[tokio::test]
async fn a_bomb_takes_no_more_than_its_reader_keeps() {
    let bench = Bench::new();
    let source = format!(
        "export default async (event) => {{ {HELPERS}
            const zeros = new Uint8Array(1 << 20);
            let left = 200;
            const plain = new ReadableStream({{ pull(controller) {{ if (left-- === 0) controller.close(); else controller.enqueue(zeros); }} }});
            const bomb = await collect(plain.pipeThrough(new CompressionStream('gzip')));
            const stream = new Blob([bomb]).stream().pipeThrough(new DecompressionStream('gzip'));
            if (event.text() === 'keep') return (await collect(stream)).length;
            let total = 0;
            let largest = 0;
            for await (const piece of stream) {{ total += piece.length; largest = Math.max(largest, piece.length); }}
            return [total, bomb.length < 300000, largest < 2000000];
        }};"
    );
    let program = bench.prepare(&graph("f.js", &source)).await.unwrap();
    let limits = Limits { memory_bytes: 32 << 20, timeout: Duration::from_secs(60), ..Limits::default() };
    let seen = crate::json(bench.run_within(&program, call("pass"), limits).await.result);
    assert_eq!(seen, json!([200 << 20, true, true]));
    let error = bench.run_within(&program, call("keep"), limits).await.result.unwrap_err();
    assert!(matches!(error, RunError::OutOfMemory { .. }), "{error:?}");
}
