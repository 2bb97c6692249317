//! Each rule at exact times.

mod memory;
mod model;
mod parsing;
mod restart;

use std::sync::Arc;

use serde_json::{Value, json};

use super::*;
use crate::expression::ExpressionError;

/// Paths such as `.data.room`, as far as the tests need jq.
fn compile(text: &str) -> Result<Predicate, ExpressionError> {
    let pointer = text.replace('.', "/");
    if !pointer.starts_with('/') {
        return Err(ExpressionError {
            message: "it is not a path".into(),
            offset: 0,
            text: text.to_owned(),
        });
    }
    Ok(Arc::new(move |event: &Value| match event.pointer(&pointer) {
        Some(Value::String(text)) if text == "bad" => Err(bad()),
        found => Ok(found.cloned().unwrap_or_default()),
    }))
}

fn bad() -> EvalError {
    EvalError::Failed { expression: ".k".into(), message: "it is bad".into() }
}

fn rule(value: Value) -> Rule {
    Rule::parse(&value, 2, &compile).unwrap()
}

/// Begins at 1,000 ms.
fn at_1000(value: Value) -> Synthesizer {
    Synthesizer::new(rule(value), 1_000)
}

/// Sends an event `{ n, k }`, and gives what fired as `key: events`.
fn send(synthesizer: &mut Synthesizer, key: &str, n: u64, now_ms: u64) -> Vec<String> {
    shown(&synthesizer.handle(0, &Arc::new(json!({ "n": n, "k": key })), now_ms).unwrap())
}

/// `key: events`, and how many were dropped and how late it is, if so.
fn shown(firings: &[Firing]) -> Vec<String> {
    let one = |firing: &Firing| {
        let key = firing.key.as_ref().map(|key| format!("{}: ", key.as_str().unwrap_or("?")));
        let events: Vec<_> = firing.events.iter().map(|event| event["n"].to_string()).collect();
        let dropped = if firing.dropped > 0 { format!(" dropped {}", firing.dropped) } else { "".into() };
        let late = if firing.late_ms > 0 { format!(" late {}", firing.late_ms) } else { "".into() };
        format!("{}{}{dropped}{late}", key.unwrap_or_default(), events.join(" "))
    };
    firings.iter().map(one).collect()
}

fn ticked(synthesizer: &mut Synthesizer, now_ms: u64) -> Vec<String> {
    shown(&synthesizer.tick(now_ms))
}

const NOTHING: [&str; 0] = [];

/// The counts without the bytes, which depend on the machine.
fn counted(synthesizer: &Synthesizer) -> Counts {
    Counts { bytes: 0, ..synthesizer.counts() }
}

#[test]
fn every_three_events() {
    let mut counter = at_1000(json!({ "count": 3 }));
    assert_eq!(send(&mut counter, "", 1, 1_000), NOTHING);
    assert_eq!(send(&mut counter, "", 2, 1_005), NOTHING);
    let firings = counter.handle(0, &Arc::new(json!({ "n": 3 })), 1_009).unwrap();
    assert_eq!(shown(&firings), ["1 2 3"]);
    assert_eq!(firings[0].facts, json!({ "kind": "count", "count": 3, "took_ms": 9 }));
    assert_eq!(counter.counts(), Counts::default());
    assert_eq!(send(&mut counter, "", 4, 1_009), NOTHING);
    assert_eq!(counted(&counter), Counts { keys: 1, events: 1, dropped: 0, evicted: 0, bytes: 0 });
    assert_eq!(counter.due_ms(), None);
}

#[test]
fn a_count_forgets_what_is_too_old() {
    let mut counter = at_1000(json!({ "count": 3, "within": "1s" }));
    send(&mut counter, "", 1, 1_000);
    send(&mut counter, "", 2, 1_500);
    assert_eq!(counter.due_ms(), Some(2_000));
    assert_eq!(send(&mut counter, "", 3, 2_000), NOTHING);
    assert_eq!(send(&mut counter, "", 4, 2_499), ["2 3 4 dropped 1"]);
    assert_eq!(counted(&counter), Counts { keys: 0, events: 0, dropped: 1, evicted: 0, bytes: 0 });
    send(&mut counter, "", 5, 3_000);
    assert_eq!(ticked(&mut counter, 4_000), NOTHING);
    assert_eq!((counter.counts().events, counter.counts().dropped, counter.due_ms()), (0, 2, None));
}

#[test]
fn tumbling_windows_end_on_their_grid() {
    let mut windows = at_1000(json!({ "window": { "every": "100ms" } }));
    assert_eq!(windows.due_ms(), None);
    send(&mut windows, "", 1, 1_000);
    assert_eq!(windows.due_ms(), Some(1_100));
    assert_eq!(send(&mut windows, "", 2, 1_099), NOTHING);
    assert_eq!(ticked(&mut windows, 1_099), NOTHING);
    // At the border: what is due first, and then the event, which is in the next window.
    assert_eq!(send(&mut windows, "", 3, 1_100), ["1 2"]);
    let firings = windows.tick(1_200);
    assert_eq!(shown(&firings), ["3"]);
    let facts = json!({ "kind": "window", "count": 1, "every_ms": 100, "of_ms": 100, "skipped": 0 });
    assert_eq!(firings[0].facts, facts);
    assert_eq!((windows.due_ms(), windows.counts().keys), (None, 0));
    assert_eq!(ticked(&mut windows, 5_000), NOTHING);
    send(&mut windows, "", 4, 5_050);
    assert_eq!(windows.due_ms(), Some(5_100));
}

#[test]
fn late_windows_fire_each_on_its_own() {
    let mut windows = at_1000(json!({ "key": "${ .k }", "window": { "every": "100ms" } }));
    send(&mut windows, "a", 1, 1_010);
    send(&mut windows, "b", 2, 1_020);
    assert_eq!(send(&mut windows, "a", 3, 1_350), ["a: 1 late 250", "b: 2 late 250"]);
    assert_eq!(ticked(&mut windows, 9_000), ["a: 3 late 7600"]);
}

#[test]
fn sliding_windows_overlap() {
    let mut windows = at_1000(json!({ "window": { "every": "100ms", "of": "250ms" } }));
    // That to 1,200 has 950 to 1,200, that to 1,300 has 1,050 to 1,300, that to 1,400 has 1,150 to 1,400.
    send(&mut windows, "", 1, 1_049);
    send(&mut windows, "", 2, 1_050);
    assert_eq!(ticked(&mut windows, 1_100), ["1 2"]);
    assert_eq!(ticked(&mut windows, 1_200), ["1 2"]);
    assert_eq!(send(&mut windows, "", 3, 1_450), ["2 late 150"]);
    assert_eq!(windows.due_ms(), Some(1_500));
    assert_eq!(ticked(&mut windows, 9_000), ["3 late 7500", "3 late 7400", "3 late 7300"]);
    assert_eq!(windows.counts(), Counts::default());
}

#[test]
fn empty_windows_fire_if_wanted() {
    let mut windows = at_1000(json!({ "window": { "every": "100ms", "empty": true } }));
    assert_eq!(windows.due_ms(), Some(1_100));
    assert_eq!(ticked(&mut windows, 1_100), [""]);
    assert_eq!(ticked(&mut windows, 1_199), NOTHING);
    // Those that went by together fire as one.
    let firings = windows.tick(1_520);
    assert_eq!(shown(&firings), [" late 20"]);
    assert_eq!(firings[0].facts["skipped"], 3);
    send(&mut windows, "", 1, 1_550);
    assert_eq!(ticked(&mut windows, 1_650), ["1 late 50"]);
    assert_eq!(windows.due_ms(), Some(1_700));
}

#[test]
fn a_window_holds_the_newest_events_only() {
    let mut windows = at_1000(json!({ "window": { "every": "1s" } }));
    for n in 0..10_003 {
        send(&mut windows, "", n, 1_000);
    }
    assert_eq!(counted(&windows), Counts { keys: 1, events: 10_000, dropped: 3, evicted: 0, bytes: 0 });
    let firings = windows.tick(2_000);
    assert_eq!((firings[0].dropped, firings[0].events.len()), (3, 10_000));
    assert_eq!(firings[0].events[0]["n"], 3);
}

#[test]
fn too_fast() {
    let mut rate = at_1000(json!({ "rate": { "above": 2, "per": "100ms" } }));
    assert_eq!(send(&mut rate, "", 1, 1_000), NOTHING);
    assert_eq!(send(&mut rate, "", 2, 1_050), NOTHING);
    // The first is just out.
    assert_eq!(send(&mut rate, "", 3, 1_100), NOTHING);
    let firings = rate.handle(0, &Arc::new(json!({ "n": 4 })), 1_149).unwrap();
    assert_eq!(shown(&firings), ["4"]);
    assert_eq!(firings[0].facts, json!({ "kind": "rate", "count": 3, "above": 2, "per_ms": 100 }));
    // Still three: 1,100, 1,149 and this one.
    assert_eq!(send(&mut rate, "", 5, 1_150), NOTHING);
    // 1,100 leaves just as this comes, so that there are three at every moment.
    assert_eq!(send(&mut rate, "", 6, 1_200), NOTHING);
    // From 1,249 to 1,250 there were two.
    assert_eq!(send(&mut rate, "", 7, 1_250), NOTHING);
    assert_eq!(send(&mut rate, "", 8, 1_251), ["8"]);
    assert_eq!(rate.due_ms(), None);
}

#[test]
fn a_steady_rate_over_the_limit_fires_once() {
    let mut rate = at_1000(json!({ "rate": { "above": 1, "per": "100ms" } }));
    let fired: usize = (0..100).map(|n| send(&mut rate, "", n, 1_000 + 50 * n).len()).sum();
    assert_eq!(fired, 1);
}

#[test]
fn keys_of_a_rate_are_forgotten_with_time() {
    let mut rate = at_1000(json!({ "key": "${ .k }", "rate": { "above": 1, "per": "100ms" } }));
    for n in 0..50 {
        send(&mut rate, &format!("k{n}"), n, 1_000);
    }
    assert_eq!(rate.counts().keys, 50);
    for n in 0..50 {
        send(&mut rate, "same", n, 2_000 + n);
    }
    assert_eq!(counted(&rate), Counts { keys: 1, events: 0, dropped: 0, evicted: 0, bytes: 0 });
}

#[test]
fn too_slow() {
    let mut rate = at_1000(json!({ "rate": { "below": 2, "per": "100ms" } }));
    assert_eq!(rate.due_ms(), Some(1_100));
    send(&mut rate, "", 1, 1_040);
    send(&mut rate, "", 2, 1_060);
    assert_eq!(rate.due_ms(), Some(1_140));
    let firings = rate.tick(1_140);
    assert_eq!(shown(&firings), [""]);
    assert_eq!(firings[0].facts, json!({ "kind": "rate", "count": 1, "below": 2, "per_ms": 100 }));
    assert_eq!(rate.due_ms(), None);
    send(&mut rate, "", 3, 1_160);
    // 1,060 is just out, so there is one only.
    assert_eq!(rate.due_ms(), None);
    send(&mut rate, "", 4, 1_259);
    assert_eq!(send(&mut rate, "", 5, 1_400), [" late 140"]);
    assert_eq!(rate.due_ms(), None);
}

#[test]
fn nothing_from_the_start_on() {
    let mut silence = at_1000(json!({ "silence": "100ms" }));
    assert_eq!(silence.due_ms(), Some(1_100));
    assert_eq!(ticked(&mut silence, 1_100), [""]);
    assert_eq!((ticked(&mut silence, 9_000), silence.due_ms()), (vec![], None));
    send(&mut silence, "", 1, 9_000);
    assert_eq!(send(&mut silence, "", 2, 9_099), NOTHING);
    // An event at the very end comes too late.
    let firings = silence.handle(0, &Arc::new(json!({ "n": 3 })), 9_199).unwrap();
    assert_eq!(shown(&firings), ["2"]);
    assert_eq!(firings[0].facts, json!({ "kind": "silence", "for_ms": 100 }));
    assert_eq!(silence.due_ms(), Some(9_299));
}

#[test]
fn nothing_from_a_key() {
    let mut silence = at_1000(json!({ "key": "${ .k }", "silence": "100ms" }));
    assert_eq!(silence.due_ms(), None);
    send(&mut silence, "a", 1, 1_010);
    send(&mut silence, "b", 2, 1_020);
    assert_eq!(send(&mut silence, "a", 3, 1_109), NOTHING);
    assert_eq!(ticked(&mut silence, 1_500), ["b: 2 late 380", "a: 3 late 291"]);
    assert_eq!(silence.counts(), Counts::default());
    send(&mut silence, "b", 4, 1_600);
    assert_eq!(ticked(&mut silence, 1_700), ["b: 4"]);
}

#[test]
fn one_of_each_filter_with_the_same_key() {
    let mut all = at_1000(json!({ "key": "${ .k }", "all": true, "within": "1s" }));
    let mut from = |source: usize, key: &str, n: u64, now_ms: u64| {
        shown(&all.handle(source, &Arc::new(json!({ "n": n, "k": key })), now_ms).unwrap())
    };
    assert_eq!(from(1, "a", 1, 1_000), NOTHING);
    assert_eq!(from(0, "b", 2, 1_000), NOTHING);
    assert_eq!(from(1, "a", 3, 1_100), NOTHING);
    // In the order of the filters, with the newest of each.
    assert_eq!(from(0, "a", 4, 1_200), ["a: 4 3 dropped 1"]);
    // That of `b` is too old by now.
    assert_eq!(from(1, "b", 5, 2_000), NOTHING);
    assert_eq!(from(0, "b", 6, 2_999), ["b: 6 5"]);
    let error = all.handle(2, &Arc::new(json!({ "k": "a" })), 3_000).unwrap_err();
    assert_eq!(error, SynthesisError::Source { source_index: 2, sources: 2 });
    assert_eq!(counted(&all), Counts { keys: 0, events: 0, dropped: 2, evicted: 0, bytes: 0 });
}

/// The values after which it fired.
fn crossings(threshold: Value, values: &[f64]) -> Vec<f64> {
    let mut synthesizer = at_1000(json!({ "threshold": threshold }));
    let fires = |value: &f64| {
        let firings = synthesizer.handle(0, &Arc::new(json!({ "v": value })), 1_000).unwrap();
        firings.first().map(|firing| firing.facts["value"].as_f64().unwrap())
    };
    values.iter().filter_map(fires).collect()
}

#[test]
fn thresholds_fire_once_until_they_are_back() {
    let values = [29.0, 30.0, 30.1, 31.0, 28.1, 32.0, 28.0, 30.0, 33.0, 5.0, 34.0];
    let above = json!({ "value": "${ .v }", "above": 30, "below": 28 });
    assert_eq!(crossings(above, &values), [30.1, 33.0, 34.0]);
    let above = json!({ "value": "${ .v }", "above": 30, "back": 28 });
    assert_eq!(crossings(above, &values), [30.1, 33.0, 34.0]);
    let plain = json!({ "value": "${ .v }", "above": 30 });
    assert_eq!(crossings(plain, &values), [30.1, 32.0, 33.0, 34.0]);

    let values = [4.9, 4.0, 6.9, 3.0, 7.0, 5.0, 4.0];
    let below = json!({ "value": "${ .v }", "below": 5, "back": 7 });
    assert_eq!(crossings(below, &values), [4.9, 4.0]);
    let plain = json!({ "value": "${ .v }", "below": 5 });
    assert_eq!(crossings(plain, &values), [4.9, 3.0, 4.0]);
}

#[test]
fn a_threshold_remembers_only_what_is_over_it() {
    let rule = json!({ "key": "${ .k }", "threshold": { "value": "${ .n }", "above": 3, "below": 2 } });
    let mut threshold = at_1000(rule);
    assert_eq!(send(&mut threshold, "a", 1, 1_000), NOTHING);
    assert_eq!(threshold.counts().keys, 0);
    assert_eq!(send(&mut threshold, "a", 4, 1_000), ["a: 4"]);
    assert_eq!(send(&mut threshold, "b", 5, 1_000), ["b: 5"]);
    assert_eq!(threshold.counts().keys, 2);
    send(&mut threshold, "a", 2, 1_000);
    assert_eq!(threshold.counts().keys, 1);
    let firing = &threshold.handle(0, &Arc::new(json!({ "n": 9.5, "k": "a" })), 1_000).unwrap()[0];
    assert_eq!(firing.facts, json!({ "kind": "threshold", "value": 9.5, "above": 3, "below": 2 }));
}

#[test]
fn queues_fire_once_until_they_are_back() {
    let mut queue = at_1000(json!({ "queue": { "filter": "a/#", "longer_than": 100 } }));
    let lengths = [100, 101, 102, 101, 100, 0, 500];
    let fired: Vec<_> = lengths.iter().flat_map(|length| queue.queue_length(*length, 1_000)).collect();
    let facts: Vec<_> = fired.iter().map(|firing| firing.facts["length"].clone()).collect();
    assert_eq!(facts, [101, 500]);
    let expected = json!({ "kind": "queue", "filter": "a/#", "length": 101, "longer_than": 100 });
    assert_eq!(fired[0].facts, expected);
    assert_eq!(send(&mut queue, "", 1, 2_000), NOTHING);
    assert_eq!(at_1000(json!({ "count": 1 })).queue_length(u64::MAX, 0), []);
}

#[test]
fn events_that_cannot_be_counted_change_nothing() {
    let mut counter = at_1000(json!({ "key": "${ .k }", "count": 2 }));
    send(&mut counter, "a", 1, 1_000);
    let before = counter.counts();
    let mut error = |event: Value| counter.handle(0, &Arc::new(event), 1_000).unwrap_err();
    assert_eq!(error(json!({})), SynthesisError::NoKey);
    assert_eq!(error(json!({ "k": "bad" })), SynthesisError::Key { reason: bad() });
    let long = SynthesisError::LongKey { bytes: 1_025, max_bytes: 1_024 };
    assert_eq!(error(json!({ "k": "x".repeat(1_025) })), long);
    assert_eq!(counter.counts(), before);

    let mut threshold = at_1000(json!({ "threshold": { "value": "${ .v }", "above": 1 } }));
    for (value, found) in [(json!("2"), "a text"), (json!(null), "null"), (json!([2]), "a list")] {
        let error = threshold.handle(0, &Arc::new(json!({ "v": value })), 1_000).unwrap_err();
        assert_eq!(error, SynthesisError::NotANumber { found });
    }
}

#[test]
fn the_least_recently_used_key_is_let_go() {
    let mut counter = at_1000(json!({ "key": "${ .k }", "count": 3, "limit": 2 }));
    send(&mut counter, "a", 1, 1_000);
    send(&mut counter, "b", 2, 1_000);
    send(&mut counter, "a", 3, 1_000);
    send(&mut counter, "c", 4, 1_000);
    assert_eq!(counted(&counter), Counts { keys: 2, events: 3, dropped: 1, evicted: 1, bytes: 0 });
    assert_eq!(send(&mut counter, "a", 5, 1_000), ["a: 1 3 5"]);
    send(&mut counter, "b", 6, 1_000);
    assert_eq!(counted(&counter), Counts { keys: 2, events: 2, dropped: 1, evicted: 1, bytes: 0 });
}

#[test]
fn all_keys_together_hold_so_many_events() {
    let mut counter = at_1000(json!({ "key": "${ .k }", "count": 10_000 }));
    for n in 0..9_000 * 12 {
        send(&mut counter, &format!("k{}", n % 12), n, 1_000);
    }
    let counts = counter.counts();
    assert!((90_000..=100_000).contains(&counts.events), "{counts:?}");
    assert_eq!(counts.events as u64 + counts.dropped, 9_000 * 12);
}

#[test]
fn many_keys_fire_over_several_calls() {
    let mut silence = at_1000(json!({ "key": "${ .k }", "silence": "100ms" }));
    for n in 0..600 {
        send(&mut silence, &format!("k{n}"), n, 1_000);
    }
    assert_eq!(silence.tick(2_000).len(), 256);
    assert!(silence.due_ms().unwrap() <= 2_000);
    // The last key has not had its turn, and still its silence comes before its event.
    let fired = send(&mut silence, "k599", 1_000, 2_000);
    assert_eq!((fired.len(), fired.last().unwrap().as_str()), (257, "k599: 599 late 900"));
    assert_eq!(silence.tick(2_000).len(), 87);
    assert_eq!(silence.due_ms(), Some(2_100));
}

#[test]
fn time_does_not_go_back() {
    let mut silence = at_1000(json!({ "silence": "100ms" }));
    send(&mut silence, "", 1, 1_050);
    send(&mut silence, "", 2, 10);
    assert_eq!(silence.due_ms(), Some(1_150));
    send(&mut silence, "", 3, u64::MAX);
    assert!(silence.due_ms().is_some());
}
