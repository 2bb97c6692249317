//! The task that brings the apps of this node to the decisions of the cluster.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use edgefaas_cluster::occurrences::{OccurrenceId, schedule_digest};
use edgefaas_cluster::status::{MAX_REASON_BYTES, NextRevision, NextState, Runs};
use edgefaas_functions::registry::{
    ClusterApp, ClusterScope, Code, Content, DeployError, Deployment, FiresHere, LiveApp, MatchNodes,
    Occurrence, Reach, Registry, Selects, StageError, app_of_object, cluster_app, cluster_apps,
};
use edgefaas_functions::secrets::Secrets;
use edgefaas_manifest::{NodeCount, NodeSelection};
use edgefaas_state::objects::{CLUSTER_APP, WatchScope};
use edgefaas_state::store::{Store, StoreError};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::fetching::{FetchPartError, MissingParts};
use crate::firings::Firings;
use crate::members::{Member, Members};
use crate::plan::{Local, Step, next_step};
use crate::selection::{before_here, matching_nodes, runs_here};
use crate::shared_secrets;
use crate::transfer::Artefacts;

/// Apps whose parts are fetched at the same time.
pub(crate) const MAX_FETCHES: usize = 4;
/// First pause after a failure; doubled with each further one.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const MAX_PAUSE: Duration = Duration::from_secs(60);
/// A node takes an absent node's place only after this time, in which the member's facts may still arrive.
const TAKE_PLACE_AFTER: Duration = Duration::from_secs(3);
/// A node leaves its place to a returned member only after this time.
const LEAVE_PLACE_AFTER: Duration = Duration::from_secs(30);

/// The parts of the node that a rollout uses.
pub struct RolloutParts {
    /// The apps of this node.
    pub registry: Arc<Registry>,
    /// The objects of the cluster.
    pub store: Arc<Store>,
    /// The secrets of this node.
    pub secrets: Arc<Secrets>,
    /// The members of the cluster.
    pub members: watch::Receiver<Arc<Members>>,
    /// Occurrences of schedules.
    pub firings: Arc<Firings>,
    /// Fetches parts of revisions.
    pub artefacts: Artefacts,
}

/// The apps of the cluster on this node.
pub struct Rollout {
    pub(crate) parts: RolloutParts,
    pub(crate) progress: watch::Sender<Arc<BTreeMap<String, NextRevision>>>,
}

impl Rollout {
    /// A rollout that does nothing before [`run`](Self::run).
    pub fn new(parts: RolloutParts) -> Self {
        Self { parts, progress: watch::channel(Arc::default()).0 }
    }

    /// Apps that are not yet as the cluster has decided, by name; notified of every change.
    pub fn progress(&self) -> watch::Receiver<Arc<BTreeMap<String, NextRevision>>> {
        self.progress.subscribe()
    }

    /// The members of the cluster.
    pub fn members(&self) -> Arc<Members> {
        self.parts.members.borrow().clone()
    }

    /// The members of the cluster; notified of every change.
    pub fn watch_members(&self) -> watch::Receiver<Arc<Members>> {
        self.parts.members.clone()
    }

    /// The decision which member fires an occurrence of a schedule: of the connected members whose revision of the app has the
    /// schedule, one; the next one if that dies before it does.
    pub fn fires_here(&self) -> FiresHere {
        let (members, firings) = (self.parts.members.clone(), self.parts.firings.clone());
        let clock = self.parts.registry.clock().clone();
        Arc::new(move |app, schedule, occurrence| {
            let id = schedule_digest(schedule);
            // Members of older versions report no schedules.
            let has_it = |member: &Member| {
                let fact = member.apps.get(&*app.name);
                let live = fact.and_then(|fact| fact.live).filter(|live| live.runs != Runs::Elsewhere);
                live.is_some_and(|live| Some(live.revision) == digest(&app.revision))
                    || live.is_some() && fact.is_some_and(|fact| fact.schedules.contains(&id))
            };
            let schedule = format!("{} {schedule}", app.name);
            match occurrence {
                Occurrence::At(due_unix_ms) => {
                    let before = before_here(&schedule, due_unix_ms, &members.borrow(), has_it);
                    let late_ms = clock.now_unix_ms().saturating_sub(due_unix_ms);
                    firings.due(OccurrenceId::new(&schedule, due_unix_ms), before, late_ms)
                }
                Occurrence::OfInterval => {
                    firings.of_interval(before_here(&schedule, 0, &members.borrow(), has_it))
                }
            }
        })
    }

    /// The scope of a command to all members.
    pub fn scope(&self) -> ClusterScope {
        let members = self.parts.members.clone();
        let node = members.borrow().me.name.clone();
        let selects: Selects = Arc::new(move |app, nodes| runs_here(app, nodes, &members.borrow()));
        let members = self.parts.members.clone();
        let matches: MatchNodes = Arc::new(move |nodes| matching_nodes(nodes, &members.borrow()));
        ClusterScope { node, selects, matches }
    }

    /// Carries out the decisions of the cluster until `cancel` fires.
    ///
    /// # Errors
    /// The objects of the cluster cannot be read at the start.
    pub async fn run(self: Arc<Self>, cancel: CancellationToken) -> Result<(), StoreError> {
        let objects = self.parts.store.objects().clone();
        let mut watch =
            objects.watch(WatchScope { app: CLUSTER_APP.to_owned(), object: "*".to_owned(), field: None });
        let (mut members, mut changes) = (self.parts.members.clone(), self.parts.registry.changes());
        let mut task = Task {
            rollout: self,
            works: HashMap::new(),
            incomplete: BTreeSet::new(),
            fetches: JoinSet::new(),
        };
        task.read_all().await?;
        loop {
            let due = task.step_all().await;
            let wait = async {
                match due {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = cancel.cancelled() => break,
                (notice, lost) = watch.next() => {
                    task.object_changed(notice.key.object());
                    while let Some((notice, _)) = watch.take(|_| true) {
                        task.object_changed(notice.key.object());
                    }
                    if lost > 0 {
                        task.read_all().await?;
                    }
                }
                changed = members.changed() => if changed.is_err() { break },
                changed = changes.changed() => if changed.is_err() { break },
                Some(ended) = task.fetches.join_next() => match ended {
                    Ok(ended) => task.fetched(ended),
                    // The cluster has decided anew meanwhile.
                    Err(error) if error.is_cancelled() => {}
                    Err(error) => tracing::error!(%error, "fetching a revision failed"),
                },
                () = wait => {}
            }
        }
        Ok(())
    }
}

/// The work for one app.
#[derive(Default)]
struct Work {
    /// Failures of the current deployment in a row.
    failures: u32,
    /// No attempt before this time.
    paused_until: Option<Instant>,
    /// The deployment that the failures and the fetch belong to.
    deployment: Option<String>,
    /// Ends the fetch that is under way.
    fetching: Option<AbortHandle>,
    /// Since when the node shall change between running the app and not running it.
    moving_since: Option<Instant>,
}

/// A fetch that has ended.
struct Ended {
    app: String,
    deployment: String,
    revision: Option<[u8; 32]>,
    result: Result<(), FetchPartError>,
}

struct Task {
    rollout: Arc<Rollout>,
    works: HashMap<String, Work>,
    /// Live apps of which the store had lost parts at the start: they are fetched again.
    incomplete: BTreeSet<String>,
    fetches: JoinSet<Ended>,
}

/// The apps of the cluster that this node runs, and of which its store lacks a part. Blocks.
fn incomplete_apps(registry: &Registry) -> BTreeSet<String> {
    let routes = registry.routes();
    let runs = |app: &&Arc<LiveApp>| app.reach == Reach::Cluster && app.code == Code::Here;
    // What cannot be read is named when it is used.
    let lacks =
        |app: &&Arc<LiveApp>| registry.missing_of(&app.revision).is_ok_and(|missing| !missing.is_empty());
    routes.apps().filter(runs).filter(lacks).map(|app| app.name.to_string()).collect()
}

impl Task {
    async fn read_all(&mut self) -> Result<(), StoreError> {
        let store = self.rollout.parts.store.clone();
        let objects = store.objects().clone();
        let registry = self.rollout.parts.registry.clone();
        let read = tokio::task::spawn_blocking(move || {
            Ok::<_, StoreError>((cluster_apps(&objects)?, incomplete_apps(&registry)))
        });
        let (apps, incomplete) =
            read.await.map_err(|error| StoreError::Thread(std::io::Error::other(error)))??;
        for app in &incomplete {
            tracing::warn!(
                app,
                "the store has lost parts of an app; they are fetched from the other nodes"
            );
        }
        self.incomplete = incomplete;
        for app in apps.into_keys() {
            self.works.entry(app).or_default();
        }
        let secrets = self.rollout.parts.secrets.clone();
        shared_secrets::apply_all(store.objects(), &secrets).await;
        Ok(())
    }

    fn object_changed(&mut self, object: &str) {
        if let Some(app) = app_of_object(object) {
            self.works.entry(app.to_owned()).or_default();
        } else if let Some(app) = shared_secrets::app_of_object(object) {
            let (store, secrets) = (self.rollout.parts.store.clone(), self.rollout.parts.secrets.clone());
            let app = app.to_owned();
            self.fetches.spawn(async move {
                shared_secrets::apply(store.objects(), &secrets, &app).await;
                Ended { app: String::new(), deployment: String::new(), revision: None, result: Ok(()) }
            });
        }
    }

    /// Takes all steps that are possible now. Returns the time of the next one that has to wait.
    async fn step_all(&mut self) -> Option<Instant> {
        if self.rollout.members().me.name.is_empty() {
            // In no cluster, or no longer in one: what is here stays as it is.
            return None;
        }
        let mut apps: Vec<String> = self.works.keys().cloned().collect();
        // In the order of names: of two apps with a function of one name the first is live on all nodes.
        apps.sort_unstable();
        let mut staged = BTreeSet::new();
        let mut progress: BTreeMap<String, NextRevision> = BTreeMap::new();
        let mut due: Option<Instant> = None;
        for app in apps {
            let decided = match cluster_app(self.rollout.parts.store.objects(), &app) {
                Ok(Some(decided)) => decided,
                Ok(None) => continue,
                Err(error) => {
                    tracing::error!(app, %error, "the deployment of an app cannot be read");
                    continue;
                }
            };
            let revision = decided.winner.revision.clone().unwrap_or_default();
            let next = |state| NextRevision { revision: digest(&revision), state };
            match self.step(&app, &decided).await {
                Outcome::Done => {}
                Outcome::Waits { at, state } => {
                    due = Some(due.map_or(at, |due| due.min(at)));
                    if let Some(state) = state {
                        progress.insert(app, next(state));
                        staged.insert(revision);
                    }
                }
                Outcome::Fetching => {
                    let permille = self.permille(&app);
                    progress.insert(app, next(NextState::Fetching { permille }));
                    staged.insert(revision);
                }
            }
        }
        self.rollout.parts.registry.keep_staged(staged);
        self.rollout.progress.send_if_modified(|before| {
            let is_changed = **before != progress;
            if is_changed {
                *before = Arc::new(progress);
            }
            is_changed
        });
        due
    }

    fn permille(&self, app: &str) -> u16 {
        match self.rollout.progress.borrow().get(app) {
            Some(NextRevision { state: NextState::Fetching { permille }, .. }) => *permille,
            _ => 0,
        }
    }

    async fn step(&mut self, app: &str, decided: &ClusterApp) -> Outcome {
        let registry = self.rollout.parts.registry.clone();
        let live = registry.routes().app(app).cloned();
        let local = live.as_ref().map(|live| Local {
            // What is not whole is not carried out.
            deployment: live.deployment.clone().filter(|_| !self.incomplete.contains(app)),
            reach: live.reach,
            code: live.code,
        });
        let nodes = match self.nodes_of(app, decided) {
            Ok(nodes) => nodes,
            Err(error) => return self.failed(app, &decided.winner, error.to_string()),
        };
        let members = self.rollout.members();
        let code = nodes.as_ref().map(|nodes| match runs_here(app, nodes, &members) {
            true => Code::Here,
            false => Code::Elsewhere,
        });
        let work = self.works.entry(app.to_owned()).or_default();
        if work.deployment.as_ref() != Some(&decided.winner.id()) {
            let before = std::mem::take(work);
            work.deployment = Some(decided.winner.id());
            if let Some(fetching) = before.fetching {
                fetching.abort();
            }
        }
        match next_step(decided, local.as_ref(), code) {
            Step::Nothing => {
                *work = Work { deployment: work.deployment.take(), ..Work::default() };
                Outcome::Done
            }
            Step::Remove => {
                let Some(live) = live else { return Outcome::Done };
                match registry.adopt_removal(&live, (app, &decided.winner)).await {
                    Ok(()) => {
                        tracing::info!(
                            app,
                            by = decided.winner.node,
                            "an app was removed from the cluster"
                        );
                        Outcome::Done
                    }
                    Err(DeployError::Superseded { .. }) => Outcome::again(),
                    Err(error) => self.failed(app, &decided.winner, error.to_string()),
                }
            }
            Step::Adopt(deployment) => {
                let is_live = |local: &Local| {
                    local.deployment.as_ref() == Some(&deployment.id()) && local.reach == Reach::Cluster
                };
                if let Some(at) =
                    work.move_at(nodes.as_ref(), code, local.is_some_and(|local| is_live(&local)))
                {
                    return Outcome::Waits { at, state: None };
                }
                if let Some(at) = work.paused_until.filter(|until| *until > Instant::now()) {
                    let failed =
                        self.rollout.progress.borrow().get(app).map(|progress| progress.state.clone());
                    return Outcome::Waits { at, state: failed };
                }
                self.adopt(app, deployment, code, nodes).await
            }
        }
    }

    /// The nodes that run a deployment; `None` if its manifest is not here.
    fn nodes_of(&self, app: &str, decided: &ClusterApp) -> Result<Option<NodeSelection>, StageError> {
        let Some(digest) = decided.winner.revision.as_deref() else { return Ok(None) };
        let registry = &self.rollout.parts.registry;
        if let Some(live) = registry.routes().app(app).filter(|live| live.revision == digest) {
            return Ok(Some(live.nodes.clone()));
        }
        Ok(registry.stored_manifest(digest)?.map(|manifest| manifest.nodes))
    }

    /// Makes a deployment live if all of it is here, else fetches the rest.
    async fn adopt(
        &mut self,
        app: &str,
        deployment: Deployment,
        code: Option<Code>,
        nodes: Option<NodeSelection>,
    ) -> Outcome {
        let registry = self.rollout.parts.registry.clone();
        let digest = deployment.revision.clone().unwrap_or_default();
        let missing = match code {
            // The manifest is not here.
            None => Content::parse(&digest).map(MissingParts::Revision),
            Some(Code::Elsewhere) => None,
            Some(Code::Here) => match registry.missing_of(&digest) {
                Ok(missing) if missing.is_empty() => None,
                Ok(parts) => Some(MissingParts::Contents { parts, nodes: nodes.unwrap_or_default() }),
                Err(error) => return self.failed(app, &deployment, error.to_string()),
            },
        };
        if let Some(missing) = missing {
            return self.fetch(app, &deployment, missing);
        }
        let code = code.unwrap_or(Code::Elsewhere);
        match registry.adopt(app, deployment.clone(), code).await {
            Ok(deployed) => {
                self.incomplete.remove(app);
                let revision = deployed.app.revision.get(..12).unwrap_or_default();
                tracing::info!(app, revision, by = deployment.node, "a revision from the cluster is live");
                Outcome::again()
            }
            Err(DeployError::Superseded { .. }) => Outcome::again(),
            Err(error) => match self.yielding(&error, app) {
                Some(other) => self.make_room(&other, app, &deployment).await,
                None => self.failed(app, &deployment, error.to_string()),
            },
        }
    }

    /// The live app that has to make room for another one, by the error of that. All nodes decide alike, whichever app they got
    /// first.
    fn yielding(&self, error: &DeployError, app: &str) -> Option<Arc<LiveApp>> {
        let DeployError::NameTaken { app: other, .. } = error else { return None };
        let live = self.rollout.parts.registry.routes().app(other).cloned()?;
        (live.reach == Reach::Cluster && app < other.as_str()).then_some(live)
    }

    async fn make_room(&mut self, other: &Arc<LiveApp>, app: &str, deployment: &Deployment) -> Outcome {
        let registry = self.rollout.parts.registry.clone();
        match registry.adopt_removal(other, (app, deployment)).await {
            Ok(()) => {
                tracing::warn!(
                    app = &*other.name,
                    for_app = app,
                    "an app was removed: an app that comes first has a function of the same name"
                );
                Outcome::again()
            }
            Err(DeployError::Superseded { .. }) => Outcome::again(),
            Err(error) => self.failed(app, deployment, error.to_string()),
        }
    }

    fn fetch(&mut self, app: &str, deployment: &Deployment, missing: MissingParts) -> Outcome {
        let work = self.works.entry(app.to_owned()).or_default();
        if work.fetching.is_some() || self.fetches.len() >= MAX_FETCHES {
            return Outcome::Fetching;
        }
        let rollout = self.rollout.clone();
        let (app, deployment) = (app.to_owned(), deployment.clone());
        work.fetching = Some(self.fetches.spawn(async move {
            let result = rollout.fetch_parts(&app, &deployment, missing).await;
            let revision = deployment.revision.as_deref().and_then(digest);
            Ended { app, deployment: deployment.id(), revision, result }
        }));
        Outcome::Fetching
    }

    fn fetched(&mut self, ended: Ended) {
        let Some(work) = self.works.get_mut(&ended.app) else { return };
        if work.deployment.as_ref() != Some(&ended.deployment) {
            return;
        }
        work.fetching = None;
        if let Err(error) = ended.result {
            self.note_failure(&ended.app, ended.revision, error.to_string());
        }
    }

    fn failed(&mut self, app: &str, deployment: &Deployment, reason: String) -> Outcome {
        let revision = deployment.revision.as_deref().and_then(digest);
        let (at, state) = self.note_failure(app, revision, reason);
        Outcome::Waits { at, state: Some(state) }
    }

    fn note_failure(
        &mut self,
        app: &str,
        revision: Option<[u8; 32]>,
        mut reason: String,
    ) -> (Instant, NextState) {
        let work = self.works.entry(app.to_owned()).or_default();
        let pause = FIRST_PAUSE.saturating_mul(1 << work.failures.min(6)).min(MAX_PAUSE);
        work.failures += 1;
        let at = Instant::now() + pause;
        work.paused_until = Some(at);
        if work.failures == 1 {
            tracing::warn!(app, reason, "a revision from the cluster could not be made live");
        }
        reason.truncate(reason.floor_char_boundary(MAX_REASON_BYTES));
        let state = NextState::Failed { reason };
        self.rollout.progress.send_modify(|before| {
            Arc::make_mut(before).insert(app.to_owned(), NextRevision { revision, state: state.clone() });
        });
        (at, state)
    }
}

impl Work {
    /// The time until a node waits before it takes or leaves a place among the nodes that run an app; `None` if it
    /// does not wait.
    fn move_at(
        &mut self,
        nodes: Option<&NodeSelection>,
        code: Option<Code>,
        is_live: bool,
    ) -> Option<Instant> {
        let is_counted = nodes.is_some_and(|nodes| nodes.on != NodeCount::All);
        if !is_live || !is_counted {
            self.moving_since = None;
            return None;
        }
        let now = Instant::now();
        let since = *self.moving_since.get_or_insert(now);
        let wait = match code {
            Some(Code::Elsewhere) => LEAVE_PLACE_AFTER,
            _ => TAKE_PLACE_AFTER,
        };
        Some(since + wait).filter(|at| *at > now)
    }
}

/// The result of a step.
enum Outcome {
    /// The app is as the cluster has decided.
    Done,
    /// The next step is possible at this time.
    Waits { at: Instant, state: Option<NextState> },
    /// Parts are being fetched.
    Fetching,
}

impl Outcome {
    /// The step is to be decided anew.
    fn again() -> Self {
        Self::Waits { at: Instant::now(), state: None }
    }
}

/// The bytes of a digest in hex.
pub(crate) fn digest(hex: &str) -> Option<[u8; 32]> {
    Some(*blake3::Hash::from_hex(hex).ok()?.as_bytes())
}
