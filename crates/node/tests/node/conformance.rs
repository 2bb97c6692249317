//! The scenarios of the specification's conformance kit that ask servers in the network, in a node: a server on this machine has
//! the paths of the public ones, and takes their place in the definitions.

#[path = "../../../workflow/tests/conformance/steps.rs"]
mod steps;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::Path;

use bytes::Bytes;
use edgefaas_api::control as proto;
use gherkin::Step;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use steps::{Outcome, docstring, needs_network, scenarios, text_of, yaml};
use tokio::net::TcpListener;

use crate::support::{TestNode, in_time, json as body_of};

/// The servers that the kit names.
const SERVERS: [&str; 2] = ["https://petstore.swagger.io", "https://httpbin.org"];
/// Scenarios of the kit that ask them. The other 12 run without a node.
const SCENARIOS: usize = 9;

/// The document of the pet store, with the operations that the kit calls.
const DOCUMENT: &str = r#"{
  "swagger": "2.0", "basePath": "/v2",
  "paths": {
    "/pet/findByStatus": {"get": {"operationId": "findPetsByStatus", "parameters": [
      {"name": "status", "in": "query", "required": true, "type": "array", "collectionFormat": "multi"}]}},
    "/pet/{petId}": {"get": {"operationId": "getPetById", "parameters": [
      {"name": "petId", "in": "path", "required": true, "type": "integer"}]}}
  }
}"#;

async fn server() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(
                hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service_fn(answer)),
            );
        }
    });
    address
}

async fn answer(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let pet = |id: u64| json!({"id": id, "name": format!("pet {id}"), "status": "available"});
    let reply = |status: u16, body: String| {
        let reply = Response::builder().status(status).header("content-type", "application/json");
        reply.body(Full::from(body)).unwrap()
    };
    let parts: Vec<&str> = request.uri().path().split('/').skip(1).collect();
    let query = request.uri().query().unwrap_or_default();
    let authorization = request.headers().get("authorization").and_then(|value| value.to_str().ok());
    Ok(match parts.as_slice() {
        ["v2", "swagger.json"] => reply(200, DOCUMENT.to_owned()),
        ["v2", "pet", "findByStatus"] if query == "status=available" => {
            reply(200, json!([pet(1), pet(2)]).to_string())
        }
        ["v2", "pet", id] => match id.parse() {
            Ok(id) => reply(200, pet(id).to_string()),
            Err(_) => reply(404, json!({"message": "unknown pet"}).to_string()),
        },
        // serverless-workflow:conformance-test
        ["basic-auth", "serverless-workflow", "conformance-test"]
            if authorization == Some("Basic c2VydmVybGVzcy13b3JrZmxvdzpjb25mb3JtYW5jZS10ZXN0") =>
        {
            reply(200, json!({"authenticated": true}).to_string())
        }
        ["basic-auth", ..] => reply(401, String::new()),
        _ => reply(404, String::new()),
    })
}

/// Deploys and runs the workflow of a scenario, and checks what its steps say.
async fn run(node: &mut TestNode, address: SocketAddr, steps: &[Step]) -> Result<(), String> {
    let (mut definition, mut input, mut outcome) = (String::new(), Value::Null, None);
    for step in steps {
        match text_of(step) {
            text if text.starts_with("a workflow with definition") => {
                definition = docstring(step)?;
                for server in SERVERS {
                    definition = definition.replace(server, &format!("http://{address}"));
                }
            }
            "the workflow input is:" => input = yaml(&docstring(step)?)?,
            "the workflow is executed" => {
                outcome = Some(execute(node, address, &definition, &input).await?)
            }
            text => outcome.as_ref().ok_or("the workflow was not executed")?.check(text, step)?,
        }
    }
    Ok(())
}

async fn execute(
    node: &mut TestNode,
    address: SocketAddr,
    definition: &str,
    input: &Value,
) -> Result<Outcome, String> {
    let name = yaml(definition)?["document"]["name"].as_str().unwrap_or_default().to_owned();
    let request = proto::DeployRequest {
        manifest: format!(
            "app = \"kit\"\n[workflows]\nfiles = [\"*.yaml\"]\n[workflows.{name}.permissions]\nhttp = [\"{address}\"]\n"
        ),
        workflows: vec![proto::WorkflowFile { file: "w.yaml".into(), text: definition.to_owned() }],
        ..Default::default()
    };
    node.control.deploy(request).await.map_err(|status| status.message().to_owned())?;
    let reply = in_time(node.post(&format!("/workflows/{name}"), input.to_string())).await;
    let body = body_of(&reply);
    let result = if reply.status().is_success() { Ok(body) } else { Err(body) };
    Ok(Outcome { result: Some(result), ran: Vec::new() })
}

#[tokio::test]
async fn scenarios_of_the_kit_that_ask_servers() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../workflow/tests/conformance/kit");
    let (address, mut node) = (server().await, TestNode::start().await);
    let (mut ran, mut failures) = (0, Vec::new());
    for (file, scenario, steps) in scenarios(&folder) {
        if !needs_network(&steps) {
            continue;
        }
        ran += 1;
        if let Err(reason) = run(&mut node, address, &steps).await {
            failures.push(format!("{file}: {}\n  {reason}", scenario.name));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert_eq!(ran, SCENARIOS);
}
