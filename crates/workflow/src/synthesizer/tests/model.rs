//! Every condition against a plain model that looks at the whole past in each millisecond.

use proptest::prelude::*;
use serde_json::json;

use super::*;

const START: u64 = 1_000;

/// When an event came, and its number.
type Came = (u64, u64);
/// When it was met, for which key, and the numbers of its events.
type Met = (u64, String, Vec<u64>);

#[derive(Debug, Clone)]
enum Condition {
    Count { n: usize, within: Option<u64> },
    Window { every: u64, of: u64 },
    Above { above: usize, per: u64 },
    Below { below: usize, per: u64 },
    Silence { wait: u64 },
    All { within: u64 },
    Threshold { above: u64, below: u64 },
}

impl Condition {
    fn rule(&self, keyed: bool) -> Value {
        let ms = |ms: &u64| format!("{ms}ms");
        let mut rule = match self {
            Self::Count { n, within: None } => json!({ "count": n }),
            Self::Count { n, within: Some(within) } => json!({ "count": n, "within": ms(within) }),
            Self::Window { every, of } => json!({ "window": { "every": ms(every), "of": ms(of) } }),
            Self::Above { above, per } => json!({ "rate": { "above": above, "per": ms(per) } }),
            Self::Below { below, per } => json!({ "rate": { "below": below, "per": ms(per) } }),
            Self::Silence { wait } => json!({ "silence": ms(wait) }),
            Self::All { within } => json!({ "all": true, "within": ms(within) }),
            Self::Threshold { above, below } => {
                json!({ "threshold": { "value": "${ .v }", "above": above, "below": below } })
            }
        };
        if keyed {
            rule["key"] = json!("${ .k }");
        }
        rule
    }

    /// What happens to one key by `end`; without keys it begins at the start, else with the first event.
    fn naive(&self, came: &[Came], keyed: bool, end: u64) -> Vec<(u64, Vec<u64>)> {
        let begin = if keyed { came.first().map_or(end + 1, |(at, _)| *at) } else { START };
        // Of the first `upto` events those after `from`.
        let since = |upto: usize, from: i64| came[..upto].iter().filter(move |(at, _)| *at as i64 > from);
        let numbers = |events: &[Came]| events.iter().map(|(_, n)| *n).collect::<Vec<_>>();
        let mut met = Vec::new();
        let (mut done, mut past, mut armed) = (0, false, true);
        let mut upto = 0;
        for now in begin..=end {
            let ago = |ms: u64| now as i64 - ms as i64;
            // What is due comes before the events.
            match self {
                Self::Window { every, of } if now > START && (now - START).is_multiple_of(*every) => {
                    let events: Vec<_> = since(upto, ago(*of) - 1).copied().collect();
                    if !events.is_empty() {
                        met.push((now, numbers(&events)));
                    }
                }
                Self::Below { below, per }
                    if armed && now >= begin + per && since(upto, ago(*per)).count() < *below =>
                {
                    met.push((now, vec![]));
                    armed = false;
                }
                Self::Silence { wait } => {
                    let last = came[..upto].last();
                    if armed && now >= last.map_or(begin, |(at, _)| *at) + wait {
                        met.push((now, last.map(|(_, n)| *n).filter(|_| upto > 0).into_iter().collect()));
                        armed = false;
                    }
                }
                _ => {}
            }
            while upto < came.len() && came[upto].0 == now {
                let event = came[upto];
                upto += 1;
                match self {
                    Self::Count { n, within } => {
                        let young = |event: &&Came| within.is_none_or(|within| event.0 + within > now);
                        let events: Vec<_> = came[done..upto].iter().filter(young).copied().collect();
                        if events.len() == *n {
                            met.push((now, numbers(&events)));
                            done = upto;
                        }
                    }
                    Self::Above { above, per } => {
                        if !past && since(upto, ago(*per)).count() > *above {
                            met.push((now, vec![event.1]));
                            past = true;
                        }
                    }
                    Self::Below { below, per } => armed |= since(upto, ago(*per)).count() >= *below,
                    Self::Silence { .. } => armed = true,
                    Self::All { within } => {
                        let newest = |source: u64| {
                            let mut events = came[done..upto].iter().rev();
                            events.find(|(at, n)| n % 2 == source && at + within > now).copied()
                        };
                        if let (Some(first), Some(second)) = (newest(0), newest(1)) {
                            met.push((now, numbers(&[first, second])));
                            done = upto;
                        }
                    }
                    Self::Threshold { above, below } => {
                        let value = value_of(event.1);
                        if past {
                            past = value > *below;
                        } else if value > *above {
                            met.push((now, vec![event.1]));
                            past = true;
                        }
                    }
                    Self::Window { .. } => {}
                }
            }
            if let Self::Above { above, per } = self {
                past &= since(upto, ago(*per)).count() > *above;
            }
        }
        met
    }
}

/// What the thresholds look at.
fn value_of(n: u64) -> u64 {
    n.wrapping_mul(2_654_435_761) % 13
}

fn condition() -> impl Strategy<Value = Condition> {
    prop_oneof![
        (1usize..6, proptest::option::of(1u64..80)).prop_map(|(n, within)| Condition::Count { n, within }),
        (1u64..50, 0u64..120).prop_map(|(every, more)| Condition::Window { every, of: every + more }),
        (0usize..5, 1u64..80).prop_map(|(above, per)| Condition::Above { above, per }),
        (1usize..5, 1u64..80).prop_map(|(below, per)| Condition::Below { below, per }),
        (1u64..60).prop_map(|wait| Condition::Silence { wait }),
        (1u64..80).prop_map(|within| Condition::All { within }),
        (0u64..12, 0u64..4)
            .prop_map(|(above, less)| Condition::Threshold { above, below: above.saturating_sub(less) }),
    ]
}

/// What is done after so many milliseconds.
#[derive(Debug, Clone)]
enum Step {
    Event(u8),
    Tick,
    /// The node is restarted, with a clock that is so much earlier.
    Restart,
}

fn steps() -> impl Strategy<Value = Vec<(u64, Step)>> {
    let step = prop_oneof![
        12 => (0u8..3).prop_map(Step::Event),
        3 => Just(Step::Tick),
        1 => Just(Step::Restart),
    ];
    let gap = prop_oneof![3 => Just(0), 6 => 1u64..12, 2 => 10u64..100];
    proptest::collection::vec((gap, step), 0..60)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3_000))]

    #[test]
    fn it_does_what_the_model_does(
        condition in condition(), steps in steps(), keyed in any::<bool>(), on_time in any::<bool>(),
    ) {
        let value = condition.rule(keyed);
        let mut synthesizer = Synthesizer::new(rule(value.clone()), START);
        let (mut now, mut behind, mut n) = (START, 0, 0);
        let mut met: Vec<Met> = Vec::new();
        let mut came: Vec<(String, Vec<Came>)> = Vec::new();
        let note = |firings: Vec<Firing>, now: u64, met: &mut Vec<Met>| {
            for firing in firings {
                let key = firing.key.map_or(String::new(), |key| key.as_str().unwrap().to_owned());
                let numbers = firing.events.iter().map(|event| event["n"].as_u64().unwrap()).collect();
                met.push((now - firing.late_ms, key, numbers));
            }
        };
        let steps = steps.into_iter().chain([(500, Step::Tick)]);
        for (gap, step) in steps {
            let until = now + gap;
            // A caller that is on time does not miss what is due on the way.
            while on_time && let Some(due) = synthesizer.due_ms().filter(|due| due + behind <= until) {
                now = due + behind;
                let firings = synthesizer.tick(due);
                prop_assert!(firings.iter().all(|firing| firing.late_ms == 0));
                note(firings, now, &mut met);
            }
            now = until;
            match step {
                Step::Tick => {
                    while synthesizer.due_ms().is_some_and(|due| due + behind <= now) {
                        note(synthesizer.tick(now - behind), now, &mut met);
                    }
                }
                Step::Restart => {
                    let text = serde_json::to_string(&synthesizer.state(now - behind)).unwrap();
                    behind = now - 7;
                    let state = serde_json::from_str(&text).unwrap();
                    synthesizer = Synthesizer::restore(rule(value.clone()), state, now - behind);
                }
                Step::Event(key) => {
                    let key = if keyed { format!("k{key}") } else { String::new() };
                    let event = Arc::new(json!({ "n": n, "k": key, "v": value_of(n) }));
                    let source = usize::from(n % 2 == 1);
                    note(synthesizer.handle(source, &event, now - behind).unwrap(), now, &mut met);
                    match came.iter_mut().find(|(other, _)| *other == key) {
                        Some((_, events)) => events.push((now, n)),
                        None => came.push((key, vec![(now, n)])),
                    }
                    n += 1;
                }
            }
            let counts = synthesizer.counts();
            prop_assert!(counts.events as u64 <= n && counts.evicted == 0, "{:?}", counts);
        }
        if !keyed && came.is_empty() {
            came.push((String::new(), vec![]));
        }
        let mut expected: Vec<Met> = Vec::new();
        for (key, events) in &came {
            let naive = condition.naive(events, keyed, now);
            expected.extend(naive.into_iter().map(|(at, numbers)| (at, key.clone(), numbers)));
        }
        // Of one key they come in order.
        for (key, _) in &came {
            prop_assert!(met.iter().filter(|met| met.1 == *key).is_sorted_by_key(|met| met.0));
        }
        met.sort();
        expected.sort();
        prop_assert_eq!(met, expected);
    }
}
