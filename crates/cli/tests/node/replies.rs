//! Clients that ask for large replies and do not read them: neither the node's memory nor other clients suffer.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};

use socket2::{Domain, Socket, Type};

use crate::support::{PATIENCE, Running};

/// Clients that do not read.
const DEAF: usize = 200;
/// Replies that each healthy client gets meanwhile.
const HEALTHY_REPLIES: usize = 3;
/// Beside the node when it idles: 64 MiB of replies, and what the invocations take that make them.
const MAX_GROWTH_BYTES: u64 = 300 << 20;

const MANIFEST: &str = r#"
app = "a"

[functions.big]
main = "big.js"
permissions = { objects = ["o"] }

[functions.medium]
main = "medium.js"

[functions.runs]
main = "runs.js"
permissions = { objects = ["o"] }
"#;
const BIG: &str = r#"
export default async (event, context) => {
    await context.object("o").counter("runs").add(1);
    return new Uint8Array(8_000_000);
};
"#;
const MEDIUM: &str = "export default () => new Uint8Array(1_000_000);";
const RUNS: &str = "export default (event, context) => context.object('o').counter('runs').value();";

#[test]
fn clients_that_do_not_read_take_neither_memory_nor_the_place_of_others() {
    let home = tempfile::tempdir().unwrap();
    let node = Running::start(&home.path().join("data"), &[]);
    let app = home.path().join("app");
    std::fs::create_dir_all(&app).unwrap();
    for (name, text) in
        [("edgefaas.toml", MANIFEST), ("big.js", BIG), ("medium.js", MEDIUM), ("runs.js", RUNS)]
    {
        std::fs::write(app.join(name), text).unwrap();
    }
    node.ok(&["deploy", app.to_str().unwrap()]);
    let (here, neighbour) = ([127, 0, 0, 1].into(), [127, 0, 0, 2].into());
    assert_eq!(get(&node, here, "/fn/big"), (200, 8_000_000));
    assert_eq!(get(&node, here, "/fn/medium"), (200, 1_000_000));
    node.reset_peak_memory();
    let idle_bytes = node.peak_memory_bytes();

    let mut deaf: Vec<TcpStream> = (0..DEAF).map(|_| ask(&node, here, "/fn/big")).collect();
    let refused: usize = std::thread::scope(|scope| {
        let healthy = [here, neighbour].map(|from| {
            let node = &node;
            scope.spawn(move || {
                let (mut taken, mut refused) = (0, 0);
                while taken < HEALTHY_REPLIES {
                    match get(node, from, "/fn/medium") {
                        (200, 1_000_000) => taken += 1,
                        (503, _) => refused += 1,
                        other => panic!("{other:?}"),
                    }
                    assert!(refused < 20, "{from} is refused again and again");
                }
                refused
            })
        });
        healthy.map(|healthy| healthy.join().expect("it gets its replies")).iter().sum()
    });
    // Who was not answered was refused before anything ran.
    let heads: Vec<String> = deaf.iter_mut().map(status_line).collect();
    let count = |status: &str| heads.iter().filter(|head| head.contains(status)).count();
    let (answered, not_run) = (count(" 200 "), count(" 503 "));
    assert_eq!(answered + not_run, DEAF, "{heads:?}");
    let (_, runs) = node.http("GET", "/fn/runs", "");
    let growth_bytes = node.peak_memory_bytes() - idle_bytes;
    println!(
        "{answered} answered, {not_run} refused, healthy ones {refused} times; {} MiB more memory",
        growth_bytes >> 20
    );
    assert_eq!(runs, (answered + 1).to_string(), "{answered} answered and one before");
    assert!(growth_bytes < MAX_GROWTH_BYTES, "{growth_bytes} bytes more than idle");
}

/// Sends a request from an address, and reads nothing.
fn ask(node: &Running, from: IpAddr, path: &str) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::new(from, 0).into()).unwrap();
    socket.connect(&node.http.parse::<SocketAddr>().unwrap().into()).unwrap();
    let mut stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").unwrap();
    stream
}

/// The first line of what came back.
fn status_line(stream: &mut TcpStream) -> String {
    let mut line = Vec::new();
    while !line.ends_with(b"\n") {
        let mut byte = [0];
        if stream.read(&mut byte).unwrap_or(0) == 0 {
            break;
        }
        line.push(byte[0]);
    }
    String::from_utf8_lossy(&line).into_owned()
}

/// Status and size of a reply.
fn get(node: &Running, from: IpAddr, path: &str) -> (u16, usize) {
    let mut reply = BufReader::new(ask(node, from, path));
    let mut status = None;
    loop {
        let mut line = String::new();
        reply.read_line(&mut line).expect("a head");
        status = status.or_else(|| line.split(' ').nth(1)?.parse().ok());
        if line.trim_end().is_empty() {
            break;
        }
    }
    let mut body = Vec::new();
    reply.read_to_end(&mut body).expect("a body");
    (status.expect("a status"), body.len())
}
