//! A call that runs on another node, beside the same call on the node that it came to, and beside the same bytes over a bare TCP
//! connection between the same two namespaces.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Parser;
use edgefaas_benches::fleet::{DeployTo, Fleet};
use edgefaas_benches::http::closed_loop;
use edgefaas_benches::node::build_binary;
use edgefaas_benches::results::{Report, Table, Target};
use edgefaas_benches::samples::{Load, Samples, Window};
use edgefaas_testnet::{Host, Network, Topology};

const MANIFEST: &str = r#"app = "remote-call"
[functions.here]
main = "hello.js"
[functions.there]
main = "hello.js"
"#;
const SOURCE: &str = "export default () => \"hello\";\n";
/// Where `there` runs.
const POLICY: &str = "there:\n  - workers:\n      - wrk: n2\n  - followup: fail\n";
/// Heads of IP and TCP, with time stamps.
const HEAD_BYTES: u64 = 52;
/// Of a bare request and its answer, where no remote call can be measured.
const ASSUMED_BYTES: [usize; 2] = [300, 150];
const CONNECTIONS: usize = 8;
const PORT: u16 = 4000;
const BARE: usize = 0;
const HERE: usize = 1;
const THERE: usize = 2;

#[derive(Debug, Parser)]
#[command(about = "Measures calls that run on another node")]
struct Arguments {
    /// How often every contestant has its turn
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// How many seconds a turn lasts
    #[arg(long, default_value_t = 5)]
    turn: u64,
    /// Two turns of two seconds
    #[arg(long)]
    quick: bool,
    /// Keep what was measured in benches/results
    #[arg(long)]
    results: bool,
    /// `each-node` for versions without deploys to a cluster: without the calls that run on another node
    #[arg(long, value_enum, default_value = "cluster")]
    deploy_to: DeployTo,
    /// Measure this binary instead of the one that is built here
    #[arg(long)]
    binary: Option<PathBuf>,
}

fn main() -> anyhow::Result<()> {
    let mut arguments = Arguments::parse();
    if arguments.quick {
        (arguments.rounds, arguments.turn) = (2, 2);
    }
    let binary = match &arguments.binary {
        Some(binary) => std::path::absolute(binary)?,
        None => build_binary()?,
    };
    let network = Topology::new().zone("zone", &["n1", "n2"]).build()?;
    let hosts = [(network.host("n1"), "zone"), (network.host("n2"), "zone")];
    let fleet = Fleet::start(&binary, &hosts, arguments.deploy_to, "")?;
    let app = tempfile::tempdir()?;
    let manifest = match arguments.deploy_to {
        DeployTo::Cluster => {
            MANIFEST.replace("[functions.there]\n", "[functions.there]\nplacement = \"there\"\n")
        }
        DeployTo::EachNode => MANIFEST.to_owned(),
    };
    std::fs::write(app.path().join("edgefaas.toml"), manifest)?;
    std::fs::write(app.path().join("hello.js"), SOURCE)?;
    fleet.deploy(app.path(), "/fn/here")?;
    let entry = fleet.member("n1")?;
    let contestants = match arguments.deploy_to {
        DeployTo::Cluster => {
            let policy = app.path().join("policy.yaml");
            std::fs::write(&policy, POLICY)?;
            entry.ok(&["policy", "set", &policy.to_string_lossy()])?;
            entry.wait_for("/fn/there", |answer| answer.node.as_deref() == Some("n2"))?;
            &["bare TCP, the same bytes", "call here", "call there"][..]
        }
        DeployTo::EachNode => &["bare TCP, assumed bytes", "call here"][..],
    };
    start_echo(network.host("n2"))?;

    let mut report = Report::new(
        "remote-call",
        "Remote calls",
        "Two nodes in network namespaces, joined by the user-space switch. A client sends GET to the gateway of the first; `there` runs \
         on the second. Bare TCP sends as many bytes as a remote call takes, each way, between the same namespaces.",
        "target/release/remote-call",
    );
    let titles = ["1 connection".to_owned(), format!("{CONNECTIONS} connections")];
    let figures = [("p50", "us"), ("p99", "us"), ("rate", "1/s")];
    report.tables = titles.iter().map(|title| Table::new(title, contestants, &figures)).collect();
    let turn = Duration::from_secs(arguments.turn);
    let mut bytes = ASSUMED_BYTES;
    for _ in 0..arguments.rounds {
        for (table, connections) in report.tables.iter_mut().zip([1, CONNECTIONS]) {
            // The bare one last: it sends what the remote call took.
            for contestant in (0..contestants.len()).rev() {
                let mut load = match contestant {
                    BARE => bare(&network, connections, bytes, turn)?,
                    HERE => entry.host.enter(|| closed_loop(entry.http, "/fn/here", connections, turn))?,
                    _ => {
                        let before = traffic(&network);
                        let path = "/fn/there";
                        let load = entry.host.enter(|| closed_loop(entry.http, path, connections, turn))?;
                        bytes = bytes_per_call(before, traffic(&network), load.samples.completed());
                        load
                    }
                };
                let samples = &mut load.samples;
                table.add(
                    contestant,
                    &[samples.quantile_us(0.5), samples.quantile_us(0.99), load.per_second],
                );
            }
        }
    }
    println!("bytes of a bare request and its answer: {bytes:?}");
    if contestants.len() > THERE {
        let [alone, many] = &report.tables[..] else { unreachable!("two tables") };
        let p50 = |row: usize| alone.rows[row].figures[0].median();
        let text = "What a remote call takes longer than the same call here, beyond bare TCP, p50, us";
        let extra = p50(THERE) - p50(HERE) - p50(BARE);
        let text_rate = "Rate of remote calls in times of calls here";
        let rate = many.ratio(THERE, HERE, 2);
        report.targets = vec![
            Target::at_most("remote-call-latency", text, extra, 60.0),
            Target::at_least("remote-call-rate", text_rate, rate, 0.5),
        ];
    }
    report.print();
    if arguments.results {
        report.save()?;
    }
    Ok(())
}

/// Bytes from and to the first host so far.
fn traffic(network: &Network) -> [u64; 2] {
    let link = network.link("n1");
    [link.outbound().traffic().bytes, link.inbound().traffic().bytes]
}

fn bytes_per_call(before: [u64; 2], after: [u64; 2], calls: usize) -> [usize; 2] {
    [0, 1].map(|way| {
        let each = (after[way] - before[way]) / calls.max(1) as u64;
        each.saturating_sub(HEAD_BYTES).max(1) as usize
    })
}

/// A server that answers requests of a length that each connection begins with.
fn start_echo(host: &Host) -> anyhow::Result<()> {
    let listener = host.enter(|| TcpListener::bind((host.address(), PORT)))?;
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || drop(echo(stream)));
        }
    });
    Ok(())
}

fn echo(mut stream: TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut lengths = [0; 16];
    stream.read_exact(&mut lengths)?;
    let [request, answer] = [&lengths[..8], &lengths[8..]]
        .map(|bytes| u64::from_be_bytes(bytes.try_into().unwrap_or_default()) as usize);
    let (mut request, answer) = (vec![0; request], vec![0; answer]);
    loop {
        stream.read_exact(&mut request)?;
        stream.write_all(&answer)?;
    }
}

fn bare(network: &Network, connections: usize, bytes: [usize; 2], turn: Duration) -> anyhow::Result<Load> {
    let address = SocketAddr::from((network.host("n2").address(), PORT));
    let host = network.host("n1");
    let mut open = Vec::new();
    for _ in 0..connections {
        let mut stream = host.connect(address)?;
        stream.set_nodelay(true)?;
        for length in bytes {
            stream.write_all(&(length as u64).to_be_bytes())?;
        }
        open.push(stream);
    }
    let window = Window::after_warm_up(turn);
    let running: Vec<_> =
        open.into_iter().map(|stream| std::thread::spawn(move || ask(stream, bytes, window))).collect();
    let mut samples = Samples::default();
    for thread in running {
        samples.extend(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?);
    }
    Ok(Load::new(samples, window))
}

fn ask(mut stream: TcpStream, bytes: [usize; 2], window: Window) -> std::io::Result<Samples> {
    let (request, mut answer) = (vec![0; bytes[0]], vec![0; bytes[1]]);
    let mut samples = Samples::default();
    loop {
        let sent = Instant::now();
        if sent >= window.to {
            return Ok(samples);
        }
        stream.write_all(&request)?;
        stream.read_exact(&mut answer)?;
        samples.add(sent, Instant::now(), window);
    }
}
