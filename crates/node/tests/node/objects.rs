//! State beside the function.

use crate::support::{TestNode, failure, in_time, reply_text};

const PERMIT: &str = r#"permissions = { objects = ["room-*"], publish = ["out"] }"#;

const COUNT: &str = r#"
    export default async function handler(event, context) {
        const room = context.object("room-7");
        const people = room.counter("people");
        await people.add(event.json());
        await room.register("last").set({ added: event.json() });
        const seen = { people: await people.value(), last: await room.register("last").get() };
        if (event.json() > 100) throw new Error("too many");
        return seen;
    }"#;

#[tokio::test]
async fn an_invocation_sees_its_own_writes_and_later_ones_see_them_too() {
    let mut node = TestNode::start().await;
    node.deploy_one("count", PERMIT, COUNT).await;
    assert_eq!(reply_text(&node.invoke("count", "3").await), r#"{"people":3,"last":{"added":3}}"#);
    assert_eq!(reply_text(&node.invoke("count", "-1").await), r#"{"people":2,"last":{"added":-1}}"#);
}

#[tokio::test]
async fn a_failed_invocation_changes_nothing_and_publishes_nothing() {
    let mut node = TestNode::start().await;
    let source = r#"
        export default async function handler(event, context) {
            const counter = context.object("room-1").counter("n");
            await counter.add(1);
            await context.publish("out", String(await counter.value()));
            if (event.text() === "fail") throw new Error("as requested");
            return await counter.value();
        }"#;
    node.deploy_one("f", PERMIT, source).await;
    let mut client = crate::support::Mqtt5::connect(&node, "c").await;
    client.subscribe("out").await;
    let failed = node.invoke("f", "fail").await;
    let detail = &failure(&failed).detail;
    assert!(detail.starts_with("Error: as requested at f.js:6:"), "{detail}");
    assert_eq!(reply_text(&node.invoke("f", "").await), "1");
    // The first message comes from the second invocation.
    assert_eq!(client.message().await.payload, "1");
}

#[tokio::test]
async fn concurrent_additions_of_many_invocations_all_count() {
    let mut node = TestNode::start().await;
    node.deploy_one("count", PERMIT, COUNT).await;
    let calls: Vec<_> = (0..200)
        .map(|_| {
            let mut control = node.control.clone();
            tokio::spawn(async move {
                let request = edgefaas_api::control::InvokeRequest {
                    function: "count".into(),
                    data: b"1".to_vec(),
                    event: None,
                };
                let response = control.invoke(request).await.unwrap().into_inner();
                reply_text(&response)
            })
        })
        .collect();
    for call in calls {
        in_time(call).await.unwrap();
    }
    assert_eq!(reply_text(&node.invoke("count", "0").await), r#"{"people":200,"last":{"added":0}}"#);
}

#[tokio::test]
async fn a_field_keeps_its_type_and_objects_need_permission() {
    let mut node = TestNode::start().await;
    let source = r#"
        export default async function handler(event, context) {
            try {
                await eval("(" + event.text() + ")")(context);
                return "fine";
            } catch (error) {
                return error.code + ": " + error.message;
            }
        }"#;
    node.deploy_one("try", PERMIT, source).await;
    for (code, expected) in [
        ("(c) => c.object('room-1').counter('n').add(1)", "fine"),
        ("(c) => c.object('room-1').register('n').set(1)", "Invalid: "),
        ("(c) => c.object('room-1').register('n').get()", "Invalid: "),
        ("(c) => c.object('kitchen').counter('n').add(1)", "NotPermitted: "),
        ("(c) => c.object('room-1').counter('').add(1)", "Invalid: "),
        ("(c) => c.object().counter('n').add(1)", "fine"),
        (
            "async (c) => { if (await c.object().counter('n').value() !== 1) throw new Error('none'); }",
            "fine",
        ),
        ("(c) => c.object('@try').counter('n').add(1)", "NotPermitted: "),
        ("(c) => c.object('room-1').register('big').set('x'.repeat(2 ** 20))", "Invalid: "),
        ("(c) => c.publish('elsewhere', 'x')", "NotPermitted: "),
        ("(c) => c.publish('out/#', 'x')", "Invalid: "),
        ("(c) => c.call('other', 'x')", "NotPermitted: "),
    ] {
        let answer = reply_text(&node.invoke("try", code).await);
        assert!(answer.starts_with(expected), "{code}: {answer}");
    }
}
