//! Deploys, lists, removals and rollbacks.

use edgefaas_api::control as proto;
use tonic::Code;

use crate::support::{TestNode, manifest_of, reply_text, script, text};

const ONE: &str = "export default () => 1";
const TWO: &str = "export default () => 2";

#[tokio::test]
async fn a_deploy_replaces_its_app_as_a_whole() {
    let mut node = TestNode::start().await;
    let both = "app = \"a\"\n[functions.x]\nmain = \"x.js\"\n[functions.y]\nmain = \"y.js\"\n";
    let first = node.deploy(both, &[("x", ONE), ("y", TWO)]).await;
    assert!(!first.unchanged);
    assert!(node.deploy(both, &[("x", ONE), ("y", TWO)]).await.unchanged);
    let only_x = "app = \"a\"\n[functions.x]\nmain = \"x.js\"\n";
    let second = node.deploy(only_x, &[("x", TWO)]).await.app.unwrap();
    assert_eq!(second.previous_revisions, [first.app.unwrap().revision]);
    assert_eq!(reply_text(&node.invoke("x", "").await), "2");
    assert_eq!(node.get("/fn/y").await.status(), 404);
}

#[tokio::test]
async fn a_failed_deploy_changes_nothing() {
    let mut node = TestNode::start().await;
    let both = "app = \"a\"\n[functions.x]\nmain = \"x.js\"\n[functions.y]\nmain = \"y.js\"\n";
    node.deploy(both, &[("x", ONE), ("y", ONE)]).await;
    for (bad, words) in [
        ("export default () => {", "y.js:1:"),
        ("throw new Error('at the top');\nexport default () => 1", "at the top"),
        ("export const handler = () => 1", "default"),
        ("export default 7", "default"),
        ("import x from './missing.js';\nexport default () => x", "missing.js"),
    ] {
        let error = node.try_deploy(both, &[("x", TWO), ("y", bad)]).await.unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument, "{error:?}");
        assert!(error.message().contains(words), "{bad}: {}", error.message());
        assert_eq!(reply_text(&node.invoke("x", "").await), "1");
    }
}

#[tokio::test]
async fn inconsistent_manifests_and_artifacts_are_refused() {
    let mut node = TestNode::start().await;
    let error = node.try_deploy(&manifest_of("f", "triger = []"), &[("f", ONE)]).await.unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument);
    assert!(error.message().contains("`triggers`"), "{}", error.message());
    let error = node.try_deploy(&manifest_of("f", ""), &[]).await.unwrap_err();
    assert!(error.message().contains("source of function `f` is missing"), "{}", error.message());
    let error = node.try_deploy(&manifest_of("f", ""), &[("f", ONE), ("g", ONE)]).await.unwrap_err();
    assert!(error.message().contains("`g`"), "{}", error.message());
    let error = node
        .try_deploy(&manifest_of("f", "limits = { memory = \"1GiB\" }"), &[("f", ONE)])
        .await
        .unwrap_err();
    assert!(error.message().contains("at most 268435456"), "{}", error.message());
}

#[tokio::test]
async fn wasm_that_is_not_a_function_is_refused_with_the_reason() {
    let mut node = TestNode::start().await;
    let manifest = "app = \"f\"\n[functions.f]\nmain = \"f.wasm\"\n";
    let empty_component = b"\0asm\x0d\0\x01\0".to_vec();
    let empty_module = b"\0asm\x01\0\0\0".to_vec();
    for (wasm, words) in [
        (b"GIF89a".to_vec(), "not a WebAssembly component"),
        (empty_module, "wasm32-wasip2"),
        (empty_component.clone(), "handle"),
        ([empty_component, vec![0xff; 20]].concat(), "not valid WebAssembly"),
    ] {
        let source = Some(proto::artifact::Source::Component(wasm));
        let artifacts = vec![proto::Artifact { function: "f".into(), source }];
        let request = proto::DeployRequest { manifest: manifest.into(), artifacts, ..Default::default() };
        let error = node.control.deploy(request).await.unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument);
        assert!(error.message().contains(words), "{}", error.message());
    }
    let request = proto::DeployRequest {
        manifest: manifest.into(),
        artifacts: vec![script("f", ONE)],
        ..Default::default()
    };
    let error = node.control.deploy(request).await.unwrap_err();
    assert!(error.message().contains("does not match its source"), "{}", error.message());
}

#[tokio::test]
async fn names_and_paths_belong_to_one_app() {
    let mut node = TestNode::start().await;
    node.deploy_one("f", r#"triggers = [{ http = "/x", methods = ["GET"] }]"#, ONE).await;
    let other = "app = \"other\"\n[functions.f]\nmain = \"f.js\"\n";
    let error = node.try_deploy(other, &[("f", TWO)]).await.unwrap_err();
    assert_eq!(error.code(), Code::AlreadyExists);
    assert!(error.message().contains("belongs to app `f`"), "{}", error.message());
    let g = manifest_of("g", r#"triggers = [{ http = "/x", methods = ["GET"] }]"#);
    let error = node.try_deploy(&g, &[("g", TWO)]).await.unwrap_err();
    assert_eq!(error.code(), Code::AlreadyExists);
    let g = manifest_of("g", r#"triggers = [{ http = "/x", methods = ["POST"] }]"#);
    node.deploy(&g, &[("g", TWO)]).await;
    assert_eq!(text(&node.get("/x").await), "1");
    assert_eq!(text(&node.post("/x", "").await), "2");
}

#[tokio::test]
async fn rollback_restores_the_previous_or_a_named_revision() {
    let mut node = TestNode::start().await;
    let mut revisions = Vec::new();
    for source in [ONE, TWO, "export default () => 3"] {
        let deployed = node.deploy(&manifest_of("f", ""), &[("f", source)]).await;
        revisions.push(deployed.app.unwrap().revision);
    }
    let mut rollback = async |revision: &str| {
        let request =
            proto::RollbackRequest { app: "f".into(), revision: revision.into(), ..Default::default() };
        node.control.rollback(request).await.map(|_| ())
    };
    rollback("").await.unwrap();
    rollback(&revisions[0][..8]).await.unwrap();
    let unknown = rollback("ffff").await.unwrap_err();
    assert_eq!(unknown.code(), Code::NotFound);
    assert_eq!(reply_text(&node.invoke("f", "").await), "1");
    let error = node
        .control
        .rollback(proto::RollbackRequest { app: "g".into(), ..Default::default() })
        .await
        .unwrap_err();
    assert_eq!(error.code(), Code::NotFound);
}

#[tokio::test]
async fn a_removed_app_keeps_its_objects() {
    let mut node = TestNode::start().await;
    let permit = r#"permissions = { objects = ["o"] }"#;
    let source = r#"export default async (e, c) => {
        const counter = c.object("o").counter("n");
        await counter.add(1);
        return counter.value();
    }"#;
    node.deploy_one("f", permit, source).await;
    assert_eq!(reply_text(&node.invoke("f", "").await), "1");
    let removed =
        node.control.remove(proto::RemoveRequest { app: "f".into(), ..Default::default() }).await.unwrap();
    assert_eq!(removed.into_inner().functions, ["f"]);
    assert_eq!(node.get("/fn/f").await.status(), 404);
    let error = node
        .control
        .remove(proto::RemoveRequest { app: "f".into(), ..Default::default() })
        .await
        .unwrap_err();
    assert_eq!(error.code(), Code::NotFound);
    node.deploy_one("f", permit, source).await;
    assert_eq!(reply_text(&node.invoke("f", "").await), "2");
}

#[tokio::test]
async fn functions_call_one_another_and_get_config_and_secrets() {
    let mut node = TestNode::start().await;
    node.set_secret("a", "key", "s3cret-value").await;
    let manifest = r#"
        app = "a"
        [functions.outer]
        main = "outer.js"
        permissions = { call = ["inner"] }
        config = { factor = 3 }
        secrets = ["key"]
        [functions.inner]
        main = "inner.js"
    "#;
    let outer = r#"export default async (event, context) => {
        context.log.info("the key is " + context.secrets.key);
        const [a, b] = await Promise.all([context.call("inner", "1"), context.call("inner", "2")]);
        return { sum: (a.n + b.n) * context.config.factor, key: context.secrets.key.length };
    }"#;
    let inner =
        "export default (event, context) => ({ n: Number(event.text()), key: context.secrets.key })";
    node.deploy(manifest, &[("outer", outer), ("inner", inner)]).await;
    assert_eq!(reply_text(&node.invoke("outer", "").await), r#"{"sum":9,"key":12}"#);
    assert_eq!(node.logged("outer").await, ["the key is ***"]);
    let secrets =
        node.control.list_secrets(proto::ListSecretsRequest::default()).await.unwrap().into_inner().secrets;
    assert_eq!(secrets, [proto::Secret { app: "a".into(), name: "key".into() }]);
}

#[tokio::test]
async fn a_secret_in_an_error_is_masked() {
    let mut node = TestNode::start().await;
    node.set_secret("leak", "key", "s3cret-value").await;
    let source = "export default (e, c) => { throw new Error('bad key ' + c.secrets.key) }";
    node.deploy_one("leak", r#"secrets = ["key"]"#, source).await;
    let response = node.get("/fn/leak").await;
    assert!(text(&response).contains("bad key ***"), "{}", text(&response));
    assert!(!text(&response).contains("s3cret"), "{}", text(&response));
}

#[tokio::test]
async fn an_app_sees_only_its_own_secrets() {
    let mut node = TestNode::start().await;
    node.set_secret("shop", "key", "of the shop").await;
    let source = "export default (event, context) => context.secrets.key ?? 'none'";
    for app in ["shop", "thief"] {
        node.deploy_one(app, "secrets = [\"key\"]", source).await;
    }
    assert_eq!(reply_text(&node.invoke("shop", "").await), "of the shop");
    assert_eq!(reply_text(&node.invoke("thief", "").await), "none");
    node.set_secret("thief", "key", "its own").await;
    let of_shop = proto::ListSecretsRequest { app: "shop".into() };
    let secrets = node.control.list_secrets(of_shop).await.unwrap().into_inner().secrets;
    assert_eq!(secrets, [proto::Secret { app: "shop".into(), name: "key".into() }]);
    let remove =
        proto::RemoveSecretRequest { name: "key".into(), app: "thief".into(), ..Default::default() };
    node.control.remove_secret(remove.clone()).await.unwrap();
    assert_eq!(node.control.remove_secret(remove).await.unwrap_err().code(), tonic::Code::NotFound);
    let node = TestNode::start_in(node.stop().await, |_| {}).await.unwrap();
    assert_eq!(text(&node.get("/fn/shop").await), "of the shop");
    assert_eq!(text(&node.get("/fn/thief").await), "none");
    let no_app = proto::SetSecretRequest { name: "key".into(), value: "x".into(), ..Default::default() };
    let refused = node.control.clone().set_secret(no_app).await.unwrap_err();
    assert!(refused.message().contains("--app APP"), "{refused}");
}
