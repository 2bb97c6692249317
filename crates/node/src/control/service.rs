//! The control service over gRPC, with health and reflection.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use bytes::Bytes;
use edgefaas_api::control as proto;
use edgefaas_api::control::control_server::{Control, ControlServer};
use edgefaas_broker::{QueueFigures, TopicFilter};
use edgefaas_coordinator::{ChangeError, InstanceFilter, InstancesOf, Start, Which, input_of};
use edgefaas_functions::invocation::{Invocation, InvocationError, Principal};
use edgefaas_functions::logs::LogLine;
use edgefaas_functions::registry::{Deploy, LiveApp, LiveWorkflow, Scope};
use edgefaas_functions::secrets::SecretName;
use edgefaas_functions::trace::{Entry, TRACE_PARENT, TraceFilter};
use edgefaas_isolates::{DirectCall, Event, Trigger};
use tokio::sync::{broadcast, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::{Request, Response, Status};
use ulid::Ulid;

use super::caller::stream_end;
use super::dependencies::ControlParts;
use super::rpcs::{Answer, Flow, serve_rpcs};
use super::status_codes::{
    cluster_status, deploy_status, invoke_status, policy_status, secret_status, users_status,
};
use super::{
    convert, deploy_warnings, events, history, invocations, members, messages, revisions, workflow_graph,
};
use crate::access::{Role, UnknownRole};
use crate::cluster::{ClusterError, THIS_NODE};

/// Buffered log lines of one follower. A follower that is too slow loses lines in the log itself, which reports the
/// loss.
const STREAM_LINES: usize = 64;

/// Number of filters in a list of queues, without a limit in the request and at most.
const DEFAULT_QUEUES: usize = 1000;
const MAX_QUEUES: usize = 10_000;
/// Number of traces in a list, without a limit in the request and at most.
const DEFAULT_TRACES: usize = 100;
const MAX_TRACES: usize = 1_000;
/// Number of instances in a list, without a limit in the request and at most.
const DEFAULT_INSTANCES: usize = 100;
const MAX_INSTANCES: usize = 10_000;

/// The gRPC routes except those of objects: control, health and reflection.
pub(super) async fn routes(
    parts: Arc<ControlParts>,
    cancel: CancellationToken,
    tasks: TaskTracker,
) -> Router {
    let (health, health_service) = tonic_health::server::health_reporter();
    let message_bytes = parts.facts.plan.message_bytes();
    let invocations = invocations::service(parts.durable.clone(), parts.registry.clone());
    let history = history::service(parts.clone(), cancel.clone(), tasks.clone());
    let messages = messages::service(parts.clone(), cancel.clone(), tasks.clone());
    let service = ControlServer::new(ControlService { parts, cancel, tasks })
        .max_decoding_message_size(message_bytes)
        .max_encoding_message_size(message_bytes);
    health.set_serving::<ControlServer<ControlService>>().await;
    let mut routes = tonic::service::Routes::new(service)
        .add_service(health_service)
        .add_service(history)
        .add_service(invocations)
        .add_service(messages);
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(edgefaas_api::FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
            // The details of errors.
            .register_encoded_file_descriptor_set(tonic_types::pb::FILE_DESCRIPTOR_SET)
    };
    // Some clients know only the earlier version.
    match (reflection().build_v1(), reflection().build_v1alpha()) {
        (Ok(current), Ok(earlier)) => routes = routes.add_service(current).add_service(earlier),
        (Err(error), _) | (_, Err(error)) => tracing::error!(%error, "gRPC reflection is unavailable"),
    }
    routes.into_axum_router()
}

#[derive(Clone)]
struct ControlService {
    parts: Arc<ControlParts>,
    cancel: CancellationToken,
    /// Owner of the tasks that continue after their client has disconnected.
    tasks: TaskTracker,
}

impl ControlService {
    fn app(&self, app: &LiveApp) -> proto::App {
        self.app_with(app, &self.parts.coordinator.retryable())
    }

    /// The app, with the workflows of the failed instances that can be retried.
    fn app_with(&self, app: &LiveApp, retryable: &[Arc<LiveWorkflow>]) -> proto::App {
        let durable = &self.parts.durable;
        let count = |live: &LiveWorkflow| {
            let is_same = |workflow: &&Arc<LiveWorkflow>| Arc::ptr_eq(&workflow.figures, &live.figures);
            retryable.iter().filter(is_same).count() as u64
        };
        convert::app(app, |function| durable.pending(function), count)
    }
}

impl ControlService {
    /// The state of an app on the nodes of the cluster after a command to all of them.
    async fn nodes(
        &self,
        is_for_all: bool,
        app: &str,
        wait_ms: u32,
    ) -> Result<Vec<proto::NodeApp>, Status> {
        if !is_for_all {
            return Ok(Vec::new());
        }
        let wait = Duration::from_millis(u64::from(wait_ms));
        self.parts.apps.settled(app, wait).await.map_err(|error| Status::internal(error.to_string()))
    }
}

serve_rpcs! {
    Control for ControlService, streams [LogsStream: proto::LogLine];
    deploy(proto::DeployRequest) -> proto::DeployResponse;
    invoke(proto::InvokeRequest) -> proto::InvokeResponse;
    list(proto::ListRequest) -> proto::ListResponse;
    logs(proto::LogsRequest) -> Flow<proto::LogLine>;
    remove(proto::RemoveRequest) -> proto::RemoveResponse;
    rollback(proto::RollbackRequest) -> proto::RollbackResponse;
    status(proto::StatusRequest) -> proto::StatusResponse;
    list_instances(proto::ListInstancesRequest) -> proto::ListInstancesResponse;
    get_instance(proto::GetInstanceRequest) -> proto::Instance;
    change_instance(proto::ChangeInstanceRequest) -> proto::ChangeInstanceResponse;
    graph(proto::GraphRequest) -> proto::GraphResponse;
    cancel_instances(proto::CancelInstancesRequest) -> proto::CancelInstancesResponse;
    compare_revisions(proto::CompareRevisionsRequest) -> proto::CompareRevisionsResponse;
    get_settings(proto::GetSettingsRequest) -> proto::GetSettingsResponse;
    list_traces(proto::ListTracesRequest) -> proto::ListTracesResponse;
    init_cluster(proto::InitClusterRequest) -> proto::Cluster;
    open_cluster(proto::OpenClusterRequest) -> proto::OpenClusterResponse;
    join_cluster(proto::JoinClusterRequest) -> proto::Cluster;
    revoke_member(proto::RevokeMemberRequest) -> proto::RevokeMemberResponse;
    set_policy(proto::SetPolicyRequest) -> proto::SetPolicyResponse;
    remove_policy(proto::RemovePolicyRequest) -> proto::RemovePolicyResponse;
    get_policy(proto::GetPolicyRequest) -> proto::Policy;
    explain_placement(proto::ExplainPlacementRequest) -> proto::ExplainPlacementResponse;
    get_cluster(proto::GetClusterRequest) -> proto::Cluster;
    trace(proto::TraceRequest) -> proto::TraceResponse;
    set_secret(proto::SetSecretRequest) -> proto::SetSecretResponse;
    list_secrets(proto::ListSecretsRequest) -> proto::ListSecretsResponse;
    remove_secret(proto::RemoveSecretRequest) -> proto::RemoveSecretResponse;
    add_user(proto::AddUserRequest) -> proto::AddUserResponse;
    set_password(proto::SetPasswordRequest) -> proto::SetPasswordResponse;
    set_role(proto::SetRoleRequest) -> proto::SetRoleResponse;
    remove_user(proto::RemoveUserRequest) -> proto::RemoveUserResponse;
    list_users(proto::ListUsersRequest) -> proto::ListUsersResponse;
    list_queues(proto::ListQueuesRequest) -> proto::ListQueuesResponse;
    reload(proto::ReloadRequest) -> proto::ReloadResponse;
}

impl ControlService {
    async fn deploy(&self, request: Request<proto::DeployRequest>) -> Answer<proto::DeployResponse> {
        let request = request.into_inner();
        let sources = convert::sources(request.artifacts).map_err(Status::invalid_argument)?;
        let assets = convert::assets(request.assets).map_err(Status::invalid_argument)?;
        // On a separate task: a client that disconnects must not interrupt a deploy.
        let registry = self.parts.registry.clone();
        let workflows =
            request.workflows.into_iter().map(|workflow| (workflow.file, workflow.text)).collect();
        let (manifest, strict, wait_ms) = (request.manifest, request.strict, request.wait_ms);
        let scope = self.parts.apps.scope(request.this_node);
        let is_for_all = matches!(scope, Scope::Cluster(_));
        let deploy = Deploy { manifest, sources, assets, workflows, strict, scope };
        let deploy = self.tasks.spawn(async move { registry.deploy(deploy).await });
        let deployed = deploy
            .await
            .map_err(|error| Status::internal(format!("the deploy ended early: {error}")))?
            .map_err(deploy_status)?;
        let routes = self.parts.registry.routes();
        let mut warnings = deploy_warnings::unknown_calls(&deployed.app, &routes);
        warnings.extend(deploy_warnings::of_unset_secrets(&deployed.app, &self.parts.secrets));
        warnings.extend(deployed.warnings);
        let placer = &self.parts.apps.placer;
        warnings.extend(deployed.app.functions.iter().filter_map(|function| placer.unknown_tag(function)));
        drop(routes);
        if is_for_all && let Err(error) = self.parts.apps.share_secrets(&deployed.app.name).await {
            warnings.push(format!("the other nodes do not get the secrets of the app yet: {error}"));
        }
        let nodes = self.nodes(is_for_all, &deployed.app.name, wait_ms).await?;
        Ok(Response::new(proto::DeployResponse {
            app: Some(self.app(&deployed.app)),
            unchanged: deployed.unchanged,
            warnings,
            nodes,
        }))
    }

    async fn invoke(&self, request: Request<proto::InvokeRequest>) -> Answer<proto::InvokeResponse> {
        let trace_parent = request.metadata().get(TRACE_PARENT);
        let trace_parent = trace_parent.and_then(|value| value.to_str().ok()).map(str::to_owned);
        let proto::InvokeRequest { function, data, event: wanted } = request.into_inner();
        let is_call = wanted.is_none();
        let routes = self.parts.registry.routes();
        let event = match (wanted, routes.function(&function)) {
            (Some(wanted), Some(function)) => {
                events::event(wanted, data.into(), function, self.parts.store.objects())
                    .map_err(|error| Status::invalid_argument(error.to_string()))?
            }
            _ => Event { trigger: Trigger::Call(DirectCall { caller: None }), body: Bytes::from(data) },
        };
        let mut invocation = Invocation::new(function, Principal::Operator, event);
        invocation.trace_parent = trace_parent;
        if routes.function(&invocation.function).is_none()
            && let Some(workflow) = routes.workflow(&invocation.function).cloned()
        {
            if !is_call {
                let error = events::EventError::Workflow { name: invocation.function };
                return Err(Status::invalid_argument(error.to_string()));
            }
            drop(routes);
            let body = &invocation.event.body;
            let mut start = Start::new(workflow, input_of(body), body.len());
            start.trace_parent = invocation.trace_parent.take();
            start.entry = Entry::Grpc;
            let coordinator = self.parts.coordinator.clone();
            let outcome =
                self.parts.workers.run(async move { coordinator.run_workflow(start).await }).await;
            let outcome = outcome.ok_or_else(|| invoke_status(&InvocationError::Draining))?;
            return Ok(Response::new(convert::outcome(outcome, None)));
        }
        drop(routes);
        let invoker = self.parts.invoker.clone();
        let admitted = invoker.admit(invocation).map_err(|error| invoke_status(&error))?;
        // A client that goes away ends its invocation, as at the gateway.
        let outcome = self.parts.workers.run_attached(async move { invoker.run(admitted).await }).await;
        let outcome = outcome.ok_or_else(|| invoke_status(&InvocationError::Draining))?;
        let node = self.parts.invoker.ran_on(outcome.node.clone(), outcome.result.as_ref().err());
        Ok(Response::new(convert::outcome(outcome, node.as_deref())))
    }

    async fn list(&self, request: Request<proto::ListRequest>) -> Answer<proto::ListResponse> {
        let mut apps: Vec<_> = {
            let retryable = self.parts.coordinator.retryable();
            let routes = self.parts.registry.routes();
            routes.apps().map(|app| self.app_with(app, &retryable)).collect()
        };
        let completed = self.parts.apps.complete(&mut apps, request.into_inner().nodes).await;
        completed.map_err(|error| Status::internal(error.to_string()))?;
        Ok(Response::new(proto::ListResponse { apps }))
    }

    async fn logs(&self, request: Request<proto::LogsRequest>) -> Answer<Flow<proto::LogLine>> {
        let end = stream_end(request.extensions(), &self.cancel);
        let proto::LogsRequest { function, follow, tail } = request.into_inner();
        let function = (!function.is_empty()).then_some(function);
        if let Some(name) = &function {
            let routes = self.parts.registry.routes();
            if routes.function(name).is_none() && routes.workflow(name).is_none() {
                let near = routes.near_functions(name);
                let error = InvocationError::UnknownFunction { name: name.clone(), near };
                return Err(invoke_status(&error));
            }
        }
        // Subscribed first, so no line is missed between the stored and the live ones.
        let live = follow.then(|| self.parts.logs.follow());
        let kept = self.parts.logs.kept(function.as_deref(), (tail > 0).then_some(tail as usize));
        let (lines, stream) = mpsc::channel(STREAM_LINES);
        self.tasks.spawn(send_lines(kept, live, function, lines, end));
        Ok(Response::new(Box::pin(ReceiverStream::new(stream))))
    }

    async fn remove(&self, request: Request<proto::RemoveRequest>) -> Answer<proto::RemoveResponse> {
        let registry = self.parts.registry.clone();
        let proto::RemoveRequest { app, this_node, wait_ms } = request.into_inner();
        let (scope, name) = (self.parts.apps.scope(this_node), app.clone());
        let is_for_all = matches!(scope, Scope::Cluster(_));
        let remove = self.tasks.spawn(async move { registry.remove(&name, &scope).await });
        let functions = remove
            .await
            .map_err(|error| Status::internal(format!("the removal ended early: {error}")))?
            .map_err(deploy_status)?;
        let nodes = self.nodes(is_for_all, &app, wait_ms).await?;
        Ok(Response::new(proto::RemoveResponse { functions, nodes }))
    }

    async fn rollback(&self, request: Request<proto::RollbackRequest>) -> Answer<proto::RollbackResponse> {
        let registry = self.parts.registry.clone();
        let proto::RollbackRequest { app, revision, this_node, wait_ms } = request.into_inner();
        let scope = self.parts.apps.scope(this_node);
        let is_for_all = matches!(scope, Scope::Cluster(_));
        let rollback = self.tasks.spawn(async move { registry.rollback(&app, &revision, scope).await });
        let app = rollback
            .await
            .map_err(|error| Status::internal(format!("the rollback ended early: {error}")))?
            .map_err(deploy_status)?;
        let nodes = self.nodes(is_for_all, &app.name, wait_ms).await?;
        Ok(Response::new(proto::RollbackResponse { app: Some(self.app(&app)), nodes }))
    }

    async fn status(&self, _: Request<proto::StatusRequest>) -> Answer<proto::StatusResponse> {
        let parts = &self.parts;
        let reading = parts.reading();
        let (invocations, failures) = parts.invoker.totals();
        let facts = &parts.facts;
        Ok(Response::new(proto::StatusResponse {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            node_id: facts.node_id.clone(),
            uptime_ms: reading.uptime.as_millis() as u64,
            data_dir: facts.data_dir.clone(),
            addresses: Some(proto::Addresses {
                http: facts.addresses.http.to_string(),
                mqtt: facts.addresses.mqtt.to_string(),
                control: facts.addresses.control.to_string(),
                mqtts: facts.addresses.mqtts.map(|mqtts| mqtts.to_string()).unwrap_or_default(),
                http_tls: facts.addresses.http_tls,
                control_tls: facts.addresses.control_tls,
                dashboard: facts.addresses.dashboard_url().unwrap_or_default(),
            }),
            rss_bytes: reading.rss_bytes,
            apps: parts.registry.routes().apps().count() as u32,
            functions: reading.functions as u32,
            isolates_running: reading.isolates_running,
            isolates_max: facts.pool.max_isolates,
            pool: Some(convert::pool(&facts.pool, &facts.machine)),
            memory: Some(convert::memory(&facts.plan, &reading.guests, parts.memory.level())),
            invocations,
            failures,
            mqtt_connections: reading.broker.connections as u32,
            draining: parts.drain.is_draining(),
            pending: reading.durable.pending,
            dead: reading.durable.dead,
            tls_fingerprint: parts.access.fingerprint().unwrap_or_default(),
            bridges: reading.bridges.iter().map(convert::bridge).collect(),
            disk: Some(convert::disk(&reading.space)),
            recovering: reading.cluster.recovering.patterns as u32,
            recovering_from: reading.cluster.recovering.members.into_iter().collect(),
            warnings: history::warnings(parts).await?,
            temperature_millicelsius: parts.history.temperature_millicelsius(),
        }))
    }

    async fn list_instances(
        &self,
        request: Request<proto::ListInstancesRequest>,
    ) -> Answer<proto::ListInstancesResponse> {
        let proto::ListInstancesRequest { workflow, limit, key } = request.into_inner();
        let max = if limit == 0 { DEFAULT_INSTANCES } else { (limit as usize).min(MAX_INSTANCES) };
        let coordinator = self.parts.coordinator.clone();
        let listing = tokio::task::spawn_blocking(move || {
            let (workflow, key) = (Some(&*workflow), Some(&*key));
            let filter = InstanceFilter {
                workflow: workflow.filter(|name| !name.is_empty()),
                key: key.filter(|key| !key.is_empty()),
                max,
            };
            coordinator.instances(filter)
        });
        let listed = listing.await.map_err(|_| Status::unavailable("the node is stopping"))?;
        let (found, more) = listed.map_err(|error| {
            tracing::error!(%error, "instances cannot be listed");
            Status::internal("the instances could not be read; see the node's log")
        })?;
        let instances = found.into_iter().map(convert::instance).collect();
        Ok(Response::new(proto::ListInstancesResponse { instances, more }))
    }

    async fn get_instance(&self, request: Request<proto::GetInstanceRequest>) -> Answer<proto::Instance> {
        let id = instance_id(&request.into_inner().id)?;
        let found = self.parts.coordinator.instance(id);
        let found =
            found.ok_or_else(|| Status::not_found(ChangeError::Unknown(id.to_string()).to_string()))?;
        Ok(Response::new(convert::instance(found)))
    }

    async fn change_instance(
        &self,
        request: Request<proto::ChangeInstanceRequest>,
    ) -> Answer<proto::ChangeInstanceResponse> {
        use proto::change_instance_request::Change;
        let request = request.into_inner();
        let id = instance_id(&request.id)?;
        let coordinator = &self.parts.coordinator;
        let changed = match request.change() {
            Change::Cancel => coordinator.cancel_instance(id).await,
            Change::Retry => coordinator.retry_instance(id).await,
            Change::Unspecified => {
                return Err(Status::invalid_argument("the change is neither CANCEL nor RETRY"));
            }
        };
        changed.map_err(|error| match error {
            ChangeError::Unknown(_) => Status::not_found(error.to_string()),
            ChangeError::NotFaulted { .. } | ChangeError::Ended { .. } | ChangeError::NotKept { .. } => {
                Status::failed_precondition(error.to_string())
            }
            ChangeError::NotStored { .. } => Status::unavailable(error.to_string()),
        })?;
        Ok(Response::new(proto::ChangeInstanceResponse {}))
    }

    async fn graph(&self, request: Request<proto::GraphRequest>) -> Answer<proto::GraphResponse> {
        let name = request.into_inner().workflow;
        let routes = self.parts.registry.routes();
        let Some(workflow) = routes.workflow(&name) else {
            let near = routes.near_workflows(&name);
            return Err(invoke_status(&InvocationError::UnknownWorkflow { name, near }));
        };
        let workflow = workflow.clone();
        drop(routes);
        let coordinator = self.parts.coordinator.clone();
        let graph = tokio::task::spawn_blocking(move || {
            workflow_graph::graph(&workflow.program, &coordinator.task_counts(&workflow.name))
        });
        let graph = graph.await.map_err(|error| Status::internal(error.to_string()))?;
        Ok(Response::new(graph))
    }

    async fn cancel_instances(
        &self,
        request: Request<proto::CancelInstancesRequest>,
    ) -> Answer<proto::CancelInstancesResponse> {
        let proto::CancelInstancesRequest { of, failed } = request.into_inner();
        let of = match of {
            Some(proto::cancel_instances_request::Of::Workflow(name)) => InstancesOf::Workflow(name),
            Some(proto::cancel_instances_request::Of::App(name)) => InstancesOf::App(name),
            None => return Err(Status::invalid_argument("neither a workflow nor an app is named")),
        };
        let which = if failed { Which::Failed } else { Which::Open };
        let coordinator = self.parts.coordinator.clone();
        // On a separate task: a client that disconnects must not interrupt it.
        let cancelling = self.tasks.spawn(async move { coordinator.cancel_instances(of, which).await });
        let cancelled = cancelling.await.map_err(|error| Status::internal(error.to_string()))?;
        Ok(Response::new(proto::CancelInstancesResponse { cancelled }))
    }

    async fn compare_revisions(
        &self,
        request: Request<proto::CompareRevisionsRequest>,
    ) -> Answer<proto::CompareRevisionsResponse> {
        let proto::CompareRevisionsRequest { app, from, to } = request.into_inner();
        let registry = self.parts.registry.clone();
        let comparing = tokio::task::spawn_blocking(move || {
            let changes = registry.compare(&app, &from, &to)?;
            Ok(changes.into_iter().map(revisions::difference).collect())
        });
        let files = comparing.await.map_err(|error| Status::internal(error.to_string()))?;
        let files = files.map_err(deploy_status)?;
        Ok(Response::new(proto::CompareRevisionsResponse { files }))
    }

    async fn get_settings(
        &self,
        _: Request<proto::GetSettingsRequest>,
    ) -> Answer<proto::GetSettingsResponse> {
        let facts = &self.parts.facts;
        let rules = self.parts.access.rules_file();
        Ok(Response::new(convert::settings(&facts.settings, rules, facts.data_dir.as_ref())))
    }

    async fn list_traces(
        &self,
        request: Request<proto::ListTracesRequest>,
    ) -> Answer<proto::ListTracesResponse> {
        let proto::ListTracesRequest { limit, failed, search } = request.into_inner();
        let max = if limit == 0 { DEFAULT_TRACES } else { (limit as usize).min(MAX_TRACES) };
        let open = self.parts.coordinator.open_spans(MAX_TRACES);
        let (found, more) =
            self.parts.traces.summaries(TraceFilter { failed, search: &search, max }, &open);
        let traces = found.into_iter().map(convert::trace_summary).collect();
        Ok(Response::new(proto::ListTracesResponse { traces, more }))
    }

    async fn init_cluster(&self, request: Request<proto::InitClusterRequest>) -> Answer<proto::Cluster> {
        let name = node_name(request.into_inner().name);
        let cluster = self.parts.cluster.clone();
        // On a separate task: a client that disconnects must not interrupt the creation of a cluster.
        let made = self.tasks.spawn(async move { cluster.init(&name).await }).await;
        let made = made.map_err(|error| Status::internal(error.to_string()))?;
        Ok(Response::new(members::cluster(made.map_err(cluster_status)?)))
    }

    async fn open_cluster(
        &self,
        request: Request<proto::OpenClusterRequest>,
    ) -> Answer<proto::OpenClusterResponse> {
        let life_ms = request.into_inner().life_ms;
        let life = (life_ms > 0).then(|| Duration::from_millis(life_ms));
        let token = self.parts.cluster.token(life).await.map_err(cluster_status)?;
        Ok(Response::new(proto::OpenClusterResponse { token }))
    }

    async fn join_cluster(&self, request: Request<proto::JoinClusterRequest>) -> Answer<proto::Cluster> {
        let proto::JoinClusterRequest { token, name } = request.into_inner();
        let (cluster, name) = (self.parts.cluster.clone(), node_name(name));
        let joined = self.tasks.spawn(async move { cluster.join(&token, &name).await }).await;
        let joined = joined.map_err(|error| Status::internal(error.to_string()))?;
        Ok(Response::new(members::cluster(joined.map_err(cluster_status)?)))
    }

    async fn revoke_member(
        &self,
        request: Request<proto::RevokeMemberRequest>,
    ) -> Answer<proto::RevokeMemberResponse> {
        self.parts.cluster.revoke(&request.into_inner().name).await.map_err(cluster_status)?;
        Ok(Response::new(proto::RevokeMemberResponse {}))
    }

    async fn set_policy(
        &self,
        request: Request<proto::SetPolicyRequest>,
    ) -> Answer<proto::SetPolicyResponse> {
        let now_ms = self.parts.registry.clock().now_unix_ms();
        let proto::SetPolicyRequest { text, wait_ms } = request.into_inner();
        let set = self.parts.apps.set_policy(text, now_ms, Duration::from_millis(wait_ms.into())).await;
        Ok(Response::new(set.map_err(policy_status)?))
    }

    async fn remove_policy(
        &self,
        request: Request<proto::RemovePolicyRequest>,
    ) -> Answer<proto::RemovePolicyResponse> {
        let now_ms = self.parts.registry.clock().now_unix_ms();
        let wait = Duration::from_millis(request.into_inner().wait_ms.into());
        let removed = self.parts.apps.remove_policy(now_ms, wait).await;
        Ok(Response::new(removed.map_err(policy_status)?))
    }

    async fn get_policy(&self, _: Request<proto::GetPolicyRequest>) -> Answer<proto::Policy> {
        let policy = self.parts.apps.policy().map_err(|error| Status::internal(error.to_string()))?;
        Ok(Response::new(policy))
    }

    async fn explain_placement(
        &self,
        request: Request<proto::ExplainPlacementRequest>,
    ) -> Answer<proto::ExplainPlacementResponse> {
        let proto::ExplainPlacementRequest { function: name, entry } = request.into_inner();
        let routes = self.parts.registry.routes();
        let function = routes.function(&name).cloned();
        if function.is_none() && routes.workflow(&name).is_none() {
            let near = routes.near_functions(&name);
            return Err(invoke_status(&InvocationError::UnknownFunction { name, near }));
        }
        drop(routes);
        let view = self.parts.cluster.view();
        let entry = match entry.as_str() {
            "" => None,
            name => {
                let member = view.all().find(|member| member.name == name);
                let unknown = || cluster_status(ClusterError::UnknownMember { name: name.to_owned() });
                Some(member.ok_or_else(unknown)?.node_id)
            }
        };
        let entry_name = match entry.and_then(|entry| view.member(entry)).unwrap_or(&view.me).name.as_str()
        {
            "" => THIS_NODE.to_owned(),
            name => name.to_owned(),
        };
        drop(view);
        let Some(function) = function else {
            let steps = vec![
                format!("`{name}` is a workflow: no policy places it; an instance stays on the node at which its event arrives"),
                "each function that it calls is placed by the policies: `edgefaas policy explain FUNCTION --entry NODE`".into(),
            ];
            return Ok(Response::new(proto::ExplainPlacementResponse { node: entry_name, steps }));
        };
        let (node, steps) = self.parts.apps.placer.explain(&function, entry);
        Ok(Response::new(proto::ExplainPlacementResponse { node, steps }))
    }

    async fn get_cluster(&self, _: Request<proto::GetClusterRequest>) -> Answer<proto::Cluster> {
        Ok(Response::new(members::cluster(self.parts.cluster.status().map_err(cluster_status)?)))
    }

    async fn trace(&self, request: Request<proto::TraceRequest>) -> Answer<proto::TraceResponse> {
        let id = request.into_inner().id;
        let spans = self.parts.coordinator.trace(&id);
        if spans.is_empty() {
            return Err(Status::not_found(format!(
                "no trace is kept for `{id}`: the node keeps recent spans only, and records a limited number of traces per \
                 second ([traces] in the configuration)"
            )));
        }
        Ok(Response::new(proto::TraceResponse { spans: spans.into_iter().map(convert::span).collect() }))
    }

    async fn set_secret(
        &self,
        request: Request<proto::SetSecretRequest>,
    ) -> Answer<proto::SetSecretResponse> {
        let proto::SetSecretRequest { name, value, app, this_node } = request.into_inner();
        let secret = SecretName { app: Some(app), name };
        self.parts.apps.change_secret(secret, Some(value), this_node).await.map_err(secret_status)?;
        Ok(Response::new(proto::SetSecretResponse {}))
    }

    async fn list_secrets(
        &self,
        request: Request<proto::ListSecretsRequest>,
    ) -> Answer<proto::ListSecretsResponse> {
        let app = request.into_inner().app;
        let secrets = self.parts.secrets.names((!app.is_empty()).then_some(app.as_str()));
        let secret = |SecretName { app, name }| proto::Secret { app: app.unwrap_or_default(), name };
        Ok(Response::new(proto::ListSecretsResponse { secrets: secrets.into_iter().map(secret).collect() }))
    }

    async fn remove_secret(
        &self,
        request: Request<proto::RemoveSecretRequest>,
    ) -> Answer<proto::RemoveSecretResponse> {
        let proto::RemoveSecretRequest { name, app, this_node } = request.into_inner();
        let secret = SecretName { app: (!app.is_empty()).then_some(app), name };
        self.parts.apps.change_secret(secret, None, this_node).await.map_err(secret_status)?;
        Ok(Response::new(proto::RemoveSecretResponse {}))
    }

    async fn add_user(&self, request: Request<proto::AddUserRequest>) -> Answer<proto::AddUserResponse> {
        let proto::AddUserRequest { name, password, role } = request.into_inner();
        self.parts.access.add_user(name, password, role_of(&role)?).await.map_err(users_status)?;
        Ok(Response::new(proto::AddUserResponse {}))
    }

    async fn set_password(
        &self,
        request: Request<proto::SetPasswordRequest>,
    ) -> Answer<proto::SetPasswordResponse> {
        let proto::SetPasswordRequest { name, password } = request.into_inner();
        self.parts.access.set_password(name, password).await.map_err(users_status)?;
        Ok(Response::new(proto::SetPasswordResponse {}))
    }

    async fn set_role(&self, request: Request<proto::SetRoleRequest>) -> Answer<proto::SetRoleResponse> {
        let proto::SetRoleRequest { name, role } = request.into_inner();
        self.parts.access.set_role(name, role_of(&role)?).await.map_err(users_status)?;
        Ok(Response::new(proto::SetRoleResponse {}))
    }

    async fn remove_user(
        &self,
        request: Request<proto::RemoveUserRequest>,
    ) -> Answer<proto::RemoveUserResponse> {
        self.parts.access.remove_user(request.into_inner().name).await.map_err(users_status)?;
        Ok(Response::new(proto::RemoveUserResponse {}))
    }

    async fn list_users(&self, _: Request<proto::ListUsersRequest>) -> Answer<proto::ListUsersResponse> {
        let users = self.parts.access.users();
        let names = users.iter().map(|(name, _)| name.clone()).collect();
        let user = |(name, role): (String, Option<Role>)| {
            let role = role.map(Role::name).unwrap_or_default().to_owned();
            proto::User { name, role }
        };
        Ok(Response::new(proto::ListUsersResponse { names, users: users.into_iter().map(user).collect() }))
    }

    async fn list_queues(
        &self,
        request: Request<proto::ListQueuesRequest>,
    ) -> Answer<proto::ListQueuesResponse> {
        let proto::ListQueuesRequest { filter, limit } = request.into_inner();
        let broker = &self.parts.broker;
        let mut queues = match filter {
            Some(filter) => {
                let filter = TopicFilter::new(filter.as_str())
                    .map_err(|error| Status::invalid_argument(format!("`{filter}`: {error}")))?;
                broker.queue(&filter).into_iter().collect()
            }
            None => broker.queues(),
        };
        let total = queues.len() as u64;
        let limit = if limit == 0 { DEFAULT_QUEUES } else { (limit as usize).min(MAX_QUEUES) };
        queues.sort_by(|one, other| {
            let key = |queue: &QueueFigures| Reverse((queue.waiting, queue.messages_in));
            key(one).cmp(&key(other)).then_with(|| one.filter.cmp(&other.filter))
        });
        queues.truncate(limit);
        let queues = queues.into_iter().map(|queue| proto::Queue {
            filter: queue.filter.as_str().to_owned(),
            subscribers: queue.subscribers,
            messages_in: queue.messages_in,
            messages_out: queue.messages_out,
            dropped: queue.dropped,
            waiting: queue.waiting,
            rate: queue.rate_per_second,
        });
        Ok(Response::new(proto::ListQueuesResponse { queues: queues.collect(), total }))
    }

    async fn reload(&self, _: Request<proto::ReloadRequest>) -> Answer<proto::ReloadResponse> {
        let reloaded = self.parts.access.reload().await;
        let reloaded = reloaded.map_err(|error| Status::failed_precondition(error.to_string()))?;
        Ok(Response::new(proto::ReloadResponse {
            users: reloaded.users as u32,
            rules: reloaded.rules.map(|rules| rules as u32),
            tls_fingerprint: reloaded.fingerprint.unwrap_or_default(),
        }))
    }
}

/// Sends the stored lines, then live lines until the client disconnects or the node stops.
async fn send_lines(
    kept: Vec<LogLine>,
    live: Option<broadcast::Receiver<LogLine>>,
    function: Option<String>,
    lines: mpsc::Sender<Result<proto::LogLine, Status>>,
    cancel: CancellationToken,
) {
    let mut last = 0;
    for line in kept {
        last = line.number;
        match cancel.run_until_cancelled(lines.send(Ok(convert::log_line(line, 0)))).await {
            Some(Ok(())) => {}
            Some(Err(_)) | None => return,
        }
    }
    let Some(mut live) = live else { return };
    let mut lost = 0;
    loop {
        let received = tokio::select! {
            received = live.recv() => received,
            () = lines.closed() => return,
            () = cancel.cancelled() => return,
        };
        match received {
            Ok(line) if line.number <= last => {}
            Ok(line) if function.as_deref().is_some_and(|name| *name != *line.function) => {}
            Ok(line) => {
                let line = convert::log_line(line, std::mem::take(&mut lost));
                match cancel.run_until_cancelled(lines.send(Ok(line))).await {
                    Some(Ok(())) => {}
                    Some(Err(_)) | None => return,
                }
            }
            Err(broadcast::error::RecvError::Lagged(count)) => lost += count,
            Err(broadcast::error::RecvError::Closed) => return,
        }
    }
}

fn instance_id(text: &str) -> Result<Ulid, Status> {
    let unknown = |_| {
        Status::not_found(format!("there is no instance `{text}`; `edgefaas workflow list` shows the ids"))
    };
    Ulid::from_string(text).map_err(unknown)
}

/// The role of a request; an empty text is none.
fn role_of(text: &str) -> Result<Option<Role>, Status> {
    if text.is_empty() {
        return Ok(None);
    }
    text.parse()
        .map(Some)
        .map_err(|error: UnknownRole| Status::invalid_argument(format!("`{text}`: {error}")))
}

/// The default name of a member: the machine's name, reduced to valid characters.
fn node_name(given: String) -> String {
    if !given.is_empty() {
        return given;
    }
    let machine = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let fits = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let name: String = machine.chars().filter(fits).take(63).collect();
    if name.is_empty() { "node".to_owned() } else { name }
}
