//! HTTP hello, connections kept alive: a node beside a bare hyper server of the same shape.

use edgefaas_benches::http::closed_loop;
use edgefaas_benches::node::Node;
use edgefaas_benches::peers;
use edgefaas_benches::results::{Report, Table};

use crate::Plan;

pub fn run(plan: &Plan) -> anyhow::Result<Report> {
    let mut report = Report::new(
        "http",
        "HTTP hello",
        "GET on connections that are kept alive; one load client (a single-threaded tokio program) drives all. The \
         peer is a bare hyper server of the same shape (one thread accepts, one single-threaded runtime a core serves, \
         HTTP/1.1, TCP_NODELAY) that answers a constant. What a node adds is routing, admission, a fresh isolate and \
         the two headers Invocation-Id and Server-Timing. Processor time is that of the server, user and system.",
        &crate::command("http"),
    );
    let (hyper, hyper_address) = peers::start_listening("hyper")?;
    let data = tempfile::tempdir()?;
    let node = Node::start(&plan.binary, data.path())?;
    node.deploy(&plan.binary, data.path())?;
    let contestants = [
        ("bare hyper", hyper_address, "/", &hyper),
        ("node, JavaScript", node.http, "/fn/echo-js", &node.process),
        ("node, Rust", node.http, "/fn/echo-rust", &node.process),
    ];
    let names = contestants.map(|(name, ..)| name);

    for connections in [1, 32] {
        let mut table = Table::new(
            &format!("{connections} connection(s)"),
            &names,
            &[
                ("requests", "1/s"),
                ("p50", "us"),
                ("p99", "us"),
                ("processor", "us/request"),
                ("p50 above hyper", "us"),
                ("processor above hyper", "us/request"),
            ],
        );
        for _ in 0..plan.rounds {
            let mut bare = None;
            for (contestant, (_, address, path, process)) in contestants.iter().enumerate() {
                let before = process.cpu_seconds()?;
                let mut load = closed_loop(*address, path, connections, plan.turn)?;
                let cpu_us = (process.cpu_seconds()? - before) * 1e6 / load.samples.completed() as f64;
                let p50 = load.samples.quantile_us(0.5);
                let (bare_p50, bare_cpu_us) = *bare.get_or_insert((p50, cpu_us));
                let p99 = load.samples.quantile_us(0.99);
                let above = [p50 - bare_p50, cpu_us - bare_cpu_us];
                table.add(contestant, &[load.per_second, p50, p99, cpu_us, above[0], above[1]]);
            }
        }
        report.tables.push(table);
    }
    Ok(report)
}
