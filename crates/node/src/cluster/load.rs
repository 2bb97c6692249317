//! Measures the load of this node.

use std::sync::Arc;
use std::time::Instant;

use edgefaas_cluster::status::{Load, MAX_RUNNING_FUNCTIONS, Readiness, function_digest};
use edgefaas_functions::drain::Drain;
use edgefaas_functions::registry::Registry;
use edgefaas_isolates::Isolates;
use edgefaas_rollout::Firings;

use super::pressure::{Pressure, waited_us};

/// The parts of the node that have load.
#[derive(Clone)]
pub struct LoadSources {
    /// The isolates, with their memory.
    pub isolates: Arc<Isolates>,
    /// The functions, with their queues.
    pub registry: Arc<Registry>,
    /// The flag that the node is draining.
    pub drain: Arc<Drain>,
    /// Occurrences of schedules, which are announced.
    pub firings: Arc<Firings>,
}

/// Measures the load; the processor's pressure is that since the last measurement.
pub(super) struct LoadMeter {
    sources: LoadSources,
    pressure: Pressure,
}

impl LoadMeter {
    pub fn new(sources: LoadSources) -> Self {
        Self { sources, pressure: Pressure::new(waited_us(), Instant::now()) }
    }

    pub fn measure(&mut self) -> Load {
        let LoadSources { isolates, registry, drain, firings } = &self.sources;
        let memory = isolates.memory().reading();
        let memory_total_bytes = memory.max_bytes.saturating_sub(memory.withheld_bytes);
        let permits_total = isolates.max_isolates();
        let (mut running, mut queued, mut functions) = (0_u32, 0_u32, Vec::new());
        for live in registry.routes().functions() {
            let (runs, waits) = live.admission.load();
            (running, queued) = (running.saturating_add(runs), queued.saturating_add(waits));
            if live.admission.take_has_run() {
                functions.push((runs, function_digest(&live.name)));
            }
        }
        Load {
            memory_free_bytes: memory_total_bytes.saturating_sub(memory.used_bytes),
            memory_total_bytes,
            permits_free: permits_total.saturating_sub(isolates.running()),
            permits_total,
            running,
            queued: queued.saturating_add(u32::try_from(memory.waiting).unwrap_or(u32::MAX)),
            pressure_permille: self.pressure.update(waited_us(), Instant::now()),
            functions: most_running(functions),
            fired: firings.announced(),
            readiness: if drain.is_draining() { Readiness::Draining } else { Readiness::Ready },
        }
    }
}

/// The digests of the functions with the most running invocations, in order.
fn most_running(mut functions: Vec<(u32, u32)>) -> Arc<[u32]> {
    functions.sort_unstable_by(|one, other| other.cmp(one));
    functions.truncate(MAX_RUNNING_FUNCTIONS);
    let mut digests: Vec<u32> = functions.into_iter().map(|(_, digest)| digest).collect();
    digests.sort_unstable();
    digests.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_functions_those_with_the_most_invocations_are_reported() {
        let functions = (0..100).map(|number| (u32::from(number >= 50), 1_000 - number));
        let digests = most_running(functions.collect());
        assert_eq!(digests.len(), MAX_RUNNING_FUNCTIONS);
        assert!(digests.is_sorted());
        assert!((901..=950).all(|digest| digests.contains(&digest)));
    }
}
