//! The service of durable invocations: pages of pending and of dead ones, retry and discard.

use std::sync::Arc;

use edgefaas_api::invocations as proto;
use edgefaas_api::invocations::invocations_server::{Invocations, InvocationsServer};
use edgefaas_functions::durable::{
    DeadKey, DurableQueue, Inspected, InspectedState, ManageError, PendingPlace,
};
use edgefaas_functions::invocation::InvocationError;
use edgefaas_functions::registry::Registry;
use edgefaas_isolates::Trigger;
use edgefaas_state::store::StoreError;
use tonic::{Request, Response, Status};
use ulid::Ulid;

use super::rpcs::{Answer, serve_rpcs};

/// Number of invocations in a list, without a limit in the request and at most.
const DEFAULT_LIMIT: usize = 100;
const MAX_LIMIT: usize = 1_000;
/// Maximum bytes of an event's payload in an answer.
const MAX_PAYLOAD_BYTES: usize = 64 << 10;

pub(super) fn service(
    durable: Arc<DurableQueue>,
    registry: Arc<Registry>,
) -> InvocationsServer<InvocationsService> {
    InvocationsServer::new(InvocationsService { durable, registry })
}

#[derive(Clone)]
pub(super) struct InvocationsService {
    durable: Arc<DurableQueue>,
    registry: Arc<Registry>,
}

serve_rpcs! {
    Invocations for InvocationsService, streams [];
    list(proto::ListRequest) -> proto::ListResponse;
    get(proto::GetRequest) -> proto::Invocation;
    retry(proto::RetryRequest) -> proto::RetryResponse;
    discard(proto::DiscardRequest) -> proto::DiscardResponse;
}

impl InvocationsService {
    async fn list(&self, request: Request<proto::ListRequest>) -> Answer<proto::ListResponse> {
        let proto::ListRequest { function, dead, after, limit } = request.into_inner();
        let limit = if limit == 0 { DEFAULT_LIMIT } else { (limit as usize).min(MAX_LIMIT) };
        let place = match (after.is_empty(), dead) {
            (true, _) => Place::Begin,
            (false, true) => Place::Dead(dead_key(&after)?),
            (false, false) => Place::Pending(pending_place(&after)?),
        };
        let durable = self.durable.clone();
        let reading = tokio::task::spawn_blocking(move || {
            let function = (!function.is_empty()).then_some(&*function);
            match (place, dead) {
                (Place::Pending(after), _) => pending(&durable, function, Some(&after), limit),
                (Place::Begin, false) => pending(&durable, function, None, limit),
                (Place::Dead(before), _) => dead_letters(&durable, function, Some(before), limit),
                (Place::Begin, true) => dead_letters(&durable, function, None, limit),
            }
        });
        let (found, next) = reading.await.map_err(internal)?.map_err(internal)?;
        let figures = self.durable.reading();
        Ok(Response::new(proto::ListResponse {
            invocations: found.into_iter().map(|found| self.message(found, Payload::LeftOut)).collect(),
            next: next.unwrap_or_default(),
            pending: figures.pending,
            dead: figures.dead,
            dead_dropped: figures.dead_dropped,
        }))
    }

    async fn get(&self, request: Request<proto::GetRequest>) -> Answer<proto::Invocation> {
        let id = id_of(&request.into_inner().id)?;
        let durable = self.durable.clone();
        let reading = tokio::task::spawn_blocking(move || durable.inspect(id));
        let found = reading.await.map_err(internal)?.map_err(internal)?;
        let found = found.ok_or_else(|| status(ManageError::Unknown { id }))?;
        Ok(Response::new(self.message(found, Payload::Whole)))
    }

    async fn retry(&self, request: Request<proto::RetryRequest>) -> Answer<proto::RetryResponse> {
        let id = id_of(&request.into_inner().id)?;
        let id = self.durable.retry(id).await.map_err(status)?;
        Ok(Response::new(proto::RetryResponse { id: id.to_string() }))
    }

    async fn discard(&self, request: Request<proto::DiscardRequest>) -> Answer<proto::DiscardResponse> {
        let id = id_of(&request.into_inner().id)?;
        self.durable.discard(id).await.map_err(status)?;
        Ok(Response::new(proto::DiscardResponse {}))
    }
}

/// Where a part of a list begins.
enum Place {
    Begin,
    Pending(PendingPlace),
    Dead(DeadKey),
}

type Part = Result<(Vec<Inspected>, Option<String>), StoreError>;

fn pending(
    durable: &DurableQueue,
    function: Option<&str>,
    after: Option<&PendingPlace>,
    limit: usize,
) -> Part {
    let page = durable.pending_page(function, after, limit)?;
    let next = page.next.map(|place| format!("{}.{}", place.sequence, place.function));
    Ok((page.invocations, next))
}

fn dead_letters(
    durable: &DurableQueue,
    function: Option<&str>,
    before: Option<DeadKey>,
    limit: usize,
) -> Part {
    let page = durable.dead_page(function, before, limit)?;
    let next = page.next.map(|key| format!("{}.{}", key.ended_unix_ms, key.id));
    Ok((page.invocations, next))
}

fn pending_place(text: &str) -> Result<PendingPlace, Status> {
    let place = text.split_once('.').and_then(|(sequence, function)| {
        Some(PendingPlace { function: function.to_owned(), sequence: sequence.parse().ok()? })
    });
    place.ok_or_else(|| no_place(text))
}

fn dead_key(text: &str) -> Result<DeadKey, Status> {
    let key = text.split_once('.').and_then(|(ended, id)| {
        Some(DeadKey { ended_unix_ms: ended.parse().ok()?, id: Ulid::from_string(id).ok()? })
    });
    key.ok_or_else(|| no_place(text))
}

fn no_place(text: &str) -> Status {
    Status::invalid_argument(format!("`{text}` is not `next` of an answer of this list"))
}

fn id_of(text: &str) -> Result<Ulid, Status> {
    let unknown = |_| {
        let advice = "`edgefaas invocations` and `edgefaas dead` show the ids, and `edgefaas workflow list` those of instances";
        Status::not_found(format!("there is no pending or dead invocation `{text}`; {advice}"))
    };
    Ulid::from_string(text).map_err(unknown)
}

fn internal(error: impl std::fmt::Display) -> Status {
    Status::internal(format!("the invocations cannot be read: {error}"))
}

fn status(error: ManageError) -> Status {
    let text = error.to_string();
    match error {
        ManageError::Unknown { .. } => Status::not_found(text),
        ManageError::Running { .. } | ManageError::NotDeployed { .. } => Status::failed_precondition(text),
        ManageError::Refused(InvocationError::Draining) => Status::unavailable(text),
        ManageError::Refused(_) | ManageError::NotDeleted { .. } => Status::resource_exhausted(text),
        ManageError::Store(_) => Status::internal(text),
    }
}

/// Whether a message has the payload of the event.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Payload {
    Whole,
    LeftOut,
}

impl InvocationsService {
    fn message(&self, found: Inspected, payload: Payload) -> proto::Invocation {
        let Inspected { id, function, attempt, state, problem, event } = found;
        let (trigger, source, content_type) = origin(&event.trigger);
        let (mut next_unix_ms, mut ended_unix_ms) = (0, 0);
        let state = match state {
            InspectedState::Waiting => proto::State::Waiting,
            InspectedState::Running => proto::State::Running,
            InspectedState::Retrying { next_unix_ms: next } => {
                next_unix_ms = next;
                proto::State::Retrying
            }
            InspectedState::Dead { ended_unix_ms: ended } => {
                ended_unix_ms = ended;
                proto::State::Dead
            }
        };
        let attempts = match state {
            proto::State::Dead => attempt,
            _ => {
                self.registry.routes().function(&function).map_or(attempt, |live| live.spec.retry.attempts)
            }
        };
        let shown = match payload {
            Payload::Whole => event.body.get(..MAX_PAYLOAD_BYTES).unwrap_or(&event.body).to_vec(),
            Payload::LeftOut => Vec::new(),
        };
        let (status, title, detail) =
            problem.map(|problem| (problem.status, problem.title, problem.detail)).unwrap_or_default();
        proto::Invocation {
            id: id.to_string(),
            function,
            state: state.into(),
            attempt,
            attempts,
            accepted_unix_ms: id.timestamp_ms(),
            next_unix_ms,
            ended_unix_ms,
            status: status.into(),
            title,
            detail,
            trigger: trigger.to_owned(),
            source,
            payload: shown,
            payload_bytes: event.body.len() as u64,
            content_type,
        }
    }
}

/// Kind of trigger, the origin in words, and the MIME type of the payload.
fn origin(trigger: &Trigger) -> (&'static str, String, String) {
    let none = String::new;
    match trigger {
        Trigger::Http(request) => {
            let content_type = request.headers.iter().find(|(name, _)| name == "content-type");
            let content_type = content_type.map(|(_, value)| value.clone()).unwrap_or_default();
            ("http", format!("{} {}", request.method, request.path), content_type)
        }
        Trigger::Mqtt(message) => {
            ("mqtt", message.topic.clone(), message.content_type.clone().unwrap_or_default())
        }
        Trigger::Cron(tick) => ("cron", tick.schedule.clone(), none()),
        Trigger::Object(change) => ("object", format!("{} {}", change.object, change.field), none()),
        Trigger::Call(call) => ("call", call.caller.clone().unwrap_or_default(), none()),
        Trigger::Workflow(step) => ("workflow", format!("{} {}", step.workflow, step.task), none()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_in_a_list_is_what_the_answer_before_said() {
        let place = PendingPlace { function: "a.b-c".into(), sequence: 7 };
        assert_eq!(pending_place("7.a.b-c").unwrap(), place);
        let key = DeadKey { ended_unix_ms: 5, id: Ulid(9) };
        assert_eq!(dead_key(&format!("5.{}", Ulid(9))).unwrap(), key);
        for text in ["", "7", "x.f", "-1.f"] {
            assert_eq!(pending_place(text).unwrap_err().code(), tonic::Code::InvalidArgument);
            assert_eq!(dead_key(text).unwrap_err().code(), tonic::Code::InvalidArgument);
        }
    }
}
