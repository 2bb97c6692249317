//! Instances that are reset in place: nothing of an invocation is left for the next one.
//!
//! A process of its own: where functions are evaluated in the process itself, as in tests, all memory of an instance is read, and
//! slots of the pool with so many listed pages are not reset.

#[path = "../support/mod.rs"]
#[allow(dead_code, reason = "for the tests of all other behaviour, too")]
mod support;

use std::time::Duration;

use edgefaas_isolates::js::JsProgram;
use edgefaas_isolates::{Limits, Reply, RunError};
use futures_util::FutureExt;

use support::{Bench, call, graph, http, json, text};

/// Leaves whatever it can behind, and says what it finds of earlier invocations.
const MESS: &str = r#"
    const state = { count: 0, list: [], map: new Map(), weak: new WeakMap(), bytes: new Uint8Array(5000) };
    const pattern = /a+/g;
    let promise;
    class Base { static seen = 0; #hidden = 0; touch() { return ++this.#hidden; } }
    const base = new Base();
    function found() {
        return [state.count, state.list.length, state.map.size, state.bytes[4999], pattern.lastIndex, Base.seen, base.touch(),
            promise === undefined, typeof globalThis.left, [].hacked, "x".hacked, Object.keys(Array.prototype).length,
            JSON.parse === globalThis.parse, Math.max(1, 2), typeof Intl.left];
    }
    export default async (event) => {
        const before = JSON.stringify(found());
        const [kind, size] = JSON.parse(event.text());
        state.count++;
        state.bytes.fill(7);
        Base.seen = 99;
        globalThis.left = new Array(10).fill("left");
        Array.prototype.hacked = String.prototype.hacked = "hacked";
        Object.defineProperty(Array.prototype, "shown", { enumerable: true, value: 1 });
        Math.max = () => "hacked";
        pattern.test("aaa".repeat(10));
        state.map.set({}, kind);
        switch (kind) {
            case "strings": for (let i = 0; i < size; i++) state.list.push("text " + i); break;
            case "buffers": for (let i = 0; i < size; i++) state.list.push(new Uint8Array(1000).fill(i)); break;
            case "objects": for (let i = 0; i < size; i++) state.list[i % 100] = { [`key${i}`]: { i } }; break;
            case "cycles": for (let i = 0; i < size; i++) { const a = { i }; a.a = a; } break;
            case "pending": promise = new Promise(() => {}); setTimeout(() => { state.count = -1; }, 3600_000); break;
            case "waits": await new Promise((done) => setTimeout(done, 1)); break;
            case "deep": { let depth = 0; const dive = () => { depth++; if (depth < size) dive(); }; dive(); break; }
            case "throws": throw new Error(before);
            case "rejects": Promise.reject(new Error("left alone")); break;
            case "prepares": Object.setPrototypeOf(Object.prototype.toString, null); delete globalThis.JSON; return before;
            case "evaluates": new Function("globalThis.left = 'evaluated'")(); break;
        }
        return before;
    };"#;

async fn found(bench: &Bench, program: &JsProgram, kind: &str, size: usize) -> String {
    let event = call(&format!(r#"["{kind}",{size}]"#));
    match bench.run(program, event).await.result {
        Err(RunError::Failed { message, .. }) => message.trim_start_matches("Error: ").to_owned(),
        result => text(result),
    }
}

#[tokio::test]
async fn an_instance_that_is_reset_equals_its_snapshot() {
    let bench = Bench::new();
    let program = bench.prepare(&graph("f.js", MESS)).await.unwrap();
    let clean = "[0,0,0,0,0,0,1,true,\"undefined\",null,null,0,false,2,\"undefined\"]";
    let kinds = [
        ("nothing", 0),
        ("strings", 100),
        ("strings", 3000),
        ("buffers", 50),
        ("objects", 2000),
        ("cycles", 1000),
        ("pending", 0),
        ("waits", 0),
        ("deep", 100),
        ("throws", 0),
        ("rejects", 0),
        ("prepares", 0),
        ("evaluates", 0),
        ("buffers", 3000),
        ("strings", 30_000),
    ];
    let mut resets = 0;
    for round in 0..4 {
        for (kind, size) in kinds {
            assert_eq!(found(&bench, &program, kind, size).await, clean, "{kind} in round {round}");
            let audit = program.audit();
            assert_eq!(audit.differing_pages, 0, "after {kind} in round {round}");
            resets += audit.instances;
        }
    }
    // All but the first and those with large data.
    assert!(resets > 30, "{resets} resets");
}

#[tokio::test]
async fn an_instance_that_ended_in_doubt_is_not_reset() {
    let bench = Bench::new();
    let source = "export default async (event) => {
            switch (event.text()) {
                case 'spin': for (;;);
                case 'waits': return new Promise((done) => setTimeout(done, 3600_000));
                case 'deep': { const dive = () => dive() + 1; return dive(); }
                case 'grows': return `${new Uint8Array(20 << 20).fill(1).length}`;
                case 'exhausts': { const all = []; for (;;) all.push(new Uint8Array(1 << 20).fill(1)); }
            }
            return 'ok';
        };";
    let program = bench.prepare(&graph("f.js", source)).await.unwrap();
    let limits = Limits { timeout: Duration::from_millis(200), ..Limits::default() };
    for what in ["spin", "waits", "deep", "grows", "exhausts"] {
        for _ in 0..3 {
            assert_eq!(text(bench.run(&program, call("")).await.result), "ok");
        }
        assert_eq!(program.audit().instances, 1, "before {what}");
        let _ = bench.run_within(&program, call(what), limits).await;
        assert_eq!(program.audit().instances, 0, "after {what}");
        // An invocation that is dropped while it waits.
        assert!(bench.run(&program, call("waits")).now_or_never().is_none());
        assert_eq!(program.audit().instances, 0);
    }
}

#[tokio::test]
async fn nothing_of_a_request_is_left_for_the_next_one() {
    let bench = Bench::new();
    let source = "let calls = 0;
        export default { async fetch(request, env, context) {
            calls++;
            const seen = globalThis.seen;
            globalThis.seen = [request, env, context, new URL(request.url), crypto.getRandomValues(new Uint8Array(8))];
            context.waitUntil(new Promise((done) => setTimeout(done, 2)));
            return Response.json([calls, seen === undefined, request.url, await request.text(), performance.now() < 60_000]);
        } };";
    let program = bench.prepare(&graph("f.js", source)).await.unwrap();
    for number in 0..10 {
        let body = format!("body {number}");
        let reply =
            bench.run(&program, http("POST", &format!("/p{number}"), "", &body)).await.result.unwrap();
        let Reply::Http(response) = reply else { panic!("{reply:?}") };
        let seen: serde_json::Value = serde_json::from_slice(&response.body).unwrap();
        assert_eq!(
            (&seen[0], &seen[1], &seen[3], &seen[4]),
            (&1.into(), &true.into(), &body.into(), &true.into())
        );
        assert!(seen[2].as_str().unwrap().ends_with(&format!("/p{number}")), "{seen}");
        assert_eq!(program.audit().differing_pages, 0);
    }
    assert_eq!(program.audit().instances, 1);
}

#[tokio::test]
async fn random_numbers_differ_from_invocation_to_invocation() {
    let bench = Bench::new();
    let source = "export default () => [Math.random(), crypto.randomUUID(), Date.now()];";
    let program = bench.prepare(&graph("f.js", source)).await.unwrap();
    let mut all = std::collections::HashSet::new();
    for _ in 0..20 {
        let seen = json(bench.run(&program, call("")).await.result);
        assert!(all.insert(seen[0].to_string()) && all.insert(seen[1].to_string()), "{seen}");
    }
    assert_eq!(program.audit().instances, 1);
}
