//! Deleted fields and objects: from functions, over gRPC, for watches and triggers.

use edgefaas_api::control;
use edgefaas_api::objects::update_request::Operation;
use edgefaas_api::objects::{self as proto, Nothing};
use serde_json::{Value, json};
use tonic::Code;
use tonic_types::StatusExt;

use crate::clusters::{cluster, until};
use crate::object_types::{PERMIT, RUN};
use crate::support::{ObjectsClient, TestNode, failure, in_time, reply_text};

async fn fields(objects: &mut ObjectsClient, object: &str) -> Value {
    let request = proto::GetRequest { app: "run".into(), object: object.into(), ..Default::default() };
    let fields = objects.get(request).await.unwrap().into_inner().fields;
    let value = |json: &str| serde_json::from_str::<Value>(json).unwrap();
    fields.into_iter().map(|state| (state.name, value(&state.json))).collect()
}

fn update(object: &str, field: &str, operation: Operation) -> proto::UpdateRequest {
    proto::UpdateRequest {
        app: "run".into(),
        object: object.into(),
        field: field.into(),
        path: Vec::new(),
        operation: Some(operation),
    }
}

async fn delete(objects: &mut ObjectsClient, object: &str, field: Option<&str>) -> (u64, u64) {
    let request =
        proto::DeleteRequest { app: "run".into(), object: object.into(), field: field.map(str::to_owned) };
    let deleted = objects.delete(request).await.unwrap().into_inner();
    (deleted.objects, deleted.fields)
}

#[tokio::test]
async fn a_function_deletes_fields_and_sees_it_itself() {
    let mut node = TestNode::start().await;
    node.deploy_one("run", PERMIT, RUN).await;
    let mut objects = node.objects().await;
    let fill = "await o.counter('x').add(5); await o.set('s').add('a'); await o.register('r').set({ a: 1 }); \
                await o.text('t').insert(0, 'abc');";
    node.invoke("run", fill).await;
    // Reads after a deletion see nothing, and a write may have another type.
    let code = "await o.counter('x').add(1); await o.delete('x'); const gone = await o.counter('x').value(); \
                await o.register('x').set('now'); await o.delete('s'); await o.delete('t'); await o.delete('never'); \
                await o.set('s').add('b'); \
                return [gone, await o.register('x').get(), await o.set('s').values(), await o.text('t').value()]";
    let reply = node.invoke("run", code).await;
    assert_eq!(reply_text(&reply), r#"[0,"now",["b"],""]"#);
    assert_eq!(fields(&mut objects, "o").await, json!({"x": "now", "s": ["b"], "r": {"a": 1}}));
    // The deleted type is wrong afterwards, and an error that the function catches deletes nothing else.
    let code = "await o.delete('r'); await o.gCounter('r').add(2); \
                return o.counter('r').value().catch((error) => error.message.includes('g-counter'))";
    assert_eq!(reply_text(&node.invoke("run", code).await), "true");
    assert_eq!(fields(&mut objects, "o").await, json!({"x": "now", "s": ["b"], "r": 2}));
    // A failed invocation deletes nothing.
    let reply =
        node.invoke("run", "await o.delete(); await o.counter('y').add(1); throw new Error('no')").await;
    assert!(failure(&reply).detail.contains("no"));
    assert_eq!(fields(&mut objects, "o").await, json!({"x": "now", "s": ["b"], "r": 2}));
    // The whole object, with a field of this invocation; a field that is written later stays.
    let code = "await o.counter('new').add(1); await o.delete(); await o.counter('z').add(3); \
                return [await o.counter('new').value(), await o.register('x').get() ?? null]";
    assert_eq!(reply_text(&node.invoke("run", code).await), "[0,null]");
    assert_eq!(fields(&mut objects, "o").await, json!({"z": 3}));
}

#[tokio::test]
async fn a_deletion_needs_the_permission_of_a_write_and_a_name() {
    let mut node = TestNode::start().await;
    let source = r#"
        export default async function handler(event, context) {
            const errors = [];
            const attempt = (call) => call.then(() => "done", (error) => error.code ?? error.name);
            const { object } = context;
            errors.push(await attempt(object("hall").delete()), await attempt(object("hall").delete("people")));
            errors.push(await attempt(object("room-1").delete(undefined)), await attempt(object("room-1").delete("")));
            await object().counter("own").add(1);
            errors.push(await attempt(object().delete()), await object().counter("own").value());
            return errors;
        }"#;
    node.deploy_one("run", r#"permissions = { objects = ["room-*"] }"#, source).await;
    let mut objects = node.objects().await;
    for object in ["hall", "room-1"] {
        objects.update(update(object, "people", Operation::CounterAdd(1))).await.unwrap();
    }
    let reply = node.invoke("run", "").await;
    let expected = r#"["NotPermitted","NotPermitted","TypeError","Invalid","done",0]"#;
    assert_eq!(reply_text(&reply), expected);
    for object in ["hall", "room-1"] {
        assert_eq!(fields(&mut objects, object).await, json!({"people": 1}), "{object}");
    }
}

#[tokio::test]
async fn an_object_with_more_fields_than_an_invocation_may_change_is_refused_with_a_remedy() {
    let mut node = TestNode::start().await;
    let source = r#"
        export default async function handler(event, context) {
            if (event.text() === "more") await context.object("p").counter("n").add(1);
            return context.object("o").delete().then(() => "done", (error) => [error.code, error.message]);
        }"#;
    node.deploy_one("run", PERMIT, source).await;
    let mut objects = node.objects().await;
    let updates: Vec<_> =
        (0..10_000).map(|number| update("o", &format!("f{number}"), Operation::CounterAdd(1))).collect();
    objects.update_all(proto::UpdateAllRequest { updates }).await.unwrap();
    // The field of the other object is the 10,001st.
    let reply = reply_text(&node.invoke("run", "more").await);
    assert!(reply.starts_with(r#"["Overloaded","#), "{reply}");
    assert!(reply.contains("edgefaas objects delete"), "{reply}");
    assert_eq!(fields(&mut objects, "p").await, json!({"n": 1}), "the function has caught the error");
    assert_eq!(delete(&mut objects, "o", Some("f7")).await, (1, 1));
    assert_eq!(reply_text(&node.invoke("run", "more").await), "done");
    assert_eq!(fields(&mut objects, "o").await, json!({}));
}

#[tokio::test]
async fn fields_and_objects_are_deleted_over_grpc() {
    let node = TestNode::start().await;
    let mut objects = node.objects().await;
    // More than one batch.
    let mut updates = Vec::new();
    for room in 0..30 {
        for field in 0..100 {
            updates.push(update(&format!("room-{room}"), &format!("f{field}"), Operation::CounterAdd(1)));
        }
    }
    updates.push(update("hall", "f1", Operation::CounterAdd(1)));
    let other =
        proto::UpdateRequest { app: "other".into(), ..update("room-1", "f1", Operation::CounterAdd(1)) };
    updates.push(other);
    objects.update_all(proto::UpdateAllRequest { updates }).await.unwrap();

    assert_eq!(delete(&mut objects, "room-7", Some("f7")).await, (1, 1));
    assert_eq!(delete(&mut objects, "room-7", Some("f7")).await, (0, 0), "it does not exist any more");
    assert_eq!(delete(&mut objects, "room-7", None).await, (1, 99));
    assert_eq!(fields(&mut objects, "room-7").await, json!({}));
    assert_eq!(delete(&mut objects, "room-*", Some("f7")).await, (29, 29));
    // A name is no prefix.
    assert_eq!(delete(&mut objects, "room-", None).await, (0, 0));
    assert_eq!(delete(&mut objects, "room-1", None).await, (1, 99));
    assert_eq!(delete(&mut objects, "*", None).await, (29, 28 * 99 + 1));
    let request = proto::ListRequest::default();
    let left = objects.list(request).await.unwrap().into_inner().objects;
    let left: Vec<_> = left.iter().map(|object| (object.app.as_str(), object.object.as_str())).collect();
    assert_eq!(left, [("other", "room-1")]);

    for (app, object, field) in [
        ("A/b", "o", None),
        ("run", "", None),
        ("run", "a\nb*", None),
        ("run", "o", Some("")),
        ("$cluster", "*", None),
    ] {
        let field = field.map(str::to_owned);
        let request = proto::DeleteRequest { app: app.into(), object: object.into(), field };
        let status = objects.delete(request).await.unwrap_err();
        let reason = status.get_error_details().error_info().map(|info| info.reason.clone());
        assert_eq!(
            (status.code(), reason.as_deref()),
            (Code::InvalidArgument, Some("BAD_NAME")),
            "{app} {object}"
        );
    }
}

#[tokio::test]
async fn deletions_are_part_of_atomic_updates() {
    let node = TestNode::start().await;
    let mut objects = node.objects().await;
    let gone = || Operation::DeleteField(Nothing {});
    objects.update(update("o", "a", Operation::CounterAdd(5))).await.unwrap();
    objects.update(update("o", "b", Operation::CounterAdd(5))).await.unwrap();
    let updates = vec![
        update("o", "a", gone()),
        update("o", "a", Operation::SetAdd(b"1".to_vec())),
        update("o", "b", Operation::SetAdd(b"1".to_vec())),
    ];
    let status = objects.update_all(proto::UpdateAllRequest { updates }).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition);
    assert_eq!(fields(&mut objects, "o").await, json!({"a": 5, "b": 5}));
    let updates = vec![
        update("o", "a", gone()),
        update("o", "a", Operation::SetAdd(b"1".to_vec())),
        update("o", "b", gone()),
    ];
    objects.update_all(proto::UpdateAllRequest { updates }).await.unwrap();
    assert_eq!(fields(&mut objects, "o").await, json!({"a": [1]}));
    let inside = proto::UpdateRequest { path: vec!["key".into()], ..update("o", "a", gone()) };
    let status = objects.update(inside).await.unwrap_err();
    assert!(status.code() == Code::InvalidArgument && status.message().contains("map_remove"), "{status}");
    objects.update(update("o", "a", gone())).await.unwrap();
    objects.update(update("o", "never", gone())).await.unwrap();
    assert_eq!(fields(&mut objects, "o").await, json!({}));
}

#[tokio::test]
async fn watches_and_triggers_tell_a_deletion_from_a_null() {
    let mut node = TestNode::start().await;
    let manifest = r#"
        app = "run"
        [functions.on]
        main = "on.js"
        triggers = [{ object = "room" }]
        permissions = { publish = ["seen"] }
    "#;
    let on = r#"
        export default async function handler(event, context) {
            const { field, type, previous, value, deleted } = event;
            await context.publish("seen", JSON.stringify([field, type, previous, value, deleted]));
        }"#;
    node.deploy(manifest, &[("on", on)]).await;
    let mut client = crate::support::Mqtt5::connect(&node, "c").await;
    client.subscribe("seen").await;
    let mut objects = node.objects().await;
    let request = proto::WatchRequest { app: "run".into(), object: "room".into(), field: String::new() };
    let mut watch = objects.watch(request).await.unwrap().into_inner();
    for (operation, event) in [
        (Operation::RegisterSet(b"1".to_vec()), (Some("null"), "1", false)),
        (Operation::RegisterSet(b"null".to_vec()), (Some("1"), "null", false)),
        (Operation::DeleteField(Nothing {}), (Some("null"), "null", true)),
        (Operation::RegisterSet(b"2".to_vec()), (None, "2", false)),
    ] {
        objects.update(update("room", "last", operation)).await.unwrap();
        let (previous, value, deleted) = event;
        let change = in_time(watch.message()).await.unwrap().unwrap();
        assert_eq!((change.json.as_str(), change.deleted), (value, deleted));
        let message = client.message().await.payload;
        let previous = previous.unwrap_or("null");
        assert_eq!(message, format!(r#"["last","register",{previous},{value},{deleted}]"#));
    }
}

#[tokio::test]
async fn a_member_tells_the_others_of_a_deletion_and_reserves_the_type_until_they_know() {
    let mut nodes = cluster(2).await;
    for node in &mut nodes {
        node.deploy_one("run", PERMIT, RUN).await;
    }
    let mut objects = nodes[0].objects().await;
    for field in ["x", "y"] {
        objects.update(update("o", field, Operation::CounterAdd(5))).await.unwrap();
        until(&nodes[1], "o", field, &json!(5)).await;
    }
    let request = proto::WatchRequest { app: "run".into(), object: "o".into(), field: "x".into() };
    let mut watch = nodes[1].objects().await.watch(request).await.unwrap().into_inner();
    assert_eq!(delete(&mut objects, "o", Some("x")).await, (1, 1));
    let change = in_time(watch.message()).await.unwrap().unwrap();
    assert_eq!((change.deleted, change.origin.as_str()), (true, "remote"));
    assert_eq!(fields(&mut nodes[1].objects().await, "o").await, json!({"y": 5}));

    // The other member is away, so it does not know of this deletion.
    drop(watch);
    let away = nodes.pop().unwrap().stop().await;
    assert_eq!(delete(&mut objects, "o", Some("y")).await, (1, 1));
    let status = objects.update(update("o", "y", Operation::SetAdd(b"1".to_vec()))).await.unwrap_err();
    let reason = status.get_error_details().error_info().map(|info| info.reason.clone());
    assert_eq!(
        (status.code(), reason.as_deref()),
        (Code::FailedPrecondition, Some("TYPE_RESERVED")),
        "{status}"
    );
    let code =
        "return o.set('y').add(1).catch((error) => [error.code, error.message.includes('was a counter')])";
    assert_eq!(reply_text(&nodes[0].invoke("run", code).await), r#"["Invalid",true]"#);
    // The same type works immediately, also after another deletion in the same invocation.
    let code = "await o.counter('y').add(1); await o.delete('y'); await o.counter('y').add(2); \
                return [await o.counter('y').value(), await o.delete('y').then(() => o.set('y').add(1)).catch((e) => e.code)]";
    let reply = reply_text(&nodes[0].invoke("run", code).await);
    assert_eq!(reply, r#"[2,"Invalid"]"#);
    assert_eq!(fields(&mut objects, "o").await, json!({}));
    drop(away);
}

/// All objects that a node has, deleted ones not counted.
async fn listed(node: &TestNode) -> usize {
    let request = proto::ListRequest { app: "run".into(), ..Default::default() };
    node.objects().await.list(request).await.unwrap().into_inner().objects.len()
}

async fn tombstones(node: &TestNode) -> u64 {
    let metrics = node.metrics().await;
    let metrics = String::from_utf8_lossy(metrics.body()).into_owned();
    let value = metrics.lines().find_map(|line| line.strip_prefix("edgefaas_object_tombstones "));
    value.expect("the metric exists").trim().parse().unwrap()
}

async fn wait_for(what: &str, mut is_done: impl AsyncFnMut() -> bool) {
    let done = async {
        while !is_done().await {
            tokio::time::sleep(std::time::Duration::from_millis(200)).await;
        }
    };
    // Members tell one another in rounds, which come every 10 to 30 seconds.
    tokio::time::timeout(std::time::Duration::from_secs(300), done).await.expect(what);
}

/// Nobody uses the objects of a removed app, so that no member is interested in them.
#[tokio::test]
async fn the_objects_of_a_removed_app_are_deleted_on_all_members_and_forgotten() {
    let mut nodes = cluster(4).await;
    for node in &mut nodes {
        node.deploy_one("run", PERMIT, RUN).await;
    }
    let mut objects = nodes[0].objects().await;
    for number in 0..40 {
        let object = format!("session-{number}");
        objects.update(update(&object, "n", Operation::CounterAdd(1))).await.unwrap();
        objects.update(update(&object, "l", Operation::ListPush(b"1".to_vec()))).await.unwrap();
    }
    for node in &nodes {
        wait_for("all members have the objects", async || listed(node).await >= 40).await;
    }
    // As `edgefaas rm --with-objects`.
    let request = control::RemoveRequest { app: "run".into(), ..Default::default() };
    nodes[0].control.remove(request).await.unwrap();
    assert_eq!(delete(&mut objects, "*", None).await, (40, 80));
    // They are dropped after 30 s at the earliest.
    wait_for("a member has tombstones", async || tombstones(&nodes[0]).await > 0).await;
    for node in &nodes {
        wait_for("no member has an object", async || listed(node).await == 0).await;
    }
    for node in &nodes {
        wait_for("no member has tombstones", async || tombstones(node).await == 0).await;
    }
    // The names can have other types.
    let mut objects = nodes[3].objects().await;
    objects.update(update("session-7", "n", Operation::SetAdd(b"1".to_vec()))).await.unwrap();
    assert_eq!(self::fields(&mut objects, "session-7").await, json!({"n": [1]}));
}

/// Objects of a class that expire.
const SESSIONS: &str = "[objects.\"session-*\"]\nttl = \"2s\"";

#[tokio::test]
async fn an_object_expires() {
    let mut node = TestNode::start().await;
    node.deploy_one("run", &format!("{PERMIT}\n{SESSIONS}"), RUN).await;
    let request = proto::WatchRequest { app: "run".into(), object: "*".into(), ..Default::default() };
    let mut watch = node.objects().await.watch(request).await.unwrap().into_inner();
    for object in ["o", "session-1"] {
        node.objects().await.update(update(object, "n", Operation::CounterAdd(1))).await.unwrap();
    }
    for (object, deleted) in [("o", false), ("session-1", false), ("session-1", true)] {
        let change = in_time(watch.message()).await.unwrap().unwrap();
        assert_eq!((change.object.as_str(), change.deleted), (object, deleted));
    }
    assert_eq!(listed(&node).await, 1);
    assert_eq!(fields(&mut node.objects().await, "o").await, json!({"n": 1}));
}
