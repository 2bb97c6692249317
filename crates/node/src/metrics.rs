//! Metrics of the node, which `/metrics` exposes in Prometheus' text format.

use std::sync::atomic::Ordering;
use std::time::Duration;

use edgefaas_functions::metrics::FunctionFamilies;
use edgefaas_isolates::GuestMemoryReading;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::bridge::BridgeStatus;
use crate::cluster::LackingPattern;

/// All metrics of the node.
pub struct Metrics {
    registry: Registry,
    gauges: NodeGauges,
}

/// Metrics that [`Metrics::encode`] updates from a [`NodeReading`].
#[derive(Debug, Clone, Default)]
struct NodeGauges {
    uptime_seconds: Gauge,
    resident_memory_bytes: Gauge,
    memory_limit_bytes: Gauge,
    guest_memory_max_bytes: Gauge,
    guest_memory_bytes: Gauge,
    guest_memory_withheld_bytes: Gauge,
    guest_memory_waiting: Gauge,
    guest_memory_refused: Counter,
    isolates_running: Gauge,
    functions: Gauge,
    mqtt_connections: Gauge,
    mqtt_subscriptions: Gauge,
    mqtt_retained: Gauge,
    mqtt_sessions: Gauge,
    mqtt_stored: Gauge,
    mqtt_buffered: Gauge,
    mqtt_received: Counter,
    mqtt_sent: Counter,
    mqtt_dropped: Counter,
    mqtt_rejected: Counter,
    mqtt_expired: Counter,
    mqtt_refused: Counter,
    mqtt_protocol_errors: Counter,
    workflow_instances: Gauge,
    workflow_running: Gauge,
    workflow_started: Counter,
    workflow_completed: Counter,
    workflow_faulted: Counter,
    workflow_cancelled: Counter,
    workflow_rejected: Counter,
    workflow_events_dropped: Counter,
    workflow_events: Counter,
    durable_pending: Gauge,
    durable_kept: Gauge,
    durable_kept_bytes: Gauge,
    durable_retried: Counter,
    durable_dead: Counter,
    durable_dropped: Counter,
    store_commits: Counter,
    store_syncs: Counter,
    disk_full: Gauge,
    disk_free_bytes: Gauge,
    disk_needed_bytes: Gauge,
    disk_refused: Counter,
    disk_reclaims: Counter,
    object_fields_cached: Gauge,
    object_bytes_cached: Gauge,
    object_fields_unwritten: Gauge,
    object_tombstones: Gauge,
    object_merges: Counter,
    object_conflicts: Counter,
    object_writes_postponed: Counter,
    cluster_members: Gauge,
    cluster_peers: Gauge,
    cluster_clock_skew: Gauge,
    cluster_bytes_sent: Counter,
    cluster_bytes_received: Counter,
    cluster_artefact_bytes_sent: Counter,
    cluster_artefact_bytes_received: Counter,
    cluster_messages_sent: Counter,
    cluster_messages_received: Counter,
    cluster_deltas_sent: Counter,
    cluster_delta_bytes_sent: Counter,
    cluster_states_sent: Counter,
    cluster_flushes: Counter,
    cluster_changes: Counter,
    cluster_rounds: Counter,
    cluster_rounds_exchanged: Counter,
    cluster_bad_messages: Counter,
    cluster_too_large: Counter,
    cluster_stale: Counter,
    cluster_refused: Family<ReasonLabel, Counter>,
    cluster_streams_refused: Counter,
    cluster_load_permille: Family<MemberLabel, Gauge>,
    cluster_round_trip: Family<MemberLabel, Gauge>,
    cluster_recovering_patterns: Gauge,
    cluster_recovering: Family<RecoveringLabel, Gauge>,
    bridge_connected: Family<BridgeLabel, Gauge>,
    bridge_queued: Family<BridgeLabel, Gauge>,
    bridge_received: Family<BridgeLabel, Counter>,
    bridge_sent: Family<BridgeLabel, Counter>,
    bridge_dropped: Family<BridgeLabel, Counter>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RecoveringLabel {
    app: String,
    pattern: String,
    member: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct MemberLabel {
    member: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct BridgeLabel {
    bridge: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabel {
    reason: String,
}

/// Current figures of the parts of the node, the input of [`Metrics::encode`].
#[derive(Debug, Clone, Default)]
pub struct NodeReading {
    /// Time since the start of the node.
    pub uptime: Duration,
    /// Resident memory of the process, in bytes.
    pub rss_bytes: u64,
    /// Memory limit of the process, in bytes.
    pub memory_limit_bytes: u64,
    /// Memory of functions.
    pub guests: GuestMemoryReading,
    /// Isolates in use.
    pub isolates_running: u32,
    /// Number of live functions.
    pub functions: usize,
    /// The broker.
    pub broker: edgefaas_broker::BrokerStats,
    /// The store.
    pub store: edgefaas_state::store::CommitReading,
    /// Free space on the disk of the store.
    pub space: edgefaas_state::store::SpaceReading,
    /// Durable invocations.
    pub durable: edgefaas_functions::durable::DurableReading,
    /// Workflows.
    pub workflows: edgefaas_coordinator::WorkflowReading,
    /// Bridges to other brokers.
    pub bridges: Vec<BridgeStatus>,
    /// Stateful objects.
    pub objects: edgefaas_state::objects::ObjectsReading,
    /// The cluster.
    pub cluster: crate::cluster::ClusterReading,
    /// Bytes of artefacts.
    pub artefacts: edgefaas_rollout::transfer::ArtefactTraffic,
}

impl Metrics {
    /// Registers the metrics of the node and of its functions.
    pub fn new(functions: &FunctionFamilies) -> Self {
        let gauges = NodeGauges::default();
        let mut registry = Registry::with_prefix("edgefaas");
        functions.register(&mut registry);
        let node = &gauges;
        for (name, help, gauge) in [
            ("uptime_seconds", "Seconds since the start of the node", &node.uptime_seconds),
            ("resident_memory_bytes", "Resident memory of the node, in bytes", &node.resident_memory_bytes),
            ("memory_limit_bytes", "Memory limit of the node, in bytes", &node.memory_limit_bytes),
            (
                "function_memory_max_bytes",
                "Memory budget of all functions, in bytes",
                &node.guest_memory_max_bytes,
            ),
            ("function_memory_bytes", "Memory reserved by functions, in bytes", &node.guest_memory_bytes),
            (
                "function_memory_withheld_bytes",
                "Memory withheld from functions under memory pressure, in bytes",
                &node.guest_memory_withheld_bytes,
            ),
            ("function_memory_waiting", "Invocations that wait for memory", &node.guest_memory_waiting),
            ("isolates_running", "Isolates in use", &node.isolates_running),
            ("functions", "Live functions", &node.functions),
            ("mqtt_connections", "Connected MQTT clients", &node.mqtt_connections),
            ("mqtt_subscriptions", "Subscriptions of MQTT clients", &node.mqtt_subscriptions),
            ("mqtt_retained_messages", "Retained messages", &node.mqtt_retained),
            (
                "workflow_instances",
                "Workflow instances that have not ended, or failed and can be retried",
                &node.workflow_instances,
            ),
            ("workflow_instances_running", "Workflow instances that run a task", &node.workflow_running),
            ("durable_pending", "Durable invocations that have not ended", &node.durable_pending),
            ("durable_outcomes_kept", "Kept outcomes of durable invocations", &node.durable_kept),
            (
                "durable_outcomes_kept_bytes",
                "Size of the kept outcomes, in bytes",
                &node.durable_kept_bytes,
            ),
            ("mqtt_sessions", "MQTT sessions, with and without a connection", &node.mqtt_sessions),
            ("mqtt_stored_bytes", "Bytes that wait on the disk for sessions", &node.mqtt_stored),
            ("mqtt_buffered_bytes", "Bytes that wait in memory for clients", &node.mqtt_buffered),
            (
                "disk_full",
                "1 while the disk is full and writes that need space are refused",
                &node.disk_full,
            ),
            ("disk_free_bytes", "Free bytes on the disk of the data directory", &node.disk_free_bytes),
            ("disk_needed_bytes", "Free bytes below which writes are refused", &node.disk_needed_bytes),
        ] {
            registry.register(name, help, gauge.clone());
        }
        for (name, help, counter) in [
            (
                "mqtt_messages_received",
                "Messages from clients, wills included, and from the node",
                &node.mqtt_received,
            ),
            (
                "mqtt_messages_sent",
                "Deliveries to subscribers, one for each message and subscriber",
                &node.mqtt_sent,
            ),
            ("workflow_started", "Started workflow instances", &node.workflow_started),
            ("workflow_completed", "Completed workflow instances", &node.workflow_completed),
            ("workflow_faulted", "Failed workflow instances", &node.workflow_faulted),
            ("workflow_cancelled", "Cancelled workflow instances", &node.workflow_cancelled),
            (
                "workflow_rejected",
                "Starts of workflows that were rejected for lack of room",
                &node.workflow_rejected,
            ),
            ("workflow_events", "Messages that workflows waited for", &node.workflow_events),
            (
                "workflow_events_dropped",
                "Events of QoS 0 that were dropped because the workflow had no room",
                &node.workflow_events_dropped,
            ),
            (
                "durable_retried",
                "Failed attempts of durable invocations that were followed by another attempt",
                &node.durable_retried,
            ),
            ("durable_dead_lettered", "Durable invocations that became dead letters", &node.durable_dead),
            ("durable_dropped", "Dead letters that made room for newer invocations", &node.durable_dropped),
            (
                "mqtt_messages_dropped",
                "Lost deliveries: queue full, message expired or too large",
                &node.mqtt_dropped,
            ),
            ("mqtt_messages_rejected", "Messages that a hook or a limit refused", &node.mqtt_rejected),
            (
                "function_memory_refused",
                "Invocations that got no memory in time or could not grow",
                &node.guest_memory_refused,
            ),
            ("store_commits", "Groups of changes written to the store", &node.store_commits),
            ("store_syncs", "Syncs of the store to the disk", &node.store_syncs),
            (
                "disk_refused",
                "Writes refused because the disk is full, without those of the broker",
                &node.disk_refused,
            ),
            ("disk_reclaims", "Reclaims of the space of dead data", &node.disk_reclaims),
            ("object_merges", "Merged changes of peers", &node.object_merges),
            (
                "object_conflicts",
                "Fields that two nodes created with different types",
                &node.object_conflicts,
            ),
            (
                "object_writes_postponed",
                "Writes of durability memory that were postponed because the disk was full",
                &node.object_writes_postponed,
            ),
            (
                "cluster_bytes_sent",
                "Bytes of messages about objects to peers, without encryption and framing",
                &node.cluster_bytes_sent,
            ),
            (
                "cluster_bytes_received",
                "Bytes of messages about objects from peers, without encryption and framing",
                &node.cluster_bytes_received,
            ),
            (
                "cluster_artefact_bytes_sent",
                "Bytes of messages about artefacts to members",
                &node.cluster_artefact_bytes_sent,
            ),
            (
                "cluster_artefact_bytes_received",
                "Bytes of messages about artefacts from members",
                &node.cluster_artefact_bytes_received,
            ),
            ("cluster_messages_sent", "Messages about objects to peers", &node.cluster_messages_sent),
            (
                "cluster_messages_received",
                "Messages about objects from peers",
                &node.cluster_messages_received,
            ),
            (
                "cluster_deltas_sent",
                "Changes of objects sent, one for each peer",
                &node.cluster_deltas_sent,
            ),
            (
                "cluster_delta_bytes_sent",
                "Bytes of sent messages with changes",
                &node.cluster_delta_bytes_sent,
            ),
            ("cluster_states_sent", "Whole states among the sent changes", &node.cluster_states_sent),
            ("cluster_changes", "Groups of local changes", &node.cluster_changes),
            ("cluster_flushes", "Flushes of the changes of an object", &node.cluster_flushes),
            ("cluster_rounds", "Rounds with a peer", &node.cluster_rounds),
            ("cluster_rounds_exchanged", "Rounds that found a difference", &node.cluster_rounds_exchanged),
            ("cluster_bad_messages", "Invalid messages of members", &node.cluster_bad_messages),
            (
                "cluster_too_large",
                "Objects that could not be sent as a whole because they are too large",
                &node.cluster_too_large,
            ),
            (
                "cluster_stale",
                "Objects that a slow peer did not get in time and gets as a whole",
                &node.cluster_stale,
            ),
            (
                "cluster_streams_refused",
                "Streams of members that were reset because too many waited",
                &node.cluster_streams_refused,
            ),
            ("mqtt_sessions_expired", "Sessions whose expiry interval ran out", &node.mqtt_expired),
            (
                "mqtt_connections_refused",
                "Connections that were refused before they got a session",
                &node.mqtt_refused,
            ),
            (
                "mqtt_protocol_errors",
                "Connections ended because the client violated the protocol or a limit",
                &node.mqtt_protocol_errors,
            ),
        ] {
            registry.register(name, help, counter.clone());
        }
        for (name, help, gauge) in [
            ("object_fields_cached", "Fields of objects in the cache", &node.object_fields_cached),
            ("object_cached_bytes", "Memory of the cached fields, in bytes", &node.object_bytes_cached),
            ("object_fields_unwritten", "Fields newer than the disk", &node.object_fields_unwritten),
            (
                "object_tombstones",
                "Objects with deleted fields that not all members of the cluster are known to have deleted",
                &node.object_tombstones,
            ),
            ("cluster_members", "Other members of the cluster", &node.cluster_members),
            (
                "cluster_recovering_patterns",
                "Patterns of objects that have not all come from the other members",
                &node.cluster_recovering_patterns,
            ),
            ("cluster_peers", "Connected members of the cluster", &node.cluster_peers),
            (
                "cluster_clock_skew_seconds",
                "Largest clock difference to a connected peer, in seconds",
                &node.cluster_clock_skew,
            ),
        ] {
            registry.register(name, help, gauge.clone());
        }
        registry.register("cluster_refused", "Refused nodes, by reason", node.cluster_refused.clone());
        registry.register(
            "cluster_recovering",
            "1 for each pattern of objects and each member whose objects of it have not all come; of the first 100 patterns",
            node.cluster_recovering.clone(),
        );
        for (name, help, gauge) in [
            (
                "cluster_load_permille",
                "Use of the scarcest resource of a connected member, or of this node: invocations, processor or memory",
                &node.cluster_load_permille,
            ),
            (
                "cluster_round_trip_us",
                "Median of the recent round trips to a connected member, in microseconds",
                &node.cluster_round_trip,
            ),
        ] {
            registry.register(name, help, gauge.clone());
        }
        for (name, help, gauge) in [
            ("bridge_connected", "1 while the bridge is connected", &node.bridge_connected),
            ("bridge_queued_messages", "Messages that wait for the other broker", &node.bridge_queued),
        ] {
            registry.register(name, help, gauge.clone());
        }
        for (name, help, counter) in [
            ("bridge_messages_received", "Messages from the other broker", &node.bridge_received),
            ("bridge_messages_sent", "Messages to the other broker", &node.bridge_sent),
            (
                "bridge_messages_dropped",
                "Messages that either side refused or that found no room",
                &node.bridge_dropped,
            ),
        ] {
            registry.register(name, help, counter.clone());
        }
        Self { registry, gauges }
    }

    /// All metrics with the values of `reading`, in Prometheus' text format.
    pub fn encode(&self, reading: &NodeReading) -> Result<String, std::fmt::Error> {
        let set = |gauge: &Gauge, value: u64| gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
        let (gauges, broker) = (&self.gauges, &reading.broker);
        set(&gauges.uptime_seconds, reading.uptime.as_secs());
        set(&gauges.resident_memory_bytes, reading.rss_bytes);
        set(&gauges.memory_limit_bytes, reading.memory_limit_bytes);
        set(&gauges.guest_memory_max_bytes, reading.guests.max_bytes);
        set(&gauges.guest_memory_bytes, reading.guests.used_bytes);
        set(&gauges.guest_memory_withheld_bytes, reading.guests.withheld_bytes);
        set(&gauges.guest_memory_waiting, reading.guests.waiting as u64);
        set(&gauges.isolates_running, reading.isolates_running.into());
        set(&gauges.functions, reading.functions as u64);
        set(&gauges.mqtt_connections, broker.connections);
        set(&gauges.mqtt_subscriptions, broker.subscriptions);
        set(&gauges.mqtt_retained, broker.retained);
        set(&gauges.mqtt_sessions, broker.sessions);
        set(&gauges.mqtt_stored, broker.stored_bytes);
        set(&gauges.mqtt_buffered, broker.buffered_bytes);
        // Each part counts by itself; these counters only expose its totals.
        let show = |counter: &Counter, total: u64| counter.inner().store(total, Ordering::Relaxed);
        show(&gauges.guest_memory_refused, reading.guests.refused);
        show(&gauges.mqtt_received, broker.messages_in);
        show(&gauges.mqtt_sent, broker.messages_out);
        show(&gauges.mqtt_dropped, broker.messages_dropped);
        show(&gauges.mqtt_rejected, broker.messages_rejected);
        show(&gauges.mqtt_expired, broker.sessions_expired);
        show(&gauges.mqtt_refused, broker.connections_refused);
        show(&gauges.mqtt_protocol_errors, broker.protocol_errors);
        let workflows = &reading.workflows;
        set(&gauges.workflow_instances, workflows.instances);
        set(&gauges.workflow_running, workflows.running);
        show(&gauges.workflow_started, workflows.started);
        show(&gauges.workflow_completed, workflows.completed);
        show(&gauges.workflow_faulted, workflows.faulted);
        show(&gauges.workflow_cancelled, workflows.cancelled);
        show(&gauges.workflow_rejected, workflows.rejected);
        show(&gauges.workflow_events_dropped, workflows.events_dropped);
        show(&gauges.workflow_events, workflows.events);
        let durable = &reading.durable;
        set(&gauges.durable_pending, durable.pending);
        set(&gauges.durable_kept, durable.kept);
        set(&gauges.durable_kept_bytes, durable.kept_bytes);
        show(&gauges.durable_retried, durable.retried);
        show(&gauges.durable_dead, durable.dead_lettered);
        show(&gauges.durable_dropped, durable.dropped);
        show(&gauges.store_commits, reading.store.commits);
        show(&gauges.store_syncs, reading.store.syncs);
        set(&gauges.disk_full, u64::from(reading.space.is_full));
        set(&gauges.disk_free_bytes, reading.space.free_bytes);
        set(&gauges.disk_needed_bytes, reading.space.needed_bytes);
        show(&gauges.disk_refused, reading.space.refused);
        show(&gauges.disk_reclaims, reading.space.reclaims);
        let objects = &reading.objects;
        set(&gauges.object_fields_cached, objects.cached_fields);
        set(&gauges.object_bytes_cached, objects.cached_bytes);
        set(&gauges.object_fields_unwritten, objects.unwritten_fields);
        set(&gauges.object_tombstones, objects.tombstones);
        show(&gauges.object_merges, objects.merges);
        show(&gauges.object_conflicts, objects.conflicts);
        show(&gauges.object_writes_postponed, objects.postponed);
        let cluster = &reading.cluster;
        set(&gauges.cluster_members, cluster.members);
        set(&gauges.cluster_peers, cluster.peers);
        set(&gauges.cluster_clock_skew, cluster.clock_skew_ms / 1000);
        let replication = &cluster.replication;
        show(&gauges.cluster_bytes_sent, replication.bytes_sent);
        show(&gauges.cluster_bytes_received, replication.bytes_received);
        show(&gauges.cluster_artefact_bytes_sent, reading.artefacts.sent_bytes);
        show(&gauges.cluster_artefact_bytes_received, reading.artefacts.received_bytes);
        show(&gauges.cluster_messages_sent, replication.messages_sent);
        show(&gauges.cluster_messages_received, replication.messages_received);
        show(&gauges.cluster_deltas_sent, replication.deltas_sent);
        show(&gauges.cluster_delta_bytes_sent, replication.delta_bytes_sent);
        show(&gauges.cluster_states_sent, replication.states_sent);
        show(&gauges.cluster_changes, replication.changes);
        show(&gauges.cluster_flushes, replication.flushes);
        show(&gauges.cluster_rounds, replication.rounds);
        show(&gauges.cluster_rounds_exchanged, replication.rounds_exchanged);
        show(&gauges.cluster_bad_messages, replication.bad_messages);
        show(&gauges.cluster_too_large, replication.payloads_too_long);
        show(&gauges.cluster_stale, replication.stale);
        for (reason, count) in &cluster.refused {
            let label = ReasonLabel { reason: reason.clone() };
            show(&gauges.cluster_refused.get_or_create(&label), *count);
        }
        show(&gauges.cluster_streams_refused, cluster.streams_refused);
        // Members that left or are away have none.
        gauges.cluster_load_permille.clear();
        gauges.cluster_round_trip.clear();
        gauges.cluster_recovering.clear();
        set(&gauges.cluster_recovering_patterns, cluster.recovering.patterns as u64);
        for LackingPattern { app, pattern, members } in &cluster.recovering.first {
            for member in members {
                let label =
                    RecoveringLabel { app: app.clone(), pattern: pattern.clone(), member: member.clone() };
                set(&gauges.cluster_recovering.get_or_create(&label), 1);
            }
        }
        for status in &cluster.status {
            let label = MemberLabel { member: status.name.clone() };
            if let Some(permille) = status.load_permille {
                set(&gauges.cluster_load_permille.get_or_create(&label), permille.into());
            }
            if let Some(rtt) = status.rtt {
                set(&gauges.cluster_round_trip.get_or_create(&label), rtt.as_micros() as u64);
            }
        }
        for status in &reading.bridges {
            let label = BridgeLabel { bridge: status.name.clone() };
            let connected = u64::from(status.connected_since_unix_ms.is_some());
            set(&gauges.bridge_connected.get_or_create(&label), connected);
            set(&gauges.bridge_queued.get_or_create(&label), status.queued);
            show(&gauges.bridge_received.get_or_create(&label), status.incoming);
            show(&gauges.bridge_sent.get_or_create(&label), status.outgoing);
            show(&gauges.bridge_dropped.get_or_create(&label), status.dropped);
        }
        let mut text = String::new();
        encode(&mut text, &self.registry)?;
        Ok(text)
    }
}
