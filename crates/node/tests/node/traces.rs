//! Distributed traces: what the node sends carries the context of a span that it exports.

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::SocketAddr;

use bytes::Bytes;
use edgefaas_api::control as proto;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use crate::support::{Mqtt5, TestNode, in_time, script};

pub const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
pub const CALLER: &str = "b7ad6b7169203331";

/// A server that keeps the requests. It answers with the given statuses first, then with 200.
pub struct Server {
    pub address: SocketAddr,
    requests: mpsc::UnboundedReceiver<Request<Bytes>>,
}

impl Server {
    pub async fn start(statuses: &[u16]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, requests) = mpsc::unbounded_channel();
        let mut statuses = std::collections::VecDeque::from(statuses.to_vec());
        let (next, mut answers) = mpsc::channel(1);
        tokio::spawn(async move { while next.send(statuses.pop_front().unwrap_or(200)).await.is_ok() {} });
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let Some(status) = answers.recv().await else { return };
                let sender = sender.clone();
                let service = service_fn(move |request: Request<Incoming>| {
                    let sender = sender.clone();
                    async move {
                        let (head, body) = request.into_parts();
                        let body = body.collect().await.unwrap().to_bytes();
                        let _ = sender.send(Request::from_parts(head, body));
                        let mut answer = Response::builder().status(status).header("connection", "close");
                        if (300..400).contains(&status) {
                            answer = answer.header("location", "/elsewhere");
                        }
                        Ok::<_, Infallible>(answer.body(Full::<Bytes>::default()).unwrap())
                    }
                });
                let http = hyper::server::conn::http1::Builder::new();
                tokio::spawn(http.serve_connection(TokioIo::new(stream), service));
            }
        });
        Self { address, requests }
    }

    pub async fn request(&mut self) -> Request<Bytes> {
        in_time(self.requests.recv()).await.expect("the server runs")
    }
}

/// Exported spans by their id.
struct Exported {
    collector: Server,
    spans: HashMap<String, Value>,
}

impl Exported {
    /// The span with this id, once it is exported.
    async fn span(&mut self, id: &str) -> Value {
        loop {
            if let Some(span) = self.spans.get(id) {
                return span.clone();
            }
            let request = self.collector.request().await;
            let document: Value = serde_json::from_slice(request.body()).unwrap();
            for span in document["resourceSpans"][0]["scopeSpans"][0]["spans"].as_array().unwrap() {
                assert_eq!(span["traceId"], TRACE);
                self.spans.insert(span["spanId"].as_str().unwrap().to_owned(), span.clone());
            }
        }
    }

    /// The names of a span and of what is around it, outermost first, and the parent of the outermost.
    async fn way(&mut self, id: &str) -> String {
        let (mut names, mut at) = (Vec::new(), id.to_owned());
        while !at.is_empty() && at != CALLER {
            let span = in_time(self.span(&at)).await;
            names.push(span["name"].as_str().unwrap().to_owned());
            at = span["parentSpanId"].as_str().unwrap().to_owned();
        }
        names.push(if at.is_empty() { "nothing" } else { "the caller" }.to_owned());
        names.reverse();
        names.join(" > ")
    }
}

fn span_of(trace_parent: &str) -> String {
    let parts: Vec<&str> = trace_parent.split('-').collect();
    assert_eq!((parts.len(), parts[0], parts[1], parts[3]), (4, "00", TRACE, "01"), "{trace_parent}");
    parts[2].to_owned()
}

fn span_of_request(request: &Request<Bytes>) -> String {
    span_of(request.headers()["traceparent"].to_str().unwrap())
}

fn span_of_message(message: &rumqttc::v5::mqttbytes::v5::Publish) -> String {
    let user = &message.properties.as_ref().expect("it has properties").user_properties;
    let [(_, value)] = &user.iter().filter(|(name, _)| name == "traceparent").collect::<Vec<_>>()[..]
    else {
        panic!("one trace context: {user:?}")
    };
    span_of(value)
}

fn caller() -> String {
    format!("00-{TRACE}-{CALLER}-01")
}

/// Sends a request with the caller's trace context.
pub async fn post(node: &TestNode, path: &str) {
    let request = Request::post(path).header("traceparent", caller());
    let reply = node.send(request.body(Full::new("{}".into())).unwrap()).await;
    assert_eq!(reply.status().as_u16(), 200, "{:?}", reply.body());
}

pub async fn deploy(node: &mut TestNode, manifest: &str, sources: &[(&str, &str)], flows: &[(&str, &str)]) {
    let workflows = flows.iter().map(|(name, rest)| proto::WorkflowFile {
        file: format!("{name}.yaml"),
        text: format!(
            "document: {{ dsl: '1.0.3', namespace: test, name: {name}, version: '1.0.0', metadata: {{ durable: {} }} }}\n{rest}",
            *name == "durable"
        ),
    });
    let request = proto::DeployRequest {
        manifest: manifest.to_owned(),
        artifacts: sources.iter().map(|(name, source)| script(name, source)).collect(),
        workflows: workflows.collect(),
        ..Default::default()
    };
    node.control.deploy(request).await.expect("the deploy succeeds");
}

async fn exporting() -> (TestNode, Exported) {
    let collector = Server::start(&[]).await;
    let url = format!("http://{}", collector.address);
    let node = TestNode::start_with(|config| config.traces.otlp = Some(url)).await;
    (node, Exported { collector, spans: HashMap::new() })
}

/// The spans of the trace by id, as `edgefaas trace` gets them.
pub async fn spans(node: &mut TestNode, id: &str) -> Vec<proto::Span> {
    match node.control.trace(proto::TraceRequest { id: id.to_owned() }).await {
        Ok(response) => response.into_inner().spans,
        Err(status) => {
            assert_eq!(status.code(), tonic::Code::NotFound, "{status}");
            Vec::new()
        }
    }
}

#[tokio::test]
async fn what_is_sent_carries_the_context_of_an_exported_span() {
    let (mut node, mut exported) = exporting().await;
    let mut server = Server::start(&[]).await;
    let url = format!("http://{}", server.address);
    let manifest = format!(
        r#"
        app = "t"
        [workflows]
        files = ["*.yaml"]
        [functions.sends]
        main = "sends.js"
        triggers = [{{ http = "/sends" }}, {{ mqtt = "start" }}]
        permissions = {{ http = ["{url}"], publish = ["from/#"], call = ["inner"] }}
        [functions.inner]
        main = "inner.js"
        permissions = {{ publish = ["from/#"] }}
        [workflows.outer.permissions]
        http = ["{url}"]
        publish = ["from/#"]
        [workflows.durable.permissions]
        publish = ["from/#"]
        "#
    );
    let sends = format!(
        "export default async (e, c) => {{ await fetch('{url}/function'); await c.publish('from/sends', 'x'); return \
         await c.call('inner', ''); }}"
    );
    let sources = [
        ("sends", &*sends),
        ("inner", "export default async (e, c) => { await c.publish('from/inner', 'x'); return 'ok'; }"),
    ];
    let outer = format!(
        "do:\n  - get: {{ call: http, with: {{ method: get, endpoint: '{url}/task', output: response }} }}\n  - tell: {{ call: \
         asyncapi, with: {{ channel: from/outer, message: {{ payload: x }} }} }}\n  - function: {{ call: inner }}\n  - sub: {{ run: {{ workflow: \
         {{ namespace: test, name: durable, version: '1.0.0' }} }} }}\n"
    );
    let durable = "do:\n  - group:\n      do:\n        - event: { emit: { event: { with: { source: 'urn:x', type: a.b } } } }\n";
    deploy(&mut node, &manifest, &sources, &[("outer", &outer), ("durable", durable)]).await;
    let mut mqtt = Mqtt5::connect(&node, "reader").await;
    mqtt.subscribe("from/#").await;

    post(&node, "/sends").await;
    let of_fetch = span_of_request(&server.request().await);
    let get = format!("GET {}", server.address);
    assert_eq!(exported.way(&of_fetch).await, format!("the caller > sends > {get}"));
    for (topic, way) in [
        ("from/inner", "the caller > sends > inner > from/inner"),
        ("from/sends", "the caller > sends > from/sends"),
    ] {
        let message = mqtt.message().await;
        assert_eq!(message.topic, topic);
        assert_eq!(exported.way(&span_of_message(&message)).await, way);
    }
    let shown = spans(&mut node, TRACE).await;
    let [outer, fetch, sent, inner, inner_sent] = &shown[..] else { panic!("{shown:?}") };
    assert_eq!((&*outer.name, &*outer.parent), ("sends", CALLER));
    assert_eq!((&*fetch.name, &*fetch.kind, &*fetch.span_id), (&*get, "request", &*of_fetch));
    assert_eq!((&*fetch.output, &fetch.parent), ("HTTP 200", &outer.id));
    assert_eq!((&*sent.name, &*sent.kind, &sent.parent), ("from/sends", "publish", &outer.id));
    assert_eq!((&*inner.name, &inner.parent), ("inner", &outer.id));
    assert_eq!((&*inner_sent.name, &inner_sent.parent), ("from/inner", &inner.id));

    mqtt.subscribe("$faas/events/emitted/#").await;
    post(&node, "/workflows/outer").await;
    let request = server.request().await;
    assert_eq!(request.uri().path(), "/task");
    assert_eq!(exported.way(&span_of_request(&request)).await, "the caller > outer > call get");
    let ways = HashMap::from([
        ("from/outer", "the caller > outer > call tell"),
        ("from/inner", "the caller > outer > call function > inner > from/inner"),
        ("a.b", "the caller > outer > run sub > durable > do group > emit event"),
    ]);
    for _ in 0..3 {
        let message = mqtt.message().await;
        let topic = String::from_utf8_lossy(&message.topic).into_owned();
        let way = ways.iter().find(|(end, _)| topic.ends_with(**end)).expect("a known topic").1;
        assert_eq!(exported.way(&span_of_message(&message)).await, *way, "{topic}");
    }
    let shown = spans(&mut node, TRACE).await;
    let unknown = |span: &&proto::Span| shown.iter().all(|other| other.id != span.parent);
    let roots: Vec<_> = shown.iter().filter(unknown).map(|span| (&*span.name, &*span.parent)).collect();
    assert_eq!(roots, [("sends", CALLER), ("outer", CALLER)]);
}

#[tokio::test]
async fn the_callers_span_is_the_parent_of_the_root() {
    let (mut node, mut exported) = exporting().await;
    let manifest = r#"
        app = "t"
        [workflows]
        files = ["*.yaml"]
        [functions.f]
        main = "f.js"
        triggers = [{ http = "/f" }, { mqtt = "start" }]
        permissions = { publish = ["done"] }
        [workflows.w.permissions]
        publish = ["done"]
        "#;
    let publish = "export default (e, c) => { c.publish('done', 'f'); return 'x'; }";
    let flow = "do:\n  - tell: { call: asyncapi, with: { channel: done, message: { payload: w } } }\n";
    deploy(&mut node, manifest, &[("f", publish)], &[("w", flow)]).await;
    let mut mqtt = Mqtt5::connect(&node, "reader").await;
    mqtt.subscribe("done").await;
    post(&node, "/f").await;
    post(&node, "/workflows/w").await;
    let properties = rumqttc::v5::mqttbytes::v5::PublishProperties {
        user_properties: vec![("traceparent".to_owned(), caller())],
        ..Default::default()
    };
    mqtt.publish_with("start", "x", properties).await;
    for name in ["f", "w"] {
        let mut request =
            tonic::Request::new(proto::InvokeRequest { function: name.to_owned(), ..Default::default() });
        request.metadata_mut().insert("traceparent", caller().parse().unwrap());
        node.control.invoke(request).await.unwrap();
    }
    let mut ways = Vec::new();
    for _ in 0..5 {
        let message = mqtt.message().await;
        ways.push(exported.way(&span_of_message(&message)).await);
    }
    ways.sort();
    let (f, w) = ("the caller > f > done", "the caller > w > call tell");
    assert_eq!(ways, [f, f, f, w, w]);
}

/// The tree of an instance: the indented names of its spans, with the status of those that have not ended, sorted. Spans that
/// began at the same time have no order.
async fn tree(node: &mut TestNode, id: &str) -> Vec<String> {
    let spans = spans(node, id).await;
    let around = |span: &proto::Span| spans.iter().find(|other| other.id == span.parent);
    let line = |span: &proto::Span| {
        let (mut depth, mut at) = (0, span);
        while let Some(parent) = around(at) {
            (depth, at) = (depth + 1, parent);
        }
        format!("{}{} {}", "  ".repeat(depth), span.name, span.status).trim_end().to_owned()
    };
    let mut lines: Vec<String> = spans.iter().map(line).collect();
    lines.sort();
    lines
}

/// Waits until the tree of an instance is as expected.
async fn tree_becomes(node: &mut TestNode, id: &str, expected: &[&str]) {
    let mut expected = expected.to_vec();
    expected.sort_unstable();
    let becomes = async {
        while tree(node, id).await != expected {
            tokio::task::yield_now().await;
        }
    };
    in_time(becomes).await;
}

#[tokio::test]
async fn the_trace_of_a_durable_instance_survives_a_restart() {
    let mut node = TestNode::start().await;
    let flow = "do:
  - a: { set: { x: 1 } }
  - group:
      do:
        - b: { set: { x: 2 } }
        - hold: { listen: { to: { one: { with: { type: mqtt.publish, subject: go } } } } }
        - c: { set: { x: 3 } }
";
    deploy(&mut node, "app = \"t\"\n[workflows]\nfiles = [\"*.yaml\"]\n", &[], &[("durable", flow)]).await;
    let request = Request::post("/workflows/durable").header("traceparent", caller());
    let request = request.body(Full::new("{}".into())).unwrap();
    tokio::spawn(crate::support::try_send(node.addresses.http, request));
    let list = proto::ListInstancesRequest { workflow: String::new(), limit: 1, key: String::new() };
    let instance = in_time(async {
        loop {
            let found = node.control.list_instances(list.clone()).await.unwrap().into_inner().instances;
            if let Some(found) = found.iter().find(|instance| instance.status == "waiting") {
                return found.id.clone();
            }
        }
    })
    .await;
    let waits =
        ["durable waiting", "  set a", "  do group running", "    set b", "    listen hold waiting"];
    tree_becomes(&mut node, &instance, &waits).await;
    let before = spans(&mut node, TRACE).await;

    let dir = node.stop().await;
    let mut node = TestNode::start_in(dir, |_| {}).await.unwrap();
    tree_becomes(&mut node, &instance, &waits).await;
    let after = spans(&mut node, TRACE).await;
    let ids = |spans: &[proto::Span]| -> Vec<_> {
        let id = |span: &proto::Span| (span.span_id.clone(), span.parent.clone(), span.input.clone());
        let mut ids: Vec<_> = spans.iter().map(id).collect();
        ids.sort();
        ids
    };
    assert_eq!(ids(&after), ids(&before));

    let mut mqtt = Mqtt5::connect(&node, "sender").await;
    mqtt.publish("go", "x").await;
    mqtt.puback().await;
    let ended = ["durable", "  set a", "  do group", "    set b", "    listen hold", "    set c"];
    tree_becomes(&mut node, &instance, &ended).await;
}
