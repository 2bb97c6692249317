//! Commands about apps on all nodes of a cluster: their scope, and the state of an app on each node.

use std::sync::Arc;
use std::time::Duration;

use edgefaas_api::control as proto;
use edgefaas_api::control::node_app::State;
use edgefaas_cluster::placement::{Policy, Warning};
use edgefaas_functions::registry::{ClusterApp, Reach, Registry, Scope, cluster_app, cluster_apps};
use edgefaas_functions::secrets::{SecretError, SecretName, Secrets};
use edgefaas_rollout::report::{NodeReport, NodeState, Own, is_settled, report};
use edgefaas_rollout::shared_policy::{
    self, NodePolicy, PolicyState, PolicyText, SharedPolicy, policy_report, shared_policy,
};
use edgefaas_rollout::{Rollout, shared_secrets};
use edgefaas_state::store::{Batch, CommitError, Durability, Store, StoreError};
use tokio::time::Instant;

use crate::cluster::{Cluster, FilesError, PolicyPlacer, Standing, live_revision};

/// The longest wait for the other nodes.
const MAX_WAIT: Duration = Duration::from_secs(600);

/// Apps and secrets of the cluster, for the control API.
pub struct ClusterCommands {
    /// Carries out the decisions of the cluster on this node.
    pub rollout: Arc<Rollout>,
    /// The apps of this node.
    pub registry: Arc<Registry>,
    /// The secrets of this node.
    pub secrets: Arc<Secrets>,
    /// The objects of the cluster.
    pub store: Arc<Store>,
    /// Decides where invocations run.
    pub placer: Arc<PolicyPlacer>,
    /// The membership of this node.
    pub cluster: Arc<Cluster>,
}

/// The placement policies could not be changed.
#[derive(Debug, thiserror::Error)]
pub enum PolicyChangeError {
    /// The node is in no cluster.
    #[error(
        "this node is in no cluster, and a policy decides between its nodes; make one with `edgefaas cluster init`"
    )]
    NoMember,
    /// The node was revoked.
    #[error(
        "this node was revoked in the cluster {cluster}, and a policy decides between the nodes of a cluster; use one of its members"
    )]
    Revoked {
        /// The cluster's id.
        cluster: String,
    },
    /// The member list cannot be read.
    #[error(transparent)]
    Files(#[from] FilesError),
    /// They are not valid.
    #[error("the policy is not valid\n{report}")]
    Invalid {
        /// All problems, with their places.
        report: String,
    },
    /// There are none to remove.
    #[error("the cluster has no placement policies")]
    NoPolicy,
    /// The current ones cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// They could not be stored.
    #[error("the policy could not be stored: {0}")]
    Commit(#[from] CommitError),
}

impl ClusterCommands {
    /// The scope of a command: all nodes if this node is a member of a cluster, unless the command is for this node.
    pub fn scope(&self, this_node: bool) -> Scope {
        match self.is_member() && !this_node {
            true => Scope::Cluster(self.rollout.scope()),
            false => Scope::ThisNode,
        }
    }

    /// Gives all nodes the secrets of an app that only this node has.
    pub async fn share_secrets(&self, app: &str) -> Result<(), CommitError> {
        let mut batch = Batch::default();
        shared_secrets::put_missing(&mut batch, self.store.objects(), &self.secrets, app);
        match batch.is_empty() {
            true => Ok(()),
            false => self.store.committer().commit(batch, Durability::Synced).await,
        }
    }

    /// Sets a secret, or removes it if `value` is `None`; for all nodes, or for this one.
    pub async fn change_secret(
        &self,
        secret: SecretName,
        value: Option<String>,
        this_node: bool,
    ) -> Result<(), SecretError> {
        let app = secret.app.as_deref().filter(|_| self.is_member());
        let objects = self.store.objects();
        let over = app.filter(|_| this_node).map(|app| shared_secrets::digest(objects, app, &secret.name));
        let mut batch = Batch::default();
        if let Some(app) = app.filter(|_| !this_node) {
            shared_secrets::put(&mut batch, app, &secret.name, value.as_deref());
        }
        match (&secret.app, value) {
            (Some(app), Some(value)) => self.secrets.set_over(app, &secret.name, value, over).await?,
            _ => self.secrets.remove_over(&secret, over).await?,
        }
        if batch.is_empty() {
            return Ok(());
        }
        let committed = self.store.committer().commit(batch, Durability::Synced).await;
        committed.map_err(|error| SecretError::Commit { name: secret.name, error })
    }

    /// Sets the placement policies of all nodes. The answer waits up to `wait` until all connected ones have them.
    pub async fn set_policy(
        &self,
        text: String,
        now_unix_ms: u64,
        wait: Duration,
    ) -> Result<proto::SetPolicyResponse, PolicyChangeError> {
        self.must_be_member()?;
        let policy = Policy::parse(&text)
            .map_err(|error| PolicyChangeError::Invalid { report: error.report("policy", &text) })?;
        let warning = |warning: Warning| proto::PolicyWarning {
            line: warning.place.line,
            column: warning.place.column,
            message: warning.kind.to_string(),
        };
        let warnings = self.placer.check(&policy).into_iter().map(warning).collect();
        let known = shared_policy(self.store.objects())?;
        let nodes = self.put_policy(known.as_ref(), policy, text, now_unix_ms, wait).await?;
        Ok(proto::SetPolicyResponse { warnings, nodes })
    }

    /// Removes the placement policies of all nodes. The answer waits as that of [`set_policy`](Self::set_policy).
    pub async fn remove_policy(
        &self,
        now_unix_ms: u64,
        wait: Duration,
    ) -> Result<proto::RemovePolicyResponse, PolicyChangeError> {
        self.must_be_member()?;
        let known = shared_policy(self.store.objects())?;
        let is_none = |known: &SharedPolicy| known.current.text.is_empty() && known.lost.is_empty();
        if known.as_ref().is_none_or(is_none) {
            return Err(PolicyChangeError::NoPolicy);
        }
        let (policy, text) = (Policy::default(), String::new());
        let nodes = self.put_policy(known.as_ref(), policy, text, now_unix_ms, wait).await?;
        Ok(proto::RemovePolicyResponse { nodes })
    }

    fn must_be_member(&self) -> Result<(), PolicyChangeError> {
        match self.cluster.standing()? {
            Standing::Member => Ok(()),
            Standing::Alone => Err(PolicyChangeError::NoMember),
            Standing::Revoked { cluster } => Err(PolicyChangeError::Revoked { cluster }),
        }
    }

    async fn put_policy(
        &self,
        known: Option<&SharedPolicy>,
        policy: Policy,
        text: String,
        now_unix_ms: u64,
        wait: Duration,
    ) -> Result<Vec<proto::NodePolicy>, PolicyChangeError> {
        let mut batch = Batch::default();
        let node = self.rollout.members().me.name.clone();
        shared_policy::put(&mut batch, known, text.clone(), node, now_unix_ms);
        self.store.committer().commit(batch, Durability::Synced).await?;
        self.placer.set_policy(policy);
        Ok(policy_nodes(&self.policy_settled(&text, wait).await))
    }

    /// The state of a text of policies on all nodes, once no connected one lacks it, or `wait` is over.
    async fn policy_settled(&self, text: &str, wait: Duration) -> Vec<NodePolicy> {
        let until = Instant::now() + wait.min(MAX_WAIT);
        let mut members = self.rollout.watch_members();
        loop {
            let reports = policy_report(text, &members.borrow_and_update());
            let is_settled = !reports.iter().any(|report| report.state == PolicyState::Waiting);
            if is_settled || Instant::now() >= until {
                return reports;
            }
            tokio::select! {
                () = tokio::time::sleep_until(until) => {}
                changed = members.changed() => if changed.is_err() { return reports },
            }
        }
    }

    /// The placement policies of the cluster.
    pub fn policy(&self) -> Result<proto::Policy, PolicyChangeError> {
        let ignored = match self.cluster.standing()? {
            Standing::Member => None,
            Standing::Alone => Some("it is in no cluster".to_owned()),
            Standing::Revoked { cluster } => Some(format!("it was revoked in the cluster {cluster}")),
        };
        let of = |text: PolicyText| proto::Policy {
            text: text.text,
            node: text.node,
            set_unix_ms: text.set_unix_ms as i64,
            lost: Vec::new(),
            ignored: None,
            nodes: Vec::new(),
        };
        Ok(match shared_policy(self.store.objects())? {
            Some(shared) => {
                let lost = shared.lost.into_iter().map(of).collect();
                let nodes = match ignored {
                    None => policy_nodes(&policy_report(&shared.current.text, &self.rollout.members())),
                    Some(_) => Vec::new(),
                };
                proto::Policy { lost, nodes, ignored, ..of(shared.current) }
            }
            None => proto::Policy::default(),
        })
    }

    /// The state of an app on all nodes, once no connected one has anything left to do, or `wait` is over.
    pub async fn settled(&self, app: &str, wait: Duration) -> Result<Vec<proto::NodeApp>, StoreError> {
        let until = Instant::now() + wait.min(MAX_WAIT);
        let (mut members, mut progress) = (self.rollout.watch_members(), self.rollout.progress());
        let mut changes = self.registry.changes();
        loop {
            members.borrow_and_update();
            progress.borrow_and_update();
            changes.borrow_and_update();
            let Some(decided) = cluster_app(self.store.objects(), app)? else { return Ok(Vec::new()) };
            let reports = self.report(app, &decided);
            if is_settled(&reports) || Instant::now() >= until {
                return Ok(nodes(&reports, &decided));
            }
            tokio::select! {
                () = tokio::time::sleep_until(until) => {}
                changed = members.changed() => if changed.is_err() { return Ok(nodes(&reports, &decided)) },
                changed = progress.changed() => if changed.is_err() { return Ok(nodes(&reports, &decided)) },
                changed = changes.changed() => if changed.is_err() { return Ok(nodes(&reports, &decided)) },
            }
        }
    }

    /// Adds what is known of the cluster to a list of the apps of this node. With `with_nodes`, also their state on each node,
    /// and apps that are not on this one.
    pub async fn complete(&self, apps: &mut Vec<proto::App>, with_nodes: bool) -> Result<(), StoreError> {
        if !self.is_member() {
            return Ok(());
        }
        let store = self.store.clone();
        let decided = tokio::task::spawn_blocking(move || cluster_apps(store.objects())).await;
        let mut decided = decided.map_err(|error| StoreError::Thread(std::io::Error::other(error)))??;
        for app in apps.iter_mut() {
            let routes = self.registry.routes();
            app.this_node = routes.app(&app.name).is_some_and(|live| live.reach == Reach::ThisNode);
            drop(routes);
            match decided.remove(&app.name) {
                Some(decided) => self.add(app, &decided, with_nodes),
                None if with_nodes => app.nodes = vec![self.alone(app)],
                None => {}
            }
        }
        if with_nodes {
            for (name, decided) in
                decided.into_iter().filter(|(_, decided)| decided.winner.revision.is_some())
            {
                let revision = decided.winner.revision.clone().unwrap_or_default();
                let mut app = proto::App { name, revision, ..Default::default() };
                self.add(&mut app, &decided, true);
                apps.push(app);
            }
        }
        Ok(())
    }

    fn add(&self, app: &mut proto::App, decided: &ClusterApp, with_nodes: bool) {
        app.lost = decided
            .lost
            .iter()
            .map(|lost| proto::LostDeploy {
                revision: lost.revision.clone().unwrap_or_default(),
                node: lost.node.clone(),
                deployed_unix_ms: lost.deployed_unix_ms as i64,
            })
            .collect();
        if with_nodes {
            app.nodes = nodes(&self.report(&app.name, decided), decided);
        }
    }

    /// An app that was deployed to this node alone and never to the cluster.
    fn alone(&self, app: &proto::App) -> proto::NodeApp {
        let members = self.rollout.members();
        proto::NodeApp {
            node: members.me.name.clone(),
            zone: members.me.zone.clone(),
            revision: app.revision.clone(),
            state: State::ThisNode.into(),
            ..Default::default()
        }
    }

    fn report(&self, app: &str, decided: &ClusterApp) -> Vec<NodeReport> {
        let live = self.registry.routes().app(app).and_then(|live| live_revision(live));
        let next = self.rollout.progress().borrow().get(app).cloned();
        report(app, decided, &Own { live, next }, &self.rollout.members())
    }

    fn is_member(&self) -> bool {
        !self.rollout.members().me.name.is_empty()
    }
}

fn nodes(reports: &[NodeReport], decided: &ClusterApp) -> Vec<proto::NodeApp> {
    let node = |report: &NodeReport| {
        let (state, permille, detail) = match &report.state {
            NodeState::Done if decided.winner.revision.is_none() => (State::Removed, 0, ""),
            NodeState::Done => (State::Live, 0, ""),
            NodeState::Elsewhere => (State::Elsewhere, 0, ""),
            NodeState::Waiting => (State::Waiting, 0, ""),
            NodeState::Fetching { permille } => (State::Fetching, u32::from(*permille), ""),
            NodeState::Failed { reason } => (State::Failed, 0, reason.as_str()),
            NodeState::ThisNode => (State::ThisNode, 0, ""),
            NodeState::Away => (State::Away, 0, ""),
        };
        proto::NodeApp {
            node: report.node.clone(),
            zone: report.zone.clone(),
            revision: report.revision.clone(),
            state: state.into(),
            permille,
            detail: detail.to_owned(),
        }
    };
    reports.iter().map(node).collect()
}

fn policy_nodes(reports: &[NodePolicy]) -> Vec<proto::NodePolicy> {
    use proto::node_policy::State;
    let node = |report: &NodePolicy| {
        let (state, detail) = match &report.state {
            PolicyState::InForce => (State::InForce, ""),
            PolicyState::Waiting => (State::Waiting, ""),
            PolicyState::Refused { reason } => (State::Refused, reason.as_str()),
            PolicyState::Away => (State::Away, ""),
        };
        proto::NodePolicy {
            node: report.node.clone(),
            zone: report.zone.clone(),
            state: state.into(),
            detail: detail.to_owned(),
        }
    };
    reports.iter().map(node).collect()
}
