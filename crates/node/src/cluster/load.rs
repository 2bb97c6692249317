//! Measures the load of this node.

use std::sync::Arc;
use std::time::Instant;

use edgefaas_cluster::status::{Load, Readiness};
use edgefaas_functions::drain::Drain;
use edgefaas_functions::registry::Registry;
use edgefaas_isolates::Isolates;

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
        let LoadSources { isolates, registry, drain } = &self.sources;
        let memory = isolates.memory().reading();
        let memory_total_bytes = memory.max_bytes.saturating_sub(memory.withheld_bytes);
        let permits_total = isolates.max_isolates();
        let (running, queued) =
            registry.routes().functions().fold((0_u32, 0_u32), |(running, queued), live| {
                let (runs, waits) = live.admission.load();
                (running.saturating_add(runs), queued.saturating_add(waits))
            });
        Load {
            memory_free_bytes: memory_total_bytes.saturating_sub(memory.used_bytes),
            memory_total_bytes,
            permits_free: permits_total.saturating_sub(isolates.running()),
            permits_total,
            running,
            queued: queued.saturating_add(u32::try_from(memory.waiting).unwrap_or(u32::MAX)),
            pressure_permille: self.pressure.update(waited_us(), Instant::now()),
            readiness: if drain.is_draining() { Readiness::Draining } else { Readiness::Ready },
        }
    }
}
