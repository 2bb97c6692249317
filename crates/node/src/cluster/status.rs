//! The status of this node for the members, and theirs for this node: keeps the [`ClusterView`] up to date.

use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use edgefaas_cluster::occurrences::Seen;
use edgefaas_cluster::placement::zone::{MemberZone, ZoneDetector, ZoneEvent, ZoneOrigin};
use edgefaas_cluster::status::{AppFact, Facts, Load, PolicyFact, Readiness, Zone, ZoneSource};
use edgefaas_cluster::{Handle, Membership};
use edgefaas_platform::is_label;
use edgefaas_rollout::Firings;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use super::load::LoadMeter;
use super::members::MemberWatch;
use super::view::{ClusterView, Found, MemberTable, MemberView, Named};

/// Interval of measuring the own load.
const MEASURE: Duration = Duration::from_secs(1);
/// The minimum between two updates of the view, however often members send.
const UPDATE: Duration = Duration::from_millis(100);

/// The view, for all parts of the node.
#[derive(Debug)]
pub(super) struct SharedView {
    current: ArcSwap<ClusterView>,
    facts: watch::Sender<Arc<ClusterView>>,
}

impl SharedView {
    /// A node that is in no cluster.
    pub fn alone(node_id: u64) -> Self {
        let view = Arc::new(ClusterView::alone(node_id));
        Self { current: ArcSwap::new(view.clone()), facts: watch::Sender::new(view) }
    }

    /// The current view.
    pub fn load(&self) -> arc_swap::Guard<Arc<ClusterView>> {
        self.current.load()
    }

    /// The current view, to keep.
    pub fn load_full(&self) -> Arc<ClusterView> {
        self.current.load_full()
    }

    /// The view; changes of loads and round trips alone are not notified.
    pub fn watch_facts(&self) -> watch::Receiver<Arc<ClusterView>> {
        self.facts.subscribe()
    }

    fn store(&self, view: ClusterView) {
        if **self.current.load() == view {
            return;
        }
        let view = Arc::new(view);
        self.current.store(view.clone());
        self.facts.send_if_modified(|facts| {
            let is_changed = !facts.has_same_facts(&view);
            if is_changed {
                *facts = view;
            }
            is_changed
        });
    }
}

/// The configured place of this node.
#[derive(Debug, Clone, Default)]
pub(super) struct OwnPlace {
    /// `None`: it is measured.
    pub zone: Option<String>,
    pub labels: Vec<String>,
}

/// The parts that a [`StatusExchange`] works with.
pub(super) struct StatusParts {
    pub handle: Handle,
    pub membership: Arc<Mutex<Membership>>,
    pub meter: LoadMeter,
    pub place: OwnPlace,
    pub apps: watch::Receiver<Arc<Vec<AppFact>>>,
    pub policy: watch::Receiver<Option<PolicyFact>>,
    pub view: Arc<SharedView>,
    pub members: MemberWatch,
    pub firings: Arc<Firings>,
}

/// Exchanges the status of a member of a cluster.
pub(super) struct StatusExchange {
    parts: StatusParts,
    statuses: watch::Receiver<()>,
    node_id: u64,
    name: String,
    begun: Instant,
    zone: OwnZone,
    table: MemberTable,
    load: Load,
}

impl StatusExchange {
    pub fn new(mut parts: StatusParts) -> Self {
        let (node_id, name) = {
            let membership = parts.membership.lock();
            (membership.own().node_id(), membership.own().name().to_owned())
        };
        let zone = match parts.place.zone.take() {
            Some(zone) => OwnZone::Configured(zone),
            None => OwnZone::Measured(ZoneDetector::new(node_id, name.clone(), 0)),
        };
        let (statuses, begun) = (parts.handle.watch_statuses(), Instant::now());
        let (table, load) = (MemberTable::default(), Load::default());
        Self { parts, statuses, node_id, name, begun, zone, table, load }
    }

    /// Runs until `cancel` fires; the view is that of a node alone afterwards.
    pub async fn run(mut self, cancel: CancellationToken) {
        let mut measure = tokio::time::interval(MEASURE);
        measure.set_missed_tick_behavior(MissedTickBehavior::Delay);
        measure.reset();
        loop {
            tokio::select! {
                () = cancel.cancelled() => break,
                _ = measure.tick() => self.measure(),
                Ok(()) = self.statuses.changed() => {}
                Ok(()) = self.parts.apps.changed() => {}
                Ok(()) = self.parts.policy.changed() => {}
            }
            self.update();
            tokio::time::sleep(UPDATE).await;
        }
        self.parts.firings.see([]);
        // A node that stops is still a member.
        if self.parts.membership.lock().is_own_revoked() {
            self.parts.members.leave();
        }
        self.parts.view.store(ClusterView::alone(self.node_id));
    }

    /// Measures the load for the members, and passes the time on to the measurement of the zone.
    pub fn measure(&mut self) {
        self.load = self.parts.meter.measure();
        if let Err(error) = self.parts.handle.set_load(self.load.encode()) {
            tracing::error!(%error, "the load of this node cannot be sent");
        }
        self.zone.tick(self.now_ms());
    }

    /// Takes the status of all members, and sends the own facts if they have changed.
    pub fn update(&mut self) {
        let (now, now_ms) = (Instant::now(), self.now_ms());
        self.statuses.mark_unchanged();
        let named = named(&self.parts.membership.lock());
        let found = self.table.update(&named, self.parts.handle.peer_statuses(), now);
        for (node_id, error) in &found.invalid {
            tracing::warn!(node_id, %error, "a member has sent an invalid status");
            self.parts.handle.disconnect_with_penalty(*node_id);
        }
        let others = self.table.views();
        self.zone.update(&found, &others, now_ms);
        let facts = Facts {
            zone: self.zone.current(),
            labels: self.parts.place.labels.clone(),
            software: env!("CARGO_PKG_VERSION").to_owned(),
            apps: (**self.parts.apps.borrow_and_update()).clone(),
            apps_omitted: 0,
            policy: self.parts.policy.borrow_and_update().clone(),
        };
        if let Err(error) = self.parts.handle.set_facts(facts.encode()) {
            tracing::error!(%error, "the facts of this node cannot be sent");
        }
        let me = MemberView::own(self.node_id, self.name.clone(), facts, self.load.clone());
        let view = ClusterView { me, others };
        self.parts.firings.see(view.others.iter().map(seen));
        self.parts.members.update(&view, now);
        self.parts.view.store(view);
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

/// A member for the schedules. One that drains has stopped them.
fn seen(member: &MemberView) -> Seen<'_> {
    let load = member.load.as_ref();
    let is_draining = load.is_some_and(|load| load.readiness == Readiness::Draining);
    Seen {
        node_id: member.node_id,
        incarnation: member.incarnation,
        fires: member.is_connected() && !is_draining,
        announced: load.map_or(&[], |load| &load.fired),
    }
}

fn named(membership: &Membership) -> Vec<Named> {
    let name = |certificate: &edgefaas_cluster::Certificate| Named {
        node_id: certificate.node_id(),
        name: certificate.name().to_owned(),
    };
    membership.members().map(|member| name(&member.certificate)).collect()
}

/// The zone of this node.
enum OwnZone {
    Configured(String),
    Measured(ZoneDetector),
}

impl OwnZone {
    fn tick(&mut self, now_ms: u64) {
        if let Self::Measured(detector) = self {
            detector.handle(ZoneEvent::Tick, now_ms);
        }
    }

    fn update(&mut self, found: &Found, others: &[MemberView], now_ms: u64) {
        let Self::Measured(detector) = self else { return };
        for member in others {
            let node_id = member.node_id;
            let event = match member.is_connected() {
                true => ZoneEvent::Member {
                    node_id,
                    name: member.name.clone(),
                    zone: member.facts.zone.as_ref().map(member_zone),
                },
                false => ZoneEvent::Down { node_id },
            };
            detector.handle(event, now_ms);
        }
        for round_trip in &found.round_trips {
            let rtt_us = u32::try_from(round_trip.rtt.as_micros()).unwrap_or(u32::MAX);
            detector.handle(ZoneEvent::RoundTrip { node_id: round_trip.node_id, rtt_us }, now_ms);
        }
    }

    fn current(&self) -> Option<Zone> {
        match self {
            Self::Configured(name) => Some(Zone { name: name.clone(), source: ZoneSource::Configured }),
            Self::Measured(detector) => {
                let name = detector.zone()?.to_owned();
                // A zone has the name of a node, which may be none that a policy can refer to.
                is_label(&name).then_some(Zone { name, source: ZoneSource::Measured })
            }
        }
    }
}

fn member_zone(zone: &Zone) -> MemberZone {
    let origin = match zone.source {
        ZoneSource::Configured => ZoneOrigin::Configured,
        ZoneSource::Measured => ZoneOrigin::Measured,
    };
    MemberZone { name: zone.name.clone(), origin }
}
