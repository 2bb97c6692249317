//! Documents and the requests that they give.

use serde_json::{Value, json};

use super::*;
use crate::instance::RequestParts;

const PETS_2: &str = r##"{
  "swagger": "2.0", "host": "pets.example", "basePath": "/v2", "schemes": ["http"],
  "parameters": {"page": {"name": "page", "in": "query", "type": "integer"}},
  "paths": {
    "/pet/{petId}": {
      "get": {"operationId": "getPet", "parameters": [
        {"name": "petId", "in": "path", "required": true, "type": "integer"},
        {"name": "X-Trace", "in": "header", "type": "string"}]}
    },
    "/pet": {
      "parameters": [{"$ref": "#/parameters/page"}],
      "get": {"operationId": "findPets", "parameters": [
        {"name": "status", "in": "query", "required": true, "type": "array", "collectionFormat": "multi"},
        {"name": "tags", "in": "query", "type": "array"}]},
      "post": {"operationId": "addPet", "consumes": ["application/json"], "parameters": [
        {"name": "pet", "in": "body", "required": true}]},
      "put": {"operationId": "renamePet", "parameters": [
        {"name": "name", "in": "formData", "type": "string"}, {"name": "tag", "in": "formData", "type": "string"}]},
      "patch": {"operationId": "sendPicture", "parameters": [{"name": "file", "in": "formData", "type": "file"}]}
    }
  }
}"##;

const PETS_3: &str = r##"
openapi: 3.1.0
servers: [{url: 'https://{zone}.pets.example/v3', variables: {zone: {default: eu}}}]
components:
  parameters:
    limit: {name: limit, in: query, schema: {type: integer}}
  requestBodies:
    pet: {required: true, content: {application/json: {schema: {}}}}
paths:
  /pets/{id}:
    get:
      operationId: getPet
      parameters:
        - {name: id, in: path, required: true, schema: {type: string}}
        - {name: fields, in: query, explode: false, schema: {type: array}}
        - {name: where, in: query, style: deepObject, schema: {type: object}}
        - {name: session, in: cookie, schema: {type: string}}
        - $ref: '#/components/parameters/limit'
  /pets:
    post: {operationId: addPet, requestBody: {$ref: '#/components/requestBodies/pet'}}
    put:
      operationId: formPet
      servers: [{url: /other}]
      requestBody: {content: {application/x-www-form-urlencoded: {schema: {}}}}
    patch: {operationId: textPet, requestBody: {content: {text/plain: {schema: {}}}}}
"##;

fn request(document: &str, id: &str, arguments: Value) -> Result<RequestParts, String> {
    let document = ApiDocument::read(document).unwrap();
    let operation = document.operation(id).map_err(|error| error.to_string())?;
    operation
        .request(&arguments, Some("http://docs.example/v2/api.json"))
        .map_err(|error| error.to_string())
}

fn line(document: &str, id: &str, arguments: Value) -> String {
    let RequestParts { method, url, headers, body, .. } = request(document, id, arguments).unwrap();
    let headers: Vec<String> = headers.iter().map(|(name, value)| format!("{name}: {value}")).collect();
    format!("{method} {url} [{}] {}", headers.join(", "), String::from_utf8(body).unwrap())
}

#[test]
fn requests_of_openapi_2() {
    for (id, arguments, wanted) in [
        ("getPet", json!({"petId": 7}), "GET http://pets.example/v2/pet/7 [] "),
        (
            "getPet",
            json!({"petId": "a/b", "X-Trace": 5}),
            "GET http://pets.example/v2/pet/a%2Fb [X-Trace: 5] ",
        ),
        (
            "findPets",
            json!({"status": ["a", "b"], "tags": ["x", "y"], "page": 2}),
            "GET http://pets.example/v2/pet?page=2&status=a&status=b&tags=x%2Cy [] ",
        ),
        (
            "addPet",
            json!({"pet": {"name": "Rex"}}),
            "POST http://pets.example/v2/pet [content-type: application/json] {\"name\":\"Rex\"}",
        ),
        (
            "renamePet",
            json!({"name": "Rex", "tag": "a b"}),
            "PUT http://pets.example/v2/pet [content-type: application/x-www-form-urlencoded] name=Rex&tag=a+b",
        ),
    ] {
        assert_eq!(line(PETS_2, id, arguments), wanted);
    }
}

#[test]
fn requests_of_openapi_3() {
    let server = "https://eu.pets.example/v3";
    for (id, arguments, wanted) in [
        (
            "getPet",
            json!({"id": "1", "fields": ["a", "b"], "where": {"tag": "x"}, "session": "s", "limit": 5}),
            format!("GET {server}/pets/1?fields=a%2Cb&where%5Btag%5D=x&limit=5 [cookie: session=s] "),
        ),
        (
            "addPet",
            json!({"body": {"name": "Rex"}}),
            format!("POST {server}/pets [content-type: application/json] {{\"name\":\"Rex\"}}"),
        ),
        (
            "formPet",
            json!({"body": {"name": "Rex"}}),
            "PUT http://docs.example/other/pets [content-type: application/x-www-form-urlencoded] name=Rex"
                .to_owned(),
        ),
        (
            "textPet",
            json!({"body": "hello"}),
            format!("PATCH {server}/pets [content-type: text/plain] hello"),
        ),
    ] {
        assert_eq!(line(PETS_3, id, arguments), wanted);
    }
}

#[test]
fn calls_that_do_not_fit() {
    for (document, id, arguments, wanted) in [
        (PETS_2, "getPets", json!({}), "no operation `getPets`; did you mean `getPet`?"),
        (PETS_2, "getPet", json!({}), "needs the parameter `petId` (path)"),
        (PETS_2, "findPets", json!({"state": 1}), "no parameter `state`; it has page, status, tags"),
        (PETS_2, "addPet", json!({}), "needs the parameter `pet` (body)"),
        (PETS_2, "getPet", json!([1]), "is not an object"),
        (PETS_2, "sendPicture", json!({"file": "x"}), "multipart/form-data"),
        (PETS_3, "textPet", json!({"body": {"a": 1}}), "takes text/plain"),
    ] {
        let found = request(document, id, arguments).unwrap_err();
        assert!(found.contains(wanted), "{found}");
    }
    let relative = ApiDocument::read("openapi: 3.0.0\npaths: {/a: {get: {operationId: a}}}").unwrap();
    let error = relative.operation("a").unwrap().request(&Value::Null, None).unwrap_err();
    assert!(error.to_string().contains("names no server"), "{error}");
    for text in ["[", "a: 1", "openapi: 4.0.0"] {
        assert!(ApiDocument::read(text).is_err(), "{text}");
    }
    for (reference, wanted) in [
        (
            "#/paths/~1a",
            "the reference `#/paths/~1a` leads through more than 8 others, perhaps in a circle",
        ),
        ("pets.yaml#/paths/~1a", "leads to another document, and only this one is read"),
        ("#/paths/~1b", "names a part that the document does not have"),
    ] {
        let document = format!("openapi: 3.0.0\npaths: {{/a: {{$ref: '{reference}'}}}}");
        let found = ApiDocument::read(&document).unwrap().operation("a").unwrap_err().to_string();
        assert!(found.contains(wanted), "{found}");
    }
    assert!(ApiDocument::is_one(PETS_2) && ApiDocument::is_one(PETS_3) && !ApiDocument::is_one("do: []"));
}

const LAMPS_3: &str = r##"
asyncapi: 3.0.0
servers:
  here: {host: 'localhost:1883', protocol: mqtt}
  staging: {host: '{name}.example.com', protocol: mqtt, variables: {name: {default: test}}}
  stream: {host: stream.example.com, protocol: kafka}
channels:
  lamp: {address: 'lamps/{room}', servers: [{$ref: '#/servers/here'}]}
operations:
  switch: {action: receive, channel: {$ref: '#/channels/lamp'}}
"##;

const LAMPS_2: &str = "
asyncapi: 2.6.0
channels:
  lamps/all: {publish: {operationId: switchAll}, subscribe: {operationId: switched}}
";

#[test]
fn addresses_of_operations() {
    let address = |document: &str, operation: AsyncOperation| {
        ApiDocument::read(document)
            .unwrap()
            .address(&operation)
            .map(|found| found.address)
            .map_err(|error| error.to_string())
    };
    let named = |name: &str| AsyncOperation { name: name.to_owned(), ..AsyncOperation::default() };
    let at = |server: &str| AsyncOperation { server: Some(server.to_owned()), ..named("switch") };
    let by = |protocol: &str| AsyncOperation { protocol: Some(protocol.to_owned()), ..named("switch") };
    assert_eq!(address(LAMPS_3, named("switch")).unwrap(), "lamps/{room}");
    assert_eq!(address(LAMPS_3, at("here")).unwrap(), "lamps/{room}");
    assert_eq!(address(LAMPS_3, by("mqtt")).unwrap(), "lamps/{room}");
    assert_eq!(address(LAMPS_2, named("switched")).unwrap(), "lamps/all");
    let local =
        AsyncOperation { variables: json!({"name": "x"}).as_object().unwrap().clone(), ..at("staging") };
    for (operation, wanted) in [
        (named("swich"), "did you mean `switch`?"),
        (local, "server `staging` is `x.example.com`, another broker"),
        (at("staging"), "`test.example.com`, another broker"),
        (at("stream"), "speaks `kafka`"),
        (at("nowhere"), "no server `nowhere`; it has here, staging, stream"),
    ] {
        let found = address(LAMPS_3, operation).unwrap_err();
        assert!(found.contains(wanted), "{found}");
    }
    assert!(address(PETS_3, named("getPet")).unwrap_err().contains("not AsyncAPI"));
}
