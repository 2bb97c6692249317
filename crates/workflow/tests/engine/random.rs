//! Programs that nobody would write, with answers in any order: rebuilt from its bytes after every event, an instance
//! goes the same way as one that is not.

use edgefaas_workflow::{ErrorKind, Event, Status};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::host::{Host, around, error, program};

/// A task, as its YAML in one line.
fn task(depth: u32) -> BoxedStrategy<String> {
    let leaf = prop_oneof![
        Just("set: {n: '${ (.n? // 0) + 1 }'}".to_owned()),
        Just("set: '${ [.] }'".to_owned()),
        Just("set: '${ $context }', export: {as: .}".to_owned()),
        Just("call: f".to_owned()),
        Just("call: f, with: '${ {i: .} }', timeout: {after: 3s}".to_owned()),
        Just("call: http, with: {method: get, endpoint: 'http://x.example/'}".to_owned()),
        Just("run: {workflow: {name: w}}".to_owned()),
        Just("run: {script: {language: js, code: x}, await: false}".to_owned()),
        Just("wait: 2s".to_owned()),
        Just("wait: 0s".to_owned()),
        Just("raise: {error: {type: mine, status: 500}}".to_owned()),
        Just("emit: {event: {with: {type: told, data: '${ . }'}}}".to_owned()),
        Just("set: '${ .x.y.z }'".to_owned()),
        Just("call: f, if: '(.n? // 0) < 2', export: {as: '${ [$context, .] }'}".to_owned()),
        Just("listen: {to: {one: {with: {type: a}}}}".to_owned()),
        Just(
            "listen: {to: {all: [{with: {type: a}}, {with: {type: b}}]}}, timeout: {after: 9s}".to_owned()
        ),
        Just("listen: {to: {any: [{with: {type: a}}], until: 'length > 2'}}".to_owned()),
        Just("listen: {to: {any: [{with: {type: a}}]}}, metadata: {events: {count: 2}}".to_owned()),
        Just("listen: {to: {any: [{with: {type: a}}]}}, metadata: {events: {silence: 5s}}".to_owned()),
        Just("set: '${ . }', if: '(.n? // 0) > 1', then: exit".to_owned()),
    ];
    if depth == 0 {
        return leaf.boxed();
    }
    let list = move || block(depth - 1);
    prop_oneof![
        3 => leaf,
        1 => list().prop_map(|list| format!("do: {list}")),
        1 => (list(), any::<bool>()).prop_map(|(list, compete)| format!("fork: {{compete: {compete}, branches: {list}}}")),
        1 => list().prop_map(|list| format!("for: {{in: '[1, 2, 3]'}}, do: {list}")),
        1 => (list(), 1..4u32)
            .prop_map(|(list, n)| format!("for: {{in: '[1, 2, 3]'}}, metadata: {{parallel: {n}}}, do: {list}")),
        1 => (list(), list()).prop_map(|(list, handler)| format!("try: {list}, catch: {{do: {handler}}}")),
        1 => list().prop_map(|list| format!(
            "try: {list}, catch: {{retry: {{delay: 1s, jitter: {{to: 500ms}}, limit: {{attempt: {{count: 2, duration: 4s}}}}}}}}"
        )),
        1 => list().prop_map(|list| format!("do: {list}, timeout: {{after: 6s}}")),
        1 => list().prop_map(|list| format!(
            "listen: {{to: {{any: [{{with: {{type: a}}}}], until: {{one: {{with: {{type: b}}}}}}}}}}, foreach: {{do: {list}}}"
        )),
    ]
    .boxed()
}

fn block(depth: u32) -> BoxedStrategy<String> {
    prop::collection::vec(task(depth), 1..4)
        .prop_map(|tasks| {
            let tasks = tasks.iter().enumerate().map(|(index, task)| {
                let last = index + 1 == tasks.len();
                // What comes after it needs another way to it.
                let raises = task.starts_with("raise");
                let condition = if raises && !last { ", if: '(.n? // 1) > 0'" } else { "" };
                format!("{{t{index}: {{{task}{condition}}}}}")
            });
            format!("[{}]", tasks.collect::<Vec<_>>().join(", "))
        })
        .boxed()
}

/// What is around an instance does something.
#[derive(Debug, Clone)]
enum Happens {
    Answer { which: usize, value: u8 },
    Fails { which: usize },
    Sent { kind: bool },
    Time { ms: u64 },
    Retry,
}

fn happens() -> impl Strategy<Value = Happens> {
    prop_oneof![
        4 => (any::<usize>(), any::<u8>()).prop_map(|(which, value)| Happens::Answer { which, value }),
        1 => any::<usize>().prop_map(|which| Happens::Fails { which }),
        3 => any::<bool>().prop_map(|kind| Happens::Sent { kind }),
        3 => (0..5_000u64).prop_map(|ms| Happens::Time { ms }),
        1 => Just(Happens::Retry),
    ]
}

/// Everything that can be seen of an instance from outside.
#[derive(Debug, PartialEq)]
struct Seen {
    status: Status,
    result: Option<Result<Value, String>>,
    context: Value,
    asked: Vec<(u32, String, Value)>,
    published: Vec<Value>,
    cancelled: Vec<u32>,
    notes: usize,
    steps: u64,
    due_ms: Option<u64>,
}

fn seen(host: &Host) -> Seen {
    let result = host.instance.result().map(|result| match result {
        Ok(output) => Ok((**output).clone()),
        Err(error) => Err(error.to_json().to_string()),
    });
    Seen {
        status: host.status(),
        result,
        context: host.instance.context().to_json(),
        asked: host
            .asked_ever
            .iter()
            .map(|(frame, asked)| (*frame, asked.name().to_owned(), asked.body()))
            .collect(),
        published: host.events_sent(),
        cancelled: host.cancelled.clone(),
        notes: host.notes.len(),
        steps: host.instance.steps(),
        due_ms: host.instance.due_ms(),
    }
}

fn drive(host: &mut Host, script: &[Happens]) {
    host.start();
    for happens in script {
        let frame = |which: usize| {
            let at = which.checked_rem(host.asked.len())?;
            host.asked.keys().nth(at).copied()
        };
        match happens {
            Happens::Answer { which, value } => {
                if let Some(frame) = frame(*which) {
                    host.ended(frame, Ok(json!({"n": value})));
                }
            }
            Happens::Fails { which } => {
                if let Some(frame) = frame(*which) {
                    host.ended(frame, Err(error(ErrorKind::Communication, 503)));
                }
            }
            Happens::Sent { kind } => host.send_event(if *kind { "a" } else { "b" }, json!({"n": 1})),
            Happens::Time { ms } => host.until(host.now_ms + ms),
            Happens::Retry => host.event(Event::Retry),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    #[test]
    fn rebuilding_changes_nothing(tasks in block(3), script in prop::collection::vec(happens(), 0..40), seed in any::<u64>()) {
        let text = around(&format!("timeout: {{after: 60s}}\ndo: {tasks}"));
        let program = program(&text);
        let mut rebuilt = Host::of(program.clone(), json!({"n": 0}), seed);
        drive(&mut rebuilt, &script);
        let mut whole = Host::of(program, json!({"n": 0}), seed);
        whole.rebuilds = false;
        drive(&mut whole, &script);
        prop_assert_eq!(seen(&rebuilt), seen(&whole));
        // Given time, it ends: the whole has its timeout.
        whole.until(whole.now_ms + 60_000);
        prop_assert!(whole.status().is_ended());
    }
}
