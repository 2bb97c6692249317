//! Nodes that lose memory or disk, and replicas that fold departed incarnations, still become equal.
//!
//! Every test prints its seed; `PROPTEST_RNG_SEED=SEED` repeats a run.

mod generate;

use edgefaas_crdt::{Field, FieldDelta, FieldType, Hlc, Operation, ReplicaId};
use generate::{field_types, operations, seeded};
use proptest::prelude::*;

const NODES: usize = 3;

#[derive(Debug, Clone)]
enum Step {
    Apply {
        at: usize,
        operation: Operation,
    },
    /// What a node has is on its disk from now on.
    Store {
        at: usize,
    },
    /// It starts again with what is on its disk.
    LoseMemory {
        at: usize,
    },
    /// It starts again as a new node that knows nothing.
    LoseDisk {
        at: usize,
    },
    Deliver {
        to: usize,
        delta: usize,
    },
    SendState {
        from: usize,
        to: usize,
    },
}

fn steps(field_type: FieldType) -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        8 => (0..NODES, operations(field_type)).prop_map(|(at, operation)| Step::Apply { at, operation }),
        2 => (0..NODES).prop_map(|at| Step::Store { at }),
        2 => (0..NODES).prop_map(|at| Step::LoseMemory { at }),
        1 => (0..NODES).prop_map(|at| Step::LoseDisk { at }),
        6 => (0..NODES, any::<usize>()).prop_map(|(to, delta)| Step::Deliver { to, delta }),
        2 => (0..NODES, 0..NODES).prop_map(|(from, to)| Step::SendState { from, to }),
    ];
    prop::collection::vec(step, 0..60)
}

struct Node {
    field: Field,
    stored: Vec<u8>,
    replica: ReplicaId,
}

struct Run {
    nodes: Vec<Node>,
    sent: Vec<FieldDelta>,
}

fn run(field_type: FieldType, steps: Vec<Step>) -> Run {
    let empty = Field::empty(field_type);
    let node = |id| Node { field: empty.clone(), stored: empty.encode(), replica: ReplicaId::new(id, 1) };
    let mut nodes: Vec<Node> = (0..NODES as u64).map(node).collect();
    let mut sent: Vec<FieldDelta> = Vec::new();
    let mut next_node = NODES as u64;
    for (now, step) in (0u64..).zip(steps) {
        match step {
            Step::Apply { at, operation } => {
                let node = &mut nodes[at];
                let now = Hlc { wall_ms: now / 4, logical: 0 };
                if let Ok(delta) = node.field.apply_local("f", operation, node.replica, now) {
                    sent.push(FieldDelta::decode(&delta.encode()).unwrap());
                }
                // What a bounded counter promises rests on it being stored before anybody sees it.
                if matches!(field_type, FieldType::BoundedCounter | FieldType::Map) {
                    node.stored = node.field.encode();
                }
            }
            Step::Store { at } => nodes[at].stored = nodes[at].field.encode(),
            Step::LoseMemory { at } => {
                nodes[at].field = Field::decode(&nodes[at].stored).unwrap();
                nodes[at].replica.incarnation += 1;
            }
            Step::LoseDisk { at } => {
                nodes[at] = node(next_node);
                next_node += 1;
            }
            Step::Deliver { to, delta } => {
                if let Some(delta) = sent.get(delta % sent.len().max(1)) {
                    nodes[to].field.merge(delta.clone());
                }
            }
            Step::SendState { from, to } => {
                let state = nodes[from].field.clone();
                nodes[to].field.merge(state.into());
            }
        }
        for node in &nodes {
            if let Field::BoundedCounter(counter) = &node.field {
                assert!(counter.value() >= 0);
            }
        }
    }
    Run { nodes, sent }
}

/// Everybody sees everything; the state that all have.
fn settle(run: &mut Run) -> Field {
    for node in &mut run.nodes {
        for delta in &run.sent {
            node.field.merge(delta.clone());
        }
    }
    run.nodes[0].field.clone()
}

proptest! {
    #![proptest_config(seeded())]

    #[test]
    fn restarted_nodes_converge(
        (field_type, steps) in field_types().prop_flat_map(|t| (Just(t), steps(t))),
    ) {
        let mut run = run(field_type, steps);
        let settled = settle(&mut run);
        for node in &run.nodes {
            prop_assert_eq!(&node.field, &settled);
            prop_assert_eq!(node.field.digest(), settled.digest());
            prop_assert_eq!(node.field.value(), settled.value());
        }
    }

    /// After all have seen all, some replicas fold and some do not, all write on under new incarnations, and fold again.
    #[test]
    fn replicas_that_fold_at_different_times_converge(
        (field_type, before, after) in field_types().prop_flat_map(|t| {
            let writes = prop::collection::vec((0..NODES, operations(t), 0..NODES, any::<bool>()), 0..30);
            (Just(t), steps(t), writes)
        }),
        early in prop::collection::vec((0..NODES, 0u64..4, 0u32..3), 0..6),
    ) {
        let mut run = run(field_type, before);
        let settled = settle(&mut run);
        let value = settled.value();
        let up_to = run.nodes.iter().map(|node| node.replica.incarnation).max().unwrap();
        let mut fields = vec![settled; NODES];
        for (at, node, below) in early {
            fields[at].fold(node, up_to.saturating_sub(below));
            prop_assert_eq!(&fields[at].value(), &value, "folding changed the value");
            prop_assert_eq!(&Field::decode(&fields[at].encode()).unwrap(), &fields[at]);
        }
        let mut sent = Vec::new();
        for (now, (at, operation, to, whole)) in (1_000u64..).zip(after) {
            let replica = ReplicaId::new(at as u64, up_to + 1);
            let now = Hlc { wall_ms: now, logical: 0 };
            if let Ok(delta) = fields[at].apply_local("f", operation, replica, now) {
                sent.push(delta.clone());
                let delta = if whole { fields[at].clone().into() } else { delta };
                fields[to].merge(delta);
            }
        }
        // A fold in between, of what is still known to all.
        fields[0].fold(1, up_to);
        for field in &mut fields {
            for delta in &sent {
                field.merge(delta.clone());
            }
        }
        let values: Vec<_> = fields.iter().map(Field::value).collect();
        prop_assert_eq!(&values[1], &values[0]);
        prop_assert_eq!(&values[2], &values[0]);
        let all = fields.clone();
        for field in &mut fields {
            for other in &all {
                field.merge(other.clone().into());
            }
        }
        prop_assert_eq!(&fields[1], &fields[0]);
        prop_assert_eq!(&fields[2], &fields[0]);
        prop_assert_eq!(fields[0].value(), values[0].clone());
    }
}
