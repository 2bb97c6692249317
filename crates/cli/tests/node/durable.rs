//! What is promised of durable invocations, held against `kill -9`.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::support::{PATIENCE, Running, look_again};

const MANIFEST: &str = r#"
app = "a"

[functions.first]
main = "first.js"
triggers = [{ mqtt = "in/+", qos = 1 }]
permissions = { objects = ["o"], publish = ["chain"] }
retry = { attempts = 1000, backoff = "1ms", max_backoff = "10ms" }

[functions.second]
main = "second.js"
triggers = [{ mqtt = "chain", qos = 1 }]
permissions = { objects = ["o"] }
retry = { attempts = 1000, backoff = "1ms", max_backoff = "10ms" }

[functions.read]
main = "read.js"
permissions = { objects = ["o"] }
"#;

/// Counts, tells `second` so, and fails now and then when all is done.
const FIRST: &str = r#"
export default async (event, context) => {
    const object = context.object("o");
    await object.counter("first").add(1);
    await object.register("seen-" + event.text()).set(true);
    await context.publish("chain", event.text(), { qos: 1 });
    if (Math.random() < 0.2) throw new Error("bad luck");
    return "did " + event.text();
};
"#;
const SECOND: &str = r#"
export default async (event, context) => {
    await context.object("o").counter("second").add(1);
    if (Math.random() < 0.2) throw new Error("bad luck");
};
"#;
const READ: &str = r#"
export default async (event, context) => {
    const object = context.object("o");
    const names = event.json();
    const seen = await Promise.all(names.map((name) => object.register("seen-" + name).get()));
    return {
        first: await object.counter("first").value(),
        second: await object.counter("second").value(),
        unseen: names.filter((_, index) => !seen[index]),
    };
};
"#;

fn deploy(home: &Path, node: &Running) {
    let app = home.join("app");
    std::fs::create_dir_all(&app).unwrap();
    for (name, text) in
        [("edgefaas.toml", MANIFEST), ("first.js", FIRST), ("second.js", SECOND), ("read.js", READ)]
    {
        std::fs::write(app.join(name), text).unwrap();
    }
    node.ok(&["deploy", app.to_str().unwrap()]);
}

/// Status and the whole answer, if there is one: the node may be gone any moment.
pub fn request(http: &str, method: &str, path: &str, headers: &str, body: &str) -> Option<(u16, String)> {
    let mut stream = TcpStream::connect(http).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    let length = body.len();
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {length}\r\n{headers}\r\n{body}"
    )
    .ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let status = answer.split(' ').nth(1)?.parse().ok()?;
    answer.contains("\r\n\r\n").then_some((status, answer))
}

pub fn location(answer: &str) -> String {
    let line = answer.lines().find_map(|line| line.strip_prefix("location: "));
    line.expect("202 says where").to_owned()
}

pub fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < until, "{what}");
        look_again();
    }
}

/// Waits until nothing is pending, then gives both counts and which of the names were not seen.
fn settled(node: &Running, names: &[String]) -> (u64, u64, Vec<String>) {
    eventually("all should have ended", || {
        let status: serde_json::Value = serde_json::from_str(&node.ok(&["status", "-o", "json"])).unwrap();
        status["pending"] == 0
    });
    let names = serde_json::to_string(names).unwrap();
    let (status, body) = node.http("POST", "/fn/read", &names);
    assert_eq!(status, 200, "{body}");
    let read: serde_json::Value = serde_json::from_str(&body).unwrap();
    let unseen = read["unseen"].as_array().unwrap().iter().map(|name| name.as_str().unwrap().to_owned());
    (read["first"].as_u64().unwrap(), read["second"].as_u64().unwrap(), unseen.collect())
}

/// A number of milliseconds that differs from round to round.
pub fn moment(round: u64) -> Duration {
    Duration::from_millis(5 + (round * 7919) % 120)
}

#[test]
fn what_got_a_202_is_done_after_kill_9() {
    let home = tempfile::tempdir().unwrap();
    let data = home.path().join("data");
    let mut places = Vec::new();
    let mut names = Vec::new();
    for round in 0..5 {
        let node = Running::start(&data, &[]);
        if round == 0 {
            deploy(home.path(), &node);
        }
        for number in 0..20 {
            let name = format!("{round}-{number}");
            let headers = "prefer: respond-async\r\n";
            let (status, answer) = request(&node.http, "POST", "/fn/first", headers, &name).unwrap();
            assert_eq!(status, 202, "{answer}");
            places.push((location(&answer), name.clone()));
            names.push(name);
        }
        node.kill();
    }
    let node = Running::start(&data, &[]);
    for (at, name) in &places {
        eventually("the outcome should come", || {
            let (status, answer) = request(&node.http, "GET", at, "", "").unwrap();
            assert!(status == 200 && answer.ends_with(&format!("did {name}")) || status == 202, "{answer}");
            status == 200
        });
    }
    // Each ran to its end once, and so did what it set off.
    assert_eq!(settled(&node, &names), (100, 100, vec![]));
}

/// Has four clients make calls with the numbers below `requests`, each again until it is answered, while the node is killed at
/// moments of which each is another. Returns the last node and what `call` made of each answer.
pub fn call_while_killed<T: Send + 'static>(
    data: &Path,
    mut node: Running,
    requests: u64,
    call: impl Fn(&str, u64) -> Option<T> + Send + Sync + 'static,
) -> (Running, BTreeMap<u64, T>) {
    let call = Arc::new(call);
    let mut done = BTreeMap::new();
    let mut rounds = 0;
    while (done.len() as u64) < requests {
        rounds += 1;
        assert!(rounds < 200, "only {} of {requests} after {rounds} rounds", done.len());
        let stop = Arc::new(AtomicBool::new(false));
        let (answered, answers) = std::sync::mpsc::sync_channel(requests as usize);
        let clients: Vec<_> = (0..4)
            .map(|client| {
                let (http, stop, answered) = (node.http.clone(), stop.clone(), answered.clone());
                let call = call.clone();
                let left = (0..requests).filter(|n| n % 4 == client && !done.contains_key(n));
                // Not all in one round, even if the thread that kills the node comes late.
                let left: Vec<u64> = left.take(requests as usize / 16).collect();
                std::thread::spawn(move || {
                    let mut done = Vec::new();
                    for number in left {
                        if stop.load(Ordering::Relaxed) {
                            break;
                        }
                        // Whoever has no answer asks again, with the same key.
                        let Some(answer) = call(&http, number) else { break };
                        done.push((number, answer));
                        let _ = answered.send(());
                    }
                    done
                })
            })
            .collect();
        drop(answered);
        // However slow the machine is, some are answered in each round; the next ones are anywhere on their way.
        let _ = answers.iter().take((rounds * 7919) as usize % 40).count();
        std::thread::sleep(moment(rounds) / 20);
        node.kill();
        stop.store(true, Ordering::Relaxed);
        for client in clients {
            done.extend(client.join().unwrap());
        }
        node = Running::start(data, &[]);
    }
    assert!(rounds > 3, "it was killed {rounds} times only");
    (node, done)
}

#[test]
fn effects_are_there_once_however_often_the_node_is_killed() {
    const REQUESTS: u64 = 400;
    let home = tempfile::tempdir().unwrap();
    let data = home.path().join("data");
    let node = Running::start(&data, &[]);
    deploy(home.path(), &node);
    let (node, _) = call_while_killed(&data, node, REQUESTS, |http, number| {
        let headers = format!("idempotency-key: {number}\r\n");
        let (status, text) = request(http, "POST", "/fn/first", &headers, &number.to_string())?;
        if status != 200 {
            return None;
        }
        assert!(text.ends_with(&format!("did {number}")), "{text}");
        Some(())
    });
    let names: Vec<_> = (0..REQUESTS).map(|number| number.to_string()).collect();
    assert_eq!(settled(&node, &names), (REQUESTS, REQUESTS, vec![]));
}

#[test]
fn a_publish_that_was_acknowledged_runs_after_kill_9() {
    use rumqttc::{Client, Event, Incoming, MqttOptions, Outgoing, QoS};
    let home = tempfile::tempdir().unwrap();
    let data = home.path().join("data");
    let mut acknowledged = Vec::new();
    for round in 0..6 {
        let node = Running::start(&data, &[]);
        if round == 0 {
            deploy(home.path(), &node);
        }
        let port = node.mqtt_port.parse().unwrap();
        let (client, mut connection) = Client::new(MqttOptions::new("c", "127.0.0.1", port), 1000);
        let publisher = std::thread::spawn(move || {
            for number in 0.. {
                let name = format!("{round}-{number}");
                let sent = match number % 2 {
                    0 => client.publish(format!("in/{}", number % 7), QoS::AtLeastOnce, false, name),
                    _ => client.publish("$faas/fn/first/invoke", QoS::AtLeastOnce, false, name),
                };
                if sent.is_err() {
                    return;
                }
            }
        });
        let until = Instant::now() + moment(round) + Duration::from_millis(50);
        // In the order of their packet identifiers, which is the order in which they were published.
        let (mut sent, mut next) = (std::collections::HashMap::new(), 0u64);
        let before = acknowledged.len();
        for event in connection.iter() {
            match event {
                Ok(Event::Outgoing(Outgoing::Publish(id))) => {
                    sent.insert(id, format!("{round}-{next}"));
                    next += 1;
                }
                Ok(Event::Incoming(Incoming::PubAck(ack))) => {
                    acknowledged.push(sent.remove(&ack.pkid).unwrap());
                }
                Ok(_) => {}
                Err(error) => panic!("{error}"),
            }
            // However slow the machine is, some are acknowledged in each round.
            if Instant::now() > until && acknowledged.len() >= before + 5 {
                break;
            }
        }
        node.kill();
        drop(connection);
        publisher.join().unwrap();
    }
    assert!(acknowledged.len() > 20, "{} only", acknowledged.len());
    let node = Running::start(&data, &[]);
    let (first, second, unseen) = settled(&node, &acknowledged);
    assert_eq!(unseen, Vec::<String>::new(), "of {}", acknowledged.len());
    // Those whose acknowledgement was under way ran as well.
    assert!(first >= acknowledged.len() as u64);
    assert_eq!(second, first);
}
