//! Deletions of fields: replicas converge, a deletion removes what it has seen, and a tombstone that all replicas have can be
//! dropped by each of them at a time of its own.
//!
//! Every test prints its seed; `PROPTEST_RNG_SEED=SEED` repeats a run.

mod generate;

use std::collections::BTreeSet;

use edgefaas_crdt::{
    ApplyError, DecodeError, FieldState, FieldType, Hlc, HybridClock, Merged, Operation, Origin, ReplicaId,
    StateDelta, Value,
};
use generate::{field_types, operations, seeded};
use proptest::prelude::*;

const REPLICAS: usize = 3;

fn replica(index: usize) -> ReplicaId {
    ReplicaId::new(index as u64, 0)
}

fn at(wall_ms: u64) -> Hlc {
    Hlc { wall_ms, logical: 0 }
}

#[derive(Debug, Clone)]
enum Step {
    Apply { at: usize, operation: Operation },
    Delete { at: usize },
    Deliver { to: usize, delta: usize },
    DeliverMerged { to: usize, deltas: Vec<usize> },
    SendState { from: usize, to: usize },
}

fn steps(field_type: FieldType) -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0..REPLICAS, operations(field_type)).prop_map(|(at, operation)| Step::Apply { at, operation }),
        1 => (0..REPLICAS).prop_map(|at| Step::Delete { at }),
        4 => (0..REPLICAS, any::<usize>()).prop_map(|(to, delta)| Step::Deliver { to, delta }),
        1 => (0..REPLICAS, prop::collection::vec(any::<usize>(), 1..5))
            .prop_map(|(to, deltas)| Step::DeliverMerged { to, deltas }),
        1 => (0..REPLICAS, 0..REPLICAS).prop_map(|(from, to)| Step::SendState { from, to }),
    ];
    prop::collection::vec(step, 0..60)
}

fn run(field_type: FieldType, steps: Vec<Step>) -> (Vec<FieldState>, Vec<StateDelta>) {
    let mut fields = vec![FieldState::empty(field_type); REPLICAS];
    let mut clocks = vec![HybridClock::default(); REPLICAS];
    let mut sent: Vec<StateDelta> = Vec::new();
    for step in steps {
        match step {
            Step::Apply { at, operation } => {
                let now = clocks[at].tick(1);
                let before = fields[at].clone();
                match fields[at].apply_local("f", operation, replica(at).into(), now) {
                    Ok(delta) => sent.push(delta),
                    Err(_) => assert_eq!(fields[at], before, "a refused operation changed the field"),
                }
            }
            Step::Delete { at } => {
                let now = clocks[at].tick(1);
                sent.push(fields[at].delete(replica(at), now));
                assert!(fields[at].live().is_none());
            }
            Step::Deliver { to, delta } if !sent.is_empty() => {
                fields[to].merge(sent[delta % sent.len()].clone());
            }
            Step::DeliverMerged { to, deltas } if !sent.is_empty() => {
                let mut merged: StateDelta = FieldState::empty(field_type).into();
                for delta in deltas {
                    merged.merge(sent[delta % sent.len()].clone());
                }
                fields[to].merge(merged);
            }
            Step::SendState { from, to } => {
                let state = fields[from].clone();
                fields[to].merge(state.into());
            }
            Step::Deliver { .. } | Step::DeliverMerged { .. } => {}
        }
    }
    (fields, sent)
}

/// A field that has had operations and deletions.
fn states() -> impl Strategy<Value = FieldState> {
    field_types().prop_flat_map(|field_type| {
        (Just(field_type), steps(field_type))
            .prop_map(|(field_type, steps)| run(field_type, steps).0.remove(0))
    })
}

proptest! {
    #![proptest_config(seeded())]

    #[test]
    fn replicas_that_have_seen_the_same_deltas_are_equal(
        (field_type, steps) in field_types().prop_flat_map(|t| (Just(t), steps(t))),
    ) {
        let (mut fields, sent) = run(field_type, steps);
        for (index, field) in fields.iter_mut().enumerate() {
            for delta in sent.iter().cycle().skip(index * 7).take(sent.len()) {
                field.merge(delta.clone());
            }
            for delta in &sent {
                prop_assert_eq!(field.merge(delta.clone()), Merged::Unchanged);
            }
        }
        for field in &fields {
            prop_assert_eq!(field, &fields[0]);
            prop_assert_eq!(field.digest(), fields[0].digest());
            prop_assert_eq!(field.live().map(|field| field.value()), fields[0].live().map(|field| field.value()));
        }
    }

    #[test]
    fn states_are_read_as_they_were_written(state in states()) {
        let bytes = state.encode();
        prop_assert_eq!(FieldState::decode(&bytes).unwrap(), state.clone());
        if state.deleted_at_ms() == 0 {
            prop_assert_eq!(bytes, state.field().encode());
        }
    }

    #[test]
    fn damaged_states_are_errors_or_states(state in states(), place in any::<usize>(), byte in any::<u8>()) {
        let mut bytes = state.encode();
        let place = place % bytes.len();
        bytes[place] = byte;
        if let Ok(state) = FieldState::decode(&bytes) {
            let _ = (state.live().map(|field| field.value()), state.digest(), state.size_bytes());
        }
        for end in 0..bytes.len() {
            let _ = StateDelta::decode(&bytes[..end]);
        }
    }

    /// Additions are counted unless a deletion has seen them, whatever the order of arrival.
    #[test]
    fn counters_count_what_no_deletion_has_seen(
        script in prop::collection::vec((0..REPLICAS, prop::option::weighted(0.8, -50i64..50), prop::option::of(0..REPLICAS)), 0..60),
    ) {
        let mut fields = vec![FieldState::empty(FieldType::Counter); REPLICAS];
        let mut seen = vec![(BTreeSet::<usize>::new(), BTreeSet::<usize>::new()); REPLICAS];
        let mut amounts = Vec::new();
        for (now, (here, amount, to)) in script.into_iter().enumerate() {
            let now = at(now as u64 + 1);
            match amount {
                Some(amount) => {
                    fields[here].apply_local("f", Operation::CounterAdd(amount), replica(here).into(), now).unwrap();
                    seen[here].0.insert(amounts.len());
                    amounts.push(amount);
                }
                None => {
                    fields[here].delete(replica(here), now);
                    let all = seen[here].0.clone();
                    seen[here].1.extend(all);
                }
            }
            if let Some(to) = to {
                let (state, known) = (fields[here].clone(), seen[here].clone());
                fields[to].merge(state.into());
                seen[to].0.extend(known.0);
                seen[to].1.extend(known.1);
            }
        }
        for (field, (added, removed)) in fields.iter().zip(seen) {
            let expected: i64 = added.difference(&removed).map(|number| amounts[*number]).sum();
            prop_assert_eq!(field.field().value(), Value::Integer(expected));
        }
    }

    /// The same for the elements of a set.
    #[test]
    fn sets_keep_what_no_deletion_has_seen(
        script in prop::collection::vec((0..REPLICAS, prop::option::weighted(0.8, 0u8..5), prop::option::of(0..REPLICAS)), 0..60),
    ) {
        let mut fields = vec![FieldState::empty(FieldType::Set); REPLICAS];
        let mut seen = vec![(BTreeSet::<(usize, u8)>::new(), BTreeSet::<usize>::new()); REPLICAS];
        for (number, (here, element, to)) in script.into_iter().enumerate() {
            let now = at(number as u64 + 1);
            match element {
                Some(element) => {
                    let operation = Operation::SetAdd(vec![element].into());
                    fields[here].apply_local("f", operation, replica(here).into(), now).unwrap();
                    seen[here].0.insert((number, element));
                }
                None => {
                    fields[here].delete(replica(here), now);
                    let all: Vec<usize> = seen[here].0.iter().map(|(number, _)| *number).collect();
                    seen[here].1.extend(all);
                }
            }
            if let Some(to) = to {
                let (state, known) = (fields[here].clone(), seen[here].clone());
                fields[to].merge(state.into());
                seen[to].0.extend(known.0);
                seen[to].1.extend(known.1);
            }
        }
        for (field, (added, removed)) in fields.iter().zip(seen) {
            let expected: BTreeSet<u8> =
                added.iter().filter(|(number, _)| !removed.contains(number)).map(|(_, element)| *element).collect();
            let Value::Values(values) = field.field().value() else { panic!("{field:?}") };
            prop_assert_eq!(values.iter().map(|value| value[0]).collect::<BTreeSet<_>>(), expected);
        }
    }

    /// Each replica drops the tombstone at a time of its own, and changes after that reach all the others.
    #[test]
    fn a_tombstone_that_all_have_can_be_dropped(
        (field_type, first, then) in field_types().prop_flat_map(|t| {
            (Just(t), steps(t), prop::collection::vec((0..REPLICAS, operations(t), any::<bool>()), 1..30))
        }),
    ) {
        let (mut fields, _) = run(field_type, first);
        let all = |fields: &mut Vec<FieldState>| {
            for _ in 0..2 {
                for from in 0..REPLICAS {
                    for to in 0..REPLICAS {
                        let state = fields[from].clone();
                        fields[to].merge(state.into());
                    }
                }
            }
        };
        all(&mut fields);
        fields[0].delete(replica(0), at(100));
        all(&mut fields);
        let tombstone = fields[0].clone();
        prop_assert!(tombstone.is_deleted());
        let mut origins: Vec<Origin> = (0..REPLICAS).map(|index| replica(index).into()).collect();
        let mut reference = FieldState::empty(field_type);
        let mut deltas = Vec::new();
        for (step, (here, operation, drops)) in then.into_iter().enumerate() {
            // Only a replica that has nothing but the tombstone drops it.
            if drops && fields[here] == tombstone {
                origins[here].dropped_numbers = fields[here].highest_of(replica(here));
                origins[here].dropped_generations = fields[here].generation();
                fields[here] = FieldState::empty(field_type);
            }
            let now = at(200 + step as u64);
            if let Ok(delta) = fields[here].apply_local("f", operation, origins[here], now) {
                deltas.push(delta);
            }
        }
        for delta in deltas {
            reference.merge(delta.clone());
            for field in &mut fields {
                field.merge(delta.clone());
            }
        }
        for field in &fields {
            prop_assert_eq!(field.field().value(), reference.field().value());
        }
    }
}

#[test]
fn the_later_of_a_deletion_and_a_write_of_a_register_wins() {
    let mut here = FieldState::empty(FieldType::Register);
    let set = |value: &'static str| Operation::RegisterSet(value.into());
    here.apply_local("f", set("old"), replica(0).into(), at(10)).unwrap();
    let there = here.clone();
    here.delete(replica(0), at(20));
    for (now, wins) in [(15, false), (25, true)] {
        let (mut here, mut there) = (here.clone(), there.clone());
        let write = there.apply_local("f", set("new"), replica(1).into(), at(now)).unwrap();
        let deletion = StateDelta::from(here.clone());
        here.merge(write);
        there.merge(deletion);
        assert_eq!(here, there);
        assert_eq!(here.live().is_some(), wins);
    }
}

#[test]
fn a_deletion_of_a_g_set_or_bounded_counter_removes_concurrent_changes() {
    for (field_type, operation) in [
        (FieldType::GSet, Operation::GSetAdd("x".into())),
        (FieldType::BoundedCounter, Operation::BoundedCounterAdd(5)),
    ] {
        let mut here = FieldState::empty(field_type);
        here.apply_local("f", operation.clone(), replica(0).into(), at(1)).unwrap();
        let mut there = here.clone();
        let deletion = here.delete(replica(0), at(2));
        let concurrent = there.apply_local("f", operation.clone(), replica(1).into(), at(3)).unwrap();
        here.merge(concurrent);
        there.merge(deletion);
        assert_eq!(here, there);
        assert!(here.is_deleted());
        there.apply_local("f", operation, replica(1).into(), at(4)).unwrap();
        assert!(!there.is_deleted());
    }
}

#[test]
fn the_type_of_a_tombstone_is_reserved() {
    let mut field = FieldState::empty(FieldType::Counter);
    field.apply_local("f", Operation::CounterAdd(1), replica(0).into(), at(1)).unwrap();
    field.delete(replica(0), at(2));
    let error =
        field.apply_local("f", Operation::SetAdd("x".into()), replica(0).into(), at(3)).unwrap_err();
    let (was, wanted) = (FieldType::Counter, FieldType::Set);
    assert_eq!(error, ApplyError::DeletedAs { field: "f".into(), was, wanted });
    field.apply_local("f", Operation::CounterAdd(2), replica(0).into(), at(4)).unwrap();
    assert_eq!(field.live().unwrap().value(), Value::Integer(2));
}

/// A node folds its past before it learns of a deletion that has seen that past.
#[test]
fn a_deletion_of_amounts_that_were_folded_elsewhere_stays() {
    let boots = [ReplicaId::new(7, 0), ReplicaId::new(7, 1)];
    let mut here = FieldState::empty(FieldType::Counter);
    for boot in boots {
        here.apply_local("f", Operation::CounterAdd(10), boot.into(), at(1)).unwrap();
    }
    let mut there = here.clone();
    there.delete(replica(1), at(2));
    here.fold(7, 1);
    there.merge(here.clone().into());
    here.merge(there.clone().into());
    assert_eq!(here, there);
    assert!(here.is_deleted());
}

/// Existing data directories contain these bytes.
#[test]
fn the_format_stays_as_it_is() {
    let mut counter = FieldState::empty(FieldType::Counter);
    counter.apply_local("f", Operation::CounterAdd(5), replica(1).into(), at(1)).unwrap();
    counter.delete(replica(0), at(300));
    assert_eq!(counter.encode(), [1, 23, 172, 2, 18, 0, 1, 1, 0, 5, 0, 5, 0]);
    let mut register = FieldState::empty(FieldType::Register);
    register.apply_local("f", Operation::RegisterSet("x".into()), replica(1).into(), at(1)).unwrap();
    register.delete(replica(0), at(300));
    assert_eq!(register.encode(), [1, 23, 172, 2, 20, 172, 2, 0, 0, 0, 0]);
    let mut set = FieldState::empty(FieldType::GSet);
    set.apply_local("f", Operation::GSetAdd("x".into()), replica(1).into(), at(1)).unwrap();
    set.delete(replica(0), at(300));
    assert_eq!(set.encode(), [1, 23, 172, 2, 21, 172, 2, 0]);
    assert_eq!(FieldState::decode(&[2, 23]), Err(DecodeError::UnknownVersion { found: 2 }));
}
