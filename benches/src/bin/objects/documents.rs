//! Lists, texts and JSON documents that change very often: time of an operation at the start and at the end, and size.

use std::time::Instant;

use anyhow::ensure;
use edgefaas_benches::results::{Report, Table, Target};
use edgefaas_crdt::{Field, FieldType, Hlc, HybridClock, Operation, ReplicaId};

use crate::Plan;

const OPERATIONS: u64 = 1_000_000;
/// Parts in which operations are timed.
const PARTS: u64 = 20;
/// Live elements of the queue.
const LENGTH: u64 = 20;
const REPLICA: ReplicaId = ReplicaId::new(u64::MAX / 3, 1);
const FIGURES: [(&str, &str); 4] =
    [("first of 20 parts", "us"), ("last part", "us"), ("slowest part", "us"), ("encoded", "B")];

/// A load: the name, the type, and the operations of one cycle.
type Load = (&'static str, FieldType, fn(u64) -> Vec<Operation>);

const LOADS: [Load; 5] = [
    ("queue of 20: a push and a removal", FieldType::List, |number| {
        vec![push(number), Operation::ListRemove(0)]
    }),
    ("queue of 20 in a map: a push and a removal", FieldType::Map, |number| {
        vec![in_map(push(number)), in_map(Operation::ListRemove(0))]
    }),
    ("document: one key is set", FieldType::Json, |number| vec![set("/key", number)]),
    ("queue in a document: a push and a removal", FieldType::Json, |number| {
        vec![set("/-", number), Operation::JsonRemove { pointer: "/0".to_owned() }]
    }),
    ("text of 20: a letter is typed, one is deleted", FieldType::Text, |_| {
        let splice =
            |at, delete, insert: &str| Operation::TextSplice { at, delete, insert: insert.to_owned() };
        vec![splice(LENGTH as u32, 0, "x"), splice(0, 1, "")]
    }),
];

pub fn run(plan: &Plan) -> anyhow::Result<Report> {
    let mut report = Report::new(
        "objects-documents",
        "Objects: lists, texts and documents that change often",
        "One replica, without a node: `Field::apply_local` until each load has run 1,000,000 cycles. The time is that of a cycle, \
         in the first and the last of 20 equal parts and in the slowest.",
        &crate::command("documents"),
    );
    let mut table = Table::new("1,000,000 cycles", &LOADS.map(|(name, ..)| name), &FIGURES);
    for _ in 0..plan.rounds {
        for (number, load) in LOADS.iter().enumerate() {
            table.add(number, &measure(load)?);
        }
    }
    for (row, (name, ..)) in table.rows.iter().zip(LOADS) {
        let (slowest, bytes) = (row.figures[2].median(), row.figures[3].median());
        let text = format!("{name}: a cycle takes at most 1 ms, also after a million");
        report.targets.push(Target::at_most("objects-documents", &text, slowest, 1_000.0));
        let text = format!("{name}: at most 64 kB after a million");
        report.targets.push(Target::at_most("objects-documents", &text, bytes, 64_000.0));
    }
    report.tables.push(table);
    Ok(report)
}

fn measure((name, field_type, operations): &Load) -> anyhow::Result<[f64; 4]> {
    let mut field = Field::empty(*field_type);
    let mut clock = HybridClock::default();
    let mut apply = |field: &mut Field, number: u64, operation| {
        let now: Hlc = clock.tick(1_700_000_000_000 + number / 10);
        field.apply_local("f", operation, REPLICA, now).map(drop)
    };
    let start = match field_type {
        FieldType::Text => {
            vec![Operation::TextSplice { at: 0, delete: 0, insert: "x".repeat(LENGTH as usize) }]
        }
        FieldType::Json => vec![Operation::JsonSet {
            pointer: String::new(),
            value: if name.starts_with("queue") {
                format!("{:?}", [0; LENGTH as usize])
            } else {
                "{}".to_owned()
            },
        }],
        FieldType::Map => (0..LENGTH).map(|number| in_map(push(number))).collect(),
        _ => (0..LENGTH).map(push).collect(),
    };
    for operation in start {
        apply(&mut field, 0, operation)?;
    }
    let mut parts = Vec::new();
    for part in 0..PARTS {
        let numbers = part * OPERATIONS / PARTS..(part + 1) * OPERATIONS / PARTS;
        let began = Instant::now();
        for number in numbers {
            for operation in operations(number) {
                apply(&mut field, number, operation)?;
            }
        }
        parts.push(began.elapsed().as_secs_f64() * 1e6 * PARTS as f64 / OPERATIONS as f64);
    }
    let encoded = field.encode();
    ensure!(Field::decode(&encoded)? == field, "{name}: the field is not read as it was written");
    let slowest = parts.iter().copied().fold(0.0, f64::max);
    Ok([parts[0], parts[parts.len() - 1], slowest, encoded.len() as f64])
}

fn push(number: u64) -> Operation {
    Operation::ListPush(number.to_string().into_bytes().into())
}

fn set(pointer: &str, number: u64) -> Operation {
    Operation::JsonSet { pointer: pointer.to_owned(), value: number.to_string() }
}

fn in_map(operation: Operation) -> Operation {
    Operation::MapUpdate("queue".to_owned(), Box::new(operation))
}
