//! What instances that wait take of the machine's memory. A process of its own, since it looks at all of it.

use std::sync::Arc;

use edgefaas_workflow::instance::{Cut, Permits};
use edgefaas_workflow::{Action, Environment, Event, Instance, Program, Status, compile};
use serde_json::{Value, json};

/// What an instance or a branch that does nothing may take, in bytes.
const MAX_BYTES: usize = 5_000;

/// Resident memory of this process, in bytes.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.trim().strip_suffix(" kB")?.trim().parse::<usize>().ok()).unwrap_or(0) * 1_024
}

fn program(tasks: &str) -> Program {
    let text =
        format!("document: {{dsl: '1.0.0', namespace: test, name: test, version: '1.0.0'}}\n{tasks}");
    match compile(&text, "test.yaml") {
        Ok(compiled) => compiled.program,
        Err(error) => panic!("{error}\n{text}"),
    }
}

fn environment(none: &Value) -> Environment<'_> {
    Environment {
        now_ms: 0,
        unix_ms: 0,
        secrets: none,
        runtime: none,
        observed: false,
        memory_bytes: u64::MAX,
        cut: Cut::Memory,
        permits: Permits::ANY_MESSAGE,
    }
}

fn start(program: &Program, number: usize) -> Instance {
    let none = json!({});
    let environment = environment(&none);
    let input = Arc::new(json!({"order": number, "from": "sensor"}));
    let id = format!("01JD{number:022}");
    let mut instance = Instance::new(id.into(), input, 7, 0);
    let mut event = Event::Start;
    loop {
        let actions = instance.advance(program, event, &environment);
        if !actions.iter().any(|action| matches!(action, Action::Continue)) {
            break;
        }
        event = Event::Continue;
    }
    assert!(matches!(instance.status(), Status::Waiting), "{:?}", instance.status());
    instance
}

#[test]
fn what_waits_takes_little() {
    if resident() == 0 {
        println!("skipped: needs /proc");
        return;
    }
    let branches: String = (0..20).map(|branch| format!("{{b{branch}: {{wait: 1h}}}},")).collect();
    let listens: String = (0..20)
        .map(|branch| format!("{{b{branch}: {{listen: {{to: {{one: {{with: {{type: t{branch}}}}}}}}}}}}},"))
        .collect();
    for (what, tasks, instances, branches) in [
        ("wait", "do: [{a: {wait: 1h}}]".to_owned(), 20_000, 1),
        ("nested wait", "do: [{a: {do: [{b: {wait: 1h}}]}}]".to_owned(), 20_000, 1),
        ("listen", "do: [{a: {listen: {to: {one: {with: {type: x}}}}}}]".to_owned(), 20_000, 1),
        ("fork of waits", format!("do: [{{a: {{fork: {{branches: [{branches}]}}}}}}]"), 1_000, 20),
        ("fork of listens", format!("do: [{{a: {{fork: {{branches: [{listens}]}}}}}}]"), 1_000, 20),
        (
            "parallel loop of waits",
            "do: [{a: {for: {each: x, in: '[range(1000)]'}, metadata: {parallel: 1000}, do: [{w: {wait: 1h}}]}}]".to_owned(),
            20,
            1_000,
        ),
    ] {
        let program = program(&tasks);
        // What the allocator and the interpreter need once.
        drop(start(&program, 0));
        let before = resident();
        let all: Vec<Instance> = (0..instances).map(|number| start(&program, number)).collect();
        let each = resident().saturating_sub(before) / (instances * branches);
        let estimate = all.iter().map(Instance::bytes).sum::<usize>() / (instances * branches);
        println!("{what}: {each} bytes each, {estimate} by its own estimate");
        assert!(each <= MAX_BYTES, "{what}: {each} bytes each");
        assert!(estimate <= MAX_BYTES && estimate * 3 >= each, "{what}: {each} bytes each, estimate {estimate}");
        // Kept, so that the next ones do not take its place.
        std::mem::forget(all);
    }
    drop(Value::Null);
}

#[test]
fn a_turn_that_ended_for_its_memory_ends_there_when_it_is_repeated() {
    let program = program(
        "do: [{a: {for: {each: x, in: '[range(200)]'}, do: [{s: {set: '${ . + {all: ((.all // []) + [.text])} }'}}]}}]",
    );
    let none = json!({});
    let input = Arc::new(json!({"text": "x".repeat(1 << 10)}));
    let new = || Instance::new("01JD".into(), input.clone(), 7, 0);
    let little = Environment { memory_bytes: 64 << 10, ..environment(&none) };
    let mut lived = new();
    lived.advance(&program, Event::Start, &little);
    let cut = lived.cut_after();
    assert!(cut.is_some_and(|works| works < 200), "{cut:?}");
    // What it holds is estimated otherwise, after it was read back.
    let mut repeated = new();
    repeated.advance(
        &program,
        Event::Start,
        &Environment { cut: Cut::Recorded(cut), ..environment(&none) },
    );
    assert_eq!(repeated.to_bytes(0).unwrap(), lived.to_bytes(0).unwrap());
    assert_eq!(repeated.cut_after(), cut);
    // A turn that did not end for that is not cut, whatever the instance holds.
    let mut whole = new();
    whole.advance(&program, Event::Start, &Environment { cut: Cut::Recorded(None), ..little });
    assert!(whole.steps() > lived.steps() && whole.cut_after().is_none());
}

/// Messages are in memory until the turn has ended: it ends when they are many bytes, and all of them are sent in the end.
#[test]
fn a_turn_ends_when_its_messages_are_large() {
    const MESSAGES: usize = 100;
    let program = program(&format!(
        "do: [{{a: {{for: {{each: x, in: '[range({MESSAGES})]'}}, do: [{{p: {{call: asyncapi, with: {{channel: t, message: {{payload: '${{ .text }}' }}}}}}}}]}}}}]"
    ));
    let none = json!({});
    let environment = environment(&none);
    let input = Arc::new(json!({"text": "x".repeat(100 << 10)}));
    let mut instance = Instance::new("01JD".into(), input, 7, 0);
    let (mut sent, mut event) = (0, Event::Start);
    loop {
        let actions = instance.advance(&program, event, &environment);
        let messages = actions.iter().filter(|action| matches!(action, Action::Publish(_))).count();
        assert!(messages <= 11, "{messages} messages of 100 KiB in one turn");
        sent += messages;
        if !actions.iter().any(|action| matches!(action, Action::Continue)) {
            break;
        }
        event = Event::Continue;
    }
    assert!(sent == MESSAGES && instance.status() == Status::Completed, "{sent}, {:?}", instance.status());
}
