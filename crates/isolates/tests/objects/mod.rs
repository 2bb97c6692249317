//! Fields of objects as functions see them.

mod component;

use bytes::Bytes;
use edgefaas_isolates::{Event, FieldType, FieldValue, ObjectChange, Read, Reply, Trigger};

use crate::support::{Bench, call, graph};

/// Runs a handler's body on a bench; gives its JSON reply.
async fn run_on(bench: &Bench, body: &str) -> serde_json::Value {
    let source = format!("export default async (event, context) => {{ {body} }}");
    let program = bench.prepare(&graph("app.js", &source)).await.unwrap();
    match bench.run(&program, call("")).await.result {
        Ok(Reply::Json(text)) => serde_json::from_str(&text).unwrap(),
        Ok(Reply::None) => serde_json::Value::Null,
        other => panic!("expected a JSON reply, got {other:?}"),
    }
}

fn bytes(texts: &[&str]) -> Vec<Bytes> {
    texts.iter().map(|text| Bytes::copy_from_slice(text.as_bytes())).collect()
}

#[tokio::test]
async fn every_change_reaches_the_host() {
    let bench = Bench::new();
    let reply = run_on(
        &bench,
        r#"
        const room = context.object("room");
        const answers = [
            await room.counter("c").subtract(2),
            await room.gCounter("gc").add(), await room.gCounter("gc").add(Number.MAX_SAFE_INTEGER),
            await room.boundedCounter("bc").add(5), await room.boundedCounter("bc").subtract(),
            await room.mvRegister("mv").set({ b: 1, a: 2 }),
            await room.gSet("gs").add({ b: [{ d: 1.0, c: null }], a: 1e21, 10: 0, 9: 0, "\u{e000}": 1, "\u{1f600}": 2 }),
            await room.set("s").add("x"), await room.set("s").delete([{ b: 1, a: 2 }]), await room.set("s").clear(),
            await room.map("m").delete("k"), await room.map("m").clear(),
            await room.flag("f").enable(), await room.ewFlag("f").disable(), await room.dwFlag("d").enable(),
            await room.dwFlag("d").disable(),
            await room.list("l").push({ b: 1, a: 2 }), await room.list("l").insert(0, null),
            await room.list("l").set(4294967295, true), await room.list("l").delete(3),
            await room.text("t").insert(1, "grüße 😀"), await room.text("t").delete(2), await room.text("t").delete(2, 3),
            await room.text("t").splice(4, 5, "x"), await room.text("t").splice(4, 5),
            await room.json("j").set({ a: 1 }), await room.json("j").set("/a/0", [1]), await room.json("j").set("", 2),
            await room.json("j").delete("/a"),
            await room.delete("c"), await room.delete(7), await room.delete(),
        ];
        return answers.every((answer) => answer === undefined) && answers.length;
        "#,
    )
    .await;
    assert_eq!(reply, serde_json::json!(32));
    let record = bench.record();
    assert_eq!(record.counters["room.c"], -2);
    let expected = [
        "room.gc GCounterAdd(1)",
        "room.gc GCounterAdd(9007199254740991)",
        "room.bc BoundedCounterAdd(5)",
        "room.bc BoundedCounterAdd(-1)",
        r#"room.mv MvRegisterSet( {"b":1,"a":2}"#,
        "room.gs GSetAdd( {\"10\":0,\"9\":0,\"a\":1e+21,\"b\":[{\"c\":null,\"d\":1}],\"\u{1f600}\":2,\"\u{e000}\":1}",
        r#"room.s SetAdd( "x""#,
        r#"room.s SetRemove( [{"a":2,"b":1}]"#,
        "room.s SetClear",
        r#"room.m MapRemove("k")"#,
        "room.m MapClear",
        "room.f EwFlagSet(true)",
        "room.f EwFlagSet(false)",
        "room.d DwFlagSet(true)",
        "room.d DwFlagSet(false)",
        r#"room.l ListPush( {"b":1,"a":2}"#,
        "room.l ListInsert { index: 0, value:  null",
        "room.l ListSet { index: 4294967295, value:  true",
        "room.l ListRemove(3)",
        r#"room.t TextSplice { at: 1, delete: 0, insert: "grüße 😀" }"#,
        r#"room.t TextSplice { at: 2, delete: 1, insert: "" }"#,
        r#"room.t TextSplice { at: 2, delete: 3, insert: "" }"#,
        r#"room.t TextSplice { at: 4, delete: 5, insert: "x" }"#,
        r#"room.t TextSplice { at: 4, delete: 5, insert: "" }"#,
        r#"room.j JsonSet { pointer: "", value: "{\"a\":1}" }"#,
        r#"room.j JsonSet { pointer: "/a/0", value: "[1]" }"#,
        r#"room.j JsonSet { pointer: "", value: "2" }"#,
        r#"room.j JsonRemove { pointer: "/a" }"#,
        "room.c deleted",
        "room.7 deleted",
        "room deleted",
    ];
    assert_eq!(record.changes, expected);
}

#[tokio::test]
async fn every_read_comes_back_as_its_value() {
    let bench = Bench::new();
    let value = Read::Value;
    bench.answers("room.gc", value(FieldType::GCounter), FieldValue::Unsigned(1 << 40));
    bench.answers("room.bc", value(FieldType::BoundedCounter), FieldValue::Integer(-3));
    bench.answers("room.bc", Read::Share, FieldValue::Unsigned(7));
    let concurrent = FieldValue::Values(bytes(&["{\"a\":1}", "2"]));
    bench.answers("room.mv", value(FieldType::MvRegister), concurrent.clone());
    bench.answers("room.gs", value(FieldType::GSet), FieldValue::Values(Vec::new()));
    bench.answers("room.s", value(FieldType::Set), concurrent);
    let element = |field_type| Read::Contains { field_type, element: br#"{"a":2,"b":1}"# };
    bench.answers("room.gs", element(FieldType::GSet), FieldValue::Flag(true));
    bench.answers("room.s", element(FieldType::Set), FieldValue::Flag(false));
    bench.answers("room.f", value(FieldType::EwFlag), FieldValue::Flag(true));
    bench.answers("room.d", value(FieldType::DwFlag), FieldValue::Flag(false));
    bench.answers("room.l", value(FieldType::List), FieldValue::Values(bytes(&["null", "[1]", "\"x\""])));
    bench.answers("room.t", value(FieldType::Text), FieldValue::Text("grüße 😀".into()));
    bench.answers("room.j", value(FieldType::Json), FieldValue::Json(r#"{"b":1,"a":[2]}"#.into()));
    let json = r#"{"z":{"n":1},"__proto__":2}"#;
    bench.answers("room.m", value(FieldType::Map), FieldValue::Json(json.into()));
    let keys = vec![("z".into(), FieldType::Map), ("__proto__".into(), FieldType::GCounter)];
    bench.answers("room.m", Read::MapKeys, FieldValue::Keys(keys));
    let reply = run_on(
        &bench,
        r#"
        const room = context.object("room");
        const map = room.map("m");
        return [
            await room.gCounter("gc").value(), await room.boundedCounter("bc").value(),
            await room.boundedCounter("bc").share(), await room.mvRegister("mv").get(),
            await room.gSet("gs").values(), await room.gSet("gs").has({ b: 1, a: 2 }),
            await room.set("s").values(), await room.set("s").has({ b: 1, a: 2 }),
            await room.flag("f").value(), await room.dwFlag("d").value(),
            await room.list("l").values(), await room.list("l").length(),
            await room.text("t").value(), await room.json("j").value(),
            await map.keys(), Object.entries(await map.types()), await map.entries(), await map.has("z"),
            await map.has("__proto__"), await map.has("toString"), Object.keys(await map.value()),
        ];
        "#,
    )
    .await;
    let expected = serde_json::json!([
        1_u64 << 40, -3, 7, [{"a": 1}, 2], [], true, [{"a": 1}, 2], false, true, false, [null, [1], "x"], 3,
        "grüße 😀", {"b": 1, "a": [2]}, ["z", "__proto__"], [["z", "map"], ["__proto__", "g-counter"]],
        [["z", {"n": 1}], ["__proto__", 2]], true, true, false, ["z", "__proto__"],
    ]);
    assert_eq!(reply, expected);
}

#[tokio::test]
async fn entries_of_maps_are_fields_of_all_types_at_any_depth() {
    let bench = Bench::new();
    let read = Read::Value(FieldType::Counter);
    bench.answers("room.m/a/b/c", read, FieldValue::Integer(i64::from(u32::MAX)));
    bench.answers("room.m/r", Read::Value(FieldType::Register), FieldValue::Register(None));
    let set = FieldValue::Register(Some(Bytes::from_static(b"[true]")));
    bench.answers("room.m/s", Read::Value(FieldType::Register), set);
    let reply = run_on(
        &bench,
        r#"
        const map = context.object("room").map("m");
        const inner = map.map("a").map("b");
        await inner.counter("c").add();
        await inner.counter("c").subtract(4);
        await inner.register("").set("x");
        await map.gCounter("1").add(1); await map.boundedCounter("2").add(2); await map.mvRegister("3").set(3);
        await map.gSet("4").add(4); await map.set("5").add(5); await map.flag("6").enable(); await map.ewFlag("7").enable();
        await map.dwFlag("8").enable(); await map.list("9").push(9); await map.text("10").insert(0, "10");
        await map.json(11).set(11); await inner.delete("c");
        return [await inner.counter("c").value(), await map.register("r").get() === undefined, await map.register("s").get()];
        "#,
    )
    .await;
    assert_eq!(reply, serde_json::json!([u32::MAX, true, [true]]));
    let expected = [
        "room.m/a/b/c CounterAdd(1)",
        "room.m/a/b/c CounterAdd(-4)",
        r#"room.m/a/b/ RegisterSet( "x""#,
        "room.m/1 GCounterAdd(1)",
        "room.m/2 BoundedCounterAdd(2)",
        "room.m/3 MvRegisterSet( 3",
        "room.m/4 GSetAdd( 4",
        "room.m/5 SetAdd( 5",
        "room.m/6 EwFlagSet(true)",
        "room.m/7 EwFlagSet(true)",
        "room.m/8 DwFlagSet(true)",
        "room.m/9 ListPush( 9",
        r#"room.m/10 TextSplice { at: 0, delete: 0, insert: "10" }"#,
        r#"room.m/11 JsonSet { pointer: "", value: "11" }"#,
        r#"room.m/a/b MapRemove("c")"#,
    ];
    assert_eq!(bench.record().changes, expected);
}

#[tokio::test]
async fn what_does_not_fit_is_a_type_error_that_says_what_does() {
    let bench = Bench::new();
    let wrong = [
        (r#"room.counter("c").add(1.5)"#, "counter.add: a counter takes whole numbers, not 1.5"),
        (
            r#"room.counter("c").subtract("2")"#,
            "counter.subtract: a counter takes whole numbers, not \"2\"",
        ),
        (
            r#"map.counter("c").add(2 ** 53)"#,
            "counter.add: a counter takes whole numbers, not 9007199254740992",
        ),
        (
            r#"room.gCounter("c").add(-1)"#,
            "gCounter.add: it only grows, so it takes whole numbers from 0, not -1",
        ),
        (
            r#"room.boundedCounter("c").add(null)"#,
            "boundedCounter.add: a counter takes whole numbers, not null",
        ),
        (r#"room.register("r").set(undefined)"#, "register.set: undefined is no JSON value"),
        (r#"room.register("r").set(NaN)"#, "register.set: NaN is no JSON value"),
        (r#"room.mvRegister("r").set(() => 1)"#, "mvRegister.set: a function is no JSON value"),
        (r#"room.gSet("s").add(Symbol("x"))"#, "gSet.add: a symbol is no JSON value"),
        (r#"room.gSet("s").has()"#, "gSet.has: undefined is no JSON value"),
        (r#"room.set("s").add(1n)"#, "set.add: the value cannot be JSON: "),
        (r#"room.set("s").delete(circle)"#, "set.delete: the value cannot be JSON: circular reference"),
        (r#"room.set("s").has()"#, "set.has: undefined is no JSON value"),
        (r#"map.has()"#, "map.has: a name is text, not undefined"),
        (r#"map.delete({})"#, "map.delete: a name is text, not {}"),
        (r#"map.text(null)"#, "map.text: a name is text, not null"),
        (r#"room.map()"#, "object.map: a name is text, not undefined"),
        (r#"room.counter()"#, "object.counter: a name is text, not undefined"),
        (r#"room.list("l").insert(-1, 1)"#, "list.insert: an index is a whole number from 0, not -1"),
        (r#"room.list("l").insert(0)"#, "list.insert: undefined is no JSON value"),
        (r#"room.list("l").set("0", 1)"#, "list.set: an index is a whole number from 0, not \"0\""),
        (r#"room.list("l").push()"#, "list.push: undefined is no JSON value"),
        (r#"room.list("l").delete()"#, "list.delete: an index is a whole number from 0, not undefined"),
        (
            r#"room.list("l").delete(2 ** 32)"#,
            "list.delete: an index is a whole number from 0, not 4294967296",
        ),
        (r#"room.text("t").insert(0, 1)"#, "text.insert: what is inserted is text, not 1"),
        (r#"room.text("t").delete(0, 0.5)"#, "text.delete: a count is a whole number from 0, not 0.5"),
        (r#"room.text("t").splice()"#, "text.splice: an index is a whole number from 0, not undefined"),
        (
            r#"room.json("j").set("a", 1)"#,
            "json.set: a pointer is text that begins with \"/\" or is empty (RFC 6901), not \"a\"",
        ),
        (r#"room.json("j").set("/a", undefined)"#, "json.set: undefined is no JSON value"),
        (
            r#"room.json("j").delete()"#,
            "json.delete: a pointer is text that begins with \"/\" or is empty (RFC 6901), not undefined",
        ),
    ];
    let calls: Vec<String> = wrong.iter().map(|(call, _)| format!("async () => {call}")).collect();
    let body = format!(
        "const room = context.object('room'), map = room.map('m'), circle = {{}}; circle.self = circle; const failures = [];
         for (const attempt of [{}]) {{
             try {{ await attempt(); failures.push('nothing'); }}
             catch (error) {{ failures.push(`${{error.name}}: ${{error.message}}`); }}
         }}
         return failures;",
        calls.join(", ")
    );
    let failures = run_on(&bench, &body).await;
    for ((call, message), failure) in wrong.iter().zip(failures.as_array().unwrap()) {
        let expected = format!("TypeError: {message}");
        assert!(failure.as_str().unwrap().starts_with(&expected), "{call}: {failure}");
    }
    assert_eq!(bench.record().changes, [""; 0]);
}

#[tokio::test]
async fn refusals_of_the_host_have_their_code() {
    let bench = Bench::new();
    bench.answers("room.t", Read::Value(FieldType::Text), FieldValue::Flag(true));
    let reply = run_on(
        &bench,
        r#"
        const failures = [];
        for (const attempt of [
            () => context.object("forbidden").set("s").add(1),
            () => context.object("forbidden").map("m").counter("c").value(),
            () => context.object("room").text("other").value(),
            () => context.object("room").text("t").value(),
        ]) {
            await attempt().catch((error) => failures.push([error.code, error.message]));
        }
        return failures;
        "#,
    )
    .await;
    let mistake = "the node has something else than the value of a text for field `t` of object `room`; this is a \
                   mistake of the node's";
    let expected = serde_json::json!([
        ["NotPermitted", "not permitted: object forbidden"],
        ["NotPermitted", "not permitted: object forbidden"],
        ["NotFound", "not found: room.other Value(Text)"],
        ["Failed", mistake],
    ]);
    assert_eq!(reply, expected);
}

#[tokio::test]
async fn a_module_that_does_not_tell_what_it_needs_gets_it_all_the_same() {
    let bench = Bench::new();
    run_on(&bench, "await context['obj' + 'ect']('o')['gS' + 'et']('s').add(1);").await;
    assert_eq!(bench.record().changes, ["o.s GSetAdd( 1"]);
}

#[tokio::test]
async fn a_change_of_an_object_is_an_event() {
    let bench = Bench::new();
    let source =
        "export default (event) => [event.kind, event.object, event.field, event.type, event.previous,
                  event.value, event.deleted, event.origin, event.topic, event.toJSON().body];";
    let program = bench.prepare(&graph("app.js", source)).await.unwrap();
    let object = || Trigger::Object(ObjectChange { object: "room".into(), field: "people".into() });
    let body = r#"{"object":"room","field":"people","type":"counter","previous":1,"value":{"a":2},"deleted":false,"origin":"remote"}"#;
    for (trigger, body, expected) in [
        (
            object(),
            body,
            serde_json::json!(["object", "room", "people", "counter", 1, {"a": 2}, false, "remote", null, body]),
        ),
        (
            object(),
            "",
            serde_json::json!(["object", "room", "people", null, null, null, null, null, null, ""]),
        ),
        (
            object(),
            "null",
            serde_json::json!(["object", "room", "people", null, null, null, null, null, null, "null"]),
        ),
        (
            call("").trigger,
            body,
            serde_json::json!(["call", null, null, null, null, null, null, null, null, body]),
        ),
    ] {
        let event = Event { trigger, body: Bytes::copy_from_slice(body.as_bytes()) };
        let reply = bench.run(&program, event).await.result;
        let Ok(Reply::Json(text)) = reply else { panic!("{reply:?}") };
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), expected);
    }
}

#[test]
fn answers_fit_their_questions() {
    let flag = FieldValue::Flag(true);
    assert!(flag.answers(&Read::Value(FieldType::DwFlag)));
    assert!(flag.answers(&Read::Contains { field_type: FieldType::Set, element: b"1" }));
    assert!(!flag.answers(&Read::Value(FieldType::Set)));
    assert!(!FieldValue::Integer(1).answers(&Read::Share));
}
