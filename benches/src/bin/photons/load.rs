//! Plays a trace: every call is sent when it is due, whatever has become of those before.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::Context;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{HeaderMap, Request};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tokio::task::JoinSet;

use crate::functions;
use crate::trace::Trace;

/// Longer than any function may take.
const PATIENCE: Duration = Duration::from_secs(90);

/// What became of a call.
#[derive(Debug, Clone)]
pub struct Answer {
    /// Which function.
    pub function: usize,
    /// How long after it was due it was sent: the load's own delay.
    pub late: Duration,
    /// From sending it to the end of the answer.
    pub latency: Duration,
    /// How long its instance took to start, in milliseconds, if one was started and the server says so.
    pub start_ms: Option<f64>,
    /// How long it waited for its turn and for code, in milliseconds, if the server says so.
    pub queue_ms: Option<f64>,
    /// Why it failed.
    pub failure: Option<String>,
}

type Sender = Client<HttpConnector, Full<Bytes>>;

/// Sends all calls of `trace` to `server`, and waits for all answers. They are in the order of the calls' times.
pub fn play(trace: &Trace, server: SocketAddr, url: &str) -> anyhow::Result<Vec<Answer>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        let sender = Client::builder(TokioExecutor::new()).pool_timer(TokioTimer::new()).build(connector);
        let begun = Instant::now();
        let mut calls = JoinSet::new();
        for (number, call) in trace.calls.iter().enumerate() {
            tokio::time::sleep_until((begun + call.at).into()).await;
            let function = &trace.functions[call.function];
            let request = Request::post(format!("http://{server}/fn/{}", function.name))
                .body(Full::from(functions::body(function, url)))?;
            let (sender, kind, call) = (sender.clone(), function.kind, *call);
            calls.spawn(async move {
                let sent = Instant::now();
                let answered = tokio::time::timeout(PATIENCE, send(&sender, request)).await;
                let latency = sent.elapsed();
                let late = sent.duration_since(begun).saturating_sub(call.at);
                let mut answer = Answer {
                    function: call.function,
                    late,
                    latency,
                    start_ms: None,
                    queue_ms: None,
                    failure: None,
                };
                match answered {
                    Ok(Ok((200, headers, body))) if functions::is_right(kind, &body) => {
                        answer.start_ms = timing(&headers, "start");
                        answer.queue_ms = timing(&headers, "queue");
                    }
                    Ok(Ok((status, _, body))) => {
                        answer.failure = Some(format!("{status} {}", String::from_utf8_lossy(&body)));
                    }
                    Ok(Err(error)) => answer.failure = Some(format!("{error:#}")),
                    Err(_) => answer.failure = Some(format!("no answer within {PATIENCE:?}")),
                }
                (number, answer)
            });
        }
        let mut answers = Vec::with_capacity(trace.calls.len());
        while let Some(answer) = calls.join_next().await {
            answers.push(answer?);
        }
        answers.sort_by_key(|(number, _)| *number);
        Ok(answers.into_iter().map(|(_, answer)| answer).collect())
    })
}

async fn send(sender: &Sender, request: Request<Full<Bytes>>) -> anyhow::Result<(u16, HeaderMap, Bytes)> {
    let response = sender.request(request).await.context("the request failed")?;
    let (head, body) = response.into_parts();
    Ok((head.status.as_u16(), head.headers, body.collect().await?.to_bytes()))
}

/// An entry of `Server-Timing`, in milliseconds.
fn timing(headers: &HeaderMap, name: &str) -> Option<f64> {
    let text = headers.get("server-timing")?.to_str().ok()?;
    let mut entries = text.split(',').filter_map(|entry| entry.trim().split_once(";dur="));
    entries.find(|(entry, _)| *entry == name)?.1.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_timing_is_read() {
        let mut headers = HeaderMap::new();
        headers.insert("server-timing", "queue;dur=0.020, start;dur=1.500".parse().unwrap());
        assert_eq!(timing(&headers, "start"), Some(1.5));
        assert_eq!(timing(&headers, "exec"), None);
    }
}
