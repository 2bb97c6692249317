//! Components of the world `wasi:http/proxy`: an event becomes a request, and the response the reply.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http::header::{CONTENT_TYPE, HOST};
use http::uri::{Authority, PathAndQuery};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Uri, response::Parts};
use http_body_util::{BodyExt, Full};
use tokio::sync::oneshot::{self, Receiver};
use tokio::task::coop::unconstrained;
use wasmtime::Store;
use wasmtime_wasi_http::WasiHttpView;
use wasmtime_wasi_http::p2::bindings::Proxy;
use wasmtime_wasi_http::p2::bindings::http::types::{ErrorCode, Scheme};
use wasmtime_wasi_http::p2::body::HyperOutgoingBody;

use super::state::ComponentState;
use crate::event::{Event, HttpResponse, Reply, Trigger};
use crate::outcome::{InternalError, InvocationMeta, Limits, RunError};

/// The host of requests without a valid one.
const NO_HOST: HeaderValue = HeaderValue::from_static("localhost");

/// Calls the component's handler for one event. The response is collected while the handler runs, and returned when it has
/// ended.
pub(super) async fn handle(
    store: &mut Store<ComponentState>,
    proxy: &Proxy,
    meta: &InvocationMeta,
    event: Event,
    limits: Limits,
) -> wasmtime::Result<Result<Reply, RunError>> {
    let request = match request(meta, event) {
        Ok(request) => request,
        Err(error) => return Ok(Err(InternalError::Request { detail: error.to_string() }.into())),
    };
    let (sender, receiver) = oneshot::channel();
    let mut http = store.data_mut().http();
    let request = http.new_incoming_request(Scheme::Http, request)?;
    let out = http.new_response_outparam(sender)?;
    let mut response = Collected::new(receiver, limits.reply_bytes);
    let mut answer = None;
    let mut handler = pin!(proxy.wasi_http_incoming_handler().call_handle(&mut *store, request, out));
    let ended = poll_fn(|context| {
        if let Poll::Ready(ended) = handler.as_mut().poll(context) {
            return Poll::Ready(Some(ended));
        }
        if answer.is_none() {
            match response.poll(context) {
                // Nothing that comes later makes it smaller.
                Poll::Ready(Err(error @ RunError::ReplyTooLarge { .. })) => {
                    answer = Some(Err(error));
                    return Poll::Ready(None);
                }
                Poll::Ready(collected) => answer = Some(collected),
                Poll::Pending => {}
            }
        }
        Poll::Pending
    })
    .await;
    if let Some(ended) = ended {
        ended?;
    }
    if answer.is_none() {
        // The handler has ended, so that all bytes were written.
        let rest = unconstrained(poll_fn(|context| Poll::Ready(response.poll(context)))).await;
        answer = match rest {
            Poll::Ready(collected) => Some(collected),
            Poll::Pending => None,
        };
    }
    Ok(answer.unwrap_or_else(|| Err(response.unfinished())))
}

/// An HTTP event that is not a valid request: the gateway has let it pass.
#[derive(Debug, thiserror::Error)]
enum RequestError {
    #[error("{method:?} is not a method")]
    Method { method: String },
    #[error("the request's path is none: {0}")]
    Target(#[from] http::uri::InvalidUri),
}

/// The event as a request. Other events than HTTP are a POST to `/` in the binary mode of CloudEvents' HTTP binding.
fn request(meta: &InvocationMeta, event: Event) -> Result<Request<Full<Bytes>>, RequestError> {
    let mut request = Request::new(Full::new(event.body));
    let trigger = match event.trigger {
        Trigger::Http(http) => {
            *request.method_mut() = Method::from_bytes(http.method.as_bytes())
                .map_err(|_| RequestError::Method { method: http.method })?;
            let target = match http.query.is_empty() {
                true => http.path,
                false => format!("{}?{}", http.path, http.query),
            };
            let target = PathAndQuery::from_maybe_shared(Bytes::from(target))?;
            *request.uri_mut() = Uri::from(target);
            let headers = request.headers_mut();
            headers.reserve(http.headers.len());
            for (name, value) in http.headers {
                let name = HeaderName::from_bytes(name.as_bytes());
                let value = HeaderValue::from_maybe_shared(Bytes::from(value));
                if let (Ok(name), Ok(value)) = (name, value) {
                    headers.append(name, value);
                }
            }
            let host = headers.get(HOST).map(HeaderValue::as_bytes);
            if host.is_none_or(|host| Authority::try_from(host).is_err()) {
                headers.insert(HOST, NO_HOST);
            }
            return Ok(request);
        }
        other => other,
    };
    *request.method_mut() = Method::POST;
    let headers = request.headers_mut();
    headers.insert(HOST, NO_HOST);
    headers.insert("ce-specversion", HeaderValue::from_static("1.0"));
    attribute(headers, "ce-id", &meta.id);
    attribute(headers, "ce-type", &format!("edgefaas.{}", trigger.kind()));
    // The attributes `source` and `subject` of CloudEvents.
    let (source, subject) = match trigger {
        Trigger::Http(_) => (String::new(), None),
        Trigger::Mqtt(message) => {
            if let Some(value) = message.content_type.and_then(|text| HeaderValue::try_from(text).ok()) {
                headers.insert(CONTENT_TYPE, value);
            }
            ("/mqtt".to_owned(), Some(message.topic))
        }
        Trigger::Cron(tick) => {
            attribute(headers, "ce-scheduledunixms", &tick.scheduled_unix_ms.to_string());
            ("/cron".to_owned(), Some(tick.schedule))
        }
        Trigger::Object(change) => (format!("/objects/{}", change.object), Some(change.field)),
        Trigger::Call(call) => match call.caller {
            Some(caller) => (format!("/functions/{caller}"), None),
            None => ("/call".to_owned(), None),
        },
        Trigger::Workflow(step) => {
            (format!("/workflows/{}/{}", step.workflow, step.instance), Some(step.task))
        }
    };
    attribute(headers, "ce-source", &source);
    if let Some(subject) = subject {
        attribute(headers, "ce-subject", &subject);
    }
    Ok(request)
}

/// A CloudEvents attribute as a header: spaces, `"`, `%` and all but printable ASCII are percent-encoded (HTTP binding,
/// section 3.1.3.2).
fn attribute(headers: &mut HeaderMap, name: &'static str, value: &str) {
    use std::fmt::Write;
    let mut encoded = String::with_capacity(value.len());
    for byte in value.bytes() {
        match byte {
            b'"' | b'%' => _ = write!(encoded, "%{byte:02X}"),
            0x21..=0x7e => encoded.push(char::from(byte)),
            _ => _ = write!(encoded, "%{byte:02X}"),
        }
    }
    if let Ok(value) = HeaderValue::try_from(encoded) {
        headers.insert(name, value);
    }
}

/// A response that is being collected.
struct Collected {
    given: Receiver<Result<http::Response<HyperOutgoingBody>, ErrorCode>>,
    response: Option<(Parts, HyperOutgoingBody)>,
    // Most bodies come in one piece, and need no copy.
    first: Bytes,
    rest: BytesMut,
    limit_bytes: usize,
}

impl Collected {
    fn new(
        given: Receiver<Result<http::Response<HyperOutgoingBody>, ErrorCode>>,
        limit_bytes: usize,
    ) -> Self {
        Self { given, response: None, first: Bytes::new(), rest: BytesMut::new(), limit_bytes }
    }

    /// Takes the bytes written so far. Ready with the whole response.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<Reply, RunError>> {
        if self.response.is_none() {
            match ready!(Pin::new(&mut self.given).poll(context)) {
                Ok(Ok(response)) => self.response = Some(response.into_parts()),
                Ok(Err(code)) => return Poll::Ready(Err(failed(code))),
                Err(_) => return Poll::Ready(Err(self.unfinished())),
            }
        }
        let Some((_, body)) = &mut self.response else { return Poll::Pending };
        loop {
            let mut frame = body.frame();
            let data = match ready!(Pin::new(&mut frame).poll(context)) {
                None => return Poll::Ready(self.reply()),
                Some(Err(_)) => return Poll::Ready(Err(self.unfinished())),
                // Trailers are left out.
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => data,
                    Err(_) => continue,
                },
            };
            let actual_bytes = self.first.len() + self.rest.len() + data.len();
            if actual_bytes > self.limit_bytes {
                let limit_bytes = self.limit_bytes;
                return Poll::Ready(Err(RunError::ReplyTooLarge { actual_bytes, limit_bytes }));
            }
            if actual_bytes == data.len() {
                self.first = data;
                continue;
            }
            self.rest.extend_from_slice(&std::mem::take(&mut self.first));
            self.rest.extend_from_slice(&data);
        }
    }

    fn reply(&mut self) -> Result<Reply, RunError> {
        let Some((parts, _)) = self.response.take() else { return Err(self.unfinished()) };
        let mut headers = Vec::with_capacity(parts.headers.len());
        for (name, value) in &parts.headers {
            let Ok(value) = std::str::from_utf8(value.as_bytes()) else {
                let reason = format!("the value of header {:?} is not text", name.as_str());
                return Err(RunError::InvalidReply { reason });
            };
            headers.push((name.as_str().to_owned(), value.to_owned()));
        }
        let body = match self.rest.is_empty() {
            true => std::mem::take(&mut self.first),
            false => std::mem::take(&mut self.rest).freeze(),
        };
        Ok(Reply::Http(HttpResponse { status: parts.status.as_u16(), headers, body }))
    }

    /// The error of a response that is not complete when the handler has ended.
    fn unfinished(&self) -> RunError {
        let reason = match self.response {
            None => "the handler set no response (response-outparam.set)",
            Some(_) => {
                "its body was not finished (outgoing-body.finish), or is not as long as its content-length says"
            }
        };
        RunError::InvalidReply { reason: reason.to_owned() }
    }
}

fn failed(code: ErrorCode) -> RunError {
    let message = match code {
        ErrorCode::InternalError(Some(text)) => text,
        code => format!("the handler answered with the error {code:?}"),
    };
    RunError::Failed { message, location: None, stack: None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{CronTick, DirectCall, HttpRequest, MqttMessage};

    fn made(trigger: Trigger) -> Request<Full<Bytes>> {
        let meta = InvocationMeta { id: "inv".into(), function: "f".into(), deadline_unix_ms: 0 };
        request(&meta, Event { trigger, body: Bytes::from_static(b"body") }).unwrap()
    }

    fn header<'a>(request: &'a Request<Full<Bytes>>, name: &str) -> &'a str {
        request.headers().get(name).map_or("", |value| value.to_str().unwrap())
    }

    #[test]
    fn a_request_stays_what_it_is() {
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let made = made(Trigger::Http(HttpRequest {
            method: "PROPFIND".into(),
            path: "/a%20b/".into(),
            query: "c=d&e".into(),
            headers: vec![pair("host", "node.example:8080"), pair("x-a", "1"), pair("x-a", "2")],
        }));
        assert_eq!(made.method(), "PROPFIND");
        assert_eq!(made.uri().path_and_query().unwrap(), "/a%20b/?c=d&e");
        assert_eq!(header(&made, "host"), "node.example:8080");
        assert_eq!(made.headers().get_all("x-a").iter().count(), 2);
    }

    #[test]
    fn a_host_that_is_none_is_replaced() {
        let headers = vec![("host".to_owned(), "a b".to_owned())];
        let http =
            HttpRequest { method: "GET".into(), path: "/".into(), headers, ..HttpRequest::default() };
        assert_eq!(header(&made(Trigger::Http(http)), "host"), "localhost");
    }

    #[test]
    fn other_events_are_cloud_events() {
        let call = made(Trigger::Call(DirectCall { caller: Some("other".into()) }));
        assert_eq!((call.method(), call.uri().path()), (&Method::POST, "/"));
        assert_eq!(header(&call, "ce-specversion"), "1.0");
        assert_eq!(header(&call, "ce-id"), "inv");
        assert_eq!(header(&call, "ce-type"), "edgefaas.call");
        assert_eq!(header(&call, "ce-source"), "/functions/other");
        let mqtt = made(Trigger::Mqtt(MqttMessage {
            topic: "größe/50%".into(),
            content_type: Some("application/json".into()),
            ..MqttMessage::default()
        }));
        assert_eq!(header(&mqtt, "ce-subject"), "gr%C3%B6%C3%9Fe/50%25");
        assert_eq!(header(&mqtt, "content-type"), "application/json");
        let cron = made(Trigger::Cron(CronTick { schedule: "* * * * *".into(), scheduled_unix_ms: 7 }));
        assert_eq!(header(&cron, "ce-type"), "edgefaas.cron");
        assert_eq!(header(&cron, "ce-subject"), "*%20*%20*%20*%20*");
        assert_eq!(header(&cron, "ce-scheduledunixms"), "7");
    }
}
