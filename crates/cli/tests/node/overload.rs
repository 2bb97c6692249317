//! More than a node with 128 MiB can take, of everything that is not the memory of functions: it refuses, and goes on.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};

use socket2::{Domain, Socket, Type};

use crate::memory::Group;
use crate::support::{PATIENCE, Running, skipped};

const LIMIT_BYTES: u64 = 128 << 20;
const ANY: [&str; 6] = ["--http", "127.0.0.1:0", "--mqtt", "127.0.0.1:0", "--control", "127.0.0.1:0"];

fn within(name: &str, test: impl FnOnce(&Path, &Group, &dyn Fn() -> Running)) {
    let home = tempfile::tempdir().unwrap();
    let Some(group) = Group::make(name, LIMIT_BYTES) else {
        return skipped("the right to make a control group with a memory limit (root)");
    };
    let data = home.path().join("data");
    test(home.path(), &group, &|| Running::start_within(&group.procs(), &data, &ANY));
    assert_eq!(group.killed(), 0, "the kernel killed a process");
}

fn app(home: &Path, files: &[(&str, &str)]) -> String {
    let app = home.join("app");
    std::fs::create_dir_all(&app).unwrap();
    for (name, text) in files {
        std::fs::write(app.join(name), text).unwrap();
    }
    app.to_str().unwrap().to_owned()
}

#[test]
fn connections_without_a_request_make_way() {
    const COUNT: usize = 4000;
    within("idle", |home, _, start| {
        let mut node = start();
        let app = app(
            home,
            &[
                ("edgefaas.toml", "app = 'a'\n[functions.hello]\nmain = 'hello.js'\n"),
                ("hello.js", "export default () => 'hello';"),
            ],
        );
        node.ok(&["deploy", &app]);
        // A client that keeps its connection, and uses it now and then.
        let mut kept = TcpStream::connect(&node.http).unwrap();
        let ask = |kept: &mut TcpStream| {
            kept.set_read_timeout(Some(PATIENCE)).unwrap();
            write!(kept, "POST /fn/hello HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n").ok()?;
            let mut answer = [0; 512];
            let bytes = kept.read(&mut answer).ok().filter(|bytes| *bytes > 0)?;
            Some(String::from_utf8_lossy(&answer[..bytes]).into_owned())
        };
        let half_a_head = format!("GET /fn/hello HTTP/1.1\r\nhost: localhost\r\nx: {}", "a".repeat(7000));
        let mut waiting = Vec::new();
        for number in 0..COUNT {
            let mut stream = TcpStream::connect(&node.http).expect("it listens");
            // Its place may be taken already.
            let _ = stream.write_all(half_a_head.as_bytes());
            waiting.push(stream);
            if number % 20 == 0 && ask(&mut kept).is_none() {
                // Closed while it waited, as clients expect of a connection that is kept: the next one is served.
                kept = TcpStream::connect(&node.http).expect("it listens");
                let answer = ask(&mut kept).expect("a new connection is served");
                assert!(answer.starts_with("HTTP/1.1 200"), "after {number}: {answer}");
            }
        }
        assert_eq!(node.http("POST", "/fn/hello", ""), (200, "hello".into()));
        assert!(node.is_alive());
    });
}

/// A connection to the gateway from an address of this machine.
fn connect_from(node: &Running, source: [u8; 4]) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from((source, 0)).into()).unwrap();
    socket.connect(&node.http.parse::<SocketAddr>().unwrap().into()).unwrap();
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

#[test]
fn an_address_with_requests_on_all_its_connections_leaves_those_of_others_alone() {
    within("greedy", |home, _, start| {
        let mut node = start();
        let manifest = "app = 'a'\n[functions.hello]\nmain = 'hello.js'\n";
        let hello = ("hello.js", "export default (event) => event.text();");
        node.ok(&["deploy", &app(home, &[("edgefaas.toml", manifest), hello])]);
        let ask = |stream: &mut TcpStream| {
            stream.write_all(b"HEAD / HTTP/1.1\r\nhost: localhost\r\n\r\n").ok()?;
            let mut answer = [0; 12];
            stream.read_exact(&mut answer).ok()?;
            // The rest of the head comes with it, and there is no body.
            let _ = stream.read(&mut [0; 4096]).ok()?;
            Some(String::from_utf8_lossy(&answer).into_owned())
        };
        let mut kept = connect_from(&node, [127, 0, 0, 1]);
        let before = ask(&mut kept).expect("it is served");
        let greedy: Vec<_> = (0..1500)
            .map(|_| {
                let mut stream = connect_from(&node, [127, 0, 0, 2]);
                // Its body is waited for.
                let _ = stream.write_all(
                    b"POST /fn/hello HTTP/1.1\r\nhost: localhost\r\ncontent-length: 10\r\n\r\n12345",
                );
                stream
            })
            .collect();
        assert_eq!(ask(&mut kept).as_ref(), Some(&before), "the connection that was kept");
        let mut new = connect_from(&node, [127, 0, 0, 3]);
        assert_eq!(ask(&mut new).as_ref(), Some(&before), "a new connection");
        drop(greedy);
        assert!(node.is_alive());
    });
}

/// Answers requests when it is told to.
struct Gate {
    address: SocketAddr,
    open: Arc<(Mutex<bool>, Condvar)>,
}

impl Gate {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let gate = Self { address: listener.local_addr().unwrap(), open: Arc::default() };
        let open = gate.open.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (open, mut stream) = (open.clone(), stream.unwrap());
                std::thread::spawn(move || {
                    let _ = stream.read(&mut [0; 4096]);
                    let (is_open, opened) = &*open;
                    drop(opened.wait_while(is_open.lock().unwrap(), |is_open| !*is_open).unwrap());
                    let _ = stream.write_all(
                        b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\nconnection: close\r\n\r\nwaited",
                    );
                });
            }
        });
        gate
    }

    fn open(&self) {
        *self.open.0.lock().unwrap() = true;
        self.open.1.notify_all();
    }
}

#[test]
fn functions_that_are_called_for_the_first_time_and_wait_hold_up_nobody() {
    within("first", |home, _, start| {
        let (node, gate) = (start(), Gate::start());
        let waits =
            format!("export default async () => await (await fetch('http://{}/')).text();", gate.address);
        let names: Vec<String> = (0..4).map(|number| format!("waits-{number}")).collect();
        let mut manifest = "app = 'a'\n[functions.small]\nmain = 'small.js'\n".to_owned();
        for name in &names {
            manifest += &format!(
                "[functions.{name}]\nmain = 'waits.js'\npermissions = {{ http = ['{}'] }}\n",
                gate.address
            );
        }
        let small = ("small.js", "export default () => 'small';");
        node.ok(&["deploy", &app(home, &[("edgefaas.toml", &manifest), ("waits.js", &waits), small])]);
        std::thread::scope(|scope| {
            let calls: Vec<_> = names
                .iter()
                .map(|name| {
                    let (node, path) = (&node, format!("/fn/{name}"));
                    scope.spawn(move || node.http("POST", &path, ""))
                })
                .collect();
            for _ in 0..50 {
                assert_eq!(node.http("POST", "/fn/small", ""), (200, "small".into()));
            }
            assert!(calls.iter().all(|call| !call.is_finished()), "they wait for the gate");
            gate.open();
            for call in calls {
                assert_eq!(call.join().unwrap(), (200, "waited".into()));
            }
        });
    });
}

/// Its text is twice as long after each task.
const DOUBLES: &str = "
document: { dsl: '1.0.3', namespace: test, name: doubles, version: '1.0.0', metadata: { durable: true } }
do:
  - begin: { set: { text: abcdefgh } }
  - double: { set: { text: '${ .text + .text }' }, then: double }
";

#[test]
fn data_of_workflows_that_doubles_without_end_is_an_error() {
    within("doubles", |home, _, start| {
        let mut node = start();
        let manifest = "app = 'a'\nworkflows = ['doubles.yaml']\n";
        let app = app(home, &[("edgefaas.toml", manifest), ("doubles.yaml", DOUBLES)]);
        node.ok(&["deploy", &app]);
        let flood = |node: &Running| {
            std::thread::scope(|scope| {
                let calls: Vec<_> =
                    (0..50).map(|_| scope.spawn(|| node.http("POST", "/workflows/doubles", ""))).collect();
                for call in calls {
                    let (status, body) = call.join().unwrap();
                    assert!([400, 429, 503].contains(&status), "{status}: {body}");
                    assert!(body.contains("workflows."), "{body}");
                }
            });
        };
        flood(&node);
        assert!(node.is_alive());
        // Killed in the middle of it, and started again with what there was.
        std::thread::scope(|scope| {
            for _ in 0..20 {
                scope.spawn(|| {
                    if let Ok(mut stream) = TcpStream::connect(&node.http) {
                        let _ = write!(stream, "POST /workflows/doubles HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n");
                        let _ = stream.read(&mut [0; 64]);
                    }
                });
            }
            node.signal("-KILL");
        });
        let mut node = start();
        flood(&node);
        assert!(node.is_alive());
    });
}

/// Ten thousand iterations wait at the same time.
const WIDE: &str = "
document: { dsl: '1.0.3', namespace: test, name: wide, version: '1.0.0' }
do:
  - all:
      for: { each: i, in: '${ [range(20000)] }' }
      metadata: { parallel: 10000 }
      do: [ { rest: { wait: { seconds: 20 } } } ]
";

#[test]
fn many_wide_loops_end_one_after_another_within_the_budget() {
    within("wide", |home, _, start| {
        let mut node = start();
        let manifest = "app = 'a'\nworkflows = ['wide.yaml']\n";
        node.ok(&["deploy", &app(home, &[("edgefaas.toml", manifest), ("wide.yaml", WIDE)])]);
        std::thread::scope(|scope| {
            let calls: Vec<_> =
                (0..60).map(|_| scope.spawn(|| node.http("POST", "/workflows/wide", ""))).collect();
            for call in calls {
                let (status, body) = call.join().unwrap();
                assert!([429, 503].contains(&status) && body.contains("workflows."), "{status}: {body}");
            }
        });
        assert!(node.is_alive());
    });
}

const STARTS: &str = "export default async (event, context) => {
    const started = Array.from({ length: 500 }, () => context.call('doubles', '{}'));
    return `${(await Promise.allSettled(started)).length} ended`;
};";

/// Thousands of instances begin at the same time, and each of them grows to the most that one may have.
#[test]
fn functions_that_start_hundreds_of_workflows_each_stay_within_the_budget() {
    within("starts", |home, group, start| {
        let mut node = start();
        let manifest = "app = 'a'\nworkflows = ['doubles.yaml']\n[functions.starts]\nmain = 'starts.js'\npermissions = { call = \
                        ['doubles'] }\n[functions.small]\nmain = 'small.js'\n";
        let doubles = DOUBLES.replace("durable: true", "durable: false");
        let files = [
            ("edgefaas.toml", manifest),
            ("doubles.yaml", &doubles),
            ("starts.js", STARTS),
            ("small.js", "export default () => 'small';"),
        ];
        node.ok(&["deploy", &app(home, &files)]);
        std::thread::scope(|scope| {
            let calls: Vec<_> =
                (0..30).map(|_| scope.spawn(|| node.http("POST", "/fn/starts", ""))).collect();
            let answers = calls.into_iter().map(|call| call.join().unwrap());
            let answers: Vec<_> = answers.collect();
            for (status, body) in &answers {
                let ended = *status == 200 && body == "500 ended";
                assert!(ended || [429, 503, 504].contains(status), "{status}: {body}");
            }
            assert!(answers.iter().any(|(status, _)| *status == 200), "{answers:?}");
        });
        assert_eq!(node.http("POST", "/fn/small", ""), (200, "small".into()));
        assert_eq!(group.killed(), 0);
        assert!(node.is_alive());
    });
}

const SPINS: &str = "export default () => { for (;;); };";

/// A function that loops, called as often as its queue allows, leaves memory to another one.
#[test]
fn loops_of_one_function_leave_memory_to_others() {
    within("spins", |home, _, start| {
        let node = start();
        let manifest = "app = 'a'\n[functions.spin]\nmain = 'spin.js'\nlimits = { timeout = '5s' }\n[functions.small]\nmain = \
                        'small.js'\n";
        let small = ("small.js", "export default () => 'small';");
        node.ok(&["deploy", &app(home, &[("edgefaas.toml", manifest), ("spin.js", SPINS), small])]);
        assert_eq!(node.http("POST", "/fn/small", ""), (200, "small".into()));
        std::thread::scope(|scope| {
            let spins: Vec<_> =
                (0..40).map(|_| scope.spawn(|| node.http("POST", "/fn/spin", ""))).collect();
            let mut answered = 0;
            while spins.iter().any(|spin| !spin.is_finished()) {
                assert_eq!(node.http("POST", "/fn/small", ""), (200, "small".into()));
                answered += 1;
            }
            assert!(answered > 20, "{answered} calls were answered beside the loops");
        });
    });
}

#[test]
fn a_deploy_that_is_too_large_is_refused() {
    within("deploy", |home, _, start| {
        let mut node = start();
        let manifest = "app = 'a'\nassets = ['data/*']\n[functions.hello]\nmain = 'hello.js'\nlimits = { memory = '16MiB' }\n";
        let app = app(home, &[("edgefaas.toml", manifest), ("hello.js", "export default () => 'hello';")]);
        let data = Path::new(&app).join("data");
        std::fs::create_dir(&data).unwrap();
        let mut random = crate::load::Random::seeded("OVERLOAD_SEED");
        let mut noise =
            |mib: usize| -> Vec<u8> { (0..mib << 20).map(|_| random.below(256) as u8).collect() };
        std::fs::write(data.join("large"), noise(50)).unwrap();
        let refused = node.cli(&["deploy", &app]);
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(
            !refused.status.success() && said.contains("sixteenth of the node's memory limit"),
            "{said}"
        );
        assert!(node.is_alive());
        // The most that it takes, from several at the same time.
        std::fs::write(data.join("large"), noise(7)).unwrap();
        let deploys = || node.cli(&["deploy", &app]);
        std::thread::scope(|scope| {
            let deploys: Vec<_> = (0..3).map(|_| scope.spawn(deploys)).collect();
            for deploy in deploys {
                let output = deploy.join().unwrap();
                assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            }
        });
        assert_eq!(node.http("POST", "/fn/hello", ""), (200, "hello".into()));
        assert!(node.is_alive());
    });
}
