//! The broker over gRPC: topics, retained messages, clients, and messages to publish and to receive.

mod clients;
mod permissions;
mod publish;
mod retained;
mod slots;
mod subscription;
mod topic_watch;
mod topics;

use std::sync::Arc;

use edgefaas_api::messages as proto;
use edgefaas_api::messages::messages_server::{Messages, MessagesServer};
use edgefaas_broker::TopicFilter;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::{Request, Response, Status};

use self::permissions::Permissions;
use self::slots::{MAX_OF_USER, MAX_SUBSCRIPTIONS, Slots};
use self::topic_watch::WatchedTopics;
use super::caller::stream_end;
use super::dependencies::ControlParts;
use super::rpcs::{Answer, Flow, serve_rpcs};

/// Default length of a list.
const DEFAULT_ENTRIES: usize = 100;
/// Maximum length of a list.
const MAX_ENTRIES: usize = 1000;
/// Topics that a list visits under one lock.
const SLICE: usize = 256;
/// Bytes of a payload in a list.
const MAX_LISTED_BYTES: usize = 1024;

pub(super) fn service(
    parts: Arc<ControlParts>,
    cancel: CancellationToken,
    tasks: TaskTracker,
) -> MessagesServer<MessagesService> {
    let message_bytes = parts.facts.plan.message_bytes();
    let topics = WatchedTopics::new(parts.broker.clone(), cancel.clone());
    let slots = Arc::new(Slots::new());
    MessagesServer::new(MessagesService { parts, cancel, tasks, topics: Arc::new(topics), slots })
        .max_decoding_message_size(message_bytes)
        .max_encoding_message_size(message_bytes)
}

#[derive(Clone)]
pub(super) struct MessagesService {
    parts: Arc<ControlParts>,
    cancel: CancellationToken,
    tasks: TaskTracker,
    topics: Arc<WatchedTopics>,
    /// Of subscriptions.
    slots: Arc<Slots>,
}

serve_rpcs! {
    Messages for MessagesService, streams [SubscribeStream: proto::Message];
    list_topics(proto::ListTopicsRequest) -> proto::ListTopicsResponse;
    publish(proto::PublishRequest) -> proto::PublishResponse;
    subscribe(proto::SubscribeRequest) -> Flow<proto::Message>;
    list_retained(proto::ListRetainedRequest) -> proto::ListRetainedResponse;
    list_clients(proto::ListClientsRequest) -> proto::ListClientsResponse;
    get_client(proto::GetClientRequest) -> proto::Client;
    drop_client(proto::DropClientRequest) -> proto::DropClientResponse;
}

impl MessagesService {
    async fn list_topics(
        &self,
        request: Request<proto::ListTopicsRequest>,
    ) -> Answer<proto::ListTopicsResponse> {
        let permissions = Permissions::of(&request, self.parts.access.access())?;
        let request = request.into_inner();
        if self.topics.ask() {
            self.tasks.spawn(self.topics.clone().end_unasked());
        }
        let topics = self.topics.clone();
        in_background(move || topics::list(&topics, request, &permissions)).await
    }

    async fn publish(&self, request: Request<proto::PublishRequest>) -> Answer<proto::PublishResponse> {
        let permissions = Permissions::of(&request, self.parts.access.access())?;
        let published = publish::publish(&self.parts.broker, request.into_inner(), &permissions).await?;
        Ok(Response::new(published))
    }

    async fn subscribe(&self, request: Request<proto::SubscribeRequest>) -> Answer<Flow<proto::Message>> {
        let permissions = Permissions::of(&request, self.parts.access.access())?;
        let end = stream_end(request.extensions(), &self.cancel);
        let Some(slot) = self.slots.take(permissions.user()) else {
            return Err(Status::resource_exhausted(format!(
                "the control API has its maximum of {MAX_SUBSCRIPTIONS} subscriptions, or this user has {MAX_OF_USER}; end one of them, \
                 or use an MQTT client"
            )));
        };
        let proto::SubscribeRequest { filter, retained } = request.into_inner();
        let wanted = subscription::Wanted { filter, retained, permissions };
        let messages = subscription::open(&self.parts.broker, wanted, slot, end).await?;
        Ok(Response::new(Box::pin(messages)))
    }

    async fn list_retained(
        &self,
        request: Request<proto::ListRetainedRequest>,
    ) -> Answer<proto::ListRetainedResponse> {
        let permissions = Permissions::of(&request, self.parts.access.access())?;
        let (broker, request) = (self.parts.broker.clone(), request.into_inner());
        in_background(move || retained::list(&broker, request, &permissions)).await
    }

    async fn list_clients(
        &self,
        request: Request<proto::ListClientsRequest>,
    ) -> Answer<proto::ListClientsResponse> {
        let (broker, request) = (self.parts.broker.clone(), request.into_inner());
        in_background(move || Ok(clients::list(&broker, request))).await
    }

    async fn get_client(&self, request: Request<proto::GetClientRequest>) -> Answer<proto::Client> {
        clients::get(&self.parts.broker, &request.into_inner().id).map(Response::new)
    }

    async fn drop_client(
        &self,
        request: Request<proto::DropClientRequest>,
    ) -> Answer<proto::DropClientResponse> {
        clients::drop(&self.parts.broker, request.into_inner()).await.map(Response::new)
    }
}

/// Makes a list on a thread that may take its time.
async fn in_background<T: Send + 'static>(
    list: impl FnOnce() -> Result<T, Status> + Send + 'static,
) -> Answer<T> {
    let listed = tokio::task::spawn_blocking(list).await;
    listed.map_err(|_| Status::unavailable("the node is stopping"))?.map(Response::new)
}

/// The length of a list.
fn limit_of(limit: u32) -> usize {
    match limit {
        0 => DEFAULT_ENTRIES,
        limit => (limit as usize).min(MAX_ENTRIES),
    }
}

/// The filter of a list; `#` if it is empty.
fn filter_of(filter: &str) -> Result<TopicFilter, Status> {
    let filter = if filter.is_empty() { "#" } else { filter };
    TopicFilter::new(filter).map_err(|error| Status::invalid_argument(error.to_string()))
}

/// The first bytes of a payload for a list.
fn listed(payload: &[u8]) -> Vec<u8> {
    payload.get(..MAX_LISTED_BYTES).unwrap_or(payload).to_vec()
}
