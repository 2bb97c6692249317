//! The memory plan: a budget for each consumer of memory. The sum of all budgets stays within the memory limit.

use std::fmt;

use edgefaas_isolates::{GuestMemory, MemoryLimit};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// Memory of an idle process: code, threads, the store, and memory of the kernel for it.
const BASE_BYTES: u64 = 24 * MIB;
/// Fraction of the limit (one in 8) for fragments of the allocator, pages of files and memory that no budget counts.
const SLACK_SHARE: u64 = 8;
const MAX_SLACK_BYTES: u64 = 512 * MIB;
/// Memory of a connected MQTT client, with its buffers in the process and in the kernel. An idle client takes 5 kB.
const CONNECTION_BYTES: u64 = 16 * KIB;
/// Memory of a connection of the gateway, with its buffers and its request.
const GATEWAY_CONNECTION_BYTES: u64 = 32 * KIB;
/// Maximum number of connections of the gateway.
const MAX_GATEWAY_CONNECTIONS: u64 = 10_000;
/// Maximum default of `broker.max_connections`.
const MAX_CONNECTIONS: u64 = 10_000;
/// Fraction of the limit (one in 16) for a message to the control port, which is in memory several times while it is
/// handled.
const MESSAGE_SHARE: u64 = 16;
const MIN_MESSAGE_BYTES: u64 = 4 * MIB;
const MAX_MESSAGE_BYTES: u64 = 64 * MIB;
/// Unit of shares: thousandths of the memory beside the base.
const PARTS: u64 = 1000;

/// Share of a consumer in the memory beside the base, in thousandths ([`PARTS`]), up to `max_bytes`.
struct Share {
    parts: u64,
    max_bytes: u64,
}

impl Share {
    const fn of(parts: u64, max_bytes: u64) -> Self {
        Self { parts, max_bytes }
    }

    fn bytes(&self, shared_bytes: u64) -> u64 {
        (shared_bytes / PARTS * self.parts).min(self.max_bytes)
    }
}

const CONNECTIONS: Share = Share::of(100, MAX_CONNECTIONS * CONNECTION_BYTES);
const GATEWAY_CONNECTIONS: Share = Share::of(35, MAX_GATEWAY_CONNECTIONS * GATEWAY_CONNECTION_BYTES);
const BUFFERED: Share = Share::of(35, 64 * MIB);
const RETAINED: Share = Share::of(30, 64 * MIB);
const SUBSCRIPTIONS: Share = Share::of(10, 8 * MIB);
const WILLS: Share = Share::of(10, 16 * MIB);
const UNWRITTEN: Share = Share::of(15, 32 * MIB);
const EVENTS: Share = Share::of(30, 128 * MIB);
const EFFECTS: Share = Share::of(25, 128 * MIB);
const REPLIES: Share = Share::of(35, 64 * MIB);
const BODIES: Share = Share::of(35, 64 * MIB);
const ANSWERS: Share = Share::of(35, 64 * MIB);
const WORKFLOWS: Share = Share::of(70, 512 * MIB);
const DURABLE: Share = Share::of(10, 16 * MIB);
const BLOCKS: Share = Share::of(20, 8 * MIB);
const FIELDS: Share = Share::of(30, 16 * MIB);
const LOGS: Share = Share::of(15, 64 * MIB);

/// Sizes that the configuration sets; the plan computes the others.
#[derive(Debug, Clone, Copy, Default)]
pub struct MemoryOverrides {
    /// `broker.max_buffered`.
    pub buffered_bytes: Option<u64>,
    /// `broker.max_retained`.
    pub retained_bytes: Option<u64>,
    /// `broker.max_connections`.
    pub connections: Option<u64>,
    /// `store.cache`.
    pub block_bytes: Option<u64>,
    /// `objects.cache`.
    pub field_bytes: Option<u64>,
    /// `workflows.memory`.
    pub workflow_bytes: Option<u64>,
}

/// The budgets of a node, in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryPlan {
    /// The memory limit of the process.
    pub limit: MemoryLimit,
    /// The process itself: memory that no consumer gets.
    pub base_bytes: u64,
    /// Linear memory of functions, and the overhead of their isolates.
    pub guest_bytes: u64,
    /// Number of connected MQTT clients. Each counts 16 KiB.
    pub connections: u64,
    /// Number of connections of the gateway. Each counts 32 KiB.
    pub gateway_connections: u64,
    /// Messages that wait in memory for subscribers.
    pub buffered_bytes: u64,
    /// Retained messages.
    pub retained_bytes: u64,
    /// Filters of subscriptions.
    pub subscription_bytes: u64,
    /// Wills of clients.
    pub will_bytes: u64,
    /// Changes of the broker that wait for the store.
    pub unwritten_bytes: u64,
    /// Events of invocations that run, wait in a queue or are written to the store.
    pub event_bytes: u64,
    /// Uncommitted messages and writes of running invocations.
    pub effect_bytes: u64,
    /// Replies that wait for their clients.
    pub reply_bytes: u64,
    /// Request bodies that are not complete.
    pub body_bytes: u64,
    /// Answers of other servers to functions.
    pub answer_bytes: u64,
    /// Instances of workflows and the events that wait for them.
    pub workflow_bytes: u64,
    /// Pending durable invocations that are cached, so that they are not read from the disk again.
    pub durable_bytes: u64,
    /// The store's block cache.
    pub block_bytes: u64,
    /// The cache of fields of objects.
    pub field_bytes: u64,
    /// Log lines, spans and metrics.
    pub log_bytes: u64,
}

/// A budget with its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryShare {
    /// Name of the consumer, as `edgefaas status` shows it.
    pub name: &'static str,
    /// Its size in bytes.
    pub bytes: u64,
}

impl MemoryPlan {
    /// Divides `limit` among the consumers. Sizes of the configuration apply unchanged, at the expense of functions.
    pub fn new(limit: MemoryLimit, overrides: MemoryOverrides) -> Self {
        let slack_bytes = (limit.bytes / SLACK_SHARE).min(MAX_SLACK_BYTES);
        let base_bytes = (BASE_BYTES + slack_bytes).min(limit.bytes / 2);
        let shared_bytes = limit.bytes - base_bytes;
        let of = |share: Share| share.bytes(shared_bytes);
        let mut plan = Self {
            limit,
            base_bytes,
            guest_bytes: 0,
            connections: overrides.connections.unwrap_or((of(CONNECTIONS) / CONNECTION_BYTES).max(1)),
            gateway_connections: (of(GATEWAY_CONNECTIONS) / GATEWAY_CONNECTION_BYTES).max(1),
            buffered_bytes: overrides.buffered_bytes.unwrap_or(of(BUFFERED)),
            retained_bytes: overrides.retained_bytes.unwrap_or(of(RETAINED)),
            subscription_bytes: of(SUBSCRIPTIONS),
            will_bytes: of(WILLS),
            unwritten_bytes: of(UNWRITTEN),
            event_bytes: of(EVENTS),
            effect_bytes: of(EFFECTS),
            reply_bytes: of(REPLIES),
            body_bytes: of(BODIES),
            answer_bytes: of(ANSWERS),
            workflow_bytes: overrides.workflow_bytes.unwrap_or(of(WORKFLOWS)),
            durable_bytes: of(DURABLE),
            block_bytes: overrides.block_bytes.unwrap_or(of(BLOCKS)),
            field_bytes: overrides.field_bytes.unwrap_or(of(FIELDS)),
            log_bytes: of(LOGS),
        };
        // Functions get the rest, and at least a tenth of the shared memory even if the configuration leaves less.
        let taken: u64 = plan.shares().iter().map(|share| share.bytes).sum();
        plan.guest_bytes = plan.limit.bytes.saturating_sub(taken).max(shared_bytes / 10);
        plan
    }

    /// All budgets, in bytes.
    pub fn shares(&self) -> [MemoryShare; 19] {
        let share = |name, bytes| MemoryShare { name, bytes };
        [
            share("process", self.base_bytes),
            share("functions", self.guest_bytes),
            share("connections", self.connections.saturating_mul(CONNECTION_BYTES)),
            share("gateway connections", self.gateway_connections * GATEWAY_CONNECTION_BYTES),
            share("mqtt queues", self.buffered_bytes),
            share("retained messages", self.retained_bytes),
            share("subscriptions", self.subscription_bytes),
            share("wills", self.will_bytes),
            share("unwritten changes", self.unwritten_bytes),
            share("events", self.event_bytes),
            share("uncommitted effects", self.effect_bytes),
            share("replies", self.reply_bytes),
            share("request bodies", self.body_bytes),
            share("answers to functions", self.answer_bytes),
            share("workflows", self.workflow_bytes),
            share("durable invocations", self.durable_bytes),
            share("store cache", self.block_bytes),
            share("object cache", self.field_bytes),
            share("logs", self.log_bytes),
        ]
    }

    /// Sum of all budgets, in bytes. It exceeds the limit if the configuration sets too large sizes.
    pub fn total_bytes(&self) -> u64 {
        self.shares().iter().fold(0, |sum, share| sum.saturating_add(share.bytes))
    }

    /// Maximum size of a message to the control port, in bytes: a deploy contains all sources and assets of an app.
    pub fn message_bytes(&self) -> usize {
        (self.limit.bytes / MESSAGE_SHARE).clamp(MIN_MESSAGE_BYTES, MAX_MESSAGE_BYTES) as usize
    }

    /// Maximum linear memory of one function, in bytes.
    pub fn largest_function_bytes(&self) -> u64 {
        GuestMemory::largest_isolate_bytes(self.guest_bytes)
    }
}

impl fmt::Display for MemoryShare {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} {}", self.name, bytesize::ByteSize(self.bytes))
    }
}

#[cfg(test)]
mod tests {
    use edgefaas_isolates::LimitSource;

    use super::*;

    fn plan(limit_bytes: u64, overrides: MemoryOverrides) -> MemoryPlan {
        MemoryPlan::new(MemoryLimit { bytes: limit_bytes, source: LimitSource::Machine }, overrides)
    }

    #[test]
    fn all_budgets_together_stay_within_every_limit() {
        let none = MemoryOverrides::default();
        let limits = (64..=2048).step_by(7).map(|mib| mib * MIB);
        let larger = (2..=64).map(|gib| gib << 30);
        for limit_bytes in limits.chain(larger) {
            let plan = plan(limit_bytes, none);
            assert!(plan.total_bytes() <= limit_bytes, "{limit_bytes}: {plan:?}");
            assert!(plan.shares().iter().all(|share| share.bytes > 0), "{plan:?}");
            // Functions get at least a third of the shared memory.
            assert!(plan.guest_bytes >= (limit_bytes - plan.base_bytes) / 3, "{plan:?}");
        }
    }

    #[test]
    fn a_small_machine_has_memory_for_functions_and_connections() {
        let none = MemoryOverrides::default();
        let small = plan(128 * MIB, none);
        assert!(small.guest_bytes >= 40 * MIB && small.connections >= 500, "{small:?}");
        let pi = plan(1 << 30, none);
        assert!(pi.guest_bytes >= 400 * MIB && pi.connections >= 5000, "{pi:?}");
        assert!(pi.largest_function_bytes() >= 256 * MIB);
        let large = plan(24 << 30, none);
        assert_eq!((large.event_bytes, large.buffered_bytes), (128 * MIB, 64 * MIB));
        assert_eq!((large.connections, large.workflow_bytes), (MAX_CONNECTIONS, 512 * MIB));
    }

    #[test]
    fn configured_sizes_are_taken_from_functions() {
        let none = MemoryOverrides::default();
        let (without, with) = (
            plan(1 << 30, none),
            plan(1 << 30, MemoryOverrides { retained_bytes: Some(200 * MIB), ..none }),
        );
        assert_eq!(with.retained_bytes, 200 * MIB);
        assert_eq!(without.guest_bytes - with.guest_bytes, 200 * MIB - without.retained_bytes);
        assert!(with.total_bytes() <= 1 << 30);
        // More than the limit: functions keep a tenth, and the sum exceeds the limit.
        let too_much = plan(1 << 30, MemoryOverrides { retained_bytes: Some(2 << 30), ..none });
        assert!(too_much.guest_bytes > 0 && too_much.total_bytes() > 1 << 30);
    }
}
