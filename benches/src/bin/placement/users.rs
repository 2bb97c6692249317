//! Users on the hosts of the entry nodes: each has a connection, and sends one request after another.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Instant;

use edgefaas_benches::fleet::ask;
use edgefaas_testnet::Host;

use crate::cases::Load;

/// Where a user sends requests to, and from: an address on the host.
pub type Gateway<'a> = (&'a Host, SocketAddr);

/// What came of a load.
#[derive(Default)]
pub struct Outcome {
    /// Of answers with 200.
    pub times_ms: Vec<f64>,
    pub errors: usize,
    /// How many answers name which node; none do before calls of other nodes exist.
    pub nodes: BTreeMap<String, usize>,
    /// The first error.
    pub error: Option<String>,
}

impl Outcome {
    fn add(&mut self, other: Self) {
        self.times_ms.extend(other.times_ms);
        self.errors += other.errors;
        for (node, count) in other.nodes {
            *self.nodes.entry(node).or_default() += count;
        }
        self.error = self.error.take().or(other.error);
    }

    pub fn mean_ms(&self) -> f64 {
        self.times_ms.iter().sum::<f64>() / self.times_ms.len() as f64
    }

    /// Percent of the requests that failed.
    pub fn errors_percent(&self) -> f64 {
        100.0 * self.errors as f64 / (self.errors + self.times_ms.len()) as f64
    }

    /// Percent of the answers that name a node whose name starts with `start`.
    pub fn ran_percent(&self, start: &str) -> f64 {
        let count: usize =
            self.nodes.iter().filter(|(node, _)| node.starts_with(start)).map(|(_, count)| count).sum();
        100.0 * count as f64 / self.times_ms.len() as f64
    }
}

/// Runs a load: user by user at the gateways in turns.
pub fn run(path: &str, load: Load, gateways: &[Gateway<'_>]) -> Outcome {
    std::thread::scope(|scope| {
        let users: Vec<_> = (0..load.users)
            .map(|number| {
                let (host, address) = gateways[number % gateways.len()];
                scope.spawn(move || host.enter(|| user(path, load, address)))
            })
            .collect();
        let mut outcome = Outcome::default();
        for user in users {
            outcome.add(user.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        outcome
    })
}

fn user(path: &str, load: Load, address: SocketAddr) -> Outcome {
    let mut outcome = Outcome::default();
    let mut connection = None;
    for number in 0..load.requests {
        if number > 0 {
            std::thread::sleep(load.pause);
        }
        let begun = Instant::now();
        match ask(&mut connection, address, path) {
            Ok(answer) if answer.status == 200 => {
                outcome.times_ms.push(begun.elapsed().as_secs_f64() * 1e3);
                if let Some(node) = answer.node {
                    *outcome.nodes.entry(node).or_default() += 1;
                }
            }
            Ok(answer) => {
                outcome.errors += 1;
                let body = String::from_utf8_lossy(&answer.body);
                outcome.error.get_or_insert_with(|| format!("{}: {body}", answer.status));
            }
            Err(error) => {
                outcome.errors += 1;
                outcome.error.get_or_insert_with(|| format!("{error:#}"));
            }
        }
    }
    outcome
}
