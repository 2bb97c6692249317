//! A component that does with fields of objects what it is called for.

use edgefaas::object::Map;
use edgefaas::prelude::*;
use serde_json::{Value, json};

#[edgefaas::function]
fn fields(event: Event, context: Context) -> Result<Json<Value>, Error> {
    let room = context.object("room");
    match event.text()? {
        "change" => {
            room.counter("c").add(1)?;
            room.register("r").set(&json!({ "b": 1, "a": 2 }))?;
            room.counter("c").subtract(3)?;
            change(&room.map("m"))?;
            change(&room.map("m").map("inner"))?;
            room.json("j").set("", &json!([1]))?;
            Ok(Json(json!(null)))
        }
        "read" => {
            let map = room.map("m");
            Ok(Json(json!([
                room.counter("c").value()?,
                room.register("r").get::<Value>()?,
                map.counter("c").value()?,
                map.register("r").get::<Value>()?,
                map.g_counter("gc").value()?,
                map.bounded_counter("bc").value()?,
                map.bounded_counter("bc").share()?,
                map.mv_register("mv").get::<Value>()?,
                map.g_set("gs").values::<Value>()?,
                map.g_set("gs").contains(&json!({ "b": 1.0, "a": 2 }))?,
                map.set("s").values::<Value>()?,
                map.set("s").contains("x")?,
                map.ew_flag("e").value()?,
                map.dw_flag("d").value()?,
                map.list("l").values::<Value>()?,
                map.text("t").value()?,
                map.json("j").value::<Value>()?,
                map.value::<Value>()?,
                map.types()?
                    .into_iter()
                    .map(|(key, known)| json!([key, known.as_str()]))
                    .collect::<Value>(),
            ])))
        }
        "refusals" => {
            let refusals = [
                context.object("forbidden").set("s").add("x"),
                room.text("text").value().map(drop),
                room.map("other").keys().map(drop),
                room.bounded_counter("other").share().map(drop),
            ];
            Ok(Json(refusals.into_iter().map(|it| it.unwrap_err().to_string()).collect()))
        }
        "delete" => {
            room.delete_field("c")?;
            room.delete()?;
            let refused = context.object("forbidden").delete_field("c").and(context.object("forbidden").delete());
            Ok(Json(json!(refused.unwrap_err().to_string())))
        }
        "clock" => {
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
            Ok(Json(json!(now.map_or(0, |since| since.as_millis() as u64))))
        }
        _ => Ok(Json(json!([event.previous::<Value>()?, event.value::<Value>()?, event.is_deleted()]))),
    }
}

fn change(map: &Map) -> Result<(), HostError> {
    map.counter("c").add(1)?;
    map.register("r").set("x")?;
    map.g_counter("gc").add(u64::MAX)?;
    map.bounded_counter("bc").subtract(2)?;
    map.mv_register("mv").set(&json!({ "b": 1, "a": 2 }))?;
    map.g_set("gs").add(&json!({ "b": 1.0, "a": 2 }))?;
    map.set("s").add("x")?;
    map.set("s").remove(&1)?;
    map.set("s").clear()?;
    map.remove("k")?;
    map.clear()?;
    map.ew_flag("e").enable()?;
    map.dw_flag("d").disable()?;
    map.list("l").push(&1)?;
    map.list("l").insert(0, "a")?;
    map.list("l").set(u32::MAX, "b")?;
    map.list("l").remove(3)?;
    map.text("t").insert(1, "grüße")?;
    map.text("t").delete(2, 3)?;
    map.text("t").splice(4, 5, "x")?;
    map.json("j").set("/a", &1)?;
    map.json("j").remove("/a")
}
