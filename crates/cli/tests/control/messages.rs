//! The commands for the broker.

use std::pin::Pin;

use edgefaas_api::messages as proto;
use edgefaas_api::messages::messages_server::Messages;
use tokio_stream::Stream;
use tonic::{Request, Response, Status};

use crate::{Answer, FORGED, Fixture, Server, finish};

/// Clients that the server has.
const CLIENTS: u32 = 1500;

fn client(number: u32) -> proto::Client {
    proto::Client {
        id: format!("c-{number:04}"),
        user: FORGED.into(),
        connected: true,
        address: "10.0.0.9:1234".into(),
        version: "5".into(),
        transport: "tls".into(),
        since_unix_ms: 1_700_000_000_000,
        subscriptions: 2,
        waiting: 3,
        in_flight: 1,
        filters: Vec::new(),
    }
}

fn message(topic: &str, payload: &str) -> proto::Message {
    proto::Message {
        topic: topic.into(),
        payload: payload.into(),
        payload_bytes: payload.len() as u64,
        qos: 1,
        unix_ms: 1_700_000_000_000,
        ..Default::default()
    }
}

#[tonic::async_trait]
impl Messages for Server {
    type SubscribeStream = Pin<Box<dyn Stream<Item = Result<proto::Message, Status>> + Send>>;

    async fn list_topics(
        &self,
        request: Request<proto::ListTopicsRequest>,
    ) -> Answer<proto::ListTopicsResponse> {
        let name = request.into_inner().filter;
        let last = Some(message(&name, FORGED));
        let topic = proto::Topic { name, rate: 1.25, messages: 7, last, retained_bytes: None };
        Ok(Response::new(proto::ListTopicsResponse {
            topics: vec![topic],
            total: 9,
            left_out: 2,
            ..Default::default()
        }))
    }

    async fn publish(&self, request: Request<proto::PublishRequest>) -> Answer<proto::PublishResponse> {
        let request = request.into_inner();
        if request.topic == "forbidden" {
            return Err(Status::permission_denied("user `ada` may not publish to `forbidden`"));
        }
        self.published.lock().unwrap().push(request);
        Ok(Response::new(proto::PublishResponse { subscribers: 4 }))
    }

    async fn subscribe(&self, request: Request<proto::SubscribeRequest>) -> Answer<Self::SubscribeStream> {
        let proto::SubscribeRequest { filter, retained } = request.into_inner();
        let first = proto::Message { retain: retained, ..message(&filter, "one") };
        let second = proto::Message { lost_before: 3, ..message(FORGED, FORGED) };
        Ok(Response::new(Box::pin(tokio_stream::iter([Ok(first), Ok(second)]))))
    }

    async fn list_retained(
        &self,
        request: Request<proto::ListRetainedRequest>,
    ) -> Answer<proto::ListRetainedResponse> {
        let search = request.into_inner().search;
        let messages = vec![message("a/b", &search)];
        Ok(Response::new(proto::ListRetainedResponse { messages, more: false, total: 5 }))
    }

    async fn list_clients(
        &self,
        request: Request<proto::ListClientsRequest>,
    ) -> Answer<proto::ListClientsResponse> {
        let proto::ListClientsRequest { after, limit, .. } = request.into_inner();
        let first = after.strip_prefix("c-").map_or(0, |number| number.parse::<u32>().unwrap() + 1);
        let end = (first + limit).min(CLIENTS);
        let clients = (first..end).map(client).collect();
        Ok(Response::new(proto::ListClientsResponse {
            clients,
            more: end < CLIENTS,
            total: 1500,
            connected: 7,
        }))
    }

    async fn get_client(&self, request: Request<proto::GetClientRequest>) -> Answer<proto::Client> {
        match request.into_inner().id.as_str() {
            "c-0001" => {
                let filters = vec![proto::Subscription { filter: "a/#".into(), qos: 2 }];
                Ok(Response::new(proto::Client { filters, ..client(1) }))
            }
            id => Err(Status::not_found(format!("there is no client `{id}`"))),
        }
    }

    async fn drop_client(
        &self,
        request: Request<proto::DropClientRequest>,
    ) -> Answer<proto::DropClientResponse> {
        let was_connected = !request.into_inner().forget;
        Ok(Response::new(proto::DropClientResponse { was_connected }))
    }
}

#[tokio::test]
async fn clients_are_listed_shown_and_dropped() {
    let fixture = Fixture::start().await;
    let (code, stdout, stderr) = fixture.run(&["clients", "--limit", "3"]).await;
    assert_eq!((code, stdout.lines().count()), (0, 4), "{stdout}");
    assert!(stdout.contains("10.0.0.9:1234") && stdout.contains("5 tls"), "{stdout}");
    assert!(!stdout.contains('\x1b'), "{stdout:?}");
    assert!(stderr.contains("more clients"), "{stderr}");
    let json = fixture.json(&["clients", "--limit", "9999"]).await;
    let clients = json["clients"].as_array().unwrap();
    assert_eq!((clients.len(), &clients[1499]["id"]), (1500, &"c-1499".into()), "several pages");
    let json = fixture.json(&["clients", "show", "c-0001"]).await;
    assert_eq!(json["filters"], serde_json::json!([{ "filter": "a/#", "qos": 2 }]));
    let (_, stdout, _) = fixture.run(&["clients", "show", "c-0001"]).await;
    assert!(stdout.contains("a/#"), "{stdout}");
    assert_eq!(fixture.run(&["clients", "show", "absent"]).await.0, 6);
    let (_, stdout, _) = fixture.run(&["clients", "drop", "c-0001"]).await;
    assert_eq!(stdout, "c-0001: its connection is ended\n");
    let (_, stdout, _) = fixture.run(&["clients", "drop", "c\n1", "--forget"]).await;
    assert_eq!(stdout, "c\\n1: it was not connected; its session is ended\n");
}

#[tokio::test]
async fn topics_and_retained_messages_are_listed() {
    let fixture = Fixture::start().await;
    let (_, stdout, stderr) = fixture.run(&["topics", "a/+"]).await;
    let row = stdout.lines().last().unwrap();
    assert!(row.starts_with("a/+ ") && row.contains("1.2") && row.contains("\\u{1b}"), "{stdout}");
    assert!(stderr.contains("2 topics found no room"), "{stderr}");
    let json = fixture.json(&["topics"]).await;
    assert_eq!((&json["topics"][0]["last"]["text"], &json["left_out"]), (&FORGED.into(), &2.into()));
    let json = fixture.json(&["retained", "a/#", "--search", "x"]).await;
    assert_eq!((&json["retained"][0]["text"], &json["total"]), (&"x".into(), &5.into()));
    let (_, stdout, _) = fixture.run(&["retained", "rm", "a/b"]).await;
    assert_eq!(stdout, "a/b has no retained message any more\n");
    let published = fixture.server.published.lock().unwrap();
    assert!(published[0].retain && published[0].payload.is_empty() && published[0].topic == "a/b");
}

#[tokio::test]
async fn a_payload_is_an_option_a_file_or_stdin() {
    let fixture = Fixture::start().await;
    std::fs::write(fixture.path().join("payload"), [0, 255]).unwrap();
    let (_, stdout, _) = fixture.run(&["publish", "a", "-d", "-1", "--qos", "2", "--retain"]).await;
    assert_eq!(stdout, "a went to 4 subscriptions, beside the functions and workflows that it starts\n");
    let json = fixture.json(&["publish", "b", "--file", "payload", "--content-type", "image/png"]).await;
    assert_eq!(json, serde_json::json!({ "topic": "b", "subscribers": 4 }));
    let mut command = fixture.command(&["publish", "c"]);
    command.stdin(std::fs::File::open(fixture.path().join("payload")).unwrap());
    assert_eq!(finish(command).await.0, 0);
    let published = fixture.server.published.lock().unwrap().clone();
    let sent: Vec<_> = published
        .iter()
        .map(|sent| (&sent.payload[..], sent.qos, sent.retain, &*sent.content_type))
        .collect();
    assert_eq!(
        sent,
        [(&b"-1"[..], 2, true, ""), (&[0, 255], 0, false, "image/png"), (&[0, 255], 0, false, "")]
    );
    let (code, _, stderr) = fixture.run(&["publish", "forbidden", "-d", ""]).await;
    assert_eq!(code, 4, "{stderr}");
    assert!(stderr.contains("`forbidden`"), "{stderr}");
    assert_eq!(fixture.run(&["publish", "a", "-d", "", "--qos", "3"]).await.0, 2);
}

#[tokio::test]
async fn messages_are_shown_as_they_arrive() {
    let fixture = Fixture::start().await;
    let (code, stdout, stderr) = fixture.run(&["subscribe", "a/#", "--retained"]).await;
    assert_eq!(code, 3, "the stream has ended: {stderr}");
    let lines: Vec<&str> = stdout.lines().collect();
    assert_eq!((lines.len(), lines[0]), (2, "a/#  one  (retained)"));
    assert!(!lines[1].contains('\x1b') && lines[1].contains("\\n"), "{stdout:?}");
    assert!(stderr.contains("3 messages were lost"), "{stderr}");
    let (code, stdout, _) = fixture.run(&["subscribe", "a", "--count", "1", "-o", "json"]).await;
    let json: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!((code, &json["text"], &json["retain"]), (0, &"one".into(), &false.into()));
}
