//! Fields of every type: from functions, over gRPC, on the disk.

use edgefaas_api::objects::update_request::Operation;
use edgefaas_api::objects::{self as proto, ListElement, Nothing};
use serde_json::{Value, json};
use tonic::Code;
use tonic_types::StatusExt;

use crate::support::{ObjectsClient, TestNode, failure, in_time, reply_text};

pub const PERMIT: &str = r#"permissions = { objects = ["*"] }"#;

/// A function that runs the code in its event, with an object.
pub const RUN: &str = r#"
    const AsyncFunction = (async () => {}).constructor;
    export default async function handler(event, context) {
        return JSON.stringify(await new AsyncFunction("o", event.text())(context.object("o"))) ?? "undefined";
    }"#;

async fn get(objects: &mut ObjectsClient, object: &str, field: &str) -> Option<Value> {
    let request =
        proto::GetRequest { app: "run".into(), object: object.into(), field: field.into(), path: vec![] };
    let fields = objects.get(request).await.unwrap().into_inner().fields;
    fields.first().map(|state| serde_json::from_str(&state.json).unwrap())
}

fn update(field: &str, path: &[&str], operation: Operation) -> proto::UpdateRequest {
    proto::UpdateRequest {
        app: "run".into(),
        object: "o".into(),
        field: field.into(),
        path: path.iter().map(|key| (*key).to_owned()).collect(),
        operation: Some(operation),
    }
}

/// For each type: code of a function, its answer, and the value that other readers see afterwards.
pub const EACH_TYPE: [(&str, &str, &str, &str); 12] = [
    (
        "g",
        "await o.gCounter('g').add(3); await o.gCounter('g').add(); return o.gCounter('g').value()",
        "4",
        "4",
    ),
    (
        "b",
        "const b = o.boundedCounter('b'); await b.add(5); await b.subtract(2); return [await b.value(), await b.share()]",
        "[3,3]",
        "3",
    ),
    (
        "m",
        "await o.mvRegister('m').set({a: 1}); return o.mvRegister('m').get()",
        r#"[{"a":1}]"#,
        r#"[{"a":1}]"#,
    ),
    (
        "gs",
        "await o.gSet('gs').add('x'); await o.gSet('gs').add('x'); return [await o.gSet('gs').has('x'), await o.gSet('gs').values()]",
        r#"[true,["x"]]"#,
        r#"["x"]"#,
    ),
    (
        "s",
        "const s = o.set('s'); await s.add({b: 1, a: 2}); await s.add(1); await s.delete(1); return [await s.has({a: 2, b: 1}), await s.has(1)]",
        "[true,false]",
        r#"[{"a":2,"b":1}]"#,
    ),
    (
        "map",
        "const m = o.map('map'); await m.counter('n').add(2); await m.register('r').set('v'); await m.map('in').set('s').add('deep'); await m.register('gone').set(1); await m.delete('gone'); return [await m.keys(), await m.has('gone'), await m.counter('n').value()]",
        r#"[["in","n","r"],false,2]"#,
        r#"{"in":{"s":["deep"]},"n":2,"r":"v"}"#,
    ),
    ("ef", "await o.flag('ef').enable(); return o.flag('ef').value()", "true", "true"),
    (
        "df",
        "await o.dwFlag('df').enable(); await o.dwFlag('df').disable(); return o.dwFlag('df').value()",
        "false",
        "false",
    ),
    (
        "l",
        "const l = o.list('l'); await l.push('a'); await l.push('c'); await l.insert(1, 'b'); await l.set(0, 'A'); await l.delete(2); return [await l.length(), await l.values()]",
        r#"[2,["A","b"]]"#,
        r#"["A","b"]"#,
    ),
    (
        "t",
        "const t = o.text('t'); await t.insert(0, 'höllo'); await t.splice(1, 1, 'e'); return t.value()",
        r#""hello""#,
        r#""hello""#,
    ),
    (
        "j",
        "const j = o.json('j'); await j.set({a: [1, 2], b: {}}); await j.set('/a/-', 3); await j.set('/b/c', 'x'); await j.delete('/a/0'); return j.value()",
        r#"{"a":[2,3],"b":{"c":"x"}}"#,
        r#"{"a":[2,3],"b":{"c":"x"}}"#,
    ),
    ("c", "await o.counter('c').subtract(4); return o.counter('c').value()", "-4", "-4"),
];

#[tokio::test]
async fn every_type_works_in_a_function_for_others_and_after_a_restart() {
    let mut node = TestNode::start().await;
    node.deploy_one("run", PERMIT, RUN).await;
    let mut objects = node.objects().await;
    for (field, code, answer, after) in EACH_TYPE {
        let response = node.invoke("run", code).await;
        assert_eq!(reply_text(&response), answer, "{field}");
        assert_eq!(
            get(&mut objects, "o", field).await,
            Some(serde_json::from_str(after).unwrap()),
            "{field}"
        );
    }
    let dir = node.stop().await;
    let mut node = TestNode::start_in(dir, |_| {}).await.unwrap();
    let mut objects = node.objects().await;
    for (field, _, _, after) in EACH_TYPE {
        assert_eq!(
            get(&mut objects, "o", field).await,
            Some(serde_json::from_str(after).unwrap()),
            "{field}"
        );
    }
    // A use of a field as another type is an error in the function, and changes nothing.
    for (field, ..) in EACH_TYPE {
        let code = match field {
            "l" => "await o.set('l').add(1)".to_owned(),
            other => format!("await o.list('{other}').push(1)"),
        };
        let failed = node.invoke("run", &code).await;
        let detail = &failure(&failed).detail;
        assert!(detail.contains(&format!("field `{field}` is a ")), "{detail}");
    }
    let listed = objects.list(proto::ListRequest::default()).await.unwrap().into_inner().objects;
    assert_eq!(listed.len(), 1);
    assert_eq!((listed[0].app.as_str(), listed[0].object.as_str()), ("run", "o"));
    assert_eq!(listed[0].fields.len(), EACH_TYPE.len());
    assert_eq!(listed[0].fields["map"], "map");
}

#[tokio::test]
async fn a_failed_invocation_commits_none_of_its_changes() {
    let mut node = TestNode::start().await;
    node.deploy_one("run", PERMIT, RUN).await;
    let changes = EACH_TYPE.map(|(_, code, ..)| format!("await (async () => {{ {code} }})();")).concat();
    let failed = node.invoke("run", &format!("{changes} throw new Error('no')")).await;
    assert!(failure(&failed).detail.starts_with("Error: no"));
    // A change that only the commit can refuse, since another invocation has used up the counter.
    let mut objects = node.objects().await;
    assert_eq!(objects.list(proto::ListRequest::default()).await.unwrap().into_inner().objects, []);
}

#[tokio::test]
async fn operations_over_grpc_are_those_of_functions_and_refused_with_a_reason() {
    let node = TestNode::start().await;
    let mut objects = node.objects().await;
    let bytes = |text: &str| text.as_bytes().to_vec();
    for (field, operation, value) in [
        ("c", Operation::CounterAdd(-7), json!(-7)),
        ("g", Operation::GCounterAdd(7), json!(7)),
        ("b", Operation::BoundedCounterAdd(2), json!(2)),
        ("r", Operation::RegisterSet(bytes("{\"x\": 1}")), json!({"x": 1})),
        ("raw", Operation::RegisterSet(vec![0xff]), json!({"base64": "/w=="})),
        ("mv", Operation::MvRegisterSet(bytes("1")), json!([1])),
        ("gs", Operation::GSetAdd(bytes("\"a\"")), json!(["a"])),
        ("s", Operation::SetAdd(bytes("\"a\"")), json!(["a"])),
        ("ef", Operation::EwFlagSet(true), json!(true)),
        ("df", Operation::DwFlagSet(true), json!(true)),
        ("l", Operation::ListInsert(ListElement { index: 0, value: bytes("1") }), json!([1])),
        (
            "t",
            Operation::TextSplice(proto::TextSplice { at: 0, delete: 0, insert: "x".into() }),
            json!("x"),
        ),
        ("j", Operation::JsonSet(proto::JsonSet { pointer: "".into(), value: "[1]".into() }), json!([1])),
        ("s", Operation::SetClear(Nothing {}), json!([])),
    ] {
        objects.update(update(field, &[], operation)).await.unwrap();
        assert_eq!(get(&mut objects, "o", field).await, Some(value), "{field}");
    }
    objects.update(update("map", &["in", "n"], Operation::CounterAdd(1))).await.unwrap();
    assert_eq!(get(&mut objects, "o", "map").await, Some(json!({"in": {"n": 1}})));

    let set = |pointer: &str, value: &str| {
        Operation::JsonSet(proto::JsonSet { pointer: pointer.into(), value: value.into() })
    };
    let deep: Vec<&str> = vec!["k"; 17];
    for (field, path, operation, code, reason) in [
        ("c", &[][..], Operation::SetAdd(vec![1]), Code::FailedPrecondition, "WRONG_TYPE"),
        ("map", &["in"], Operation::CounterAdd(1), Code::FailedPrecondition, "WRONG_TYPE"),
        ("b", &[], Operation::BoundedCounterAdd(-3), Code::FailedPrecondition, "BELOW_FLOOR"),
        ("c", &[], Operation::CounterAdd(i64::MIN), Code::OutOfRange, "OUT_OF_RANGE"),
        ("l", &[], Operation::ListRemove(9), Code::OutOfRange, "OUT_OF_RANGE"),
        ("j", &[], set("nothing", "1"), Code::InvalidArgument, "BAD_POINTER"),
        ("j", &[], set("", "{"), Code::InvalidArgument, "BAD_JSON"),
        ("", &[], Operation::CounterAdd(1), Code::InvalidArgument, "BAD_NAME"),
        ("a\0b", &[], Operation::CounterAdd(1), Code::InvalidArgument, "BAD_NAME"),
        ("deep", &deep, Operation::CounterAdd(1), Code::InvalidArgument, "BAD_NAME"),
        (
            "r",
            &[],
            Operation::RegisterSet(vec![0; (1 << 20) + 1]),
            Code::InvalidArgument,
            "VALUE_TOO_LARGE",
        ),
    ] {
        let status = objects.update(update(field, path, operation)).await.unwrap_err();
        let details = status.get_error_details();
        let found = details.error_info().map(|info| info.reason.clone());
        assert_eq!((status.code(), found.as_deref()), (code, Some(reason)), "{field}: {status}");
    }
    let none = proto::UpdateRequest { operation: None, ..update("c", &[], Operation::CounterAdd(1)) };
    assert_eq!(objects.update(none).await.unwrap_err().code(), Code::InvalidArgument);
    assert_eq!(get(&mut objects, "o", "c").await, Some(json!(-7)));
    assert_eq!(get(&mut objects, "o", "j").await, Some(json!([1])));

    // A group is atomic: its last operation is refused, so none applies.
    let updates = vec![
        update("c", &[], Operation::CounterAdd(1)),
        update("new", &[], Operation::CounterAdd(1)),
        update("b", &[], Operation::BoundedCounterAdd(-1)),
        update("b", &[], Operation::BoundedCounterAdd(-9)),
    ];
    let status = objects.update_all(proto::UpdateAllRequest { updates }).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition);
    assert_eq!(get(&mut objects, "o", "c").await, Some(json!(-7)));
    assert_eq!(get(&mut objects, "o", "b").await, Some(json!(2)));
    assert_eq!(get(&mut objects, "o", "new").await, None);
}

#[tokio::test]
async fn a_large_set_is_written_by_its_changes_and_survives_restarts() {
    let node = TestNode::start().await;
    let mut objects = node.objects().await;
    let element = |number: usize| Operation::SetAdd(format!("\"element number {number}\"").into_bytes());
    for group in 0..40 {
        let numbers = group * 25..(group + 1) * 25;
        let updates = numbers.map(|number| update("s", &[], element(number))).collect();
        objects.update_all(proto::UpdateAllRequest { updates }).await.unwrap();
    }
    // A group that fails half-way does not change a field that is changed in place.
    let mut updates: Vec<_> = (1000..1010).map(|number| update("s", &[], element(number))).collect();
    updates.push(update("s", &[], Operation::CounterAdd(1)));
    assert!(objects.update_all(proto::UpdateAllRequest { updates }).await.is_err());
    let removed = Operation::SetRemove(b"\"element number 3\"".to_vec());
    objects.update(update("s", &[], removed)).await.unwrap();
    let size = |value: Option<Value>| value.and_then(|value| value.as_array().map(Vec::len));
    assert_eq!(size(get(&mut objects, "o", "s").await), Some(999));
    let mut dir = node.stop().await;
    for round in 0..3 {
        let node = TestNode::start_in(dir, |_| {}).await.unwrap();
        let mut objects = node.objects().await;
        assert_eq!(size(get(&mut objects, "o", "s").await), Some(999 + round));
        objects.update(update("s", &[], element(5000 + round))).await.unwrap();
        dir = node.stop().await;
    }
}

/// Bytes of the fields of all objects, as they are stored.
async fn exported_bytes(objects: &mut ObjectsClient) -> usize {
    let mut archive = objects.export(proto::ExportRequest::default()).await.unwrap().into_inner();
    let mut bytes = 0;
    while let Some(chunk) = archive.message().await.unwrap() {
        bytes += chunk.data.len();
    }
    bytes
}

/// 30,000 elements go through a queue, and one value of a document is set 60,000 times, before and after a restart.
#[tokio::test]
async fn a_queue_and_a_value_that_is_set_again_and_again_stay_small() {
    const GROUP: usize = 1_000;
    const LENGTH: usize = 20;
    let push = |number: usize| update("queue", &[], Operation::ListPush(number.to_string().into_bytes()));
    let pop = || update("queue", &[], Operation::ListRemove(0));
    let set = |number: usize| {
        let value = number.to_string();
        update("document", &[], Operation::JsonSet(proto::JsonSet { pointer: "/key".into(), value }))
    };
    let node = TestNode::start().await;
    let mut objects = node.objects().await;
    let updates = (0..LENGTH).map(push).collect();
    objects.update_all(proto::UpdateAllRequest { updates }).await.unwrap();
    let (mut dir, mut pushed, mut value) = (node.stop().await, LENGTH, 0);
    for _ in 0..2 {
        let mut node = TestNode::start_in(dir, |_| {}).await.unwrap();
        let mut objects = node.objects().await;
        for _ in 0..15 {
            let cycles = (pushed..pushed + GROUP).flat_map(|number| [push(number), pop()]);
            objects.update_all(proto::UpdateAllRequest { updates: cycles.collect() }).await.unwrap();
            pushed += GROUP;
            let sets = (value..value + 2 * GROUP).map(set);
            objects.update_all(proto::UpdateAllRequest { updates: sets.collect() }).await.unwrap();
            value += 2 * GROUP;
        }
        // A function uses them as well.
        node.deploy_one("run", PERMIT, RUN).await;
        let cycle = format!(
            "const q = o.list('queue'); await q.push({pushed}); await q.delete(0); return [await q.length(), await o.json('document').value()]"
        );
        let answer = format!(r#"[{LENGTH},{{"key":{}}}]"#, value - 1);
        assert_eq!(reply_text(&node.invoke("run", &cycle).await), answer);
        pushed += 1;
        dir = node.stop().await;
    }
    let node = TestNode::start_in(dir, |_| {}).await.unwrap();
    let mut objects = node.objects().await;
    let expected: Vec<usize> = (pushed - LENGTH..pushed).collect();
    assert_eq!(get(&mut objects, "o", "queue").await, Some(json!(expected)));
    assert_eq!(get(&mut objects, "o", "document").await, Some(json!({"key": value - 1})));
    let bytes = exported_bytes(&mut objects).await;
    eprintln!("{bytes} bytes with {pushed} elements and {value} values");
    assert!(bytes < 2_000, "{bytes}");
}

#[tokio::test]
async fn a_full_document_is_refused_and_takes_removals() {
    let node = TestNode::start().await;
    let mut objects = node.objects().await;
    let splice = |at: u32, delete: u32, insert: String| {
        update("t", &[], Operation::TextSplice(proto::TextSplice { at, delete, insert }))
    };
    objects.update(splice(0, 0, "x".repeat(250 << 10))).await.unwrap();
    let status = objects.update(splice(7, 0, "y".repeat(10 << 10))).await.unwrap_err();
    let reason = status.get_error_details().error_info().map(|info| info.reason.clone());
    assert_eq!((status.code(), reason.as_deref()), (Code::ResourceExhausted, Some("DOCUMENT_FULL")));
    assert!(status.message().contains("field `t`") && status.message().contains("262144"), "{status}");
    objects.update(splice(7, 20 << 10, String::new())).await.unwrap();
    objects.update(splice(7, 0, "y".repeat(10 << 10))).await.unwrap();
    let text = get(&mut objects, "o", "t").await.unwrap();
    assert_eq!(text.as_str().map(str::len), Some(240 << 10));
}

#[tokio::test]
async fn an_object_has_a_quota_and_a_class() {
    let mut node = TestNode::start().await;
    let manifest = r#"
        app = "run"
        [functions.run]
        main = "run.js"
        permissions = { objects = ["*"] }
        [objects."*"]
        quota = "2KiB"
        [objects."fast-*"]
        durability = "memory"
        quota = "2KiB"
        write_interval = "1h"
    "#;
    node.deploy(manifest, &[("run", RUN)]).await;
    let mut objects = node.objects().await;
    objects.update(update("a", &[], Operation::RegisterSet(vec![b'1'; 1500]))).await.unwrap();
    let status =
        objects.update(update("b", &[], Operation::RegisterSet(vec![b'1'; 1500]))).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    let details = status.get_error_details();
    assert_eq!(details.error_info().map(|info| info.reason.as_str()), Some("QUOTA_EXCEEDED"), "{status}");
    assert_eq!(get(&mut objects, "o", "b").await, None);
    let failed = node.invoke("run", "await o.register('b').set('x'.repeat(1500))").await;
    assert!(failure(&failed).detail.contains("over its quota"), "{}", failure(&failed).detail);
    // The quota also applies to groups, to changes in memory, and to many fields together.
    for (object, size) in [("group", 1500), ("fast-2", 900)] {
        let updates = (0..20).map(|number| proto::UpdateRequest {
            object: object.into(),
            ..update(&format!("f{number}"), &[], Operation::RegisterSet(vec![b'1'; size]))
        });
        let updates: Vec<_> = updates.collect();
        let mut refused =
            objects.update_all(proto::UpdateAllRequest { updates: updates.clone() }).await.is_err();
        for one in updates {
            refused |= objects.update(one).await.is_err();
        }
        assert!(refused, "{object}");
        let request =
            proto::GetRequest { app: "run".into(), object: object.into(), field: "".into(), path: vec![] };
        let fields = objects.get(request).await.unwrap().into_inner().fields.len();
        assert!(fields <= 4, "{object} has {fields} fields");
    }
    // The size of a counter does not grow with the number of additions.
    for _ in 0..200 {
        let often =
            proto::UpdateRequest { object: "fast-3".into(), ..update("n", &[], Operation::CounterAdd(1)) };
        objects.update(often).await.unwrap();
    }
    // Smaller values and other objects are allowed.
    objects.update(update("a", &[], Operation::RegisterSet(vec![b'1']))).await.unwrap();
    objects.update(update("b", &[], Operation::RegisterSet(vec![b'1'; 1500]))).await.unwrap();

    // Changes of durability `memory` are visible to all readers, listed, and written when the node stops.
    let fast =
        proto::UpdateRequest { object: "fast-1".into(), ..update("n", &[], Operation::CounterAdd(5)) };
    for _ in 0..3 {
        objects.update(fast.clone()).await.unwrap();
    }
    assert_eq!(get(&mut objects, "fast-1", "n").await, Some(json!(15)));
    let listed = objects.list(proto::ListRequest::default()).await.unwrap().into_inner().objects;
    let names: Vec<_> = listed.iter().map(|object| object.object.as_str()).collect();
    assert_eq!(names, ["fast-1", "fast-2", "fast-3", "group", "o"]);
    let metrics = crate::support::text(&node.metrics().await).to_owned();
    let unwritten = metrics.lines().find_map(|line| line.strip_prefix("edgefaas_object_fields_unwritten "));
    assert!(unwritten.is_some_and(|count| count.parse::<u32>().unwrap() >= 3), "{unwritten:?}");
    let dir = node.stop().await;
    let node = TestNode::start_in(dir, |_| {}).await.unwrap();
    assert_eq!(get(&mut node.objects().await, "fast-1", "n").await, Some(json!(15)));
}

#[tokio::test]
async fn changes_are_watched_over_grpc_and_start_functions() {
    let mut node = TestNode::start().await;
    let manifest = r#"
        app = "run"
        [functions.run]
        main = "run.js"
        permissions = { objects = ["*"] }
        [functions.on]
        main = "on.js"
        triggers = [{ object = "room-*", field = "people" }]
        permissions = { publish = ["seen"] }
        [functions.loops]
        main = "loops.js"
        triggers = [{ object = "loop" }]
        permissions = { objects = ["loop"] }
    "#;
    let on = r#"
        export default async function handler(event, context) {
            const { kind, object, field, previous, value, origin } = event;
            await context.publish("seen", JSON.stringify([kind, object, field, previous, value, origin]));
        }"#;
    let loops = r#"
        export default async function handler(event, context) {
            await context.object("loop").counter("n").add(1);
        }"#;
    node.deploy(manifest, &[("run", RUN), ("on", on), ("loops", loops)]).await;
    let mut client = crate::support::Mqtt5::connect(&node, "c").await;
    client.subscribe("seen").await;
    let mut objects = node.objects().await;
    let request = proto::WatchRequest { app: "run".into(), object: "room-7".into(), field: String::new() };
    let mut watch = objects.watch(request).await.unwrap().into_inner();
    let add = |object: &str, field: &str, amount| proto::UpdateRequest {
        object: object.into(),
        ..update(field, &[], Operation::CounterAdd(amount))
    };
    objects.update(add("room-7", "people", 2)).await.unwrap();
    assert_eq!(client.message().await.payload, r#"["object","room-7","people",null,2,"local"]"#);
    // No notification: no change, a change of another field, a change of another object.
    objects.update(add("room-7", "people", 0)).await.unwrap();
    objects.update(add("room-7", "doors", 1)).await.unwrap();
    objects.update(add("hall", "people", 1)).await.unwrap();
    objects.update(add("room-7", "people", -1)).await.unwrap();
    assert_eq!(client.message().await.payload, r#"["object","room-7","people",2,1,"local"]"#);
    for (field, previous, value) in
        [("people", None, "2"), ("doors", None, "1"), ("people", Some("2"), "1")]
    {
        let change = in_time(watch.message()).await.unwrap().unwrap();
        let seen = (change.field.as_str(), change.previous_json.as_deref(), change.json.as_str());
        assert_eq!(seen, (field, previous, value));
    }
    // A function that changes the object it watches does not run endlessly.
    objects.update(add("loop", "n", 1)).await.unwrap();
    let request = proto::WatchRequest { app: "run".into(), object: "loop".into(), field: String::new() };
    let _watch = objects.watch(request).await.unwrap();
    in_time(async {
        while !node.logged("loops").await.iter().any(|line| line.contains("in a loop")) {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn objects_are_backed_up_and_restored_while_the_node_runs() {
    let mut node = TestNode::start().await;
    node.deploy_one("run", PERMIT, RUN).await;
    for (field, code, ..) in EACH_TYPE {
        assert!(!reply_text(&node.invoke("run", code).await).is_empty(), "{field}");
    }
    let mut objects = node.objects().await;
    let mut archive = Vec::new();
    let mut chunks = objects.export(proto::ExportRequest { app: "run".into() }).await.unwrap().into_inner();
    while let Some(chunk) = chunks.message().await.unwrap() {
        archive.extend(chunk.data);
    }
    let other = TestNode::start().await;
    let mut others = other.objects().await;
    let import = |bytes: &[u8]| {
        let chunks: Vec<_> = bytes.chunks(100).map(|data| proto::Chunk { data: data.to_vec() }).collect();
        tokio_stream::iter(chunks)
    };
    // A truncated archive or another file: a clear error, and the node continues.
    for bad in [&archive[..archive.len() - 1], &archive[..40], b"nothing", b""] {
        let status = others.import(import(bad)).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument, "{status}");
    }
    for _ in 0..2 {
        let imported = others.import(import(&archive)).await.unwrap().into_inner();
        assert_eq!(imported.fields, EACH_TYPE.len() as u64);
    }
    for (field, _, _, after) in EACH_TYPE {
        assert_eq!(
            get(&mut others, "o", field).await,
            Some(serde_json::from_str(after).unwrap()),
            "{field}"
        );
    }
    // Later changes are not lost, and not counted twice.
    objects.update(update("c", &[], Operation::CounterAdd(10))).await.unwrap();
    objects.import(import(&archive)).await.unwrap();
    assert_eq!(get(&mut objects, "o", "c").await, Some(json!(6)));
}

#[tokio::test]
async fn counts_of_earlier_boots_are_folded() {
    let mut dir = tempfile::tempdir().unwrap();
    let mut sizes = Vec::new();
    for boot in 1..=8 {
        let node = TestNode::start_in(dir, |_| {}).await.unwrap();
        let mut objects = node.objects().await;
        objects.update(update("n", &[], Operation::CounterAdd(1))).await.unwrap();
        objects.update(update("s", &[], Operation::SetAdd(b"1".to_vec()))).await.unwrap();
        assert_eq!(get(&mut objects, "o", "n").await, Some(json!(boot)));
        let listed = objects.list(proto::ListRequest::default()).await.unwrap().into_inner().objects;
        sizes.push(listed[0].bytes);
        dir = node.stop().await;
    }
    // No additional entry for each boot: the size after the third boot is the size after the last one.
    assert!(sizes[7] <= sizes[2] + 2, "{sizes:?}");
}
