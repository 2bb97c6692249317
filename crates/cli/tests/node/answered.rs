//! An answered call has kept both what it changed and what it published, and a call that was not answered both or none:
//! held against `kill -9` at random points under load.
//!
//! `EDGEFAAS_CRASH_ROUNDS` says how often the node is killed, `EDGEFAAS_CRASH_SEED` repeats a run's points in time (as
//! far as the machine does).

use std::collections::HashSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

use crate::load::{Connection, Random};
use crate::support::{PATIENCE, Running};

/// What a CI run has time for.
const ROUNDS: u64 = 10;
/// Rounds that may follow while fewer than [`ENOUGH`] calls were answered.
const MORE_ROUNDS: u64 = 30;
/// Fewer answered calls are no load.
const ENOUGH: usize = 100;
/// Clients that call at the same time.
const CALLERS: usize = 8;
/// Longer than a start takes to publish what is left over.
const LOST_AFTER: Duration = Duration::from_secs(20);
/// Fewer messages than a session's queue takes, over all callers of a round.
const MAX_CALLS: usize = 400;

const MANIFEST: &str = r#"
app = "a"

[functions.both]
main = "both.js"
permissions = { objects = ["round-*"], publish = ["out"] }

[functions.tell]
main = "tell.js"
permissions = { publish = ["out"] }

[functions.read]
main = "read.js"
permissions = { objects = ["round-*"] }
"#;
/// An object of its own for each round: it has at most 10,000 fields.
const BOTH: &str = r#"
export default async (event, context) => {
    const [round] = event.text().split("-");
    await context.object("round-" + round).register(event.text()).set(true);
    await context.publish("out", event.text(), { qos: 1 });
};
"#;
const TELL: &str = r#"
export default (event, context) => context.publish("out", event.text(), { qos: 1 });
"#;
const READ: &str = r#"
export default async (event, context) => {
    const names = event.json();
    const object = (name) => context.object("round-" + name.split("-")[0]);
    const seen = await Promise.all(names.map((name) => object(name).register(name).get()));
    return names.filter((_, index) => seen[index]);
};
"#;

/// The calls of one client.
#[derive(Default)]
struct Called {
    begun: Vec<String>,
    answered: Vec<String>,
}

#[test]
fn answered_calls_have_kept_changes_and_messages_after_kill_9() {
    let rounds =
        std::env::var("EDGEFAAS_CRASH_ROUNDS").map_or(ROUNDS, |rounds| rounds.parse().expect("a number"));
    let mut random = Random::seeded("EDGEFAAS_CRASH_SEED");
    let home = tempfile::tempdir().unwrap();
    let data = home.path().join("data");
    let node = Running::start(&data, &[]);
    deploy(home.path(), &node);
    // Its messages wait for it.
    let mut session = Connection::open(&node.mqtt_port, "keeper", false).expect("connects");
    session.subscribe("out", 1).expect("subscribes");
    session.leave().expect("leaves");
    node.kill();
    let (mut answered, mut lost) = (0, Vec::new());
    let mut round = 0;
    // On a busy machine a node may be killed before it has answered anything: then there are more rounds.
    while round < rounds || answered <= ENOUGH && round < rounds + MORE_ROUNDS {
        round += 1;
        let node = Running::start(&data, &[]);
        let alive = Duration::from_micros(30_000 + random.below(300_000));
        let http = &node.http.clone();
        let called: Vec<Called> = std::thread::scope(|scope| {
            let callers: Vec<_> = (0..CALLERS)
                .map(|caller| scope.spawn(move || call(http, &format!("{round}-{caller}"), caller)))
                .collect();
            std::thread::sleep(alive);
            node.kill();
            callers.into_iter().map(|caller| caller.join().expect("no panic")).collect()
        });
        let node = Running::start(&data, &[]);
        let changes: HashSet<String> =
            called.iter().flat_map(|called| changes(&node, &called.begun)).collect();
        let wanted = called.iter().flat_map(|called| &called.answered).chain(&changes);
        let messages = drain(&node.mqtt_port, wanted.cloned().collect());
        for called in &called {
            answered += called.answered.len();
            for name in &called.begun {
                let is_answered = called.answered.contains(name);
                let is_changed = changes.contains(name);
                let is_published = messages.contains(name);
                // Every second client only publishes.
                let is_lost = match name.contains("tell") {
                    true => is_answered && !is_published,
                    false => is_answered && !is_changed || is_changed != is_published,
                };
                if is_lost {
                    lost.push(format!(
                        "{name}: answered {is_answered}, changed {is_changed}, published {is_published}"
                    ));
                }
            }
        }
        node.kill();
    }
    println!("{answered} answered calls over {round} kills");
    assert!(lost.is_empty(), "of {answered} answered calls: {lost:#?}");
    assert!(answered > ENOUGH, "there was a load: {answered} calls");
}

fn deploy(home: &Path, node: &Running) {
    let app = home.join("app");
    std::fs::create_dir_all(&app).unwrap();
    for (name, text) in
        [("edgefaas.toml", MANIFEST), ("both.js", BOTH), ("tell.js", TELL), ("read.js", READ)]
    {
        std::fs::write(app.join(name), text).unwrap();
    }
    node.ok(&["deploy", app.to_str().unwrap()]);
}

/// Calls until the connection ends.
fn call(http: &str, prefix: &str, caller: usize) -> Called {
    let function = ["both", "tell"][caller % 2];
    let mut called = Called::default();
    let Ok(stream) = TcpStream::connect(http) else { return called };
    stream.set_read_timeout(Some(PATIENCE)).expect("a time limit");
    let mut answers = BufReader::new(stream.try_clone().expect("a second handle"));
    let mut stream = stream;
    for number in 0..MAX_CALLS {
        let name = format!("{prefix}-{function}-{number}");
        let length = name.len();
        called.begun.push(name.clone());
        let head = format!("POST /fn/{function} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {length}");
        if stream.write_all(format!("{head}\r\n\r\n{name}").as_bytes()).is_err() {
            break;
        }
        match status(&mut answers) {
            Some(status) => assert!((200..300).contains(&status), "{status}"),
            None => break,
        }
        called.answered.push(name);
    }
    called
}

/// The status of the next answer, which has no body or one of a given length; nothing if the node is gone.
fn status(answers: &mut BufReader<TcpStream>) -> Option<u16> {
    let (mut status, mut length) = (None, 0);
    loop {
        let mut line = String::new();
        if answers.read_line(&mut line).ok()? == 0 {
            return None;
        }
        let line = line.trim_end().to_ascii_lowercase();
        if let Some(value) = line.strip_prefix("content-length: ") {
            length = value.parse().ok()?;
        }
        if line.is_empty() {
            break;
        }
        status = status.or_else(|| line.split(' ').nth(1)?.parse().ok());
    }
    let mut body = vec![0; length];
    answers.read_exact(&mut body).ok()?;
    status
}

/// The messages that wait for the session; those that are wanted among them may come a moment after the start.
fn drain(port: &str, mut wanted: HashSet<String>) -> HashSet<String> {
    let mut session = Connection::open(port, "keeper", false).expect("connects");
    assert!(session.session_present, "the session is gone");
    let mut last = Connection::open(port, "last", true).expect("connects");
    last.publish(2, "out", 1, b"last").expect("sent");
    wanted.insert("last".to_owned());
    let mut messages = HashSet::new();
    while !wanted.is_empty() {
        // What has not come by then is lost.
        let Some((first_byte, body)) = session.receive_within(LOST_AFTER).expect("it stays") else { break };
        assert_eq!(first_byte & 0xf6, 0x32, "PUBLISH at QoS 1");
        let topic = 2 + usize::from(u16::from_be_bytes([body[0], body[1]]));
        session.ack(4, u16::from_be_bytes([body[topic], body[topic + 1]])).expect("it stays");
        let text = String::from_utf8(body[topic + 2..].to_vec()).expect("text");
        wanted.remove(&text);
        messages.insert(text);
    }
    session.leave().expect("leaves");
    messages
}

/// Which of the registers are set.
fn changes(node: &Running, names: &[String]) -> HashSet<String> {
    let (status, body) = node.http("POST", "/fn/read", &serde_json::to_string(names).unwrap());
    assert_eq!(status, 200, "{body}");
    serde_json::from_str(&body).unwrap()
}
