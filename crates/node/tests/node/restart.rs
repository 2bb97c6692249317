//! Restarts: restored state, and data directories and configurations that a node refuses.

use edgefaas_node::{BuildError, Node, Platform};

use crate::support::{TestNode, config, reply_text, text};

#[tokio::test]
async fn functions_objects_and_secrets_are_restored_after_a_restart() {
    let mut node = TestNode::start().await;
    let extra = r#"
        triggers = [{ http = "/count" }]
        permissions = { objects = ["o"] }
        secrets = ["s"]"#;
    let source = r#"export default async (e, c) => {
        const counter = c.object("o").counter("n");
        await counter.add(1);
        return (await counter.value()) + c.secrets.s;
    }"#;
    node.set_secret("f", "s", "!").await;
    node.deploy_one("f", extra, source).await;
    assert_eq!(reply_text(&node.invoke("f", "").await), "1!");
    let dir = node.stop().await;
    let node = TestNode::start_in(dir, |_| {}).await.unwrap();
    assert_eq!(text(&node.get("/count").await), "2!");
}

#[tokio::test]
async fn a_data_directory_serves_one_node() {
    let node = TestNode::start().await;
    let second = Node::build(config(node.dir.path()), Platform::system()).await;
    let Err(error @ BuildError::DataDir(_)) = second else { panic!("it should be refused") };
    let said = error.to_string();
    assert!(said.contains("in use by another node") && said.contains("--data-dir"), "{said}");
}

#[tokio::test]
async fn a_port_in_use_is_named_with_a_solution() {
    let node = TestNode::start().await;
    let dir = tempfile::tempdir().unwrap();
    let mut config = config(dir.path());
    config.mqtt = node.addresses.mqtt;
    let Err(error) = Node::build(config, Platform::system()).await else { panic!("it should be refused") };
    let said = error.to_string();
    assert!(said.contains(&node.addresses.mqtt.to_string()) && said.contains("--mqtt"), "{said}");
}

#[tokio::test]
async fn mqtt_off_loopback_is_refused_without_credentials() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = config(dir.path());
    config.mqtt = "0.0.0.0:0".parse().unwrap();
    let Err(error) = Node::build(config, Platform::system()).await else { panic!("it should be refused") };
    assert!(error.to_string().contains("0.0.0.0:0") && error.to_string().contains("users"), "{error}");
}

#[tokio::test]
async fn damaged_compiled_code_is_compiled_again() {
    let mut node = TestNode::start_with(|config| config.cache_dir = None).await;
    node.deploy_one("f", "", "export default () => 'there'").await;
    let dir = node.stop().await;
    let mut damaged = 0;
    for entry in std::fs::read_dir(dir.path().join("cache")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "native") {
            let mut bytes = std::fs::read(&path).unwrap();
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
            std::fs::write(&path, bytes).unwrap();
            damaged += 1;
        }
    }
    assert!(damaged > 0, "the cache contains compiled code");
    let node = TestNode::start_in(dir, |config| config.cache_dir = None).await.unwrap();
    assert_eq!(text(&node.get("/fn/f").await), "there");
}

#[tokio::test]
async fn the_store_is_private_even_in_a_public_folder() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let node = TestNode::start_in(dir, |_| {}).await.unwrap();
    let store = std::fs::metadata(node.dir.path().join("store")).unwrap();
    assert_eq!(store.permissions().mode() & 0o777, 0o700);
}
