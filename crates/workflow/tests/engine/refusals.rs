//! Effects that the host refuses: they are errors of their task, and a repeated turn has the same ones.

use std::sync::Arc;

use edgefaas_workflow::instance::{Content, Effect, Outgoing, Permits, Refused};
use edgefaas_workflow::{Action, Environment, ErrorKind, Event, Instance, Status, WorkflowError};
use serde_json::{Value, json};

use crate::host::{Host, around, environment, program};

fn none_to_secret_topics(outgoing: &Outgoing) -> Result<(), WorkflowError> {
    match &outgoing.topic {
        Some(topic) if topic.starts_with("secret/") => {
            Err(WorkflowError::new(ErrorKind::Authorization, format!("not to {topic}")))
        }
        _ => Ok(()),
    }
}

fn run(text: &str, secrets: &Value, permits: Permits<'_>) -> (Instance, Vec<Action>) {
    let (program, runtime) = (program(text), json!({}));
    let mut instance = Instance::new(Arc::from("one"), Arc::new(json!({"to": "secret/x"})), 7, 0);
    let environment = Environment { permits, ..environment(0, secrets, &runtime) };
    let actions = instance.advance(&program, Event::Start, &environment);
    (instance, actions)
}

const SENDS: &str = "do:
  - tell: {call: asyncapi, with: {channel: open/a, message: {payload: 1}}}
  - try:
      try:
        - hide: {call: asyncapi, with: {channel: '${ $workflow.input.to }', message: {payload: 2}}}
        - never: {set: {reached: true}}
      catch: {as: e, do: [seen: {set: '${ $e | {type, status, detail, instance} }'}]}
  - after: {emit: {event: {with: {type: 'done', data: '${ . }'}}}}
";

#[test]
fn what_must_not_be_sent_is_an_error_of_its_task() {
    let text = around(SENDS);
    let (instance, actions) = run(&text, &json!({}), Permits::Asked(&none_to_secret_topics));
    let sent: Vec<&Outgoing> = actions
        .iter()
        .filter_map(|action| match action {
            Action::Publish(outgoing) => Some(outgoing),
            _ => None,
        })
        .collect();
    assert_eq!(sent.len(), 2, "the refused message is not among them: {sent:?}");
    let Content::CloudEvent(event) = &sent[1].content else { panic!("an event: {sent:?}") };
    assert_eq!(
        event["data"],
        json!({
            "type": "https://serverlessworkflow.io/spec/1.0.0/errors/authorization",
            "status": 403,
            "detail": "not to secret/x",
            "instance": "/do/1/try/try/0/hide",
        })
    );
    assert_eq!(instance.status(), Status::Completed);
    assert_eq!(instance.refused().len(), 1);
    assert_eq!(instance.refused()[0].effect, Effect::Send);
}

#[test]
fn a_repeated_turn_has_the_same_refusals_and_no_others() {
    let text = around(SENDS);
    let (live, _) = run(&text, &json!({}), Permits::Asked(&none_to_secret_topics));
    // The record passes through its stored form.
    let stored = serde_json::to_vec(live.refused()).unwrap();
    let refused: Vec<Refused> = serde_json::from_slice(&stored).unwrap();
    // The permissions are others now, which a repeated turn does not see.
    let (repeated, _) = run(&text, &json!({}), Permits::Recorded(&refused));
    assert_eq!(repeated.to_bytes(0).unwrap(), live.to_bytes(0).unwrap());
    let (allowed, _) = run(&text, &json!({}), Permits::ANY_MESSAGE);
    assert_ne!(allowed.result(), live.result());
    let (repeated, _) = run(&text, &json!({}), Permits::Recorded(&[]));
    assert_eq!(repeated.to_bytes(0).unwrap(), allowed.to_bytes(0).unwrap());
}

#[test]
fn a_task_that_names_a_secret_that_is_not_there_does_not_begin() {
    let request = around(
        "use: {secrets: [api]}
do:
  - ask:
      call: http
      with:
        method: get
        endpoint: {uri: 'http://localhost/x', authentication: {bearer: {token: '${ $secrets.api }'}}}
",
    );
    let mut host = Host::new(&request, json!({}));
    host.secrets = json!({});
    host.start();
    let error = host.fault();
    assert_eq!((error.status, error.instance.as_deref()), (403, Some("/do/0/ask")));
    assert!(error.kind.ends_with("/authorization"), "{error:?}");
    assert!(
        error.detail.as_deref().is_some_and(|detail| detail.contains("secret `api` is not set")),
        "{error:?}"
    );
    assert!(host.asked_ever.is_empty(), "no request with a token that is null");
}

#[test]
fn secrets_are_looked_for_where_a_task_reads_them_and_only_there() {
    let fault = |tasks: &str| {
        let mut host = Host::new(&around(tasks), json!({}));
        host.secrets = json!({});
        host.start();
        match host.instance.result() {
            Some(Err(error)) => Some((error.status, error.instance.clone().unwrap_or_default())),
            _ => None,
        }
    };
    let at = |path: &str| Some((403, path.to_owned()));
    assert_eq!(fault("do: [a: {set: {x: '${ $secrets.key }'}}]"), at("/do/0/a"));
    assert_eq!(fault(r#"do: [a: {set: {x: '${ $secrets["key"] }'}}]"#), at("/do/0/a"));
    assert_eq!(fault(r#"do: [a: {set: {x: '${ "Bearer \($secrets.key)" }'}}]"#), at("/do/0/a"));
    assert_eq!(fault("do: [a: {set: {x: '${ $secrets.key.part // 1 }'}}]"), at("/do/0/a"));
    // Policies in `use` belong to each task that names them.
    let uses = "use: {timeouts: {slow: {after: '${ $secrets.key }'}}, retries: {again: {delay: '${ $secrets.key }'}}}";
    assert_eq!(fault(&format!("{uses}\ndo: [a: {{set: {{}}, timeout: slow}}]")), at("/do/0/a"));
    let retried = format!("{uses}\ndo: [a: {{try: [b: {{set: {{}}}}], catch: {{retry: again}}}}]");
    assert_eq!(fault(&retried), at("/do/0/a"));
    assert_eq!(fault(&format!("{uses}\ntimeout: slow\ndo: [a: {{set: {{}}}}]")).unwrap().0, 403);
    assert_eq!(fault(&format!("{uses}\ndo: [a: {{set: {{}}}}]")), None);
    // The inner task, not the list around it.
    assert_eq!(fault("do: [a: {do: [b: {set: {x: '${ $secrets.key }'}}]}]"), at("/do/0/a/do/0/b"));
    // Skipped, not read, or read as something that may be missing.
    assert_eq!(fault("do: [a: {if: '${ false }', set: {x: '${ $secrets.key }'}}]"), None);
    assert_eq!(fault("do: [a: {set: {x: '${ $secrets.key? }'}}]"), None);
    assert_eq!(fault("do: [a: {set: {x: '${ $secrets | keys }'}}]"), None);
}
