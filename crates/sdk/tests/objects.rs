//! Fields of objects as functions use and test them.

use std::collections::BTreeMap;

use edgefaas::object::{FieldType, Object, Origin};
use edgefaas::prelude::*;
use edgefaas::{DirectCall, ObjectChange, TestNode};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

fn room() -> Object {
    TestNode::new().context().object("room")
}

fn reason<T: std::fmt::Debug>(result: Result<T, HostError>) -> String {
    match result {
        Err(HostError::Invalid(reason)) => reason,
        other => panic!("expected it to be invalid, got {other:?}"),
    }
}

#[test]
fn counters_count() {
    let room = room();
    let counter = room.counter("people");
    counter.add(5).unwrap();
    counter.subtract(7).unwrap();
    assert_eq!(counter.value(), Ok(-2));
    assert!(reason(counter.subtract(i64::MIN)).contains("too much"));
    assert!(reason(counter.add(i64::MIN)).contains("full"));

    let total = room.g_counter("total");
    total.add(u64::MAX).unwrap();
    assert!(reason(total.add(1)).contains("full"));
    assert_eq!(total.value(), Ok(u64::MAX));

    let tickets = room.bounded_counter("tickets");
    assert_eq!((tickets.value(), tickets.share()), (Ok(0), Ok(0)));
    assert_eq!(reason(tickets.subtract(1)), "field `tickets`: 1 can't be taken, there are 0");
    tickets.add(3).unwrap();
    tickets.subtract(2).unwrap();
    assert_eq!((tickets.value(), tickets.share()), (Ok(1), Ok(1)));
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Badge {
    id: u32,
    area: String,
}

#[test]
fn registers_and_sets_hold_values() {
    let room = room();
    let badge = || Badge { id: 7, area: "lab".into() };
    let last = room.mv_register("last");
    assert_eq!(last.get::<Badge>(), Ok(vec![]));
    last.set(&badge()).unwrap();
    assert_eq!(last.get(), Ok(vec![badge()]));

    let seen = room.g_set("seen");
    seen.add(&badge()).unwrap();
    // The same element: members in any order, 7.0 and 7.
    seen.add(&json!({ "area": "lab", "id": 7.0 })).unwrap();
    assert_eq!(seen.values(), Ok(vec![badge()]));
    assert_eq!(seen.contains(&json!({ "id": 7, "area": "lab" })), Ok(true));
    assert_eq!(seen.contains("lab"), Ok(false));

    let present = room.set("present");
    present.add("Ada").unwrap();
    present.add("Grace").unwrap();
    present.remove("Ada").unwrap();
    present.remove("nobody").unwrap();
    assert_eq!(present.values(), Ok(vec!["Grace".to_owned()]));
    assert!(
        reason(present.values::<u32>())
            .starts_with("set `present` of object `room`: its value is not a u32")
    );
    present.clear().unwrap();
    assert_eq!(present.values::<String>(), Ok(vec![]));
    let keyed_by_pairs = BTreeMap::from([((1, 2), 3)]);
    assert!(reason(present.add(&keyed_by_pairs)).contains("can't be made JSON: key must be a string"));
}

#[test]
fn maps_hold_fields_of_all_types() {
    let room = room();
    let map = room.map("doors");
    assert_eq!(map.value::<Value>().unwrap(), json!({}));
    let north = map.map("north");
    north.counter("in").add(2).unwrap();
    north.counter("in").subtract(1).unwrap();
    north.register("last").set(&1.5).unwrap();
    north.list("log").push("opened").unwrap();
    map.ew_flag("open").enable().unwrap();
    map.dw_flag("locked").disable().unwrap();
    map.set("tags").add("x").unwrap();
    map.g_set("all").add(&1).unwrap();
    map.text("note").insert(0, "hi").unwrap();
    map.json("plan").set("", &json!([1])).unwrap();
    map.mv_register("owner").set("Ada").unwrap();
    map.bounded_counter("stock").add(1).unwrap();
    map.g_counter("total").add(3).unwrap();
    let expected = json!({
        "all": [1], "locked": false, "north": { "in": 1, "last": 1.5, "log": ["opened"] }, "note": "hi",
        "open": true, "owner": ["Ada"], "plan": [1], "stock": 1, "tags": ["x"], "total": 3,
    });
    assert_eq!(map.value::<Value>(), Ok(expected));
    assert_eq!(north.counter("in").value(), Ok(1));
    assert_eq!(north.register("last").get(), Ok(Some(1.5)));
    assert_eq!(north.register("never").get::<String>(), Ok(None));
    let types = [("in", FieldType::Counter), ("last", FieldType::Register), ("log", FieldType::List)];
    assert_eq!(north.types(), Ok(types.map(|(key, known)| (key.to_owned(), known)).to_vec()));
    assert_eq!(map.contains("north"), Ok(true));
    map.remove("north").unwrap();
    assert_eq!(map.contains("north"), Ok(false));
    assert_eq!(map.keys().unwrap().len(), 9);
    map.clear().unwrap();
    assert_eq!(map.keys(), Ok(vec![]));
}

#[test]
fn a_field_keeps_its_type_and_what_fails_changes_nothing() {
    let room = room();
    room.map("m").counter("c").add(1).unwrap();
    for (result, message) in [
        (room.set("m").clear(), "field `m` is a map, not a set"),
        (room.map("m").text("c").insert(0, "x"), "field `m/c` is a counter, not a text"),
        (room.map("m").map("c").counter("d").add(1), "field `m/c` is a counter, not a map"),
        (room.list("l").set(0, "x"), "field `l`: there is no index 0, the list has 0 values"),
        (
            room.map("n").text("t").delete(0, 1),
            "field `n/t`: 1 code points from 0 on are not there, the text has 0",
        ),
    ] {
        assert_eq!(reason(result), message);
    }
    assert_eq!(reason(room.map("m").map("c").value::<Value>()), "field `m/c` is a counter, not a map");
    assert_eq!(reason(room.list("m").len()), "field `m` is a map, not a list");
    assert_eq!(room.map("m").value(), Ok(json!({ "c": 1 })));
    // Nothing was made on the way.
    assert_eq!(room.map("n").keys(), Ok(vec![]));
    room.text("l").insert(0, "it is a text now").unwrap();
}

#[test]
fn flags_lists_and_texts() {
    let room = room();
    for flag in [room.ew_flag("a"), room.dw_flag("b")] {
        assert_eq!(flag.value(), Ok(false));
        flag.enable().unwrap();
        assert_eq!(flag.value(), Ok(true));
        flag.disable().unwrap();
        assert_eq!(flag.value(), Ok(false));
    }

    let list = room.list("l");
    list.push("b").unwrap();
    list.insert(0, "a").unwrap();
    list.insert(2, &3).unwrap();
    list.set(1, &json!({ "b": 2 })).unwrap();
    assert_eq!(list.values::<Value>().unwrap(), [json!("a"), json!({ "b": 2 }), json!(3)]);
    list.remove(0).unwrap();
    assert_eq!(list.len(), Ok(2));
    assert!(reason(list.insert(3, "x")).contains("has 2 values"));
    assert!(reason(list.remove(u32::MAX)).contains("has 2 values"));

    let text = room.text("t");
    text.insert(0, "grüße 😀!").unwrap();
    text.splice(2, 2, "ue").unwrap();
    text.delete(6, 1).unwrap();
    assert_eq!(text.value().unwrap(), "gruee !");
    text.insert(7, "?").unwrap();
    assert!(reason(text.delete(8, 1)).contains("the text has 8"));
    assert!(reason(text.splice(u32::MAX, u32::MAX, "")).contains("the text has 8"));
}

#[test]
fn documents_are_set_by_pointer() {
    let document = room().json("j");
    assert_eq!(document.value::<Value>(), Ok(Value::Null));
    document.set("/a", &json!([1])).unwrap();
    document.set("/a/1", &2).unwrap();
    document.set("/a/-", &3).unwrap();
    document.set("/a/0", &json!({})).unwrap();
    document.set("/a/0/x~1y~0", "z").unwrap();
    assert_eq!(document.value::<Value>().unwrap(), json!({ "a": [{ "x/y~": "z" }, 2, 3] }));
    document.remove("/a/1").unwrap();
    document.remove("/a/7").unwrap();
    document.remove("/b/c").unwrap();
    document.remove("/a/0/x~1y~0").unwrap();
    assert_eq!(document.value::<Value>().unwrap(), json!({ "a": [{}, 3] }));
    for pointer in ["a", "/b/c", "/a/9", "/a/x", "/a/1/x"] {
        assert!(reason(document.set(pointer, &1)).contains(&format!("`{pointer}`")), "{pointer}");
    }
    document.set("", "whole").unwrap();
    assert_eq!(document.value::<String>().unwrap(), "whole");
    document.remove("").unwrap();
    assert_eq!(document.value::<Option<String>>().unwrap(), None);
}

#[test]
fn a_change_tells_what_was_and_what_is() {
    let change = ObjectChange { object: "room".into(), field: "last".into() };
    let body = r#"{"object": "room", "field": "last", "type": "mv-register", "previous": null, "value": ["a"],
                   "origin": "remote", "later": 1}"#;
    let event = Event::new(Trigger::Object(change), body);
    assert_eq!(event.object().unwrap().field, "last");
    assert_eq!(event.previous::<Option<Vec<String>>>().unwrap(), None);
    assert_eq!(event.value::<Vec<String>>().unwrap(), ["a"]);
    assert_eq!(event.field_type().unwrap(), FieldType::MvRegister);
    assert_eq!(event.origin().unwrap(), Origin::Remote);
    let error = event.value::<u8>().unwrap_err().to_string();
    assert!(error.starts_with("the change of an object is not JSON of type u8: "), "{error}");

    assert!(!event.is_deleted());
    let body = r#"{"object": "room", "field": "last", "type": "register", "previous": 1, "value": null, "deleted": true,
                   "origin": "local"}"#;
    let change = ObjectChange { object: "room".into(), field: "last".into() };
    let deleted = Event::new(Trigger::Object(change), body);
    assert!(deleted.is_deleted());
    assert_eq!(deleted.value::<Option<u8>>().unwrap(), None);

    let call = Event::new(Trigger::Call(DirectCall::default()), body);
    assert!(!call.is_deleted());
    assert_eq!(call.object(), None);
    let error = call.previous::<Value>().unwrap_err().to_string();
    assert_eq!(error, "a call event has no change of an object");
}

#[test]
fn fields_and_objects_are_deleted() {
    let context = TestNode::new().context();
    let (room, hall) = (context.object("room"), context.object("hall"));
    for object in [&room, &hall] {
        object.counter("people").add(5).unwrap();
        object.register("last").set("x").unwrap();
    }
    room.delete_field("people").unwrap();
    room.delete_field("never").unwrap();
    assert_eq!(room.counter("people").value().unwrap(), 0);
    room.set("people").add("another type").unwrap();
    assert_eq!(room.register("last").get::<String>().unwrap().as_deref(), Some("x"));
    room.delete().unwrap();
    assert_eq!(room.register("last").get::<String>().unwrap(), None);
    assert_eq!(room.counter("people").value().unwrap(), 0);
    assert_eq!(hall.counter("people").value().unwrap(), 5);
}
