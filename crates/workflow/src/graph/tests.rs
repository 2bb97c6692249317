use proptest::prelude::*;

use super::*;

fn node(id: &str, label: &str, kind: Kind) -> Node {
    Node { id: id.into(), label: label.into(), kind }
}

fn edge(from: &str, to: &str, label: Option<&str>) -> Edge {
    Edge { from: from.into(), to: to.into(), label: label.map(Into::into) }
}

fn example() -> Graph {
    Graph {
        nodes: vec![
            node("s", "start", Kind::Start),
            node("c", "too <hot> & \"dry\"?", Kind::Choice),
            node("a", "alarm\nat once", Kind::Task),
            node("w", "wait 5s", Kind::Wait),
            node("e", "end", Kind::End),
        ],
        edges: vec![
            edge("s", "c", None),
            edge("c", "a", Some("yes")),
            edge("c", "e", Some("no")),
            edge("a", "w", None),
            edge("w", "e", None),
            edge("w", "c", Some("again")),
            edge("w", "nobody", None),
        ],
        groups: vec![Group { title: "try".into(), nodes: vec!["a".into(), "w".into()], groups: vec![] }],
    }
}

#[test]
fn as_mermaid() {
    let expected = r#"flowchart TD
  n0(["start"])
  n1{"too #60;hot#62; #38; #34;dry#34;#63;"}
  n4(["end"])
  subgraph g1["try"]
    n2["alarm<br/>at once"]
    n3("wait 5s")
  end
  n0 --> n1
  n1 -->|"yes"| n2
  n1 -->|"no"| n4
  n2 --> n3
  n3 --> n4
  n3 -->|"again"| n1
"#;
    assert_eq!(mermaid(&example()), expected);
    assert_eq!(mermaid(&Graph::default()), "flowchart TD\n");
}

#[test]
fn long_labels_are_cut() {
    assert_eq!(lines(&"ä".repeat(41)), [format!("{}…", "ä".repeat(39))]);
    assert_eq!(lines(&"ä".repeat(40)), ["ä".repeat(40)]);
    assert_eq!(lines("1\n2\n3\n4\n5").len(), 4);
}

#[test]
fn deep_groups_and_long_chains() {
    let mut group = Group { title: "inner".into(), nodes: vec!["n0".into()], groups: vec![] };
    for _ in 0..200 {
        group = Group { title: "outer".into(), nodes: vec![], groups: vec![group] };
    }
    let nodes: Vec<_> = (0..3_000).map(|n| node(&format!("n{n}"), "x", Kind::Task)).collect();
    let mut edges: Vec<_> =
        (1..3_000).map(|n| edge(&format!("n{}", n - 1), &format!("n{n}"), None)).collect();
    edges.extend((0..100).map(|n| edge(&format!("n{n}"), "n2999", None)));
    let graph = Graph { nodes, edges, groups: vec![group] };
    let text = mermaid(&graph);
    assert_eq!(text.matches("subgraph ").count(), 32);
    assert!(text.contains("subgraph g32"));
}

fn any_graph() -> impl Strategy<Value = Graph> {
    let id = || (0..12u8).prop_map(|n| format!("n{n}"));
    let node = (id(), "\\PC{0,30}").prop_map(|(id, label)| node(&id, &label, Kind::Task));
    let edge = (id(), id()).prop_map(|(from, to)| edge(&from, &to, Some("label")));
    let leaf = proptest::collection::vec(id(), 0..4);
    let group = leaf.prop_map(|nodes| Group { title: "g".into(), nodes, groups: vec![] });
    let group = group.prop_recursive(3, 8, 3, move |inner| {
        let nodes = proptest::collection::vec((0..12u8).prop_map(|n| format!("n{n}")), 0..3);
        (nodes, proptest::collection::vec(inner, 0..3)).prop_map(|(nodes, groups)| Group {
            title: "h".into(),
            nodes,
            groups,
        })
    });
    (
        proptest::collection::vec(node, 0..10),
        proptest::collection::vec(edge, 0..20),
        proptest::collection::vec(group, 0..3),
    )
        .prop_map(|(nodes, edges, groups)| Graph { nodes, edges, groups })
}

proptest! {
    #[test]
    fn every_node_edge_and_group_is_drawn_once(graph in any_graph()) {
        fn groups(of: &[Group]) -> usize {
            of.iter().map(|group| 1 + groups(&group.groups)).sum()
        }
        let text = mermaid(&graph);
        let has = |id: &str| graph.nodes.iter().any(|node| node.id == id);
        let edges = graph.edges.iter().filter(|edge| has(&edge.from) && has(&edge.to)).count();
        prop_assert_eq!(text.lines().filter(|line| line.contains("-->")).count(), edges);
        let nodes = text.lines().filter(|line| line.trim_start().starts_with('n') && !line.contains("-->"));
        prop_assert_eq!(nodes.count(), graph.nodes.len());
        prop_assert_eq!(text.matches("subgraph ").count(), groups(&graph.groups));
        prop_assert_eq!(text.lines().filter(|line| line.trim() == "end").count(), groups(&graph.groups));
        prop_assert_eq!(&mermaid(&graph), &text);
    }
}
