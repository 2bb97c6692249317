//! A node for tests, and its clients.

use std::future::Future;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use edgefaas_api::control as proto;
use edgefaas_api::control::control_client::ControlClient;
use edgefaas_api::history::history_client;
use edgefaas_api::objects::objects_client;
use edgefaas_functions::registry::Deploy;
use edgefaas_node::config::NodeConfig;
use edgefaas_node::{Addresses, Advance, BuildError, ClockControl, Node, Platform};
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Channel;

/// Timeout of a test, longer than any step on the slowest machine; only a failure reaches it.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub type Client = ControlClient<InterceptedService<Channel, Bearer>>;
pub type HistoryClient = history_client::HistoryClient<InterceptedService<Channel, Bearer>>;
pub type ObjectsClient = objects_client::ObjectsClient<InterceptedService<Channel, Bearer>>;

/// A running node with its own data directory.
pub struct TestNode {
    pub addresses: Addresses,
    pub control: Client,
    pub token: String,
    pub dir: tempfile::TempDir,
    shutdown: CancellationToken,
    running: JoinHandle<Result<(), edgefaas_node::RunError>>,
}

impl TestNode {
    pub async fn start() -> Self {
        Self::start_with(|_| {}).await
    }

    pub async fn start_with(change: impl FnOnce(&mut NodeConfig)) -> Self {
        let dir = tempfile::tempdir().expect("a temporary folder");
        Self::start_in(dir, change).await.expect("the node starts")
    }

    pub async fn start_in(
        dir: tempfile::TempDir,
        change: impl FnOnce(&mut NodeConfig),
    ) -> Result<Self, BuildError> {
        Self::start_on(Platform::system(), dir, change).await
    }

    pub async fn start_on(
        platform: Platform,
        dir: tempfile::TempDir,
        change: impl FnOnce(&mut NodeConfig),
    ) -> Result<Self, BuildError> {
        ENGINE_COMPILED.get_or_init(compile_engine).await;
        let mut config = config(dir.path());
        change(&mut config);
        Ok(Self::run(Node::build(config, platform).await?, dir).await)
    }

    /// A node whose time the test advances. It needs a runtime with several threads.
    pub async fn start_timed() -> (Self, Advance) {
        ENGINE_COMPILED.get_or_init(compile_engine).await;
        let (dir, control) = (tempfile::tempdir().expect("a temporary folder"), ClockControl::new());
        let platform = Platform { clock: control.clock(), ..Platform::system() };
        let node = Node::build(config(dir.path()), platform).await.expect("the node starts");
        let time = node.advance(control);
        (Self::run(node, dir).await, time)
    }

    async fn run(node: Node, dir: tempfile::TempDir) -> Self {
        let (addresses, token) = (node.addresses(), node.token().to_owned());
        let shutdown = CancellationToken::new();
        let running = tokio::spawn(node.run(shutdown.clone()));
        let control = client(addresses.control, &token).await;
        Self { addresses, control, token, dir, shutdown, running }
    }

    /// Stops the node and returns its data directory.
    pub async fn stop(self) -> tempfile::TempDir {
        self.shutdown.cancel();
        let ended = in_time(self.running).await.expect("the node does not panic");
        ended.expect("the node stops cleanly");
        self.dir
    }

    /// Starts the stop of the node without waiting for it.
    pub fn begin_stop(&self) {
        self.shutdown.cancel();
    }

    /// Deploys JavaScript functions of one app: manifest, and source by function.
    pub async fn try_deploy(
        &mut self,
        manifest: &str,
        sources: &[(&str, &str)],
    ) -> Result<proto::DeployResponse, tonic::Status> {
        let artifacts = sources.iter().map(|(name, source)| script(name, source)).collect();
        let request =
            proto::DeployRequest { manifest: manifest.to_owned(), artifacts, ..Default::default() };
        self.control.deploy(request).await.map(|response| response.into_inner())
    }

    pub async fn deploy(&mut self, manifest: &str, sources: &[(&str, &str)]) -> proto::DeployResponse {
        self.try_deploy(manifest, sources).await.expect("the deploy succeeds")
    }

    /// The same, to this node alone and not to its cluster.
    pub async fn deploy_here(&mut self, manifest: &str, sources: &[(&str, &str)]) {
        let artifacts = sources.iter().map(|(name, source)| script(name, source)).collect();
        let manifest = manifest.to_owned();
        let request = proto::DeployRequest { manifest, artifacts, this_node: true, ..Default::default() };
        self.control.deploy(request).await.expect("the deploy succeeds");
    }

    /// Deploys one function with a manifest of its name and `extra`.
    pub async fn deploy_one(&mut self, name: &str, extra: &str, source: &str) {
        self.deploy(&manifest_of(name, extra), &[(name, source)]).await;
    }

    /// Sets a secret of an app.
    pub async fn set_secret(&mut self, app: &str, name: &str, value: &str) {
        let (app, name, value) = (app.to_owned(), name.to_owned(), value.to_owned());
        let request = proto::SetSecretRequest { name, value, app, ..Default::default() };
        self.control.set_secret(request).await.expect("the secret is set");
    }

    /// A client for stateful objects.
    pub async fn objects(&self) -> ObjectsClient {
        ObjectsClient::new(InterceptedService::new(channel(self.addresses.control).await, self.bearer()))
    }

    /// The admin token, for a client of the control port.
    pub fn bearer(&self) -> Bearer {
        Bearer(format!("Bearer {}", self.token).parse().unwrap())
    }

    /// A client for samples and events.
    pub async fn history(&self) -> HistoryClient {
        let bearer = Bearer(format!("Bearer {}", self.token).parse().unwrap());
        HistoryClient::new(InterceptedService::new(channel(self.addresses.control).await, bearer))
    }

    /// The node's metrics.
    pub async fn metrics(&self) -> Response<Bytes> {
        let request = Request::get("/metrics")
            .header("authorization", format!("Bearer {}", self.token))
            .body(Full::default())
            .unwrap();
        send(self.addresses.control, request).await
    }

    pub async fn invoke(&mut self, function: &str, data: &str) -> proto::InvokeResponse {
        let request = proto::InvokeRequest { function: function.into(), data: data.into(), event: None };
        in_time(self.control.invoke(request)).await.expect("the call succeeds").into_inner()
    }

    pub async fn get(&self, path: &str) -> Response<Bytes> {
        self.send(Request::get(path).body(Full::default()).expect("a request")).await
    }

    pub async fn post(&self, path: &str, body: impl Into<Bytes>) -> Response<Bytes> {
        self.send(Request::post(path).body(Full::new(body.into())).expect("a request")).await
    }

    pub async fn send(&self, request: Request<Full<Bytes>>) -> Response<Bytes> {
        in_time(send(self.addresses.http, request)).await
    }

    /// The messages that a function has logged.
    pub async fn logged(&mut self, function: &str) -> Vec<String> {
        let request = proto::LogsRequest { function: function.into(), follow: false, tail: 0 };
        let mut lines = self.control.logs(request).await.expect("the logs").into_inner();
        let mut messages = Vec::new();
        while let Some(line) = in_time(lines.message()).await.expect("a line") {
            messages.push(line.message);
        }
        messages
    }
}

/// Cache of compiled code that all nodes of the tests share, so that the JavaScript engine is compiled once.
static ENGINE_COMPILED: tokio::sync::OnceCell<()> = tokio::sync::OnceCell::const_new();

async fn compile_engine() {
    use edgefaas_isolates::{FunctionSource, Module, ModuleGraph};
    let dir = tempfile::tempdir().expect("a temporary folder");
    let node = Node::build(config(dir.path()), Platform::system()).await.expect("a first node");
    let source = "export default () => 1".to_owned();
    let module = Module { path: "f.js".into(), source, imports: Vec::new() };
    let graph = ModuleGraph { entry: "f.js".into(), modules: vec![module] };
    let sources = [("f".to_owned(), FunctionSource::JavaScript(graph))].into();
    node.registry()
        .deploy(Deploy { manifest: manifest_of("f", ""), sources, ..Deploy::default() })
        .await
        .map(drop)
        .expect("a first deploy");
    let stopped = CancellationToken::new();
    stopped.cancel();
    node.run(stopped).await.expect("the first node stops");
}

pub fn config(dir: &Path) -> NodeConfig {
    // With the same key, every node accepts the code that another one compiled.
    let key = dir.join("cache-key");
    if !key.exists() {
        std::fs::write(&key, [7; 32]).expect("the folder can be written to");
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600))
            .expect("its mode can be set");
    }
    let any = |_| SocketAddr::from(([127, 0, 0, 1], 0));
    let mut config = NodeConfig {
        data_dir: dir.to_owned(),
        http: any(()),
        mqtt: any(()),
        control: any(()),
        workers: 2,
        cache_dir: Some(Path::new(env!("CARGO_TARGET_TMPDIR")).join("compiled")),
        ..NodeConfig::default()
    };
    // Many nodes run at the same time.
    config.isolates.max = Some(64);
    config
}

pub fn manifest_of(name: &str, extra: &str) -> String {
    format!("app = \"{name}\"\n[functions.{name}]\nmain = \"{name}.js\"\n{extra}\n")
}

pub fn script(name: &str, source: &str) -> proto::Artifact {
    let path = format!("{name}.js");
    let module =
        proto::Module { path: path.clone(), source: source.to_owned(), imports: Default::default() };
    let graph = proto::ModuleGraph { entry: path, modules: vec![module] };
    proto::Artifact { function: name.to_owned(), source: Some(proto::artifact::Source::Modules(graph)) }
}

pub async fn send(address: SocketAddr, request: Request<Full<Bytes>>) -> Response<Bytes> {
    try_send(address, request).await.expect("a response")
}

/// The same for a request whose body may be refused during its transfer: the node may close the connection before the
/// client has read the answer.
pub async fn try_send(
    address: SocketAddr,
    mut request: Request<Full<Bytes>>,
) -> hyper::Result<Response<Bytes>> {
    let host = address.to_string().parse().expect("a header");
    request.headers_mut().entry(http::header::HOST).or_insert(host);
    let stream = TcpStream::connect(address).await.expect("the port is open");
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.expect("a connection");
    tokio::spawn(connection);
    let (head, body) = sender.send_request(request).await?.into_parts();
    let body = body.collect().await?.to_bytes();
    Ok(Response::from_parts(head, body))
}

pub fn json(response: &Response<Bytes>) -> serde_json::Value {
    serde_json::from_slice(response.body())
        .unwrap_or_else(|error| panic!("{error} in {:?}", response.body()))
}

pub fn text(response: &Response<Bytes>) -> &str {
    std::str::from_utf8(response.body()).expect("text")
}

/// The reply of a call, as text.
pub fn reply_text(response: &proto::InvokeResponse) -> String {
    match &response.outcome {
        Some(proto::invoke_response::Outcome::Reply(reply)) => {
            String::from_utf8(reply.body.clone()).expect("text")
        }
        other => panic!("not a reply: {other:?}"),
    }
}

/// The failure of a call.
pub fn failure(response: &proto::InvokeResponse) -> &proto::Failure {
    match &response.outcome {
        Some(proto::invoke_response::Outcome::Failure(failure)) => failure,
        other => panic!("not a failure: {other:?}"),
    }
}

pub async fn in_time<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, work).await.expect("the step exceeds its timeout")
}

/// A server that holds its answers back until it is opened: functions that ask it run for as long as the test wants.
pub struct HeldServer {
    pub address: SocketAddr,
    requests: watch::Receiver<usize>,
    opened: CancellationToken,
}

impl HeldServer {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let opened = CancellationToken::new();
        let (counting, requests) = watch::channel(0);
        let open = opened.clone();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let (counting, open) = (counting.clone(), open.clone());
                tokio::spawn(async move {
                    let mut request = [0; 4096];
                    let _ = stream.read(&mut request).await;
                    counting.send_modify(|count| *count += 1);
                    open.cancelled().await;
                    let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\nconnection: close\r\n\r\nx";
                    let _ = stream.write_all(answer).await;
                });
            }
        });
        Self { address, requests, opened }
    }

    /// Waits until so many requests have come.
    pub async fn requested(&mut self, count: usize) {
        let come = in_time(self.requests.wait_for(|requests| *requests >= count)).await;
        drop(come.expect("the server runs"));
    }

    /// Answers all requests, also later ones.
    pub fn open(&self) {
        self.opened.cancel();
    }
}

#[derive(Clone)]
pub struct Bearer(MetadataValue<Ascii>);

impl Interceptor for Bearer {
    fn call(&mut self, mut request: tonic::Request<()>) -> Result<tonic::Request<()>, tonic::Status> {
        request.metadata_mut().insert("authorization", self.0.clone());
        Ok(request)
    }
}

pub async fn client(address: SocketAddr, token: &str) -> Client {
    let channel = channel(address).await;
    let bearer = format!("Bearer {token}").parse().expect("a token is plain text");
    ControlClient::with_interceptor(channel, Bearer(bearer)).max_encoding_message_size(64 << 20)
}

pub async fn channel(address: SocketAddr) -> Channel {
    let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{address}")).expect("a URL");
    in_time(endpoint.connect()).await.expect("the control port is open")
}

/// A real MQTT 5 client with its messages.
pub struct Mqtt5 {
    pub client: rumqttc::v5::AsyncClient,
    pub events: rumqttc::v5::EventLoop,
}

impl Mqtt5 {
    pub async fn connect(node: &TestNode, id: &str) -> Self {
        Self::connect_with(node, id, |_| {}).await
    }

    pub async fn connect_with(
        node: &TestNode,
        id: &str,
        change: impl FnOnce(&mut rumqttc::v5::MqttOptions),
    ) -> Self {
        let mut options = rumqttc::v5::MqttOptions::new(id, "127.0.0.1", node.addresses.mqtt.port());
        options.set_keep_alive(Duration::from_secs(60));
        change(&mut options);
        let (client, mut events) = rumqttc::v5::AsyncClient::new(options, 1000);
        loop {
            let event = in_time(events.poll()).await.expect("it connects");
            if matches!(event, rumqttc::v5::Event::Incoming(rumqttc::v5::Incoming::ConnAck(_))) {
                return Self { client, events };
            }
        }
    }

    pub async fn subscribe(&mut self, filter: &str) {
        let qos = rumqttc::v5::mqttbytes::QoS::AtLeastOnce;
        self.client.subscribe(filter, qos).await.expect("queued");
        loop {
            let event = in_time(self.events.poll()).await.expect("it stays connected");
            if matches!(event, rumqttc::v5::Event::Incoming(rumqttc::v5::Incoming::SubAck(_))) {
                return;
            }
        }
    }

    pub async fn publish(&mut self, topic: &str, payload: &str) {
        self.publish_with(topic, payload, Default::default()).await;
    }

    pub async fn publish_with(
        &mut self,
        topic: &str,
        payload: &str,
        properties: rumqttc::v5::mqttbytes::v5::PublishProperties,
    ) {
        let qos = rumqttc::v5::mqttbytes::QoS::AtLeastOnce;
        self.client
            .publish_with_properties(topic, qos, false, payload.to_owned(), properties)
            .await
            .expect("queued");
    }

    /// The next message.
    pub async fn message(&mut self) -> rumqttc::v5::mqttbytes::v5::Publish {
        loop {
            let event = in_time(self.events.poll()).await.expect("it stays connected");
            if let rumqttc::v5::Event::Incoming(rumqttc::v5::Incoming::Publish(message)) = event {
                return message;
            }
        }
    }

    /// The reason code of the next PUBACK.
    pub async fn puback(&mut self) -> rumqttc::v5::mqttbytes::v5::PubAckReason {
        loop {
            let event = in_time(self.events.poll()).await.expect("it stays connected");
            if let rumqttc::v5::Event::Incoming(rumqttc::v5::Incoming::PubAck(ack)) = event {
                return ack.reason;
            }
        }
    }
}
