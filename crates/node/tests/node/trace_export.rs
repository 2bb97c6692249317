//! Export of traces to OpenTelemetry collectors.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use edgefaas_node::config::OtlpProtocol;
use http::Request;
use http_body_util::Full;
use parking_lot::Mutex;
use prost::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::body::Body;
use tonic::server::{Grpc, NamedService, UnaryService};
use tonic::{Code, Response, Status};
use tonic_types::{ErrorDetails, StatusExt};
use tower_service::Service;

use crate::support::{Mqtt5, TestNode, in_time};
use crate::traces::{CALLER, Server, TRACE, deploy, post, spans};

/// The parts of `ExportTraceServiceRequest` and its answer (opentelemetry-proto) that the tests use.
pub mod otlp {
    use prost::{Message, Oneof};

    #[derive(Clone, PartialEq, Message)]
    pub struct Request {
        #[prost(message, repeated, tag = "1")]
        pub resource_spans: Vec<ResourceSpans>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub struct ResourceSpans {
        #[prost(message, optional, tag = "1")]
        pub resource: Option<Resource>,
        #[prost(message, repeated, tag = "2")]
        pub scope_spans: Vec<ScopeSpans>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub struct Resource {
        #[prost(message, repeated, tag = "1")]
        pub attributes: Vec<KeyValue>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub struct ScopeSpans {
        #[prost(message, repeated, tag = "2")]
        pub spans: Vec<Span>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub struct Span {
        #[prost(bytes = "vec", tag = "1")]
        pub trace_id: Vec<u8>,
        #[prost(bytes = "vec", tag = "2")]
        pub span_id: Vec<u8>,
        #[prost(bytes = "vec", tag = "4")]
        pub parent_span_id: Vec<u8>,
        #[prost(string, tag = "5")]
        pub name: String,
        #[prost(int32, tag = "6")]
        pub kind: i32,
        #[prost(fixed64, tag = "7")]
        pub start_time_unix_nano: u64,
        #[prost(fixed64, tag = "8")]
        pub end_time_unix_nano: u64,
        #[prost(message, repeated, tag = "9")]
        pub attributes: Vec<KeyValue>,
        #[prost(message, optional, tag = "15")]
        pub status: Option<Status>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub struct Status {
        #[prost(int32, tag = "3")]
        pub code: i32,
    }

    #[derive(Clone, PartialEq, Message)]
    pub struct KeyValue {
        #[prost(string, tag = "1")]
        pub key: String,
        #[prost(message, optional, tag = "2")]
        pub value: Option<AnyValue>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub struct AnyValue {
        #[prost(oneof = "Value", tags = "1, 3")]
        pub value: Option<Value>,
    }

    #[derive(Clone, PartialEq, Oneof)]
    pub enum Value {
        #[prost(string, tag = "1")]
        Text(String),
        #[prost(int64, tag = "3")]
        Number(i64),
    }

    #[derive(Clone, PartialEq, Message)]
    pub struct Answer {
        #[prost(message, optional, tag = "1")]
        pub partial_success: Option<PartialSuccess>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub struct PartialSuccess {
        #[prost(int64, tag = "1")]
        pub rejected_spans: i64,
        #[prost(string, tag = "2")]
        pub error_message: String,
    }
}

/// An exported span.
#[derive(Debug)]
pub struct Exported {
    pub name: String,
    pub kind: i32,
    pub parent: String,
    pub status: i32,
    pub attributes: BTreeMap<String, String>,
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn attributes(list: &[otlp::KeyValue]) -> BTreeMap<String, String> {
    let text = |value: &otlp::AnyValue| match value.value.as_ref().expect("a value") {
        otlp::Value::Text(text) => text.clone(),
        otlp::Value::Number(number) => number.to_string(),
    };
    list.iter().map(|pair| (pair.key.clone(), text(pair.value.as_ref().expect("a value")))).collect()
}

fn spans_of(request: &otlp::Request) -> Vec<&otlp::Span> {
    let scopes = request.resource_spans.iter().flat_map(|resource| &resource.scope_spans);
    scopes.flat_map(|scope| &scope.spans).collect()
}

fn names(request: &otlp::Request) -> Vec<&str> {
    spans_of(request).iter().map(|span| &*span.name).collect()
}

pub type Answer = Result<otlp::Answer, Status>;

/// A collector for OTLP over gRPC that keeps the requests. It answers with the given answers first, then accepts.
pub struct GrpcCollector {
    pub address: SocketAddr,
    requests: mpsc::UnboundedReceiver<otlp::Request>,
}

#[derive(Clone)]
struct TraceService {
    answers: Arc<Mutex<VecDeque<Answer>>>,
    requests: mpsc::UnboundedSender<otlp::Request>,
}

impl NamedService for TraceService {
    const NAME: &'static str = "opentelemetry.proto.collector.trace.v1.TraceService";
}

impl UnaryService<otlp::Request> for TraceService {
    type Response = otlp::Answer;
    type Future = std::future::Ready<Result<Response<otlp::Answer>, Status>>;

    fn call(&mut self, request: tonic::Request<otlp::Request>) -> Self::Future {
        let _ = self.requests.send(request.into_inner());
        let answer = self.answers.lock().pop_front().unwrap_or_else(|| Ok(otlp::Answer::default()));
        std::future::ready(answer.map(Response::new))
    }
}

impl Service<Request<Body>> for TraceService {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<http::Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        assert_eq!(request.uri().path(), "/opentelemetry.proto.collector.trace.v1.TraceService/Export");
        let service = self.clone();
        Box::pin(
            async move { Ok(Grpc::new(tonic_prost::ProstCodec::default()).unary(service, request).await) },
        )
    }
}

impl GrpcCollector {
    pub async fn start(answers: Vec<Answer>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, requests) = mpsc::unbounded_channel();
        let service = TraceService { answers: Arc::new(Mutex::new(answers.into())), requests: sender };
        let server = tonic::transport::Server::builder().add_service(service);
        tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
        Self { address, requests }
    }

    async fn request(&mut self) -> otlp::Request {
        in_time(self.requests.recv()).await.expect("the collector runs")
    }

    /// A node that exports its spans to this collector.
    async fn node(&self) -> TestNode {
        let url = format!("http://{}", self.address);
        TestNode::start_with(|config| {
            config.traces.otlp = Some(url);
            config.traces.otlp_protocol = OtlpProtocol::Grpc;
        })
        .await
    }

    /// The spans of the trace by their ids, as soon as one of each name has come.
    pub async fn spans(&mut self, expected: &[&str]) -> HashMap<String, Exported> {
        let mut found = HashMap::new();
        while !expected.iter().all(|name| found.values().any(|span: &Exported| span.name == *name)) {
            let request = self.request().await;
            for span in spans_of(&request) {
                assert_eq!(hex(&span.trace_id), TRACE);
                assert!(span.start_time_unix_nano <= span.end_time_unix_nano);
                let exported = Exported {
                    name: span.name.clone(),
                    kind: span.kind,
                    parent: hex(&span.parent_span_id),
                    status: span.status.as_ref().map_or(0, |status| status.code),
                    attributes: attributes(&span.attributes),
                };
                let before = found.insert(hex(&span.span_id), exported);
                assert!(before.is_none(), "a span comes once: {before:?}");
            }
        }
        found
    }
}

#[tokio::test]
async fn spans_are_exported_in_protobuf_and_again_after_an_overload() {
    let mut collector = Server::start(&[503, 429]).await;
    let url = format!("http://{}", collector.address);
    let mut node = TestNode::start_with(|config| {
        config.traces.otlp = Some(url);
        config.traces.otlp_protocol = OtlpProtocol::HttpProtobuf;
    })
    .await;
    node.deploy_one("f", "triggers = [{ http = \"/f\" }]", "export default () => 'x'").await;
    post(&node, "/f").await;
    let mut bodies = Vec::new();
    for _ in 0..3 {
        let request = collector.request().await;
        assert_eq!(request.uri().path(), "/v1/traces");
        assert_eq!(request.headers()["content-type"], "application/x-protobuf");
        bodies.push(request.into_body());
    }
    assert!(bodies.iter().all(|body| *body == bodies[0]), "the same spans each time");
    let request = otlp::Request::decode(bodies.remove(0)).unwrap();
    let [span] = &spans_of(&request)[..] else { panic!("{request:?}") };
    let shown = &spans(&mut node, TRACE).await[0];
    assert_eq!(
        (&*span.name, hex(&span.trace_id), hex(&span.parent_span_id)),
        ("f", TRACE.to_owned(), CALLER.to_owned())
    );
    assert_eq!(hex(&span.span_id), shown.span_id);
    assert_eq!(span.end_time_unix_nano - span.start_time_unix_nano, shown.duration_us * 1000);
    assert_eq!(span.status.as_ref().map(|status| status.code), Some(1));
    // The collector has accepted them: the next ones come alone.
    post(&node, "/f").await;
    let request = otlp::Request::decode(collector.request().await.into_body()).unwrap();
    assert_eq!(names(&request), ["f"]);
}

#[tokio::test]
async fn spans_are_exported_over_grpc_and_again_after_an_overload() {
    let asked = ErrorDetails::with_retry_info(Some(Duration::from_millis(10)));
    let rejected =
        otlp::PartialSuccess { rejected_spans: 1, error_message: "the span is too old".to_owned() };
    let mut collector = GrpcCollector::start(vec![
        Err(Status::unavailable("starting")),
        Err(Status::with_error_details(Code::ResourceExhausted, "busy", asked)),
        Ok(otlp::Answer { partial_success: Some(rejected) }),
        Err(Status::resource_exhausted("over the quota")),
    ])
    .await;
    let mut node = collector.node().await;
    node.deploy_one("f", "triggers = [{ http = \"/f\" }]", "export default (e) => e.query.toString()")
        .await;
    post(&node, "/f?n=1").await;
    let first = collector.request().await;
    assert_eq!(collector.request().await, first, "after `UNAVAILABLE`");
    assert_eq!(collector.request().await, first, "after `RESOURCE_EXHAUSTED` with `RetryInfo`");
    let [span] = &spans_of(&first)[..] else { panic!("{first:?}") };
    assert_eq!((&*span.name, hex(&span.trace_id)), ("f", TRACE.to_owned()));
    assert_eq!(hex(&span.span_id), spans(&mut node, TRACE).await[0].span_id);
    let resource = attributes(&first.resource_spans[0].resource.as_ref().unwrap().attributes);
    assert_eq!(resource["service.name"], "edgefaas");
    // Rejected spans are not sent again, and neither are those of an error without `RetryInfo`.
    for query in ["n=2", "n=3"] {
        post(&node, &format!("/f?{query}")).await;
        let request = collector.request().await;
        let [span] = &spans_of(&request)[..] else { panic!("{request:?}") };
        assert_eq!(attributes(&span.attributes)["edgefaas.output"], query);
    }
}

/// An invocation ends after the listeners are closed: its span is exported all the same.
#[tokio::test]
async fn a_node_that_stops_exports_its_last_spans() {
    let mut collector = GrpcCollector::start(Vec::new()).await;
    let mut node = collector.node().await;
    let slow = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = slow.local_addr().unwrap();
    let extra =
        format!("triggers = [{{ mqtt = \"begin\" }}]\npermissions = {{ http = [\"http://{server}\"] }}");
    let source = format!("export default async () => (await fetch('http://{server}/')).text()");
    node.deploy_one("slow", &extra, &source).await;
    let mut client = Mqtt5::connect(&node, "watcher").await;
    client.publish("begin", "").await;
    client.puback().await;
    let (mut waiting, _) = in_time(slow.accept()).await.unwrap();
    // A connection with unread bytes would be reset, and the answer lost.
    let read = in_time(waiting.read(&mut [0; 4096])).await.unwrap();
    assert!(read > 0);
    let gateway = node.addresses.http;
    let is_closed = async {
        while tokio::net::TcpStream::connect(gateway).await.is_ok() {
            tokio::task::yield_now().await;
        }
    };
    tokio::join!(node.stop(), async {
        in_time(is_closed).await;
        let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\nconnection: close\r\n\r\nx";
        waiting.write_all(answer).await.unwrap();
    });
    let request = collector.request().await;
    let slow =
        spans_of(&request).into_iter().find(|span| span.name == "slow").expect("the span of the function");
    assert_eq!(attributes(&slow.attributes)["edgefaas.output"], "x");
}

#[tokio::test]
async fn a_collector_that_redirects_is_not_asked_again() {
    let mut collector = Server::start(&[307, 200]).await;
    let url = format!("http://{}", collector.address);
    let mut node = TestNode::start_with(|config| config.traces.otlp = Some(url)).await;
    node.deploy_one("f", "triggers = [{ http = \"/f\" }]", "export default (e) => e.query").await;
    for query in ["first", "second"] {
        post(&node, &format!("/f?{query}")).await;
        let request = collector.request().await;
        let body = String::from_utf8_lossy(request.body()).into_owned();
        assert!(body.contains(query), "the spans of a refused export do not come again: {body}");
    }
}

/// Spans have the kinds and attributes of OpenTelemetry's conventions, from an HTTP request to a workflow's sub-workflow.
#[tokio::test]
async fn exported_spans_have_kinds_and_attributes() {
    let (internal, server_kind, client, producer, consumer) = (1, 2, 3, 4, 5);
    let mut collector = GrpcCollector::start(Vec::new()).await;
    let mut node = collector.node().await;
    let server = Server::start(&[404]).await;
    let url = format!("http://{}", server.address);
    let manifest = format!(
        r#"
        app = "t"
        [workflows]
        files = ["*.yaml"]
        [functions.enters]
        main = "enters.js"
        triggers = [{{ http = "/enters" }}]
        permissions = {{ http = ["{url}"], publish = ["sent/one"] }}
        [functions.receives]
        main = "receives.js"
        triggers = [{{ mqtt = "sent/+" }}]
        permissions = {{ call = ["outer"] }}
        "#
    );
    let enters = format!(
        "export default async (e, c) => {{ await fetch('{url}/x?secret=1', {{ method: 'PUT' }}); c.publish('sent/one', 'abc'); return 'x'; }}"
    );
    let sources = [
        ("enters", &*enters),
        (
            "receives",
            "export default async (e, c) => { await c.call('outer', ''); throw new Error('late'); }",
        ),
    ];
    let outer = "do:\n  - sub: { run: { workflow: { namespace: test, name: inner, version: '1.0.0' } } }\n";
    let inner = "do:\n  - tell: { emit: { event: { with: { source: 'urn:x', type: a.b } } } }\n";
    deploy(&mut node, &manifest, &sources, &[("outer", outer), ("inner", inner)]).await;
    post(&node, "/enters?token=1").await;
    let request = format!("PUT {}", server.address);
    let names = ["enters", &*request, "sent/one", "receives", "outer", "run sub", "inner", "emit tell"];
    let spans = collector.spans(&names).await;
    assert_eq!(spans.len(), names.len(), "{spans:?}");
    let span = |name: &str| spans.values().find(|span| span.name == name).expect("checked");
    let kinds = [server_kind, client, producer, consumer, internal, internal, internal, producer];
    let parents = ["", "enters", "enters", "sent/one", "receives", "outer", "run sub", "inner"];
    let statuses = [1, 2, 1, 2, 1, 1, 1, 1];
    for (at, name) in names.into_iter().enumerate() {
        let span = span(name);
        let parent = spans.get(&span.parent).map_or("", |parent| &*parent.name);
        let actual = (name, span.kind, parent, span.status);
        assert_eq!(actual, (name, kinds[at], parents[at], statuses[at]), "{span:?}");
    }
    assert_eq!(span("enters").parent, CALLER);
    let has = |name: &str, expected: &[(&str, &str)]| {
        let attributes = &span(name).attributes;
        for (key, value) in expected {
            assert_eq!(attributes.get(*key).map(|value| &**value), Some(*value), "{name}: {attributes:?}");
        }
    };
    let id = &span("enters").attributes["edgefaas.id"].clone();
    let port = server.address.port().to_string();
    has(
        "enters",
        &[
            ("faas.trigger", "http"),
            ("faas.invocation_id", id),
            ("http.request.method", "POST"),
            ("url.path", "/enters"),
            ("http.response.status_code", "200"),
        ],
    );
    has(
        &request,
        &[
            ("http.request.method", "PUT"),
            ("http.response.status_code", "404"),
            ("error.type", "404"),
            ("server.address", "127.0.0.1"),
            ("server.port", &port),
            ("url.full", &format!("{url}/x")),
        ],
    );
    let message = [("messaging.system", "mqtt"), ("messaging.destination.name", "sent/one")];
    has("sent/one", &message);
    has("sent/one", &[("messaging.operation.type", "send"), ("messaging.message.body.size", "3")]);
    has("receives", &message);
    has("receives", &[("faas.trigger", "pubsub"), ("messaging.operation.type", "process")]);
    has("receives", &[("error.type", "500")]);
    has("outer", &[("faas.trigger", "other")]);
    has("emit tell", &[("messaging.system", "mqtt"), ("messaging.operation.type", "send")]);
    let texts = format!("{spans:?}");
    assert!(!texts.contains("secret") && !texts.contains("token"), "queries are not exported: {texts}");
}

/// A caller that has not sampled its trace decides that it is not exported, as `parentbased_always_on` does.
#[tokio::test]
async fn traces_that_the_caller_has_not_sampled_stay_here() {
    const NOT_SAMPLED: &str = "11111111111111111111111111111111";
    let mut collector = GrpcCollector::start(Vec::new()).await;
    let mut node = collector.node().await;
    let mut server = Server::start(&[]).await;
    let url = format!("http://{}", server.address);
    let manifest = format!(
        r#"
        app = "t"
        [workflows]
        files = ["*.yaml"]
        [functions.f]
        main = "f.js"
        triggers = [{{ http = "/f" }}]
        permissions = {{ http = ["{url}"], publish = ["sent"], call = ["w"] }}
        [workflows.w.permissions]
        publish = ["sent"]
        "#
    );
    let f = format!(
        "export default async (e, c) => {{ await fetch('{url}/'); c.publish('sent', 'f'); await c.call('w', ''); return 'x'; }}"
    );
    let w = "do:\n  - tell: { call: asyncapi, with: { channel: sent, message: { payload: w } } }\n";
    deploy(&mut node, &manifest, &[("f", &*f)], &[("w", w)]).await;
    let mut mqtt = Mqtt5::connect(&node, "reader").await;
    mqtt.subscribe("sent").await;

    let request = Request::post("/f").header("traceparent", format!("00-{NOT_SAMPLED}-{CALLER}-00"));
    let reply = node.send(request.body(Full::new("{}".into())).unwrap()).await;
    assert_eq!(reply.status().as_u16(), 200, "{:?}", reply.body());
    // What it sends says so too.
    let fetched = server.request().await;
    let mut contexts = vec![fetched.headers()["traceparent"].to_str().unwrap().to_owned()];
    for _ in 0..2 {
        let message = mqtt.message().await;
        let user = message.properties.unwrap().user_properties;
        contexts.extend(user.into_iter().filter(|(name, _)| name == "traceparent").map(|(_, value)| value));
    }
    assert_eq!(contexts.len(), 3, "{contexts:?}");
    for context in &contexts {
        assert!(
            context.starts_with(&format!("00-{NOT_SAMPLED}-")) && context.ends_with("-00"),
            "{context}"
        );
    }
    let shown = spans(&mut node, NOT_SAMPLED).await;
    let names: Vec<_> = shown.iter().map(|span| &*span.name).collect();
    assert_eq!(names, ["f", "w", "call tell"], "it is visible here");
    assert_eq!(shown[0].parent, CALLER);

    // Of two traces only the sampled one is exported: `spans` fails for a span of another trace.
    post(&node, "/f").await;
    let exported = collector.spans(&["f", "w", "call tell", "sent"]).await;
    assert!(exported.values().any(|span| span.parent == CALLER));
}
