//! Functions, HTTP, messages, workflows and scripts.

use edgefaas_workflow::instance::{
    Content, Credentials, RequestParts, SentRequest, TokenEndpoint, TokenRequest, read_answer,
};
use edgefaas_workflow::program::HttpOutput;
use edgefaas_workflow::{ErrorKind, Status};
use serde_json::json;

use crate::host::{Asked, Host, error};

fn request(tasks: &str, input: serde_json::Value) -> RequestParts {
    let host = Host::run(tasks, input);
    match host.asked.values().next() {
        Some(Asked::Request(request)) => request.clone(),
        other => panic!("{other:?}, {:?}", host.instance.result()),
    }
}

#[test]
fn a_function_gets_its_input_or_what_with_says() {
    let mut host = Host::run(
        "do: [a: {call: f}, b: {call: g, with: {y: '${ .x }'}}, c: {call: g, with: '${ .x }'}]",
        json!({"x": 1}),
    );
    assert_eq!(host.asked.values().next().unwrap().body(), json!({"x": 1}));
    host.answer("f", Ok(json!({"x": 2})));
    assert_eq!(host.asked.values().next().unwrap().body(), json!({"y": 2}));
    host.answer("g", Ok(json!({"x": "three"})));
    assert_eq!(host.asked.values().next().unwrap().body(), json!("three"));
    assert_eq!(host.program.functions(), ["f", "g"]);
}

#[test]
fn a_function_of_use_is_a_task_with_its_own_input() {
    let tasks = "
use:
  functions:
    greet: {call: say, with: {text: hello, to: '${ .name }'}, output: {as: .said}}
    shout:
      input: {schema: {document: {type: object, required: [word]}}}
      do: [up: {set: '${ .word | ascii_upcase }'}, call: {call: greet, with: {name: '${ . }'}}]
do:
  - a: {call: greet, with: {name: '${ .user }'}, output: {as: '{greeting: ., word: \"hey\"}'}}
  - b: {call: shout}
  - c: {try: [d: {call: shout, with: {}}], catch: {errors: {with: {type: validation}}, as: e, do: [e: {set: '${ $e.instance }'}]}}
";
    let mut host = Host::run(tasks, json!({"user": "Ada"}));
    assert_eq!(host.asked.values().next().unwrap().body(), json!({"text": "hello", "to": "Ada"}));
    host.answer("say", Ok(json!({"said": "hello Ada"})));
    assert_eq!(host.asked.values().next().unwrap().body(), json!({"text": "hello", "to": "HEY"}));
    host.answer("say", Ok(json!({"said": "x"})));
    assert_eq!(host.output(), json!("/use/functions/shout"));
    assert_eq!(host.program.functions(), ["say"]);
}

#[test]
fn a_function_of_use_asks_a_server_with_its_arguments() {
    let tasks = "
use: {functions: {find: {call: http, with: {method: get, endpoint: 'http://pets.example/{id}'}}}}
do: [a: {call: find, with: {id: 69}}]
";
    assert_eq!(request(tasks, json!({"id": 1})).url, "http://pets.example/69");
}

#[test]
fn a_function_fails() {
    let mut host = Host::run("do: [a: {call: f}]", json!({}));
    host.answer("f", Err(error(ErrorKind::Communication, 502)));
    let fault = host.fault();
    assert_eq!(
        (fault.short_kind(), fault.status, fault.instance.as_deref()),
        ("communication", 502, Some("/do/0/a"))
    );
}

#[test]
fn a_request_with_everything() {
    let tasks = "
do:
  - post:
      call: http
      with:
        method: post
        endpoint:
          uri: 'https://example.com/orders/{id}'
          authentication: {bearer: {token: '${ $secrets.api }'}}
        headers: {X-Trace: '${ .id }', X-Number: 5}
        query: {full: true, tag: [a, b c], none: null}
        body: {order: '${ .id }'}
        output: response
";
    let found = request(tasks, json!({"id": "a/b ü"}));
    assert_eq!(
        (found.method.as_str(), found.url.as_str()),
        ("POST", "https://example.com/orders/a%2Fb%20%C3%BC?full=true&tag=a&tag=b+c")
    );
    let header =
        |name: &str| found.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str());
    assert_eq!(header("X-Number"), Some("5"));
    assert_eq!(header("X-Trace"), Some("a/b ü"));
    assert_eq!(found.credentials, Some(Credentials::Known { scheme: "Bearer", parameter: "key".into() }));
    assert!(!format!("{found:?}").contains("key"), "credentials are not shown");
    assert_eq!(header("content-type"), Some("application/json"));
    assert_eq!(found.body, br#"{"order":"a/b \u00fc"}"#.replace_escape());
}

trait Plain {
    fn replace_escape(&self) -> Vec<u8>;
}

impl Plain for [u8] {
    /// JSON as this crate writes it has no escapes for letters.
    fn replace_escape(&self) -> Vec<u8> {
        String::from_utf8_lossy(self).replace("\\u00fc", "ü").into_bytes()
    }
}

#[test]
fn basic_authentication_by_name() {
    let tasks = "
use: {authentications: {me: {basic: {username: ada, password: '${ $secrets.api }'}}}}
do: [get: {call: http, with: {method: GET, endpoint: {uri: 'http://example.com', authentication: {use: me}}}}]
";
    let found = request(tasks, json!({}));
    assert_eq!(
        found.credentials,
        Some(Credentials::Known { scheme: "Basic", parameter: "YWRhOmtleQ==".into() })
    );
    assert_eq!((found.url.as_str(), found.body.len()), ("http://example.com/", 0));
}

#[test]
fn an_endpoint_that_is_none_fails_the_task() {
    let tasks = "do: [get: {call: http, with: {method: get, endpoint: '${ .url }'}}]";
    for url in [json!("nowhere"), json!("ftp://example.com"), json!(5), json!(null)] {
        let fault = Host::run(tasks, json!({"url": url})).fault();
        assert_eq!(
            (fault.short_kind(), fault.instance.as_deref()),
            ("configuration", Some("/do/0/get")),
            "{url}"
        );
    }
}

fn sent() -> SentRequest {
    let headers = vec![("c".to_owned(), "d".to_owned())];
    let credentials = Some(Credentials::Known { scheme: "Bearer", parameter: "secret".to_owned() });
    let (method, url) = ("GET".to_owned(), "http://x/y".to_owned());
    SentRequest::from(&RequestParts { method, url, headers, body: b"z".to_vec(), credentials })
}

#[test]
fn answers() {
    let read = |output, status, body: &[u8]| {
        read_answer(output, false, &sent(), status, &[("a".into(), "b".into())], body)
    };
    assert_eq!(read(HttpOutput::Content, 200, b"{\"a\":1}"), Ok(json!({"a": 1})));
    assert_eq!(read(HttpOutput::Content, 200, b"hello"), Ok(json!("hello")));
    assert_eq!(read(HttpOutput::Content, 204, b""), Ok(json!(null)));
    assert_eq!(read(HttpOutput::Raw, 200, b"hello"), Ok(json!("aGVsbG8=")));
    let request = json!({"method": "GET", "uri": "http://x/y", "headers": {"c": "d"}});
    let whole = json!({"request": request, "statusCode": 201, "headers": {"a": "b"}, "content": 5});
    assert_eq!(read(HttpOutput::Response, 201, b"5"), Ok(whole));
    let failed = read(HttpOutput::Content, 404, b"gone").unwrap_err();
    assert_eq!((failed.short_kind(), failed.status), ("communication", 404));
    assert!(read(HttpOutput::Content, 302, b"").is_err());
    assert!(read_answer(HttpOutput::Content, true, &sent(), 302, &[], b"").is_ok());
}

#[test]
fn a_message_to_the_broker() {
    let tasks = "
do:
  - tell:
      call: asyncapi
      with:
        channel: '${ \"lamps/\" + .name }'
        message: {payload: {on: '${ .on }'}, headers: {from: '${ .name }'}, qos: 0, retain: true}
  - after: {set: '${ {input: .} }'}
";
    let host = Host::run(tasks, json!({"name": "one", "on": true}));
    assert_eq!(host.output()["input"]["name"], json!("one"), "its output is its input");
    let sent = &host.published[0];
    assert_eq!((sent.topic.as_deref(), sent.qos, sent.retain), (Some("lamps/one"), 0, true));
    assert_eq!(sent.headers, [("from".to_owned(), "one".to_owned())]);
    assert!(matches!(&sent.content, Content::Payload(payload) if *payload == json!({"on": true})));
}

#[test]
fn a_workflow_in_a_workflow() {
    let tasks = "
do:
  - sub: {run: {workflow: {namespace: test, name: other, version: '1.0.0', input: {x: '${ .a }'}}}}
  - apart: {run: {workflow: {name: third}, await: false}}
  - after: {set: '${ {after: .} }'}
";
    let mut host = Host::run(tasks, json!({"a": 1}));
    assert_eq!(host.asked.values().next().unwrap().body(), json!({"x": 1}));
    assert_eq!(host.status(), Status::Running);
    host.answer("other", Ok(json!({"b": 2})));
    assert_eq!(host.output(), json!({"after": {"b": 2}}));
    assert_eq!((host.let_go[0].name(), host.let_go[0].body()), ("third", json!({"b": 2})));
    assert_eq!(host.program.workflows(), ["other", "third"]);
}

#[test]
fn a_script() {
    let tasks = "
do:
  - compute: {run: {script: {language: js, code: 'return a + 1', arguments: {a: '${ .x }'}, environment: {B: c}}}}
  - apart: {run: {script: {language: javascript, code: log()}, await: false}}
";
    let mut host = Host::run(tasks, json!({"x": 1}));
    assert_eq!(
        host.asked.values().next().unwrap().body(),
        json!({"arguments": {"a": 1}, "environment": {"B": "c"}})
    );
    host.answer("return a + 1", Ok(json!(2)));
    assert_eq!(host.output(), json!(2));
    assert_eq!(host.let_go[0].body(), json!({"arguments": {}, "environment": {}}));
}

#[test]
fn an_answer_that_comes_twice_or_too_late_is_ignored() {
    let mut host = Host::run("do: [a: {call: f}, b: {call: g}]", json!({}));
    let frame = *host.asked.keys().next().unwrap();
    host.answer("f", Ok(json!(1)));
    host.ended(frame, Ok(json!(2)));
    assert_eq!(host.asked.values().next().unwrap().body(), json!(1));
    host.answer("g", Ok(json!(3)));
    host.ended(frame, Ok(json!(4)));
    assert_eq!(host.output(), json!(3));
}

fn token_request(policy: &str) -> TokenRequest {
    let tasks = format!(
        "use: {{secrets: [api, policy]}}\n\
         do: [get: {{call: http, with: {{method: get, endpoint: {{uri: 'http://x', authentication: {policy}}}}}}}]"
    );
    match request(&tasks, json!({"realm": "r"})).credentials {
        Some(Credentials::Token(request)) => *request,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_token_is_asked_for_as_the_policy_says() {
    let found = token_request(
        "{oauth2: {authority: 'http://auth/{realm}', grant: client_credentials, client: {id: me, secret: '${ $secrets.api }'}, \
         scopes: [a, b], audiences: [x]}}",
    );
    assert_eq!(found.endpoint, TokenEndpoint::Url("http://auth/r/oauth2/token".into()));
    let (body, kind) = found.body();
    assert_eq!(
        (String::from_utf8(body).unwrap().as_str(), kind),
        (
            "grant_type=client_credentials&client_id=me&client_secret=key&scope=a+b&audience=x",
            "application/x-www-form-urlencoded"
        )
    );
    assert!(!format!("{found:?}").contains("key"), "secrets are not shown");

    let found = token_request(
        "{oauth2: {authority: 'http://auth/', endpoints: {token: /token}, grant: password, username: ada, password: '${ $secrets.api }', \
         client: {id: me, secret: s, authentication: client_secret_basic}, request: {encoding: application/json}}}",
    );
    assert_eq!(found.endpoint, TokenEndpoint::Url("http://auth/token".into()));
    assert_eq!(found.basic, Some(("me".into(), "s".into())));
    assert_eq!(found.body().0, br#"{"grant_type":"password","username":"ada","password":"key"}"#);

    let found =
        token_request("{oidc: {authority: 'http://auth', grant: client_credentials, client: {id: me}}}");
    let metadata = "http://auth/.well-known/openid-configuration";
    assert_eq!(found.endpoint, TokenEndpoint::Discovered(metadata.into()));
}

#[test]
fn a_policy_that_a_secret_holds() {
    let tasks = "
use: {secrets: [policy]}
do: [get: {call: http, with: {method: get, endpoint: {uri: 'http://x', authentication: {basic: {use: policy}}}}}]
";
    let mut host = Host::new(&crate::host::around(tasks), json!({}));
    host.secrets = json!({"policy": r#"{"username": "a", "password": "b"}"#});
    host.start();
    let Some(Asked::Request(request)) = host.asked.values().next() else { panic!("{:?}", host.asked) };
    assert_eq!(request.credentials, Some(Credentials::Known { scheme: "Basic", parameter: "YTpi".into() }));
    let mut host = Host::new(&crate::host::around(tasks), json!({}));
    host.start();
    assert_eq!(host.fault().short_kind(), "authorization", "the secret is not set");
}

#[test]
fn a_call_of_openapi_asks_for_its_document() {
    let tasks = "
do:
  - find:
      call: openapi
      with:
        document: {endpoint: {uri: 'https://pets.example/{version}/api.json'}}
        operationId: findPets
        parameters: {status: '${ .status }'}
        authentication: {bearer: {token: '${ $secrets.api }'}}
      output: {as: '{first: .[0], scheme: $authorization.scheme}'}
  - local: {call: openapi, with: {document: {endpoint: 'file://apis/pets.yaml'}, operationId: x}}
";
    let mut host = Host::run(tasks, json!({"status": "sold", "version": "v2"}));
    let Some(Asked::Document { place, parameters, credentials }) = host.asked.values().next() else {
        panic!()
    };
    assert_eq!(
        (place.as_str(), parameters),
        ("https://pets.example/v2/api.json", &json!({"status": "sold"}))
    );
    assert_eq!(*credentials, Some(Credentials::Known { scheme: "Bearer", parameter: "key".into() }));
    host.answer("https://pets.example/v2/api.json", Ok(json!([{"id": 1}])));
    assert_eq!(host.asks(), ["apis/pets.yaml"]);
    host.answer("apis/pets.yaml", Ok(json!("done")));
    assert_eq!(host.output(), json!("done"));
}

#[test]
fn an_address_without_the_value_of_a_parameter_is_an_error() {
    let to = "document: {endpoint: apis/bus.yaml}, operation: order";
    for (with, place) in
        [("message: {payload: 1}", "/do/0/send"), ("subscription: {consume: {amount: 1}}", "/do/0/send")]
    {
        for input in [json!({}), json!({"room": null}), json!({"room": ""}), json!("text")] {
            let tasks = format!("do: [send: {{call: asyncapi, with: {{{to}, {with}}}}}]");
            let mut host = Host::run(&tasks, input.clone());
            host.answer("apis/bus.yaml", Ok(json!({"address": "bus/{room}/order"})));
            let Some(Err(error)) = host.instance.result() else {
                panic!("{with} {input}: {:?}", host.published)
            };
            assert_eq!((error.status, error.short_kind()), (400, "validation"), "{error:?}");
            assert_eq!(error.instance.as_deref(), Some(place));
            assert!(
                error.detail.as_ref().unwrap().contains("`bus/{room}/order` needs `room`"),
                "{error:?}"
            );
            assert!(host.published.is_empty() && host.listens.is_empty());
        }
    }
}

#[test]
fn an_operation_of_asyncapi_sends_to_its_channel() {
    let tasks = "
do:
  - tell:
      call: asyncapi
      with:
        document: {endpoint: apis/lamps.yaml}
        operation: switch
        message: {payload: {on: true}, headers: {a: b}}
  - after: {set: '${ {input: .} }'}
";
    let mut host = Host::run(tasks, json!({"room": "kitchen"}));
    host.answer("apis/lamps.yaml", Ok(json!({"address": "lamps/{room}"})));
    assert_eq!(host.output(), json!({"input": {"room": "kitchen"}}));
    assert_eq!(host.published[0].topic.as_deref(), Some("lamps/kitchen"));
    assert_eq!(host.published[0].headers, [("a".to_owned(), "b".to_owned())]);
}

/// A plain MQTT message.
fn message(topic: &str, data: serde_json::Value) -> serde_json::Value {
    json!({
        "specversion": "1.0", "id": "1", "source": "/mqtt", "type": "mqtt.publish", "subject": topic, "data": data,
        "headers": {"from": "me"}, "correlationid": "c1",
    })
}

fn subscribes(consume: &str, more: &str) -> String {
    format!(
        "do: [hear: {{call: asyncapi, with: {{channel: 'lamps/+', subscription: {{consume: {consume}{more}}}}}}}]"
    )
}

#[test]
fn a_subscription_collects_messages() {
    let filter = ", filter: '${ .payload.n > 0 and .headers.from == \"me\" and .correlationId == \"c1\" }'";
    let numbers = |host: &Host| {
        let output = host.output();
        output.as_array().unwrap().iter().map(|message| message["payload"]["n"].clone()).collect::<Vec<_>>()
    };
    for consume in ["{amount: 2}", "{until: length == 2}", "{while: length < 2}"] {
        let mut host = Host::run(&subscribes(consume, filter), json!({}));
        for (topic, n) in [("lamps/a", 1), ("lamps/b", 0), ("others/a", 5), ("lamps/b", 2)] {
            assert_eq!(host.status(), Status::Waiting, "{consume}");
            host.send(message(topic, json!({"n": n})));
        }
        assert_eq!(numbers(&host), [1, 2], "{consume}");
        assert!(host.listens.is_empty());
    }
    let whole = {
        let mut host = Host::run(&subscribes("{amount: 1}", ""), json!({}));
        host.send(message("lamps/a", json!(5)));
        host.output()
    };
    assert_eq!(whole, json!([{"payload": 5, "headers": {"from": "me"}, "correlationId": "c1"}]));
}

#[test]
fn the_end_of_a_subscription_with_foreach_sees_the_messages() {
    for consume in ["{until: 'any(.payload.n == 2)'}", "{while: 'all(.payload.n < 2)'}"] {
        let foreach = ", foreach: {item: message, do: [same: {set: '${ $message.payload.n * 10 }'}]}";
        let mut host = Host::run(&subscribes(consume, foreach), json!({}));
        (1..=3).for_each(|n| host.send(message("lamps/a", json!({"n": n}))));
        assert_eq!(host.output(), json!([10, 20]), "{consume}");
    }
}

#[test]
fn a_subscription_ends_after_its_time_with_what_it_has() {
    let mut host = Host::run(&subscribes("{amount: 5, for: {seconds: 10}}", ""), json!({}));
    host.send(message("lamps/a", json!({"n": 1})));
    host.until(9_999);
    assert_eq!(host.status(), Status::Waiting);
    host.until(10_000);
    assert_eq!(host.output().as_array().unwrap().len(), 1);
    let host = Host::run(&subscribes("{while: 'false'}", ""), json!({}));
    assert_eq!(host.output(), json!([]));
}

#[test]
fn a_subscription_works_on_each_message_and_finds_its_channel() {
    let tasks = "
do:
  - hear:
      call: asyncapi
      with:
        document: {endpoint: apis/lamps.yaml}
        operation: switched
        subscription:
          consume: {amount: 2}
          foreach:
            item: message
            do: [work: {call: work, with: '${ $message.payload }'}]
";
    let mut host = Host::run(tasks, json!({}));
    host.answer("apis/lamps.yaml", Ok(json!({"address": "lamps/all"})));
    host.send(message("lamps/all", json!(1)));
    host.send(message("lamps/all", json!(2)));
    for n in [1, 2] {
        assert_eq!(host.asked.values().next().unwrap().body(), json!(n));
        host.answer("work", Ok(json!(n * 10)));
    }
    assert_eq!(host.output(), json!([10, 20]));
}
