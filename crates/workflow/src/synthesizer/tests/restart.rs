//! States that survive a restart.

use serde_json::json;

use super::*;

/// The state goes to text and back.
fn restarted(
    synthesizer: &Synthesizer,
    value: Value,
    at_ms: u64,
    away_ms: u64,
    now_ms: u64,
) -> Synthesizer {
    let text = serde_json::to_string(&synthesizer.state(at_ms)).unwrap();
    let state: State = serde_json::from_str(&text).unwrap();
    Synthesizer::restore(rule(value), state.aged(away_ms), now_ms)
}

#[test]
fn in_the_middle_of_a_window() {
    let value = json!({ "key": "${ .k }", "window": { "every": "100ms" } });
    let mut windows = at_1000(value.clone());
    send(&mut windows, "a", 1, 1_110);
    send(&mut windows, "b", 2, 1_120);
    // 30 ms into the window, on a clock that begins at zero.
    let mut windows = restarted(&windows, value.clone(), 1_130, 0, 0);
    assert_eq!(windows.due_ms(), Some(70));
    assert_eq!(send(&mut windows, "a", 3, 69), NOTHING);
    assert_eq!(windows.counts(), Counts { keys: 2, events: 3, dropped: 0, evicted: 0 });
    // And once more, with a second away.
    let mut windows = restarted(&windows, value, 69, 1_000, 5_000);
    assert_eq!(ticked(&mut windows, 5_000), ["b: 2 late 999", "a: 1 3 late 999"]);
    // The grid is the same.
    send(&mut windows, "c", 4, 5_000);
    assert_eq!(windows.due_ms(), Some(5_001));
}

#[test]
fn every_condition_goes_on() {
    for (value, before, after, expected) in [
        (json!({ "count": 3 }), vec![0, 10], vec![10], vec!["0 1 2"]),
        (json!({ "count": 3, "within": "30ms" }), vec![0, 10], vec![0, 5], vec!["1 2 3 dropped 1"]),
        (json!({ "rate": { "above": 2, "per": "100ms" } }), vec![0, 20], vec![20], vec!["2"]),
        (json!({ "rate": { "above": 1, "per": "100ms" } }), vec![0, 20], vec![20], vec![]),
        (json!({ "rate": { "below": 2, "per": "50ms" } }), vec![0, 20], vec![21], vec![" late 1"]),
        (json!({ "silence": "50ms" }), vec![0], vec![15, 20, 70], vec!["2"]),
        (json!({ "threshold": { "value": "${ .n }", "above": 0 } }), vec![0, 1], vec![1], vec![]),
        (
            json!({ "window": { "every": "40ms", "of": "80ms" } }),
            vec![0, 39],
            vec![10, 50],
            vec!["0 1 late 9", "0 1 2 late 9"],
        ),
    ] {
        let mut synthesizer = Synthesizer::new(rule(value.clone()), 1_000);
        let mut n = 0;
        for at in before {
            assert_eq!(
                send(&mut synthesizer, "", n, 1_000 + at).len(),
                usize::from(n == 1 && has_fired(&value))
            );
            n += 1;
        }
        let mut synthesizer = restarted(&synthesizer, value.clone(), 1_030, 0, 0);
        let mut fired = Vec::new();
        for at in after {
            fired.extend(send(&mut synthesizer, "", n, at));
            n += 1;
        }
        assert_eq!(fired, expected, "{value}");
    }
}

/// Whether the second event of [`every_condition_goes_on`] fires.
fn has_fired(value: &Value) -> bool {
    value["rate"]["above"] == 1 || value.get("threshold").is_some()
}

#[test]
fn a_long_queue_stays_long() {
    let value = json!({ "queue": { "function": "f", "longer_than": 5 } });
    let mut queue = at_1000(value.clone());
    assert_eq!(queue.queue_length(6, 1_000).len(), 1);
    let mut queue = restarted(&queue, value, 1_000, 0, 0);
    assert_eq!(queue.queue_length(7, 0).len(), 0);
}

#[test]
fn the_order_of_use_is_kept() {
    let value = json!({ "key": "${ .k }", "count": 3 });
    let mut counter = at_1000(value);
    for (n, key) in ["a", "b", "c", "a"].iter().enumerate() {
        send(&mut counter, key, n as u64, 1_000);
    }
    let narrow = json!({ "key": "${ .k }", "count": 3, "limit": 2 });
    let mut counter = restarted(&counter, narrow, 1_000, 0, 0);
    assert_eq!(counter.counts(), Counts { keys: 2, events: 3, dropped: 1, evicted: 1 });
    assert_eq!(send(&mut counter, "a", 9, 0), ["a: 0 3 9"]);
}

#[test]
fn what_does_not_fit_the_rule_is_let_go() {
    let mut counter = at_1000(json!({ "count": 5 }));
    for n in 0..4 {
        send(&mut counter, "", n, 1_000);
    }
    for value in [json!({ "count": 3 }), json!({ "count": 5, "key": "${ .k }" })] {
        let restored = restarted(&counter, value, 1_000, 0, 0);
        assert_eq!(restored.counts(), Counts { keys: 0, events: 0, dropped: 4, evicted: 0 });
    }
    let restored = restarted(&counter, json!({ "silence": "1s" }), 1_000, 0, 500);
    assert_eq!((restored.due_ms(), restored.counts().dropped), (Some(1_500), 0));
    let mut restored = restarted(&counter, json!({ "count": 5 }), 1_000, u64::MAX, 500);
    assert_eq!(send(&mut restored, "", 4, 500), ["0 1 2 3 4"]);
}
