//! How much work and memory things take.

use std::time::{Duration, Instant};

use edgefaas_crdt::{ApplyError, Field, FieldDelta, FieldType, Hlc, Merged, Operation, ReplicaId, Value};

const HERE: ReplicaId = ReplicaId::new(u64::MAX / 3, 1);

fn apply(field: &mut Field, operation: Operation) -> FieldDelta {
    field.apply_local("f", operation, HERE, Hlc::default()).unwrap()
}

/// The time for which this thread has had a processor; what others have of it meanwhile does not count.
fn processor_time() -> Option<Duration> {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    let nanos: u64 = stat.split_whitespace().next()?.parse().ok()?;
    (nanos > 0).then(|| Duration::from_nanos(nanos))
}

fn timed(what: &str, limit: Duration, work: impl FnOnce()) {
    let (start, before) = (Instant::now(), processor_time());
    work();
    let took = match (before, processor_time()) {
        (Some(before), Some(after)) => after - before,
        _ => start.elapsed(),
    };
    eprintln!("{what}: {took:?}");
    assert!(took < limit, "{what} took {took:?}");
}

/// Far above what it takes, far below what work for every element would.
#[test]
fn a_large_set_takes_time_for_what_changes_only() {
    const ELEMENTS: u32 = 100_000;
    let mut set = Field::empty(FieldType::Set);
    let mut deltas = Vec::new();
    timed("100k additions", Duration::from_secs(5), || {
        for number in 0..ELEMENTS {
            deltas.push(apply(&mut set, Operation::SetAdd(number.to_be_bytes().to_vec().into())));
        }
    });
    let mut other = Field::empty(FieldType::Set);
    timed("100k deltas taken in", Duration::from_secs(5), || {
        for delta in deltas {
            other.merge(delta);
        }
    });
    assert_eq!(set, other);
    timed("1k removals, made and taken in", Duration::from_secs(1), || {
        for number in 0..1_000u32 {
            let delta = apply(&mut set, Operation::SetRemove(number.to_be_bytes().to_vec().into()));
            other.merge(delta);
        }
    });
    timed("encode, decode, digest", Duration::from_secs(5), || {
        let bytes = set.encode();
        eprintln!("{} bytes", bytes.len());
        assert_eq!(Field::decode(&bytes).unwrap().digest(), other.digest());
    });
}

#[test]
fn a_counter_takes_little() {
    let mut counter = Field::empty(FieldType::Counter);
    let mut other = counter.clone();
    timed("1M additions and deltas", Duration::from_secs(5), || {
        for _ in 0..1_000_000 {
            other.merge(apply(&mut counter, Operation::CounterAdd(1)));
        }
    });
    assert_eq!(counter, other);
    assert!(counter.encode().len() < 20);
    eprintln!("a field takes {} bytes", size_of::<Field>());
}

#[test]
fn a_counter_in_a_map_keeps_few_amounts() {
    let mut map = Field::empty(FieldType::Map);
    let mut other = map.clone();
    timed("100k additions in a map", Duration::from_secs(10), || {
        for _ in 0..100_000 {
            let add = Operation::MapUpdate("c".to_owned(), Box::new(Operation::CounterAdd(1)));
            other.merge(apply(&mut map, add));
        }
    });
    assert_eq!(map, other);
    assert!(map.encode().len() < 300, "{} bytes", map.encode().len());
    assert!(map.size_bytes() < 10_000);
}

#[test]
fn a_text_takes_many_edits_at_once() {
    let mut text = Field::empty(FieldType::Text);
    let mut waiting: Option<FieldDelta> = None;
    timed("2k edits, deltas merged", Duration::from_secs(20), || {
        for at in 0..2_000 {
            let delta = apply(&mut text, Operation::TextSplice { at, delete: 0, insert: "x".to_owned() });
            match &mut waiting {
                Some(all) => drop(all.merge(delta)),
                None => waiting = Some(delta),
            }
        }
    });
    let mut other = Field::empty(FieldType::Text);
    timed("taken in", Duration::from_secs(5), || {
        other.merge(waiting.take().unwrap());
    });
    assert_eq!(text, other);
    eprintln!("{} bytes encoded, about {} in memory", text.encode().len(), text.size_bytes());
}

#[test]
fn a_text_has_room_for_many_small_edits_and_the_same_after_a_restart() {
    const PIECE: u32 = 200_000;
    let insert = |at: u32, text: String| Operation::TextSplice { at, delete: 0, insert: text };
    let mut text = Field::empty(FieldType::Text);
    apply(&mut text, insert(0, "b".repeat(PIECE as usize)));
    let mut letters = 0;
    let full = loop {
        match text.apply_local("f", insert(PIECE + letters, "a".to_owned()), HERE, Hlc::default()) {
            Ok(_) => letters += 1,
            Err(error) => break error,
        }
    };
    assert!((60_000..63_000).contains(&letters), "{letters} letters");
    assert!(matches!(full, ApplyError::TooLarge { .. }), "{full}");
    let stored = Field::decode(&text.encode()).unwrap();
    for mut full in [text, stored] {
        let refused = full.apply_local("f", insert(0, "a".to_owned()), HERE, Hlc::default());
        assert!(refused.is_err(), "it is full on every node");
        timed("a letter out of the full text", Duration::from_secs(1), || {
            apply(&mut full, Operation::TextSplice { at: 0, delete: 1, insert: String::new() });
        });
        let rest = PIECE + letters - 1;
        apply(&mut full, Operation::TextSplice { at: 0, delete: rest, insert: String::new() });
        assert_eq!(full.value(), Value::Text(String::new()));
    }
}

/// A queue and a value that is set again and again leave nothing behind.
#[test]
fn queues_and_values_stay_small_and_fast() {
    const CYCLES: u32 = 1_000_000;
    let mut queue = Field::empty(FieldType::List);
    for number in 0..20u32 {
        apply(&mut queue, Operation::ListPush(number.to_be_bytes().to_vec().into()));
    }
    let mut document = Field::empty(FieldType::Json);
    let mut in_map = Field::empty(FieldType::Map);
    let set = |number: u32| Operation::JsonSet { pointer: "/key".to_owned(), value: number.to_string() };
    let within = |operation| Operation::MapUpdate("k".to_owned(), Box::new(operation));
    let mut sizes = Vec::new();
    for part in 0..10 {
        timed("100k pushes and removals", Duration::from_secs(10), || {
            for number in 0..CYCLES / 10 {
                apply(&mut queue, Operation::ListPush(number.to_be_bytes().to_vec().into()));
                apply(&mut queue, Operation::ListRemove(0));
            }
        });
        timed("100k values of one key", Duration::from_secs(10), || {
            (0..CYCLES / 10).for_each(|number| drop(apply(&mut document, set(number))));
        });
        timed("10k pushes and removals of a list in a map", Duration::from_secs(10), || {
            for _ in 0..CYCLES / 100 {
                apply(&mut in_map, within(Operation::ListPush("x".into())));
                apply(&mut in_map, within(Operation::ListPush("y".into())));
                apply(&mut in_map, within(Operation::ListRemove(0)));
                apply(&mut in_map, within(Operation::ListRemove(0)));
            }
        });
        sizes.push((queue.encode().len(), document.encode().len(), in_map.encode().len()));
        assert!(queue.size_bytes() < 10_000 && document.size_bytes() < 10_000, "{part}");
    }
    eprintln!("bytes of the queue, the document and the map: {sizes:?}");
    assert!(sizes.iter().all(|(queue, document, map)| *queue < 300 && *document < 100 && *map < 100));
}

#[test]
fn an_edit_takes_time_for_what_changes_only() {
    let mut list = Field::empty(FieldType::List);
    for number in 0..10_000u32 {
        apply(&mut list, Operation::ListPush(number.to_be_bytes().to_vec().into()));
    }
    let mut text = Field::empty(FieldType::Text);
    let splice = |at, delete, insert: &str| Operation::TextSplice { at, delete, insert: insert.to_owned() };
    timed("a text of 200 KiB in one edit", Duration::from_millis(500), || {
        apply(&mut text, splice(0, 0, &"é".repeat(100 << 10)));
    });
    // Each is a clone, an edit of the clone, and the merge of the delta.
    timed("1k edits of copies of a list", Duration::from_secs(1), || {
        for number in 0..1_000 {
            let mut copy = list.clone();
            let delta = apply(&mut copy, Operation::ListInsert(number * 7, "x".into()));
            list.merge(delta);
        }
    });
    timed("1k edits of copies of a text", Duration::from_secs(1), || {
        for number in 0..1_000 {
            let mut copy = text.clone();
            let delta = apply(&mut copy, splice(number * 100, 2, "a"));
            text.merge(delta);
        }
    });
    let mut json = Field::empty(FieldType::Json);
    let items: Vec<u32> = (0..10_000).collect();
    let set = |pointer: &str, value: String| Operation::JsonSet { pointer: pointer.to_owned(), value };
    timed("a document with 10k numbers", Duration::from_secs(1), || {
        apply(&mut json, set("", format!(r#"{{"items":{items:?}}}"#)));
    });
    timed("1k edits of copies of a document", Duration::from_secs(5), || {
        for number in 0..1_000 {
            let mut copy = json.clone();
            let delta = apply(&mut copy, set(&format!("/items/{number}"), "7".to_owned()));
            json.merge(delta);
        }
    });
    for field in [list, text, json] {
        timed("value, encode, decode, digest", Duration::from_secs(1), || {
            let bytes = field.encode();
            eprintln!("{} bytes encoded, about {} in memory", bytes.len(), field.size_bytes());
            assert_eq!(Field::decode(&bytes).unwrap().digest(), field.digest());
            field.value();
        });
    }
}

#[test]
fn an_edit_of_one_of_many_lists_in_a_map_takes_time_for_that_one() {
    let mut map = Field::empty(FieldType::Map);
    let within =
        |number: u32, operation| Operation::MapUpdate(format!("list {number}"), Box::new(operation));
    let mut other = map.clone();
    timed("10k lists in a map", Duration::from_secs(2), || {
        for number in 0..10_000 {
            apply(&mut map, within(number, Operation::ListPush("x".into())));
        }
    });
    other.merge(map.clone().into());
    let mut deltas = Vec::new();
    timed("10k changes of lists", Duration::from_secs(2), || {
        for number in 0..10_000 {
            deltas.push(apply(&mut map, within(number, Operation::ListPush("y".into()))));
        }
    });
    timed("1k of them merged", Duration::from_secs(1), || {
        for delta in deltas.drain(..1_000) {
            other.merge(delta);
        }
    });
    deltas.into_iter().for_each(|delta| assert_ne!(other.merge(delta), Merged::Unchanged));
    assert_eq!(other, map);
}

/// An edit in a map sends the edit, not the whole.
#[test]
fn a_delta_of_a_list_in_a_map_has_one_element() {
    let mut map = Field::empty(FieldType::Map);
    let push = || Operation::MapUpdate("list".to_owned(), Box::new(Operation::ListPush("element".into())));
    let deltas: Vec<FieldDelta> = (0..1_000).map(|_| apply(&mut map, push())).collect();
    assert!(deltas.iter().all(|delta| delta.encode().len() < 60));
    let mut other = Field::empty(FieldType::Map);
    for delta in deltas.into_iter().rev() {
        other.merge(delta);
    }
    assert_eq!(other, map);
}
