//! Readable, writable and transform streams.

use std::time::Duration;

use edgefaas_isolates::{Limits, Reply, RunError};
use serde_json::json;

use super::{answer, failure, failure_within};
use crate::support::{Bench, call, graph};

#[tokio::test]
async fn readable_streams_follow_their_reader() {
    let seen = answer(
        &Bench::new(),
        r#"
        const seen = [];
        let n = 0;
        const counted = new ReadableStream({
            start(c) { seen.push(["start", c.desiredSize]); },
            pull(c) { if (n === 4) c.close(); else c.enqueue(n++); },
            cancel(reason) { seen.push(["cancel", reason]); },
        }, { highWaterMark: 2 });
        await null; await null;
        const reader = counted.getReader();
        seen.push(counted.locked, await reader.read(), await reader.read());
        reader.releaseLock();
        seen.push(await reader.read().catch((error) => error.message));
        for await (const chunk of counted) { seen.push(chunk); break; }
        seen.push(counted.locked);
        const [left, right] = ReadableStream.from(["a", "b"]).tee();
        const all = async (stream) => { const list = []; for await (const chunk of stream) list.push(chunk); return list; };
        seen.push(await Promise.all([all(left), all(right)]));
        const broken = new ReadableStream({ pull() { throw new RangeError("dry"); } });
        seen.push(await all(broken).catch((error) => error.message));
        seen.push(await all(ReadableStream.from((function* () { yield 1; yield Promise.resolve(2); })())));
        const late = new ReadableStream({ start(c) { c.close(); try { c.enqueue(1); } catch (error) { seen.push(error.constructor.name); } } });
        seen.push(await all(late), await late.getReader().closed.then(() => "closed"));
        const sized = new ReadableStream({ start(c) { c.enqueue("abc"); seen.push(c.desiredSize); } }, { highWaterMark: 5, size: (x) => x.length });
        const held = sized.getReader();
        let locked;
        try { sized.getReader(); } catch (error) { locked = error.message; }
        seen.push(locked, await sized.cancel().catch((error) => error.message), await held.cancel("why"));
        return seen;"#,
    )
    .await;
    assert_eq!(
        seen,
        json!([
            ["start", 2],
            true,
            { "value": 0, "done": false },
            { "value": 1, "done": false },
            "the reader was released",
            2,
            ["cancel", null],
            false,
            [["a", "b"], ["a", "b"]],
            "dry",
            [1, 2],
            "TypeError",
            [],
            "closed",
            2,
            "the stream is locked to a reader",
            "the stream is locked to a reader",
            null,
        ])
    );
}

#[tokio::test]
async fn writable_streams_press_back() {
    let seen = answer(
        &Bench::new(),
        r#"
        const seen = [];
        let open;
        const sink = new WritableStream({
            write(chunk) { seen.push(chunk); return new Promise((resolve) => { open = resolve; }); },
            close() { seen.push("close"); },
        }, { highWaterMark: 2 });
        const writer = sink.getWriter();
        seen.push(writer.desiredSize);
        const first = writer.write("a");
        writer.write("b");
        seen.push(writer.desiredSize);
        let ready = false;
        writer.ready.then(() => { ready = true; });
        await null; await null; await null; await null;
        seen.push(ready);
        open();
        await first;
        await writer.ready;
        seen.push(ready, writer.desiredSize);
        await null;
        open();
        await writer.close();
        seen.push(await writer.write("c").catch((error) => error.message), await writer.closed.then(() => "closed"));

        const aborted = new WritableStream({ abort(reason) { seen.push(["abort", reason]); } });
        const other = aborted.getWriter();
        await other.abort("stop");
        seen.push(await other.closed.catch((reason) => reason), await other.write(1).catch((reason) => reason));
        const failing = new WritableStream({ write() { throw new RangeError("full"); } }).getWriter();
        seen.push(await failing.write(1).catch((error) => error.message), await failing.closed.catch((error) => error.message));
        return seen;"#,
    )
    .await;
    assert_eq!(
        seen,
        json!([
            2,
            0,
            "a",
            false,
            "b",
            true,
            1,
            "close",
            "the stream is closed or being closed",
            "closed",
            ["abort", "stop"],
            "stop",
            "stop",
            "full",
            "full",
        ])
    );
}

#[tokio::test]
async fn pipes_pass_on_chunks_ends_and_errors() {
    let seen = answer(
        &Bench::new(),
        r#"
        const seen = [];
        const into = (list) => new WritableStream({ write(chunk) { list.push(chunk); }, close() { list.push("end"); }, abort(reason) { list.push(["abort", reason.message]); } });
        const upper = () => new TransformStream({
            transform(chunk, c) { c.enqueue(chunk.toUpperCase()); c.enqueue("-"); },
            flush(c) { c.enqueue("flushed"); },
        });
        const plain = [];
        await ReadableStream.from(["a", "b"]).pipeThrough(upper()).pipeTo(into(plain));
        const kept = [];
        await ReadableStream.from([1]).pipeTo(into(kept), { preventClose: true });
        const broken = [];
        const source = new ReadableStream({ start(c) { c.enqueue(1); }, pull(c) { c.error(new Error("torn")); } });
        seen.push(await source.pipeTo(into(broken)).catch((error) => error.message));
        let cancelled;
        const endless = new ReadableStream({ pull(c) { c.enqueue(1); }, cancel(reason) { cancelled = reason.message; } });
        seen.push(await endless.pipeTo(new WritableStream({ write() { throw new Error("full"); } })).catch((error) => error.message), cancelled);
        const controller = new AbortController();
        const stopped = [];
        const piping = new ReadableStream().pipeTo(into(stopped), { signal: controller.signal });
        controller.abort(new Error("enough"));
        seen.push(await piping.catch((error) => error.message));
        const thrown = ReadableStream.from(["x"]).pipeThrough(new TransformStream({ transform() { throw new Error("bad"); } }));
        seen.push(await thrown.getReader().read().catch((error) => error.message));
        const text = ReadableStream.from(["gr", "ü", "ße \ud83d", "\ude00"]).pipeThrough(new TextEncoderStream());
        const bytes = [];
        for await (const chunk of text) bytes.push(...chunk);
        const single = ReadableStream.from(bytes.map((byte) => new Uint8Array([byte]))).pipeThrough(new TextDecoderStream());
        let decoded = "";
        for await (const chunk of single) decoded += chunk;
        const cut = new TransformStream({ transform(chunk, c) { c.enqueue(chunk); c.terminate(); } });
        const few = [];
        for await (const chunk of ReadableStream.from([1, 2, 3]).pipeThrough(cut)) few.push(chunk);
        return [plain, kept, broken, stopped, ...seen, decoded, few];"#,
    )
    .await;
    assert_eq!(
        seen,
        json!([
            ["A", "-", "B", "-", "flushed", "end"],
            [1],
            [1, ["abort", "torn"]],
            [["abort", "enough"]],
            "torn",
            "full",
            "full",
            "enough",
            "bad",
            "grüße 😀",
            [1],
        ])
    );
}

#[tokio::test]
async fn a_returned_stream_is_sent_whole() {
    let bench = Bench::new();
    let source = r#"
        export default async (event) => {
            const stream = new ReadableStream({
                async pull(c) {
                    await new Promise((resolve) => setTimeout(resolve, 1));
                    this.n = (this.n ?? 0) + 1;
                    if (this.n > 3) c.close(); else c.enqueue(new TextEncoder().encode(`part ${this.n}\n`));
                },
            });
            return new Response(stream, { status: 201, headers: { "content-type": "text/plain" } });
        };"#;
    let program = bench.prepare(&graph("f.js", source)).await.unwrap();
    let Ok(Reply::Http(response)) = bench.run(&program, call("")).await.result else { panic!() };
    assert_eq!((response.status, &response.body[..]), (201, &b"part 1\npart 2\npart 3\n"[..]));
}

#[tokio::test]
async fn a_stream_that_fails_or_never_ends_fails_the_invocation() {
    let bench = Bench::new();
    let error = failure(
        &bench,
        "return new Response(new ReadableStream({\n pull() {\n  throw new RangeError('dry'); } }));",
    )
    .await;
    let RunError::Failed { message, location, .. } = &error else { panic!("{error:?}") };
    assert_eq!(message, "RangeError: dry");
    assert!(location.as_deref().is_some_and(|at| at.starts_with("f.js:4:")), "{location:?}");
    let error = failure(&bench, "return new Response(ReadableStream.from(['text']));").await;
    assert_eq!(
        error.to_string().lines().next().unwrap(),
        "TypeError: a body's stream must give bytes (Uint8Array), not a string; pipe it through a TextEncoderStream"
    );
    let error = failure_within(
        &bench,
        "return new Response(new ReadableStream({ async pull(c) { c.enqueue(new Uint8Array(0)); } }));",
        Limits { timeout: Duration::from_millis(500), ..Limits::default() },
    )
    .await;
    assert!(matches!(error, RunError::TimedOut { .. }), "{error:?}");
    let error = failure(&bench, "return new Response(new ReadableStream());").await;
    assert_eq!(error, RunError::NeverSettles);
    let error =
        failure(&bench, "const r = new Response(new ReadableStream()); r.body.getReader(); return r;")
            .await;
    assert!(matches!(&error, RunError::InvalidReply { reason } if reason.contains("locked")), "{error:?}");
    assert!(
        bench.record().logs.is_empty(),
        "none of it is an unhandled rejection: {:?}",
        bench.record().logs
    );
}
