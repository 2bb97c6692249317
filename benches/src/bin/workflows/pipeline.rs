//! The peer of a chain: a process for each step, and a Redis stream before each and behind the last.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use edgefaas_benches::peers::redis::{add, connect, read};
use edgefaas_benches::peers::{Redis, Stage, start_redis_stage};
use edgefaas_benches::process::{Process, cpu_seconds_of};

use crate::load::{Receiver, Sender, Way, number, payload};

/// What the client waits for results at a time.
const BLOCK_MS: usize = 100;

/// Pipelines so far, each of which has streams of its own.
static PIPELINES: AtomicU64 = AtomicU64::new(0);

/// Steps that run. Dropping it ends them.
pub struct Pipeline {
    server: SocketAddr,
    server_process: u32,
    name: String,
    stages: Vec<Process>,
}

impl Pipeline {
    /// Starts so many steps, each of which takes `count` entries at a time at most and works for `turns` on each. Without
    /// steps it is a stream that is written and read.
    pub fn start(redis: &Redis, steps: usize, count: usize, turns: u64) -> anyhow::Result<Self> {
        let name = format!("pipeline-{}", PIPELINES.fetch_add(1, Ordering::Relaxed));
        let stage = |step: usize| {
            let (from, to) = (stream(&name, step), stream(&name, step + 1));
            start_redis_stage(&Stage { server: redis.address, from, to, count, turns })
        };
        let stages = (0..steps).map(stage).collect::<anyhow::Result<Vec<_>>>()?;
        Ok(Self { server: redis.address, server_process: redis.id(), name, stages })
    }

    /// Processor time of the server and the steps, in seconds.
    pub fn cpu_seconds(&self) -> anyhow::Result<f64> {
        let steps: f64 = self.stages.iter().map(Process::cpu_seconds).sum::<anyhow::Result<f64>>()?;
        Ok(steps + cpu_seconds_of(self.server_process)?)
    }
}

impl Way for Pipeline {
    fn open(&self) -> anyhow::Result<(Sender, Receiver)> {
        let (first, last) = (stream(&self.name, 0), stream(&self.name, self.stages.len()));
        let (mut writer, mut reader) = (connect(self.server)?, connect(self.server)?);
        for step in 0..=self.stages.len() {
            // An earlier load's; the group knows how far it was.
            redis::cmd("XTRIM").arg(stream(&self.name, step)).arg("MAXLEN").arg(0).exec(&mut writer)?;
        }
        let send: Sender = Box::new(move |numbers| add(&mut writer, &first, numbers.map(payload)));
        let (mut after, computed) = ("0-0".to_owned(), !self.stages.is_empty());
        let receive: Receiver = Box::new(move |came| {
            let results = read(&mut reader, &last, &mut after, BLOCK_MS)?;
            came.extend(results.iter().map(|result| number(result.as_bytes(), computed)));
            Ok(())
        });
        Ok((send, receive))
    }
}

fn stream(name: &str, step: usize) -> String {
    format!("{name}-{step}")
}
