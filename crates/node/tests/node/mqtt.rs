//! Functions over MQTT.

use rumqttc::v5::mqttbytes::v5::PublishProperties;

use crate::support::{Mqtt5, TestNode, in_time};

fn user_property(message: &rumqttc::v5::mqttbytes::v5::Publish, name: &str) -> Option<String> {
    let properties = message.properties.as_ref()?;
    properties.user_properties.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone())
}

#[tokio::test]
async fn a_trigger_observes_a_message_and_subscribers_still_get_it() {
    let mut node = TestNode::start().await;
    let extra = r#"
        triggers = [{ mqtt = "sensors/+/raw" }]
        permissions = { publish = ["sensors/+/celsius"] }"#;
    let source = r#"
        export default async function handler(event, context) {
            const room = event.topic.split("/")[1];
            await context.publish(`sensors/${room}/celsius`, { celsius: event.json().kelvin - 273 });
        }"#;
    node.deploy_one("convert", extra, source).await;
    let mut client = Mqtt5::connect(&node, "c").await;
    client.subscribe("sensors/#").await;
    client.publish("sensors/7/raw", r#"{"kelvin":300}"#).await;
    let mut seen = [client.message().await, client.message().await];
    seen.sort_by_key(|message| message.topic.clone());
    assert_eq!(seen[0].topic, "sensors/7/celsius");
    assert_eq!(seen[0].payload, r#"{"celsius":27}"#);
    assert_eq!(seen[1].topic, "sensors/7/raw");
}

#[tokio::test]
async fn subscribers_do_not_get_a_message_of_a_consuming_trigger() {
    let mut node = TestNode::start().await;
    let extra = r#"
        triggers = [{ mqtt = "jobs/in", consume = true }]
        permissions = { publish = ["jobs/out"] }"#;
    let source = "export default (event, context) => context.publish('jobs/out', event.text())";
    node.deploy_one("worker", extra, source).await;
    let mut client = Mqtt5::connect(&node, "c").await;
    client.subscribe("jobs/#").await;
    client.publish("jobs/in", "one").await;
    // A delivered message would arrive before the message of the function.
    let message = client.message().await;
    assert_eq!((&message.topic[..], &message.payload[..]), (&b"jobs/out"[..], &b"one"[..]));
}

#[tokio::test]
async fn a_call_is_answered_on_its_response_topic_with_its_correlation_data() {
    let mut node = TestNode::start().await;
    node.deploy_one("double", "", "export default (event) => ({ double: event.json() * 2 })").await;
    let mut client = Mqtt5::connect(&node, "c").await;
    client.subscribe("my/replies").await;
    let properties = PublishProperties {
        response_topic: Some("my/replies".into()),
        correlation_data: Some("call-1".into()),
        ..Default::default()
    };
    client.publish_with("$faas/fn/double/invoke", "21", properties).await;
    let answer = client.message().await;
    assert_eq!(answer.payload, r#"{"double":42}"#);
    let properties = answer.properties.as_ref().unwrap();
    assert_eq!(properties.correlation_data.as_deref(), Some(&b"call-1"[..]));
    assert_eq!(properties.content_type.as_deref(), Some("application/json"));
    assert_eq!(user_property(&answer, "faas-status"), None);
}

#[tokio::test]
async fn a_call_with_a_request_id_over_mqtt_3_1_1_is_answered_on_the_result_topic() {
    let mut node = TestNode::start().await;
    node.deploy_one("hello", "", "export default (event) => 'hello ' + event.text()").await;
    let mut options = rumqttc::MqttOptions::new("old", "127.0.0.1", node.addresses.mqtt.port());
    options.set_keep_alive(std::time::Duration::from_secs(60));
    let (client, mut events) = rumqttc::AsyncClient::new(options, 10);
    client.subscribe("$faas/fn/hello/result/+", rumqttc::QoS::AtMostOnce).await.unwrap();
    client.publish("$faas/fn/hello/invoke/r-7", rumqttc::QoS::AtMostOnce, false, "you").await.unwrap();
    let answer = loop {
        if let rumqttc::Event::Incoming(rumqttc::Incoming::Publish(message)) =
            in_time(events.poll()).await.unwrap()
        {
            break message;
        }
    };
    assert_eq!(answer.topic, "$faas/fn/hello/result/r-7");
    assert_eq!(answer.payload, "hello you");
}

#[tokio::test]
async fn a_failure_is_a_problem_with_its_status_as_a_user_property() {
    let mut node = TestNode::start().await;
    node.deploy_one("bad", "", "export default () => { throw new TypeError('bad input') }").await;
    let mut client = Mqtt5::connect(&node, "c").await;
    client.subscribe("$faas/fn/+/result/+").await;
    for (name, status, words) in
        [("bad", "500", "TypeError: bad input"), ("badd", "404", "did you mean `bad`")]
    {
        client.publish(&format!("$faas/fn/{name}/invoke/1"), "").await;
        let answer = client.message().await;
        assert_eq!(user_property(&answer, "faas-status").as_deref(), Some(status));
        let properties = answer.properties.as_ref().unwrap();
        assert_eq!(properties.content_type.as_deref(), Some("application/problem+json"));
        let problem: serde_json::Value = serde_json::from_slice(&answer.payload).unwrap();
        assert!(problem["detail"].as_str().unwrap().contains(words), "{problem}");
    }
}

#[tokio::test]
async fn clients_may_not_publish_to_result_topics() {
    let mut node = TestNode::start().await;
    node.deploy_one("hello", "", "export default () => 1").await;
    let mut client = Mqtt5::connect(&node, "c").await;
    client.publish("$faas/fn/hello/result/1", "forged").await;
    assert_eq!(client.puback().await, rumqttc::v5::mqttbytes::v5::PubAckReason::NotAuthorized);
}

#[tokio::test]
async fn functions_that_trigger_themselves_are_stopped() {
    let mut node = TestNode::start().await;
    let extra = r#"
        triggers = [{ mqtt = "loop" }]
        permissions = { publish = ["loop"] }"#;
    node.deploy_one("circle", extra, "export default (e, context) => context.publish('loop', 'x')").await;
    let mut client = Mqtt5::connect(&node, "c").await;
    client.subscribe("loop").await;
    client.publish("loop", "x").await;
    let mut log = Vec::new();
    in_time(async {
        while !log.iter().any(|line: &String| line.contains("in a loop")) {
            client.message().await;
            log = node.logged("circle").await;
        }
    })
    .await;
}

#[tokio::test]
async fn an_answer_that_triggers_its_own_function_is_stopped_too() {
    let mut node = TestNode::start().await;
    node.deploy_one("echo", r#"triggers = [{ mqtt = "circle" }]"#, "export default (e) => e.text()").await;
    let mut client = Mqtt5::connect(&node, "c").await;
    client.subscribe("circle").await;
    let properties = PublishProperties { response_topic: Some("circle".into()), ..Default::default() };
    client.publish_with("circle", "x", properties).await;
    for _ in 0..2 {
        assert_eq!(client.message().await.payload, "x", "once from the client, once from the function");
    }
    node.deploy_one("fine", "", "export default () => 'fine'").await;
    assert_eq!(crate::support::text(&node.get("/fn/fine").await), "fine");
}

#[tokio::test]
async fn a_chain_waits_for_isolates_instead_of_losing_messages() {
    let mut node = TestNode::start_with(|config| config.isolates.max = Some(2)).await;
    let manifest = r#"
        app = "chain"
        [functions.relay]
        main = "relay.js"
        triggers = [{ mqtt = "a" }]
        permissions = { publish = ["b"] }
        [functions.sink]
        main = "sink.js"
        triggers = [{ mqtt = "b" }]
        permissions = { publish = ["c"] }
    "#;
    let relay = "export default (event, context) => context.publish('b', event.text())";
    let sink = "export default (event, context) => context.publish('c', event.text())";
    node.deploy(manifest, &[("relay", relay), ("sink", sink)]).await;
    let mut client = Mqtt5::connect(&node, "c").await;
    client.subscribe("c").await;
    for number in 0..100 {
        client.publish("a", &number.to_string()).await;
    }
    let mut seen = std::collections::BTreeSet::new();
    while seen.len() < 100 {
        seen.insert(String::from_utf8(client.message().await.payload.to_vec()).unwrap());
    }
}

#[tokio::test]
async fn an_answer_is_not_published_to_a_reserved_response_topic() {
    let mut node = TestNode::start().await;
    node.deploy_one("hello", "", "export default () => 'hello'").await;
    let mut client = Mqtt5::connect(&node, "c").await;
    client.subscribe("$faas/#").await;
    for topic in ["$faas/events/forged", "$faas/fn/other/result/1", "$SYS/broker/version"] {
        let properties = PublishProperties { response_topic: Some(topic.to_owned()), ..Default::default() };
        client.publish_with("$faas/fn/nobody/invoke", "", properties).await;
        assert_eq!(client.puback().await, rumqttc::v5::mqttbytes::v5::PubAckReason::TopicNameInvalid);
    }
    let own = PublishProperties {
        response_topic: Some("$faas/fn/hello/result/mine".into()),
        ..Default::default()
    };
    client.publish_with("$faas/fn/hello/invoke", "", own).await;
    assert_eq!(client.message().await.topic, "$faas/fn/hello/result/mine");
}

#[tokio::test]
async fn a_publish_or_an_answer_that_is_too_large_for_a_message_is_an_error() {
    let mut node = TestNode::start().await;
    let source = r#"export default async (event, context) => {
        if (event.text() === "reply") return "x".repeat(2_000_000);
        try {
            await context.publish("out", "x".repeat(2_000_000));
        } catch (error) {
            return error.code;
        }
    }"#;
    node.deploy_one("large", r#"permissions = { publish = ["out"] }"#, source).await;
    let mut client = Mqtt5::connect(&node, "c").await;
    client.subscribe("$faas/fn/large/result/+").await;
    client.publish("$faas/fn/large/invoke/1", "publish").await;
    assert_eq!(client.message().await.payload, "Invalid");
    client.publish("$faas/fn/large/invoke/2", "reply").await;
    let answer = client.message().await;
    assert_eq!(user_property(&answer, "faas-status").as_deref(), Some("413"));
}

#[tokio::test]
async fn a_publish_with_a_zero_character_in_its_content_type_is_refused() {
    let mut node = TestNode::start().await;
    let source = r#"export default async (event, context) => {
        try {
            await context.publish("out", "x", { contentType: "a\0b" });
        } catch (error) {
            return error.code;
        }
    }"#;
    node.deploy_one("nul", r#"permissions = { publish = ["out"] }"#, source).await;
    assert_eq!(crate::support::reply_text(&node.invoke("nul", "").await), "Invalid");
}

/// A bridge of another node is a client of this node's broker.
#[tokio::test]
async fn only_bridges_may_set_the_list_of_the_nodes_that_a_message_has_passed() {
    let mut node = TestNode::start().await;
    let request = edgefaas_api::control::GetClusterRequest {};
    let this_node = node.control.get_cluster(request).await.unwrap().into_inner().node_id;
    let mut here = Mqtt5::connect(&node, "here").await;
    here.subscribe("t/#").await;
    let eight = "n1,n2,n3,n4,n5,n6,n7,n8";
    let passed = |via: &str| PublishProperties {
        user_properties: [("edgefaas-via", via), ("kept", "yes")].map(|(k, v)| (k.into(), v.into())).into(),
        ..Default::default()
    };
    let mut client = Mqtt5::connect(&node, "client").await;
    for via in [&*this_node, "n1", eight] {
        client.publish_with("t/client", via, passed(via)).await;
        client.puback().await;
        let message = here.message().await;
        assert_eq!(message.payload, via.to_owned());
        assert_eq!(user_property(&message, "edgefaas-via"), None);
        assert_eq!(user_property(&message, "kept").as_deref(), Some("yes"));
    }
    let mut bridge = Mqtt5::connect(&node, "edgefaas-0123456789abcdef-cloud").await;
    // One message has passed this node before; the other two have passed the maximum number of nodes.
    for via in [&*this_node, eight, "n0,n1,n2,n3,n4,n5,n6,n7,n8"] {
        bridge.publish_with("t/bridge", "dropped", passed(via)).await;
        assert_eq!(bridge.puback().await, rumqttc::v5::mqttbytes::v5::PubAckReason::Success);
    }
    bridge.publish_with("t/bridge", "delivered", passed("n1")).await;
    bridge.puback().await;
    let message = here.message().await;
    assert_eq!(message.payload, "delivered");
    assert_eq!(user_property(&message, "edgefaas-via").as_deref(), Some("n1"));
}
