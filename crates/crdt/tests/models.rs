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

/// What one replica does to a list; indexes wrap.
#[derive(Debug, Clone)]
enum ListStep {
    /// Inserts as many elements, one after the other.
    Insert(usize, usize),
    Set(usize),
    Remove(usize),
}

fn list_steps() -> impl Strategy<Value = ListStep> {
    prop_oneof![
        4 => (any::<usize>(), 1usize..4).prop_map(|(at, count)| ListStep::Insert(at, count)),
        1 => any::<usize>().prop_map(ListStep::Set),
        2 => any::<usize>().prop_map(ListStep::Remove),
    ]
}

/// The elements of a list: each value is a number of its own.
fn numbers(field: &Field) -> Vec<u32> {
    let Value::List(values) = field.value() else { panic!("{field:?}") };
    values.iter().map(|value| u32::from_be_bytes(value[..].try_into().unwrap())).collect()
}

/// True if the common elements of two lists are in the same order.
fn agree(one: &[u32], other: &[u32]) -> bool {
    let common = |list: &[u32], with: &[u32]| -> Vec<u32> {
        list.iter().copied().filter(|number| with.contains(number)).collect()
    };
    common(one, other) == common(other, one)
}

proptest! {
    #![proptest_config(seeded())]

    /// Each replica has what it knows to be written and does not know to be removed, and what is read at any time anywhere is in
    /// one order.
    #[test]
    fn lists_keep_what_no_removal_has_seen_in_one_order(script in script(list_steps())) {
        let mut fields = vec![Field::empty(FieldType::List); REPLICAS];
        // The values that a replica knows, and those that it knows to be removed or replaced.
        let mut seen = vec![(BTreeSet::<u32>::new(), BTreeSet::<u32>::new()); REPLICAS];
        // The element of each value.
        let mut elements: Vec<u32> = Vec::new();
        let mut reads: Vec<Vec<u32>> = Vec::new();
        for (at, step, to) in script {
            let before = numbers(&fields[at]);
            let mut write = |element: Option<u32>, seen: &mut Vec<(BTreeSet<u32>, BTreeSet<u32>)>| {
                let number = elements.len() as u32;
                elements.push(element.map_or(number, |of: u32| elements[of as usize]));
                seen[at].0.insert(number);
                Bytes::from(number.to_be_bytes().to_vec())
            };
            match step {
                ListStep::Insert(place, count) => {
                    for offset in 0..count {
                        let index = (place % (before.len() + 1) + offset) as u32;
                        let value = write(None, &mut seen);
                        apply(&mut fields[at], at, Operation::ListInsert(index, value)).unwrap();
                    }
                }
                ListStep::Set(place) if !before.is_empty() => {
                    let old = before[place % before.len()];
                    let value = write(Some(old), &mut seen);
                    let element = elements[old as usize];
                    let replaced: Vec<u32> =
                        seen[at].0.iter().copied().filter(|n| elements[*n as usize] == element).collect();
                    seen[at].1.extend(&replaced[..replaced.len() - 1]);
                    apply(&mut fields[at], at, Operation::ListSet((place % before.len()) as u32, value)).unwrap();
                }
                ListStep::Remove(place) if !before.is_empty() => {
                    let element = elements[before[place % before.len()] as usize];
                    let removed: Vec<u32> =
                        seen[at].0.iter().copied().filter(|n| elements[*n as usize] == element).collect();
                    seen[at].1.extend(removed);
                    apply(&mut fields[at], at, Operation::ListRemove((place % before.len()) as u32)).unwrap();
                }
                ListStep::Set(_) | ListStep::Remove(_) => {}
            }
            reads.push(numbers(&fields[at]));
            if let Some(to) = to {
                sync(&mut fields, at, to, |to, state| {
                    to.merge(state.into());
                });
                sync(&mut seen, at, to, |to, state| {
                    to.0.extend(state.0);
                    to.1.extend(state.1);
                });
                reads.push(numbers(&fields[to]));
            }
        }
        for (field, (known, gone)) in fields.iter().zip(&seen) {
            // An element is there while it has a value; one of its values is shown.
            let live: BTreeSet<u32> = known.difference(gone).copied().collect();
            let expected: BTreeSet<u32> = live.iter().map(|number| elements[*number as usize]).collect();
            let shown = numbers(field);
            prop_assert!(shown.iter().all(|number| live.contains(number)));
            let as_elements: Vec<u32> = shown.iter().map(|number| elements[*number as usize]).collect();
            prop_assert_eq!(as_elements.iter().copied().collect::<BTreeSet<_>>(), expected);
            prop_assert_eq!(as_elements.len(), shown.len());
        }
        let as_elements = |read: &Vec<u32>| -> Vec<u32> { read.iter().map(|number| elements[*number as usize]).collect() };
        let reads: Vec<Vec<u32>> = reads.iter().map(as_elements).collect();
        for (number, read) in reads.iter().enumerate() {
            prop_assert!(reads[..number].iter().all(|other| agree(read, other)));
        }
    }

    /// Replicas that write into a text at one place at the same time, each in several edits one after the other: what each wrote
    /// stays together.
    #[test]
    fn concurrently_written_texts_do_not_interleave(
        start in "[a-z]{0,5}",
        at in any::<usize>(),
        parts in prop::collection::vec(prop::collection::vec(1usize..1_500, 1..4), 2..4),
    ) {
        let at = (at % (start.len() + 1)) as u32;
        let splice = |at: u32, insert: String| Operation::TextSplice { at, delete: 0, insert };
        let mut base = Field::empty(FieldType::Text);
        apply(&mut base, 9, splice(0, start.clone())).unwrap();
        let mut all = base.clone();
        let mut written = Vec::new();
        for (number, parts) in parts.into_iter().enumerate() {
            let (mut field, mut end) = (base.clone(), at);
            let letter = char::from(b'A' + number as u8);
            for count in parts {
                apply(&mut field, number, splice(end, letter.to_string().repeat(count))).unwrap();
                end += count as u32;
            }
            written.push(letter.to_string().repeat((end - at) as usize));
            all.merge(field.into());
        }
        let Value::Text(text) = all.value() else { panic!("{all:?}") };
        let (before, after) = start.split_at(at as usize);
        let middle = text.strip_prefix(before).and_then(|text| text.strip_suffix(after));
        let middle = middle.ok_or_else(|| TestCaseError::fail("the text around it changed"))?;
        prop_assert_eq!(middle.len(), written.iter().map(String::len).sum::<usize>());
        for one in &written {
            prop_assert!(middle.contains(one.as_str()), "{}", middle);
        }
    }

    /// Characters stay unless a deletion has seen them, whatever else is edited.
    #[test]
    fn texts_keep_what_no_deletion_has_seen(
        script in script((any::<usize>(), 0usize..1_200, 0usize..1_200)),
    ) {
        let mut fields = vec![Field::empty(FieldType::Text); REPLICAS];
        // The characters that a replica knows, and those that it knows to be deleted. No two characters are equal.
        let mut seen = vec![(BTreeSet::<char>::new(), BTreeSet::<char>::new()); REPLICAS];
        let mut new = ('\u{4e00}'..'\u{1ffff}').filter(|c| c.is_alphanumeric());
        for (at, (place, delete, insert), to) in script {
            let Value::Text(text) = fields[at].value() else { panic!("{:?}", fields[at]) };
            let before: Vec<char> = text.chars().collect();
            let start = place % (before.len() + 1);
            let end = (start + delete).min(before.len());
            let insert: String = new.by_ref().take(insert).collect();
            seen[at].0.extend(insert.chars());
            seen[at].1.extend(&before[start..end]);
            let (start, delete) = (start as u32, (end - start) as u32);
            apply(&mut fields[at], at, Operation::TextSplice { at: start, delete, insert }).unwrap();
            if let Some(to) = to {
                sync(&mut fields, at, to, |to, state| {
                    to.merge(state.into());
                });
                sync(&mut seen, at, to, |to, state| {
                    to.0.extend(state.0);
                    to.1.extend(state.1);
                });
            }
        }
        for (field, (known, gone)) in fields.iter().zip(&seen) {
            let Value::Text(text) = field.value() else { panic!("{field:?}") };
            prop_assert_eq!(text.chars().count(), text.chars().collect::<BTreeSet<_>>().len());
            let expected: BTreeSet<char> = known.difference(gone).copied().collect();
            prop_assert_eq!(text.chars().collect::<BTreeSet<_>>(), expected);
        }
    }

    /// Two replicas write to one JSON document concurrently, one value each: where they do not touch the same part, both are there.
    #[test]
    fn json_written_at_different_places_has_both(
        before in prop::collection::vec(operations(FieldType::Json), 0..20),
        one in prop::sample::select(&["/x", "/a/x", "/b/x"][..]),
        other in prop::sample::select(&["/y", "/a/y", "/b/y"][..]),
    ) {
        let mut base = Field::empty(FieldType::Json);
        for operation in before {
            let _ = apply(&mut base, 2, operation);
        }
        let json = |field: &Field| -> serde_json::Value {
            let Value::Json(text) = field.value() else { panic!("{field:?}") };
            serde_json::from_str(&text).unwrap()
        };
        let set = |pointer: &str, value: &str| Operation::JsonSet { pointer: pointer.into(), value: value.into() };
        let (mut here, mut there) = (base.clone(), base.clone());
        let mut model = json(&base);
        for (field, at, pointer, value) in [(&mut here, 0, one, "[1,2]"), (&mut there, 1, other, r#"{"k":3}"#)] {
            if apply(field, at, set(pointer, value)).is_ok() {
                self::set(&mut model, pointer, serde_json::from_str(value).unwrap());
            }
        }
        here.merge(there.clone().into());
        there.merge(here.clone().into());
        prop_assert_eq!(&here, &there);
        prop_assert_eq!(json(&here), model);
    }
}

fn json_after(base: &[(&str, &str)], edits: [&[(&str, Option<&str>)]; 2]) -> String {
    let apply_at = |field: &mut Field, at: usize, now: u64, pointer: &str, value: Option<&str>| {
        let pointer = pointer.to_owned();
        let operation = match value {
            Some(value) => Operation::JsonSet { pointer, value: value.to_owned() },
            None => Operation::JsonRemove { pointer },
        };
        field.apply_local("f", operation, replica(at), Hlc { wall_ms: now, logical: 0 }).unwrap();
    };
    let mut field = Field::empty(FieldType::Json);
    for (pointer, value) in base {
        apply_at(&mut field, 2, 10, pointer, Some(value));
    }
    let mut fields = [field.clone(), field];
    for (at, edits) in edits.iter().enumerate() {
        for (number, (pointer, value)) in edits.iter().enumerate() {
            // The second replica is the later one.
            apply_at(&mut fields[at], at, 20 + number as u64 * 10 + at as u64, pointer, *value);
        }
    }
    let [mut here, mut there] = fields;
    here.merge(there.clone().into());
    there.merge(here.clone().into());
    assert_eq!(here, there);
    let Value::Json(text) = here.value() else { panic!("{here:?}") };
    text
}

#[test]
fn concurrent_edits_of_json_have_these_results() {
    let base = [("", r#"{"a":{"b":1,"c":[1,2]}}"#)];
    // Two values for one part: the later one.
    let edits = [&[("/a/b", Some("2"))][..], &[("/a/b", Some("3"))]];
    assert_eq!(json_after(&base, edits), r#"{"a":{"b":3,"c":[1,2]}}"#);
    // An edit in a removed object keeps the object, with what was edited.
    let edits = [&[("/a/b", Some("2"))][..], &[("/a", None)]];
    assert_eq!(json_after(&base, edits), r#"{"a":{"b":2}}"#);
    let edits = [&[("/a/c/-", Some("3"))][..], &[("", None)]];
    // The whole was set to null later, so that null is shown.
    assert_eq!(json_after(&base, edits), "null");
    let edits = [&[("", None)][..], &[("/a/c/-", Some("3"))]];
    assert_eq!(json_after(&base, edits), r#"{"a":{"c":[3]}}"#);
    // A value against an object: the later edit, also of a member.
    let edits = [&[("/a", Some("5"))][..], &[("/a/b", Some("2"))]];
    assert_eq!(json_after(&base, edits), r#"{"a":{"b":2}}"#);
    let edits = [&[("/a/b", Some("2"))][..], &[("/a", Some("5"))]];
    assert_eq!(json_after(&base, edits), r#"{"a":5}"#);
    // Two objects are joined; of two arrays each keeps its elements together.
    let edits = [&[("/n", Some(r#"{"x":1,"z":1}"#))][..], &[("/n", Some(r#"{"y":2,"z":2}"#))]];
    assert_eq!(json_after(&[], edits), r#"{"n":{"x":1,"y":2,"z":2}}"#);
    let edits = [&[("/n", Some("[1,2]"))][..], &[("/n", Some("[3,4]"))]];
    assert!(["{\"n\":[1,2,3,4]}", "{\"n\":[3,4,1,2]}"].contains(&json_after(&[], edits).as_str()));
    // An element that is set and removed concurrently stays.
    let edits = [&[("/a/c/0", None)][..], &[("/a/c/0", Some("9"))]];
    assert_eq!(json_after(&base, edits), r#"{"a":{"b":1,"c":[9,2]}}"#);
}

#[test]
fn a_removed_key_of_a_map_keeps_concurrent_edits_of_its_documents_only() {
    let within = |operation| Operation::MapUpdate("k".to_owned(), Box::new(operation));
    let splice = |at, delete, insert: &str| Operation::TextSplice { at, delete, insert: insert.to_owned() };
    let json =
        |pointer: &str, value: &str| Operation::JsonSet { pointer: pointer.into(), value: value.into() };
    for (first, then, left) in [
        (
            Operation::ListPush("old".into()),
            Operation::ListPush("new".into()),
            Value::List(vec!["new".into()]),
        ),
        (splice(0, 0, "old"), splice(1, 1, "new"), Value::Text("new".to_owned())),
        (json("/a", "1"), json("/b", "2"), Value::Json(r#"{"b":2}"#.to_owned())),
    ] {
        let field_type = first.field_type();
        let mut here = Field::empty(FieldType::Map);
        apply(&mut here, 0, within(first)).unwrap();
        let mut there = here.clone();
        apply(&mut here, 0, Operation::MapRemove("k".into())).unwrap();
        assert_eq!(here.value(), Value::Map(BTreeMap::new()));
        apply(&mut there, 1, within(then)).unwrap();
        here.merge(there.clone().into());
        there.merge(here.clone().into());
        assert_eq!(here, there);
        assert_eq!(here.value(), Value::Map([("k".to_owned(), (field_type, left))].into()));
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

/// A place in a run is never used twice: the removed element may live on elsewhere.
#[test]
fn an_element_that_was_removed_keeps_its_place_for_itself() {
    let list = |values: &[&'static str]| Value::List(values.iter().map(|value| (*value).into()).collect());
    let mut here = Field::empty(FieldType::List);
    for value in ["a", "b"] {
        apply(&mut here, 0, Operation::ListPush(value.into())).unwrap();
    }
    let mut there = here.clone();
    apply(&mut there, 1, Operation::ListSet(1, "kept".into())).unwrap();
    apply(&mut here, 0, Operation::ListRemove(1)).unwrap();
    apply(&mut here, 0, Operation::ListSet(0, "A".into())).unwrap();
    apply(&mut here, 0, Operation::ListPush("c".into())).unwrap();
    here.merge(there.clone().into());
    there.merge(here.clone().into());
    assert_eq!(here, there);
    assert_eq!(here.value(), list(&["A", "kept", "c"]));
}
