//! Start and stop of the node's cluster membership, and its status for the control port.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use edgefaas_cluster::replication::Counters;
use edgefaas_cluster::status::{AppFact, PolicyFact};
use edgefaas_cluster::{
    CertificateError, ClusterKey, Counters as TransportCounters, Handle, Identity, IncomingStream,
    JoinError, JoinRequest, MemberStream, Membership, NewCertificate, OpenStream, OpenStreamError, Options,
    PeerInfo, StartError, StreamPurpose, Token, TokenError, Transport, TransportKind, join,
};
use edgefaas_functions::registry::Registry;
use edgefaas_platform::Clock;
use edgefaas_rollout::Members;
use edgefaas_state::objects::{FoldScope, Recoveries};
use edgefaas_state::store::Store;
use parking_lot::Mutex;
use tokio::sync::{Mutex as AsyncMutex, mpsc, watch};
use tokio::task::JoinSet;
use tokio_util::compat::FuturesAsyncReadCompatExt;
use tokio_util::sync::CancellationToken;

use super::REVOKED;
use super::driver::{self, Driver};
use super::files::{ClusterFiles, FilesError};
use super::load::{LoadMeter, LoadSources};
use super::members::MemberWatch;
use super::recovering::Recovering;
use super::status::{OwnPlace, SharedView, StatusExchange, StatusParts};
use super::streams::StreamRouter;
use super::view::ClusterView;

/// Maximum time of joining.
const JOIN_TIMEOUT: Duration = Duration::from_secs(30);
/// Default lifetime of a token.
const TOKEN_LIFE: Duration = Duration::from_secs(3600);
/// Maximum lifetime of a token.
const MAX_TOKEN_LIFE: Duration = Duration::from_secs(30 * 24 * 3600);
/// Maximum frame size beside chunks of a state, which are smaller.
const FRAME_BYTES: usize = 512 << 10;

/// Cluster settings of the node.
#[derive(Debug, Clone)]
pub struct ClusterOptions {
    /// The data directory.
    pub data_dir: PathBuf,
    /// Listen address, for TCP and QUIC, once the node is a member.
    pub listen: SocketAddr,
    /// Addresses to dial beside the known members.
    pub bootstrap: Vec<String>,
    /// True to discover members on the local network.
    pub mdns: bool,
    /// The zone of this node; `None`: it is measured.
    pub zone: Option<String>,
    /// The labels of this node.
    pub labels: Vec<String>,
}

/// An operation on the cluster failed.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// A file cannot be used.
    #[error(transparent)]
    Files(#[from] FilesError),
    /// The port cannot be bound.
    #[error(transparent)]
    Start(#[from] StartError),
    /// A certificate cannot be issued.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    /// The token is invalid.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// The node was not admitted.
    #[error(transparent)]
    Join(#[from] JoinError),
    /// The node is a member already.
    #[error(
        "this node is in the cluster {cluster} already; to put it into another, stop it, move `cluster/` out of its data \
         directory and start it again"
    )]
    MemberAlready {
        /// The cluster's id.
        cluster: String,
    },
    /// The node was revoked.
    #[error(
        "this node was revoked in the cluster {cluster}; to join again, stop it, move `cluster/` out of its data directory and start it"
    )]
    Revoked {
        /// The cluster's id.
        cluster: String,
    },
    /// The node is in no cluster.
    #[error(
        "this node is in no cluster; make one with `edgefaas cluster init`, or join one with `edgefaas cluster join TOKEN`"
    )]
    NoMember,
    /// Only the node that created the cluster changes its membership.
    #[error(
        "this node does not have the key of the cluster; use the node that created the cluster, with `cluster/cluster.key` in its data directory"
    )]
    NoKey,
    /// No member has this name.
    #[error("member `{name}` does not exist; `edgefaas nodes` lists the members")]
    UnknownMember {
        /// The requested name.
        name: String,
    },
    /// The lifetime of a token is too long.
    #[error(
        "a token is valid for at most 30 days, not for {days}: until then everyone who has it can join"
    )]
    LongLife {
        /// Requested days.
        days: u64,
    },
    /// The node with the cluster's key cannot be removed.
    #[error("this node has the key of the cluster and cannot be revoked")]
    OwnKey,
}

/// Whether this node is in a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// In none.
    Alone,
    /// A member.
    Member,
    /// It was a member of this cluster, by its id, and works alone.
    Revoked {
        /// The cluster's id.
        cluster: String,
    },
}

/// Status of the cluster, as this node sees it.
#[derive(Debug, Clone)]
pub struct ClusterStatus {
    /// The cluster's id; `None` if the node is in no cluster.
    pub cluster: Option<String>,
    /// The id of the cluster in which the node was revoked.
    pub revoked: Option<String>,
    /// The node's name in it.
    pub name: String,
    /// The node's id.
    pub node_id: u64,
    /// True if the node can admit and remove members.
    pub has_key: bool,
    /// Listen addresses.
    pub addresses: Vec<String>,
    /// The other members, by name.
    pub members: Vec<MemberStatus>,
    /// This node and the other members, with their loads and facts.
    pub view: Arc<ClusterView>,
    /// Patterns of objects that have not come from the other members yet.
    pub recovering: Recovering,
    /// Reports of members about a second node with this node's identity.
    pub copy: Option<String>,
}

/// Status of another member.
#[derive(Debug, Clone)]
pub struct MemberStatus {
    /// Its name.
    pub name: String,
    /// Its node id.
    pub node_id: u64,
    /// Last known addresses.
    pub addresses: Vec<String>,
    /// The connection with the member; `None` while disconnected.
    pub peer: Option<PeerInfo>,
    /// Address from which a second node with its identity was refused in the last 10 minutes.
    pub copy_address: Option<String>,
}

/// Figures of the cluster.
#[derive(Debug, Clone, Default)]
pub struct ClusterReading {
    /// True if the node is a member.
    pub is_member: bool,
    /// Members that are connected.
    pub peers: u64,
    /// Number of other members.
    pub members: u64,
    /// Counters of the replication.
    pub replication: Counters,
    /// Number of refused nodes, by reason.
    pub refused: Vec<(String, u64)>,
    /// Maximum difference between this node's clock and the clock of a connected peer, in milliseconds.
    pub clock_skew_ms: u64,
    /// Bytes received from the currently connected peers, and sent to them.
    pub bytes: (u64, u64),
    /// Streams of members that were reset because too many waited.
    pub streams_refused: u64,
    /// Load and round trips of this node and of the connected members.
    pub status: Vec<StatusReading>,
    /// Patterns of objects that have not come from the other members yet.
    pub recovering: Recovering,
}

/// Load of a member and the round trips to it.
#[derive(Debug, Clone)]
pub struct StatusReading {
    /// The member's name.
    pub name: String,
    /// Use of its scarcest resource; `None` if it is not known.
    pub load_permille: Option<u32>,
    /// Median of the round trips; `None` for this node.
    pub rtt: Option<Duration>,
}

/// The node's cluster membership.
pub struct Cluster {
    options: ClusterOptions,
    files: Arc<ClusterFiles>,
    store: Arc<Store>,
    registry: Arc<Registry>,
    recoveries: Arc<Recoveries>,
    clock: Clock,
    counters: Arc<Mutex<Counters>>,
    load_sources: LoadSources,
    apps: watch::Sender<Arc<Vec<AppFact>>>,
    policy: watch::Sender<Option<PolicyFact>>,
    view: Arc<SharedView>,
    members: watch::Sender<Arc<Members>>,
    streams: Arc<StreamRouter>,
    running: Mutex<Option<Running>>,
    /// Serialises changes of the cluster.
    changing: AsyncMutex<()>,
}

struct Running {
    handle: Handle,
    membership: Arc<Mutex<Membership>>,
    cancel: CancellationToken,
    tasks: JoinSet<()>,
}

impl Cluster {
    /// The membership in the files of the data directory. Opens no port before [`start`](Self::start).
    pub fn new(
        options: ClusterOptions,
        store: Arc<Store>,
        load_sources: LoadSources,
        recoveries: Arc<Recoveries>,
        clock: Clock,
    ) -> Self {
        let view = Arc::new(SharedView::alone(store.objects().replica().node));
        Self {
            files: Arc::new(ClusterFiles::new(&options.data_dir)),
            options,
            store,
            registry: load_sources.registry.clone(),
            recoveries,
            clock,
            counters: Arc::default(),
            load_sources,
            apps: watch::Sender::default(),
            policy: watch::Sender::default(),
            view,
            members: watch::Sender::default(),
            streams: Arc::default(),
            running: Mutex::default(),
            changing: AsyncMutex::default(),
        }
    }

    /// The cluster, as this node sees it now. Cheap enough for each call of a function. Loads are up to a second old; in no
    /// cluster this node has no name, facts or load.
    pub fn view(&self) -> arc_swap::Guard<Arc<ClusterView>> {
        self.view.load()
    }

    /// The cluster, notified when members, their presence or their facts change; its loads may be old.
    pub fn watch_view(&self) -> watch::Receiver<Arc<ClusterView>> {
        self.view.watch_facts()
    }

    /// Objects that this node lacks.
    pub fn recoveries(&self) -> Arc<Recoveries> {
        self.recoveries.clone()
    }

    /// The members of the cluster for rollouts; none while the node is in no cluster.
    pub fn members(&self) -> watch::Receiver<Arc<Members>> {
        self.members.subscribe()
    }

    /// Sets the state of the apps of this node. Members get it within 0.2 s.
    pub fn set_apps(&self, apps: Vec<AppFact>) {
        self.apps.send_if_modified(|current| {
            let is_changed = **current != apps;
            if is_changed {
                *current = Arc::new(apps);
            }
            is_changed
        });
    }

    /// Sets the placement policies that this node knows. Members get them within 0.2 s.
    pub fn set_policy(&self, policy: PolicyFact) {
        self.policy.send_if_modified(|current| {
            let is_changed = current.as_ref() != Some(&policy);
            if is_changed {
                *current = Some(policy);
            }
            is_changed
        });
    }

    /// Opens streams of a purpose to members, each within 5 s, in any cluster that this node joins. Their errors are those of
    /// [`Handle::open_stream`]; `Gone` in no cluster, and once the node stops.
    pub fn opener(self: &Arc<Self>, purpose: StreamPurpose) -> OpenStream {
        let cluster = Arc::downgrade(self);
        Arc::new(move |node_id| {
            let cluster = cluster.clone();
            Box::pin(async move {
                let handle = cluster.upgrade().and_then(|cluster| {
                    cluster.running.lock().as_ref().map(|running| running.handle.clone())
                });
                let handle = handle.ok_or(OpenStreamError::Gone { node_id })?;
                let stream = handle.open_stream(node_id, purpose).await?;
                Ok(Box::pin(stream.compat()) as MemberStream)
            })
        })
    }

    /// The streams of a purpose that members open to this node, in any cluster that it joins. At most 64 wait; further ones
    /// are reset, and all of them once the receiver is dropped. `None` if they were taken already.
    pub fn take_streams(&self, purpose: StreamPurpose) -> Option<mpsc::Receiver<IncomingStream>> {
        self.streams.take(purpose)
    }

    /// Starts replication if the node is a member of a cluster.
    pub async fn start(&self) -> Result<(), ClusterError> {
        let _changing = self.changing.lock().await;
        match self.files.membership()? {
            Some(membership) => {
                let node_id = self.store.objects().replica().node;
                if membership.own().node_id() != node_id {
                    // The node id belongs to the store. With another store the node must not replicate under the old certificate.
                    tracing::error!(
                        "the store is not the one with which this node joined its cluster, and the node works alone; move \
                         `cluster/` out of its data directory and join again"
                    );
                    return Ok(());
                }
                match self.run(self.files.identity()?, membership, Vec::new()).await {
                    Err(ClusterError::Start(StartError::Revoked)) => {
                        tracing::error!("{REVOKED}");
                        Ok(())
                    }
                    started => started,
                }
            }
            None => {
                self.store.objects().fold_own_past(FoldScope::All);
                Ok(())
            }
        }
    }

    /// Stops replication, and waits for its tasks.
    pub async fn stop(&self) {
        let running = self.running.lock().take();
        if let Some(mut running) = running {
            running.cancel.cancel();
            while running.tasks.join_next().await.is_some() {}
        }
        self.recoveries.end_all();
    }

    /// Creates a cluster with this node as its first member and holder of the cluster's key.
    pub async fn init(&self, name: &str) -> Result<ClusterStatus, ClusterError> {
        let _changing = self.changing.lock().await;
        self.must_be_alone()?;
        let identity = self.files.identity()?;
        let key = ClusterKey::generate();
        let first = self.certificate(&identity, name);
        let membership = Membership::found(&key, first)?;
        // In this order: a member list without the key could not admit nodes; a key without a member list is replaced.
        self.files.keep_cluster_key(&key)?;
        self.files.keep_membership(&membership)?;
        self.run(identity, membership, Vec::new()).await?;
        self.status()
    }

    /// A token that admits one node, once and within `life`.
    pub async fn token(&self, life: Option<Duration>) -> Result<String, ClusterError> {
        let key = self.key()?;
        let running = self.running.lock();
        let handle = &running.as_ref().ok_or(ClusterError::NoMember)?.handle;
        let life = life.unwrap_or(TOKEN_LIFE);
        if life > MAX_TOKEN_LIFE {
            return Err(ClusterError::LongLife { days: life.as_secs().div_ceil(24 * 3600) });
        }
        Ok(handle.open_join(&key, life)?.to_string())
    }

    /// Makes this node a member of the cluster that issued the token.
    pub async fn join(&self, token: &str, name: &str) -> Result<ClusterStatus, ClusterError> {
        let _changing = self.changing.lock().await;
        self.must_be_alone()?;
        let token: Token = token.trim().parse()?;
        let identity = self.files.identity()?;
        let request =
            JoinRequest { name: name.to_owned(), node_id: Some(self.store.objects().replica().node) };
        let membership = join(&identity, &token, &request, JOIN_TIMEOUT).await?;
        self.files.keep_membership(&membership)?;
        // Other members will have some of the objects soon.
        self.store.objects().fold_own_past(FoldScope::None);
        // The issuer of the token does not know this node's address, so this node dials.
        let issuer = token.addresses().iter().map(ToString::to_string).collect();
        self.run(identity, membership, issuer).await?;
        self.status()
    }

    /// Revokes a member, by its name or number, with all its certificates. Every member that learns of the revocation
    /// closes its connections with it.
    pub async fn revoke(&self, name: &str) -> Result<(), ClusterError> {
        let _changing = self.changing.lock().await;
        let key = self.key()?;
        let (membership, handle) = {
            let running = self.running.lock();
            let running = running.as_ref().ok_or(ClusterError::NoMember)?;
            (running.membership.clone(), running.handle.clone())
        };
        let revocation = {
            let membership = membership.lock();
            let is_it = |certificate: &edgefaas_cluster::Certificate| {
                certificate.name() == name || format!("{:016x}", certificate.node_id()) == name
            };
            if is_it(membership.own()) {
                return Err(ClusterError::OwnKey);
            }
            let mut members = membership.members().map(|member| &member.certificate);
            let member = members.find(|certificate| is_it(certificate));
            let member = member.ok_or_else(|| ClusterError::UnknownMember { name: name.to_owned() })?;
            key.revoke(member.peer_id())
        };
        handle.revoke(revocation)?;
        let now = membership.lock().clone();
        Ok(self.files.keep_membership(&now)?)
    }

    /// Whether this node is in a cluster. Reads the list of members if it is in none.
    pub fn standing(&self) -> Result<Standing, FilesError> {
        let of = |membership: &Membership| match membership.is_own_revoked() {
            true => Standing::Revoked { cluster: membership.cluster_id().to_string() },
            false => Standing::Member,
        };
        if let Some(running) = &*self.running.lock() {
            return Ok(of(&running.membership.lock()));
        }
        let stored = self.files.membership()?.as_ref().map(of);
        // With the list of another store the node is no member.
        Ok(stored.filter(|standing| *standing != Standing::Member).unwrap_or(Standing::Alone))
    }

    /// Status of the cluster.
    pub fn status(&self) -> Result<ClusterStatus, ClusterError> {
        let node_id = self.store.objects().replica().node;
        let has_key = self.files.cluster_key()?.is_some();
        let revoked = match self.standing()? {
            Standing::Revoked { cluster } => Some(cluster),
            Standing::Alone | Standing::Member => None,
        };
        let running = self.running.lock();
        let Some(running) = running.as_ref().filter(|_| revoked.is_none()) else {
            return Ok(ClusterStatus {
                cluster: None,
                revoked,
                name: String::new(),
                node_id,
                has_key,
                addresses: Vec::new(),
                members: Vec::new(),
                view: self.view.load_full(),
                recovering: Recovering::default(),
                copy: None,
            });
        };
        let peers = running.handle.peers();
        let copies = running.handle.copies();
        let membership = running.membership.lock();
        let member = |member: &edgefaas_cluster::Member| MemberStatus {
            name: member.certificate.name().to_owned(),
            node_id: member.certificate.node_id(),
            addresses: member.addresses.all().iter().map(ToString::to_string).collect(),
            peer: peers.iter().find(|peer| peer.node_id == member.certificate.node_id()).cloned(),
            copy_address: copies
                .iter()
                .find(|copy| copy.peer_id == member.certificate.peer_id())
                .map(|copy| copy.refused_at.to_string()),
        };
        let mut members: Vec<_> = membership.members().map(member).collect();
        members.sort_by(|one, next| one.name.cmp(&next.name));
        Ok(ClusterStatus {
            cluster: Some(membership.cluster_id().to_string()),
            revoked: None,
            name: membership.own().name().to_owned(),
            node_id,
            has_key,
            addresses: running.handle.listen_addresses().iter().map(ToString::to_string).collect(),
            members,
            view: self.view.load_full(),
            recovering: Recovering::of(&self.recoveries, &membership),
            copy: running.handle.own_copy(),
        })
    }

    /// The figures.
    pub fn reading(&self) -> ClusterReading {
        let running = self.running.lock();
        let is_member = |running: &&Running| !running.membership.lock().is_own_revoked();
        let Some(running) = running.as_ref().filter(is_member) else { return ClusterReading::default() };
        let peers = running.handle.peers();
        let TransportCounters { refused, streams_refused, .. } = running.handle.counters();
        let view = self.view.load();
        let status = view.all().filter(|member| member.is_connected()).map(|member| StatusReading {
            name: member.name.clone(),
            load_permille: member.load_permille(),
            rtt: member.rtt,
        });
        let (members, recovering) = {
            let membership = running.membership.lock();
            (membership.members().count() as u64, Recovering::of(&self.recoveries, &membership))
        };
        ClusterReading {
            is_member: true,
            peers: peers.len() as u64,
            members,
            replication: self.counters.lock().clone(),
            refused: refused.into_iter().map(|(reason, count)| (reason.name().to_owned(), count)).collect(),
            clock_skew_ms: peers.iter().map(|peer| peer.skew_ms.unsigned_abs()).max().unwrap_or(0),
            bytes: peers
                .iter()
                .fold((0, 0), |(read, sent), peer| (read + peer.bytes_in, sent + peer.bytes_out)),
            streams_refused: streams_refused + self.streams.refused(),
            recovering,
            status: status.collect(),
        }
    }

    fn must_be_alone(&self) -> Result<(), ClusterError> {
        match self.files.membership()? {
            Some(membership) if membership.is_own_revoked() => {
                Err(ClusterError::Revoked { cluster: membership.cluster_id().to_string() })
            }
            Some(membership) => {
                Err(ClusterError::MemberAlready { cluster: membership.cluster_id().to_string() })
            }
            None => Ok(()),
        }
    }

    fn key(&self) -> Result<ClusterKey, ClusterError> {
        if self.running.lock().is_none() {
            return Err(ClusterError::NoMember);
        }
        self.files.cluster_key()?.ok_or(ClusterError::NoKey)
    }

    fn certificate(&self, identity: &Identity, name: &str) -> NewCertificate {
        NewCertificate {
            peer_id: identity.peer_id(),
            node_id: self.store.objects().replica().node,
            name: name.to_owned(),
            serial: rand::random::<u64>() >> 1,
            issued_unix_ms: self.clock.now_unix_ms(),
        }
    }

    async fn run(
        &self,
        identity: Identity,
        membership: Membership,
        mut bootstrap: Vec<String>,
    ) -> Result<(), ClusterError> {
        let membership = Arc::new(Mutex::new(membership));
        let cancel = CancellationToken::new();
        bootstrap.extend(self.options.bootstrap.iter().cloned());
        let clock = self.clock.clone();
        let options = Options {
            bootstrap,
            mdns: self.options.mdns,
            max_frame_bytes: FRAME_BYTES,
            incarnation: self.store.objects().replica().incarnation,
            software: env!("CARGO_PKG_VERSION").to_owned(),
            wall_clock: clock.clone(),
            ..Options::new(identity, membership.clone(), self.options.listen)
        };
        let (handle, events, streams) = Transport::start(options, cancel.clone()).await?;
        let driver = Driver {
            store: self.store.clone(),
            registry: self.registry.clone(),
            recoveries: self.recoveries.clone(),
            membership: membership.clone(),
            files: self.files.clone(),
            clock,
            handle: handle.clone(),
            events,
            counters: self.counters.clone(),
        };
        self.recoveries.begin();
        let (stop, recoveries) = (cancel.clone(), self.recoveries.clone());
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            if let Err(error) = driver::run(driver, stop).await {
                tracing::error!(%error, "objects are not replicated");
            }
            // Functions must not wait for objects that no peer will send.
            recoveries.end_all();
        });
        let place = OwnPlace { zone: self.options.zone.clone(), labels: self.options.labels.clone() };
        let mut status = StatusExchange::new(StatusParts {
            handle: handle.clone(),
            membership: membership.clone(),
            meter: LoadMeter::new(self.load_sources.clone()),
            place,
            apps: self.apps.subscribe(),
            policy: self.policy.subscribe(),
            view: self.view.clone(),
            members: MemberWatch::new(self.members.clone()),
            firings: self.load_sources.firings.clone(),
        });
        // Commands that follow find the node in its cluster.
        status.measure();
        status.update();
        tasks.spawn(status.run(cancel.clone()));
        let router = self.streams.clone();
        tasks.spawn(async move { router.distribute(streams).await });
        *self.running.lock() = Some(Running { handle, membership, cancel, tasks });
        Ok(())
    }
}

/// Name of the transport of a connection.
pub(crate) fn transport_name(kind: TransportKind) -> &'static str {
    match kind {
        TransportKind::Tcp => "tcp",
        TransportKind::Quic => "quic",
    }
}
