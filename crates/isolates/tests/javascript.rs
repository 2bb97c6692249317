//! JavaScript and TypeScript functions on the real engine.

mod many;
mod objects;
mod packages;
mod support;
mod web;

use std::time::{Duration, Instant};

use bytes::Bytes;
use edgefaas_isolates::engine::PoolConfig;
use edgefaas_isolates::js::PrepareError;
use edgefaas_isolates::{
    Compiler, CronTick, Event, FunctionSource, HostError, HttpRequest, Isolates, IsolatesConfig, Isolation,
    Limits, LogLevel, MqttMessage, Preparing, Reply, RunError, Trigger,
};
use edgefaas_platform::Clock;
use support::{Bench, WALL_UNIX_MS, call, graph, http, json, mqtt, text};

#[tokio::test]
async fn every_kind_of_reply() {
    let bench = Bench::new();
    let source = r#"
        export default (event) => {
            switch (event.text()) {
                case "object": return { a: 1, b: [true, null] };
                case "number": return 4.5;
                case "string": return "grüße";
                case "bytes": return new Uint8Array([1, 2, 255]);
                case "buffer": return new Uint8Array([7, 8]).buffer;
                case "response": return new Response("hi", { status: 201, headers: { "X-A": "b" } });
                case "json-response": return Response.json({ ok: true });
                case "undefined": return undefined;
                case "null": return null;
                case "function": return () => 1;
                case "surrogate": return "a\ud800b";
            }
        };"#;
    let program = bench.prepare(&graph("f.js", source)).await.unwrap();
    let mut replies = Vec::new();
    for what in ["object", "number", "string", "bytes", "buffer", "undefined", "null", "surrogate"] {
        replies.push(bench.run(&program, call(what)).await.result.unwrap());
    }
    assert_eq!(
        replies,
        [
            Reply::Json(r#"{"a":1,"b":[true,null]}"#.into()),
            Reply::Json("4.5".into()),
            Reply::Text("grüße".into()),
            Reply::Bytes(Bytes::from_static(&[1, 2, 255])),
            Reply::Bytes(Bytes::from_static(&[7, 8])),
            Reply::None,
            Reply::None,
            Reply::Text("a\u{fffd}b".into()),
        ]
    );
    let Ok(Reply::Http(response)) = bench.run(&program, call("response")).await.result else { panic!() };
    assert_eq!((response.status, &response.body[..]), (201, &b"hi"[..]));
    assert!(response.headers.contains(&("x-a".into(), "b".into())));
    assert!(response.headers.contains(&("content-type".into(), "text/plain;charset=UTF-8".into())));
    let Ok(Reply::Http(response)) = bench.run(&program, call("json-response")).await.result else {
        panic!()
    };
    assert_eq!(&response.body[..], br#"{"ok":true}"#);
    let refused = bench.run(&program, call("function")).await.result.unwrap_err();
    assert!(
        matches!(&refused, RunError::InvalidReply { reason } if reason.contains("function")),
        "{refused:?}"
    );
}

#[tokio::test]
async fn an_event_brings_what_its_kind_has() {
    let bench = Bench::new();
    let source = r#"
        export default async function handler(event, context) {
            const { kind } = event;
            const common = { kind, id: context.invocationId, name: context.function, deadline: context.deadline };
            if (kind === "http") {
                return { ...common, method: event.method, path: event.path, query: event.query,
                    type: event.headers.get("Content-Type"), names: [...event.headers.keys()], body: event.json() };
            }
            if (kind === "mqtt") {
                const p = event.properties;
                return { ...common, topic: event.topic, qos: event.qos, retain: event.retain, body: event.text(),
                    properties: { ...p, correlationData: [...p.correlationData] } };
            }
            if (kind === "cron") return { ...common, schedule: event.schedule, at: event.scheduledTime, topic: event.topic };
            return { ...common, caller: event.caller, bytes: [...event.bytes()] };
        }"#;
    let program = bench.prepare(&graph("f.js", source)).await.unwrap();
    let request = HttpRequest {
        method: "PUT".into(),
        path: "/a/b".into(),
        query: "x=1".into(),
        headers: vec![("content-type".into(), "application/json".into()), ("accept".into(), "*/*".into())],
    };
    let event = Event { trigger: Trigger::Http(request), body: Bytes::from_static(b"{\"t\": 21.5}") };
    let seen = json(bench.run(&program, event).await.result);
    assert_eq!(
        seen,
        serde_json::json!({
            "kind": "http", "id": "inv-1", "name": "test", "deadline": 1_900_000_000_000_u64,
            "method": "PUT", "path": "/a/b", "query": "x=1", "type": "application/json",
            "names": ["accept", "content-type"], "body": { "t": 21.5 },
        })
    );
    let message = MqttMessage {
        topic: "a/b".into(),
        qos: 1,
        retain: true,
        content_type: Some("text/plain".into()),
        response_topic: Some("r".into()),
        correlation_data: Some(Bytes::from_static(&[9, 8])),
        user_properties: vec![("k".into(), "v".into()), ("k".into(), "w".into())],
    };
    let event = Event { trigger: Trigger::Mqtt(message), body: Bytes::from_static(b"warm") };
    let seen = json(bench.run(&program, event).await.result);
    assert_eq!(seen["topic"], "a/b");
    assert_eq!(
        (seen["qos"].as_u64(), seen["retain"].as_bool(), seen["body"].as_str()),
        (Some(1), Some(true), Some("warm"))
    );
    assert_eq!(
        seen["properties"],
        serde_json::json!({
            "contentType": "text/plain", "responseTopic": "r", "correlationData": [9, 8],
            "userProperties": [["k", "v"], ["k", "w"]],
        })
    );
    let tick = CronTick { schedule: "*/5 * * * *".into(), scheduled_unix_ms: 1_700_000_000_123 };
    let seen =
        json(bench.run(&program, Event { trigger: Trigger::Cron(tick), body: Bytes::new() }).await.result);
    assert_eq!(
        (seen["schedule"].as_str(), seen["at"].as_u64()),
        (Some("*/5 * * * *"), Some(1_700_000_000_123))
    );
    assert!(seen.get("topic").is_none());
    let seen = json(bench.run(&program, call("ab")).await.result);
    assert_eq!(seen["bytes"], serde_json::json!([97, 98]));
}

#[tokio::test]
async fn the_object_form_gets_requests_messages_and_ticks() {
    let bench = Bench::new();
    let source = r#"
        export default {
            async fetch(request, env, ctx) {
                const url = new URL(request.url);
                ctx.waitUntil((async () => { await new Promise((r) => setTimeout(r, 5)); ctx.log.info("after"); })());
                return new Response(`${request.method} ${url.pathname} ${url.searchParams.get("q")} ${await request.text()} ${env.GREETING} ${env.API_KEY}`);
            },
            async message(msg, env) { await env.publish("out", { seen: msg.topic }); },
            scheduled(event, env, ctx) { return event.cron; },
        };"#;
    let program = bench.prepare(&graph("f.js", source)).await.unwrap();
    let event = http("POST", "/p", "q=%C3%A4", "body");
    let Ok(Reply::Http(response)) = bench.run(&program, event).await.result else { panic!() };
    assert_eq!(&response.body[..], "POST /p ä body hello s3cret".as_bytes());
    assert!(bench.record().logs.contains(&(LogLevel::Info, "after".into())), "waitUntil is waited for");
    assert_eq!(bench.run(&program, mqtt("in/1", "")).await.result.unwrap(), Reply::None);
    let published = bench.record().published.pop().unwrap();
    assert_eq!((published.topic.as_str(), &published.payload[..]), ("out", &br#"{"seen":"in/1"}"#[..]));
    let tick = CronTick { schedule: "@hourly".into(), scheduled_unix_ms: 0 };
    let event = Event { trigger: Trigger::Cron(tick), body: Bytes::new() };
    assert_eq!(text(bench.run(&program, event).await.result), "@hourly");
    let Ok(Reply::Http(called)) = bench.run(&program, call("data")).await.result else { panic!() };
    assert_eq!(&called.body[..], b"POST / null data hello s3cret", "a call of an HTTP function is a POST");

    let program = bench
        .prepare(&graph("f.js", "export default { fetch() { return new Response() } }"))
        .await
        .unwrap();
    let error = bench.run(&program, mqtt("t", "")).await.result.unwrap_err();
    assert!(error.to_string().contains("no message() to handle this mqtt event"), "{error}");
}

#[tokio::test]
async fn host_calls_reach_the_host() {
    let bench = Bench::new();
    let source = r#"
        export default async (event, context) => {
            await context.publish("t/text", "hello");
            await context.publish("t/bytes", new Uint8Array([1, 2]), { qos: 1, retain: true });
            await context.publish("t/json", { a: 1 }, {
                contentType: "application/json", responseTopic: "r", correlationData: "c", userProperties: { k: "v" } });
            const counter = context.object("greenhouse").counter("visits");
            await counter.add();
            await counter.add(4);
            counter.add(-1);
            const register = context.object("greenhouse").register("last");
            const before = await register.get();
            await register.set({ t: 21 });
            context.log.warn("careful", { a: [1, "x"] }, new Error("e"));
            console.log("plain");
            return { before, count: await counter.value(), last: await register.get(),
                config: context.config, secrets: Object.keys(context.secrets), key: context.secrets.API_KEY };
        };"#;
    let program = bench.prepare(&graph("f.js", source)).await.unwrap();
    let seen = json(bench.run(&program, call("")).await.result);
    assert_eq!(
        seen,
        serde_json::json!({
            "count": 4, "last": { "t": 21 }, "config": { "GREETING": "hello", "limit": 3 },
            "secrets": ["API_KEY"], "key": "s3cret",
        })
    );
    let record = bench.record();
    let topics: Vec<_> = record.published.iter().map(|message| message.topic.as_str()).collect();
    assert_eq!(topics, ["t/text", "t/bytes", "t/json"]);
    assert_eq!((record.published[1].qos, record.published[1].retain), (1, true));
    let full = &record.published[2];
    assert_eq!(
        (&full.payload[..], full.content_type.as_deref()),
        (&br#"{"a":1}"#[..], Some("application/json"))
    );
    assert_eq!(
        (full.response_topic.as_deref(), full.correlation_data.as_deref()),
        (Some("r"), Some(&b"c"[..]))
    );
    assert_eq!(full.user_properties, [("k".to_owned(), "v".to_owned())]);
    assert_eq!(record.logs[0].0, LogLevel::Warn);
    assert!(record.logs[0].1.starts_with("careful { a: [ 1, 'x' ] } Error: e\n"), "{}", record.logs[0].1);
    assert!(record.logs[0].1.contains("f.js:14:"), "{}", record.logs[0].1);
    assert_eq!(record.logs[1], (LogLevel::Info, "plain".to_owned()));
}

#[tokio::test]
async fn a_refused_call_can_be_caught_and_names_its_place() {
    let bench = Bench::new();
    let source = r#"
        export default async (event, context) => {
            const seen = [];
            for (const attempt of [
                () => context.publish("forbidden", "x"),
                () => context.call("forbidden"),
                () => context.call("missing"),
                () => context.object("forbidden").counter("c").add(1),
            ]) {
                try { await attempt(); } catch (error) { seen.push([error instanceof Error, error.code, error.message]); }
            }
            if (event.text() === "throw") await context.publish("forbidden", "x");
            return seen;
        };"#;
    let program = bench.prepare(&graph("f.js", source)).await.unwrap();
    let seen = json(bench.run(&program, call("")).await.result);
    assert_eq!(
        seen,
        serde_json::json!([
            [true, "NotPermitted", "not permitted: publish forbidden"],
            [true, "NotPermitted", "not permitted: call forbidden"],
            [true, "NotFound", "not found: missing"],
            [true, "NotPermitted", "not permitted: object forbidden"],
        ])
    );
    let error = bench.run(&program, call("throw")).await.result.unwrap_err();
    let RunError::Failed { message, location, .. } = error else { panic!("{error:?}") };
    assert_eq!(message, "Error: not permitted: publish forbidden");
    assert!(location.as_deref().is_some_and(|at| at.starts_with("f.js:12:")), "{location:?}");
}

#[tokio::test]
async fn names_are_text_that_others_can_read() {
    let bench = Bench::new();
    let source = r#"
        export default async (event, context) => {
            const seen = [];
            for (const attempt of [
                () => context.object("").counter("c").add(1),
                () => context.object(undefined).counter("c").add(1),
                () => context.object("a\ud800").counter("c").add(1),
                () => context.object("o").counter("c\udc00").add(1),
                () => context.object("o").map("m").counter("\ud800").add(1),
            ]) {
                try { await attempt(); seen.push(null); } catch (error) { seen.push(error.message); }
            }
            const register = context.object("greenhouse").register("last");
            await register.set({ "\ud800": ["\udfff", "\u{1f600}", "\\\\ud800"] });
            return { seen, last: await register.get() };
        };"#;
    let program = bench.prepare(&graph("f.js", source)).await.unwrap();
    let answer = json(bench.run(&program, call("")).await.result);
    let seen: Vec<_> =
        answer["seen"].as_array().unwrap().iter().map(|text| text.as_str().unwrap()).collect();
    assert!(seen[0].contains("1 to 255 bytes"), "{seen:?}");
    assert!(seen[1].contains("a name is text, not undefined"), "{seen:?}");
    assert!(seen[2..].iter().all(|text| text.contains("lone surrogates")), "{seen:?}");
    let expected = serde_json::json!({ "\u{fffd}": ["\u{fffd}", "\u{1f600}", "\\\\ud800"] });
    assert_eq!(answer["last"], expected);
}

#[tokio::test]
async fn calls_overlap() {
    let bench = Bench::new();
    // "meet" answers once two of its calls are under way.
    let source = r#"
        export default async (event, { call }) => Promise.all([call("meet", "a"), call("meet", { b: 1 })]);"#;
    let program = bench.prepare(&graph("f.js", source)).await.unwrap();
    let seen = json(bench.run(&program, call("")).await.result);
    assert_eq!(seen, serde_json::json!(["a", "{\"b\":1}"]));

    let source = r#"
        export default async (event, { call }) => {
            const shape = async (name) => {
                const value = await call("echo-" + name, "[1]");
                if (value instanceof Response) return ["response", value.status, value.headers.get("x"), await value.text()];
                return value instanceof Uint8Array ? ["bytes", ...value] : [typeof value, value];
            };
            return Promise.all(["json", "text", "bytes", "http", "none"].map(shape));
        };"#;
    let program = bench.prepare(&graph("f.js", source)).await.unwrap();
    let seen = json(bench.run(&program, call("")).await.result);
    let expected = serde_json::json!([
        ["object", [1]],
        ["string", "[1]"],
        ["bytes", 91, 49, 93],
        ["response", 418, "y", "[1]"],
        ["undefined", null],
    ]);
    assert_eq!(seen, expected);
}

/// Many calls at once leave many places of the pool that hold memory for the next one; it goes with the program.
#[tokio::test]
async fn what_the_pool_keeps_for_a_function_goes_with_its_program() {
    let bench = Bench::new();
    let config = IsolatesConfig {
        pool: PoolConfig { max_isolates: 20, ..PoolConfig::default() },
        compiler: Compiler::InProcess,
        code_cache: None,
        clock: Clock::new(|| WALL_UNIX_MS),
    };
    let isolates = Isolates::new(&config).unwrap();
    let source = "export default async () => { await new Promise((done) => setTimeout(done, 50)); return [...Array(1000).keys()]; }";
    let source = FunctionSource::JavaScript(graph("f.js", source));
    let wanted = || Preparing {
        name: "f",
        owner: "f",
        source: &source,
        assets: &[],
        memory_bytes: Limits::default().memory_bytes,
        isolation: Isolation::Fresh,
        anew: true,
    };
    let program = isolates.prepare(wanted()).await.unwrap();
    let run = || isolates.run(&program, &bench.meta, call(""), Limits::default(), bench.host());
    run().await.result.unwrap();
    let kept_for_one = isolates.kept_bytes();
    for completion in futures_util::future::join_all((0..10).map(|_| run())).await {
        completion.result.unwrap();
    }
    let kept = isolates.kept_bytes();
    if wasmtime::PoolingAllocationConfig::is_pagemap_scan_available() {
        // Some of the ten wait for the next invocation.
        assert!(kept > 3 * kept_for_one && kept_for_one > 0, "{kept} bytes, for one {kept_for_one}");
    }
    drop(program);
    let left = isolates.kept_bytes();
    assert!(left == 0 || left <= kept / 4, "{left} bytes of {kept}: those of the engine");
    let program = isolates.prepare(wanted()).await.unwrap();
    let completion = isolates.run(&program, &bench.meta, call(""), Limits::default(), bench.host()).await;
    completion.result.unwrap();
}

#[tokio::test]
async fn performance_counts_from_the_begin_of_the_invocation() {
    let bench = Bench::new();
    let source = r#"
        export default async () => {
            const first = performance.now();
            await new Promise((resolve) => setTimeout(resolve, 20));
            const second = performance.now();
            return { first, second, apart: Date.now() - (performance.timeOrigin + performance.now()),
                origin: performance.timeOrigin };
        };"#;
    let program = bench.prepare(&graph("f.js", source)).await.unwrap();
    for hours in 1..=2 {
        let wall = WALL_UNIX_MS + hours * 3_600_000;
        bench.set_wall(wall);
        let seen = json(bench.run(&program, call("")).await.result);
        let number = |name: &str| seen[name].as_f64().unwrap();
        assert!(number("first") >= 0.0 && number("second") >= number("first") + 19.0, "{seen}");
        assert!(number("apart").abs() <= 2.0, "{seen}");
        // It is that of this invocation, not of the snapshot.
        let since_wall = number("origin") - wall as f64;
        assert!((-1.0..60_000.0).contains(&since_wall), "{seen}");
    }
}

#[tokio::test]
async fn timers_run_and_can_be_cleared() {
    let bench = Bench::new();
    let source = r#"
        export default async (event) => {
            const seen = [];
            const hour = setTimeout(() => seen.push("never"), 3600_000);
            setTimeout((x) => seen.push(x), 20, "late");
            setTimeout(() => seen.push("early"), 1);
            queueMicrotask(() => seen.push("micro"));
            let ticks = 0;
            const interval = setInterval(() => { seen.push("tick"); if (++ticks === 2) clearInterval(interval); }, 1);
            clearTimeout(hour);
            await new Promise((resolve) => setTimeout(resolve, 60));
            return seen.sort();
        };"#;
    let program = bench.prepare(&graph("f.js", source)).await.unwrap();
    let seen = json(bench.run(&program, call("")).await.result);
    assert_eq!(seen, serde_json::json!(["early", "late", "micro", "tick", "tick"]));
}

#[tokio::test]
async fn a_promise_that_nothing_can_settle_is_reported_at_once() {
    let bench = Bench::new();
    for source in [
        "export default () => new Promise(() => {});",
        "export default async () => { clearTimeout(setTimeout(() => {}, 1e6)); await new Promise(() => {}); };",
        "export default async () => { setTimeout(() => {}, 1); await new Promise(() => {}); };",
    ] {
        let program = bench.prepare(&graph("f.js", source)).await.unwrap();
        let began = Instant::now();
        assert_eq!(bench.run(&program, call("")).await.result, Err(RunError::NeverSettles));
        assert!(began.elapsed() < Duration::from_secs(20), "it does not wait for the deadline");
    }
}

#[tokio::test]
async fn errors_name_the_users_file_and_line() {
    let bench = Bench::new();
    let files = [
        (
            "functions/comfort.ts",
            "import { check } from './lib/check';\n\
             interface Reading {\n  temperature: number;\n}\n\
             enum Level { Low = 1, High = 2 }\n\
             export default async function handler(event: { json(): Reading }): Promise<object> {\n\
             \x20 const reading = event.json() as Reading;\n\
             \x20 await null;\n\
             \x20 return { level: Level[check(reading.temperature)] };\n}\n",
        ),
        (
            "functions/lib/check.ts",
            "export type Limit = number;\n\n\
             export function check(t: number, limit: Limit = 30): number {\n\
             \x20 if (t > limit) {\n\
             \x20   throw new RangeError(`too hot: ${t}`);\n  }\n  return 1;\n}\n",
        ),
    ];
    let graph =
        support::files(&files, &[("functions/comfort.ts", "./lib/check", "functions/lib/check.ts")]);
    let program = bench.prepare(&graph).await.unwrap();
    assert_eq!(json(bench.run(&program, call("{\"temperature\": 20}")).await.result)["level"], "Low");
    let error = bench.run(&program, call("{\"temperature\": 99}")).await.result.unwrap_err();
    let RunError::Failed { message, location, stack } = error else { panic!("{error:?}") };
    assert_eq!(message, "RangeError: too hot: 99");
    assert!(
        location.as_deref().is_some_and(|at| at.starts_with("functions/lib/check.ts:5:")),
        "{location:?}"
    );
    let stack = stack.unwrap();
    assert!(stack.contains("handler (functions/comfort.ts:9:"), "{stack}");
    assert!(!stack.contains("edgefaas:"), "the prelude's frames are left out: {stack}");

    let program =
        bench.prepare(&support::graph("g.js", "export default () => {\n  null.x;\n};")).await.unwrap();
    let error = bench.run(&program, call("")).await.result.unwrap_err();
    assert!(
        matches!(&error, RunError::Failed { location: Some(at), .. } if at.starts_with("g.js:2:")),
        "{error:?}"
    );
    for (thrown, shown) in [("'just text'", "just text"), ("{ a: 1 }", r#"the function threw {"a":1}"#)] {
        let source = format!("export default async () => {{ throw {thrown}; }};");
        let program = bench.prepare(&support::graph("h.js", &source)).await.unwrap();
        assert_eq!(bench.run(&program, call("")).await.result.unwrap_err().to_string(), shown);
    }
}

#[tokio::test]
async fn a_rejection_that_nobody_handles_is_logged() {
    let bench = Bench::new();
    let source = r#"
        export default async (event, context) => {
            context.publish("forbidden", "x");
            Promise.reject(new Error("handled later")).catch(() => {});
            setTimeout(() => { throw new Error("in a timer"); }, 1);
            await new Promise((resolve) => setTimeout(resolve, 20));
            return "done";
        };"#;
    let program = bench.prepare(&graph("f.js", source)).await.unwrap();
    assert_eq!(text(bench.run(&program, call("")).await.result), "done");
    let logs = bench.record().logs;
    assert_eq!(logs.len(), 2, "{logs:?}");
    assert!(
        logs[0].1.starts_with("unhandled rejection: Error: not permitted: publish forbidden"),
        "{logs:?}"
    );
    assert!(logs[1].1.contains("in a timer"), "{logs:?}");
}

#[tokio::test]
async fn limits_contain_a_function() {
    let bench = Bench::new();
    let source = r#"
        const deep = (n) => deep(n + 1) + 1;
        export default async (event) => {
            switch (event.text()) {
                case "loop": for (;;) {}
                case "microtasks": for (;;) await null;
                case "sleep": await new Promise((resolve) => setTimeout(resolve, 60_000)); return;
                case "bomb": { const all = []; for (;;) all.push(new Uint8Array(1 << 20)); }
                case "objects": { let list = null; for (;;) list = { list, more: [1, 2, 3] }; }
                case "string": { let s = "x"; for (;;) s += s; }
                case "deep": return deep(0);
                case "caught": try { deep(0); } catch (error) { return `${error.name}: ${error.message}`; }
                case "nested": return JSON.parse("[".repeat(100_000));
                case "regexp": return /(a*)*b/.test("a".repeat(50));
                case "large": return "x".repeat(9 << 20);
                default: return "fine";
            }
        };"#;
    let program = bench.prepare(&graph("f.js", source)).await.unwrap();
    let limits = Limits { timeout: Duration::from_millis(300), ..Limits::default() };
    for what in ["loop", "sleep", "microtasks", "regexp"] {
        let began = Instant::now();
        let result = bench.run_within(&program, call(what), limits).await.result;
        assert_eq!(result, Err(RunError::TimedOut { limit: limits.timeout }), "{what}");
        assert!(began.elapsed() < Duration::from_secs(15), "{what} took {:?}", began.elapsed());
    }
    let roomy = Limits { timeout: Duration::from_secs(20), ..Limits::default() };
    for what in ["bomb", "objects"] {
        let done = bench.run_within(&program, call(what), roomy).await;
        assert_eq!(done.result, Err(RunError::OutOfMemory { limit_bytes: 64 << 20 }), "{what}");
        assert!(done.memory_bytes <= 64 << 20, "{what}");
    }
    let string = bench.run_within(&program, call("string"), roomy).await.result.unwrap_err();
    assert!(matches!(string, RunError::OutOfMemory { .. } | RunError::Failed { .. }), "{string:?}");
    let deep = bench.run(&program, call("deep")).await.result.unwrap_err();
    assert!(
        matches!(&deep, RunError::StackOverflow { location: Some(at) } if at.starts_with("f.js:2:")),
        "{deep:?}"
    );
    assert_eq!(
        text(bench.run(&program, call("caught")).await.result),
        "RangeError: Maximum call stack size exceeded"
    );
    let nested = bench.run(&program, call("nested")).await.result.unwrap_err();
    assert!(matches!(nested, RunError::StackOverflow { .. } | RunError::Failed { .. }), "{nested:?}");
    let large = bench.run(&program, call("large")).await.result;
    assert_eq!(large, Err(RunError::ReplyTooLarge { actual_bytes: 9 << 20, limit_bytes: 8 << 20 }));
    assert_eq!(
        text(bench.run(&program, call("")).await.result),
        "fine",
        "the next invocation is not touched"
    );
}

#[tokio::test]
async fn others_have_their_turn_while_one_computes() {
    let bench = Bench::new();
    let source = "export default (e) => { if (e.text() === 'loop') for (;;) {} return 'quick'; };";
    let program = bench.prepare(&graph("f.js", source)).await.unwrap();
    // It begins first, and computes until the other one has ended.
    let limits = Limits { timeout: Duration::from_secs(8), ..Limits::default() };
    let looping = bench.run_within(&program, call("loop"), limits);
    tokio::select! {
        biased;
        looped = looping => panic!("it ended first: {:?}", looped.result),
        quick = bench.run(&program, call("")) => assert_eq!(text(quick.result), "quick"),
    }
}

#[tokio::test]
async fn invocations_share_top_level_state_but_not_changes() {
    let bench = Bench::new();
    let source = r#"
        const table = new Map([["a", 1]]);
        let count = 0;
        const began = Date.now();
        globalThis.shared = "from deploy";
        export default () => {
            table.set("b", 2);
            globalThis.leak = (globalThis.leak ?? 0) + 1;
            Array.prototype.polluted = (Array.prototype.polluted ?? 0) + 1;
            return { size: table.size, count: ++count, leak, polluted: [].polluted, shared, random: Math.random(),
                now: Date.now(), began, uuid: crypto.randomUUID(), bytes: [...crypto.getRandomValues(new Uint8Array(8))] };
        };"#;
    let program = bench.prepare(&graph("f.js", source)).await.unwrap();
    let wall = WALL_UNIX_MS + 3_600_000;
    bench.set_wall(wall);
    let first = json(bench.run(&program, call("")).await.result);
    let second = json(bench.run(&program, call("")).await.result);
    for seen in [&first, &second] {
        assert_eq!((seen["size"].as_u64(), seen["count"].as_u64()), (Some(2), Some(1)));
        assert_eq!((seen["leak"].as_u64(), seen["polluted"].as_u64()), (Some(1), Some(1)));
        assert_eq!(seen["shared"], "from deploy");
        let (now, began) = (seen["now"].as_u64().unwrap(), seen["began"].as_u64().unwrap());
        assert!((wall..wall + 60_000).contains(&now), "{now}");
        assert!((WALL_UNIX_MS..wall).contains(&began), "{began}");
    }
    for fresh in ["random", "uuid", "bytes"] {
        assert_ne!(first[fresh], second[fresh], "{fresh} is not frozen in the snapshot");
    }
}

#[tokio::test]
async fn web_globals_work() {
    let bench = Bench::new();
    let source = r##"
        export default async () => {
            const url = new URL("../x?b=2&a=1#h", "https://user@Example.com:8443/p/q");
            url.searchParams.append("c", "ä &");
            const headers = new Headers([["A", "1"], ["a", "2"]]);
            const request = new Request("http://h/p", { method: "post", body: new URLSearchParams({ k: "v w" }) });
            const cyclic = { when: new Date(5), set: new Set([1]) };
            cyclic.self = cyclic;
            const clone = structuredClone(cyclic);
            const decoder = new TextDecoder();
            return {
                href: url.href, host: url.host, sorted: (url.searchParams.sort(), url.search),
                bad: URL.canParse("::"), headers: [...headers],
                form: [request.method, request.headers.get("content-type"), await request.text()],
                clone: [clone.self === clone, clone !== cyclic, clone.when.getTime(), clone.set.has(1)],
                base64: [btoa("h\xe9"), atob("aOk="), (() => { try { atob("a") } catch (e) { return e.name } })()],
                utf8: [[...new TextEncoder().encode("€")], decoder.decode(new Uint8Array([0xe2, 0x82]), { stream: true }) + decoder.decode(new Uint8Array([0xac]))],
                globals: typeof process + typeof require,
            };
        };"##;
    let program = bench.prepare(&graph("f.js", source)).await.unwrap();
    let seen = json(bench.run(&program, call("")).await.result);
    assert_eq!(
        seen,
        serde_json::json!({
            "href": "https://user@example.com:8443/x?b=2&a=1&c=%C3%A4+%26#h", "host": "example.com:8443",
            "sorted": "?a=1&b=2&c=%C3%A4+%26", "bad": false, "headers": [["a", "1, 2"]],
            "form": ["POST", "application/x-www-form-urlencoded;charset=UTF-8", "k=v+w"],
            "clone": [true, true, 5, true], "base64": ["aOk=", "h\u{e9}", "InvalidCharacterError"],
            "utf8": [[0xe2, 0x82, 0xac], "€"],
            "globals": "undefinedundefined",
        })
    );
}

#[tokio::test]
async fn what_cannot_be_deployed_is_refused_with_the_place() {
    let bench = Bench::new();
    let error = bench.prepare(&graph("f.ts", "export default (a: ) => 1;")).await.err().unwrap();
    let PrepareError::Syntax(error) = error else { panic!("{error:?}") };
    assert_eq!((error.file.as_str(), error.line), ("f.ts", 1));
    assert!(error.frame.contains("^"), "{error}");

    let error = bench
        .prepare(&graph("f.js", "\nconst a = undefined.b;\nexport default () => a;"))
        .await
        .err()
        .unwrap();
    assert!(
        matches!(&error, PrepareError::Threw { message, location: Some(at), .. }
            if at.starts_with("f.js:2:") && message.starts_with("TypeError")),
        "{error:?}"
    );
    let error = bench.prepare(&graph("f.js", "export const a = 1, b = 2;")).await.err().unwrap();
    assert!(error.to_string().starts_with("f.js: it has no default export, only a, b; write"), "{error}");
    let error = bench.prepare(&graph("f.js", "export default 5;")).await.err().unwrap();
    assert!(error.to_string().contains("the default export is not a handler"), "{error}");
    let error = bench
        .prepare(&graph("f.js", "await new Promise(() => {}); export default () => 1;"))
        .await
        .err()
        .unwrap();
    assert!(matches!(error, PrepareError::NeverSettles { .. }), "{error:?}");
    let error =
        bench.prepare(&graph("f.js", "const f = () => f(); f(); export default f;")).await.err().unwrap();
    assert!(matches!(error, PrepareError::StackOverflow { .. }), "{error:?}");
    let error = bench
        .prepare(&graph(
            "f.js",
            "const a = []; for (;;) a.push(new Uint8Array(1 << 22)); export default a;",
        ))
        .await
        .err()
        .unwrap();
    assert!(matches!(error, PrepareError::OutOfMemory { .. }), "{error:?}");
    for call in ["setTimeout(() => {}, 1)", "crypto.randomUUID()"] {
        let error =
            bench.prepare(&graph("f.js", &format!("{call}; export default () => 1;"))).await.err().unwrap();
        assert!(error.to_string().contains("top-level code runs at deploy"), "{error}");
        assert!(error.to_string().contains("f.js:1:"), "{error}");
    }
    let program =
        bench.prepare(&graph("f.js", "console.warn('hi'); export default () => 1;")).await.unwrap();
    assert_eq!(program.deploy_log(), [(LogLevel::Warn, "hi".to_owned())]);
}

#[tokio::test]
async fn top_level_code_ends() {
    let bench = Bench::new();
    let error = bench.prepare(&graph("f.js", "for (;;) {} export default () => 1;")).await.err().unwrap();
    assert!(matches!(error, PrepareError::CpuTimeUsed { .. }), "{error:?}");
}

#[tokio::test]
async fn the_time_of_top_level_code_is_its_own() {
    let bench = Bench::new();
    bench.prepare(&graph("f.js", "export default () => 1;")).await.unwrap();
    let source = "let sum = 0; for (let i = 0; i < 5e6; i++) sum += i % 7; export default () => sum;";
    let began = Instant::now();
    let others = async {
        for _ in 0..8 {
            tokio::task::yield_now().await;
            // Something else has the thread.
            std::thread::sleep(Duration::from_secs(1));
        }
        std::future::pending::<()>().await;
    };
    let graph = graph("f.js", source);
    let program = tokio::select! {
        program = bench.prepare(&graph) => program.unwrap(),
        () = others => unreachable!(),
    };
    assert!(began.elapsed() > Duration::from_secs(5), "it had so few turns that nothing is shown");
    assert_eq!(json(bench.run(&program, call("")).await.result), 14_999_995);
}

#[tokio::test]
async fn modules_are_gathered_from_disk() {
    let bench = Bench::new();
    let root = tempfile::tempdir().unwrap();
    let write = |path: &str, text: &str| {
        let path = root.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    write(
        "functions/main.ts",
        "import { twice } from './lib/math.js';\nimport slug from 'tiny-slug';\n\
        import limits from '../limits.json';\nimport type { T } from 'no-such-package';\n\
        export default async (): Promise<unknown> => {\n  const late = await import('./late.js');\n\
        \x20 return [twice(limits.max), slug('A B'), late.name];\n};\n",
    );
    write("functions/lib/math.ts", "export const twice = (n: number): number => n * 2;\n");
    write("functions/late.js", "export const name = import.meta.url ? 'late' : 'none';\n");
    write("limits.json", "{ \"max\": 21 }");
    write(
        "node_modules/tiny-slug/package.json",
        r#"{ "name": "tiny-slug", "exports": { "import": "./dist/index.mjs", "require": "./dist/index.cjs" } }"#,
    );
    write(
        "node_modules/tiny-slug/dist/index.mjs",
        "import { dash } from './dash.mjs';\nexport default (s) => s.toLowerCase().replace(' ', dash);\n",
    );
    write("node_modules/tiny-slug/dist/dash.mjs", "export const dash = '-';\n");
    let collect = |entry: &str| edgefaas_isolates::js::collect(&root.path().join(entry), root.path());

    let graph = collect("functions/main.ts").unwrap();
    assert_eq!(graph.entry, "functions/main.ts");
    let mut paths: Vec<_> = graph.modules.iter().map(|module| module.path.as_str()).collect();
    paths.sort_unstable();
    let expected = [
        "functions/late.js",
        "functions/lib/math.ts",
        "functions/main.ts",
        "limits.json",
        "node_modules/tiny-slug/dist/dash.mjs",
        "node_modules/tiny-slug/dist/index.mjs",
    ];
    assert_eq!(paths, expected);
    let program = bench.prepare(&graph).await.unwrap();
    let reply = bench.run(&program, call("")).await.result;
    assert_eq!(json(reply), serde_json::json!([42, "a-b", "late"]));

    write(
        "node_modules/careful/index.js",
        "export default async (name) => {\n  const seen = [];\n  for (const load of [() => import(name), () => import('node:fs')])\n\
         \x20   await load().catch((error) => seen.push(error.message));\n  return seen;\n};\n",
    );
    write(
        "functions/careful.js",
        "import load from '../node_modules/careful/index.js';\nexport default () => load('computed');\n",
    );
    let program = bench.prepare(&collect("functions/careful.js").unwrap()).await.unwrap();
    let seen = json(bench.run(&program, call("")).await.result);
    for (index, name) in ["computed", "node:fs"].iter().enumerate() {
        let message = seen[index].as_str().unwrap();
        assert!(message.contains(name) && message.contains("it was not deployed"), "{message}");
    }
    for (source, at, message) in [
        ("import './gone.js';", "functions/bad.js:1:8", "there is no such file"),
        ("\nimport x from 'gone';", "functions/bad.js:2:15", "npm install"),
        ("import fs from 'node:fs';", "functions/bad.js:1:16", "belongs to Node.js"),
        ("import fs from 'fs';", "functions/bad.js:1:16", "belongs to Node.js"),
        ("export default (x) => import(x);", "functions/bad.js:1:23", "computed name"),
        ("import 'old';", "node_modules/old/index.js:1:11", "npm install"),
        ("export default (;", "functions/bad.js:1:17", "\n"),
    ] {
        write("node_modules/old/index.js", "const a = require('a');\nmodule.exports = a;\n");
        write("functions/bad.js", source);
        let error = collect("functions/bad.js").unwrap_err().to_string();
        assert!(error.starts_with(at) && error.contains(message), "{source}: {error}");
    }
    assert!(collect("functions/none.js").unwrap_err().to_string().contains("cannot be read"));
}

#[tokio::test]
async fn large_events_and_many_calls() {
    let bench = Bench::new();
    let source = r#"
        export default async (event, { call }) => {
            const { length } = event.bytes();
            const replies = await Promise.all(Array.from({ length: 1000 }, (_, i) => call("echo-text", String(i))));
            const crowd = await Promise.allSettled(Array.from({ length: 1100 }, () => call("echo-text", "")));
            const refused = crowd.filter((one) => one.status === "rejected");
            return { length, sum: replies.reduce((sum, text) => sum + Number(text), 0), refused: refused.length, code: refused[0].reason.code };
        };"#;
    let program = bench.prepare(&graph("f.js", source)).await.unwrap();
    let body = "x".repeat(3 << 20);
    let seen = json(bench.run(&program, call(&body)).await.result);
    assert_eq!(
        seen,
        serde_json::json!({ "length": 3 << 20, "sum": 499_500, "refused": 76, "code": "Overloaded" })
    );
}

#[tokio::test]
async fn a_host_error_type_reaches_javascript() {
    for (error, code) in [
        (HostError::Invalid("x".into()), "Invalid"),
        (HostError::Overloaded("x".into()), "Overloaded"),
        (HostError::Failed("x".into()), "Failed"),
    ] {
        let bench = Bench::failing(error);
        let source =
            "export default async (e, c) => { try { await c.call('fail') } catch (e) { return e.code } };";
        let program = bench.prepare(&graph("f.js", source)).await.unwrap();
        assert_eq!(text(bench.run(&program, call("")).await.result), code);
    }
}

#[tokio::test]
async fn cancelled_timers_take_no_room() {
    let bench = Bench::new();
    let source = "export default () => {
        for (let i = 0; i < 20_000; i++) clearTimeout(setTimeout(() => {}, 1e9));
        return 'done';
    };";
    let program = bench.prepare(&graph("f.js", source)).await.unwrap();
    assert_eq!(text(bench.run(&program, call("")).await.result), "done");
}

#[tokio::test]
async fn the_memory_limit_holds_for_what_a_function_starts_with() {
    let bench = Bench::new();
    let source = "const kept = new Uint8Array(20 << 20).fill(1); export default () => kept.length;";
    let graph = graph("f.js", source);
    let error = bench.prepare_within(&graph, 16 << 20).await.err().unwrap();
    let PrepareError::OverMemoryLimit { needed_bytes, allowed_bytes, .. } = error else {
        panic!("{error:?}")
    };
    assert!(needed_bytes > 20 << 20);
    assert_eq!(allowed_bytes, 16 << 20);
    let program = bench.prepare_within(&graph, needed_bytes).await.unwrap();
    assert_eq!(program.memory_bytes(), needed_bytes);
    let limits = Limits { memory_bytes: 16 << 20, ..Limits::default() };
    let result = bench.run_within(&program, call(""), limits).await.result;
    assert_eq!(result, Err(RunError::OutOfMemory { limit_bytes: 16 << 20 }));

    let small = support::graph("f.js", "export default () => 1;");
    let error = bench.prepare_within(&small, 64 << 10).await.err().unwrap();
    assert!(error.to_string().contains("limits.memory allows 65536 bytes"), "{error}");
    let PrepareError::LimitBelowEngine { least_bytes, .. } = error else { panic!("{error:?}") };
    let memory_bytes = match bench.prepare_within(&small, least_bytes).await {
        Ok(program) => program.memory_bytes(),
        Err(PrepareError::OverMemoryLimit { needed_bytes, .. }) => needed_bytes,
        Err(error) => panic!("{error:?}"),
    };
    let program = bench.prepare_within(&small, memory_bytes).await.unwrap();
    let limits = Limits { memory_bytes, ..Limits::default() };
    assert_eq!(json(bench.run_within(&program, call(""), limits).await.result), 1);
}

/// Prints what a fresh invocation costs; `cargo test --release --test javascript -- --ignored --nocapture`.
#[tokio::test]
#[ignore = "a measurement"]
async fn fresh_invocation_time() {
    let bench = Bench::new();
    let source = r#"export default async (event) => ({ echo: event.json().t * 2 });"#;
    let program = bench.prepare(&graph("f.js", source)).await.unwrap();
    println!("snapshot: {} of {} bytes filled", program.filled_bytes(), program.memory_bytes());
    let event = mqtt("sensors/1", "{\"t\": 21}");
    let mut all = Vec::new();
    for _ in 0..20_000 {
        let (event, host) = (event.clone(), bench.host());
        let began = Instant::now();
        let done = bench.engine.run(&program, &bench.meta, event, Limits::default(), host).await;
        all.push(began.elapsed());
        assert!(done.result.is_ok());
    }
    all.sort();
    println!("fresh: p50 {:?} p99 {:?}", all[all.len() / 2], all[all.len() * 99 / 100]);
}

/// A handler that does what the event's text says, one line for each case.
async fn cases(bench: &Bench, body: &str) -> edgefaas_isolates::js::JsProgram {
    let source = format!(
        "export default async (event, context) => {{\n  switch (event.text()) {{\n{body}\n  }}\n}};"
    );
    bench.prepare(&graph("f.js", &source)).await.unwrap()
}

#[tokio::test]
async fn logging_never_throws() {
    let bench = Bench::new();
    let source = r#"
        export default (event, context) => {
            const cyclic = { a: 1 };
            cyclic.self = cyclic;
            const chain = new Error("chain");
            chain.cause = chain;
            const revoked = Proxy.revocable({}, {});
            revoked.revoke();
            const values = [
                { ok: 1, get bad() { throw new Error("boom"); } },
                { get worse() { throw { get message() { throw 1; }, toString() { throw 2; } }; } },
                new Proxy({ p: 1 }, {}), new Proxy({}, { ownKeys() { throw new TypeError("no keys"); } }),
                new Proxy({}, { getPrototypeOf() { throw new TypeError("no prototype"); } }), revoked.proxy,
                cyclic, 12n, Symbol("s"), { [Symbol("k")]: 1, big: 3n, sym: Symbol("t") },
                Object.assign(Object.create(null), { bare: true }), Object.create(null),
                { constructor: { name: Symbol("x") } }, class { static name = Symbol("y"); },
                Object.defineProperty(Object.assign(new Error("m"), { name: Symbol("z") }), "stack", { value: undefined }),
                Object.defineProperty(new Error("n"), "message", { get() { throw 3; } }),
                new Date(NaN), [1, , 3], new Map([[1, { a: 2 }]]), new Array(1000).fill(0), new URL("http://h/p"),
            ];
            for (const value of values) console.log(value);
            context.log.warn(chain);
            console.log();
            return "done";
        };"#;
    let program = bench.prepare(&graph("f.js", source)).await.unwrap();
    assert_eq!(text(bench.run(&program, call("")).await.result), "done");
    let logs: Vec<String> = bench.record().logs.into_iter().map(|(_, line)| line).collect();
    let expected = [
        "{ ok: 1, bad: [Getter] }",
        "{ worse: [Getter] }",
        "{ p: 1 }",
        "[unreadable: no keys]",
        "[unreadable: no prototype]",
        "[unreadable: ",
        "<ref *1> { a: 1, self: [Circular *1] }",
        "12n",
        "Symbol(s)",
        "{ big: 3n, sym: Symbol(t), [Symbol(k)]: 1 }",
        "[Object: null prototype] { bare: true }",
        "[Object: null prototype] {}",
        "{ constructor: { name: Symbol(x) } }",
        "[class Symbol(y)]",
        "[Symbol(z): m]",
        "Error\n    at",
        "Invalid Date",
        "[ 1, <1 empty item>, 3 ]",
        "Map(1) { 1 => { a: 2 } }",
        "[\n  0, 0, ",
        "URL 'http://h/p'",
        "<ref *1> Error: chain\n    at",
        "",
    ];
    assert_eq!(logs.len(), expected.len(), "{logs:#?}");
    for (line, start) in logs.iter().zip(expected) {
        assert!(line.starts_with(start), "{line:?} does not start with {start:?}");
    }
    assert!(logs[19].ends_with("... 900 more items\n]"), "{}", logs[19]);
    assert!(logs[21].ends_with(" {\n  cause: [Circular *1]\n}"), "{}", logs[21]);
}

#[tokio::test]
async fn whatever_is_thrown_reads_well() {
    let bench = Bench::new();
    for (thrown, shown) in [
        ("{ message: 'm' }", "m"),
        ("{ name: 'Odd', message: 'm' }", "Odd: m"),
        ("{ message: { code: 1 } }", "{ code: 1 }"),
        ("[1, 'a']", r#"the function threw [1,"a"]"#),
        ("{}", "the function threw {}"),
        (
            "(() => { const a = {}; a.a = a; return a; })()",
            "the function threw <ref *1> { a: [Circular *1] }",
        ),
        ("new Proxy({}, { get() { throw 1 } })", "the function threw [unreadable: 1]"),
        ("null", "the function threw null"),
        ("undefined", "the function threw undefined"),
        ("7", "the function threw 7"),
        ("7n", "the function threw 7n"),
        ("Symbol('s')", "the function threw Symbol(s)"),
        ("''", "the function threw an empty string"),
        ("Object.defineProperty(new Error(), 'message', { get() { throw 1 } })", "Error"),
    ] {
        let source = format!("export default () => {{ throw {thrown}; }};");
        let program = bench.prepare(&graph("f.js", &source)).await.unwrap();
        let error = bench.run(&program, call("")).await.result.unwrap_err();
        assert!(matches!(error, RunError::Failed { .. }), "{thrown}: {error:?}");
        assert_eq!(error.to_string(), shown, "{thrown}");
    }
    for (call_of, name) in [
        ("atob('a')", "InvalidCharacterError"),
        ("structuredClone(() => 1)", "DataCloneError"),
        ("crypto.getRandomValues(new Float64Array(1))", "TypeMismatchError"),
    ] {
        let source = format!(
            "export default (event) => {{\n  if (event.text() === 'throw')\n    {call_of};\n  \
             try {{ {call_of}; }} catch (e) {{ return [e instanceof Error, e instanceof DOMException, typeof e.stack]; }}\n}};"
        );
        let program = bench.prepare(&graph("f.js", &source)).await.unwrap();
        let seen = json(bench.run(&program, call("")).await.result);
        assert_eq!(seen, serde_json::json!([true, true, "string"]), "{call_of}");
        let error = bench.run(&program, call("throw")).await.result.unwrap_err();
        let RunError::Failed { message, location: Some(at), .. } = error else { panic!("{error:?}") };
        assert!(message.starts_with(&format!("{name}: ")), "{message}");
        assert!(at.starts_with("f.js:3:"), "{call_of}: {at}");
    }
}

#[tokio::test]
async fn a_reply_that_cannot_be_sent_says_why() {
    let bench = Bench::new();
    let program = cases(
        &bench,
        r#"
            case "bigint": return 1n;
            case "deep": return { list: [{ "a b": 2n }] };
            case "circular": { const top = { parts: {} }; top.parts.up = top; return top; }
            case "status": return Object.defineProperty(new Response("x"), "status", { value: "201" });
            case "range": return Object.defineProperty(new Response("x"), "status", { value: 70_000 });
            case "headers": return Object.defineProperty(new Response("x"), "headers", { value: { a: 1 } });
            case "read": { const response = new Response("x"); await response.text(); return response; }
            case "shared": { const part = { a: 1 }; return { x: part, y: part }; }
            case "user": return { toJSON() { throw new RangeError("mine"); } };"#,
    )
    .await;
    for (what, expected) in [
        ("bigint", "it can't be JSON: reply is a BigInt; return Number(value) or String(value)"),
        (
            "deep",
            "it can't be JSON: reply.list[0][\"a b\"] is a BigInt; return Number(value) or String(value)",
        ),
        (
            "circular",
            "it can't be JSON: reply.parts.up is reply again, a circular reference; return a copy without it",
        ),
        ("status", "the Response's status is \"201\", not a whole number from 200 to 599"),
        ("range", "the Response's status is 70000, not a whole number from 200 to 599"),
        ("headers", "the Response's headers are { a: 1 }, not Headers"),
        ("read", "the Response's body has been read already; return response.clone()"),
    ] {
        let error = bench.run(&program, call(what)).await.result.unwrap_err();
        assert_eq!(error, RunError::InvalidReply { reason: expected.into() }, "{what}");
    }
    let shared = json(bench.run(&program, call("shared")).await.result);
    assert_eq!(shared, serde_json::json!({ "x": { "a": 1 }, "y": { "a": 1 } }));
    let error = bench.run(&program, call("user")).await.result.unwrap_err();
    assert!(
        matches!(&error, RunError::Failed { message, location: Some(at), .. }
            if message == "RangeError: mine" && at.starts_with("f.js:")),
        "{error:?}"
    );
}

#[tokio::test]
async fn an_event_and_the_context_show_what_they_hold() {
    let bench = Bench::new();
    let source = r#"
        export default (event, context) => {
            console.log(event);
            console.log(context);
            return [event, context];
        };"#;
    let program = bench.prepare(&graph("f.js", source)).await.unwrap();
    let context = serde_json::json!({
        "invocationId": "inv-1", "function": "test", "deadline": 1_900_000_000_000_u64,
        "config": { "GREETING": "hello", "limit": 3 },
    });
    let request = HttpRequest {
        method: "PUT".into(),
        path: "/a".into(),
        query: "x=1".into(),
        headers: vec![("accept".into(), "*/*".into())],
    };
    let message = MqttMessage {
        topic: "a/b".into(),
        qos: 1,
        correlation_data: Some(Bytes::from_static(&[0xff])),
        user_properties: vec![("k".into(), "v".into())],
        ..MqttMessage::default()
    };
    let tick = CronTick { schedule: "@hourly".into(), scheduled_unix_ms: 5 };
    for (trigger, body, expected) in [
        (
            Trigger::Http(request),
            &b"gr\xc3\xbc\xc3\x9fe"[..],
            serde_json::json!({ "kind": "http", "method": "PUT", "path": "/a", "query": "x=1",
                "headers": { "accept": "*/*" }, "body": "grüße" }),
        ),
        (
            Trigger::Mqtt(message),
            &[0xfe, 1][..],
            serde_json::json!({ "kind": "mqtt", "topic": "a/b", "qos": 1, "retain": false,
                "properties": { "correlationDataBase64": "/w==", "userProperties": [["k", "v"]] },
                "bodyBase64": "/gE=" }),
        ),
        (
            Trigger::Cron(tick),
            &b""[..],
            serde_json::json!({ "kind": "cron", "schedule": "@hourly", "scheduledTime": 5, "body": "" }),
        ),
    ] {
        let event = Event { trigger, body: Bytes::copy_from_slice(body) };
        let seen = json(bench.run(&program, event).await.result);
        assert_eq!(seen, serde_json::json!([expected, context]));
    }
    let logs: Vec<String> = bench.record().logs.into_iter().map(|(_, line)| line).collect();
    assert_eq!(
        logs[0],
        "Event {\n  kind: 'http',\n  method: 'PUT',\n  path: '/a',\n  query: 'x=1',\n  headers: { accept: '*/*' },\n  body: 'grüße'\n}"
    );
    assert!(logs[2].contains("bodyBase64: '/gE='"), "{}", logs[2]);
    assert!(logs[1].starts_with("Context {\n  invocationId: 'inv-1'"), "{}", logs[1]);
    assert!(logs.iter().all(|line| !line.contains("s3cret") && !line.contains("API_KEY")), "{logs:?}");
}

#[tokio::test]
async fn the_node_is_read_when_it_is_asked_for() {
    let bench = Bench::new();
    let source = r#"
        export default (event, context) => {
            if (event.text() === "no") return 1;
            const { node } = context;
            return { node: node ?? null, same: node === context.node };
        };"#;
    let program = bench.prepare(&graph("f.js", source)).await.unwrap();
    assert_eq!(
        json(bench.run(&program, call("")).await.result)["node"],
        serde_json::Value::Null,
        "in no cluster"
    );
    bench.set_node(r#"{"name":"hall","zone":null,"labels":[]}"#);
    let seen = json(bench.run(&program, call("")).await.result);
    assert_eq!(seen, serde_json::json!({ "node": { "name": "hall", "labels": [] }, "same": true }));
    // The zone of a node may change while it runs.
    bench.set_node(r#"{"name":"hall","zone":"east","labels":["camera","floor=2"]}"#);
    let seen = json(bench.run(&program, call("")).await.result);
    let expected = serde_json::json!({ "name": "hall", "zone": "east", "labels": ["camera", "floor=2"] });
    assert_eq!(seen["node"], expected);
    let asked = bench.record().asked_for_node;
    json(bench.run(&program, call("no")).await.result);
    assert_eq!((asked, bench.record().asked_for_node), (3, 3), "once in each invocation that reads it");
}

#[tokio::test]
async fn publish_refuses_options_it_does_not_know() {
    let bench = Bench::new();
    let source = r#"
        export default async (event, { publish }) => {
            const seen = [];
            for (const options of [{ Qos: 1 }, { retained: true }, 1, "qos", null, [], { qos: "1" }, { qos: 3 }, { retain: 1 }]) {
                try { await publish("t", "x", options); seen.push("sent"); } catch (error) {
                    seen.push([error instanceof TypeError, error.message]);
                }
            }
            await publish("t", "x", {});
            await publish("t", "x", { qos: undefined, retain: false });
            return seen;
        };"#;
    let program = bench.prepare(&graph("f.js", source)).await.unwrap();
    let seen = json(bench.run(&program, call("")).await.result);
    let known = "qos, retain, contentType, responseTopic, correlationData, userProperties";
    let messages = [
        format!("publish: there is no option \"Qos\"; there are {known}"),
        format!("publish: there is no option \"retained\"; there are {known}"),
        format!("publish: the options are 1, not an object; it may have {known}"),
        format!("publish: the options are \"qos\", not an object; it may have {known}"),
        format!("publish: the options are null, not an object; it may have {known}"),
        format!("publish: the options are [], not an object; it may have {known}"),
        "publish: qos is 0, 1 or 2, not \"1\"".to_owned(),
        "publish: qos is 0, 1 or 2, not 3".to_owned(),
        "publish: retain is true or false, not 1".to_owned(),
    ];
    let expected: Vec<_> = messages.iter().map(|message| serde_json::json!([true, message])).collect();
    assert_eq!(seen, serde_json::json!(expected));
    assert_eq!(bench.record().published.len(), 2);
}

#[tokio::test]
async fn a_thrown_error_is_cut_to_size() {
    let bench = Bench::new();
    let program = cases(
        &bench,
        r#"
            case "message": throw new Error("ü".repeat(1 << 20));
            case "text": throw "x".repeat(10_000);
            case "name": throw Object.assign(new Error("m"), { name: "N".repeat(1 << 20) });
            case "just": throw "x".repeat(8192);
            case "stack": throw Object.assign(new Error("m"), { stack: "    at f (f.js:1:2)\n".repeat(10_000) });
            case "wide": throw "a\ud800" + "b".repeat(10_000);"#,
    )
    .await;
    let mut failures = Vec::new();
    for what in ["message", "text", "name", "just", "stack", "wide"] {
        let error = bench.run(&program, call(what)).await.result.unwrap_err();
        let RunError::Failed { message, stack, .. } = error else { panic!("{what}: {error:?}") };
        assert!(message.len() <= 8192, "{what}: {}", message.len());
        let stack = stack.unwrap_or_default();
        assert!(stack.len() <= 65_536, "{what}: {}", stack.len());
        failures.push((message, stack));
    }
    for (index, whole_bytes) in [(0, "Error: ".len() + (2 << 20)), (1, 10_000), (5, 10_004)] {
        let (kept, note) = failures[index].0.rsplit_once("… (").unwrap();
        let cut_bytes: usize = note.strip_suffix(" bytes cut)").unwrap().parse().unwrap();
        assert_eq!(kept.len() + cut_bytes, whole_bytes);
    }
    assert!(failures[2].0.ends_with(" bytes cut): m"), "the message is there in spite of the name");
    assert_eq!(failures[3].0.len(), 8192, "what fits is whole");
    assert!(failures[4].1.len() > 65_000 && failures[4].1.ends_with("(f.js:1:2)"));
    assert!(failures[5].0.starts_with("a\u{fffd}b"));
}
