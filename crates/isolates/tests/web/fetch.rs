//! `fetch`, with a host that answers with what it was asked.

use edgefaas_isolates::{HttpResponse, Limits, Reply, RunError};
use serde_json::json;

use super::{answer, failure};
use crate::support::{Bench, call, graph};

#[tokio::test]
async fn requests_carry_what_they_were_given() {
    let seen = answer(
        &Bench::new(),
        r#"
        const form = new FormData();
        form.append("a", "1");
        form.append("f", new File(["xyz"], "x.txt", { type: "text/plain" }));
        const show = async (...request) => {
            const response = await fetch(...request);
            const h = response.headers;
            return [h.get("x-method"), h.get("content-type"), await response.text(), h.get("x-redirect"), response.url];
        };
        const shown = await Promise.all([
            show("http://h/plain#part"),
            show(new URL("http://h/url"), { method: "post", body: "text", redirect: "manual" }),
            show(new Request("http://h/request", { method: "PUT", headers: { "Content-Type": "a/b" }, body: "x" }), { redirect: "error" }),
            show("http://h/params", { method: "POST", body: new URLSearchParams({ q: "a b" }) }),
            show("http://h/bytes", { method: "PATCH", body: new Uint8Array([104, 105]) }),
            show("http://h/blob", { method: "POST", body: new Blob(["blob"], { type: "image/png" }) }),
            show("http://h/stream", { method: "POST", body: ReadableStream.from(["st", "ream"]).pipeThrough(new TextEncoderStream()), duplex: "half" }),
        ]);
        const sent = await fetch("http://h/form", { method: "POST", body: form });
        const parsed = await sent.formData();
        const file = parsed.get("f");
        return [...shown, [parsed.get("a"), file.name, file.type, await file.text()]];"#,
    )
    .await;
    assert_eq!(
        seen,
        json!([
            ["GET", null, "", "Follow", "http://h/plain"],
            ["POST", "text/plain;charset=UTF-8", "text", "Manual", "http://h/url"],
            ["PUT", "a/b", "x", "Error", "http://h/request"],
            [
                "POST",
                "application/x-www-form-urlencoded;charset=UTF-8",
                "q=a+b",
                "Follow",
                "http://h/params"
            ],
            ["PATCH", null, "hi", "Follow", "http://h/bytes"],
            ["POST", "image/png", "blob", "Follow", "http://h/blob"],
            ["POST", null, "stream", "Follow", "http://h/stream"],
            ["1", "x.txt", "text/plain", "xyz"],
        ])
    );
}

#[tokio::test]
async fn a_response_tells_where_it_came_from() {
    let bench = Bench::new();
    let seen = answer(
        &bench,
        r#"
        const moved = await fetch("http://h/moved/there", { method: "POST", body: "b" });
        const missing = await fetch("http://h/status/404");
        const empty = await fetch("http://h/status/204");
        let fixed;
        try { moved.headers.set("a", "b"); } catch (error) { fixed = error.constructor.name; }
        const own = new Response(moved.body, moved);
        own.headers.set("a", "b");
        return [
            [moved.ok, moved.redirected, moved.url, moved.type, moved.bodyUsed, fixed, own.headers.get("a"), await own.text()],
            [missing.ok, missing.status, missing.redirected],
            [empty.status, empty.body, await empty.text()],
        ];"#,
    )
    .await;
    assert_eq!(
        seen,
        json!([
            [true, true, "http://h/there", "basic", false, "TypeError", "b", "b"],
            [false, 404, false],
            [204, null, ""],
        ])
    );
    let program = bench
        .prepare(&graph(
            "f.js",
            "export default { fetch: (request) => fetch('http://h/status/201', request) };",
        ))
        .await
        .unwrap();
    let Ok(Reply::Http(HttpResponse { status, body, .. })) = bench.run(&program, call("data")).await.result
    else {
        panic!("a fetched Response can be returned")
    };
    assert_eq!((status, &body[..]), (201, &b"data"[..]));
}

#[tokio::test]
async fn requests_overlap_and_can_be_aborted() {
    let bench = Bench::new();
    let seen = answer(
        &bench,
        r#"
        const met = await Promise.all([fetch("http://h/meet/1"), fetch("http://h/meet/2")]);
        const controller = new AbortController();
        const order = [];
        const ends = [
            fetch("http://h/never/1", { signal: controller.signal }),
            fetch(new Request("http://h/never/2", { signal: controller.signal })),
            fetch("http://h/never/3", { signal: AbortSignal.any([AbortSignal.timeout(1e6), controller.signal]) }),
            fetch("http://h/never/4", { signal: AbortSignal.timeout(1) }),
            fetch("http://h/never/5", { signal: AbortSignal.abort() }),
            fetch("http://h/never/6", { method: "POST", body: new ReadableStream({ cancel(reason) { order.push(reason.message); } }), signal: controller.signal }),
        ];
        controller.signal.onabort = (event) => order.push(event.type, event.target === controller.signal);
        controller.abort(new RangeError("enough"));
        controller.abort("again");
        const seen = [];
        for (const end of ends) {
            await end.catch((error) => seen.push(`${error.name}: ${error.message}`));
        }
        return [met.map((response) => response.status), seen, order];"#,
    )
    .await;
    assert_eq!(
        seen,
        json!([
            [200, 200],
            [
                "RangeError: enough",
                "RangeError: enough",
                "RangeError: enough",
                "TimeoutError: The operation timed out",
                "AbortError: This operation was aborted",
                "RangeError: enough",
            ],
            ["enough", "abort", true],
        ])
    );
    assert_eq!(bench.record().fetching, 0, "an aborted request is dropped");
}

#[tokio::test]
async fn what_fails_says_why() {
    let bench = Bench::new();
    let seen = answer(
        &bench,
        r#"
        const seen = [];
        const used = new Request("http://h/p", { method: "POST", body: "x" });
        await fetch(used);
        for (const attempt of [
            () => fetch("http://h/fail"), () => fetch("http://forbidden/"), () => fetch("/path"), () => fetch(),
            () => fetch("ftp://h/x"), () => fetch("http://user:pw@h/"), () => fetch("http://h/p", { body: "x" }),
            () => fetch("http://h/p", { method: "a b" }), () => fetch("http://h/p", { method: "TRACE" }),
            () => fetch("http://h/p", { redirect: "maybe" }), () => fetch("http://h/p", { signal: 1 }),
            () => fetch("http://h/p", { headers: { "a b": "c" } }), () => fetch("http://h/p", { headers: { a: "€" } }),
            () => fetch(used),
        ]) {
            await attempt().then(() => seen.push("sent"), (error) => {
                seen.push([error instanceof TypeError, error.message, error.code ?? null, error.cause?.message ?? null]);
            });
        }
        return [used.bodyUsed, ...seen];"#,
    )
    .await;
    let plain = |message: &str| json!([true, message, null, null]);
    assert_eq!(
        seen,
        json!([
            true,
            [true, "fetch failed: connection refused", "Failed", "connection refused"],
            [
                true,
                "fetch failed: not permitted: fetch forbidden",
                "NotPermitted",
                "not permitted: fetch forbidden"
            ],
            plain("Invalid URL: \"/path\"; it has to be absolute, such as https://example.com/path"),
            plain("fetch: the URL is missing"),
            plain("fetch: \"ftp\" cannot be fetched; the URL has to begin with http: or https:"),
            plain("a request's URL has no user name or password; use the header authorization"),
            plain("a GET request has no body"),
            plain("invalid method: \"a b\""),
            plain("the method TRACE is not allowed"),
            plain("redirect is \"maybe\"; it can be follow, error, manual"),
            plain("signal is 1, not an AbortSignal"),
            plain("invalid header name: \"a b\""),
            plain(
                "invalid header value: it has a character outside of Latin-1; encodeURIComponent makes it fit"
            ),
            plain("the body has been read already; use clone() before reading it twice"),
        ])
    );
    let error = failure(&bench, "\n  await fetch('http://h/fail');").await;
    let RunError::Failed { message, location, stack } = error else { panic!("{error:?}") };
    assert_eq!(message, "TypeError: fetch failed: connection refused");
    assert!(location.as_deref().is_some_and(|at| at.starts_with("f.js:3:")), "{location:?}");
    assert!(!stack.unwrap().contains("edgefaas:"));
}

#[tokio::test]
async fn too_many_requests_at_once_are_refused() {
    let bench = Bench::new();
    let seen = answer(
        &bench,
        r#"
        const controller = new AbortController();
        const ends = Array.from({ length: 5000 }, () => fetch("http://h/never", { signal: controller.signal }).catch((error) => error));
        await null;
        controller.abort();
        const seen = {};
        for (const error of await Promise.all(ends)) {
            const key = `${error.name} ${error.code} ${error.message}`;
            seen[key] = (seen[key] ?? 0) + 1;
        }
        return seen;"#,
    )
    .await;
    assert_eq!(
        seen,
        json!({
            "AbortError 20 This operation was aborted": 1024,
            "TypeError Overloaded fetch failed: overloaded: 1024 calls and timers are under way already; \
             await some of them first": 3976,
        })
    );
    assert_eq!(bench.record().fetching, 0);
}

#[tokio::test]
async fn a_large_body_comes_in_pieces() {
    let bench = Bench::new();
    let seen = answer(
        &bench,
        r#"
        const check = async (kind) => {
            const bytes = await (await fetch(`http://h/${kind}/30`)).bytes();
            return [bytes.length, [0, 99999, 100000, 2999999].map((at) => bytes[at])];
        };
        const seen = await Promise.all([check("sized"), check("chunked"), check("sized")]);
        const controller = new AbortController();
        const aborted = fetch("http://h/sized/200", { signal: controller.signal }).catch((error) => error.name);
        setTimeout(() => controller.abort(), 0);
        return [...seen, await aborted];"#,
    )
    .await;
    let body = json!([3_000_000, [0, 0, 1, 29]]);
    assert_eq!(seen, json!([body, body, body, "AbortError"]));
    let error = failure(&bench, "await fetch('http://h/broken/30');").await;
    assert_eq!(error.to_string(), "TypeError: fetch failed: connection lost");
}

#[tokio::test]
async fn a_body_takes_the_memory_of_the_function_once() {
    let bench = Bench::new();
    let source = r#"export default async () => {
        const lengths = [];
        for (let i = 0; i < 4; i++) lengths.push((await (await fetch("http://h/sized/200")).bytes()).length);
        return lengths;
    };"#;
    let program = bench.prepare(&graph("f.js", source)).await.unwrap();
    let limits = Limits { memory_bytes: 32 << 20, ..Limits::default() };
    let seen = crate::json(bench.run_within(&program, call(""), limits).await.result);
    assert_eq!(seen, json!([20_000_000, 20_000_000, 20_000_000, 20_000_000]));
    let source = r#"export default async () => {
        const error = await fetch("http://h/sized/250").catch((error) => error);
        return [error.name, error.code, error.message, (await (await fetch("http://h/sized/1")).bytes()).length];
    };"#;
    let program = bench.prepare(&graph("f.js", source)).await.unwrap();
    let limits = Limits { memory_bytes: 16 << 20, ..Limits::default() };
    let seen = crate::json(bench.run_within(&program, call(""), limits).await.result);
    assert_eq!(
        seen,
        json!([
            "TypeError",
            "Failed",
            "fetch failed: the function's memory has no room for the 25000000 bytes of the answer's body; raise \
             limits.memory",
            100_000
        ])
    );
}

#[tokio::test]
async fn nothing_is_fetched_at_deploy() {
    let bench = Bench::new();
    let source = "await fetch('http://h/p'); export default () => 1;";
    let error = bench.prepare(&graph("f.js", source)).await.err().unwrap().to_string();
    assert!(
        error.contains("f.js:1:") && error.contains("fetch is not available while top-level code runs"),
        "{error}"
    );
}
