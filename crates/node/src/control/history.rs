//! The history service over gRPC, and warnings for the status.

use std::sync::Arc;

use edgefaas_api::control as control_proto;
use edgefaas_api::history as proto;
use edgefaas_api::history::history_server::{History, HistoryServer};
use tokio::sync::{broadcast, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::{Request, Response, Status};

use super::caller::stream_end;
use super::dependencies::ControlParts;
use super::rpcs::{Answer, Flow, serve_rpcs};
use crate::history::{Event, Happened, Sample, Severity, Step, Warning, facts};

/// Buffered events of one follower. A follower that is too slow loses events in the ring, which reports the loss.
const STREAM_EVENTS: usize = 64;

/// The service.
pub(super) fn service(
    parts: Arc<ControlParts>,
    cancel: CancellationToken,
    tasks: TaskTracker,
) -> HistoryServer<impl History> {
    HistoryServer::new(HistoryService { parts, cancel, tasks })
}

/// The warnings of the node as it is now, the worst first.
///
/// # Errors
/// `UNAVAILABLE`: the node stops.
pub(super) async fn warnings(parts: &Arc<ControlParts>) -> Result<Vec<control_proto::Warning>, Status> {
    let looking = parts.clone();
    let found = tokio::task::spawn_blocking(move || {
        let temperature = looking.history.temperature_millicelsius();
        looking.history.warnings(&facts(&looking, temperature))
    });
    let found = found.await.map_err(|_| Status::unavailable("the node is stopping"))?;
    Ok(found.into_iter().map(|(warning, since)| warning_message(warning, since)).collect())
}

fn warning_message(warning: Warning, since_unix_ms: u64) -> control_proto::Warning {
    let Warning { severity, code, subject, app, secrets, text, remedy } = warning;
    let severity = match severity {
        Severity::Failing => control_proto::warning::Severity::Failing,
        Severity::Caution => control_proto::warning::Severity::Caution,
    };
    let (code, severity) = (code.to_string(), severity.into());
    control_proto::Warning { code, severity, text, remedy, subject, since_unix_ms, app, secrets }
}

#[derive(Clone)]
struct HistoryService {
    parts: Arc<ControlParts>,
    cancel: CancellationToken,
    /// Owner of the tasks that send to followers.
    tasks: TaskTracker,
}

serve_rpcs! {
    History for HistoryService, streams [EventsStream: proto::Event];
    get(proto::GetRequest) -> proto::GetResponse;
    events(proto::EventsRequest) -> Flow<proto::Event>;
}

impl HistoryService {
    async fn get(&self, request: Request<proto::GetRequest>) -> Answer<proto::GetResponse> {
        let proto::GetRequest { week, after_unix_ms } = request.into_inner();
        let step = if week { Step::Coarse } else { Step::Fine };
        let samples = self.parts.history.samples(step, after_unix_ms);
        Ok(Response::new(proto::GetResponse {
            step_ms: u32::try_from(step.ms()).unwrap_or(u32::MAX),
            samples: samples.into_iter().map(sample).collect(),
        }))
    }

    async fn events(&self, request: Request<proto::EventsRequest>) -> Answer<Flow<proto::Event>> {
        let end = stream_end(request.extensions(), &self.cancel);
        let proto::EventsRequest { follow, tail } = request.into_inner();
        let events = &self.parts.history.events;
        // Subscribed first, so no event is missed between the kept and the live ones.
        let live = follow.then(|| events.follow());
        let kept = events.kept((tail > 0).then_some(tail as usize));
        let (sender, stream) = mpsc::channel(STREAM_EVENTS);
        self.tasks.spawn(async move {
            // Without one the client has gone, or the stream has ended.
            let _ = end.run_until_cancelled(send_events(kept, live, &sender)).await;
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(stream))))
    }
}

/// Sends the kept events, then live ones until the client disconnects; `None` when it does.
async fn send_events(
    kept: Vec<Event>,
    live: Option<broadcast::Receiver<Event>>,
    events: &mpsc::Sender<Result<proto::Event, Status>>,
) -> Option<()> {
    let mut last = 0;
    for kept in kept {
        last = kept.number;
        events.send(Ok(event(kept, 0))).await.ok()?;
    }
    let mut live = live?;
    let mut lost = 0;
    loop {
        let received = tokio::select! {
            received = live.recv() => received,
            () = events.closed() => return None,
        };
        match received {
            Ok(next) if next.number <= last => {}
            Ok(next) => events.send(Ok(event(next, std::mem::take(&mut lost)))).await.ok()?,
            Err(broadcast::error::RecvError::Lagged(count)) => lost += count,
            Err(broadcast::error::RecvError::Closed) => return None,
        }
    }
}

fn event(event: Event, lost_before: u64) -> proto::Event {
    let Event { number, unix_ms, happened: Happened { kind, subject, text } } = event;
    proto::Event { unix_ms, number, kind: kind.to_string(), subject, text, lost_before }
}

fn sample(sample: Sample) -> proto::Sample {
    proto::Sample {
        unix_ms: sample.unix_ms,
        invocations: sample.invocations.into(),
        failures: sample.failures.into(),
        messages_in: sample.messages_in.into(),
        messages_out: sample.messages_out.into(),
        cpu_permille: sample.cpu_permille.into(),
        rss_bytes: sample.rss_bytes,
        memory_available_bytes: sample.memory_available_bytes,
        disk_free_bytes: sample.disk_free_bytes,
        mqtt_connections: sample.mqtt_connections,
        isolates_running: sample.isolates_running,
        pending: sample.pending,
        temperature_millicelsius: sample.temperature_millicelsius,
    }
}
