//! Data on its way in and out, and what expressions see.

use serde_json::{Value, json};

use crate::host::{Host, START_UNIX_MS, around};

#[test]
fn in_and_out_of_a_task() {
    let tasks = "
do:
  - work:
      input: {from: .a}
      set: '${ {doubled: (. * 2), input: $input} }'
      output: {as: '${ {value: .doubled, input: $input, of: $task.output.doubled} }'}
      export: {as: '${ {last: $output.value, input: $input, here: .} }'}
  - after: {set: '${ {seen: ., context: $context} }'}
";
    let seen = json!({"value": 6, "input": 3, "of": 6});
    let context = json!({"last": 6, "input": 3, "here": seen});
    assert_eq!(Host::run(tasks, json!({"a": 3})).output(), json!({"seen": seen, "context": context}));
}

#[test]
fn objects_as_templates() {
    let tasks = "
do:
  - work:
      input: {from: {x: '${ .a }', fixed: 1}}
      set: {got: '${ . }'}
      output: {as: {out: '${ .got.x }'}}
      export: {as: {kept: '${ .out }'}}
  - after: {set: '${ [., $context] }'}
";
    assert_eq!(Host::run(tasks, json!({"a": 3})).output(), json!([{"out": 3}, {"kept": 3}]));
}

#[test]
fn in_and_out_of_the_whole() {
    let tasks = "
input: {from: .order}
output: {as: '${ {total: ., of: $input.id, raw: $workflow.input.order.id} }'}
do: [work: {set: '${ .price }'}]
";
    let input = json!({"order": {"id": 7, "price": 3}});
    assert_eq!(Host::run(tasks, input).output(), json!({"total": 3, "of": 7, "raw": 7}));
}

#[test]
fn schemas() {
    let schema = |type_name: &str| format!("{{format: json, document: {{type: {type_name}}}}}");
    let number = schema("number");
    for (tasks, place) in [
        (format!("input: {{schema: {number}}}\ndo: [a: {{set: {{}}}}]"), "/input"),
        (format!("output: {{schema: {number}}}\ndo: [a: {{set: {{}}}}]"), "/output"),
        (format!("do: [a: {{set: {{}}, input: {{schema: {number}}}}}]"), "/do/0/a"),
        (format!("do: [a: {{set: {{}}, output: {{schema: {number}}}}}]"), "/do/0/a"),
        (format!("do: [a: {{set: {{}}, export: {{as: '\"x\"', schema: {number}}}}}]"), "/do/0/a"),
    ] {
        let fault = Host::run(&tasks, json!({"x": 1})).fault();
        assert_eq!(
            (fault.short_kind(), fault.status, fault.instance.as_deref()),
            ("validation", 400, Some(place))
        );
        let detail = fault.detail.unwrap_or_default();
        assert!(detail.contains("number"), "{tasks}: {detail}");
    }
    let fits = schema("object");
    let tasks = format!(
        "
input: {{schema: {fits}}}
output: {{schema: {fits}}}
do: [a: {{set: {{}}, input: {{schema: {fits}}}, output: {{as: '{{y: 1}}', schema: {fits}}}, export: {{as: ., schema: {fits}}}}}]
"
    );
    assert_eq!(Host::run(&tasks, json!({"x": 1})).output(), json!({"y": 1}));
}

#[test]
fn a_schema_is_for_what_comes_before_from_and_after_as() {
    let tasks = "
do:
  - work:
      input: {from: .x, schema: {document: {type: object, required: [x]}}}
      set: {v: '${ . }'}
      output: {as: .v, schema: {document: {type: string}}}
";
    assert_eq!(Host::run(tasks, json!({"x": "text"})).output(), json!("text"));
    assert_eq!(Host::run(tasks, json!({"x": 1})).fault().short_kind(), "validation");
    assert_eq!(Host::run(tasks, json!({"y": 1})).fault().short_kind(), "validation");
}

#[test]
fn what_expressions_know() {
    let tasks = "
use: {secrets: [api]}
do:
  - pause: {wait: 5s}
  - look:
      set:
        workflow: '${ $workflow }'
        task: '${ $task }'
        runtime: '${ $runtime.name }'
        secret: '${ $secrets.api }'
        context: '${ $context }'
        input: '${ $input }'
";
    let mut host = Host::run(tasks, json!({"x": 1}));
    host.until(5_000);
    let definition = edgefaas_workflow::document::read(&around(tasks)).unwrap().to_json();
    let at = |ms: u64, text: &str| {
        let unix_ms = START_UNIX_MS + ms;
        json!({"iso8601": text, "epoch": {"seconds": unix_ms / 1000, "milliseconds": unix_ms}})
    };
    let wanted = json!({
        "workflow": {
            "id": "one",
            "definition": definition,
            "input": {"x": 1},
            "startedAt": at(0, "2026-01-01T00:00:00.000Z"),
        },
        "task": {
            "name": "look",
            "reference": "/do/1/look",
            "definition": definition["do"][1]["look"],
            "input": {"x": 1},
            "output": null,
            "startedAt": at(5_000, "2026-01-01T00:00:05.000Z"),
        },
        "runtime": "edgefaas",
        "secret": "key",
        "context": null,
        "input": {"x": 1},
    });
    assert_eq!(host.output(), wanted);
}

#[test]
fn a_task_knows_when_it_started_even_at_its_end() {
    let tasks = "
do:
  - pause: {wait: 5s}
  - slow: {call: slow, output: {as: $task.startedAt.epoch.milliseconds}}
";
    let mut host = Host::run(tasks, json!({}));
    host.until(9_000);
    host.answer("slow", Ok(json!(null)));
    assert_eq!(host.output(), json!(START_UNIX_MS + 5_000));
}

#[test]
fn the_context_is_one_for_all() {
    let tasks = "
do:
  - both:
      fork:
        branches:
          - a: {call: a, export: {as: '${ $context + {a: .} }'}}
          - b: {call: b, export: {as: '${ $context + {b: .} }'}}
  - after: {set: '${ $context }'}
";
    let mut host = Host::run(tasks, json!({}));
    host.answer("b", Ok(json!(2)));
    host.answer("a", Ok(json!(1)));
    assert_eq!(host.output(), json!({"b": 2, "a": 1}));
}

#[test]
fn what_a_task_waits_with_survives_any_change_around_it() {
    // The input of a call is that of its beginning, though the context has changed since.
    let tasks = "
do:
  - both:
      fork:
        branches:
          - a: {call: a, output: {as: '${ [., $input, $context] }'}}
          - b: {call: b, export: {as: .}}
";
    let mut host = Host::new(&around(tasks), json!({"x": 1}));
    host.start();
    host.answer("b", Ok(json!("new")));
    host.answer("a", Ok(Value::Null));
    assert_eq!(host.output(), json!([[null, {"x": 1}, "new"], "new"]));
}

#[test]
fn a_task_knows_its_input_and_output_before_they_were_transformed() {
    let tasks = "
do:
  - one:
      input: {from: .a}
      set: {raw: '${ $task.input }', from: '${ $input }'}
      output: {as: '{set: ., raw: $task.output}'}
      export: {as: '{input: $task.input, output: $task.output, seen: $output}'}
  - two: {input: {from: .set}, call: f, with: '${ [$task.input, $task.definition.call] }'}
  - three: {set: '${ [., $context] }'}
";
    let mut host = Host::run(tasks, json!({"a": 5}));
    let set = json!({"raw": {"a": 5}, "from": 5});
    let one = json!({"set": set, "raw": set});
    assert_eq!(host.asked.values().next().unwrap().body(), json!([one, "f"]));
    host.answer("f", Ok(json!(null)));
    assert_eq!(host.output(), json!([null, {"input": {"a": 5}, "output": set, "seen": one}]));
}

#[test]
fn the_authorization_of_a_call_is_seen_by_its_expressions() {
    let tasks = "
do:
  - get:
      call: http
      with:
        method: get
        endpoint: {uri: 'http://x/', authentication: {bearer: {token: '${ .token }'}}}
        headers: {X-Scheme: '${ $authorization.scheme }', X-Copy: '${ $authorization.parameter }'}
      output: {as: '[., $authorization]'}
  - after: {set: '${ . + [$authorization] }'}
";
    let mut host = Host::run(tasks, json!({"token": "t1"}));
    let Some(crate::host::Asked::Request(request)) = host.asked.values().next() else { panic!() };
    let header =
        |name: &str| request.headers.iter().find(|(known, _)| known == name).map(|(_, v)| v.as_str());
    assert_eq!((header("X-Scheme"), header("X-Copy")), (Some("Bearer"), Some("t1")));
    host.answer("http://x/", Ok(json!(1)));
    assert_eq!(host.output(), json!([1, {"scheme": "Bearer", "parameter": "t1"}, null]));
}

#[test]
fn a_missing_secret_of_the_workflow_itself_is_an_error() {
    let task = "do: [a: {call: f}]";
    for (root, instance) in [
        ("input: {from: '{a: $secrets.gone}'}", "/"),
        ("timeout: {after: '${ $secrets.gone }'}", "/"),
        ("output: {as: '[$secrets.gone]'}", "/output"),
    ] {
        let text = format!("use: {{secrets: [gone]}}\n{root}\n{task}");
        let mut host = Host::run(&text, json!({}));
        if !host.status().is_ended() {
            host.answer("f", Ok(json!(1)));
        }
        let fault = host.fault();
        assert_eq!(
            (fault.short_kind(), fault.instance.as_deref()),
            ("authorization", Some(instance)),
            "{root}"
        );
        assert!(fault.detail.unwrap().contains("secrets set"));
        // Set in the meantime, it is there for the retry.
        host.secrets = json!({"gone": "PT5S"});
        host.event(edgefaas_workflow::Event::Retry);
        if !host.status().is_ended() {
            host.answer("f", Ok(json!(1)));
        }
        host.output();
    }
}

#[test]
fn loose_expressions() {
    let tasks = "
evaluate: {language: jq, mode: loose}
do:
  - a: {set: {x: .x, y: some text, z: .x.y.z, n: .x + 1}}
  - b: {wait: PT1S}
  - c: {emit: {event: {with: {type: com.example.done, data: .}}}}
";
    let mut host = Host::run(tasks, json!({"x": 1}));
    host.until(1_000);
    assert_eq!(host.output()["type"], json!("com.example.done"));
    assert_eq!(host.output()["data"], json!({"x": 1, "y": "some text", "z": ".x.y.z", "n": 2}));
}
