//! The same from a component that was built with the Rust SDK.

use std::path::Path;
use std::process::Command;

use bytes::Bytes;
use edgefaas_isolates::engine::PoolConfig;
use edgefaas_isolates::{
    Compiler, Event, FieldType, FieldValue, FunctionSource, Isolates, IsolatesConfig, Isolation, Limits,
    ObjectChange, Preparing, Program, Read, Reply, Trigger,
};
use edgefaas_platform::Clock;
use serde_json::{Value, json};

use crate::support::{Bench, WALL_UNIX_MS, call};

/// A component that does with fields what it is called for.
struct Guest {
    isolates: Isolates,
    program: Program,
}

impl Guest {
    /// None where Rust functions cannot be built.
    async fn new() -> Option<Self> {
        let wasm = build()?;
        let config = IsolatesConfig {
            pool: PoolConfig { max_isolates: 5, ..PoolConfig::default() },
            compiler: Compiler::InProcess,
            code_cache: None,
            clock: Clock::new(|| WALL_UNIX_MS),
        };
        let isolates = Isolates::new(&config).unwrap();
        let source = FunctionSource::Component(wasm.into());
        let wanted = Preparing {
            name: "fields",
            owner: "fields",
            source: &source,
            assets: &[],
            memory_bytes: Limits::default().memory_bytes,
            isolation: Isolation::Fresh,
            anew: true,
        };
        let program = isolates.prepare(wanted).await.unwrap();
        Some(Self { isolates, program })
    }

    async fn run(&self, bench: &Bench, event: Event) -> Value {
        let host = bench.host();
        let completion =
            self.isolates.run(&self.program, &bench.meta, event, Limits::default(), host).await;
        match completion.result {
            Ok(Reply::Json(text)) => serde_json::from_str(&text).unwrap(),
            other => panic!("expected a JSON reply, got {other:?}"),
        }
    }
}

fn build() -> Option<Vec<u8>> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let sysroot = Command::new("rustc").args(["--print", "sysroot"]).output().ok()?;
    let sysroot = String::from_utf8_lossy(&sysroot.stdout).trim().to_owned();
    if !Path::new(&sysroot).join("lib/rustlib/wasm32-wasip2").exists() {
        assert!(std::env::var_os("EDGEFAAS_NO_SKIP").is_none(), "there is no target wasm32-wasip2");
        println!("skipped: needs the target wasm32-wasip2 (rustup target add wasm32-wasip2)");
        return None;
    }
    let target = here.join("../../target/guest");
    let output = Command::new("cargo")
        .args(["build", "--release", "--target", "wasm32-wasip2"])
        .current_dir(here.join("tests/guest"))
        .env("CARGO_TARGET_DIR", &target)
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(std::fs::read(target.join("wasm32-wasip2/release/fields.wasm")).unwrap())
}

#[tokio::test]
async fn a_component_changes_and_reads_fields() {
    let Some(guest) = Guest::new().await else { return };
    let bench = Bench::new();
    assert_eq!(guest.run(&bench, call("clock")).await, json!(WALL_UNIX_MS), "the node's clock");
    assert_eq!(guest.run(&bench, call("change")).await, Value::Null);
    let record = bench.record();
    assert_eq!(record.counters["room.c"], -2);
    assert_eq!(record.registers["room.r"], r#"{"a":2,"b":1}"#);
    let changes = [
        "CounterAdd(1)",
        r#"RegisterSet( "x""#,
        "GCounterAdd(18446744073709551615)",
        "BoundedCounterAdd(-2)",
        r#"MvRegisterSet( {"a":2,"b":1}"#,
        r#"GSetAdd( {"a":2,"b":1}"#,
        r#"SetAdd( "x""#,
        "SetRemove( 1",
        "SetClear",
        r#"MapRemove("k")"#,
        "MapClear",
        "EwFlagSet(true)",
        "DwFlagSet(false)",
        "ListPush( 1",
        r#"ListInsert { index: 0, value:  "a""#,
        r#"ListSet { index: 4294967295, value:  "b""#,
        "ListRemove(3)",
        r#"TextSplice { at: 1, delete: 0, insert: "grüße" }"#,
        r#"TextSplice { at: 2, delete: 3, insert: "" }"#,
        r#"TextSplice { at: 4, delete: 5, insert: "x" }"#,
        r#"JsonSet { pointer: "/a", value: "1" }"#,
        r#"JsonRemove { pointer: "/a" }"#,
    ];
    let keys = ["c", "r", "gc", "bc", "mv", "gs", "s", "s", "s"];
    let keys = keys.into_iter().map(|key| format!("/{key}")).chain([String::new(), String::new()]);
    let keys = keys.chain("e d l l l l t t t j j".split(' ').map(|key| format!("/{key}")));
    let at = |map: &str| -> Vec<String> {
        keys.clone().zip(changes).map(|(key, change)| format!("{map}{key} {change}")).collect()
    };
    let whole = r#"room.j JsonSet { pointer: "", value: "[1]" }"#.to_owned();
    assert_eq!(record.changes, [at("room.m"), at("room.m/inner"), vec![whole]].concat());

    let values = |texts: &[&'static str]| {
        FieldValue::Values(texts.iter().map(|text| Bytes::from_static(text.as_bytes())).collect())
    };
    let element = |field_type, element| Read::Contains { field_type, element };
    for (key, read, value) in [
        ("/c", Read::Value(FieldType::Counter), FieldValue::Integer(i64::MIN)),
        ("/r", Read::Value(FieldType::Register), FieldValue::Register(Some(Bytes::from_static(b"\"y\"")))),
        ("/gc", Read::Value(FieldType::GCounter), FieldValue::Unsigned(u64::MAX)),
        ("/bc", Read::Value(FieldType::BoundedCounter), FieldValue::Integer(-3)),
        ("/bc", Read::Share, FieldValue::Unsigned(7)),
        ("/mv", Read::Value(FieldType::MvRegister), values(&["1", "\"z\""])),
        ("/gs", Read::Value(FieldType::GSet), values(&[])),
        ("/gs", element(FieldType::GSet, br#"{"a":2,"b":1}"#), FieldValue::Flag(true)),
        ("/s", Read::Value(FieldType::Set), values(&["{}"])),
        ("/s", element(FieldType::Set, b"\"x\""), FieldValue::Flag(false)),
        ("/e", Read::Value(FieldType::EwFlag), FieldValue::Flag(true)),
        ("/d", Read::Value(FieldType::DwFlag), FieldValue::Flag(false)),
        ("/l", Read::Value(FieldType::List), values(&["null", "[1]"])),
        ("/t", Read::Value(FieldType::Text), FieldValue::Text("grüße 😀".into())),
        ("/j", Read::Value(FieldType::Json), FieldValue::Json("[2]".into())),
        ("", Read::Value(FieldType::Map), FieldValue::Json(r#"{"c":1}"#.into())),
        (
            "",
            Read::MapKeys,
            FieldValue::Keys(FieldType::ALL.map(|known| (format!("{known:?}"), known)).to_vec()),
        ),
    ] {
        bench.answers(&format!("room.m{key}"), read, value);
    }
    let types: Value = FieldType::ALL.map(|known| json!([format!("{known:?}"), known.as_str()])).into();
    let expected = json!([
        -2, { "a": 2, "b": 1 }, i64::MIN, "y", u64::MAX, -3, 7, [1, "z"], [], true, [{}], false, true, false,
        [null, [1]], "grüße 😀", [2], { "c": 1 }, types,
    ]);
    assert_eq!(guest.run(&bench, call("read")).await, expected);

    bench.answers("room.text", Read::Value(FieldType::Text), FieldValue::Flag(true));
    let refusals = guest.run(&bench, call("refusals")).await;
    let expected = json!([
        "not permitted: object forbidden",
        "the node has something else than the value of a text for field `text` of object `room`; this is a mistake of \
         the node's",
        "not found: room.other MapKeys",
        "not found: room.other Share",
    ]);
    assert_eq!(refusals, expected);

    let change = ObjectChange { object: "room".into(), field: "c".into() };
    let body = Bytes::from_static(br#"{"type":"counter","previous":1,"value":{"a":[2]},"origin":"local"}"#);
    let event = Event { trigger: Trigger::Object(change), body };
    assert_eq!(guest.run(&bench, event).await, json!([1, { "a": [2] }, false]));
    let change = ObjectChange { object: "room".into(), field: "c".into() };
    let body = Bytes::from_static(br#"{"type":"counter","previous":1,"value":null,"deleted":true}"#);
    let event = Event { trigger: Trigger::Object(change), body };
    assert_eq!(guest.run(&bench, event).await, json!([1, null, true]));
}

#[tokio::test]
async fn a_component_deletes_fields_and_objects() {
    let Some(guest) = Guest::new().await else { return };
    let bench = Bench::new();
    assert_eq!(guest.run(&bench, call("delete")).await, json!("not permitted: object forbidden"));
    assert_eq!(bench.record().changes, ["room.c deleted", "room deleted"]);
}
