//! OTLP over gRPC.

use std::error::Error;

use edgefaas_functions::outgoing::{Caller, FetchError, Http2, HttpClient};
use http::Uri;
use http::uri::PathAndQuery;
use prost::Message as _;
use prost::bytes::{BufMut, Bytes};
use tonic::body::Body;
use tonic::client::Grpc;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::{Code, Request, Status};
use tonic_types::StatusExt;
use url::Url;

use super::ATTEMPT_TIMEOUT;
use super::answer::{Attempt, ExportError, Message, Retry};
use super::protobuf::ExportTraceServiceResponse;

const METHOD: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";
/// Maximum size of an answer, in bytes.
const MAX_ANSWER_BYTES: usize = 64 << 10;

/// Sends spans by `TraceService/Export`.
pub(super) struct GrpcExporter(Grpc<Http2<Body>>);

impl GrpcExporter {
    /// `None` if the URL is not one of a server.
    pub fn new(client: &HttpClient, caller: &Caller, collector: Url) -> Option<Self> {
        let origin: Uri = collector.as_str().parse().ok()?;
        let grpc = Grpc::with_origin(client.http2(caller, collector), origin);
        Some(Self(grpc.max_decoding_message_size(MAX_ANSWER_BYTES)))
    }

    pub async fn send(&mut self, body: Bytes) -> Attempt {
        let mut request = Request::new(body);
        request.set_timeout(ATTEMPT_TIMEOUT);
        // [`Http2`] is always ready.
        match self.0.unary(request, PathAndQuery::from_static(METHOD), EncodedRequests).await {
            Ok(answer) => Attempt::Accepted(answer.into_inner().into()),
            Err(status) => failed(&status),
        }
    }
}

/// Sends requests that are encoded already, since the same one may be sent several times.
struct EncodedRequests;

impl Codec for EncodedRequests {
    type Encode = Bytes;
    type Decode = ExportTraceServiceResponse;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for EncodedRequests {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, body: Bytes, out: &mut EncodeBuf<'_>) -> Result<(), Status> {
        out.put(body);
        Ok(())
    }
}

impl Decoder for EncodedRequests {
    type Item = ExportTraceServiceResponse;
    type Error = Status;

    fn decode(&mut self, answer: &mut DecodeBuf<'_>) -> Result<Option<Self::Item>, Status> {
        let answer = ExportTraceServiceResponse::decode(answer);
        answer.map(Some).map_err(|error| Status::internal(error.to_string()))
    }
}

/// The codes of OTLP after which a client tries again (section "Failures").
fn failed(status: &Status) -> Attempt {
    if let Some(FetchError::Failed { server, reason, cause }) = status.source().and_then(fetch_error) {
        let error = FetchError::Failed { server: server.clone(), reason: reason.clone(), cause: *cause };
        return Attempt::Failed(error.into(), Retry::Later);
    }
    let asked = status.get_details_retry_info().and_then(|info| info.retry_delay);
    let retry = match (status.code(), asked) {
        (
            Code::Cancelled
            | Code::DeadlineExceeded
            | Code::Aborted
            | Code::OutOfRange
            | Code::Unavailable
            | Code::DataLoss
            | Code::ResourceExhausted,
            Some(asked),
        ) => Retry::After(asked),
        (
            Code::Cancelled
            | Code::DeadlineExceeded
            | Code::Aborted
            | Code::OutOfRange
            | Code::Unavailable
            | Code::DataLoss,
            None,
        ) => Retry::Later,
        _ => Retry::Never,
    };
    let message = Message::new(status.message());
    Attempt::Failed(ExportError::Status { code: status.code(), message }, retry)
}

/// The error of the connection in a chain of errors.
fn fetch_error<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a FetchError> {
    std::iter::successors(Some(error), |error| (*error).source()).find_map(|error| error.downcast_ref())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tonic_types::ErrorDetails;

    use super::*;

    fn retry_of(status: &Status) -> Retry {
        match failed(status) {
            Attempt::Failed(ExportError::Status { code, .. }, retry) if code == status.code() => retry,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn only_some_codes_are_tried_again() {
        let again = [
            Code::Cancelled,
            Code::DeadlineExceeded,
            Code::Aborted,
            Code::OutOfRange,
            Code::Unavailable,
            Code::DataLoss,
        ];
        for code in (0..17).map(Code::from_i32) {
            let later = again.contains(&code);
            let expected = if later { Retry::Later } else { Retry::Never };
            assert_eq!(retry_of(&Status::new(code, "x")), expected, "{code:?}");
            let asked = Duration::from_millis(1500);
            let details = ErrorDetails::with_retry_info(Some(asked));
            let expected = match later || code == Code::ResourceExhausted {
                true => Retry::After(asked),
                false => Retry::Never,
            };
            assert_eq!(retry_of(&Status::with_error_details(code, "x", details)), expected, "{code:?}");
        }
    }
}
