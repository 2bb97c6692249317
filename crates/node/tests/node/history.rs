//! Samples, events and warnings of a node whose time the test advances.

use std::time::Duration;

use edgefaas_api::control as proto;
use edgefaas_api::history::{Event, EventsRequest, GetRequest, Sample};
use edgefaas_node::Advance;

use crate::support::{HistoryClient, PATIENCE, TestNode, in_time, manifest_of};

async fn advance(time: &Advance, seconds: u64) {
    time.advance(Duration::from_secs(seconds), PATIENCE, "").await.expect("the node settles");
}

async fn samples(history: &mut HistoryClient, week: bool) -> Vec<Sample> {
    let request = GetRequest { week, after_unix_ms: 0 };
    in_time(history.get(request)).await.expect("the samples").into_inner().samples
}

async fn events(history: &mut HistoryClient) -> Vec<Event> {
    let request = EventsRequest { follow: false, tail: 0 };
    let mut stream = in_time(history.events(request)).await.expect("the events").into_inner();
    let mut events = Vec::new();
    while let Some(event) = in_time(stream.message()).await.expect("an event") {
        events.push(event);
    }
    events
}

/// Waits for the first sample. What changes before the node first looks at itself is neither an event nor a failure.
async fn until_sampled(time: &Advance, history: &mut HistoryClient) {
    advance(time, 5).await;
    in_time(async {
        while samples(history, false).await.is_empty() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
}

/// True for what the node does itself. The machine of the test may have warnings of its own.
fn is_done(event: &Event) -> bool {
    !event.kind.starts_with("warning")
}

fn has(events: &[Event], kind: &str, subject: &str) -> bool {
    events.iter().any(|event| event.kind == kind && event.subject == subject)
}

/// The warnings about function `bad`: the machine of the test may have its own.
async fn warnings(node: &mut TestNode) -> Vec<proto::Warning> {
    let status = in_time(node.control.status(proto::StatusRequest {})).await.expect("the status");
    let mut warnings = status.into_inner().warnings;
    warnings.retain(|warning| warning.subject == "bad");
    warnings
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn samples_are_kept_over_a_restart() {
    let (mut node, time) = TestNode::start_timed().await;
    let mut history = node.history().await;
    until_sampled(&time, &mut history).await;
    node.deploy_one("f", "", "export default () => 1").await;
    for _ in 0..3 {
        node.invoke("f", "").await;
    }
    // The sample of the step in which a coarse one ends, and that of the next one.
    advance(&time, 300).await;
    advance(&time, 300).await;
    let (hour, week) = (samples(&mut history, false).await, samples(&mut history, true).await);
    assert!(hour.len() >= 2 && !week.is_empty(), "{hour:?} {week:?}");
    assert!(hour.is_sorted_by(|one, next| one.unix_ms < next.unix_ms), "{hour:?}");
    assert!(hour.iter().all(|sample| sample.unix_ms % 5_000 == 0 && sample.rss_bytes > 0), "{hour:?}");
    assert!(hour.iter().any(|sample| sample.invocations > 0.0), "{hour:?}");
    assert!(week.iter().all(|sample| sample.unix_ms % 300_000 == 0), "{week:?}");
    let later = GetRequest { week: false, after_unix_ms: hour[0].unix_ms };
    let later = in_time(history.get(later)).await.unwrap().into_inner();
    assert_eq!((later.step_ms, &later.samples[..hour.len() - 1]), (5_000, &hour[1..]));

    // It has the store.
    drop(time);
    // Its clock is behind the samples: it does not replace them.
    let node = TestNode::start_in(node.stop().await, |_| {}).await.expect("it starts again");
    let mut history = node.history().await;
    let (again, weeks) = (samples(&mut history, false).await, samples(&mut history, true).await);
    assert!(again.starts_with(&hour) && weeks.starts_with(&week), "{again:?} {weeks:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_tell_what_happened() {
    let (mut node, time) = TestNode::start_timed().await;
    let mut history = node.history().await;
    until_sampled(&time, &mut history).await;
    let request = EventsRequest { follow: true, tail: 0 };
    let mut stream = in_time(history.events(request)).await.expect("the events").into_inner();
    let mut next = async || loop {
        let event = in_time(stream.message()).await.unwrap().unwrap();
        if is_done(&event) {
            break event;
        }
    };
    let first = next().await;
    assert_eq!((first.number, first.kind.as_str()), (1, "start"));
    node.deploy_one("f", "", "export default () => 1").await;
    let deploy = next().await;
    assert_eq!((deploy.kind.as_str(), deploy.subject.as_str()), ("deploy", "f"));
    node.deploy_one("f", "", "export default () => 2").await;
    let deploy = next().await;
    assert!(deploy.text.contains(" in place of "), "{deploy:?}");
    let remove = proto::RemoveRequest { app: "f".into(), ..Default::default() };
    in_time(node.control.remove(remove)).await.expect("it is removed");
    let removed = next().await;
    assert_eq!(removed.kind, "remove");
    let all = events(&mut history).await;
    assert!(all.iter().map(|event| event.number).eq(1..=all.len() as u64), "{all:?}");
    assert_eq!(all.iter().filter(|event| is_done(event)).count(), 4, "{all:?}");
    // The stream ends with the node.
    node.begin_stop();
    while in_time(stream.message()).await.is_ok_and(|event| event.is_some()) {}
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_are_kept_over_a_restart() {
    let (mut node, time) = TestNode::start_timed().await;
    let mut history = node.history().await;
    until_sampled(&time, &mut history).await;
    node.deploy_one("f", "", "export default () => 1").await;
    let before = in_time(async {
        loop {
            let before = events(&mut history).await;
            if has(&before, "deploy", "f") {
                return before;
            }
        }
    })
    .await;
    drop(time);
    let node = TestNode::start_in(node.stop().await, |_| {}).await.expect("it starts again");
    let mut history = node.history().await;
    let after = in_time(async {
        loop {
            let after = events(&mut history).await;
            if after.iter().skip(before.len()).any(|event| event.kind == "start") {
                return after;
            }
        }
    })
    .await;
    assert!(after.starts_with(&before), "{before:?} {after:?}");
    let more: Vec<_> = after[before.len()..].iter().filter(|event| is_done(event)).collect();
    let [stop, start] = more[..] else { panic!("two more: {after:?}") };
    assert_eq!((stop.kind.as_str(), start.kind.as_str()), ("stop", "start"));
    assert_eq!(start.number, stop.number + 1);
    assert!(after.iter().map(|event| event.number).eq(1..=after.len() as u64), "{after:?}");
    assert!(start.text.ends_with("with 1 app"), "{start:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_function_that_fails_is_a_warning_with_a_remedy() {
    let (mut node, time) = TestNode::start_timed().await;
    assert_eq!(warnings(&mut node).await, []);
    let mut history = node.history().await;
    until_sampled(&time, &mut history).await;
    let source = "export default () => { throw new Error('no') }";
    node.deploy(&manifest_of("bad", "secrets = [\"key\"]"), &[("bad", source)]).await;
    for _ in 0..5 {
        node.invoke("bad", "").await;
    }
    let found = warnings(&mut node).await;
    let [failing, secret] = &found[..] else { panic!("two warnings: {found:?}") };
    assert_eq!((failing.code.as_str(), failing.subject.as_str()), ("function-failing", "bad"));
    assert!(failing.text.contains("5 of 5") && failing.remedy.contains("edgefaas logs bad"), "{failing:?}");
    assert_eq!(secret.code, "secret-missing");
    assert!(secret.remedy.contains("edgefaas secrets set --app bad key"), "{secret:?}");

    advance(&time, 10).await;
    let happened = events(&mut history).await;
    assert!(has(&happened, "warning", "function-failing"), "{happened:?}");
    let since = warnings(&mut node).await[0].since_unix_ms;
    advance(&time, 60).await;
    assert_eq!(warnings(&mut node).await[0].since_unix_ms, since, "it is the same warning");

    // The failures get old, and the secret is set.
    node.set_secret("bad", "key", "value").await;
    for _ in 0..14 {
        advance(&time, 60).await;
    }
    assert_eq!(warnings(&mut node).await, []);
    let happened = events(&mut history).await;
    assert!(has(&happened, "warning-over", "function-failing"), "{happened:?}");
    assert!(has(&happened, "warning-over", "secret-missing"), "{happened:?}");
}
