//! Connects the transport, the replication state machine and the local objects.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use edgefaas_cluster::replication::{
    Counters, Event, Interest, NodeId, ObjectKey, Output, Policy, Replication, Settings,
};
use edgefaas_cluster::{
    Event as TransportEvent, EventReceiver, Handle, Membership, SendError, TaskTime, TaskTimer,
};
use edgefaas_crdt::{Field, FieldType, Operation, StateDelta};
use edgefaas_functions::registry::{Code, Registry, Routes};
use edgefaas_platform::Clock;
use edgefaas_state::objects::{CLUSTER_APP, FieldKey, FoldScope, PeerDelta, Recoveries, own_object};
use edgefaas_state::store::{Batch, CommitError, Durability, Store, StoreError};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::REVOKED;
use super::delta::{self, ObjectDelta};
use super::files::ClusterFiles;
use super::replica::LocalReplica;
use super::throttle::{Before, Cooldown, Throttle};

/// Maximum number of frames handled before their changes are committed.
const GROUP_FRAMES: usize = 64;
/// Minimum interval of collecting local changes: changes of an object within it are merged into one delta.
const COLLECT: Duration = Duration::from_millis(1);
/// Maximum idle time of the loop.
const IDLE: Duration = Duration::from_secs(1);
/// Approximate number of tombstones that are dropped at a time.
const DROPPED_TOMBSTONES: usize = 2_000;
/// Interval of updating the figures.
const READING: Duration = Duration::from_millis(250);

/// Parts that the driver works with.
pub(super) struct Driver {
    pub store: Arc<Store>,
    pub registry: Arc<Registry>,
    pub recoveries: Arc<Recoveries>,
    pub membership: Arc<Mutex<Membership>>,
    pub files: Arc<ClusterFiles>,
    pub clock: Clock,
    pub handle: Handle,
    pub events: EventReceiver,
    pub counters: Arc<Mutex<Counters>>,
}

/// Replicates until `cancel` fires or the transport ends.
pub(super) async fn run(driver: Driver, cancel: CancellationToken) -> Result<(), StoreError> {
    let Driver { store, registry, recoveries, membership, files, clock, handle, mut events, counters } =
        driver;
    let objects = store.objects().clone();
    objects.collect_for_peers();
    let opening = objects.clone();
    let replica = tokio::task::spawn_blocking(move || LocalReplica::open(opening, clock)).await;
    let replica = replica.map_err(|error| StoreError::Thread(std::io::Error::other(error)))?;
    let me = NodeId(objects.replica().node);
    let settings = Settings { seed: rand::random(), ..Settings::default() };
    let mut running = Running {
        machine: Replication::new(me, settings),
        replica,
        store,
        handle,
        recoveries,
        started: Instant::now(),
        interests: Vec::new(),
        compared: None,
        drops_more: false,
        busy: Arc::default(),
        previous_busy: TaskTime::default(),
    };
    let others = running.set_members(&membership).await;
    let mut changes = registry.changes();
    changes.borrow_and_update();
    running.set_interests(interests(&registry.routes())).await;
    let begun = Instant::now();
    let mut next_reading = begun;
    let mut throttle = Throttle::new(begun);
    throttle.set_others(others);
    let (mut after_tick, mut after_collect) = (Cooldown::none(begun), Cooldown::none(begun));
    let mut collected = begun;
    loop {
        let now = Instant::now();
        let next_update = throttle.update(throttle.end(&after_tick).max(throttle.end(&after_collect)), now);
        let next_tick = throttle.end(&after_tick);
        let next_collect = throttle.end(&after_collect).max(collected + COLLECT).max(next_tick);
        let deadline = running.machine.next_deadline().map(|due| (running.started + due).max(next_tick));
        let tick = async {
            match deadline {
                Some(at) => tokio::time::sleep_until(at.into()).await,
                None => std::future::pending().await,
            }
        };
        let collect = async {
            tokio::time::sleep_until(next_collect.into()).await;
            objects.take_for_peers().await
        };
        let is_cooling = next_collect > next_update;
        tokio::select! {
            () = cancel.cancelled() => break,
            event = events.recv() => {
                let Some(event) = event else { break };
                let mut group = vec![event];
                while group.len() < GROUP_FRAMES && let Ok(event) = events.try_recv() {
                    group.push(event);
                }
                let changed = group.contains(&TransportEvent::MembershipChanged);
                running.transport(group).await;
                if changed {
                    store_membership(&files, &membership).await;
                    if membership.lock().is_own_revoked() {
                        tracing::error!("{REVOKED}");
                        objects.collect_for_nobody();
                        cancel.cancel();
                        break;
                    }
                    throttle.set_others(running.set_members(&membership).await);
                }
            }
            deltas = collect => {
                // A function that is live since a moment ago may have made them: where they go depends on the interests.
                if changes.has_changed().unwrap_or(false) {
                    changes.borrow_and_update();
                    running.set_interests(interests(&registry.routes())).await;
                }
                // Changes that have waited for their whole interval are sent now.
                running.changed(deltas).await;
                collected = Instant::now();
                after_collect = Cooldown::after(running.take_busy(), Duration::ZERO, collected);
            }
            _ = changes.changed() => {
                changes.borrow_and_update();
                let interests = interests(&registry.routes());
                running.set_interests(interests).await;
            }
            // Figures, folding and tombstones also advance while no event arrives.
            () = tokio::time::sleep(if running.drops_more { READING } else { IDLE }) => {}
            // A cooldown may end earlier at the pressure that is read then.
            () = tokio::time::sleep_until(next_update.into()), if is_cooling => {}
            () = tick => {
                let late = deadline.map_or(Duration::ZERO, |at| at.elapsed());
                running.handle([Event::Tick]).await;
                let next = match running.machine.sends_objects() {
                    true => Before::Objects,
                    false => Before::Changes,
                };
                after_tick = Cooldown::after(running.take_busy(), late, Instant::now()).before(next);
            }
        }
        let now = Instant::now();
        if now >= next_reading {
            next_reading = now + READING;
            *counters.lock() = running.machine.counters().clone();
            running.fold();
            running.drop_tombstones().await;
        }
    }
    Ok(())
}

/// Changes of an object from a member.
struct Received {
    node: NodeId,
    object: ObjectKey,
    copies: u8,
    fields: Vec<(FieldKey, StateDelta)>,
    /// Depth of the call chain that made them.
    depth: u8,
}

struct Running {
    machine: Replication<ObjectDelta>,
    replica: LocalReplica,
    store: Arc<Store>,
    handle: Handle,
    recoveries: Arc<Recoveries>,
    started: Instant,
    /// The local interests that the members know.
    interests: Vec<Interest>,
    /// Time since the start at which every member had been compared with this node once.
    compared: Option<Duration>,
    /// More tombstones can be dropped.
    drops_more: bool,
    /// Cost of handling events.
    busy: Arc<TaskTimer>,
    /// Total cost at the previous call of [`take_busy`](Self::take_busy).
    previous_busy: TaskTime,
}

impl Running {
    /// Allows the writer to fold the changes of this node's earlier boots into one, once every member has them.
    ///
    /// When all members have been compared once, no change of the earlier boots is missing here, and none can be added.
    /// When all members have been found equal once more after that, they have all of them.
    fn fold(&mut self) {
        let Some(since) = self.machine.stable_since() else { return };
        let compared = *self.compared.get_or_insert_with(|| self.started.elapsed());
        if since >= compared {
            let used =
                self.interests.iter().map(|interest| (interest.app.clone(), interest.pattern.clone()));
            self.store.objects().fold_own_past(FoldScope::Used(used.collect()));
        }
    }

    fn count_tombstones(&mut self) {
        self.store.objects().deletions().set_tombstones(self.replica.objects_with_deletions() as u64);
    }

    /// Drops tombstones of deletions that every member has, some at a time.
    async fn drop_tombstones(&mut self) {
        let agreed_ms = self.machine.agreed_ms();
        let deletions = self.store.objects().deletions();
        deletions.set_agreed(agreed_ms);
        self.count_tombstones();
        let droppable_ms = self.machine.droppable_ms();
        let agreed = self.replica.deletions_until(droppable_ms, DROPPED_TOMBSTONES);
        self.drops_more = !agreed.is_empty();
        let mut batch = Batch::default();
        let mut objects = Vec::with_capacity(agreed.len());
        for (object, keys) in agreed {
            keys.into_iter().for_each(|key| batch.drop_tombstone(key, droppable_ms));
            objects.push(object);
        }
        if objects.is_empty() {
            return;
        }
        if let Err(error) = self.store.committer().commit(batch, Durability::Written).await {
            tracing::warn!(%error, "tombstones of deleted fields could not be dropped");
        }
        objects.into_iter().for_each(|object| self.replica.changed(object));
    }

    /// Cost of replication since the previous call.
    fn take_busy(&mut self) -> TaskTime {
        let busy = self.handle.task_time() + self.busy.read();
        busy - std::mem::replace(&mut self.previous_busy, busy)
    }

    /// Updates the members of the transport; returns the number of other members.
    async fn set_members(&mut self, membership: &Mutex<Membership>) -> usize {
        let members: Vec<_> =
            membership.lock().members().map(|member| NodeId(member.certificate.node_id())).collect();
        let others = members.len();
        self.handle([Event::Members(members)]).await;
        others
    }

    async fn set_interests(&mut self, interests: Vec<Interest>) {
        let pattern = |interest: &Interest| (interest.app.clone(), interest.pattern.clone());
        self.recoveries.set_wanted(interests.iter().map(pattern));
        self.interests.clone_from(&interests);
        self.handle([Event::LocalInterests(interests)]).await;
    }

    async fn transport(&mut self, events: Vec<TransportEvent>) {
        let events = events.into_iter().filter_map(|event| match event {
            TransportEvent::PeerUp { node_id, name, protocol_version, skew_ms, address, .. } => {
                tracing::info!(node = name, %address, "connected with a member of the cluster");
                if skew_ms.unsigned_abs() > 60_000 {
                    let skew_s = skew_ms / 1000;
                    tracing::warn!(
                        node = name,
                        skew_s,
                        "the clocks of this member and this node differ, and the last writer wins by its clock; set the clocks"
                    );
                }
                Some(Event::PeerUp { node: NodeId(node_id), protocol_version })
            }
            TransportEvent::PeerDown { node_id, reason } => {
                tracing::info!(node = %NodeId(node_id), %reason, "no longer connected with a member of the cluster");
                Some(Event::PeerDown { node: NodeId(node_id) })
            }
            TransportEvent::Frame { node_id, bytes } => {
                Some(Event::Received { node: NodeId(node_id), frame: bytes })
            }
            TransportEvent::Writable { node_id } => Some(Event::Writable { node: NodeId(node_id) }),
            TransportEvent::MembershipChanged => None,
        });
        self.handle(events.collect::<Vec<_>>()).await;
    }

    async fn changed(&mut self, deltas: HashMap<FieldKey, PeerDelta>) {
        let mut objects: HashMap<ObjectKey, ObjectDelta> = HashMap::new();
        for (key, PeerDelta { delta, depth }) in deltas {
            let object = ObjectKey::new(key.app(), key.object());
            if delta.tombstone_ms().is_some() {
                self.replica.deleted(object.clone());
            }
            objects.entry(object).or_default().add(key.field(), delta, depth);
        }
        let mut events = Vec::with_capacity(objects.len());
        for (object, delta) in objects {
            self.replica.changed(object.clone());
            let class = self.store.objects().class(&object.app, &object.object);
            let policy = Policy { interval: class.interval, copies: class.copies };
            events.push(Event::Changed { object, delta, policy });
        }
        self.count_tombstones();
        self.handle(events).await;
    }

    /// Handles events and carries out their effects. Merges are committed together at the end: a frame handled before
    /// that may see an object without them, which costs a message only.
    async fn handle(&mut self, events: impl IntoIterator<Item = Event<ObjectDelta>>) {
        self.busy.clone().time(self.carry_out(events)).await;
    }

    async fn carry_out(&mut self, events: impl IntoIterator<Item = Event<ObjectDelta>>) {
        let mut recovering = Vec::new();
        let merges = self.step(events, &mut recovering);
        if !merges.is_empty() {
            let senders: BTreeSet<NodeId> = merges.iter().map(|received| received.node).collect();
            if !self.merge(merges).await {
                // Functions that wait for these objects go on waiting.
                let lost = senders.into_iter().map(|node| Event::NotStored { node });
                self.step(lost, &mut recovering);
            }
        }
        for (interests, lacks) in recovering {
            let patterns = interests.into_iter().map(|interest| (interest.app, interest.pattern));
            self.recoveries.set_lacks(patterns, lacks.iter().map(|node| node.0).collect());
        }
    }

    /// Lets the machine handle events; returns what is to be merged, and adds changes of what is missing.
    fn step(
        &mut self,
        events: impl IntoIterator<Item = Event<ObjectDelta>>,
        recovering: &mut Vec<(Vec<Interest>, Vec<NodeId>)>,
    ) -> Vec<Received> {
        let mut merges = Vec::new();
        let mut events: VecDeque<_> = events.into_iter().collect();
        while let Some(event) = events.pop_front() {
            for output in self.machine.handle(event, self.started.elapsed(), &self.replica) {
                match output {
                    Output::Send { node, frame } => {
                        if let Some(refused) = self.send(node, frame) {
                            events.push_front(refused);
                        }
                    }
                    Output::Merge { node, object, copies, payload, depth } => {
                        match delta::decode(&object, &payload) {
                            Ok(fields) => merges.push(Received { node, object, copies, fields, depth }),
                            Err(error) => {
                                tracing::warn!(%node, %object, %error, "a member sent an invalid payload");
                                events.push_front(Event::BadPayload { node });
                            }
                        }
                    }
                    Output::Recovering { interests, lacks } => recovering.push((interests, lacks)),
                    Output::Disconnect { node, reason } => {
                        tracing::warn!(%node, %reason, "a member is disconnected");
                        self.handle.disconnect_with_penalty(node.0);
                    }
                }
            }
        }
        merges
    }

    fn send(&self, node: NodeId, frame: Bytes) -> Option<Event<ObjectDelta>> {
        match self.handle.try_send(node.0, frame.clone()) {
            Ok(()) => None,
            Err(SendError::Full { .. }) => Some(Event::Refused { node, frame }),
            // An event reports the end of the connection.
            Err(SendError::Gone { .. }) => None,
            Err(error @ SendError::TooLarge { .. }) => {
                tracing::error!(%node, %error, "a frame is not sent");
                None
            }
        }
    }

    /// Stores changes of members; false if that failed, and they have to come again.
    async fn merge(&mut self, mut merges: Vec<Received>) -> bool {
        let agreed_ms = self.machine.agreed_ms();
        for Received { fields, .. } in &mut merges {
            // A member has not dropped the tombstone yet.
            fields.retain(|(key, delta)| {
                let is_old = delta.tombstone_ms().is_some_and(|deleted_ms| deleted_ms <= agreed_ms);
                !is_old || !matches!(self.store.objects().has_record(key), Ok(false))
            });
        }
        let mut stored = self.store_merges(&merges).await;
        if stored.is_err() && self.leave_damaged_out(&mut merges) {
            stored = self.store_merges(&merges).await;
        }
        if let Err(error) = stored {
            // The next comparison with the sender finds the missing changes.
            tracing::warn!(%error, "changes of other members could not be stored");
            return false;
        }
        let is_bounded = |(key, delta): &(FieldKey, StateDelta)| {
            (delta.field_type() == FieldType::BoundedCounter).then(|| key.clone())
        };
        let bounded =
            merges.iter().flat_map(|received| received.fields.iter().filter_map(is_bounded)).collect();
        for Received { object, copies, fields, .. } in merges {
            if !fields.is_empty() {
                self.replica.received(object, copies, &fields);
            }
        }
        self.count_tombstones();
        self.grant(bounded).await;
        true
    }

    async fn store_merges(&self, merges: &[Received]) -> Result<(), CommitError> {
        let mut batch = Batch::default();
        for Received { fields, depth, .. } in merges {
            fields.iter().for_each(|(key, delta)| batch.merge(key.clone(), delta.clone(), *depth));
        }
        self.store.committer().commit(batch, Durability::Written).await
    }

    /// Removes the changes of fields that cannot be read, so that they do not block those of others; false if there are none.
    fn leave_damaged_out(&self, merges: &mut [Received]) -> bool {
        let mut has_damaged = false;
        for Received { fields, .. } in merges {
            fields.retain(|(key, _)| {
                let readable = self.store.objects().has_record(key);
                if let Err(error) = &readable {
                    has_damaged = true;
                    tracing::error!(field = ?key, %error, "a field cannot be read: changes of other members are not merged into it");
                }
                readable.is_ok()
            });
        }
        has_damaged
    }

    /// Grants shares of this node to members that have requested them.
    async fn grant(&self, bounded: Vec<FieldKey>) {
        let objects = self.store.objects();
        let node = objects.replica().node;
        let mut batch = Batch::default();
        for key in bounded {
            let needs = |field: Option<&Field>| {
                let counter = field.and_then(|field| field.bounded_counter(key.field()).ok());
                counter.is_some_and(|counter| counter.needs_grant(node))
            };
            if objects.read(&key, needs).unwrap_or(false) {
                batch.operate(key, Operation::BoundedCounterGrant);
            }
        }
        if !batch.is_empty()
            && let Err(error) = self.store.committer().commit(batch, Durability::Synced).await
        {
            tracing::warn!(%error, "shares of a bounded counter could not be granted");
        }
    }
}

/// Interests: the objects that functions of this node use, or are triggered by.
fn interests(routes: &Routes) -> Vec<Interest> {
    let watched = routes
        .object_changes()
        .iter()
        .map(|route| Interest { app: route.scope.app.clone(), pattern: route.scope.object.clone() });
    let mut interests: Vec<Interest> = routes
        .functions()
        .filter(|function| function.code == Code::Here)
        .flat_map(|function| {
            let app = function.app.to_string();
            let own = own_object(&function.name);
            let patterns = function.spec.permissions.objects.iter().cloned().chain([own]);
            patterns.map(move |pattern| Interest { app: app.clone(), pattern })
        })
        .chain(watched)
        .chain([Interest { app: CLUSTER_APP.to_owned(), pattern: "*".to_owned() }])
        .collect();
    interests.sort();
    interests.dedup();
    interests
}

async fn store_membership(files: &Arc<ClusterFiles>, membership: &Arc<Mutex<Membership>>) {
    let (files, membership) = (files.clone(), membership.lock().clone());
    let kept = tokio::task::spawn_blocking(move || files.keep_membership(&membership)).await;
    if let Ok(Err(error)) = kept {
        tracing::warn!(%error, "the members of the cluster could not be stored; a restart uses the previous list");
    }
}
