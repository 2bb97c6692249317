//! Workflows and services: documents, tokens, messages of AsyncAPI, versions.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use edgefaas_api::control as proto;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::support::{Mqtt5, TestNode, in_time, json as body_of};

/// An API with its document and an authorization server.
struct Server {
    address: SocketAddr,
    /// The tokens that were given.
    tokens: Arc<AtomicU64>,
}

const DOCUMENT: &str = r#"{
  "swagger": "2.0", "basePath": "/api",
  "paths": {"/pets/{id}": {"get": {"operationId": "getPet", "parameters": [
    {"name": "id", "in": "path", "required": true, "type": "integer"},
    {"name": "fields", "in": "query", "type": "array"}]}}}
}"#;

impl Server {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let tokens = Arc::<AtomicU64>::default();
        let given = tokens.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let given = given.clone();
                let service = service_fn(move |request| answer(request, address, given.clone()));
                tokio::spawn(
                    hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), service),
                );
            }
        });
        Self { address, tokens }
    }
}

async fn answer(
    request: Request<Incoming>,
    address: SocketAddr,
    given: Arc<AtomicU64>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let (parts, body) = request.into_parts();
    let body = String::from_utf8(body.collect().await.unwrap().to_bytes().to_vec()).unwrap();
    let bearer =
        parts.headers.get("authorization").and_then(|value| value.to_str().ok()).unwrap_or_default();
    let reply = |status: u16, body: Value| {
        Response::builder().status(status).body(Full::from(body.to_string())).unwrap()
    };
    Ok(match parts.uri.path() {
        "/api.json" => Response::new(Full::from(DOCUMENT)),
        "/auth/.well-known/openid-configuration" => {
            reply(200, json!({"token_endpoint": format!("http://{address}/auth/oauth2/token")}))
        }
        "/auth/oauth2/token" if body.contains("client_secret=right") || body.contains("password=right") => {
            let number = given.fetch_add(1, Ordering::Relaxed) + 1;
            reply(
                200,
                json!({"access_token": format!("t{number}"), "token_type": "bearer", "expires_in": 3600}),
            )
        }
        "/auth/oauth2/token" => reply(401, json!({"error": "invalid_client", "error_description": body})),
        "/closed" if bearer == "Bearer t1" => reply(200, json!("open")),
        "/closed" => reply(401, json!("closed")),
        path => reply(200, json!({"path": path, "query": parts.uri.query(), "authorization": bearer})),
    })
}

struct File<'f>(&'f str, &'f str);

async fn try_deploy(
    node: &mut TestNode,
    permissions: &str,
    files: &[File<'_>],
) -> Result<(), tonic::Status> {
    let request = proto::DeployRequest {
        manifest: format!("app = \"t\"\n[workflows]\nfiles = [\"*.yaml\", \"*.json\"]\n{permissions}"),
        workflows: files
            .iter()
            .map(|File(file, text)| proto::WorkflowFile {
                file: (*file).to_owned(),
                text: (*text).to_owned(),
            })
            .collect(),
        ..Default::default()
    };
    node.control.deploy(request).await.map(drop)
}

fn flow(name: &str, version: &str, rest: &str) -> String {
    format!("document: {{ dsl: '1.0.3', namespace: test, name: {name}, version: '{version}' }}\n{rest}")
}

async fn run(node: &TestNode, name: &str, input: Value) -> (u16, Value) {
    let reply = in_time(node.post(&format!("/workflows/{name}"), input.to_string())).await;
    (reply.status().as_u16(), body_of(&reply))
}

#[tokio::test]
async fn operations_of_openapi_documents() {
    let server = Server::start().await;
    let mut node = TestNode::start().await;
    let call = |document: &str| {
        format!(
            "do:\n  - get:\n      call: openapi\n      with:\n        document: {{ endpoint: '{document}' }}\n        \
             operationId: getPet\n        parameters: {{ id: '${{ .id }}', fields: [a, b] }}\n        output: response\n"
        )
    };
    let at = server.address;
    let with_host = DOCUMENT
        .replace("\"basePath\"", &format!("\"host\": \"{at}\", \"schemes\": [\"http\"], \"basePath\""));
    let permissions = format!(
        "[workflows.far.permissions]\nhttp = [\"{at}\"]\n[workflows.near.permissions]\nhttp = [\"{at}\"]\n"
    );
    let files = [
        ("far.yaml", flow("far", "1.0.0", &call(&format!("http://{at}/api.json")))),
        ("near.yaml", flow("near", "1.0.0", &call("pets.json"))),
        ("forbidden.yaml", flow("forbidden", "1.0.0", &call(&format!("http://{at}/api.json")))),
        ("pets.json", with_host),
    ];
    let files: Vec<File<'_>> = files.iter().map(|(file, text)| File(file, text)).collect();
    try_deploy(&mut node, &permissions, &files).await.expect("the deploy succeeds");
    for name in ["far", "near"] {
        let (status, found) = run(&node, name, json!({"id": 7})).await;
        assert_eq!(status, 200, "{name}: {found}");
        assert_eq!(
            found["content"],
            json!({"path": "/api/pets/7", "query": "fields=a%2Cb", "authorization": ""})
        );
        assert_eq!(found["request"]["method"], json!("GET"));
        assert_eq!(found["request"]["uri"], json!(format!("http://{at}/api/pets/7?fields=a%2Cb")));
    }
    let (status, error) = run(&node, "near", json!({})).await;
    assert!(status >= 400 && error["detail"].as_str().unwrap().contains("parameter `id`"), "{error}");
    let (status, error) = run(&node, "forbidden", json!({"id": 7})).await;
    assert_eq!(status, 403, "{error}");

    let unknown = flow("near", "1.0.0", &call("pets.json").replace("getPet", "getPets"));
    let refused =
        try_deploy(&mut node, "", &[File("near.yaml", &unknown), File("pets.json", DOCUMENT)]).await;
    assert!(refused.unwrap_err().message().contains("did you mean `getPet`?"));
    let missing = flow("near", "1.0.0", &call("pets.json"));
    let refused = try_deploy(&mut node, "", &[File("near.yaml", &missing)]).await;
    assert!(refused.unwrap_err().message().contains("the app has no such file"));
}

#[tokio::test]
async fn tokens_are_asked_for_once_and_secrets_stay_secret() {
    let server = Server::start().await;
    let mut node = TestNode::start().await;
    let at = server.address;
    let call = |path: &str, policy: &str| {
        format!(
            "use: {{ secrets: [key] }}\ndo:\n  - get: {{ call: http, with: {{ method: get, endpoint: {{ uri: 'http://{at}{path}', \
             authentication: {policy} }} }} }}\n"
        )
    };
    let client = |kind: &str| {
        format!(
            "{{ {kind}: {{ authority: 'http://{at}/auth', grant: client_credentials, client: {{ id: me, secret: '${{ $secrets.key }}' }} }} }}"
        )
    };
    let password = format!(
        "{{ oauth2: {{ authority: 'http://{at}/auth', grant: password, username: ada, password: '${{ $secrets.key }}', client: {{ id: me, authentication: none }} }} }}"
    );
    let flows = [
        ("a", call("/closed", &client("oauth2"))),
        ("b", call("/closed", &client("oauth2"))),
        ("oidc", call("/x", &client("oidc"))),
        ("password", call("/x", &password)),
        ("elsewhere", call("/x", &client("oauth2").replace(&at.to_string(), "other.example"))),
    ];
    let permissions: String = flows
        .iter()
        .map(|(name, _)| format!("[workflows.{name}.permissions]\nhttp = [\"{at}\"]\n"))
        .collect();
    let files: Vec<(String, String)> =
        flows.iter().map(|(name, rest)| (format!("{name}.yaml"), flow(name, "1.0.0", rest))).collect();
    let files: Vec<File<'_>> = files.iter().map(|(file, text)| File(file, text)).collect();
    try_deploy(&mut node, &permissions, &files).await.expect("the deploy succeeds");

    node.set_secret("t", "key", "wrong-hush").await;
    let (status, error) = run(&node, "a", json!({})).await;
    assert_eq!(status, 401, "{error}");
    assert!(error.to_string().contains("invalid_client") && !error.to_string().contains("hush"), "{error}");
    assert!(error.to_string().to_lowercase().contains("authentication"), "{error}");

    node.set_secret("t", "key", "right").await;
    for name in ["a", "b", "a"] {
        assert_eq!(run(&node, name, json!({})).await, (200, json!("open")), "{name}");
    }
    assert_eq!(server.tokens.load(Ordering::Relaxed), 1, "tasks of an app share a token");
    for (name, token) in [("oidc", "Bearer t2"), ("password", "Bearer t3")] {
        let (status, found) = run(&node, name, json!({})).await;
        assert_eq!((status, &found["authorization"]), (200, &json!(token)), "{found}");
    }
    let (status, error) = run(&node, "elsewhere", json!({})).await;
    assert_eq!(status, 403, "{error}");
    for name in ["a", "b", "oidc", "password", "elsewhere"] {
        let lines = node.logged(name).await;
        assert!(lines.iter().all(|line| !line.contains("hush") && !line.contains("right")), "{lines:?}");
    }
}

const LAMPS: &str = "
asyncapi: 3.0.0
servers: { here: { host: 'localhost:1883', protocol: mqtt }, away: { host: broker.example, protocol: mqtt } }
channels: { lamp: { address: 'lamps/{room}' }, lamps: { address: lamps/kitchen } }
operations: { switch: { action: send, channel: { $ref: '#/channels/lamp' } }, switched: { action: receive, channel: { $ref: '#/channels/lamps' } } }
";

#[tokio::test]
async fn operations_of_asyncapi_documents() {
    let mut node = TestNode::start().await;
    let tell = "do:\n  - tell: { call: asyncapi, with: { document: { endpoint: lamps.yaml }, operation: switch, message: { payload: '${ .on }', headers: { by: me } } } }\n";
    let hear = "do:\n  - hear: { call: asyncapi, with: { document: { endpoint: lamps.yaml }, operation: switched, \
                subscription: { filter: '${ .payload != 0 }', consume: { amount: 2 } } } }\n";
    let (tell, hear) = (flow("tell", "1.0.0", tell), flow("hear", "1.0.0", hear));
    let files = [File("tell.yaml", &tell), File("hear.yaml", &hear), File("lamps.yaml", LAMPS)];
    let permissions = "[workflows.tell.permissions]\npublish = [\"lamps/+\"]\n";
    try_deploy(&mut node, permissions, &files).await.expect("the deploy succeeds");
    let mut watcher = Mqtt5::connect(&node, "watcher").await;
    watcher.subscribe("lamps/#").await;
    let mut hearing = {
        let request = node.post("/workflows/hear", "{}");
        let telling = async {
            // A subscription hears what comes after it: a message is sent until both were heard.
            loop {
                for on in [0, 1] {
                    run(&node, "tell", json!({"room": "kitchen", "on": on})).await;
                }
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            reply = request => body_of(&reply),
            () = telling => unreachable!(),
        }
    };
    // The context of the task that sent the message is one of its headers.
    for message in hearing.as_array_mut().unwrap() {
        assert!(message["headers"].as_object_mut().unwrap().remove("traceparent").is_some());
    }
    assert_eq!(
        hearing,
        json!([{"payload": 1, "headers": {"by": "me"}}, {"payload": 1, "headers": {"by": "me"}}])
    );
    let message = watcher.message().await;
    assert_eq!(&*message.topic, b"lamps/kitchen".as_slice());
    // The room becomes one level of the topic.
    assert_eq!(run(&node, "tell", json!({"room": "a/b", "on": 1})).await.0, 200);

    let (status, error) = run(&node, "tell", json!({"on": 1})).await;
    assert!(
        status == 400 && error["detail"].as_str().unwrap().contains("needs `room`"),
        "{status} {error}"
    );
    let (status, error) = run(&node, "tell", json!({"room": [1], "on": 1})).await;
    assert!(
        status == 400 && error["detail"].as_str().unwrap().contains("as `room`, not a list"),
        "{status} {error}"
    );
    // With a constant input the deploy finds it.
    let silent = tell.replace("tell: { call:", "tell: { input: { from: { on: 1 } }, call:");
    let refused =
        try_deploy(&mut node, permissions, &[File("tell.yaml", &silent), File("lamps.yaml", LAMPS)]).await;
    let refused = refused.unwrap_err();
    assert!(
        refused.message().contains("in /do/0/tell: the address `lamps/{room}` needs `room`"),
        "{refused}"
    );

    let away = tell.replace("operation: switch,", "operation: switch, server: { name: away },");
    let refused =
        try_deploy(&mut node, permissions, &[File("tell.yaml", &away), File("lamps.yaml", LAMPS)]).await;
    let refused = refused.unwrap_err();
    assert!(refused.message().contains("another broker"), "{refused}");
}

#[tokio::test]
async fn versions_run_side_by_side() {
    let mut node = TestNode::start().await;
    let greet = |version: &str| {
        flow("greet", version, &format!("do:\n  - a: {{ set: {{ version: '{version}' }} }}\n"))
    };
    let runs = |rest: &str| format!("do:\n  - a: {{ run: {{ workflow: {{ name: greet{rest} }} }} }}\n");
    let files = [
        ("1.yaml", greet("1.9.0")),
        ("2.yaml", greet("1.10.0")),
        ("3.yaml", greet("2.0.0-rc.1")),
        ("old.yaml", flow("old", "1.0.0", &runs(", namespace: test, version: '1.9.0'"))),
        ("latest.yaml", flow("latest", "1.0.0", &runs(", version: latest"))),
        ("none.yaml", flow("none", "1.0.0", &runs(", version: '3.0.0'"))),
        ("other.yaml", flow("other", "1.0.0", &runs(", namespace: others"))),
    ];
    let files: Vec<File<'_>> = files.iter().map(|(file, text)| File(file, text)).collect();
    try_deploy(&mut node, "", &files).await.expect("the deploy succeeds");
    for (name, version) in
        [("greet", "2.0.0-rc.1"), ("latest", "2.0.0-rc.1"), ("old", "1.9.0"), ("greet:1.10.0", "1.10.0")]
    {
        assert_eq!(run(&node, name, json!({})).await, (200, json!({"version": version})), "{name}");
    }
    for (name, wanted) in [("none", "not deployed in version 3.0.0"), ("other", "in the namespace `test`")]
    {
        let (status, error) = run(&node, name, json!({})).await;
        assert!(status == 404 && error["detail"].as_str().unwrap().contains(wanted), "{status} {error}");
    }
    let (first, second) = (greet("1"), greet("2"));
    let refused = try_deploy(&mut node, "", &[File("1.yaml", &first), File("2.yaml", &second)]).await;
    assert!(refused.unwrap_err().message().contains("not a semantic version"));
    let same = greet("1.0.0");
    let refused = try_deploy(&mut node, "", &[File("1.yaml", &same), File("2.yaml", &same)]).await;
    assert!(refused.unwrap_err().message().contains("of this version is in"));
}

#[tokio::test]
async fn lifecycle_events_have_the_data_of_the_specification() {
    let mut node = TestNode::start().await;
    let text = flow("w", "1.2.0", "do:\n  - a: { set: { b: 1 } }\n");
    try_deploy(&mut node, "", &[File("w.yaml", &text)]).await.expect("the deploy succeeds");
    let mut watcher = Mqtt5::connect(&node, "watcher").await;
    watcher.subscribe("$faas/events/workflow/w/#").await;
    assert_eq!(run(&node, "w", json!({"x": 1})).await.0, 200);
    let mut events = std::collections::BTreeMap::new();
    loop {
        let message = watcher.message().await;
        let event: Value = serde_json::from_slice(&message.payload).unwrap();
        let data = event["data"].clone();
        // Changes of status have the same type; the last one stays.
        events.insert(event["type"].as_str().unwrap().to_owned(), data.clone());
        if event["type"] == "io.serverlessworkflow.workflow.status-changed.v1"
            && data["status"] == "completed"
        {
            break;
        }
    }
    let of = |kind: &str| events[&format!("io.serverlessworkflow.{kind}.v1")].clone();
    let started = of("workflow.started");
    let instance = started["instance"].as_str().unwrap().to_owned();
    let name = format!("w-{instance}.test");
    assert_eq!(started["name"], json!(name));
    assert_eq!(started["definition"], json!({"name": "w", "namespace": "test", "version": "1.2.0"}));
    assert!(started["startedAt"].as_str().unwrap().ends_with('Z'));
    let task = of("task.completed");
    assert_eq!((&task["workflow"], &task["task"]), (&json!(name), &json!("/do/0/a")));
    assert_eq!(task["output"], json!({"b": 1}));
    assert!(task["completedAt"].is_string());
    assert!(of("task.created")["createdAt"].is_string() && of("task.started")["startedAt"].is_string());
    assert_eq!(of("workflow.completed")["output"], json!({"b": 1}));
    assert_eq!(of("workflow.status-changed")["status"], json!("completed"));
}

#[tokio::test]
async fn patterns_and_conditions_on_data_start_workflows() {
    let mut node = TestNode::start().await;
    let starts = |name: &str, filter: &str| {
        let tasks = format!(
            "schedule: {{ on: {{ one: {{ with: {filter} }} }} }}\ndo:\n  - a: {{ call: asyncapi, with: {{ channel: started/{name}, message: {{ payload: '${{ {{ got: .[0].data }} }}' }} }} }}\n"
        );
        flow(name, "1.0.0", &tasks)
    };
    let pattern = starts("pattern", r"{ type: 'com\.(a|b)\..*' }");
    let data = starts("data", "{ data: '${ .alarm == true }' }");
    let files = [File("a.yaml", &pattern), File("b.yaml", &data)];
    let permissions = "[workflows.pattern.permissions]\npublish = [\"started/+\"]\n[workflows.data.permissions]\npublish = [\"started/+\"]\n";
    try_deploy(&mut node, permissions, &files).await.expect("the deploy succeeds");
    let mut client = Mqtt5::connect(&node, "client").await;
    client.subscribe("started/#").await;
    client.publish("any/topic", r#"{"alarm": true}"#).await;
    let message = client.message().await;
    assert_eq!(&*message.topic, b"started/data".as_slice());
    for (kind, number) in [("com.c.x", 1), ("com.b.x", 2)] {
        let event = json!({"specversion": "1.0", "id": "1", "source": "/s", "type": kind, "data": number});
        let properties = rumqttc::v5::mqttbytes::v5::PublishProperties {
            content_type: Some("application/cloudevents+json".to_owned()),
            ..Default::default()
        };
        client.publish_with("some/topic", &event.to_string(), properties).await;
    }
    let message = client.message().await;
    assert_eq!(
        (&*message.topic, &*message.payload),
        (b"started/pattern".as_slice(), br#"{"got":2}"#.as_slice())
    );
}
