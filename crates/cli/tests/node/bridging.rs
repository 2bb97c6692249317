//! Bridges to a real mosquitto, and between nodes.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Instant;

use crate::support::{PATIENCE, Running, edgefaas, free_port, look_again, skipped};

/// Looks again and again until it is there.
pub fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "{what} did not happen");
        look_again();
    }
}

/// mosquitto with what it keeps in a folder; it may be stopped and started again.
pub struct Mosquitto {
    folder: PathBuf,
    pub port: String,
    child: Option<Child>,
}

impl Mosquitto {
    /// None if it is not installed.
    pub fn start(folder: &Path) -> Option<Self> {
        Command::new("mosquitto").arg("-h").output().ok()?;
        let mut this = Self { folder: folder.to_owned(), port: free_port().to_string(), child: None };
        std::fs::create_dir_all(folder).unwrap();
        let (place, port) = (folder.display(), &this.port);
        let config = format!(
            "listener {port} 127.0.0.1\nallow_anonymous true\nset_tcp_nodelay true\npersistence true\n\
             persistence_location {place}/\nmax_queued_messages 0\nmax_inflight_messages 50\nuser root\n"
        );
        std::fs::write(folder.join("mosquitto.conf"), config).unwrap();
        this.again();
        Some(this)
    }

    fn again(&mut self) {
        let mut command = Command::new("mosquitto");
        command.arg("-c").arg(self.folder.join("mosquitto.conf"));
        self.child = Some(command.stderr(Stdio::null()).stdout(Stdio::null()).spawn().unwrap());
        eventually("mosquitto", || TcpStream::connect(format!("127.0.0.1:{}", self.port)).ok());
    }

    /// In good order: it writes down what it keeps.
    fn stop(&mut self) {
        let mut child = self.child.take().expect("it runs");
        assert!(Command::new("kill").arg(child.id().to_string()).status().unwrap().success());
        child.wait().unwrap();
    }
}

impl Drop for Mosquitto {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A node with a bridge called `b`.
fn bridged(home: &Path, port: &str, settings: &str) -> Running {
    let file = home.join("node.toml");
    let bridge = format!("[[bridges]]\nname = \"b\"\nurl = \"mqtt://127.0.0.1:{port}\"\n{settings}\n");
    std::fs::write(&file, bridge).unwrap();
    Running::start(&home.join("data"), &["--config", file.to_str().unwrap()])
}

fn bridge(node: &Running) -> serde_json::Value {
    let status: serde_json::Value = serde_json::from_str(&node.ok(&["status", "-o", "json"])).unwrap();
    status["bridges"][0].clone()
}

fn connected(node: &Running) {
    eventually("the bridge", || (bridge(node)["connected"] == true).then_some(()));
}

fn ok(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn publish(port: &str, qos: &str, topic: &str, text: &str) {
    ok(Command::new("mosquitto_pub").args(["-V", "5", "-p", port, "-q", qos, "-t", topic, "-m", text]));
}

/// Publishes one message for each line, over one connection.
fn publish_lines(port: &str, qos: &str, topic: &str, lines: impl Iterator<Item = u32>) {
    let mut command = Command::new("mosquitto_pub");
    command.args(["-V", "5", "-p", port, "-q", qos, "-t", topic, "-l"]).stdin(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    lines.for_each(|line| writeln!(stdin, "{line}").unwrap());
    drop(stdin);
    assert!(child.wait().unwrap().success());
}

/// A subscriber that is there.
struct Subscriber(Child, BufReader<ChildStdout>);

impl Subscriber {
    fn start(port: &str, filter: &str) -> Self {
        // It does not say that it has subscribed before it has a message to print.
        let ready = ["-V", "5", "-p", port, "-q", "1", "-t", "ready", "-m", "yes", "-r"];
        ok(Command::new("mosquitto_pub").args(ready));
        let mut command = Command::new("mosquitto_sub");
        command.args(["-V", "5", "-p", port, "-q", "2", "-t", filter, "-F", "%t %q %r %p"]);
        if filter != "#" {
            command.args(["-t", "ready"]);
        }
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        let mut this = Self(child, lines);
        assert_eq!(this.message(), "ready 1 1 yes");
        this
    }

    fn message(&mut self) -> String {
        let mut line = String::new();
        assert_ne!(self.1.read_line(&mut line).unwrap(), 0, "it ended early");
        line.trim().to_owned()
    }
}

impl Drop for Subscriber {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A session that waits for messages, and all that it has got, in order.
fn keep(port: &str, filter: &str) {
    ok(&mut keeper(port, filter, &["-E"]));
}

fn kept(port: &str, filter: &str, count: usize) -> Vec<String> {
    let count = count.to_string();
    let text = ok(&mut keeper(port, filter, &["-C", &count, "-W", "120", "-F", "%q %p"]));
    text.lines().map(str::to_owned).collect()
}

/// By MQTT 3.1.1: mosquitto 2.0.11 itself sends a session of MQTT 5 more than its client said it takes.
fn keeper(port: &str, filter: &str, more: &[&str]) -> Command {
    let mut command = Command::new("mosquitto_sub");
    command.args(["-V", "311", "-p", port, "-i", "keeper", "-c", "-q", "2", "-t", filter]);
    command.args(more);
    command
}

/// The numbers that came at this quality of service.
fn of_qos(lines: &[String], qos: &str) -> Vec<u32> {
    let numbers = lines.iter().filter_map(|line| line.strip_prefix(qos)?.trim().parse().ok());
    numbers.collect()
}

const OUT: &str = r#"topics = [{ filter = "out/#", direction = "out", qos = 2 }]"#;

#[test]
fn messages_go_both_ways_with_their_prefixes() {
    for version in ["5", "3.1.1"] {
        let home = tempfile::tempdir().unwrap();
        let Some(mosquitto) = Mosquitto::start(&home.path().join("m")) else { return skipped("mosquitto") };
        let settings = format!(
            r#"version = "{version}"
            topics = [
              {{ filter = "temp/+", direction = "out", qos = 2, local_prefix = "house/", remote_prefix = "site7/" }},
              {{ filter = "cmd/#", direction = "in", qos = 2, local_prefix = "cloud/", remote_prefix = "down/" }},
              {{ filter = "both/#", direction = "both", qos = 1 }},
            ]"#
        );
        publish(&mosquitto.port, "1", "down/cmd/early", "never seen: nobody subscribed yet");
        let node = bridged(home.path(), &mosquitto.port, &settings);
        connected(&node);
        let mut there = Subscriber::start(&mosquitto.port, "#");
        let mut here = Subscriber::start(&node.mqtt_port, "#");
        for qos in ["0", "1", "2"] {
            publish(&node.mqtt_port, qos, "house/temp/1", "warm");
            assert_eq!(there.message(), format!("site7/temp/1 {qos} 0 warm"), "version {version}");
            assert_eq!(here.message(), format!("house/temp/1 {qos} 0 warm"));
            publish(&mosquitto.port, qos, "down/cmd/a/b", "do");
            assert_eq!(there.message(), format!("down/cmd/a/b {qos} 0 do"));
            assert_eq!(here.message(), format!("cloud/cmd/a/b {qos} 0 do"), "version {version}");
        }
        // Neither comes back: the next message is the other one.
        publish(&node.mqtt_port, "1", "both/x", "from here");
        assert_eq!(there.message(), "both/x 1 0 from here");
        publish(&mosquitto.port, "1", "both/x", "from there");
        assert_eq!(there.message(), "both/x 1 0 from there");
        assert_eq!([here.message(), here.message()], ["both/x 1 0 from here", "both/x 1 0 from there"]);
        publish(&node.mqtt_port, "1", "both/end", "end");
        assert_eq!([here.message(), there.message()], ["both/end 1 0 end"; 2]);
        let status = eventually("all acknowledged", || {
            let status = bridge(&node);
            // An acknowledged message leaves the queue a moment after it is counted.
            (status["messages_out"] == 5 && status["queued"] == 0).then_some(status)
        });
        assert_eq!(status["messages_in"], 4, "{status}");
        let shown = node.ok(&["status"]);
        assert!(shown.contains("b to mqtt://127.0.0.1:"), "{shown}");
    }
}

#[test]
fn messages_wait_for_a_broker_that_is_away_and_for_a_node_that_is() {
    let home = tempfile::tempdir().unwrap();
    let Some(mut mosquitto) = Mosquitto::start(&home.path().join("m")) else { return skipped("mosquitto") };
    let settings = r#"topics = [{ filter = "t/#", direction = "both", qos = 2 }]"#;
    let node = bridged(home.path(), &mosquitto.port, settings);
    connected(&node);
    keep(&mosquitto.port, "t/out");
    mosquitto.stop();
    publish_lines(&node.mqtt_port, "1", "t/out", 0..300);
    publish_lines(&node.mqtt_port, "2", "t/out", 300..600);
    assert_eq!(bridge(&node)["queued"], 600);
    mosquitto.again();
    let got = kept(&mosquitto.port, "t/out", 600);
    assert_eq!(of_qos(&got, "1"), (0..300).collect::<Vec<_>>());
    assert_eq!(of_qos(&got, "2"), (300..600).collect::<Vec<_>>());
    // And the other way round.
    connected(&node);
    keep(&node.mqtt_port, "t/in");
    node.kill();
    publish_lines(&mosquitto.port, "1", "t/in", 0..300);
    publish_lines(&mosquitto.port, "2", "t/in", 300..600);
    let node = bridged(home.path(), &mosquitto.port, settings);
    let got = kept(&node.mqtt_port, "t/in", 600);
    assert_eq!(of_qos(&got, "2"), (300..600).collect::<Vec<_>>());
    let mut once = of_qos(&got, "1");
    once.dedup();
    assert_eq!(once, (0..300).collect::<Vec<_>>());
}

#[test]
fn a_killed_node_loses_nothing_of_its_queue() {
    let home = tempfile::tempdir().unwrap();
    let Some(mut mosquitto) = Mosquitto::start(&home.path().join("m")) else { return skipped("mosquitto") };
    keep(&mosquitto.port, "out/x");
    let node = bridged(home.path(), &mosquitto.port, OUT);
    connected(&node);
    mosquitto.stop();
    publish_lines(&node.mqtt_port, "2", "out/x", 0..200);
    node.kill();
    let node = bridged(home.path(), &mosquitto.port, OUT);
    assert_eq!(bridge(&node)["queued"], 200);
    mosquitto.again();
    let numbers = |count| of_qos(&kept(&mosquitto.port, "out/x", count), "2");
    assert_eq!(numbers(200), (0..200).collect::<Vec<_>>());
    connected(&node);
    // Killed in the middle of it, again and again: each arrives once.
    let mut node = Some(node);
    for round in 0..5 {
        let alive = node.take().unwrap();
        let start = 1000 * (round + 1);
        publish_lines(&alive.mqtt_port, "2", "out/x", start..start + 400);
        alive.kill();
        let again = bridged(home.path(), &mosquitto.port, OUT);
        assert_eq!(numbers(400), (start..start + 400).collect::<Vec<_>>(), "round {round}");
        node = Some(again);
    }
}

#[test]
fn an_entry_that_is_gone_is_unsubscribed_at_the_other_broker() {
    for version in ["5", "3.1.1"] {
        let home = tempfile::tempdir().unwrap();
        let Some(mosquitto) = Mosquitto::start(&home.path().join("m")) else { return skipped("mosquitto") };
        let kept = r#"{ filter = "kept/#", direction = "in", remote_prefix = "x/" }"#;
        let gone = r#"{ filter = "gone/#", direction = "in", remote_prefix = "x/" }"#;
        let settings = |topics: &str| format!("version = \"{version}\"\ntopics = [{topics}]");
        // The reason code of the PUBACK says whether there is a subscriber.
        let is_subscribed = |topic: &str| {
            let mut publisher = Command::new("mosquitto_pub");
            publisher.args(["-V", "5", "-d", "-p", &mosquitto.port, "-q", "1", "-t", topic, "-m", "x"]);
            let said = ok(&mut publisher);
            assert!(said.contains("RC:0)") || said.contains("RC:16)"), "{said}");
            said.contains("RC:0)")
        };
        let node = bridged(home.path(), &mosquitto.port, &settings(&format!("{kept}, {gone}")));
        eventually("both subscriptions", || {
            (is_subscribed("x/kept/1") && is_subscribed("x/gone/1")).then_some(())
        });
        node.kill();
        let node = bridged(home.path(), &mosquitto.port, &settings(kept));
        eventually("the end of one subscription", || (!is_subscribed("x/gone/1")).then_some(()));
        assert!(is_subscribed("x/kept/1"));
        // It is forgotten, and may come again.
        node.kill();
        let node = bridged(home.path(), &mosquitto.port, &settings(&format!("{kept}, {gone}")));
        eventually("both subscriptions again", || is_subscribed("x/gone/1").then_some(()));
        drop(node);
    }
}

#[test]
fn wildcards_do_not_reach_the_nodes_own_topics() {
    let home = tempfile::tempdir().unwrap();
    let Some(mosquitto) = Mosquitto::start(&home.path().join("m")) else { return skipped("mosquitto") };
    let settings = r##"topics = [
        { filter = "#", direction = "in", remote_prefix = "site/" },
        { filter = "$faas/fn/f/invoke", direction = "in", remote_prefix = "calls/" },
    ]"##;
    let node = bridged(home.path(), &mosquitto.port, settings);
    connected(&node);
    let source = home.path().join("f.js");
    std::fs::write(&source, "export default (event) => 'ran for ' + event.text()").unwrap();
    node.ok(&["deploy", source.to_str().unwrap()]);
    let mut here = Subscriber::start(&node.mqtt_port, "answers/#");
    let call = |topic: &str, text: &str| {
        let mut publisher = Command::new("mosquitto_pub");
        publisher.args(["-V", "5", "-p", &mosquitto.port, "-q", "1", "-t", topic, "-m", text]);
        ok(publisher.args(["-D", "publish", "response-topic", "answers/x"]));
    };
    call("site/$faas/fn/f/invoke", "a stranger");
    let status = eventually("the message", || {
        let status = bridge(&node);
        // It is counted before the reason is kept.
        (status["dropped"] == 1 && status["last_error"].is_string()).then_some(status)
    });
    assert!(status["last_error"].as_str().unwrap().contains("$faas/fn/f/invoke"), "{status}");
    // Where an entry names the topic it is meant.
    call("calls/$faas/fn/f/invoke", "a friend");
    assert!(here.message().ends_with("ran for a friend"));
    publish(&mosquitto.port, "1", "site/answers/y", "a message");
    assert_eq!(here.message(), "answers/y 1 0 a message");
}

#[test]
fn a_message_that_is_too_large_for_a_function_holds_up_nothing() {
    let home = tempfile::tempdir().unwrap();
    let Some(mosquitto) = Mosquitto::start(&home.path().join("m")) else { return skipped("mosquitto") };
    let node = bridged(home.path(), &mosquitto.port, r#"topics = [{ filter = "t/#", direction = "in" }]"#);
    connected(&node);
    let app = home.path().join("app");
    std::fs::create_dir_all(&app).unwrap();
    let manifest = "app = \"a\"\n[functions.f]\nmain = \"f.js\"\nlimits = { payload = \"1KiB\" }\n\
                    triggers = [{ mqtt = \"t/in\", qos = 1, consume = true }]\n";
    std::fs::write(app.join("edgefaas.toml"), manifest).unwrap();
    std::fs::write(app.join("f.js"), "export default () => 1").unwrap();
    node.ok(&["deploy", app.to_str().unwrap()]);
    let mut here = Subscriber::start(&node.mqtt_port, "t/#");
    publish(&mosquitto.port, "1", "t/in", &"x".repeat(5000));
    publish(&mosquitto.port, "1", "t/other", "next");
    assert_eq!(here.message(), "t/other 1 0 next");
    assert_eq!(bridge(&node)["dropped"], 1);
}

#[test]
fn a_message_that_is_too_large_for_the_node_is_left_out() {
    let home = tempfile::tempdir().unwrap();
    let Some(mosquitto) = Mosquitto::start(&home.path().join("m")) else { return skipped("mosquitto") };
    let settings = "version = \"3.1.1\"\ntopics = [{ filter = \"t/#\", direction = \"in\", qos = 2 }]\n\
                    [broker]\nmax_packet = \"16KiB\"";
    let node = bridged(home.path(), &mosquitto.port, settings);
    connected(&node);
    let mut here = Subscriber::start(&node.mqtt_port, "t/#");
    for qos in ["0", "1", "2"] {
        publish(&mosquitto.port, qos, "t/large", &"x".repeat(100_000));
        publish(&mosquitto.port, qos, "t/small", "next");
        assert_eq!(here.message(), format!("t/small {qos} 0 next"));
    }
    let status = bridge(&node);
    assert_eq!((&status["dropped"], &status["connected"]), (&3.into(), &true.into()), "{status}");
    assert!(status["last_error"].as_str().unwrap().contains("\"t/large\" is too large"), "{status}");
}

#[test]
fn a_loop_of_two_bridges_ends() {
    if Command::new("mosquitto_pub").output().is_err() {
        return skipped("mosquitto-clients");
    }
    let home = tempfile::tempdir().unwrap();
    let settings = r#"topics = [{ filter = "loop/#", direction = "both", qos = 1 }]"#;
    let (one_home, two_home) = (home.path().join("1"), home.path().join("2"));
    std::fs::create_dir_all(&one_home).unwrap();
    std::fs::create_dir_all(&two_home).unwrap();
    let port = free_port().to_string();
    let start_one = || {
        let file = one_home.join("node.toml");
        let url = format!("mqtt://127.0.0.1:{port}");
        std::fs::write(&file, format!("[[bridges]]\nname = \"b\"\nurl = \"{url}\"\n{settings}\n")).unwrap();
        Running::start(&one_home.join("data"), &["--config", file.to_str().unwrap()])
    };
    let one = start_one();
    let file = two_home.join("node.toml");
    let url = format!("mqtt://127.0.0.1:{}", one.mqtt_port);
    std::fs::write(&file, format!("[[bridges]]\nname = \"b\"\nurl = \"{url}\"\n{settings}\n")).unwrap();
    let address = format!("127.0.0.1:{port}");
    let options = ["--config", file.to_str().unwrap(), "--mqtt", &address];
    let two = Running::start(&two_home.join("data"), &options);
    connected(&one);
    connected(&two);
    let mut at_one = Subscriber::start(&one.mqtt_port, "loop/#");
    let mut at_two = Subscriber::start(&two.mqtt_port, "loop/#");
    for text in ["first", "second", "third"] {
        publish(&one.mqtt_port, "1", "loop/x", text);
        // As it is published and once back, and by the way of either bridge at the other. A node takes in nothing that it has
        // sent out: what comes next has the next text.
        for (subscriber, copies) in [(&mut at_one, 2), (&mut at_two, 2)] {
            let got: Vec<String> = (0..copies).map(|_| subscriber.message()).collect();
            assert_eq!(got, vec![format!("loop/x 1 0 {text}"); copies]);
        }
    }
}

#[test]
fn a_bridge_speaks_tls_with_a_password_and_keeps_out_strangers() {
    if Command::new("mosquitto_pub").output().is_err() {
        return skipped("mosquitto-clients");
    }
    let home = tempfile::tempdir().unwrap();
    let (far_data, port) = (home.path().join("far"), free_port().to_string());
    let far = Running::start(&far_data, &["--mqtts", &format!("127.0.0.1:{port}")]);
    let near = home.path().join("near");
    std::fs::create_dir_all(&near).unwrap();
    std::fs::copy(far_data.join("tls-cert.pem"), near.join("ca.pem")).unwrap();
    std::fs::write(near.join("password"), "correct horse\n").unwrap();
    let only_own = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(near.join("password"), only_own).unwrap();
    let mut add = edgefaas(&far.data_dir);
    add.args(["--node", &far.control, "users", "add", "bridge"]);
    let mut add = add.stdin(Stdio::piped()).spawn().unwrap();
    add.stdin.take().unwrap().write_all(b"correct horse\n").unwrap();
    assert!(add.wait().unwrap().success());
    let config = format!(
        "[[bridges]]\nname = \"b\"\nurl = \"mqtts://127.0.0.1:{port}\"\nca = \"ca.pem\"\n\
         username = \"bridge\"\npassword_file = \"password\"\n{OUT}\n"
    );
    std::fs::write(near.join("node.toml"), config).unwrap();
    let file = near.join("node.toml");
    let node = Running::start(&near.join("data"), &["--config", file.to_str().unwrap()]);
    connected(&node);
    // The identifier of the bridge's session is nobody else's.
    let mut stranger = Command::new("mosquitto_pub");
    stranger.args(["-V", "5", "-p", &node.mqtt_port, "-i", "$bridge/b", "-t", "x", "-m", "x"]);
    let refused = stranger.output().unwrap();
    assert!(!refused.status.success());
    assert!(String::from_utf8_lossy(&refused.stderr).contains("Not authorized"), "{refused:?}");
    // A wrong password: the bridge says why it is not there.
    std::fs::write(near.join("password"), "wrong").unwrap();
    node.kill();
    let node = Running::start(&near.join("data"), &["--config", file.to_str().unwrap()]);
    let error = eventually("an error", || bridge(&node)["last_error"].as_str().map(str::to_owned));
    assert!(error.contains("BadUserNamePassword"), "{error}");
}
