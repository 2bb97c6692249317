//! Functions that exceed limits: each is stopped, and the node continues.

use std::time::Instant;

use http::StatusCode;

use crate::support::{TestNode, in_time, json, text};

const WELL: &str = "export default () => 'well'";

async fn check(limits: &str, source: &str, status: u16, title: &str, words: &str) {
    let mut node = TestNode::start().await;
    let manifest = format!(
        "app = \"a\"\n[functions.bad]\nmain = \"bad.js\"\n{limits}\n[functions.well]\nmain = \"well.js\"\n"
    );
    node.deploy(&manifest, &[("bad", source), ("well", WELL)]).await;
    let response = node.get("/fn/bad").await;
    let problem = json(&response);
    assert_eq!(response.status(), status, "{problem}");
    assert_eq!(problem["title"], title, "{problem}");
    assert!(problem["detail"].as_str().unwrap().contains(words), "{problem}");
    assert_eq!(text(&node.get("/fn/well").await), "well");
    let log = node.logged("bad").await;
    assert!(log.iter().any(|line| line.contains(title)), "{log:?}");
    let list = node.control.list(edgefaas_api::control::ListRequest::default()).await.unwrap().into_inner();
    assert_eq!(list.apps[0].functions[0].stats.as_ref().unwrap().failures, 1);
}

#[tokio::test]
async fn a_loop_is_ended_at_its_deadline() {
    let limits = r#"limits = { timeout = "100ms" }"#;
    check(limits, "export default () => { for (;;); }", 504, "Function timed out", "100ms").await;
}

#[tokio::test]
async fn a_loop_ends_when_its_processor_time_is_used_up_and_waits_use_none() {
    let limits = r#"limits = { timeout = "20s", cpu = "100ms" }"#;
    let title = "Function used its processor time";
    check(limits, "export default () => { for (;;); }", 504, title, "limits.cpu").await;
    let mut node = TestNode::start().await;
    let source = "export default async () => {
        for (let i = 0; i < 10; i++) await new Promise((resolve) => setTimeout(resolve, 30));
        return 'done';
    }";
    node.deploy_one("patient", limits, source).await;
    assert_eq!(text(&node.get("/fn/patient").await), "done");
}

#[tokio::test]
async fn metrics_show_the_resource_use_of_functions() {
    let mut node = TestNode::start().await;
    let source = "export default () => { for (let i = 0; i < 3e6; i++); return 'done'; }";
    node.deploy_one("busy", "", source).await;
    node.deploy_one("idle", "", WELL).await;
    assert_eq!(text(&node.get("/fn/busy").await), "done");
    let bearer = format!("Bearer {}", node.token);
    let request = http::Request::get("/metrics").header("authorization", bearer);
    let request = request.body(Default::default()).unwrap();
    let page = in_time(crate::support::send(node.addresses.control, request)).await;
    let figure = |name: &str, function: &str| -> f64 {
        let start = format!("edgefaas_{name}{{function=\"{function}\"}} ");
        let line = text(&page).lines().find_map(|line| line.strip_prefix(&start));
        line.unwrap_or_else(|| panic!("no {start} in {}", text(&page))).parse().unwrap()
    };
    assert!((0.01..10.0).contains(&figure("invocation_cpu_seconds_total", "busy")));
    assert_eq!(figure("invocation_cpu_seconds_total", "idle"), 0.0);
    assert!(figure("function_memory_peak_bytes", "busy") > 65536.0);
}

#[tokio::test]
async fn waiting_is_ended_at_the_deadline_as_well() {
    let limits = r#"limits = { timeout = "100ms" }"#;
    let source = "export default () => new Promise((resolve) => setTimeout(resolve, 60_000))";
    check(limits, source, 504, "Function timed out", "100ms").await;
}

#[tokio::test]
async fn memory_is_bounded() {
    let limits = r#"limits = { memory = "16MiB" }"#;
    let source =
        "export default () => { const all = []; for (;;) all.push(new Uint8Array(65536).fill(1)); }";
    check(limits, source, 500, "Function ran out of memory", "16777216").await;
}

#[tokio::test]
async fn recursion_is_bounded() {
    let source = "function deeper(n) { return deeper(n + 1) + 1; }\nexport default () => deeper(0)";
    check("", source, 500, "Function overflowed its stack", "bad.js:1").await;
}

#[tokio::test]
async fn a_throw_names_the_users_file_line_and_column() {
    let source = "const parse = (text) => {\n  return text.missing.length;\n};\nexport default (e) => parse(e.text());";
    check("", source, 500, "Function failed", "bad.js:2:").await;
}

#[tokio::test]
async fn a_promise_that_never_settles_is_reported_immediately() {
    // The first node of a process may compile the engine.
    drop(TestNode::start().await.stop().await);
    let started = Instant::now();
    let source = "export default () => new Promise(() => {})";
    check("", source, 500, "Function never settles", "never settles").await;
    assert!(started.elapsed() < std::time::Duration::from_secs(20), "its time limit is 30 s");
}

#[tokio::test]
async fn a_reply_over_its_limit_is_refused() {
    let limits = r#"limits = { reply = "1KiB" }"#;
    check(limits, "export default () => 'x'.repeat(1025)", 500, "Reply too large", "1025").await;
}

#[tokio::test]
async fn a_full_queue_is_a_429_with_retry_after() {
    let mut node = TestNode::start().await;
    let extra = r#"limits = { concurrency = 1, queue = { capacity = 1 } }
        triggers = [{ mqtt = "never" }]"#;
    let source = "export default () => new Promise((resolve) => setTimeout(() => resolve('done'), 300))";
    node.deploy_one("slow", extra, source).await;
    let node = std::sync::Arc::new(node);
    let calls: Vec<_> = (0..6)
        .map(|_| {
            let node = node.clone();
            tokio::spawn(async move { node.get("/fn/slow").await })
        })
        .collect();
    let mut served = 0;
    let mut rejected = 0;
    for call in calls {
        let response = in_time(call).await.unwrap();
        match response.status() {
            StatusCode::OK => served += 1,
            StatusCode::TOO_MANY_REQUESTS => {
                assert_eq!(response.headers()["retry-after"], "1");
                assert_eq!(json(&response)["title"], "Queue full");
                rejected += 1;
            }
            other => panic!("{other}"),
        }
    }
    assert_eq!(served + rejected, 6);
    assert!(served >= 2 && rejected >= 1, "{served} served, {rejected} rejected");
}

#[tokio::test]
async fn functions_that_call_each_other_in_a_circle_are_stopped() {
    let mut node = TestNode::start().await;
    let extra = r#"permissions = { call = ["circle"] }"#;
    let source = "export default (event, context) => context.call('circle', 'x')";
    node.deploy_one("circle", extra, source).await;
    let response = node.get("/fn/circle").await;
    assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
    assert!(text(&response).contains("in a loop"), "{}", text(&response));
}

#[tokio::test]
async fn an_invocation_whose_caller_disconnects_counts_as_cancelled() {
    let mut node = TestNode::start().await;
    let source = "export default () => {
        for (const end = Date.now() + 200; Date.now() < end;) ;
        console.log('computed');
        for (;;) ;
    }";
    node.deploy_one("spin", "", source).await;
    let mut caller = tokio::net::TcpStream::connect(node.addresses.http).await.unwrap();
    let request = b"GET /fn/spin HTTP/1.1\r\nhost: localhost\r\n\r\n";
    tokio::io::AsyncWriteExt::write_all(&mut caller, request).await.unwrap();
    in_time(async {
        while !node.logged("spin").await.iter().any(|line| line.contains("computed")) {
            tokio::task::yield_now().await;
        }
    })
    .await;
    // A reset: the client of a half-closed connection may still wait for its answer.
    caller.set_zero_linger().unwrap();
    drop(caller);
    let page = in_time(async {
        loop {
            let page = text(&node.metrics().await).to_owned();
            if page.contains("invocations_total{function=\"spin\",outcome=\"cancelled\"} 1") {
                return page;
            }
            tokio::task::yield_now().await;
        }
    })
    .await;
    let start = "edgefaas_invocation_cpu_seconds_total{function=\"spin\"} ";
    let cpu: f64 = page.lines().find_map(|line| line.strip_prefix(start)).unwrap().parse().unwrap();
    assert!(cpu > 0.02, "{cpu} s of processor time");
    // A client of the control API.
    let mut control = node.control.clone();
    let caller = tokio::spawn(async move {
        let request =
            edgefaas_api::control::InvokeRequest { function: "spin".into(), ..Default::default() };
        control.invoke(request).await
    });
    in_time(async {
        while node.logged("spin").await.iter().filter(|line| line.contains("computed")).count() < 2 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    caller.abort();
    in_time(async {
        let both = "invocations_total{function=\"spin\",outcome=\"cancelled\"} 2";
        while !text(&node.metrics().await).contains(both) {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let list = node.control.list(edgefaas_api::control::ListRequest::default()).await.unwrap().into_inner();
    let stats = list.apps[0].functions[0].stats.as_ref().unwrap();
    assert_eq!((stats.invocations, stats.failures), (2, 0));
}
