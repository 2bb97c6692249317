//! The broker over the control API: clients, retained messages, topics, messages to publish and to receive.

use edgefaas_api::control;
use edgefaas_api::messages as proto;
use edgefaas_api::messages::messages_client::MessagesClient;
use http::header::{CONTENT_TYPE, COOKIE, ORIGIN, SET_COOKIE};
use http::{Request, StatusCode};
use http_body_util::Full;
use prost::Message;
use rumqttc::v5::mqttbytes::QoS;
use rumqttc::v5::mqttbytes::v5::{DisconnectReasonCode, LastWill};
use rumqttc::v5::{ConnectionError, StateError};
use tonic::Code;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Channel;

use crate::support::{Bearer, Mqtt5, TestNode, channel, in_time, send};

type Client = MessagesClient<InterceptedService<Channel, Bearer>>;

async fn messages(node: &TestNode) -> Client {
    let bearer = node.bearer();
    MessagesClient::with_interceptor(channel(node.addresses.control).await, bearer)
}

fn publication(topic: &str, payload: &str, qos: u32, retain: bool) -> proto::PublishRequest {
    proto::PublishRequest {
        topic: topic.into(),
        payload: payload.into(),
        qos,
        retain,
        content_type: "text/plain".into(),
    }
}

async fn persistent(node: &TestNode, id: &str) -> Mqtt5 {
    Mqtt5::connect_with(node, id, |options| {
        options.set_clean_start(false);
        options.set_session_expiry_interval(Some(600));
        options.set_last_will(LastWill::new("wills", id.to_owned(), QoS::AtMostOnce, false, None));
    })
    .await
}

async fn client_of(client: &mut Client, id: &str) -> Result<proto::Client, tonic::Status> {
    let request = proto::GetClientRequest { id: id.into() };
    in_time(client.get_client(request)).await.map(tonic::Response::into_inner)
}

#[tokio::test]
async fn clients_are_listed_shown_dropped_and_forgotten() {
    let node = TestNode::start().await;
    let mut api = messages(&node).await;
    let mut reader = Mqtt5::connect(&node, "reader").await;
    reader.subscribe("wills").await;
    let mut pump = persistent(&node, "pump-1").await;
    pump.subscribe("pumps/1/#").await;
    let list = proto::ListClientsRequest { search: "PUMP".into(), connected: true, ..Default::default() };
    let listed = in_time(api.list_clients(list.clone())).await.unwrap().into_inner();
    assert_eq!((listed.total, listed.connected, listed.more), (2, 2, false));
    let [found] = &listed.clients[..] else { panic!("one client: {listed:?}") };
    assert_eq!(
        (found.id.as_str(), found.connected, found.version.as_str(), found.transport.as_str()),
        ("pump-1", true, "5", "tcp")
    );
    assert!(found.address.starts_with("127.0.0.1:") && found.since_unix_ms > 0, "{found:?}");
    assert!(found.filters.is_empty() && found.subscriptions == 1);
    let shown = client_of(&mut api, "pump-1").await.unwrap();
    assert_eq!(shown.filters, [proto::Subscription { filter: "pumps/1/#".into(), qos: 1 }]);

    let drop = |forget| proto::DropClientRequest { id: "pump-1".into(), forget };
    let dropped = in_time(api.drop_client(drop(false))).await.unwrap().into_inner();
    assert!(dropped.was_connected);
    let reason = in_time(async {
        loop {
            match pump.events.poll().await {
                Ok(_) => {}
                Err(ConnectionError::MqttState(StateError::ServerDisconnect { reason_code, .. })) => {
                    break reason_code;
                }
                Err(error) => panic!("no DISCONNECT before {error}"),
            }
        }
    })
    .await;
    assert_eq!(reason, DisconnectReasonCode::AdministrativeAction);
    assert_eq!(reader.message().await.payload, "pump-1", "its will");
    drop_events(pump);

    in_time(api.publish(publication("pumps/1/on", "1", 1, false))).await.unwrap();
    let away = client_of(&mut api, "pump-1").await.unwrap();
    assert_eq!((away.connected, away.waiting, away.in_flight), (false, 1, 0));
    assert_eq!(in_time(api.list_clients(list)).await.unwrap().into_inner().clients, []);
    let mut pump = persistent(&node, "pump-1").await;
    assert_eq!(pump.message().await.payload, "1", "its session waited");

    assert!(in_time(api.drop_client(drop(true))).await.unwrap().into_inner().was_connected);
    drop_events(pump);
    assert_eq!(client_of(&mut api, "pump-1").await.unwrap_err().code(), Code::NotFound);
    let gone = in_time(api.drop_client(drop(true))).await.unwrap_err();
    assert_eq!(gone.code(), Code::NotFound);
}

/// Ends a client, which would otherwise connect again.
fn drop_events(client: Mqtt5) {
    drop(client);
}

#[tokio::test]
async fn retained_messages_are_paged_and_removed() {
    let node = TestNode::start().await;
    let mut api = messages(&node).await;
    for number in 0..25 {
        let topic = format!("rooms/{number:02}/Light");
        in_time(api.publish(publication(&topic, "on", 1, true))).await.unwrap();
    }
    let list = |filter: &str, search: &str, after: &str| proto::ListRetainedRequest {
        filter: filter.into(),
        search: search.into(),
        after: after.into(),
        limit: 10,
    };
    let mut topics: Vec<String> = Vec::new();
    loop {
        let after = topics.last().cloned().unwrap_or_default();
        let page = in_time(api.list_retained(list("rooms/#", "light", &after))).await.unwrap().into_inner();
        topics.extend(page.messages.into_iter().map(|message| message.topic));
        if !page.more {
            break;
        }
    }
    assert_eq!(topics.len(), 25);
    assert!(topics.is_sorted());
    let one = in_time(api.list_retained(list("rooms/07/+", "", ""))).await.unwrap().into_inner();
    let [message] = &one.messages[..] else { panic!("one message: {one:?}") };
    assert_eq!(
        (&message.payload[..], message.qos, message.content_type.as_str()),
        (&b"on"[..], 1, "text/plain")
    );
    in_time(api.publish(publication("rooms/07/Light", "", 1, true))).await.unwrap();
    let none = in_time(api.list_retained(list("rooms/07/+", "", ""))).await.unwrap().into_inner();
    assert_eq!(none.messages, []);
    let wrong = in_time(api.list_retained(list("a/#/b", "", ""))).await.unwrap_err();
    assert_eq!(wrong.code(), Code::InvalidArgument);
}

#[tokio::test]
async fn ten_thousand_topics_are_paged_searched_and_unfolded() {
    let node = TestNode::start().await;
    let mut api = messages(&node).await;
    in_time(api.publish(publication("halls/kept", "0", 1, true))).await.unwrap();
    in_time(api.publish(publication("/deep/one", "0", 1, true))).await.unwrap();
    let list = |filter: &str, search: &str, after: &str| proto::ListTopicsRequest {
        filter: filter.into(),
        search: search.into(),
        after: after.into(),
        limit: 1000,
        branch: None,
    };
    let first = in_time(api.list_topics(list("", "", ""))).await.unwrap().into_inner();
    let [_, kept] = &first.topics[..] else { panic!("the retained ones: {first:?}") };
    assert_eq!((kept.name.as_str(), kept.messages, kept.retained_bytes), ("halls/kept", 0, Some(1)));

    let mut publisher = Mqtt5::connect(&node, "publisher").await;
    publisher.subscribe("done").await;
    for number in 0..10_000 {
        let topic = format!("halls/{}/sensor-{number:04}", number / 1000);
        publisher.client.publish(topic, QoS::AtMostOnce, false, vec![b'x'; 1500]).await.unwrap();
        if number % 500 == 499 {
            publisher.publish("done", "").await;
            publisher.message().await;
        }
    }
    let mut topics: Vec<proto::Topic> = Vec::new();
    loop {
        let after = topics.last().map(|topic| topic.name.clone()).unwrap_or_default();
        let page = in_time(api.list_topics(list("halls/#", "", &after))).await.unwrap().into_inner();
        assert!(page.total >= 10_003 && page.left_out == 0);
        topics.extend(page.topics);
        if !page.more {
            break;
        }
    }
    assert_eq!(topics.len(), 10_001);
    assert!(topics.is_sorted_by(|one, next| one.name < next.name));
    assert!(topics.iter().all(|topic| topic.name == "halls/kept" || topic.messages == 1));
    let last = topics[0].last.as_ref().expect("a message");
    assert_eq!(last.payload_bytes, 1500);
    assert!(last.payload.len() < 1024, "payloads give way to so many topics");
    let found = in_time(api.list_topics(list("", "SENSOR-77", ""))).await.unwrap().into_inner();
    assert_eq!((found.topics.len(), found.more), (100, false));

    let branch = |parent: Option<&str>| proto::ListTopicsRequest {
        branch: Some(proto::Branch { parent: parent.map(Into::into) }),
        ..list("", "", "")
    };
    let top = in_time(api.list_topics(branch(None))).await.unwrap().into_inner();
    let names: Vec<_> = top.levels.iter().map(|level| (level.name.as_str(), level.topics)).collect();
    assert_eq!(names, [("", 1), ("done", 1), ("halls", 10_001)], "those that begin with $ are left out");
    let empty = in_time(api.list_topics(branch(Some("")))).await.unwrap().into_inner();
    let names: Vec<_> = empty.levels.iter().map(|level| (level.name.as_str(), level.topics)).collect();
    assert_eq!(names, [("deep", 1)]);
    let halls = in_time(api.list_topics(branch(Some("halls")))).await.unwrap().into_inner();
    assert_eq!(halls.levels.len(), 11);
    assert_eq!((halls.levels[3].name.as_str(), halls.levels[3].topics), ("3", 1000));
    assert!(halls.levels[3].topic.is_none());
    let kept = halls.levels[10].topic.as_ref().expect("a topic");
    assert_eq!((kept.name.as_str(), halls.levels[10].topics), ("halls/kept", 1));
    in_time(async {
        // Figures of the broker itself are topics, too.
        while in_time(api.list_topics(branch(Some("$SYS")))).await.unwrap().into_inner().levels.is_empty() {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    })
    .await;

    in_time(async {
        loop {
            publisher.publish("done", "").await;
            publisher.message().await;
            let now = in_time(api.list_topics(list("done", "", ""))).await.unwrap().into_inner();
            if now.topics[0].rate >= 1.0 {
                break;
            }
        }
    })
    .await;
}

#[tokio::test]
async fn a_message_that_is_published_starts_a_function() {
    let mut node = TestNode::start().await;
    let extra = r#"
        triggers = [{ mqtt = "jobs/in" }]
        permissions = { publish = ["jobs/out"] }"#;
    let source = "export default (event, context) => context.publish('jobs/out', event.text() + '!')";
    node.deploy_one("worker", extra, source).await;
    let mut api = messages(&node).await;
    let mut reader = Mqtt5::connect(&node, "reader").await;
    reader.subscribe("jobs/out").await;
    for qos in [0, 1, 2] {
        let published = in_time(api.publish(publication("jobs/in", "one", qos, false))).await.unwrap();
        assert_eq!(published.into_inner().subscribers, 0);
        assert_eq!(reader.message().await.payload, "one!");
    }
    let published = in_time(api.publish(publication("jobs/out", "direct", 1, false))).await.unwrap();
    assert_eq!(published.into_inner().subscribers, 1);
    assert_eq!(reader.message().await.payload, "direct");
    for (topic, payload, qos, code, words) in [
        ("a/#", "x".to_owned(), 0, Code::InvalidArgument, "wildcard"),
        ("", "x".to_owned(), 0, Code::InvalidArgument, "empty"),
        ("a", "x".to_owned(), 3, Code::InvalidArgument, "QoS is 3"),
        ("a", "x".repeat(2 << 20), 0, Code::InvalidArgument, "broker.max_packet"),
        ("$SYS/broker/version", "x".to_owned(), 0, Code::PermissionDenied, "$SYS/broker/version"),
        ("$faas/fn/worker/result/1", "x".to_owned(), 1, Code::PermissionDenied, "$faas/fn/worker/result/1"),
    ] {
        let refused = in_time(api.publish(publication(topic, &payload, qos, false))).await.unwrap_err();
        assert_eq!(refused.code(), code, "{topic}: {refused}");
        assert!(refused.message().contains(words), "{refused}");
    }
}

#[tokio::test]
async fn a_subscription_sees_messages_and_counts_those_that_it_missed() {
    const MESSAGES: u64 = 5000;
    let node = TestNode::start().await;
    let mut api = messages(&node).await;
    in_time(api.publish(publication("t/kept", "first", 1, true))).await.unwrap();
    let subscribe = proto::SubscribeRequest { filter: "t/#".into(), retained: true };
    let mut stream = in_time(api.subscribe(subscribe)).await.unwrap().into_inner();
    let first = in_time(stream.message()).await.unwrap().expect("a message");
    assert_eq!((&first.payload[..], first.retain), (&b"first"[..], true));
    assert_eq!(first.content_type, "text/plain");
    let mut publisher = Mqtt5::connect(&node, "publisher").await;
    publisher.subscribe("done").await;
    for number in 1..=MESSAGES {
        publisher.client.publish("t/many", QoS::AtMostOnce, false, vec![b'x'; 1000]).await.unwrap();
        if number % 500 == 0 {
            publisher.publish("done", "").await;
            publisher.message().await;
        }
    }
    in_time(api.publish(publication("t/last", "last", 1, false))).await.unwrap();
    let (mut received, mut lost) = (0, 0);
    loop {
        let message = in_time(stream.message()).await.unwrap().expect("a message");
        lost += message.lost_before;
        if message.topic == "t/last" {
            break;
        }
        received += 1;
    }
    assert_eq!(received + lost, MESSAGES, "each one was received or counted");
    assert!(lost > 0);

    let shared = proto::SubscribeRequest { filter: "$share/g/t".into(), retained: false };
    assert_eq!(in_time(api.subscribe(shared)).await.unwrap_err().code(), Code::InvalidArgument);
    let mut streams = vec![stream];
    let refused = loop {
        let request = proto::SubscribeRequest { filter: "t/#".into(), retained: false };
        match in_time(api.subscribe(request)).await {
            Ok(stream) => streams.push(stream.into_inner()),
            Err(refused) => break refused,
        }
    };
    assert_eq!((streams.len(), refused.code()), (16, Code::ResourceExhausted));
    assert!(refused.message().contains("16"), "{refused}");
    streams.clear();
    // The places are free again as soon as the node has seen the ends.
    in_time(async {
        loop {
            let request = proto::SubscribeRequest { filter: "t/#".into(), retained: false };
            if api.subscribe(request).await.is_ok() {
                break;
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    })
    .await;
}

/// Calls a method as a page of the dashboard does. An error has the code and the message.
async fn call<M: Message + Default>(
    node: &TestNode,
    cookie: &str,
    method: &str,
    request: &impl Message,
) -> Result<M, (i32, String)> {
    let request = request.encode_to_vec();
    let frame = [&[0][..], &(request.len() as u32).to_be_bytes(), &request].concat();
    let control = node.addresses.control;
    let request = Request::post(format!("/edgefaas.messages.v1.Messages/{method}"))
        .header(CONTENT_TYPE, "application/grpc-web+proto")
        .header(ORIGIN, format!("http://{control}"))
        .header(COOKIE, cookie)
        .body(Full::from(frame))
        .unwrap();
    let response = in_time(send(control, request)).await;
    assert_eq!(response.status(), StatusCode::OK, "{response:?}");
    let mut trailers = String::new();
    let mut message = M::default();
    let mut body = &response.body()[..];
    while let [flag, a, b, c, d, rest @ ..] = body {
        let (frame, next) = rest.split_at(u32::from_be_bytes([*a, *b, *c, *d]) as usize);
        match flag {
            0 => message = M::decode(frame).unwrap(),
            _ => trailers = String::from_utf8(frame.to_vec()).unwrap(),
        }
        body = next;
    }
    let header = |name: &str| {
        let header = response.headers().get(name).map(|value| value.to_str().unwrap().to_owned());
        let trailer = trailers.lines().find_map(|line| line.strip_prefix(&format!("{name}:")));
        header.or(trailer.map(|value| value.trim().to_owned()))
    };
    match header("grpc-status").as_deref() {
        Some("0") => Ok(message),
        status => Err((status.unwrap().parse().unwrap(), header("grpc-message").unwrap_or_default())),
    }
}

/// Signs `ada` in; her cookie.
async fn sign_in(node: &TestNode) -> String {
    let control = node.addresses.control;
    let sign_in = Request::post("/session")
        .header(ORIGIN, format!("http://{control}"))
        .header(CONTENT_TYPE, "application/json")
        .body(Full::from(r#"{"user":"ada","password":"secret"}"#))
        .unwrap();
    let session = in_time(send(control, sign_in)).await;
    session.headers()[SET_COOKIE].to_str().unwrap().split(';').next().unwrap().to_owned()
}

#[tokio::test]
async fn streams_end_with_their_session_and_a_restart_remembers_the_sign_out() {
    const UNAUTHENTICATED: i32 = 16;
    let mut node = TestNode::start().await;
    let user =
        control::AddUserRequest { name: "ada".into(), password: "secret".into(), role: "look".into() };
    in_time(node.control.add_user(user)).await.unwrap();
    let mut api = messages(&node).await;
    let subscribe = proto::SubscribeRequest { filter: "#".into(), retained: false };
    let list = proto::ListClientsRequest { search: "$control/".into(), ..Default::default() };
    let retained = proto::ListRetainedRequest::default();
    let mut cookie = String::new();
    for ends_by_sign_out in [true, false] {
        cookie = sign_in(&node).await;
        let (control, mut operator) = (node.addresses.control, node.control.clone());
        let begun = async {
            while in_time(api.list_clients(list.clone())).await.unwrap().into_inner().clients.is_empty() {
                tokio::time::sleep(std::time::Duration::from_millis(10)).await;
            }
            if ends_by_sign_out {
                let sign_out = Request::delete("/session")
                    .header(ORIGIN, format!("http://{control}"))
                    .header(COOKIE, &cookie)
                    .body(Full::default())
                    .unwrap();
                assert_eq!(in_time(send(control, sign_out)).await.status(), StatusCode::NO_CONTENT);
            } else {
                let other = control::SetRoleRequest { name: "ada".into(), role: "operate".into() };
                in_time(operator.set_role(other)).await.unwrap();
            }
        };
        // Without a look at the session a stream would end after a minute.
        let both =
            async { tokio::join!(call::<proto::Message>(&node, &cookie, "Subscribe", &subscribe), begun) };
        let (ended, ()) = tokio::time::timeout(std::time::Duration::from_secs(45), both).await.unwrap();
        ended.unwrap();
        let again = call::<proto::ListRetainedResponse>(&node, &cookie, "ListRetained", &retained).await;
        match ends_by_sign_out {
            true => assert_eq!(again.unwrap_err().0, UNAUTHENTICATED),
            false => drop(again.unwrap()),
        }
        if ends_by_sign_out {
            let dir = node.stop().await;
            node = TestNode::start_in(dir, |_| {}).await.unwrap();
            api = messages(&node).await;
            let again =
                call::<proto::ListRetainedResponse>(&node, &cookie, "ListRetained", &retained).await;
            assert_eq!(again.unwrap_err().0, UNAUTHENTICATED);
        }
    }
    let dir = node.stop().await;
    let node = TestNode::start_in(dir, |_| {}).await.unwrap();
    call::<proto::ListRetainedResponse>(&node, &cookie, "ListRetained", &retained).await.unwrap();
}

#[tokio::test]
async fn a_user_publishes_and_reads_what_the_rules_allow() {
    const PERMISSION_DENIED: i32 = 7;
    let mut node = TestNode::start_with(|config| {
        let acl = config.data_dir.join("acl.toml");
        let rules = "[[allow]]\nuser = \"ada\"\npublish = [\"ada/#\"]\nsubscribe = [\"ada/#\"]\n";
        std::fs::write(&acl, rules).unwrap();
        config.access.acl = Some(acl);
    })
    .await;
    let user =
        control::AddUserRequest { name: "ada".into(), password: "secret".into(), role: "operate".into() };
    in_time(node.control.add_user(user)).await.unwrap();
    let cookie = sign_in(&node).await;

    let mut api = messages(&node).await;
    for topic in ["ada/room", "bob/room"] {
        in_time(api.publish(publication(topic, "x", 1, true))).await.unwrap();
    }
    let publish = |topic: &str| publication(topic, "by ada", 1, true);
    call::<proto::PublishResponse>(&node, &cookie, "Publish", &publish("ada/own")).await.unwrap();
    let (code, message) =
        call::<proto::PublishResponse>(&node, &cookie, "Publish", &publish("bob/room")).await.unwrap_err();
    assert_eq!(code, PERMISSION_DENIED);
    assert!(message.contains("bob/room") || message.contains("bob%2Froom"), "{message}");
    let list = proto::ListRetainedRequest::default();
    let retained: proto::ListRetainedResponse = call(&node, &cookie, "ListRetained", &list).await.unwrap();
    let topics: Vec<_> = retained.messages.iter().map(|message| message.topic.as_str()).collect();
    assert_eq!(topics, ["ada/own", "ada/room"]);
    let list = proto::ListTopicsRequest::default();
    let listed: proto::ListTopicsResponse = call(&node, &cookie, "ListTopics", &list).await.unwrap();
    let topics: Vec<_> = listed.topics.iter().map(|topic| topic.name.as_str()).collect();
    assert_eq!(topics, ["ada/own", "ada/room"]);
    let subscribe = proto::SubscribeRequest { filter: "#".into(), retained: false };
    let (code, message) =
        call::<proto::Message>(&node, &cookie, "Subscribe", &subscribe).await.unwrap_err();
    assert_eq!(code, PERMISSION_DENIED, "{message}");
    let clients: proto::ListClientsResponse =
        call(&node, &cookie, "ListClients", &proto::ListClientsRequest::default()).await.unwrap();
    assert_eq!(clients.total, 0, "a list of clients needs the role alone");
}
