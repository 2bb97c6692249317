//! The client commands against a control server that answers as a node would, over real sockets: what
//! they send, what they print and how they exit.

#[path = "control/messages.rs"]
mod messages;

use std::fs::Permissions;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::{Output, Stdio};
use std::sync::{Arc, Mutex};

use edgefaas_api::control::control_server::{Control, ControlServer};
use edgefaas_api::control::{self as proto, invoke_response::Outcome};
use edgefaas_api::history;
use edgefaas_api::history::history_server::{History, HistoryServer};
use edgefaas_api::messages::messages_server::MessagesServer;
use edgefaas_api::{Nonce, PROOF_HEADER, proof_of_token};
use tokio::process::{Child, Command};
use tokio_stream::Stream;
use tonic::{Code, Request, Response, Status};

const TOKEN: &str = "correct-horse";
/// A message that clears the screen and ends with a line that another function seems to have logged.
const FORGED: &str = "a\x1b[2J\r\n00:00:00.000 INFO  other  forged";

type Answer<T> = Result<Response<T>, Status>;
type Lines = Pin<Box<dyn Stream<Item = Result<proto::LogLine, Status>> + Send>>;

/// Keeps what it was sent. Functions are named after how they end.
#[derive(Clone, Default)]
struct Server {
    deployed: Arc<Mutex<Vec<proto::DeployRequest>>>,
    secrets: Arc<Mutex<Vec<(String, String, String)>>>,
    users: Arc<Mutex<Vec<(String, String)>>>,
    published: Arc<Mutex<Vec<edgefaas_api::messages::PublishRequest>>>,
}

fn app(name: &str) -> proto::App {
    let function = proto::Function {
        name: "comfort".into(),
        kind: "javascript".into(),
        source_bytes: 2048,
        triggers: vec!["mqtt a/+".into()],
        stats: Some(proto::FunctionStats {
            invocations: 7,
            failures: 1,
            rejected: 2,
            pending: 3,
            ..Default::default()
        }),
        ..Default::default()
    };
    proto::App {
        name: name.into(),
        revision: "0123456789abcdef0123".into(),
        deployed_unix_ms: 1_700_000_000_000,
        functions: vec![function],
        previous_revisions: vec!["fedcba".into()],
        workflows: vec![],
        ..Default::default()
    }
}

/// A cluster of two, one of them away.
fn cluster(name: &str) -> proto::Cluster {
    let peer = proto::Peer {
        address: "/ip4/10.0.0.2/tcp/7071".into(),
        transport: "tcp".into(),
        software: "0.1.0".into(),
        protocol_version: 1,
        connected_ms: 61_000,
        rtt_us: Some(420),
        bytes_in: 2048,
        bytes_out: 10,
        skew_ms: -90_500,
    };
    let load = proto::MemberLoad {
        permille: 123,
        isolates_free: 3,
        isolates_total: 4,
        readiness: "ready".into(),
        ..Default::default()
    };
    let failed = proto::MemberApp {
        name: "shop".into(),
        revision: "0123456789abcdef0123".into(),
        state: "failed".into(),
        reason: "no\nmemory".into(),
        ..Default::default()
    };
    let status = proto::MemberStatus {
        zone: "east".into(),
        zone_is_measured: true,
        labels: (0..32).map(|number| format!("{number:0>63}")).collect(),
        software: "0.1.0".into(),
        apps: vec![failed],
        apps_omitted: 0,
        load: Some(load),
    };
    let member = |name: &str, peer| proto::Member {
        name: name.into(),
        node_id: "00000000000000ab".into(),
        addresses: vec!["/ip4/10.0.0.3/tcp/7071".into()],
        peer,
        copy_address: None,
        status: Some(status.clone()),
        away_ms: Some(3_725_000),
    };
    proto::Cluster {
        id: "c1".into(),
        name: name.into(),
        node_id: "00000000000000aa".into(),
        has_key: true,
        addresses: vec!["/ip4/10.0.0.1/tcp/7071".into()],
        members: vec![member("hall", Some(peer)), member("cellar", None)],
        recovering: 0,
        recovering_patterns: Vec::new(),
        copy: None,
        revoked: None,
        status: None,
    }
}

#[tonic::async_trait]
impl Control for Server {
    type LogsStream = Lines;

    async fn deploy(&self, request: Request<proto::DeployRequest>) -> Answer<proto::DeployResponse> {
        let request = request.into_inner();
        if request.manifest.contains("taken") {
            return Err(Status::already_exists("the name `taken` belongs to the app `other`"));
        }
        self.deployed.lock().unwrap().push(request);
        let warnings = vec!["`comfort` has no triggers".into()];
        Ok(Response::new(proto::DeployResponse { app: Some(app("hello")), warnings, ..Default::default() }))
    }

    async fn invoke(&self, request: Request<proto::InvokeRequest>) -> Answer<proto::InvokeResponse> {
        let proto::InvokeRequest { function, data, .. } = request.into_inner();
        let reply = |kind: &str, body: Vec<u8>| {
            Outcome::Reply(proto::Reply { kind: kind.into(), body, ..Default::default() })
        };
        let outcome = match function.as_str() {
            "echo" => reply("text", data),
            "json" => reply("json", br#"{"a":[1]}"#.to_vec()),
            "raw" => reply("bytes", vec![0, 255]),
            "nothing" => reply("none", Vec::new()),
            "fails" => Outcome::Failure(proto::Failure {
                status: 500,
                title: "Function failed".into(),
                detail: "TypeError: x is undefined at functions/f.js:3:7".into(),
            }),
            "forger" => Outcome::Failure(proto::Failure {
                status: 500,
                title: "Function failed".into(),
                detail: FORGED.into(),
            }),
            "busy" => return Err(Status::new(Code::ResourceExhausted, "its queue of 1000 is full")),
            "draining" => return Err(Status::unavailable("the node is stopping")),
            name => return Err(Status::not_found(format!("no function `{name}`; there is `echo`"))),
        };
        Ok(Response::new(proto::InvokeResponse {
            invocation_id: "01".into(),
            outcome: Some(outcome),
            timing: Some(proto::Timing { queue_us: 1, start_us: 2, exec_us: 3 }),
            node: String::new(),
        }))
    }

    async fn list(&self, _: Request<proto::ListRequest>) -> Answer<proto::ListResponse> {
        Ok(Response::new(proto::ListResponse { apps: vec![app("greenhouse")] }))
    }

    async fn logs(&self, request: Request<proto::LogsRequest>) -> Answer<Lines> {
        let request = request.into_inner();
        let line = |message: &str| {
            Ok(proto::LogLine {
                number: 0,
                function: request.function.clone(),
                level: "info".into(),
                message: message.into(),
                ..Default::default()
            })
        };
        let first = if request.function == "forger" { FORGED } else { "first" };
        let lines = vec![line(first), line(&format!("tail {}", request.tail))];
        Ok(Response::new(Box::pin(tokio_stream::iter(lines))))
    }

    async fn remove(&self, request: Request<proto::RemoveRequest>) -> Answer<proto::RemoveResponse> {
        match request.into_inner().app.as_str() {
            "greenhouse" => Ok(Response::new(proto::RemoveResponse {
                functions: vec!["comfort".into()],
                nodes: Vec::new(),
            })),
            name => Err(Status::not_found(format!("no app `{name}`"))),
        }
    }

    async fn rollback(&self, request: Request<proto::RollbackRequest>) -> Answer<proto::RollbackResponse> {
        let proto::RollbackRequest { app: name, revision, .. } = request.into_inner();
        let app = proto::App { revision, ..app(&name) };
        Ok(Response::new(proto::RollbackResponse { app: Some(app), nodes: Vec::new() }))
    }

    async fn status(&self, _: Request<proto::StatusRequest>) -> Answer<proto::StatusResponse> {
        let warning = proto::Warning {
            code: "function-failing".into(),
            severity: proto::warning::Severity::Failing.into(),
            text: format!("3 of 5 failed: {FORGED}"),
            remedy: "`edgefaas logs comfort`".into(),
            subject: "comfort".into(),
            since_unix_ms: 7,
            ..Default::default()
        };
        Ok(Response::new(proto::StatusResponse {
            version: "9.9.9".into(),
            uptime_ms: 61_000,
            warnings: vec![warning],
            temperature_millicelsius: Some(61_250),
            ..Default::default()
        }))
    }

    async fn list_instances(
        &self,
        request: Request<proto::ListInstancesRequest>,
    ) -> Answer<proto::ListInstancesResponse> {
        let instance = proto::Instance {
            id: "01".into(),
            workflow: request.into_inner().workflow,
            status: "waiting".into(),
            tasks: vec![FORGED.into()],
            ..Default::default()
        };
        Ok(Response::new(proto::ListInstancesResponse { instances: vec![instance], more: 3 }))
    }

    async fn get_instance(&self, request: Request<proto::GetInstanceRequest>) -> Answer<proto::Instance> {
        Err(Status::not_found(format!("there is no instance {}", request.into_inner().id)))
    }

    async fn change_instance(
        &self,
        request: Request<proto::ChangeInstanceRequest>,
    ) -> Answer<proto::ChangeInstanceResponse> {
        Err(Status::failed_precondition(format!("instance {} is waiting", request.into_inner().id)))
    }

    async fn graph(&self, _: Request<proto::GraphRequest>) -> Answer<proto::GraphResponse> {
        Ok(Response::new(proto::GraphResponse { mermaid: "flowchart TD\n".into(), ..Default::default() }))
    }

    async fn cancel_instances(
        &self,
        _: Request<proto::CancelInstancesRequest>,
    ) -> Answer<proto::CancelInstancesResponse> {
        Ok(Response::new(proto::CancelInstancesResponse { cancelled: 3 }))
    }

    async fn compare_revisions(
        &self,
        _: Request<proto::CompareRevisionsRequest>,
    ) -> Answer<proto::CompareRevisionsResponse> {
        Ok(Response::new(proto::CompareRevisionsResponse::default()))
    }

    async fn get_settings(
        &self,
        _: Request<proto::GetSettingsRequest>,
    ) -> Answer<proto::GetSettingsResponse> {
        Ok(Response::new(proto::GetSettingsResponse::default()))
    }

    async fn list_traces(&self, _: Request<proto::ListTracesRequest>) -> Answer<proto::ListTracesResponse> {
        Ok(Response::new(proto::ListTracesResponse::default()))
    }

    async fn init_cluster(&self, request: Request<proto::InitClusterRequest>) -> Answer<proto::Cluster> {
        Ok(Response::new(cluster(&request.into_inner().name)))
    }

    async fn open_cluster(
        &self,
        request: Request<proto::OpenClusterRequest>,
    ) -> Answer<proto::OpenClusterResponse> {
        let token = format!("efj1-{}", request.into_inner().life_ms);
        Ok(Response::new(proto::OpenClusterResponse { token }))
    }

    async fn join_cluster(&self, request: Request<proto::JoinClusterRequest>) -> Answer<proto::Cluster> {
        let proto::JoinClusterRequest { token, name } = request.into_inner();
        match token.as_str() {
            "efj1-0" => Ok(Response::new(cluster(&name))),
            _ => Err(Status::failed_precondition("the token has been used; ask for a new one")),
        }
    }

    async fn revoke_member(
        &self,
        request: Request<proto::RevokeMemberRequest>,
    ) -> Answer<proto::RevokeMemberResponse> {
        match request.into_inner().name.as_str() {
            "hall" => Ok(Response::new(proto::RevokeMemberResponse {})),
            name => Err(Status::not_found(format!("there is no member `{name}`"))),
        }
    }

    async fn set_policy(
        &self,
        _: Request<proto::SetPolicyRequest>,
    ) -> Result<Response<proto::SetPolicyResponse>, Status> {
        Err(Status::unimplemented("not part of these tests"))
    }

    async fn remove_policy(
        &self,
        _: Request<proto::RemovePolicyRequest>,
    ) -> Result<Response<proto::RemovePolicyResponse>, Status> {
        Err(Status::unimplemented("not part of these tests"))
    }

    async fn get_policy(
        &self,
        _: Request<proto::GetPolicyRequest>,
    ) -> Result<Response<proto::Policy>, Status> {
        Err(Status::unimplemented("not part of these tests"))
    }

    async fn explain_placement(
        &self,
        _: Request<proto::ExplainPlacementRequest>,
    ) -> Result<Response<proto::ExplainPlacementResponse>, Status> {
        Err(Status::unimplemented("not part of these tests"))
    }

    async fn get_cluster(&self, _: Request<proto::GetClusterRequest>) -> Answer<proto::Cluster> {
        Ok(Response::new(cluster("door")))
    }

    async fn trace(&self, request: Request<proto::TraceRequest>) -> Answer<proto::TraceResponse> {
        Err(Status::not_found(format!("nothing is remembered of `{}`", request.into_inner().id)))
    }

    async fn set_secret(
        &self,
        request: Request<proto::SetSecretRequest>,
    ) -> Answer<proto::SetSecretResponse> {
        let proto::SetSecretRequest { name, value, app, .. } = request.into_inner();
        self.secrets.lock().unwrap().push((app, name, value));
        Ok(Response::new(proto::SetSecretResponse {}))
    }

    async fn list_secrets(
        &self,
        _: Request<proto::ListSecretsRequest>,
    ) -> Answer<proto::ListSecretsResponse> {
        let secret = |(app, name, _): &(String, String, String)| proto::Secret {
            app: app.clone(),
            name: name.clone(),
        };
        let secrets = self.secrets.lock().unwrap().iter().map(secret).collect();
        Ok(Response::new(proto::ListSecretsResponse { secrets }))
    }

    async fn remove_secret(
        &self,
        request: Request<proto::RemoveSecretRequest>,
    ) -> Answer<proto::RemoveSecretResponse> {
        Err(Status::not_found(format!("the secret `{}` is not set", request.into_inner().name)))
    }

    async fn add_user(&self, request: Request<proto::AddUserRequest>) -> Answer<proto::AddUserResponse> {
        let proto::AddUserRequest { name, password, .. } = request.into_inner();
        self.users.lock().unwrap().push((name, password));
        Ok(Response::new(proto::AddUserResponse {}))
    }

    async fn set_password(
        &self,
        request: Request<proto::SetPasswordRequest>,
    ) -> Answer<proto::SetPasswordResponse> {
        Err(Status::not_found(format!("there is no user `{}`", request.into_inner().name)))
    }

    async fn set_role(&self, request: Request<proto::SetRoleRequest>) -> Answer<proto::SetRoleResponse> {
        Err(Status::not_found(format!("there is no user `{}`", request.into_inner().name)))
    }

    async fn remove_user(
        &self,
        request: Request<proto::RemoveUserRequest>,
    ) -> Answer<proto::RemoveUserResponse> {
        let name = request.into_inner().name;
        self.users.lock().unwrap().retain(|(user, _)| *user != name);
        Ok(Response::new(proto::RemoveUserResponse {}))
    }

    async fn list_users(&self, _: Request<proto::ListUsersRequest>) -> Answer<proto::ListUsersResponse> {
        let names = self.users.lock().unwrap().iter().map(|(name, _)| name.clone()).collect();
        // As a node before roles.
        Ok(Response::new(proto::ListUsersResponse { names, users: Vec::new() }))
    }

    async fn list_queues(
        &self,
        request: Request<proto::ListQueuesRequest>,
    ) -> Answer<proto::ListQueuesResponse> {
        let filter = request.into_inner().filter.unwrap_or_else(|| "a/+".into());
        let queue = proto::Queue {
            filter,
            subscribers: 1,
            messages_in: 2,
            messages_out: 3,
            dropped: 4,
            waiting: 5,
            rate: 6.25,
        };
        Ok(Response::new(proto::ListQueuesResponse { queues: vec![queue], total: 1 }))
    }

    async fn reload(&self, _: Request<proto::ReloadRequest>) -> Answer<proto::ReloadResponse> {
        Err(Status::failed_precondition("access.acl acl.toml is not valid:\nline 2"))
    }
}

#[tonic::async_trait]
impl History for Server {
    type EventsStream = Pin<Box<dyn Stream<Item = Result<history::Event, Status>> + Send>>;

    async fn get(&self, request: Request<history::GetRequest>) -> Answer<history::GetResponse> {
        let step_ms = if request.into_inner().week { 300_000 } else { 5_000 };
        let sample = |number| history::Sample {
            unix_ms: u64::from(step_ms) * number,
            invocations: number as f64,
            ..Default::default()
        };
        Ok(Response::new(history::GetResponse { step_ms, samples: (1..=3).map(sample).collect() }))
    }

    async fn events(&self, request: Request<history::EventsRequest>) -> Answer<Self::EventsStream> {
        let event = |number| {
            Ok(history::Event { number, kind: "deploy".into(), text: FORGED.into(), ..Default::default() })
        };
        let events: Vec<_> = (1..=u64::from(request.into_inner().tail)).map(event).collect();
        Ok(Response::new(Box::pin(tokio_stream::iter(events))))
    }
}

struct Fixture {
    server: Server,
    address: SocketAddr,
    folder: tempfile::TempDir,
}

impl Fixture {
    async fn start() -> Self {
        Self::proving(Some(TOKEN)).await
    }

    /// Takes [`TOKEN`], and proves that it has `proven`; an older node proves nothing.
    async fn proving(proven: Option<&'static str>) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = Server::default();
        #[allow(clippy::result_large_err)]
        let check = |request: Request<()>| match request.metadata().get("authorization") {
            Some(value) if value.as_bytes() == format!("Bearer {TOKEN}").as_bytes() => Ok(request),
            Some(_) => Err(Status::unauthenticated("wrong token")),
            None => Err(Status::unauthenticated("no token")),
        };
        let control = ControlServer::with_interceptor(server.clone(), check);
        let history = HistoryServer::with_interceptor(server.clone(), check);
        let messages = MessagesServer::with_interceptor(server.clone(), check);
        let mut routes = tonic::service::Routes::new(control)
            .add_service(history)
            .add_service(messages)
            .into_axum_router();
        if let Some(token) = proven {
            let prove = async move |uri: axum::http::Uri| {
                let nonce = Nonce::from_path(uri.path()).unwrap();
                [(PROOF_HEADER, proof_of_token(token, nonce, address))]
            };
            routes = routes.route("/proof/{nonce}", axum::routing::get(prove));
        }
        tokio::spawn(axum::serve(listener, routes).into_future());
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("data")).unwrap();
        std::fs::write(folder.path().join("data/token"), format!("{TOKEN}\n")).unwrap();
        Self { server, address, folder }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_edgefaas"));
        command
            .args(args)
            .current_dir(self.path())
            .stdin(Stdio::null())
            .env_remove("EDGEFAAS_TOKEN")
            .env("EDGEFAAS_NODE", self.address.to_string())
            .env("EDGEFAAS_DATA_DIR", self.path().join("data"));
        command
    }

    async fn run(&self, args: &[&str]) -> (i32, String, String) {
        finish(self.command(args)).await
    }

    async fn json(&self, args: &[&str]) -> serde_json::Value {
        let (code, stdout, stderr) = self.run(&[args, &["-o", "json"]].concat()).await;
        assert_eq!(code, 0, "{stderr}");
        serde_json::from_str(&stdout).unwrap()
    }
}

async fn finish(mut command: Command) -> (i32, String, String) {
    let Output { status, stdout, stderr } = command.output().await.unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    (status.code().unwrap(), text(stdout), text(stderr))
}

#[tokio::test]
async fn the_token_is_found_given_or_missed() {
    let fixture = Fixture::start().await;
    assert_eq!(fixture.run(&["list"]).await.0, 0, "the token of the default data directory");

    let (code, _, stderr) = fixture.run(&["list", "--token", "wrong"]).await;
    assert_eq!(code, 4);
    assert!(stderr.contains("wrong token") && stderr.contains("--token"), "{stderr}");

    let elsewhere = fixture.path().join("elsewhere");
    let mut command = fixture.command(&["list"]);
    command.env("EDGEFAAS_DATA_DIR", &elsewhere);
    let (code, _, stderr) = finish(command).await;
    assert_eq!(code, 4);
    assert!(stderr.contains("no token"), "{stderr}");

    let mut command = fixture.command(&["list", "--data-dir", "data"]);
    command.env("EDGEFAAS_DATA_DIR", &elsewhere);
    assert_eq!(finish(command).await.0, 0);
    let mut command = fixture.command(&["list"]);
    command.env("EDGEFAAS_DATA_DIR", &elsewhere).env("EDGEFAAS_TOKEN", TOKEN);
    assert_eq!(finish(command).await.0, 0);
}

#[tokio::test]
async fn a_found_token_is_sent_only_after_a_proof() {
    // Both fixtures take the token, so that sending it would succeed.
    for (proven, words) in [(Some("another"), "is not the node of the token"), (None, "an older edgefaas")]
    {
        let fixture = Fixture::proving(proven).await;
        let (code, stdout, stderr) = fixture.run(&["list"]).await;
        assert_eq!((code, stdout.as_str()), (4, ""), "{stderr}");
        assert!(stderr.contains(words) && stderr.contains("was not sent"), "{stderr}");
        let folder = DevFolder::new(&fixture, TOKEN, 0o600);
        let (code, _, stderr) = finish(folder.command(&fixture, &["list"])).await;
        assert_eq!(code, 4, "{stderr}");
        assert!(stderr.contains(words) && stderr.contains("dev.json"), "{stderr}");
        assert_eq!(fixture.run(&["list", "--token", TOKEN]).await.0, 0, "but a token that is given");
    }
}

#[tokio::test]
async fn a_program_that_speaks_no_http_gets_no_token() {
    let fixture = Fixture::start().await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = listener.local_addr().unwrap().to_string();
    let server = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut heard = [0; 24];
        tokio::io::AsyncReadExt::read_exact(&mut stream, &mut heard).await.unwrap();
        tokio::io::AsyncWriteExt::write_all(&mut stream, b"220 hello\r\n").await.unwrap();
        // It goes on listening: what it said has arrived before its connection ends.
        let _ = tokio::io::AsyncReadExt::read_to_end(&mut stream, &mut Vec::new()).await;
    });
    let (code, _, stderr) = fixture.run(&["list", "--node", &url]).await;
    assert_eq!(code, 4, "{stderr}");
    assert!(stderr.contains("gave no proof") && stderr.contains("was not sent"), "{stderr}");
    server.await.unwrap();
}

#[tokio::test]
async fn a_connection_that_is_closed_before_the_proof_is_not_a_wrong_node() {
    let fixture = Fixture::start().await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = listener.local_addr().unwrap().to_string();
    let accepted = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let (count, node) = (accepted.clone(), fixture.address);
    // Closes some connections, as a node with many silent ones does.
    let server = async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            if count.fetch_add(1, std::sync::atomic::Ordering::Relaxed) < 5 {
                continue;
            }
            let mut node = tokio::net::TcpStream::connect(node).await.unwrap();
            let _ = tokio::io::copy_bidirectional(&mut stream, &mut node).await;
        }
    };
    let server = tokio::spawn(server);
    let (code, _, stderr) = fixture.run(&["list", "--node", &url]).await;
    assert_eq!(code, 3, "{stderr}");
    assert!(stderr.contains("closed the connection") && stderr.contains("was not sent"), "{stderr}");
    // The sixth asked whether this is another port of a node.
    assert_eq!(accepted.load(std::sync::atomic::Ordering::Relaxed), 6);
    // The proof of a node behind another port is not valid; but the program was asked.
    let (code, _, stderr) = fixture.run(&["list", "--node", &url]).await;
    assert_eq!(code, 4, "{stderr}");
    assert!(stderr.contains("is not the node of the token"), "{stderr}");
    server.abort();
}

/// `dev.json` as `edgefaas dev` writes it, below the fixture's folder.
struct DevFolder {
    path: PathBuf,
    /// A process of the same program, which waits for its stdin.
    _process: Child,
}

impl DevFolder {
    fn new(fixture: &Fixture, token: &str, mode: u32) -> Self {
        let process = fixture
            .command(&["invoke", "echo", "-d", "-"])
            .stdin(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let path = fixture.path().join("app/functions");
        std::fs::create_dir_all(&path).unwrap();
        std::fs::create_dir_all(fixture.path().join("app/.edgefaas")).unwrap();
        let node = serde_json::json!({
            "control": format!("http://{}", fixture.address), "token": token, "pid": process.id().unwrap(),
        });
        let file = fixture.path().join("app/.edgefaas/dev.json");
        std::fs::write(&file, node.to_string()).unwrap();
        std::fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
        Self { path, _process: process }
    }

    /// A command in a folder of the app that knows of no other node or token.
    fn command(&self, fixture: &Fixture, args: &[&str]) -> Command {
        let mut command = fixture.command(args);
        command.current_dir(&self.path).env_remove("EDGEFAAS_NODE").env("EDGEFAAS_DATA_DIR", "nowhere");
        command
    }
}

#[tokio::test]
async fn commands_inside_the_folder_of_dev_find_its_node() {
    let fixture = Fixture::start().await;
    let folder = DevFolder::new(&fixture, TOKEN, 0o600);
    let (code, stdout, stderr) = finish(folder.command(&fixture, &["list"])).await;
    assert_eq!(code, 0, "{stderr}");
    assert!(stdout.contains("greenhouse"), "{stdout}");
    let (code, _, stderr) = finish(folder.command(&fixture, &["list", "--token", TOKEN])).await;
    assert_eq!(code, 0, "its own token may be given too: {stderr}");
}

#[tokio::test]
async fn a_file_that_others_could_have_written_names_no_node() {
    let fixture = Fixture::start().await;
    let folder = DevFolder::new(&fixture, TOKEN, 0o644);
    // With the file's token the fixture would answer; whatever listens at the default address does not.
    let (code, stdout, stderr) = finish(folder.command(&fixture, &["list"])).await;
    assert!(code == 3 || code == 4, "{code}: {stdout}{stderr}");
}

#[tokio::test]
async fn a_given_token_is_not_sent_to_a_node_that_was_found() {
    let fixture = Fixture::start().await;
    let folder = DevFolder::new(&fixture, "another", 0o600);
    // The fixture takes this token, so that sending it would succeed.
    let mut command = folder.command(&fixture, &["list"]);
    command.env("EDGEFAAS_TOKEN", TOKEN);
    let (code, stdout, stderr) = finish(command).await;
    assert_eq!((code, stdout.as_str()), (4, ""), "{stderr}");
    assert!(stderr.contains("was not sent") && stderr.contains("--node URL"), "{stderr}");

    let named = ["list", "--token", TOKEN, "--node", &fixture.address.to_string()];
    assert_eq!(finish(folder.command(&fixture, &named)).await.0, 0, "but to one that is named");
}

#[tokio::test]
async fn what_functions_say_is_escaped_for_people_only() {
    let fixture = Fixture::start().await;
    let (_, stdout, _) = fixture.run(&["logs", "forger"]).await;
    assert!(
        stdout.contains("INFO  forger  a\\u{1b}[2J\\r\n    00:00:00.000 INFO  other  forged\n"),
        "{stdout}"
    );
    let (_, stdout, _) = fixture.run(&["logs", "forger", "-o", "json"]).await;
    let line: serde_json::Value = serde_json::from_str(stdout.lines().next().unwrap()).unwrap();
    assert_eq!(line["message"], FORGED);

    let (code, _, stderr) = fixture.run(&["invoke", "forger"]).await;
    assert_eq!(code, 5);
    assert!(
        stderr.contains("(500 Function failed): a\\u{1b}[2J\\r\n    00:00:00.000 INFO  other  forged; see"),
        "{stderr}"
    );
}

#[tokio::test]
async fn invocations_print_the_reply_and_exit_by_their_end() {
    let fixture = Fixture::start().await;
    for (args, code, stdout) in [
        (vec!["invoke", "echo", "-d", "hi"], 0, "hi\n"),
        (vec!["invoke", "echo", "-d", "-5"], 0, "-5\n"),
        (vec!["invoke", "json"], 0, "{\"a\":[1]}\n"),
        (vec!["invoke", "nothing"], 0, ""),
        (vec!["invoke", "fails"], 5, ""),
        (vec!["invoke", "absent"], 6, ""),
        (vec!["invoke", "busy"], 8, ""),
        (vec!["invoke", "draining"], 8, ""),
    ] {
        let result = fixture.run(&args).await;
        assert_eq!((result.0, result.1.as_str()), (code, stdout), "{args:?}: {}", result.2);
    }
    let raw = fixture.command(&["invoke", "raw"]).output().await.unwrap();
    assert_eq!(raw.stdout, [0, 255], "bytes are not touched");

    let (_, _, stderr) = fixture.run(&["invoke", "fails"]).await;
    assert!(stderr.contains("`fails` failed (500 Function failed): TypeError"), "{stderr}");
    let (_, _, stderr) = fixture.run(&["invoke", "absent"]).await;
    assert_eq!(stderr, "error: no function `absent`; there is `echo`\n");

    std::fs::write(fixture.path().join("body"), "from a file").unwrap();
    assert_eq!(fixture.run(&["invoke", "echo", "-d", "@body"]).await.1, "from a file\n");
    let mut command = fixture.command(&["invoke", "echo", "-d", "-"]);
    command.stdin(std::fs::File::open(fixture.path().join("body")).unwrap());
    assert_eq!(finish(command).await.1, "from a file\n");

    let value = fixture.json(&["invoke", "json"]).await;
    assert_eq!(value["reply"], serde_json::json!({ "kind": "json", "json": { "a": [1] } }));
    assert_eq!(value["timing"]["exec_us"], 3);
    let (code, stdout, _) = fixture.run(&["invoke", "fails", "-o", "json"]).await;
    assert_eq!(code, 5);
    let value: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(value["failure"]["status"], 500);
}

#[tokio::test]
async fn a_deploy_sends_manifest_and_sources() {
    let fixture = Fixture::start().await;
    std::fs::write(fixture.path().join("hello.js"), "export default () => 1;\n").unwrap();
    let (code, stdout, stderr) = fixture.run(&["deploy", "hello.js", "--allow", "publish=a/#"]).await;
    assert_eq!(code, 0, "{stderr}");
    assert!(stdout.starts_with("hello 0123456789ab is live\n"), "{stdout}");
    assert!(stdout.contains("comfort") && stdout.contains("mqtt a/+"), "{stdout}");
    assert!(stderr.contains("warning: `comfort` has no triggers"), "{stderr}");
    {
        let deployed = fixture.server.deployed.lock().unwrap();
        assert!(deployed[0].manifest.contains("publish = [\"a/#\"]"), "{}", deployed[0].manifest);
        let Some(proto::artifact::Source::Modules(graph)) = &deployed[0].artifacts[0].source else {
            panic!("a script is sent as modules");
        };
        assert_eq!(graph.entry, "hello.js");
        assert_eq!(graph.modules[0].source, "export default () => 1;\n");
    }

    std::fs::write(fixture.path().join("taken.js"), "export default () => 1;\n").unwrap();
    let (code, _, stderr) = fixture.run(&["deploy", "taken.js"]).await;
    assert_eq!(code, 7);
    assert!(stderr.contains("belongs to the app `other`"), "{stderr}");
}

#[tokio::test]
async fn lists_logs_status_and_the_rest() {
    let fixture = Fixture::start().await;
    let (_, stdout, _) = fixture.run(&["list"]).await;
    // The first table has the apps with their revisions.
    assert!(stdout.starts_with("APP") && stdout.contains("EARLIER REVISIONS"), "{stdout}");
    let mut lines = stdout.lines().skip_while(|line| !line.contains("FUNCTION"));
    assert_eq!(
        lines.next().unwrap().split_whitespace().collect::<Vec<_>>(),
        [
            "APP",
            "FUNCTION",
            "KIND",
            "SIZE",
            "INVOCATIONS",
            "FAILED",
            "REJECTED",
            "PENDING",
            "STATE",
            "TRIGGERS"
        ]
    );
    assert_eq!(
        lines.next().unwrap().split_whitespace().collect::<Vec<_>>(),
        ["greenhouse", "comfort", "javascript", "2.0", "KiB", "7", "1", "2", "3", "ok", "mqtt", "a/+"]
    );
    let list = fixture.json(&["list"]).await;
    assert_eq!(list["apps"][0]["functions"][0]["invocations"], 7);
    assert_eq!(list["apps"][0]["functions"][0]["rejected"], 2);
    assert_eq!(list["apps"][0]["previous_revisions"][0], "fedcba");

    let (_, stdout, _) = fixture.run(&["logs", "comfort", "--tail", "5"]).await;
    assert!(stdout.contains("INFO  comfort  first\n"), "{stdout}");
    assert!(stdout.contains("comfort  tail 5\n"), "{stdout}");
    let (_, stdout, _) = fixture.run(&["logs", "-o", "json"]).await;
    let messages: Vec<serde_json::Value> =
        stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(messages.len(), 2);
    assert_eq!(messages[1]["message"], "tail 0");

    let (_, stdout, _) = fixture.run(&["status"]).await;
    assert!(stdout.contains("running for 1m 1s") && stdout.contains("9.9.9"), "{stdout}");
    assert!(
        stdout.starts_with("warning   failing: 3 of 5 failed: a\\u{1b}[2J\\r\\n00:00:00.000"),
        "{stdout}"
    );
    assert!(stdout.contains("remedy: `edgefaas logs comfort`\n") && stdout.contains("61.2 °C"), "{stdout}");
    let status = fixture.json(&["status"]).await;
    assert_eq!(
        (&status["version"], &status["temperature_millicelsius"]),
        (&"9.9.9".into(), &61_250.into())
    );
    let warning = &status["warnings"][0];
    assert_eq!((&warning["code"], &warning["severity"]), (&"function-failing".into(), &"failing".into()));

    assert_eq!(
        fixture.run(&["rollback", "a", "--to", "fed"]).await.1.lines().next(),
        Some("a fed is live; `--to` can name fedcba")
    );
    assert_eq!(
        fixture.run(&["rm", "greenhouse"]).await.1,
        "greenhouse is removed, with its functions comfort\n"
    );
    assert_eq!(fixture.run(&["rm", "absent"]).await.0, 6);
}

#[tokio::test]
async fn history_and_events_are_shown() {
    let fixture = Fixture::start().await;
    let (_, stdout, stderr) = fixture.run(&["history"]).await;
    assert!(stdout.contains(", each 5s\n") && stdout.contains("invocations"), "{stdout}{stderr}");
    assert!(stdout.contains("3.0/s") && stdout.contains('█'), "{stdout}");
    let week = fixture.json(&["history", "--week"]).await;
    assert_eq!((&week["step_ms"], &week["samples"][2]["invocations"]), (&300_000.into(), &3.0.into()));

    let (code, stdout, _) = fixture.run(&["events", "--tail", "2"]).await;
    assert_eq!(code, 0);
    let lines: Vec<_> = stdout.lines().collect();
    assert_eq!(lines.len(), 4, "{stdout}");
    assert!(lines[0].contains(r" deploy       a\u{1b}[2J\r"), "{stdout}");
    assert!(lines[1].starts_with("    00:00:00.000 INFO"), "{stdout}");
    let (code, stdout, stderr) = fixture.run(&["events", "--tail", "1", "--follow", "-o", "json"]).await;
    assert_eq!(code, 3, "the node has gone: {stderr}");
    let event: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!((&event["number"], &event["kind"]), (&1.into(), &"deploy".into()));
}

#[tokio::test]
async fn queues_are_listed() {
    let fixture = Fixture::start().await;
    let (_, stdout, _) = fixture.run(&["queues"]).await;
    let cells: Vec<&str> = stdout.lines().last().unwrap().split_whitespace().collect();
    assert_eq!(cells, ["a/+", "1", "2", "3", "5", "4", "6.2"]);
    let json = fixture.json(&["queues", "b/#"]).await;
    assert_eq!((&json["queues"][0]["filter"], &json["queues"][0]["waiting"]), (&"b/#".into(), &5.into()));
}

#[tokio::test]
async fn a_secret_is_read_from_stdin() {
    let fixture = Fixture::start().await;
    std::fs::write(fixture.path().join("value"), "s3cret\n").unwrap();
    let mut command = fixture.command(&["secrets", "set", "api_key", "--app", "shop"]);
    command.stdin(std::fs::File::open(fixture.path().join("value")).unwrap());
    let (code, stdout, stderr) = finish(command).await;
    assert_eq!((code, stdout.as_str()), (0, "api_key of shop is set\n"), "{stderr}");
    assert_eq!(
        *fixture.server.secrets.lock().unwrap(),
        [("shop".into(), "api_key".into(), "s3cret".into())]
    );
    assert_eq!(fixture.run(&["secrets", "list"]).await.1, "shop api_key\n");
    assert_eq!(
        fixture.run(&["secrets", "rm", "api_key", "--app", "shop"]).await.0,
        6,
        "as the server says"
    );
    assert_eq!(
        fixture.run(&["secrets", "set", "empty", "--app", "shop"]).await.0,
        2,
        "an empty value is a mistake"
    );
}

#[tokio::test]
async fn clusters_are_made_joined_and_shown() {
    let node = Fixture::start().await;
    let (code, init, stderr) = node.run(&["cluster", "init", "--name", "door"]).await;
    assert_eq!(code, 0, "{stderr}");
    assert!(init.contains("door is the first member of cluster c1"), "{init}");
    assert!(init.contains("edgefaas cluster join efj1-0"), "{init}");
    assert_eq!(node.run(&["cluster", "token", "--life", "10m"]).await.1, "efj1-600000\n");
    assert_eq!(node.run(&["cluster", "join", "efj1-0", "--name", "x"]).await.0, 0);
    let (code, _, used) = node.run(&["cluster", "join", "efj1-1"]).await;
    assert_eq!((code, used.contains("--token")), (7, false), "{used}");
    let revoked = node.run(&["cluster", "revoke", "hall"]).await.1;
    assert_eq!(revoked, "hall is revoked\n");
    assert_eq!(node.run(&["cluster", "revoke", "nobody"]).await.0, 6);
    let (_, nodes, stderr) = node.run(&["nodes"]).await;
    for part in ["this node", "~east", "000…", "13 %", "connected", "420 us", "away 1h 2m"] {
        assert!(nodes.contains(part), "no {part:?} in {nodes}");
    }
    assert!(nodes.lines().all(|line| line.chars().count() <= 100), "{nodes}");
    assert!(stderr.contains("the clock of hall differs by -90.5 s"), "{stderr}");
    let wide = node.run(&["nodes", "--wide"]).await.1;
    for part in
        ["this node, has the key", "tcp for 1m 1s", "/ip4/10.0.0.2/tcp/7071", "2.0 KiB in", "3 of 4"]
    {
        assert!(wide.contains(part), "no {part:?} in {wide}");
    }
    let one = node.run(&["nodes", "hall"]).await.1;
    for part in
        ["east (measured)", "00000000000000ab", "shop  0123456789ab  failed: no\\nmemory", "3 of 4 free"]
    {
        assert!(one.contains(part), "no {part:?} in {one}");
    }
    assert_eq!(node.run(&["nodes", "nobody"]).await.0, 6);
    assert_eq!(node.json(&["nodes", "hall"]).await["status"]["load"]["permille"], 123);
    let json = node.json(&["nodes"]).await;
    assert_eq!(json["members"][0]["peer"]["rtt_us"], 420);
    assert!(json["members"][1]["peer"].is_null());
}
