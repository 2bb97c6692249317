//! Mosquitto's command-line clients.

use std::process::Stdio;

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, ChildStdout, Command};

use crate::support::{Server, soon};

/// Whether the tools are here; says so when not, and fails where nothing may be skipped.
fn tools() -> bool {
    let there = |tool: &str| {
        let found = std::process::Command::new(tool)
            .arg("--help")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        found.is_ok()
    };
    let there = there("mosquitto_pub") && there("mosquitto_sub");
    if !there {
        assert_ne!(
            std::env::var("EDGEFAAS_NO_SKIP").as_deref(),
            Ok("1"),
            "mosquitto-clients is not installed"
        );
        println!("skipped: needs mosquitto_pub and mosquitto_sub (package mosquitto-clients)");
    }
    there
}

fn command(tool: &str, server: &Server, version: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(tool);
    command.args(["-h", "127.0.0.1", "-p", &server.address.port().to_string(), "-V", version]);
    command.args(arguments).kill_on_drop(true).stderr(Stdio::inherit());
    command
}

async fn publish(server: &Server, version: &str, arguments: &[&str]) {
    let status = soon("mosquitto_pub", command("mosquitto_pub", server, version, arguments).status()).await;
    assert!(status.expect("it starts").success(), "mosquitto_pub {arguments:?}");
}

/// Starts `mosquitto_sub` and waits until it has subscribed.
async fn subscribe(
    server: &Server,
    version: &str,
    arguments: &[&str],
) -> (Child, tokio::io::Lines<BufReader<ChildStdout>>) {
    let before = server.broker.stats().subscriptions;
    let mut child = command("mosquitto_sub", server, version, arguments)
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    server.until("mosquitto_sub has subscribed", |stats| stats.subscriptions > before).await;
    (child, lines)
}

#[tokio::test]
async fn mosquitto_clients_publish_and_subscribe() {
    if !tools() {
        return;
    }
    let server = Server::start().await;
    for version in ["mqttv311", "mqttv5"] {
        for qos in ["0", "1", "2"] {
            let (mut child, mut lines) =
                subscribe(&server, version, &["-t", "house/#", "-q", qos, "-C", "2", "-F", "%t %q %r %p"])
                    .await;
            publish(&server, version, &["-t", "house/door", "-q", qos, "-m", "open"]).await;
            publish(&server, version, &["-t", "house", "-q", qos, "-m", "all"]).await;
            for expected in [format!("house/door {qos} 0 open"), format!("house {qos} 0 all")] {
                let line = soon("a line", lines.next_line()).await.expect("readable");
                assert_eq!(line.as_deref(), Some(expected.as_str()), "{version}");
            }
            assert!(soon("mosquitto_sub ends", child.wait()).await.expect("waits").success());
            server.until("it has left", |stats| stats.connections == 0).await;
        }
    }
    server.stop().await;
}

#[tokio::test]
async fn mosquitto_clients_see_properties_retained_messages_and_wills() {
    if !tools() {
        return;
    }
    let server = Server::start().await;
    let properties = [
        "-D",
        "publish",
        "content-type",
        "text/plain",
        "-D",
        "publish",
        "response-topic",
        "reply/here",
        "-D",
        "publish",
        "correlation-data",
        "42",
        "-D",
        "publish",
        "user-property",
        "name",
        "value",
    ];
    let message = ["-t", "asked/for", "-q", "1", "-r", "-m", "question"];
    publish(&server, "mqttv5", &[&message[..], &properties].concat()).await;
    let format = "%t %r %p %C %R %D %P";
    let (_child, mut lines) =
        subscribe(&server, "mqttv5", &["-t", "asked/+", "-t", "will/+", "-F", format]).await;
    let line = soon("a line", lines.next_line()).await.expect("readable").expect("a line");
    assert_eq!(line, "asked/for 1 question text/plain reply/here 42 name:value");

    let will = ["-t", "nothing", "--will-topic", "will/dead", "--will-payload", "killed", "-i", "mortal"];
    let (mut mortal, _lines) = subscribe(&server, "mqttv311", &will).await;
    soon("kill", mortal.kill()).await.expect("killed");
    let line = soon("a line", lines.next_line()).await.expect("readable").expect("a line");
    assert!(line.starts_with("will/dead 0 killed"), "{line}");
    server.stop().await;
}
