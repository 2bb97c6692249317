//! Workflows as flowcharts.

use edgefaas_workflow::{compile, flowchart, graph};

fn drawn(tasks: &str) -> String {
    let text =
        format!("document: {{dsl: '1.0.0', namespace: test, name: shop, version: '1.0.0'}}\n{tasks}");
    match compile(&text, "test.yaml") {
        Ok(compiled) => graph::mermaid(&flowchart(&compiled.program)),
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn a_choice_with_a_loop_and_a_condition() {
    let found = drawn(
        "
do:
  - price: {call: price}
  - sort:
      switch:
        - dear: {when: .price > 100, then: ask}
        - wrong: {when: .price < 0, then: price}
  - send: {if: .ready, run: {workflow: {name: send}}, then: end}
  - later: {wait: 90s}
  - ask: {listen: {to: {one: {with: {type: approved}}}}, timeout: {after: 1d}}
",
    );
    let wanted = r#"flowchart TD
  n0(["shop"])
  n1["price<br/>call price"]
  n2{"sort<br/>switch"}
  n3{"if .ready"}
  n4["send<br/>run workflow send"]
  n5("later<br/>wait 90 s")
  n6[/"ask<br/>listen approved"/]
  n7(["end"])
  n1 --> n2
  n2 -->|"wrong"| n1
  n3 -->|"yes"| n4
  n2 -->|"else"| n3
  n3 -->|"no"| n5
  n2 -->|"dear"| n6
  n5 --> n6
  n0 --> n1
  n6 --> n7
  n4 --> n7
"#;
    assert_eq!(found, wanted);
}

#[test]
fn boxes_in_boxes() {
    let found = drawn(
        "
do:
  - guarded:
      try:
        - all:
            fork:
              compete: true
              branches:
                - one: {call: one}
                - two: {do: [a: {wait: 2m}, b: {emit: {event: {with: {type: told}}}}]}
      catch:
        errors: {with: {status: 503}}
        retry: {delay: 1s}
        do: [fails: {raise: {error: {type: x, status: 500}}}]
  - each: {for: {each: x, in: .list}, do: [work: {call: work}]}
  - hear:
      listen: {to: {any: [{with: {type: a}}, {with: {subject: b/+}}], until: {one: {with: {type: c}}}}}
      foreach: {do: [keep: {set: '${ . }'}]}
",
    );
    let wanted = r#"flowchart TD
  n0(["shop"])
  n7[/"hear<br/>listen any of a, b/#43;"/]
  n9(["end"])
  subgraph g1["guarded: try"]
    n4{{"catch<br/>status 503"}}
    subgraph g2["all: fork, the first wins"]
      n1["one<br/>call one"]
      subgraph g3["two"]
        n2("a<br/>wait 2 min")
        n3[/"b<br/>emit told"/]
      end
    end
    subgraph g4["catch"]
      n5{{"fails<br/>raise"}}
    end
  end
  subgraph g5["each: for each #36;x"]
    n6["work<br/>call work"]
  end
  subgraph g6["hear: each event"]
    n8["keep<br/>set"]
  end
  n2 --> n3
  n1 -->|"error"| n4
  n2 -->|"error"| n4
  n4 -->|"retry"| n1
  n4 -->|"retry"| n2
  n4 --> n5
  n6 -->|"next"| n6
  n1 --> n6
  n3 --> n6
  n7 -->|"event"| n8
  n8 --> n7
  n6 --> n7
  n0 --> n1
  n0 --> n2
  n7 --> n9
"#;
    assert_eq!(found, wanted);
}
