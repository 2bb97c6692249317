//! `isolation = "reuse"`: an instance that has answered gets the next invocation.

use http::StatusCode;

use crate::support::{TestNode, in_time, json, text};

const REUSE: &str = "isolation = \"reuse\"";
const COUNTS: &str =
    "let n = 0; export default (event) => ({ n: ++n, said: event.text(), random: Math.random() })";

#[tokio::test]
async fn globals_survive_and_all_else_belongs_to_one_invocation() {
    let mut node = TestNode::start().await;
    node.deploy_one("f", REUSE, COUNTS).await;
    let mut randoms = Vec::new();
    for n in 1..=20u64 {
        let answer = json(&node.post("/fn/f", format!("call {n}")).await);
        assert_eq!(
            (answer["n"].as_u64(), answer["said"].as_str()),
            (Some(n), Some(format!("call {n}").as_str()))
        );
        randoms.push(answer["random"].as_f64().unwrap());
    }
    randoms.sort_by(f64::total_cmp);
    randoms.dedup();
    assert_eq!(randoms.len(), 20);
    // A deploy starts with a new instance, and so does every invocation without reuse.
    node.deploy_one("f", "", COUNTS).await;
    for _ in 0..3 {
        assert_eq!(json(&node.post("/fn/f", "").await)["n"], 1);
    }
}

#[tokio::test]
async fn the_event_and_the_context_are_those_of_the_invocation() {
    let mut node = TestNode::start().await;
    let source = "const ids = new Set();
        export default (event, context) => {
            ids.add(context.invocationId);
            return [event.method, event.path, event.query, event.headers.get('x-a'), ids.size].join();
        }";
    node.deploy_one("f", REUSE, source).await;
    for n in 1..=5 {
        let request = http::Request::post(format!("/fn/f/{n}?q={n}")).header("x-a", n.to_string());
        let answer = node.send(request.body(Default::default()).unwrap()).await;
        assert_eq!(text(&answer), format!("POST,/{n},q={n},{n},{n}"));
    }
}

#[tokio::test]
async fn an_instance_that_failed_is_not_reused() {
    let mut node = TestNode::start().await;
    let source = "let n = 0;
        export default async (event) => {
            n++;
            switch (event.text()) {
                case 'loop': for (;;);
                case 'grow': { const all = []; for (;;) all.push(new Uint8Array(1 << 20).fill(1)); }
                case 'deep': { const deep = () => deep() + 1; return deep(); }
                case 'timer': setTimeout(() => {}, 60000); return n;
                case 'throw': throw new Error('own');
                default: return n;
            }
        }";
    let extra = format!("{REUSE}\nlimits = {{ timeout = \"5s\", memory = \"32MiB\" }}");
    node.deploy_one("f", &extra, source).await;
    let say = async |what: &'static str| {
        let answer = node.post("/fn/f", what).await;
        (answer.status(), text(&answer).to_owned())
    };
    assert_eq!(say("").await.1, "1");
    // After an error of the function itself its instance is reused.
    assert_eq!(say("throw").await.0, StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(say("").await.1, "3");
    for bad in ["loop", "grow", "deep"] {
        assert_ne!(say(bad).await.0, StatusCode::OK);
        assert_eq!(say("").await.1, "1", "after {bad}");
    }
    // Work of the invocation is still in progress.
    assert_eq!(say("timer").await.1, "2");
    assert_eq!(say("").await.1, "1");
}

#[tokio::test]
async fn starts_are_counted_by_kind() {
    let mut node = TestNode::start().await;
    node.deploy_one("f", REUSE, COUNTS).await;
    for _ in 0..5 {
        node.get("/fn/f").await;
    }
    let bearer = format!("Bearer {}", node.token);
    let request = http::Request::get("/metrics").header("authorization", bearer);
    let page =
        in_time(crate::support::send(node.addresses.control, request.body(Default::default()).unwrap()));
    let page = page.await;
    for (start, count) in [("cold", 1), ("warm", 4)] {
        let line = format!("edgefaas_invocation_starts_total{{function=\"f\",start=\"{start}\"}} {count}");
        assert!(text(&page).contains(&line), "{line} in {}", text(&page));
    }
}

#[tokio::test]
async fn concurrent_invocations_have_separate_instances() {
    let mut node = TestNode::start().await;
    let source = "let inside = 0, max = 0;
        export default async () => {
            max = Math.max(max, ++inside);
            await new Promise((resolve) => setTimeout(resolve, 20));
            inside--;
            return max;
        }";
    node.deploy_one("f", REUSE, source).await;
    for _ in 0..3 {
        let answers = (0..20).map(|_| node.get("/fn/f"));
        for answer in futures_util::future::join_all(answers).await {
            assert_eq!(text(&answer), "1");
        }
    }
}
