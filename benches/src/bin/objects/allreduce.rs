//! MISO's AllReduce: many functions add up a part of the numbers each, and one reads the whole.

use std::net::SocketAddr;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::ensure;
use edgefaas_benches::client::Client;
use edgefaas_benches::peers::Redis;
use edgefaas_benches::peers::redis::connect;
use edgefaas_benches::results::{Report, Table, Target};
use redis::Commands;
use serde_json::json;

use crate::Plan;
use crate::apps::{App, FIELD, JS, RUST};
use crate::calls::{invoke, invoke_all};
use crate::cluster::Cluster;

/// Numbers that one invocation adds up.
const CHUNK: usize = 1000;
const CONNECTIONS: usize = 10;
const ROWS: [&str; 4] = [
    "Rust function, counter",
    "JavaScript function, counter",
    "Rust function, Redis hash",
    "native client, Redis hash",
];
const FIGURES: [(&str, &str); 4] =
    [("total", "ms"), ("write", "ms"), ("read", "ms"), ("processor of the nodes", "ms")];
/// How long replicas may take to become equal.
const PATIENCE: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_micros(200);

/// How long writing and reading took.
struct Turn {
    write: Duration,
    read: Duration,
}

pub fn run(plan: &Plan) -> anyhow::Result<Report> {
    let mut report = Report::new(
        "objects-allreduce",
        "AllReduce",
        &format!(
            "{} numbers of 32 bits in chunks of {CHUNK}: an invocation for each chunk, over HTTP with the numbers as body on {CONNECTIONS} \
             connections (spread over the nodes), adds them up and adds the sum to a counter; then the first node's function reads \
             it until it has all (interval 5 ms). The peer: the same Rust function with a hash of Redis {} (without \
             persistence) in the counter's place, HINCRBY over a TCP connection (`std::net`) of each invocation's own. Below it a \
             native program without functions or HTTP that adds up the chunks itself on {CONNECTIONS} connections to Redis, which \
             is as good as Redis can be used.",
            plan.numbers,
            Redis::version().unwrap_or_default()
        ),
        &crate::command("allreduce"),
    );
    let redis = Redis::start()?;
    let app = App::new(&[("*", "interval = \"5ms\"\ncopies = 1")])?.with_rust(Some(redis.address))?;
    let numbers: Vec<i32> =
        (0..plan.numbers as i64).map(|number| (number * 7919 % 100_003) as i32).collect();
    let sum = sum_of(&numbers);
    for size in [1, 5] {
        let cluster = Cluster::start(&plan.binary, size, &app)?;
        let gateways: Vec<SocketAddr> = cluster.members.iter().map(|member| member.node.http).collect();
        let mut table = Table::new(&format!("{size} node(s)"), &ROWS, &FIGURES);
        for round in 0..plan.rounds {
            for row in 0..ROWS.len() {
                let object = format!("sum-{size}-{round}-{row}");
                let before = cpu_seconds(&cluster)?;
                let turn = match row {
                    0 => functions(&gateways, RUST, &object, &numbers, sum, None)?,
                    1 => functions(&gateways, JS, &object, &numbers, sum, None)?,
                    2 => functions(&gateways, RUST, &object, &numbers, sum, Some(redis.address))?,
                    _ => native(redis.address, &object, &numbers, sum)?,
                };
                let cpu = cpu_seconds(&cluster)? - before;
                let ms =
                    [turn.write + turn.read, turn.write, turn.read].map(|time| time.as_secs_f64() * 1e3);
                table.add(row, &[ms[0], ms[1], ms[2], cpu * 1e3]);
            }
        }
        for row in [0, 1] {
            report.targets.push(Target::at_most(
                "objects-allreduce",
                &format!("{}, {size} node(s): at most a third of the time with Redis", ROWS[row]),
                table.ratio(row, 2, 0),
                1.0 / 3.0,
            ));
        }
        report.tables.push(table);
    }
    Ok(report)
}

fn cpu_seconds(cluster: &Cluster) -> anyhow::Result<f64> {
    cluster.members.iter().map(|member| member.node.process.cpu_seconds()).sum()
}

/// A function adds up the chunks, to the object's counter or to a hash of this name.
fn functions(
    gateways: &[SocketAddr],
    function: &str,
    object: &str,
    numbers: &[i32],
    sum: i64,
    redis: Option<SocketAddr>,
) -> anyhow::Result<Turn> {
    let (write, read) = if redis.is_some() { ("redis", "redis-read") } else { ("reduce", "read") };
    let server = redis.map_or(String::new(), |server| format!("/{server}"));
    let path = format!("{function}/{write}/{object}{server}");
    let chunk = |numbers: &[i32]| numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    let chunks: Vec<Vec<u8>> = numbers.chunks(CHUNK).map(chunk).collect();
    let begun = Instant::now();
    invoke_all(gateways, &path, &chunks, CONNECTIONS)?;
    let written = begun.elapsed();
    let mut client = Client::new(gateways[0]);
    let work = json!({ "do": read, "object": object, "n": 1, "server": redis });
    loop {
        let value = invoke(&mut client, function, &work)?;
        if value == sum {
            return Ok(Turn { write: written, read: begun.elapsed() - written });
        }
        ensure!(begun.elapsed() < PATIENCE, "`{object}` is {value} after {PATIENCE:?}, and not {sum}");
        sleep(PAUSE);
    }
}

fn sum_of(numbers: &[i32]) -> i64 {
    numbers.iter().map(|number| i64::from(*number)).sum()
}

/// Threads of this program add up the chunks.
fn native(redis: SocketAddr, object: &str, numbers: &[i32], sum: i64) -> anyhow::Result<Turn> {
    let mut connections = (0..CONNECTIONS).map(|_| connect(redis)).collect::<Result<Vec<_>, _>>()?;
    let begun = Instant::now();
    std::thread::scope(|threads| {
        let running: Vec<_> = connections
            .iter_mut()
            .enumerate()
            .map(|(number, connection)| {
                threads.spawn(move || -> anyhow::Result<()> {
                    for chunk in numbers.chunks(CHUNK).skip(number).step_by(CONNECTIONS) {
                        let _: i64 = connection.hincr(object, FIELD, sum_of(chunk))?;
                    }
                    Ok(())
                })
            })
            .collect();
        running.into_iter().try_for_each(|thread| thread.join().expect("a load thread does not panic"))
    })?;
    let written = begun.elapsed();
    let value: i64 = connections[0].hget(object, FIELD)?;
    let turn = Turn { write: written, read: begun.elapsed() - written };
    ensure!(value == sum, "Redis has {value} in `{object}`, and not {sum}");
    Ok(turn)
}
