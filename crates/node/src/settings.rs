//! Options of the parts of a node, from the configuration and the memory plan.

use std::collections::BTreeSet;
use std::time::Duration;

use edgefaas_broker::{BrokerConfig, WhenQueueFull};
use edgefaas_functions::durable::{KeepLimits, Retention};
use edgefaas_functions::logs::RingLimits;
use edgefaas_functions::registry::FunctionMemoryLimits;
use edgefaas_functions::trace::TraceLimits;
use edgefaas_platform::{Clock, is_loopback};
use edgefaas_state::store::{Durability, StoreOptions, WalSync};

use crate::cluster::ClusterOptions;
use crate::config::{self, NodeConfig};
use crate::memory_plan::MemoryPlan;

/// Logs the memory limit and the budget of functions, with a warning if all budgets together exceed the limit.
pub(crate) fn log_plan(plan: &MemoryPlan) {
    let (limit_bytes, source) = (plan.limit.bytes, &plan.limit.source);
    tracing::info!(limit_bytes, %source, functions_bytes = plan.guest_bytes, "memory");
    let planned_bytes = plan.total_bytes();
    if planned_bytes > limit_bytes {
        tracing::warn!(
            planned_bytes,
            limit_bytes,
            "the sizes in the configuration add up to more than the memory limit; lower broker.max_buffered, \
             broker.max_retained, broker.max_connections, store.cache or objects.cache"
        );
    }
}

pub(crate) fn store_options(config: &NodeConfig, plan: &MemoryPlan) -> StoreOptions {
    StoreOptions {
        data_dir: config.data_dir.clone(),
        sync_interval: config.store.sync_interval,
        reserve_bytes: config.store.reserve.map(|reserve| reserve.as_u64()),
        // A start reads the whole journal into memory.
        journal_bytes: plan.limit.bytes / 8,
        cache_bytes: plan.block_bytes,
        objects_cache_bytes: plan.field_bytes,
        broker_sync: config.broker.sync,
        accept_loss: config.store.accept_loss,
    }
}

pub(crate) fn cluster_options(config: &NodeConfig) -> ClusterOptions {
    let section = &config.cluster;
    let labels: BTreeSet<&String> = section.labels.iter().collect();
    ClusterOptions {
        data_dir: config.data_dir.clone(),
        listen: section.listen,
        bootstrap: section.bootstrap.clone(),
        mdns: section.mdns && !is_loopback(section.listen.ip()),
        zone: section.zone.clone(),
        labels: labels.into_iter().cloned().collect(),
    }
}

pub(crate) fn broker_config(config: &NodeConfig, plan: &MemoryPlan, clock: Clock) -> BrokerConfig {
    let section = &config.broker;
    let seconds = |time: Duration| u32::try_from(time.as_secs()).unwrap_or(u32::MAX);
    BrokerConfig {
        clock,
        max_packet_bytes: section.max_packet.as_u64() as u32,
        max_connections: plan.connections as usize,
        max_sessions: section.max_sessions,
        max_session_expiry_seconds: section.max_session_expiry.map_or(u32::MAX, seconds),
        max_keepalive_seconds: section
            .max_keepalive
            .map_or(0, |time| u16::try_from(time.as_secs()).unwrap_or(u16::MAX).max(1)),
        stored_queue_messages: section.queue_messages,
        stored_queue_bytes: section.queue_size.as_u64(),
        max_stored_queue_bytes: section.max_queue_size.as_u64(),
        when_queue_full: match section.when_queue_full {
            config::WhenQueueFull::DropOldest => WhenQueueFull::DropOldest,
            config::WhenQueueFull::Reject => WhenQueueFull::Reject,
        },
        max_buffered_bytes: plan.buffered_bytes,
        max_unwritten_bytes: plan.unwritten_bytes as usize,
        max_subscription_bytes: plan.subscription_bytes as usize,
        max_will_bytes: plan.will_bytes as usize,
        max_retained_messages: section.max_retained_messages,
        max_retained_bytes: plan.retained_bytes as usize,
        max_connections_per_address: section.max_connections_per_address,
        max_connects_per_second_per_address: section.max_connects_per_second_per_address,
        max_messages_per_second: section.max_messages_per_second,
        sys_interval: section.sys_interval,
        ..BrokerConfig::default()
    }
}

/// Maximum memory of one function, in bytes.
pub(crate) fn function_memory_limits(plan: &MemoryPlan, max_bytes: usize) -> FunctionMemoryLimits {
    let largest_bytes = usize::try_from(plan.largest_function_bytes()).unwrap_or(usize::MAX);
    FunctionMemoryLimits { max_bytes, largest_bytes }
}

pub(crate) fn log_limits(config: &NodeConfig) -> RingLimits {
    RingLimits {
        lines: config.logs.lines_per_function,
        bytes: config.logs.bytes_per_function.as_u64() as usize,
    }
}

pub(crate) fn trace_limits(config: &NodeConfig) -> TraceLimits {
    TraceLimits { spans: config.traces.spans, per_second: config.traces.per_second }
}

/// Limits on the kept outcomes of durable invocations.
pub(crate) fn keep_limits(config: &NodeConfig, plan: &MemoryPlan) -> KeepLimits {
    KeepLimits {
        time: config.invocations.keep,
        count: config.invocations.max_kept,
        bytes: config.invocations.max_kept_size.as_u64(),
        memory_bytes: plan.durable_bytes as usize,
        listed: Retention {
            time: config.workflows.keep,
            count: config.workflows.max_kept,
            bytes: config.workflows.max_kept_size.as_u64(),
        },
        dead: Retention {
            time: config.invocations.keep_dead,
            count: config.invocations.max_dead,
            bytes: config.invocations.max_dead_size.as_u64(),
        },
    }
}

/// Durability of a step of a durable workflow that the next step waits for.
pub(crate) fn step_durability(config: &NodeConfig) -> Durability {
    match config.broker.sync {
        WalSync::Commit => Durability::Synced,
        WalSync::Interval | WalSync::Never => Durability::Written,
    }
}

/// Maximum size of a message of a function, in bytes: it must fit a packet together with the protocol's overhead.
pub(crate) fn max_message_bytes(config: &NodeConfig) -> usize {
    const PACKET_OVERHEAD_BYTES: usize = 64;
    (config.broker.max_packet.as_u64() as usize).saturating_sub(PACKET_OVERHEAD_BYTES)
}
