//! Replicas that see the same deltas become equal, whatever the network does, and they hold what the
//! `crdts` crate says they should.
//!
//! Every test prints its seed; `PROPTEST_RNG_SEED=SEED` repeats a run.

mod generate;

use std::collections::BTreeSet;

use crdts::{CmRDT, CvRDT};
use edgefaas_crdt::{
    DecodeError, Field, FieldDelta, FieldType, Hlc, HybridClock, Merged, Operation, ReplicaId,
};
use generate::{field_types, operations, seeded};
use proptest::prelude::*;

const REPLICAS: usize = 4;

fn replica(index: usize) -> ReplicaId {
    // Two boots of one node are replicas of their own.
    ReplicaId::new(index as u64 / 2, index as u32 % 2)
}

/// What happens to one field on several replicas.
#[derive(Debug, Clone)]
enum Step {
    /// A replica carries out an operation; its wall clock shows so much.
    Apply { at: usize, operation: Operation, now_ms: u64 },
    /// A replica receives a delta sent earlier (an index into those so far, wrapping).
    Deliver { to: usize, delta: usize },
    /// A replica receives some earlier deltas merged into one.
    DeliverMerged { to: usize, deltas: Vec<usize> },
    /// A replica receives the whole state of another.
    SendState { from: usize, to: usize },
}

fn steps(field_type: FieldType) -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => (0..REPLICAS, operations(field_type), 0u64..20)
            .prop_map(|(at, operation, now_ms)| Step::Apply { at, operation, now_ms }),
        3 => (0..REPLICAS, any::<usize>()).prop_map(|(to, delta)| Step::Deliver { to, delta }),
        1 => (0..REPLICAS, prop::collection::vec(any::<usize>(), 1..5))
            .prop_map(|(to, deltas)| Step::DeliverMerged { to, deltas }),
        1 => (0..REPLICAS, 0..REPLICAS).prop_map(|(from, to)| Step::SendState { from, to }),
    ];
    prop::collection::vec(step, 0..60)
}

/// Runs the steps and gives the replicas' fields and every delta made on the way.
fn run(field_type: FieldType, steps: Vec<Step>) -> (Vec<Field>, Vec<FieldDelta>) {
    let mut fields = vec![Field::empty(field_type); REPLICAS];
    let mut clocks = vec![HybridClock::default(); REPLICAS];
    let mut sent: Vec<FieldDelta> = Vec::new();
    for step in steps {
        match step {
            Step::Apply { at, operation, now_ms } => {
                let now = clocks[at].tick(now_ms);
                let before = fields[at].clone();
                match fields[at].apply_local("f", operation, replica(at), now) {
                    Ok(delta) => sent.push(delta),
                    Err(_) => assert_eq!(fields[at], before, "a refused operation changed the field"),
                }
            }
            Step::Deliver { to, delta } if !sent.is_empty() => {
                fields[to].merge(sent[delta % sent.len()].clone());
            }
            Step::DeliverMerged { to, deltas } if !sent.is_empty() => {
                let mut merged: FieldDelta = Field::empty(field_type).into();
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

fn converge(field_type: FieldType, steps: Vec<Step>, order: Vec<usize>) -> Result<(), TestCaseError> {
    let (mut fields, sent) = run(field_type, steps);
    for (index, field) in fields.iter_mut().enumerate() {
        // Each replica in an order of its own, some deltas twice, and in the end all of them.
        for pick in order.iter().filter(|_| !sent.is_empty()) {
            field.merge(sent[(pick / (index + 1)) % sent.len()].clone());
        }
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
        prop_assert_eq!(field.value(), fields[0].value());
        let decoded = Field::decode(&field.encode()).unwrap();
        prop_assert_eq!(&decoded, field);
        prop_assert_eq!(decoded.digest(), field.digest());
        prop_assert_eq!(decoded.value(), field.value());
    }
    Ok(())
}

fn orders() -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(any::<usize>(), 0..30)
}

/// States that replicas of one field may reach; now and then some took it for another type.
fn reachable() -> impl Strategy<Value = Vec<Field>> {
    let states = || {
        field_types().prop_flat_map(|field_type| steps(field_type).prop_map(move |s| run(field_type, s).0))
    };
    (states(), states(), prop::bool::weighted(0.2)).prop_map(|(mut fields, other, mixed)| {
        // Two states of one replica and type that know nothing of each other cannot be.
        if mixed && fields[0].field_type() != other[0].field_type() {
            fields.splice(1..3, other.into_iter().take(2));
        }
        fields
    })
}

fn joined(a: &Field, b: &Field) -> Field {
    let mut result = a.clone();
    result.merge(b.clone().into());
    result
}

proptest! {
    #![proptest_config(seeded())]

    #[test]
    fn counters_converge(steps in steps(FieldType::Counter), order in orders()) {
        converge(FieldType::Counter, steps, order)?;
    }

    #[test]
    fn registers_converge(steps in steps(FieldType::Register), order in orders()) {
        converge(FieldType::Register, steps, order)?;
    }

    #[test]
    fn g_counters_converge(steps in steps(FieldType::GCounter), order in orders()) {
        converge(FieldType::GCounter, steps, order)?;
    }

    #[test]
    fn bounded_counters_converge(steps in steps(FieldType::BoundedCounter), order in orders()) {
        converge(FieldType::BoundedCounter, steps, order)?;
    }

    #[test]
    fn mv_registers_converge(steps in steps(FieldType::MvRegister), order in orders()) {
        converge(FieldType::MvRegister, steps, order)?;
    }

    #[test]
    fn g_sets_converge(steps in steps(FieldType::GSet), order in orders()) {
        converge(FieldType::GSet, steps, order)?;
    }

    #[test]
    fn sets_converge(steps in steps(FieldType::Set), order in orders()) {
        converge(FieldType::Set, steps, order)?;
    }

    #[test]
    fn maps_converge(steps in steps(FieldType::Map), order in orders()) {
        converge(FieldType::Map, steps, order)?;
    }

    #[test]
    fn enable_wins_flags_converge(steps in steps(FieldType::EwFlag), order in orders()) {
        converge(FieldType::EwFlag, steps, order)?;
    }

    #[test]
    fn disable_wins_flags_converge(steps in steps(FieldType::DwFlag), order in orders()) {
        converge(FieldType::DwFlag, steps, order)?;
    }

    #[test]
    fn lists_converge(steps in steps(FieldType::List), order in orders()) {
        converge(FieldType::List, steps, order)?;
    }

    #[test]
    fn texts_converge(steps in steps(FieldType::Text), order in orders()) {
        converge(FieldType::Text, steps, order)?;
    }

    #[test]
    fn json_documents_converge(steps in steps(FieldType::Json), order in orders()) {
        converge(FieldType::Json, steps, order)?;
    }

    #[test]
    fn merge_is_a_join(fields in reachable()) {
        let [a, b, c] = [&fields[0], &fields[1], &fields[2]];
        prop_assert_eq!(joined(a, b), joined(b, a));
        prop_assert_eq!(joined(&joined(a, b), c), joined(a, &joined(b, c)));
        prop_assert_eq!(&joined(a, a), a);
        prop_assert_eq!(joined(&joined(a, b), b), joined(a, b));
    }

    /// `crdts::PNCounter` is fed the same additions, with full states for deltas.
    #[test]
    fn counters_agree_with_the_oracle(
        script in prop::collection::vec((0..REPLICAS, -1_000i64..1_000, prop::option::of(0..REPLICAS)), 0..60),
    ) {
        let mut ours = vec![Field::empty(FieldType::Counter); REPLICAS];
        let mut oracle = vec![crdts::PNCounter::<usize>::new(); REPLICAS];
        for (at, amount, sync_to) in script {
            ours[at].apply_local("f", Operation::CounterAdd(amount), replica(at), Hlc::default()).unwrap();
            let steps = amount.unsigned_abs();
            let op = if amount < 0 { oracle[at].dec_many(at, steps) } else { oracle[at].inc_many(at, steps) };
            oracle[at].apply(op);
            if let Some(to) = sync_to {
                let (field, counter) = (ours[at].clone(), oracle[at].clone());
                ours[to].merge(field.into());
                oracle[to].merge(counter);
            }
        }
        for (field, counter) in ours.iter().zip(&oracle) {
            prop_assert_eq!(field.counter("f").unwrap().value().to_string(), counter.read().to_string());
        }
    }

    /// `crdts::LWWReg` is fed the same writes with the stamps that ours took.
    #[test]
    fn registers_agree_with_the_oracle(
        script in prop::collection::vec((0..REPLICAS, any::<u8>(), 0u64..10, prop::option::of(0..REPLICAS)), 0..60),
    ) {
        let mut ours = vec![Field::empty(FieldType::Register); REPLICAS];
        let mut oracle: Vec<Option<crdts::LWWReg<Vec<u8>, _>>> = vec![None; REPLICAS];
        let mut clocks = vec![HybridClock::default(); REPLICAS];
        let mut stamps = BTreeSet::new();
        for (at, value, now_ms, sync_to) in script {
            let write = Operation::RegisterSet(vec![value].into());
            ours[at].apply_local("f", write, replica(at), clocks[at].tick(now_ms)).unwrap();
            let marker = ours[at].register("f").unwrap().written_at().unwrap();
            prop_assert!(stamps.insert(marker), "two writes have the stamp {:?}", marker);
            let register = oracle[at].get_or_insert(crdts::LWWReg { val: vec![value], marker });
            register.update(vec![value], marker);
            if let Some(to) = sync_to {
                let field = ours[at].clone();
                ours[to].merge(field.into());
                let register = oracle[at].clone().unwrap();
                match &mut oracle[to] {
                    Some(other) => other.merge(register),
                    none => *none = Some(register),
                }
            }
        }
        for (field, register) in ours.iter().zip(&oracle) {
            let value = field.register("f").unwrap().get().map(|value| value.to_vec());
            prop_assert_eq!(value, register.as_ref().map(|register| register.val.clone()));
        }
    }

    #[test]
    fn any_bytes_are_a_field_or_an_error(mut bytes in prop::collection::vec(any::<u8>(), 0..64), known: bool) {
        if known && !bytes.is_empty() {
            bytes[0] = edgefaas_crdt::FORMAT_VERSION;
        }
        if let Ok(field) = Field::decode(&bytes) {
            prop_assert_eq!(Field::decode(&field.encode()), Ok(field));
        }
    }

    #[test]
    fn damaged_fields_are_an_error_or_another_field(
        fields in reachable(), cut in any::<prop::sample::Index>(), flip in any::<prop::sample::Index>(), bit in 0u8..8,
    ) {
        let bytes = fields[1].encode();
        prop_assert!(Field::decode(&bytes[..cut.index(bytes.len())]).is_err());
        let mut longer = bytes.clone();
        longer.push(0);
        prop_assert_eq!(Field::decode(&longer), Err(DecodeError::TrailingBytes { bytes: 1 }));
        let mut flipped = bytes;
        let place = flip.index(flipped.len());
        flipped[place] ^= 1 << bit;
        // Reading must end, with whatever result.
        let _ = Field::decode(&flipped);
    }
}
