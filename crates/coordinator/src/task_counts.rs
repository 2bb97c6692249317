//! How many instances of a workflow are at each of its tasks.

use std::collections::BTreeMap;
use std::sync::Arc;

use edgefaas_workflow::Status;

use super::coordinator::Coordinator;
use super::instance::Running;

/// Instances at one task.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TaskCount {
    /// Those that run or wait there.
    pub active: u64,
    /// Those that failed there and can be retried.
    pub failed: u64,
}

impl Coordinator {
    /// The instances of a workflow by the path of their tasks. An instance with several tasks counts at each. Takes as long as all
    /// instances take to look at.
    pub fn task_counts(&self, workflow: &str) -> BTreeMap<String, TaskCount> {
        let running: Vec<Arc<Running>> = {
            let instances = self.instances.lock();
            instances.values().filter(|running| *running.workflow.name == *workflow).cloned().collect()
        };
        let mut counts = BTreeMap::<String, TaskCount>::new();
        for running in running {
            let state = running.state.lock();
            let instance = &state.instance;
            if instance.status() == Status::Faulted {
                if let Some(Err(error)) = instance.result()
                    && let Some(task) = &error.instance
                {
                    counts.entry(task.to_string()).or_default().failed += 1;
                }
                continue;
            }
            for path in instance.current(&running.workflow.program).into_keys() {
                match counts.get_mut(path) {
                    Some(count) => count.active += 1,
                    None => drop(counts.insert(path.to_owned(), TaskCount { active: 1, failed: 0 })),
                }
            }
        }
        counts
    }
}
