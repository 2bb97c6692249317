//! The parts of the broker that every connection uses.

use std::sync::Arc;

use super::admission::Admission;
use super::client_ids::ClientIds;
use crate::config::BrokerConfig;
use crate::hook::SessionHooks;
use crate::moment::Moment;
use crate::router::Router;
use crate::sessions::SessionTable;
use crate::stats::{BrokerStats, ConnectionCounters};
use crate::wal::Wal;

/// The parts of the broker that every connection uses, and the limits and counters of all connections.
pub(crate) struct ConnectionContext {
    pub config: BrokerConfig,
    pub wal: Arc<Wal>,
    pub router: Arc<Router>,
    pub sessions: Arc<SessionTable>,
    pub hooks: Arc<SessionHooks>,
    pub(super) admission: Admission,
    pub(super) client_ids: ClientIds,
    pub(super) counters: Arc<ConnectionCounters>,
}

impl ConnectionContext {
    pub(crate) fn new(
        config: BrokerConfig,
        wal: Arc<Wal>,
        router: Arc<Router>,
        sessions: Arc<SessionTable>,
        hooks: SessionHooks,
    ) -> ConnectionContext {
        ConnectionContext {
            admission: Admission::new(&config),
            config,
            wal,
            router,
            sessions,
            hooks: Arc::new(hooks),
            client_ids: ClientIds::new(),
            counters: Arc::default(),
        }
    }

    /// The current moment.
    pub(crate) fn now(&self) -> Moment {
        Moment::now(&self.config.clock)
    }

    /// Fills in the numbers of connections and bytes.
    pub(crate) fn fill_stats(&self, stats: &mut BrokerStats) {
        stats.connections_refused = self.counters.refused.get();
        stats.protocol_errors = self.counters.protocol_errors.get();
        stats.bytes_in = self.counters.bytes_in.get();
        stats.bytes_out = self.counters.bytes_out.get();
        stats.hook_panics += self.hooks.panics();
    }
}
