//! Tasks that run beside connections: triggers, timers, bridges and upkeep.

use edgefaas_coordinator::{run_schedules, run_timers};
use tokio::task::JoinSet;

use super::Parts;
use super::serving::Stages;
use crate::cluster::{follow_policy, report_apps, serve_calls, transfer_artefacts};
use crate::{history, memory_pressure, object_expiry, trace_export};
use edgefaas_cluster::calls::CallLimits;
use edgefaas_triggers::{cron, object_change};

impl Parts {
    /// Starts all background tasks. Each ends with its stage, or when `tasks` is dropped.
    pub(super) fn spawn_background(&self, tasks: &mut JoinSet<()>, stages: &Stages) {
        self.spawn_triggers(tasks, stages);
        self.spawn_upkeep(tasks, stages);
        // Bridges end with the connections of clients, so that they still send the last messages of these clients.
        for bridge in self.bridges.tasks(&stages.connected) {
            self.workers.spawn_connection(bridge);
        }
        let bridges = self.bridges.clone();
        tasks.spawn(async move { bridges.remove_old_sessions().await });
    }

    fn spawn_triggers(&self, tasks: &mut JoinSet<()>, stages: &Stages) {
        let listening = &stages.listening;
        tasks.spawn(object_change::run(
            self.registry.clone(),
            self.store.objects().clone(),
            self.invoker.clone(),
            self.workers.clone(),
            listening.clone(),
        ));
        tasks.spawn(object_expiry::run(
            self.registry.clone(),
            self.store.clone(),
            self.platform.clock.clone(),
            listening.clone(),
        ));
        tasks.spawn(cron::run(
            self.registry.clone(),
            self.invoker.clone(),
            self.workers.clone(),
            self.platform.clock.clone(),
            listening.clone(),
        ));
        tasks.spawn(run_schedules(self.coordinator.clone(), listening.clone()));
        tasks.spawn(self.placer.clone().run(listening.clone()));
        tasks.spawn(follow_policy(
            self.store.clone(),
            self.placer.clone(),
            self.cluster.clone(),
            listening.clone(),
        ));
        // Calls of other nodes end with the connections of clients.
        tasks.spawn(stages.calls.track_future(serve_calls(
            self.cluster.clone(),
            self.executor.clone(),
            CallLimits::default(),
            stages.connected.clone(),
        )));
        let (rollout, until) = (self.rollout.clone(), listening.clone());
        tasks.spawn(async move {
            if let Err(error) = rollout.run(until).await {
                tracing::error!(%error, "apps of the cluster are not rolled out to this node");
            }
        });
        tasks.spawn(report_apps(
            self.cluster.clone(),
            self.registry.clone(),
            self.rollout.clone(),
            self.cluster.recoveries(),
            listening.clone(),
        ));
        tasks.spawn(transfer_artefacts(
            self.cluster.clone(),
            self.control.artefacts.clone(),
            listening.clone(),
        ));
        tasks.spawn(run_timers(self.coordinator.clone(), listening.clone()));
        tasks.spawn(self.durable.clone().run(listening.clone()));
    }

    fn spawn_upkeep(&self, tasks: &mut JoinSet<()>, stages: &Stages) {
        let listening = &stages.listening;
        let (access, expiring) = (self.access.clone(), listening.clone());
        tasks.spawn(async move { access.end_expired(expiring).await });
        let (broker, open) = (self.broker.clone(), stages.connected.clone());
        tasks.spawn(async move { broker.maintain(open).await });
        if let Some(collector) = self.otlp.clone() {
            let (traces, http) = (self.traces.clone(), self.http.clone());
            let clock = self.platform.clock.clone();
            let export = trace_export::run(traces, http, collector, clock, stages.settled.clone());
            tasks.spawn(stages.last.track_future(export));
        }
        let sampler =
            history::run(self.control.clone(), self.platform.clock.clone(), stages.settled.clone());
        tasks.spawn(stages.last.track_future(sampler));
        tasks.spawn(memory_pressure::watch(
            self.platform.memory.clone(),
            self.isolates.clone(),
            self.registry.clone(),
            self.max_programs,
            listening.clone(),
        ));
        let (registry, workers, max) = (self.registry.clone(), self.workers.clone(), self.max_programs);
        tasks.spawn(async move {
            let _ = workers.run(async move { registry.warm(max).await }).await;
        });
    }
}
