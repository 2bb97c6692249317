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
    assert_eq!(counted(&windows), Counts { keys: 2, events: 3, dropped: 0, evicted: 0, bytes: 0 });
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
    assert_eq!(counted(&counter), Counts { keys: 2, events: 3, dropped: 1, evicted: 1, bytes: 0 });
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
        assert_eq!(counted(&restored), Counts { keys: 0, events: 0, dropped: 4, evicted: 0, bytes: 0 });
    }
    let restored = restarted(&counter, json!({ "silence": "1s" }), 1_000, 0, 500);
    assert_eq!((restored.due_ms(), restored.counts().dropped), (Some(1_500), 0));
    let mut restored = restarted(&counter, json!({ "count": 5 }), 1_000, u64::MAX, 500);
    assert_eq!(send(&mut restored, "", 4, 500), ["0 1 2 3 4"]);
}

#[test]
fn windows_of_another_length_end_on_their_own_grid() {
    let mut windows = at_1000(json!({ "window": { "every": "100ms" } }));
    send(&mut windows, "", 1, 1_110);
    let mut windows = restarted(&windows, json!({ "window": { "every": "70ms" } }), 1_120, 0, 1_120);
    assert_eq!(windows.due_ms(), Some(1_140));
    assert_eq!(ticked(&mut windows, 1_140), ["1"]);
}

#[test]
fn formats_that_cannot_say_what_comes_next_do_too() {
    let mut counter = at_1000(json!({ "key": "${ .k }", "count": 2 }));
    send(&mut counter, "a", 1, 1_010);
    let bytes = postcard::to_allocvec(&counter.state(1_010)).unwrap();
    let state: State = postcard::from_bytes(&bytes).unwrap();
    let mut counter = Synthesizer::restore(rule(json!({ "key": "${ .k }", "count": 2 })), state, 0);
    assert_eq!(send(&mut counter, "a", 2, 5), ["a: 1 2"]);
    assert!(postcard::from_bytes::<State>(&bytes[..bytes.len() / 2]).is_err());
}

/// Times that no clock gives, in every condition.
#[test]
fn broken_states_do_no_harm() {
    let rules = [
        json!({ "count": 3, "within": "1s" }),
        json!({ "window": { "every": "1ms", "of": "9s" } }),
        json!({ "window": { "every": "1s", "empty": true } }),
        json!({ "rate": { "above": 2, "per": "1s" } }),
        json!({ "rate": { "below": 2, "per": "1s" } }),
        json!({ "silence": "1s" }),
        json!({ "all": true, "within": "1s" }),
    ];
    for value in rules {
        let mut synthesizer = at_1000(value.clone());
        send(&mut synthesizer, "", 1, 1_007);
        send(&mut synthesizer, "", 2, 1_007);
        let text = serde_json::to_string(&synthesizer.state(1_007)).unwrap();
        for time in ["-9223372036854775808", "9223372036854775807"] {
            // The times are those of the events: 0 ms ago.
            for broken in
                [text.replace("[0,", &format!("[{time},")), text.replace("[0", &format!("[{time}"))]
            {
                let Ok(state) = serde_json::from_str::<State>(&broken) else {
                    continue;
                };
                for now_ms in [0, 5_000, u64::MAX] {
                    let mut restored =
                        Synthesizer::restore(rule(value.clone()), state.clone().aged(7), now_ms);
                    for later in [0, 1, 10_000, u64::MAX / 8, u64::MAX] {
                        restored.tick(now_ms.saturating_add(later));
                        send(&mut restored, "", 3, now_ms.saturating_add(later));
                    }
                }
            }
        }
    }
}
