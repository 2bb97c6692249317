//! Fields of every type as they are on disks: what was written once stays readable, with the same value and digest.
//!
//! `GOLDEN_WRITE=1 cargo test -p edgefaas-crdt --test golden` writes files for new fields; one that is there stays as it
//! is, since it stands for what is on disks.

use std::path::PathBuf;

use edgefaas_crdt::{Field, FieldDelta, FieldType, Hlc, Operation, ReplicaId};

const HERE: ReplicaId = ReplicaId::new(7, 1);
const THERE: ReplicaId = ReplicaId::new(300, 2);

fn built(field_type: FieldType, operations: &[(ReplicaId, Operation)]) -> Field {
    let mut field = Field::empty(field_type);
    for (wall_ms, (replica, operation)) in (1_000u64..).zip(operations) {
        field.apply_local("f", operation.clone(), *replica, Hlc { wall_ms, logical: 1 }).unwrap();
    }
    field
}

fn update(key: &str, operation: Operation) -> Operation {
    Operation::MapUpdate(key.to_owned(), Box::new(operation))
}

fn json(pointer: &str, value: &str) -> Operation {
    Operation::JsonSet { pointer: pointer.to_owned(), value: value.to_owned() }
}

fn splice(at: u32, delete: u32, insert: &str) -> Operation {
    Operation::TextSplice { at, delete, insert: insert.to_owned() }
}

/// Name, field and digest.
fn fields() -> Vec<(&'static str, Field, u64)> {
    use Operation::*;
    let counter = built(FieldType::Counter, &[(HERE, CounterAdd(5)), (THERE, CounterAdd(-300))]);
    let g_counter = built(FieldType::GCounter, &[(HERE, GCounterAdd(5)), (THERE, GCounterAdd(300))]);
    let set = built(
        FieldType::Set,
        &[
            (HERE, SetAdd("x".into())),
            (HERE, SetAdd("y".into())),
            (THERE, SetAdd("x".into())),
            (HERE, SetRemove("y".into())),
            (HERE, SetAdd("z".into())),
        ],
    );
    let folded = |field: &Field| {
        let mut folded = field.clone();
        assert!(folded.fold(7, 1));
        folded
    };
    let mut concurrent = built(FieldType::MvRegister, &[(HERE, MvRegisterSet("one".into()))]);
    concurrent.merge(built(FieldType::MvRegister, &[(THERE, MvRegisterSet("two".into()))]).into());
    let map = built(
        FieldType::Map,
        &[
            (HERE, update("c", CounterAdd(-3))),
            (THERE, update("c", CounterAdd(10))),
            (HERE, update("r", RegisterSet("v".into()))),
            (HERE, update("g", GCounterAdd(4))),
            (HERE, update("b", BoundedCounterAdd(9))),
            (HERE, update("m", MvRegisterSet("w".into()))),
            (HERE, update("s", GSetAdd("e".into()))),
            (HERE, update("o", SetAdd("e".into()))),
            (HERE, update("n", update("deep", EwFlagSet(true)))),
            (HERE, update("d", DwFlagSet(true))),
            (HERE, MapRemove("m".into())),
        ],
    );
    let documents_in_map = built(
        FieldType::Map,
        &[
            (HERE, update("l", ListPush("e".into()))),
            (HERE, update("t", splice(0, 0, "text"))),
            (THERE, update("j", json("/a", "1"))),
        ],
    );
    vec![
        ("counter", counter.clone(), 0x6838_869e_54f3_491e),
        ("counter-folded", folded(&counter), 0xe5c2_b046_a3d3_9d13),
        (
            "register",
            built(FieldType::Register, &[(HERE, RegisterSet("42".into()))]),
            0x4b47_5696_a38a_f155,
        ),
        ("g-counter", g_counter.clone(), 0xa903_6966_9c27_f81c),
        ("g-counter-folded", folded(&g_counter), 0xa496_b44f_4b41_01e5),
        (
            "bounded-counter",
            {
                let added = (HERE, BoundedCounterAdd(100));
                let taken = (HERE, BoundedCounterAdd(-30));
                built(
                    FieldType::BoundedCounter,
                    &[added, taken, (THERE, BoundedCounterWant(5)), (HERE, BoundedCounterGrant)],
                )
            },
            0xbc32_51a2_bbc2_e014,
        ),
        ("mv-register", concurrent, 0x92b7_e21d_9d20_4cbd),
        (
            "g-set",
            built(FieldType::GSet, &[(HERE, GSetAdd("b".into())), (THERE, GSetAdd("a".into()))]),
            0x1ef3_1311_495b_afc4,
        ),
        ("set", set.clone(), 0xe00b_3e53_66d5_f96f),
        ("set-folded", folded(&set), 0x92ac_d700_ea5c_8059),
        ("map", map, 0x3f57_dcfa_0c11_230a),
        ("map-documents", documents_in_map, 0xdace_9d1b_582d_8def),
        ("ew-flag", built(FieldType::EwFlag, &[(HERE, EwFlagSet(true))]), 0xa062_2fc5_2a08_8eab),
        (
            "dw-flag",
            built(FieldType::DwFlag, &[(HERE, DwFlagSet(true)), (THERE, DwFlagSet(false))]),
            0x394e_e5d8_d92d_7c5b,
        ),
        (
            "list",
            built(FieldType::List, &[(HERE, ListPush("a".into())), (THERE, ListInsert(0, "b".into()))]),
            0xee14_af98_6acd_0bfa,
        ),
        (
            "text",
            built(FieldType::Text, &[(HERE, splice(0, 0, "héllo")), (THERE, splice(1, 1, "e"))]),
            0x4750_8318_7a04_08dc,
        ),
        (
            "json",
            built(
                FieldType::Json,
                &[(HERE, json("/a", "[1,2.5,null]")), (THERE, json("/a/-", "{\"b\":\"c\"}"))],
            ),
            0x984c_2eff_a640_faf3,
        ),
    ]
}

#[test]
fn what_was_written_once_stays_readable() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let mut digests = Vec::new();
    for (name, field, digest) in fields() {
        let file = folder.join(format!("{name}.bin"));
        if std::env::var_os("GOLDEN_WRITE").is_some() && !file.exists() {
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(&file, field.encode()).unwrap();
        }
        let bytes = std::fs::read(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let read = Field::decode(&bytes).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(read, field, "{name}");
        assert_eq!(read.value(), field.value(), "{name}");
        assert_eq!(read.digest(), field.digest(), "{name}");
        assert_eq!(field.encode(), bytes, "{name}");
        assert_eq!(FieldDelta::decode(&bytes).unwrap(), field.into(), "{name}");
        if read.digest() != digest {
            digests.push(format!("{name} {:#018x}", read.digest()));
        }
    }
    assert!(digests.is_empty(), "other replicas would take these for different states: {digests:#?}");
}

#[test]
fn every_type_has_a_golden_file() {
    let fields = fields();
    for field_type in FieldType::ALL {
        assert!(
            fields.iter().any(|(_, field, _)| field.field_type() == field_type),
            "{field_type} has none"
        );
        assert_eq!(field_type.to_string().parse(), Ok(field_type));
    }
}
