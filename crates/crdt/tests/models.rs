//! The types hold what reference models say: the `crdts` crate where its semantics are the same, else plain Rust values.
//!
//! Every test prints its seed; `PROPTEST_RNG_SEED=SEED` repeats a run.

mod generate;

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use crdts::{CmRDT, CvRDT};
use edgefaas_crdt::{ApplyError, Field, FieldType, Hlc, Operation, ReplicaId, Value};
use generate::{operations, seeded};
use proptest::prelude::*;

const REPLICAS: usize = 3;

fn replica(index: usize) -> ReplicaId {
    ReplicaId::new(index as u64 + 10, 1)
}

fn apply(field: &mut Field, at: usize, operation: Operation) -> Result<(), ApplyError> {
    field.apply_local("f", operation, replica(at), Hlc::default()).map(drop)
}

fn sync<T: Clone>(all: &mut [T], from: usize, to: usize, merge: impl FnOnce(&mut T, T)) {
    let state = all[from].clone();
    merge(&mut all[to], state);
}

fn values(field: &Field) -> Vec<u8> {
    let Value::Values(values) = field.value() else { panic!("{field:?} has no values") };
    values.iter().map(|value| value[0]).collect()
}

/// Who does what, and who then sends its state to whom.
type Script<T> = Vec<(usize, T, Option<usize>)>;

fn script<T: std::fmt::Debug + Clone>(what: impl Strategy<Value = T>) -> impl Strategy<Value = Script<T>> {
    prop::collection::vec((0..REPLICAS, what, prop::option::of(0..REPLICAS)), 0..60)
}

fn one(value: u8) -> Bytes {
    vec![value].into()
}

proptest! {
    #![proptest_config(seeded())]

    #[test]
    fn g_counters_agree_with_the_oracle(script in script(0u64..1_000)) {
        let mut ours = vec![Field::empty(FieldType::GCounter); REPLICAS];
        let mut oracle = vec![crdts::GCounter::<usize>::new(); REPLICAS];
        for (at, amount, to) in script {
            apply(&mut ours[at], at, Operation::GCounterAdd(amount)).unwrap();
            let op = oracle[at].inc_many(at, amount);
            oracle[at].apply(op);
            if let Some(to) = to {
                sync(&mut ours, at, to, |to, state| {
                    to.merge(state.into());
                });
                sync(&mut oracle, at, to, |to, state| to.merge(state));
            }
        }
        for (field, counter) in ours.iter().zip(&oracle) {
            let Value::Unsigned(value) = field.value() else { panic!("{field:?}") };
            prop_assert_eq!(value.to_string(), counter.read().to_string());
        }
    }

    #[test]
    fn g_sets_agree_with_the_oracle(script in script(0u8..6)) {
        let mut ours = vec![Field::empty(FieldType::GSet); REPLICAS];
        let mut oracle = vec![crdts::GSet::<u8>::new(); REPLICAS];
        for (at, element, to) in script {
            apply(&mut ours[at], at, Operation::GSetAdd(one(element))).unwrap();
            oracle[at].insert(element);
            if let Some(to) = to {
                sync(&mut ours, at, to, |to, state| {
                    to.merge(state.into());
                });
                sync(&mut oracle, at, to, |to, state| to.merge(state));
            }
        }
        for (field, set) in ours.iter().zip(&oracle) {
            prop_assert_eq!(values(field), set.read().into_iter().collect::<Vec<_>>());
            for element in 0..6 {
                prop_assert_eq!(field.contains(&[element]).unwrap(), set.contains(&element));
            }
        }
    }

    #[test]
    fn sets_agree_with_the_oracle(script in script((0u8..5, prop::bool::weighted(0.6)))) {
        let mut ours = vec![Field::empty(FieldType::Set); REPLICAS];
        let mut oracle = vec![crdts::Orswot::<u8, usize>::new(); REPLICAS];
        for (at, (element, adding), to) in script {
            if adding {
                apply(&mut ours[at], at, Operation::SetAdd(one(element))).unwrap();
                let context = oracle[at].read_ctx().derive_add_ctx(at);
                let op = oracle[at].add(element, context);
                oracle[at].apply(op);
            } else {
                apply(&mut ours[at], at, Operation::SetRemove(one(element))).unwrap();
                let context = oracle[at].contains(&element).derive_rm_ctx();
                let op = oracle[at].rm(element, context);
                oracle[at].apply(op);
            }
            if let Some(to) = to {
                sync(&mut ours, at, to, |to, state| {
                    to.merge(state.into());
                });
                sync(&mut oracle, at, to, |to, state| to.merge(state));
            }
        }
        for (field, set) in ours.iter().zip(&oracle) {
            let expected: BTreeSet<u8> = set.read().val.into_iter().collect();
            prop_assert_eq!(values(field), expected.into_iter().collect::<Vec<_>>());
        }
    }

    #[test]
    fn mv_registers_agree_with_the_oracle(script in script(any::<u8>())) {
        let mut ours = vec![Field::empty(FieldType::MvRegister); REPLICAS];
        let mut oracle = vec![crdts::MVReg::<u8, usize>::new(); REPLICAS];
        for (at, value, to) in script {
            apply(&mut ours[at], at, Operation::MvRegisterSet(one(value))).unwrap();
            let op = oracle[at].write(value, oracle[at].read_ctx().derive_add_ctx(at));
            oracle[at].apply(op);
            if let Some(to) = to {
                sync(&mut ours, at, to, |to, state| {
                    to.merge(state.into());
                });
                sync(&mut oracle, at, to, |to, state| to.merge(state));
            }
        }
        for (field, register) in ours.iter().zip(&oracle) {
            let expected: BTreeSet<u8> = register.read().val.into_iter().collect();
            prop_assert_eq!(values(field), expected.into_iter().collect::<Vec<_>>());
        }
    }

    /// The model knows every update there was and who has seen which: a value counts unless an update or removal that
    /// had seen it took it away.
    #[test]
    fn flags_and_maps_of_counters_and_registers_agree_with_a_model(
        script in script((0u8..6, any::<u8>())),
    ) {
        let mut maps = vec![Field::empty(FieldType::Map); REPLICAS];
        let mut flags = vec![(Field::empty(FieldType::EwFlag), Field::empty(FieldType::DwFlag)); REPLICAS];
        // Per replica: the updates it has seen and those it knows to be gone.
        let mut seen: Vec<(BTreeSet<usize>, BTreeSet<usize>)> = vec![Default::default(); REPLICAS];
        let mut updates: Vec<(&str, u8)> = Vec::new();
        for (at, (what, value), to) in script {
            let in_map = |key: &str, inner| Operation::MapUpdate(key.to_owned(), Box::new(inner));
            let of = |kind: &str, updates: &[(&str, u8)], live: &(BTreeSet<usize>, BTreeSet<usize>)| -> Vec<usize> {
                live.0.difference(&live.1).copied().filter(|n| updates[*n].0 == kind).collect()
            };
            let (kind, gone) = match what {
                0 | 1 => {
                    apply(&mut maps[at], at, in_map("counter", Operation::CounterAdd(value.into()))).unwrap();
                    ("counter", Vec::new())
                }
                2 => {
                    apply(&mut maps[at], at, in_map("values", Operation::MvRegisterSet(one(value)))).unwrap();
                    ("values", of("values", &updates, &seen[at]))
                }
                3 => {
                    apply(&mut flags[at].0, at, Operation::EwFlagSet(value % 2 == 0)).unwrap();
                    apply(&mut flags[at].1, at, Operation::DwFlagSet(value % 2 == 0)).unwrap();
                    ("flag", of("flag", &updates, &seen[at]))
                }
                4 => {
                    apply(&mut maps[at], at, Operation::MapRemove("counter".into())).unwrap();
                    ("", of("counter", &updates, &seen[at]))
                }
                _ => {
                    apply(&mut maps[at], at, Operation::MapClear).unwrap();
                    let mut gone = of("counter", &updates, &seen[at]);
                    gone.extend(of("values", &updates, &seen[at]));
                    ("", gone)
                }
            };
            seen[at].1.extend(gone);
            seen[at].0.insert(updates.len());
            updates.push((kind, value));
            if let Some(to) = to {
                sync(&mut maps, at, to, |to, state| {
                    to.merge(state.into());
                });
                sync(&mut flags, at, to, |to, (ew, dw)| {
                    to.0.merge(ew.into());
                    to.1.merge(dw.into());
                });
                sync(&mut seen, at, to, |to, state| {
                    to.0.extend(state.0);
                    to.1.extend(state.1);
                });
            }
        }
        for ((map, flags), (seen, gone)) in maps.iter().zip(&flags).zip(&seen) {
            let live = |kind: &str| -> Vec<u8> {
                seen.difference(gone).map(|n| updates[*n]).filter(|(k, _)| *k == kind).map(|(_, v)| v).collect()
            };
            let mut expected = BTreeMap::new();
            if !live("counter").is_empty() {
                let sum = live("counter").into_iter().map(i64::from).sum();
                expected.insert("counter".to_owned(), (FieldType::Counter, Value::Integer(sum)));
            }
            if !live("values").is_empty() {
                let values: BTreeSet<Bytes> = live("values").into_iter().map(one).collect();
                let values = Value::Values(values.into_iter().collect());
                expected.insert("values".to_owned(), (FieldType::MvRegister, values));
            }
            prop_assert_eq!(map.value(), Value::Map(expected));
            let settings = live("flag");
            prop_assert_eq!(flags.0.value(), Value::Flag(settings.iter().any(|v| v % 2 == 0)));
            let all = !settings.is_empty() && settings.iter().all(|v| v % 2 == 0);
            prop_assert_eq!(flags.1.value(), Value::Flag(all));
        }
    }

    /// No order of operations, deltas and states lets replicas take more than was added.
    #[test]
    fn bounded_counters_never_fall_below_zero(
        script in prop::collection::vec(
            (0..REPLICAS, operations(FieldType::BoundedCounter), prop::option::of((any::<usize>(), 0..REPLICAS))), 0..80,
        ),
    ) {
        let mut fields = vec![Field::empty(FieldType::BoundedCounter); REPLICAS];
        let mut sent = Vec::new();
        let mut total = 0i128;
        for (at, operation, deliver) in script {
            let share = fields[at].bounded_counter("f").unwrap().share(replica(at).node);
            match fields[at].apply_local("f", operation.clone(), replica(at), Hlc::default()) {
                Ok(delta) => {
                    sent.push(delta);
                    if let Operation::BoundedCounterAdd(amount) = operation {
                        total += i128::from(amount);
                    }
                }
                Err(ApplyError::BelowFloor { share: told, amount, .. }) => {
                    prop_assert_eq!(told, share);
                    prop_assert!(amount > share);
                }
                Err(ApplyError::CounterOverflow { .. }) => {}
                Err(other) => panic!("{other}"),
            }
            prop_assert!(total >= 0, "more was taken than there was");
            if let Some((delta, to)) = deliver.filter(|_| !sent.is_empty()) {
                fields[to].merge(sent[delta % sent.len()].clone());
            }
        }
        for delta in sent {
            fields[0].merge(delta);
        }
        let counter = fields[0].bounded_counter("f").unwrap();
        prop_assert_eq!(i128::from(counter.value()), total.min(i64::MAX.into()));
        let shares: i128 = (0..REPLICAS).map(|at| i128::from(counter.share(replica(at).node))).sum();
        prop_assert_eq!(shares, total);
    }

    #[test]
    fn one_replicas_list_is_a_vec(script in prop::collection::vec(operations(FieldType::List), 0..60)) {
        let mut field = Field::empty(FieldType::List);
        let mut model: Vec<Bytes> = Vec::new();
        for operation in script {
            let result = apply(&mut field, 0, operation.clone());
            let length = model.len();
            let fits = match operation {
                Operation::ListInsert(at, value) => (at as usize <= length).then(|| model.insert(at as usize, value)),
                Operation::ListPush(value) => { model.push(value); Some(()) }
                Operation::ListSet(at, value) => model.get_mut(at as usize).map(|old| *old = value),
                Operation::ListRemove(at) => ((at as usize) < length).then(|| drop(model.remove(at as usize))),
                other => panic!("{other:?}"),
            };
            prop_assert_eq!(result.is_ok(), fits.is_some());
            prop_assert_eq!(field.value(), Value::List(model.clone()));
        }
    }

    #[test]
    fn one_replicas_text_is_a_string(script in prop::collection::vec(operations(FieldType::Text), 0..60)) {
        let mut field = Field::empty(FieldType::Text);
        let mut model: Vec<char> = Vec::new();
        for operation in script {
            let result = apply(&mut field, 0, operation.clone());
            let Operation::TextSplice { at, delete, insert } = operation else { panic!("{operation:?}") };
            let end = at as usize + delete as usize;
            prop_assert_eq!(result.is_ok(), end <= model.len());
            if result.is_ok() {
                model.splice(at as usize..end, insert.chars());
            }
            prop_assert_eq!(field.value(), Value::Text(model.iter().collect()));
        }
    }

    #[test]
    fn one_replicas_json_is_a_json_value(script in prop::collection::vec(operations(FieldType::Json), 0..60)) {
        let mut field = Field::empty(FieldType::Json);
        let mut model = serde_json::json!({});
        for operation in script {
            let result = apply(&mut field, 0, operation.clone());
            let fits = match &operation {
                Operation::JsonSet { pointer, value } => set(&mut model, pointer, serde_json::from_str(value).unwrap()),
                Operation::JsonRemove { pointer } => { remove(&mut model, pointer); true }
                other => panic!("{other:?}"),
            };
            prop_assert_eq!(result.is_ok(), fits, "{:?}: {:?}", operation, result);
            let Value::Json(text) = field.value() else { panic!("{:?}", field.value()) };
            // In whatever order: that of an object's keys means nothing.
            prop_assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), model.clone());
        }
    }
}

fn unescaped(token: &str) -> String {
    token.replace("~1", "/").replace("~0", "~")
}

/// `serde_json` follows the pointer to the parent; the last step is the model's own.
fn set(model: &mut serde_json::Value, pointer: &str, value: serde_json::Value) -> bool {
    let Some((parent, last)) = pointer.rsplit_once('/') else {
        *model = value;
        return true;
    };
    match model.pointer_mut(parent) {
        Some(serde_json::Value::Object(members)) => {
            members.insert(unescaped(last), value);
            true
        }
        Some(serde_json::Value::Array(items)) => {
            let place = if last == "-" { Some(items.len()) } else { last.parse().ok() };
            match place {
                Some(place) if place == items.len() => items.push(value),
                Some(place) if place < items.len() => items[place] = value,
                _ => return false,
            }
            true
        }
        _ => false,
    }
}

fn remove(model: &mut serde_json::Value, pointer: &str) {
    let Some((parent, last)) = pointer.rsplit_once('/') else {
        *model = serde_json::Value::Null;
        return;
    };
    match model.pointer_mut(parent) {
        Some(serde_json::Value::Object(members)) => drop(members.remove(&unescaped(last))),
        Some(serde_json::Value::Array(items)) => {
            if let Some(place) = last.parse().ok().filter(|place| *place < items.len()) {
                items.remove(place);
            }
        }
        _ => {}
    }
}
