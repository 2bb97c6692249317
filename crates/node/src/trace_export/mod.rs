//! Export of spans to an OpenTelemetry collector: OTLP 1.x over gRPC, or over HTTP in JSON or protobuf.

mod answer;
mod attributes;
mod batches;
pub(crate) mod config;
mod grpc;
mod http;
mod json;
mod protobuf;
mod reports;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use edgefaas_functions::outgoing::{Caller, HttpClient, ResponseLimit};
use edgefaas_functions::trace::{TraceSpan, Traces};
use edgefaas_manifest::HttpPattern;
use edgefaas_platform::Clock;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::answer::{Attempt, ExportError, PartialSuccess, Retry};
use self::batches::batches;
use self::config::{Collector, OtlpProtocol};
use self::reports::Reports;

/// Time for which spans are collected before they are sent together.
const COLLECT: Duration = Duration::from_millis(500);
/// Maximum number of times that the same spans are sent.
const ATTEMPTS: u32 = 6;
/// Maximum time of one attempt, as the default of `OTEL_EXPORTER_OTLP_TIMEOUT`.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(10);
/// Time before the second attempt; it doubles before each further one.
const BACKOFF: Duration = Duration::from_millis(500);
/// Maximum time that a collector can ask for with `Retry-After` or `RetryInfo`.
const MAX_BACKOFF: Duration = Duration::from_secs(30);

/// Sends new spans to the collector until `cancel` fires, and then those that are left. If it is overloaded or cannot be reached, they are sent again, up to
/// [`ATTEMPTS`] times. Meanwhile new spans wait among those that the node keeps, so the newest `traces.spans` of them wait at
/// most, and no call waits.
pub(crate) async fn run(
    traces: Arc<Traces>,
    client: Arc<HttpClient>,
    collector: Collector,
    clock: Clock,
    cancel: CancellationToken,
) {
    let url = collector.url.to_string();
    let Some(mut exporter) = Exporter::new(client, collector, clock) else {
        tracing::error!(collector = url, "traces.otlp is not a URL of a server; spans are not exported");
        return;
    };
    let mut reports = Reports::new(url);
    loop {
        tokio::select! {
            () = cancel.cancelled() => {}
            () = traces.added() => {}
        }
        let _ = tokio::time::timeout(COLLECT, cancel.cancelled()).await;
        // Looked at before the spans are taken: those that come later are for the next turn.
        let is_last = cancel.is_cancelled();
        for spans in batches(&traces.take_unexported()) {
            let exported = exporter.export(spans, &cancel).await;
            reports.report(spans.len(), exported, Instant::now());
        }
        if is_last {
            return;
        }
    }
}

/// Sends spans by one of the protocols.
enum Exporter {
    Http(http::HttpExporter),
    Grpc(grpc::GrpcExporter),
}

impl Exporter {
    /// `None` if the URL has no host that requests can be sent to.
    fn new(client: Arc<HttpClient>, Collector { url, protocol }: Collector, clock: Clock) -> Option<Self> {
        let server = Arc::from(vec![pattern_of(&url)?]);
        let caller = Caller::new("the export of traces", server, ResponseLimit::Fixed);
        let over_http = |client, caller, encoding| {
            Self::Http(http::HttpExporter::new(client, caller, &url, encoding, clock))
        };
        Some(match protocol {
            OtlpProtocol::HttpJson => over_http(client, caller, http::Encoding::Json),
            OtlpProtocol::HttpProtobuf => over_http(client, caller, http::Encoding::Protobuf),
            OtlpProtocol::Grpc => Self::Grpc(grpc::GrpcExporter::new(&client, &caller, url)?),
        })
    }

    /// Sends spans until they are accepted or the export fails permanently, up to [`ATTEMPTS`] times.
    async fn export(
        &mut self,
        spans: &[TraceSpan],
        cancel: &CancellationToken,
    ) -> Result<PartialSuccess, ExportError> {
        let body = match self {
            Self::Http(http) => http.body(spans),
            Self::Grpc(_) => protobuf::document(spans),
        };
        let mut wait = BACKOFF;
        let mut number = 1;
        loop {
            let (error, retry) = match self.attempt(body.clone()).await {
                Attempt::Accepted(partial) => return Ok(partial),
                Attempt::Failed(error, retry) => (error, retry),
            };
            let pause = match retry {
                Retry::Never => return Err(error),
                Retry::Later => wait,
                Retry::After(asked) => asked.min(MAX_BACKOFF),
            };
            if number == ATTEMPTS || cancel.is_cancelled() {
                return Err(error);
            }
            // When the node stops, the last attempt follows immediately.
            let _ = tokio::time::timeout(pause, cancel.cancelled()).await;
            wait *= 2;
            number += 1;
        }
    }

    async fn attempt(&mut self, body: Bytes) -> Attempt {
        let answer = async {
            match self {
                Self::Http(http) => http.send(body).await,
                Self::Grpc(grpc) => grpc.send(body).await,
            }
        };
        let timed_out = |_| Attempt::Failed(ExportError::TimedOut, Retry::Later);
        tokio::time::timeout(ATTEMPT_TIMEOUT, answer).await.unwrap_or_else(timed_out)
    }
}

fn pattern_of(url: &url::Url) -> Option<HttpPattern> {
    let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
    format!("{}://{}{port}", url.scheme(), url.host_str()?).parse().ok()
}
