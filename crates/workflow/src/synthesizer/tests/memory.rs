//! The memory of what is held: counted as it comes and goes, and kept within a limit.

use proptest::prelude::*;
use serde_json::json;

use super::*;

/// What each event has beside its number, in bytes.
const EVENT_BYTES: usize = 10_000;

/// Sends an event of about 10 kB, and gives what fired.
fn send_large(synthesizer: &mut Synthesizer, key: &str, n: u64, now_ms: u64) -> Vec<String> {
    let event = json!({ "n": n, "k": key, "text": "x".repeat(EVENT_BYTES) });
    shown(&synthesizer.handle(0, &Arc::new(event), now_ms).unwrap())
}

/// The bytes counted anew: a state that was read has weighed all of it.
fn recounted(synthesizer: &Synthesizer) -> usize {
    let text = serde_json::to_string(&synthesizer.state(0)).unwrap();
    serde_json::from_str::<State>(&text).unwrap().bytes()
}

#[test]
fn what_has_fired_takes_no_memory() {
    for value in [
        json!({ "count": 3 }),
        json!({ "window": { "every": "1s" } }),
        json!({ "key": "${ .k }", "silence": "1s" }),
        json!({ "key": "${ .k }", "count": 3, "within": "1s" }),
    ] {
        let mut synthesizer = at_1000(value.clone());
        assert_eq!(synthesizer.bytes(), 0);
        let mut before = 0;
        for n in 0..2 {
            send_large(&mut synthesizer, "a", n, 1_000);
            let bytes = synthesizer.bytes();
            // A silence has the last event only.
            assert!(bytes > before || value.get("silence").is_some(), "{value}: {before}, then {bytes}");
            assert!((EVENT_BYTES..3 * EVENT_BYTES).contains(&bytes), "{value}: {bytes}");
            before = bytes;
        }
        assert!(!synthesizer.trim(before));
        synthesizer.tick(2_000);
        if value["count"] == 3 {
            send_large(&mut synthesizer, "a", 2, 1_000);
        }
        if value.get("within").is_some() {
            assert_eq!(synthesizer.counts().events, 1);
            synthesizer.tick(5_000);
        }
        assert_eq!(synthesizer.bytes(), 0, "{value}");
    }
}

#[test]
fn a_window_without_memory_lets_its_oldest_events_go() {
    let mut windows = at_1000(json!({ "window": { "every": "1s" } }));
    for n in 0..10 {
        send_large(&mut windows, "", n, 1_000);
    }
    assert!(windows.trim(5 * EVENT_BYTES));
    assert!(windows.bytes() <= 5 * EVENT_BYTES);
    assert_eq!(counted(&windows), Counts { keys: 1, events: 4, dropped: 6, evicted: 0, bytes: 0 });
    assert!(!windows.trim(5 * EVENT_BYTES));
    assert_eq!(ticked(&mut windows, 2_000), ["6 7 8 9 dropped 6"]);
    assert_eq!(windows.bytes(), 0);
}

#[test]
fn a_count_without_memory_goes_on_with_what_is_left() {
    let mut counter = at_1000(json!({ "count": 4 }));
    for n in 0..3 {
        send_large(&mut counter, "", n, 1_000);
    }
    assert!(counter.trim(2 * EVENT_BYTES));
    assert_eq!(counted(&counter), Counts { keys: 1, events: 1, dropped: 2, evicted: 0, bytes: 0 });
    send_large(&mut counter, "", 3, 1_000);
    send_large(&mut counter, "", 4, 1_000);
    assert_eq!(send_large(&mut counter, "", 5, 1_000), ["2 3 4 5 dropped 2"]);
    // Nothing at all fits.
    send_large(&mut counter, "", 6, 1_000);
    assert!(counter.trim(0));
    assert_eq!((counter.bytes(), counter.counts().keys), (0, 0));
}

#[test]
fn the_least_recently_used_keys_go_before_events_of_the_last() {
    let mut counter = at_1000(json!({ "key": "${ .k }", "count": 10 }));
    for (n, key) in ["a", "b", "c", "a", "c", "c"].iter().enumerate() {
        send_large(&mut counter, key, n as u64, 1_000);
    }
    assert!(counter.trim(6 * EVENT_BYTES));
    assert_eq!(counted(&counter), Counts { keys: 2, events: 5, dropped: 1, evicted: 1, bytes: 0 });
    assert!(counter.trim(3 * EVENT_BYTES));
    assert_eq!(counted(&counter), Counts { keys: 1, events: 2, dropped: 4, evicted: 2, bytes: 0 });
}

#[test]
fn one_of_each_filter_lets_the_oldest_go() {
    let mut all = at_1000(json!({ "all": true }));
    let event = |n: u64| Arc::new(json!({ "n": n, "text": "x".repeat(EVENT_BYTES) }));
    all.handle(1, &event(1), 1_000).unwrap();
    assert!(all.trim(EVENT_BYTES));
    assert_eq!(counted(&all), Counts { keys: 0, events: 0, dropped: 1, evicted: 0, bytes: 0 });
    all.handle(0, &event(2), 1_000).unwrap();
    assert_eq!(shown(&all.handle(1, &event(3), 1_000).unwrap()), ["2 3"]);
}

#[test]
fn a_rate_without_memory_does_not_fire_without_reason() {
    let mut slow = at_1000(json!({ "rate": { "below": 50, "per": "100ms" } }));
    for n in 0..200 {
        assert_eq!(send(&mut slow, "", n, 1_000 + n), NOTHING);
        slow.trim(slow.bytes() / 2);
    }
    assert!(slow.due_ms() >= Some(1_200), "{:?}", slow.due_ms());
    let mut fast = at_1000(json!({ "rate": { "above": 50, "per": "100ms" } }));
    for n in 0..50 {
        assert_eq!(send(&mut fast, "", n, 1_000), NOTHING);
    }
    assert!(fast.trim(fast.bytes() - 1) && fast.counts().dropped == 0);
    assert_eq!(send(&mut fast, "", 50, 1_000), NOTHING);
    assert_eq!(send(&mut fast, "", 51, 1_000), ["51"]);
}

/// The form in which states were stored before events had weights.
#[test]
fn stored_states_have_the_form_that_they_had() {
    let text = r#"{"condition":"window","origin_ms":-500,"keys":[["a",{"Window":{"events":[[-200,{"n":1,"k":"a"}],[-100,{"n":2,"k":"a"}]],"passed_ms":-500,"dropped":3}}]],"long_queue":false,"dropped":3,"evicted":0}"#;
    let state: State = serde_json::from_str(text).unwrap();
    assert_eq!(serde_json::to_string(&state).unwrap(), text);
    let value = json!({ "key": "${ .k }", "window": { "every": "1s" } });
    let mut restored = Synthesizer::restore(rule(value), state.clone(), 5_000);
    assert_eq!(restored.bytes(), state.bytes());
    assert_eq!(ticked(&mut restored, 5_500), ["a: 1 2 dropped 3"]);
}

fn rules() -> impl Strategy<Value = Value> {
    let conditions = prop_oneof![
        (1u64..6).prop_map(|count| json!({ "count": count })),
        (1u64..6).prop_map(|count| json!({ "count": count, "within": "30ms" })),
        (1u64..50).prop_map(|every| json!({ "window": { "every": format!("{every}ms"), "of": "60ms" } })),
        (0u64..5).prop_map(|above| json!({ "rate": { "above": above, "per": "40ms" } })),
        (1u64..5).prop_map(|below| json!({ "rate": { "below": below, "per": "40ms" } })),
        Just(json!({ "silence": "20ms" })),
        Just(json!({ "all": true, "within": "40ms" })),
        Just(json!({ "threshold": { "value": "${ .n }", "above": 20, "below": 10 } })),
    ];
    (conditions, any::<bool>(), 1u64..5).prop_map(|(mut rule, keyed, limit)| {
        if keyed {
            rule["key"] = json!("${ .k }");
            rule["limit"] = json!(limit);
        }
        rule
    })
}

proptest! {
    #[test]
    fn the_sum_is_what_a_recount_gives(
        value in rules(),
        steps in prop::collection::vec((0u64..15, 0u64..6, 0usize..300, prop::option::weighted(0.2, 0usize..4_000)), 0..80),
    ) {
        let mut synthesizer = Synthesizer::new(rule(value.clone()), 1_000);
        let mut now_ms = 1_000;
        for (n, (gap, key, size, limit)) in steps.into_iter().enumerate() {
            now_ms += gap;
            let event = json!({ "n": n % 40, "k": format!("k{key}"), "list": vec![n; size], "text": "x".repeat(size) });
            synthesizer.handle(n % 2, &Arc::new(event), now_ms).unwrap();
            prop_assert_eq!(synthesizer.bytes(), recounted(&synthesizer));
            if let Some(max_bytes) = limit {
                let (before, held) = (synthesizer.counts(), synthesizer.bytes());
                let has_trimmed = synthesizer.trim(max_bytes);
                let counts = synthesizer.counts();
                prop_assert_eq!(counts.bytes, recounted(&synthesizer));
                prop_assert_eq!(has_trimmed, counts.bytes < held);
                prop_assert_eq!((before.events - counts.events) as u64, counts.dropped - before.dropped);
                // The state of the last key may be more than there is room for.
                prop_assert!(counts.bytes <= max_bytes || counts.keys == 1 && counts.events == 0);
            }
            if n % 11 == 10 {
                let text = serde_json::to_string(&synthesizer.state(now_ms)).unwrap();
                let bytes = synthesizer.bytes();
                let state = serde_json::from_str(&text).unwrap();
                synthesizer = Synthesizer::restore(rule(value.clone()), state, now_ms);
                prop_assert_eq!(synthesizer.bytes(), bytes);
            }
        }
        synthesizer.trim(0);
        prop_assert!(synthesizer.counts().events == 0 && synthesizer.counts().keys <= 1);
    }
}
