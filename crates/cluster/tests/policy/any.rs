//! Any text as a policy: it is checked, compiled, decided and explained for a small cluster. Nothing panics, and both
//! decisions agree.

use std::sync::Arc;

use edgefaas_cluster::placement::{
    Compiled, Decision, Health, Known, KnownFunction, Load, Policy, Request, View, Worker, WorkerSet,
    Workers, check, explain, place,
};

const MIB: u64 = 1024 * 1024;

/// The first eight bytes are the state of the cluster and the random number, the rest is the text.
pub fn run(input: &[u8]) {
    let Some((seed, text)) = input.split_first_chunk::<8>() else { return };
    let Ok(text) = std::str::from_utf8(text) else { return };
    policy(text, u64::from_le_bytes(*seed));
}

/// The same with text. True if it is a policy.
pub fn policy(text: &str, seed: u64) -> bool {
    let policy = match Policy::parse(text) {
        Ok(policy) => policy,
        Err(error) => {
            assert!(!error.problems.is_empty(), "an error without a problem");
            assert!(!error.report("any.yaml", text).is_empty());
            return false;
        }
    };
    let workers = Arc::new(cluster());
    let functions = [KnownFunction { name: "divide".to_owned(), tag: Some("near".to_owned()) }];
    for warning in check(&policy, &Known { workers: Some(&workers), functions: Some(&functions) }) {
        assert!(!warning.to_string().is_empty());
    }
    let compiled = Compiled::new(&policy, workers.clone());
    let bits = |at: usize, count: u64| (seed.rotate_right(at as u32 * 7)) % count;
    let loads = (0..workers.as_slice().len()).map(|at| Load {
        health: if bits(at, 5) == 0 { Health::Away } else { Health::Up },
        memory_free_bytes: bits(at, 4) * MIB,
        memory_total_bytes: 4 * MIB,
        permits_free: bits(at, 3) as u32,
        permits_total: 4,
        running: bits(at, 7) as u32,
        rtt_us: bits(at, 9_000) as u32,
        ..Load::default()
    });
    let running = compiled
        .affinity_functions()
        .iter()
        .map(|_| workers.select(|worker| bits(1, worker.node_id + 2) == 0));
    let view = View { loads: loads.collect(), running: running.collect(), ..View::default() };
    let code = workers.select(|worker| bits(2, worker.node_id + 3) != 0);
    for tag in policy.tags.iter().map(|tag| Some(tag.name.as_str())).chain([None]) {
        let function = compiled.function("measure", tag, code).with_data(&workers, code);
        let request = Request {
            function: &function,
            memory_bytes: MIB,
            key: seed.is_multiple_of(2).then_some(seed),
            refused_by: WorkerSet::default(),
        };
        let decision = place(&compiled, &request, &view, 0, seed);
        assert_eq!(explain(&compiled, &request, &view, 0, seed).decision, decision);
        if let Decision::Worker { index, .. } = decision {
            assert!(code.contains(index) && view.loads[usize::from(index)].health == Health::Up);
        }
    }
    true
}

fn cluster() -> Workers {
    let worker = |node_id: u64| Worker {
        node_id,
        name: format!("node-{}", (b'a' + node_id as u8) as char),
        zone: [None, Some("eu".to_owned()), Some("us".to_owned())][node_id as usize % 3].clone(),
        labels: if node_id.is_multiple_of(2) { vec!["gpu".into()] } else { Vec::new() },
    };
    Workers::new(worker(0), (1..6).map(worker))
}
