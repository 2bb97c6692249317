//! Any text as a definition: it is compiled, drawn and, if it is one, run for a few steps. Nothing panics.

use std::sync::Arc;

use edgefaas_workflow::instance::{Cut, Permits};
use edgefaas_workflow::{Action, Environment, Event, Instance, WorkflowError, compile, flowchart, graph};
use serde_json::{Value, json};

/// Events an instance gets at most.
const EVENTS: usize = 64;

/// The first byte decides how answers come, the rest is the definition.
pub fn run(input: &[u8]) {
    let Some((seed, text)) = input.split_first() else { return };
    let Ok(text) = std::str::from_utf8(text) else { return };
    definition(text, *seed);
}

/// The same with text. True if it is a definition.
pub fn definition(text: &str, seed: u8) -> bool {
    let program = match compile(text, "any.yaml") {
        Ok(compiled) => compiled.program,
        Err(error) => {
            assert!(!error.problems.is_empty(), "an error without a problem");
            assert!(!error.to_string().is_empty());
            return false;
        }
    };
    let _ = graph::mermaid(&flowchart(&program));
    let mut instance =
        Instance::new(Arc::from("any"), Arc::new(json!({"x": 1, "list": [1, 2]})), u64::from(seed), 0);
    let (secrets, runtime) = (json!({}), json!({}));
    let mut now_ms = 0;
    let mut open = vec![Event::Start];
    for turn in 0..EVENTS {
        let Some(event) = open.pop() else { break };
        let environment = Environment {
            now_ms,
            unix_ms: now_ms,
            secrets: &secrets,
            runtime: &runtime,
            observed: true,
            memory_bytes: u64::MAX,
            cut: Cut::Memory,
            permits: Permits::ANY_MESSAGE,
        };
        let actions = instance.advance(&program, event, &environment);
        let bytes = instance.to_bytes(now_ms).unwrap_or_default();
        assert!(Instance::from_bytes(&bytes, &program, now_ms).is_ok(), "what was written is not read");
        actions
            .into_iter()
            .filter_map(|action| answer(action, seed, turn))
            .for_each(|event| open.push(event));
        if let (true, Some(due_ms)) = (open.is_empty(), instance.due_ms()) {
            now_ms = now_ms.max(due_ms);
            open.push(Event::Tick);
        }
        if instance.status() == edgefaas_workflow::Status::Faulted
            && seed.is_multiple_of(2)
            && turn < EVENTS / 2
        {
            open.push(Event::Retry);
        }
    }
    true
}

fn answer(action: Action, seed: u8, turn: usize) -> Option<Event> {
    let fails = (usize::from(seed) >> (turn % 8)) & 1 == 1;
    let result = match fails {
        true => Err(WorkflowError::new(edgefaas_workflow::ErrorKind::Communication, "no")),
        false => Ok(Arc::new(Value::from(turn))),
    };
    match action {
        Action::Call { frame, .. } | Action::Request { frame, .. } | Action::Document { frame, .. } => {
            Some(Event::Ended { frame, result })
        }
        Action::Script { frame, wait: true, .. } | Action::Workflow { frame, wait: true, .. } => {
            Some(Event::Ended { frame, result })
        }
        Action::Listen { frame, filters, .. } => {
            let filter = filters.first()?;
            let kind = filter.attribute("type").unwrap_or("any");
            let event = json!({"specversion": "1.0", "id": "1", "source": "/any", "type": kind, "data": {"x": turn}});
            Some(Event::Message { frame, source: 0, event: Arc::new(event) })
        }
        Action::Continue => Some(Event::Continue),
        _ => None,
    }
}
