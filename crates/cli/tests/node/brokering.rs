//! MQTT clients that others wrote, with sessions, wills, retained messages and shared subscriptions.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::Duration;

use rumqttc::v5;

use crate::support::{PATIENCE, Running, has, skipped};

fn node(home: &tempfile::TempDir) -> Running {
    Running::start(&home.path().join("data"), &[])
}

fn ok(mut command: Command) -> String {
    let Output { status, stdout, stderr } = command.output().unwrap();
    assert!(status.success(), "{command:?}: {}", String::from_utf8_lossy(&stderr));
    String::from_utf8(stdout).unwrap()
}

#[test]
fn paho_has_what_it_asks_for() {
    let python = std::env::var("EDGEFAAS_TEST_PYTHON").unwrap_or_else(|_| "python3".into());
    if !has(&python, &["-c", "import paho.mqtt.client"]) {
        return skipped("python3 with paho-mqtt");
    }
    for version in ["4", "5"] {
        let home = tempfile::tempdir().unwrap();
        let node = node(&home);
        let mut client = Command::new(&python);
        client.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/node/clients/paho_broker.py"));
        client.args([&node.mqtt_port, version]);
        assert_eq!(ok(client).trim(), "ok", "version {version}");
    }
}

#[test]
fn mqtt_js_has_what_it_asks_for() {
    let path = std::env::var("EDGEFAAS_TEST_NODE_PATH").unwrap_or_default();
    let mut probe = Command::new("node");
    probe.env("NODE_PATH", &path).args(["-e", "require('mqtt')"]);
    if !probe.output().is_ok_and(|output| output.status.success()) {
        return skipped("node with the package mqtt");
    }
    for version in ["4", "5"] {
        let home = tempfile::tempdir().unwrap();
        let node = node(&home);
        let mut client = Command::new("node");
        client.env("NODE_PATH", &path);
        client.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/node/clients/mqtt_js_broker.cjs"));
        client.args([&node.mqtt_port, version]);
        assert_eq!(ok(client).trim(), "ok", "version {version}");
    }
}

/// One of mosquitto's clients.
fn mosquitto(node: &Running, tool: &str, version: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(tool);
    command.args(["-p", &node.mqtt_port, "-V", version]).args(arguments);
    command
}

/// A `mosquitto_sub` that has subscribed: with `-d` it says so, in lines that messages are told from (and, into a pipe,
/// at once only where its output is not buffered).
fn listening(node: &Running, version: &str, arguments: &[&str]) -> (Child, BufReader<ChildStdout>) {
    let mut child = Command::new("stdbuf")
        .args([
            "-oL",
            "mosquitto_sub",
            "-d",
            "-F",
            "message %t %q %r %p",
            "-p",
            &node.mqtt_port,
            "-V",
            version,
        ])
        .args(arguments)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().expect("piped"));
    until(&mut lines, "Subscribed");
    (child, lines)
}

/// The next line that starts like this.
fn until(lines: &mut BufReader<ChildStdout>, start: &str) -> String {
    loop {
        let mut line = String::new();
        assert_ne!(lines.read_line(&mut line).unwrap(), 0, "it ended before {start:?}");
        if line.starts_with(start) {
            return line.trim_end().to_owned();
        }
    }
}

#[test]
fn mosquittos_clients_have_what_they_ask_for() {
    if !has("mosquitto_pub", &["--version"]) && Command::new("mosquitto_pub").output().is_err() {
        return skipped("mosquitto-clients");
    }
    for version in ["311", "5"] {
        let home = tempfile::tempdir().unwrap();
        let node = node(&home);
        let publish = |arguments: &[&str]| {
            ok(mosquitto(&node, "mosquitto_pub", version, &[&["-q", "1"], arguments].concat()))
        };
        // A session with messages that wait, of all QoS that do.
        let mut session = vec!["-i", "away", "-c", "-q", "2", "-t", "away/#"];
        if version == "5" {
            session.extend(["-x", "3600"]);
        }
        ok(mosquitto(&node, "mosquitto_sub", version, &[&session[..], &["-E"]].concat()));
        for number in ["0", "1", "2", "3"] {
            publish(&["-q", "2", "-t", "away/t", "-m", number]);
        }
        let some = [&session[..], &["-C", "4", "-W", "60"]].concat();
        assert_eq!(ok(mosquitto(&node, "mosquitto_sub", version, &some)), "0\n1\n2\n3\n", "{version}");
        // A will: the client is killed.
        let (mut watcher, mut wills) = listening(&node, version, &["-t", "will/#", "-q", "2"]);
        let will = ["-t", "none", "-i", "mortal", "--will-topic", "will/mortal", "--will-payload", "gone"];
        let (mut mortal, _) =
            listening(&node, version, &[&will[..], &["--will-qos", "2", "--will-retain"]].concat());
        mortal.kill().unwrap();
        mortal.wait().unwrap();
        assert_eq!(until(&mut wills, "message"), "message will/mortal 2 0 gone");
        watcher.kill().unwrap();
        watcher.wait().unwrap();
        // Retained messages: the will, and another; then they are removed.
        publish(&["-t", "will/other", "-m", "kept", "-r"]);
        let kept = ["-t", "will/#", "--retained-only", "-C", "2", "-W", "60", "-F", "%t %r %p"];
        let mut kept: Vec<String> =
            ok(mosquitto(&node, "mosquitto_sub", version, &kept)).lines().map(str::to_owned).collect();
        kept.sort();
        assert_eq!(kept, ["will/mortal 1 gone", "will/other 1 kept"]);
        for topic in ["will/mortal", "will/other"] {
            publish(&["-t", topic, "-r", "-n"]);
        }
        // A shared subscription: each message goes to one of two.
        let member = |name| listening(&node, version, &["-i", name, "-q", "1", "-t", "$share/m/work/+"]);
        let members = [member("one"), member("two")];
        for number in 0..10 {
            publish(&["-t", &format!("work/{number}"), "-m", "job"]);
        }
        // A job is acknowledged to its publisher before a member has it: what a member has not read is lost if it ends now.
        let (job, printed) = std::sync::mpsc::sync_channel(100);
        let children = members.map(|(child, lines)| {
            let job = job.clone();
            std::thread::spawn(move || {
                for line in lines.lines().map_while(Result::ok) {
                    if let Some(text) = line.strip_prefix("message ") {
                        let _ = job.send(text.trim_end().to_owned());
                    }
                }
            });
            child
        });
        drop(job);
        let mut jobs: Vec<String> =
            (0..10).map(|_| printed.recv_timeout(PATIENCE).expect("every job is done")).collect();
        // The end is for everybody, and comes after the rest: none is done twice.
        ok(mosquitto(&node, "mosquitto_sub", version, &["-t", "none", "-E"]));
        children.into_iter().for_each(|mut child| child_ends(&mut child));
        jobs.extend(printed);
        jobs.sort();
        let expected: Vec<String> = (0..10).map(|number| format!("work/{number} 1 0 job")).collect();
        assert_eq!(jobs, expected);
    }
}

/// SIGTERM: `mosquitto_sub` leaves in good order, and what it printed is there.
fn child_ends(child: &mut Child) {
    assert!(Command::new("kill").arg(child.id().to_string()).status().unwrap().success());
    child.wait().unwrap();
}

#[test]
fn rumqttc_takes_up_its_session() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let home = tempfile::tempdir().unwrap();
    let node = node(&home);
    let port: u16 = node.mqtt_port.parse().unwrap();
    runtime.block_on(async {
        tokio::time::timeout(PATIENCE, async {
            rumqttc_v4(port).await;
            rumqttc_v5(port).await;
        })
        .await
        .expect("in time");
    });
}

const COUNT: usize = 40;

async fn rumqttc_v4(port: u16) {
    use rumqttc::{AsyncClient, Event, MqttOptions, Packet, QoS};
    let options = |id: &str, clean: bool| {
        let mut options = MqttOptions::new(id, "127.0.0.1", port);
        options.set_clean_session(clean).set_keep_alive(Duration::from_secs(60));
        options
    };
    let (subscriber, mut events) = AsyncClient::new(options("rumqttc-4", false), 100);
    subscriber.subscribe("four/#", QoS::ExactlyOnce).await.unwrap();
    while !matches!(events.poll().await.unwrap(), Event::Incoming(Packet::SubAck(_))) {}
    subscriber.disconnect().await.unwrap();
    while events.poll().await.is_ok() {}

    let (publisher, mut publishing) = AsyncClient::new(options("rumqttc-4-publisher", true), 100);
    for number in 0..COUNT {
        let qos = if number % 2 == 0 { QoS::AtLeastOnce } else { QoS::ExactlyOnce };
        publisher.publish(format!("four/{}", number % 2), qos, false, [number as u8]).await.unwrap();
    }
    let mut acknowledged = 0;
    while acknowledged < COUNT {
        let event = publishing.poll().await.unwrap();
        acknowledged +=
            usize::from(matches!(event, Event::Incoming(Packet::PubAck(_) | Packet::PubComp(_))));
    }
    let (_subscriber, mut events) = AsyncClient::new(options("rumqttc-4", false), 100);
    let mut got = [Vec::new(), Vec::new()];
    while got[0].len() + got[1].len() < COUNT {
        match events.poll().await.unwrap() {
            Event::Incoming(Packet::ConnAck(ack)) => assert!(ack.session_present),
            Event::Incoming(Packet::Publish(publish)) => {
                got[usize::from(publish.payload[0] % 2)].push(publish.payload[0])
            }
            _ => {}
        }
    }
    in_order(&got);
}

async fn rumqttc_v5(port: u16) {
    use v5::mqttbytes::QoS;
    use v5::mqttbytes::v5::{ConnectProperties, Filter, LastWill, Packet};
    use v5::{AsyncClient, Event, MqttOptions};
    let options = |id: &str, clean: bool| {
        let mut options = MqttOptions::new(id, "127.0.0.1", port);
        let mut properties = ConnectProperties::new();
        properties.session_expiry_interval = (!clean).then_some(3600);
        options.set_clean_start(clean).set_connect_properties(properties);
        options.set_keep_alive(Duration::from_secs(60));
        options
    };
    let (subscriber, mut events) = AsyncClient::new(options("rumqttc-5", false), 100);
    let mut filter = Filter::new("five/#", QoS::ExactlyOnce);
    filter.nolocal = true;
    subscriber.subscribe_many([filter, Filter::new("will/five", QoS::AtLeastOnce)]).await.unwrap();
    while !matches!(events.poll().await.unwrap(), Event::Incoming(Packet::SubAck(_))) {}
    subscriber.disconnect().await.unwrap();
    while events.poll().await.is_ok() {}

    let (publisher, mut publishing) = AsyncClient::new(options("rumqttc-5-publisher", true), 100);
    for number in 0..COUNT {
        let qos = if number % 2 == 0 { QoS::AtLeastOnce } else { QoS::ExactlyOnce };
        publisher.publish(format!("five/{}", number % 2), qos, false, vec![number as u8]).await.unwrap();
    }
    let mut acknowledged = 0;
    while acknowledged < COUNT {
        let event = publishing.poll().await.unwrap();
        acknowledged +=
            usize::from(matches!(event, Event::Incoming(Packet::PubAck(_) | Packet::PubComp(_))));
    }
    // A client that is dropped without a word has a will.
    let mut mortal = options("rumqttc-5-mortal", true);
    mortal.set_last_will(LastWill::new("will/five", "gone", QoS::AtLeastOnce, false, None));
    let (_mortal, mut dying) = AsyncClient::new(mortal, 10);
    while !matches!(dying.poll().await.unwrap(), Event::Incoming(Packet::ConnAck(_))) {}
    drop(dying);

    let (_subscriber, mut events) = AsyncClient::new(options("rumqttc-5", false), 100);
    let mut got = [Vec::new(), Vec::new()];
    let mut will = None;
    while got[0].len() + got[1].len() < COUNT || will.is_none() {
        match events.poll().await.unwrap() {
            Event::Incoming(Packet::ConnAck(ack)) => assert!(ack.session_present),
            Event::Incoming(Packet::Publish(publish)) if publish.topic == "will/five" => {
                will = Some(publish.payload)
            }
            Event::Incoming(Packet::Publish(publish)) => {
                got[usize::from(publish.payload[0] % 2)].push(publish.payload[0])
            }
            _ => {}
        }
    }
    assert_eq!(will.as_deref(), Some(&b"gone"[..]));
    in_order(&got);
}

/// Even numbers were published at QoS 1, odd ones at QoS 2: each in order, each once.
fn in_order(got: &[Vec<u8>; 2]) {
    for (odd, got) in (0..).zip(got) {
        let expected: Vec<u8> = (0..COUNT as u8).filter(|number| number % 2 == odd).collect();
        assert_eq!(*got, expected);
    }
}
