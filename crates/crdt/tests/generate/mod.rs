//! What property tests draw from.

// No test draws from all of it.
#![allow(dead_code)]

use edgefaas_crdt::{FieldType, Operation};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed};

pub fn seeded() -> Config {
    let mut config = Config::default();
    let seed = match config.rng_seed {
        RngSeed::Fixed(seed) => seed,
        RngSeed::Random => {
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
            now.expect("the clock is past 1970").as_nanos() as u64
        }
    };
    eprintln!("PROPTEST_RNG_SEED={seed}");
    config.rng_seed = RngSeed::Fixed(seed);
    config.failure_persistence = None;
    config
}

pub fn field_types() -> impl Strategy<Value = FieldType> {
    prop::sample::select(&FieldType::ALL[..])
}

fn amounts() -> impl Strategy<Value = i64> {
    prop_oneof![4 => -1_000i64..1_000, 1 => any::<i64>()]
}

fn bytes() -> impl Strategy<Value = bytes::Bytes> {
    prop::collection::vec(0u8..4, 0..2).prop_map(Into::into)
}

fn pointers() -> impl Strategy<Value = String> {
    let token = prop_oneof![Just("a"), Just("b"), Just("0"), Just("1"), Just("-"), Just("~0~1")];
    prop::collection::vec(token, 0..4)
        .prop_map(|tokens| tokens.iter().map(|token| format!("/{token}")).collect())
}

fn json_values() -> impl Strategy<Value = String> {
    const VALUES: [&str; 9] = [
        "1",
        "-2.5",
        "\"x\"",
        "null",
        "true",
        "[]",
        "{}",
        "[1,[2]]",
        r#"{"a":{"b":[0]},"~/":18446744073709551615}"#,
    ];
    prop::sample::select(&VALUES[..]).prop_map(str::to_owned)
}

pub fn operations(field_type: FieldType) -> BoxedStrategy<Operation> {
    match field_type {
        FieldType::Counter => amounts().prop_map(Operation::CounterAdd).boxed(),
        FieldType::Register => {
            prop::collection::vec(any::<u8>(), 0..4).prop_map(|v| Operation::RegisterSet(v.into())).boxed()
        }
        FieldType::GCounter => prop_oneof![4 => 0u64..1_000, 1 => any::<u64>()].prop_map(Operation::GCounterAdd).boxed(),
        FieldType::BoundedCounter => prop_oneof![
            4 => amounts().prop_map(Operation::BoundedCounterAdd),
            1 => (0u64..500).prop_map(Operation::BoundedCounterWant),
            1 => Just(Operation::BoundedCounterGrant),
        ]
        .boxed(),
        FieldType::MvRegister => bytes().prop_map(Operation::MvRegisterSet).boxed(),
        FieldType::GSet => bytes().prop_map(Operation::GSetAdd).boxed(),
        FieldType::Set => prop_oneof![
            6 => bytes().prop_map(Operation::SetAdd),
            4 => bytes().prop_map(Operation::SetRemove),
            1 => Just(Operation::SetClear),
        ]
        .boxed(),
        FieldType::Map => {
            let leaf = prop::sample::select(FieldType::ALL.into_iter().filter(|t| *t != FieldType::Map).collect::<Vec<_>>())
                .prop_flat_map(operations);
            let key = || prop::sample::select(&["a", "b"][..]).prop_map(str::to_owned);
            let nested = |inner: BoxedStrategy<Operation>| {
                prop_oneof![
                    8 => (key(), inner).prop_map(|(key, inner)| Operation::MapUpdate(key, Box::new(inner))),
                    3 => key().prop_map(Operation::MapRemove),
                    1 => Just(Operation::MapClear),
                ]
                .boxed()
            };
            prop_oneof![2 => nested(leaf.clone().boxed()), 1 => nested(nested(leaf.boxed()))].boxed()
        }
        FieldType::EwFlag => any::<bool>().prop_map(Operation::EwFlagSet).boxed(),
        FieldType::DwFlag => any::<bool>().prop_map(Operation::DwFlagSet).boxed(),
        FieldType::List => prop_oneof![
            3 => (0u32..6, bytes()).prop_map(|(at, value)| Operation::ListInsert(at, value)),
            3 => bytes().prop_map(Operation::ListPush),
            2 => (0u32..6, bytes()).prop_map(|(at, value)| Operation::ListSet(at, value)),
            2 => (0u32..6).prop_map(Operation::ListRemove),
        ]
        .boxed(),
        FieldType::Text => prop_oneof![
            8 => (0u32..6, 0u32..3, "[aé🦀]{0,3}")
                .prop_map(|(at, delete, insert)| Operation::TextSplice { at, delete, insert }),
            // Long enough for several pieces.
            1 => (0u32..3_000, 0u32..2_000, "[aé🦀]{1,3}", 0usize..1_000)
                .prop_map(|(at, delete, insert, times)| Operation::TextSplice { at, delete, insert: insert.repeat(times) }),
        ]
        .boxed(),
        FieldType::Json => prop_oneof![
            3 => (pointers(), json_values()).prop_map(|(pointer, value)| Operation::JsonSet { pointer, value }),
            1 => pointers().prop_map(|pointer| Operation::JsonRemove { pointer }),
        ]
        .boxed(),
    }
}
