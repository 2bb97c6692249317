//! The status of this node for the members, and theirs for this node: keeps the [`ClusterView`] up to date.

use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use edgefaas_cluster::placement::zone::{MemberZone, ZoneDetector, ZoneEvent, ZoneOrigin};
use edgefaas_cluster::status::{AppFact, Facts, Zone, ZoneSource};
use edgefaas_cluster::{Handle, Membership};
use edgefaas_platform::is_label;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use super::load::LoadMeter;
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

/// Exchanges the status of a member of a cluster.
pub(super) struct StatusExchange {
    pub handle: Handle,
    pub membership: Arc<Mutex<Membership>>,
    pub meter: LoadMeter,
    pub place: OwnPlace,
    pub apps: watch::Receiver<Arc<Vec<AppFact>>>,
    pub view: Arc<SharedView>,
}

impl StatusExchange {
    /// Runs until `cancel` fires; the view is that of a node alone afterwards.
    pub async fn run(mut self, cancel: CancellationToken) {
        let begun = Instant::now();
        let now_ms = || u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        let (node_id, name) = {
            let membership = self.membership.lock();
            (membership.own().node_id(), membership.own().name().to_owned())
        };
        let mut zone = match self.place.zone.take() {
            Some(zone) => OwnZone::Configured(zone),
            None => OwnZone::Measured(ZoneDetector::new(node_id, name.clone(), 0)),
        };
        let mut table = MemberTable::default();
        let mut statuses = self.handle.watch_statuses();
        let mut measure = tokio::time::interval(MEASURE);
        measure.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut load = self.meter.measure();
        loop {
            let is_tick = tokio::select! {
                () = cancel.cancelled() => break,
                _ = measure.tick() => true,
                Ok(()) = statuses.changed() => false,
                Ok(()) = self.apps.changed() => false,
            };
            if is_tick {
                load = self.meter.measure();
                // It is always within the limit.
                let _ = self.handle.set_load(load.encode());
            }
            statuses.mark_unchanged();
            let named = named(&self.membership.lock());
            let found = table.update(&named, self.handle.peer_statuses(), Instant::now());
            self.send_away(&found);
            let others = table.views();
            zone.update(&found, &others, is_tick, now_ms());
            let facts = Facts {
                zone: zone.current(),
                labels: self.place.labels.clone(),
                software: env!("CARGO_PKG_VERSION").to_owned(),
                apps: (**self.apps.borrow_and_update()).clone(),
                apps_omitted: 0,
            };
            if let Err(error) = self.handle.set_facts(facts.encode()) {
                tracing::error!(%error, "the facts of this node cannot be sent");
            }
            let me = MemberView::own(node_id, name.clone(), facts, load);
            self.view.store(ClusterView { me, others });
            tokio::time::sleep(UPDATE).await;
        }
        self.view.store(ClusterView::alone(node_id));
    }

    fn send_away(&self, found: &Found) {
        for (node_id, error) in &found.invalid {
            tracing::warn!(node_id, %error, "a member has sent an invalid status");
            self.handle.disconnect_with_penalty(*node_id);
        }
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
    fn update(&mut self, found: &Found, others: &[MemberView], is_tick: bool, now_ms: u64) {
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
        if is_tick {
            detector.handle(ZoneEvent::Tick, now_ms);
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
