//! try, catch and what they let through.

use edgefaas_workflow::ErrorKind;
use edgefaas_workflow::instance::NoteKind;
use serde_json::{Value, json};

use crate::host::{Host, error};

/// A call in a `try` with this `catch`.
fn tries(catch: &str) -> String {
    format!(
        "
do:
  - guarded:
      try:
        - work: {{call: work}}
      catch: {catch}
  - after: {{set: '${{ {{after: .}} }}'}}
"
    )
}

/// What comes of it when the call fails with a communication error of this status.
fn failing(catch: &str, status: u16) -> Host {
    let mut host = Host::run(&tries(catch), json!({"x": 1}));
    host.answer("work", Err(error(ErrorKind::Communication, status)));
    host
}

#[test]
fn what_is_caught_without_a_handler_is_forgotten() {
    assert_eq!(failing("{}", 500).output(), json!({"after": {"x": 1}}));
}

#[test]
fn errors_are_told_apart() {
    let long = "https://serverlessworkflow.io/spec/1.0.0/errors/communication";
    let other = "https://serverlessworkflow.io/dsl/errors/types/";
    for (with, caught) in [
        ("{status: 503}".to_owned(), true),
        ("{status: 500}".to_owned(), false),
        ("{type: communication}".to_owned(), true),
        (format!("{{type: '{long}', status: 503}}"), true),
        (format!("{{type: '{long}', status: 500}}"), false),
        // The other spelling of the specification's types.
        (format!("{{type: '{other}communication', status: 503}}"), true),
        (format!("{{type: '{other}timeout'}}"), false),
        ("{type: timeout}".to_owned(), false),
        ("{type: unication}".to_owned(), false),
        ("{instance: /do/0/guarded/try/0/work}".to_owned(), true),
        ("{instance: /do/0/guarded/try/1/work}".to_owned(), false),
        ("{title: Communication Error}".to_owned(), true),
        ("{detail: it did not work}".to_owned(), true),
        ("{detail: it}".to_owned(), false),
    ] {
        let host = failing(&format!("{{errors: {{with: {with}}}}}"), 503);
        match caught {
            true => assert_eq!(host.output(), json!({"after": {"x": 1}}), "{with}"),
            false => {
                assert_eq!(host.fault().instance.as_deref(), Some("/do/0/guarded/try/0/work"), "{with}")
            }
        }
    }
}

#[test]
fn conditions_on_errors() {
    for (catch, caught) in [
        ("{when: '$error.status == 503'}", true),
        ("{when: '${ $error.status == 500 }'}", false),
        ("{exceptWhen: '$error.status == 503'}", false),
        ("{exceptWhen: '$error.status == 500'}", true),
        ("{as: problem, when: '$problem.status > 500', exceptWhen: '.x == 2'}", true),
        ("{as: problem, when: '$problem.status > 500', exceptWhen: '.x == 1'}", false),
    ] {
        let host = failing(catch, 503);
        assert_eq!(host.instance.result().is_some_and(Result::is_ok), caught, "{catch}");
    }
    let host = failing("{when: '$error | fromjson'}", 503);
    assert_eq!(host.fault().short_kind(), "expression");
    assert_eq!(host.fault().instance.as_deref(), Some("/do/0/guarded"));
}

#[test]
fn the_handler_sees_the_error_and_the_input() {
    let host = failing("{as: err, do: [note: {set: '${ {err: $err, input: .} }'}]}", 502);
    assert_eq!(host.output()["after"]["input"], json!({"x": 1}));
    let wanted = json!({
        "type": "https://serverlessworkflow.io/spec/1.0.0/errors/communication",
        "status": 502,
        "title": "Communication Error",
        "detail": "it did not work",
        "instance": "/do/0/guarded/try/0/work",
    });
    assert_eq!(host.output()["after"]["err"], wanted);
}

#[test]
fn an_error_in_the_handler_goes_on_to_the_next_try() {
    let tasks = "
do:
  - outer:
      try:
        - inner:
            try:
              - work: {call: work}
            catch:
              do: [again: {raise: {error: {type: mine, status: 418}}}]
      catch: {as: last, do: [note: {set: '${ $last | {type, status, instance} }'}]}
";
    let mut host = Host::run(tasks, json!({}));
    host.answer("work", Err(error(ErrorKind::Runtime, 500)));
    let place = "/do/0/outer/try/0/inner/catch/do/0/again";
    assert_eq!(host.output(), json!({"type": "mine", "status": 418, "instance": place}));
}

#[test]
fn an_error_ends_what_is_tried_at_the_same_time() {
    let tasks = "
do:
  - guarded:
      try:
        - both:
            fork:
              branches:
                - one: {call: one}
                - two: {do: [deep: {call: two}]}
                - three: {listen: {to: {one: {with: {type: x}}}}}
      catch: {do: [note: {set: {caught: true}}]}
";
    let mut host = Host::run(tasks, json!({}));
    let two = *host.asked.iter().find(|(_, asked)| asked.name() == "two").unwrap().0;
    host.answer("one", Err(error(ErrorKind::Communication, 500)));
    assert_eq!(host.output(), json!({"caught": true}));
    assert_eq!(host.cancelled, [two]);
    assert!(host.listens.is_empty());
    assert_eq!(host.noted(NoteKind::Faulted), ["one", "both"]);
    let mut cancelled = host.noted(NoteKind::Cancelled);
    cancelled.sort_unstable();
    assert_eq!(cancelled, ["deep", "three", "two"]);
    assert_eq!(host.noted(NoteKind::Completed), ["note", "guarded"]);
}

#[test]
fn tasks_around_a_failed_one_end_with_each_attempt() {
    let tasks = "
do:
  - guarded:
      try:
        - each:
            for: {each: item, in: .items}
            do:
              - inner:
                  try: [fails: {call: fails}]
                  catch: {errors: {with: {status: 404}}}
      catch: {retry: {limit: {attempt: {count: 2}}}}
";
    let mut host = Host::run(tasks, json!({"items": [1, 2]}));
    host.answer("fails", Err(error(ErrorKind::Communication, 500)));
    assert_eq!(host.noted(NoteKind::Faulted), ["fails", "inner", "each"]);
    host.answer("fails", Ok(json!({})));
    host.answer("fails", Err(error(ErrorKind::Communication, 500)));
    // The third attempt has begun.
    assert_eq!(host.noted(NoteKind::Started).len(), 1 + 3 + 5 + 3);
    let attempt = ["fails", "inner", "each"];
    assert_eq!(host.noted(NoteKind::Faulted), [&attempt[..], &attempt[..]].concat());
    assert_eq!(host.noted(NoteKind::Cancelled), [""; 0]);
}

#[test]
fn raise_inline_by_name_and_with_expressions() {
    let error = |raise: &str| {
        let tasks = format!(
            "
use: {{errors: {{broken: {{type: 'https://example.com/broken', status: 422, title: '${{ .title }}'}}}}}}
do: [fails: {{raise: {{error: {raise}}}}}]
"
        );
        let fault = Host::run(&tasks, json!({"title": "Broken", "status": 409})).fault();
        let mut json = fault.to_json();
        json.as_object_mut().map(|json| json.remove("instance"));
        json
    };
    assert_eq!(
        error("broken"),
        json!({"type": "https://example.com/broken", "status": 422, "title": "Broken"})
    );
    let computed =
        "{type: '${ \"a/\" + .title }', status: '${ .status }', detail: '${ \"it is \\(.status)\" }'}";
    assert_eq!(error(computed), json!({"type": "a/Broken", "status": 409, "detail": "it is 409"}));
    let wrong = error("{type: x, status: '${ .title }'}");
    assert_eq!(wrong["type"], json!("https://serverlessworkflow.io/spec/1.0.0/errors/expression"));
}

#[test]
fn an_expression_without_a_value_fails_its_task() {
    for (tasks, place) in [
        ("do: [a: {set: '${ .x.y.z }'}]", "/do/0/a"),
        ("do: [a: {do: [b: {set: {}, output: {as: 'error(\"no\")'}}]}]", "/do/0/a/do/0/b"),
        ("do: [a: {if: '.x.y', set: {}}]", "/do/0/a"),
        ("do: [a: {for: {in: .x}, do: [b: {set: {}}]}]", "/do/0/a"),
        ("do: [a: {for: {in: '[1]'}, while: '.x.y', do: [b: {set: {}}]}]", "/do/0/a"),
        ("do: [a: {switch: [c: {when: .x.y, then: end}]}]", "/do/0/a"),
        ("do: [a: {wait: '${ .x }'}]", "/do/0/a"),
        ("do: [a: {wait: 1s, timeout: {after: '${ .x }'}}]", "/do/0/a"),
        ("do: [a: {call: f, with: '${ .x.y }'}]", "/do/0/a"),
        ("do: [a: {emit: {event: {with: {type: '${ .x }'}}}}]", "/do/0/a"),
        ("do: [a: {listen: {to: {one: {with: {type: '${ .x.y }'}}}}}]", "/do/0/a"),
        (
            "do: ['a/b~c': {fork: {branches: ['d e': {set: '${ .x.y }'}]}}]",
            "/do/0/a~1b~0c/fork/branches/0/d e",
        ),
    ] {
        let fault = Host::run(tasks, json!({"x": 5})).fault();
        assert_eq!(
            (fault.short_kind(), fault.instance.as_deref()),
            ("expression", Some(place)),
            "{tasks}: {fault}"
        );
    }
}

#[test]
fn an_error_of_the_whole_has_its_place() {
    let fault = Host::run("input: {from: .x.y}\ndo: [a: {set: {}}]", json!({"x": 1})).fault();
    assert_eq!(fault.instance.as_deref(), Some("/input"));
    let fault = Host::run("output: {as: .x.y}\ndo: [a: {set: {x: 1}}]", json!({})).fault();
    assert_eq!(fault.instance.as_deref(), Some("/output"));
}

#[test]
fn a_value_stays_what_it_is_on_the_way_through_the_event_log() {
    // Not every number is the same after a careless conversion to text and back.
    let value: Value =
        serde_json::from_str("[0.1, 1e300, 122.416294033786585, 18446744073709551615, -0.0]").unwrap();
    let mut host = Host::run("do: [a: {call: f}, b: {call: g}]", value.clone());
    host.answer("f", Ok(value.clone()));
    assert_eq!(host.asked.values().next().unwrap().body().to_string(), value.to_string());
    host.answer("g", Ok(json!(null)));
    assert_eq!(host.output(), json!(null));
}

#[test]
fn both_spellings_of_a_type_are_one_type_when_it_is_raised() {
    for raised in ["spec/1.0.0/errors/validation", "dsl/errors/types/validation"] {
        for caught in ["spec/1.0.0/errors/validation", "dsl/errors/types/validation"] {
            let host = Host::run(
                &format!(
                    "do: [a: {{try: [b: {{raise: {{error: {{type: 'https://serverlessworkflow.io/{raised}', status: 400}}}}}}], \
                     catch: {{errors: {{with: {{type: 'https://serverlessworkflow.io/{caught}'}}}}, as: e, \
                     do: [c: {{set: '${{ $e.type }}'}}]}}}}]"
                ),
                json!({}),
            );
            // What is raised stays as it was written.
            assert_eq!(host.output(), json!(format!("https://serverlessworkflow.io/{raised}")), "{caught}");
        }
    }
}
