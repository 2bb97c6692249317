//! Requests of parts of the node over HTTP/2 alone, without TLS by prior knowledge (RFC 9113, section 3.3): gRPC.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use hyper::body::{Body, Incoming};
use hyper_util::client::legacy::Client;
use tower_service::Service;
use url::Url;

use super::HttpClient;
use super::caller::Caller;
use super::connector::{Connector, http2_connections};
use super::error::FetchError;

/// Connections to one server over HTTP/2. Addresses and certificates are checked as for [`HttpClient::fetch`]; redirections are
/// not followed. A request has no time limit; only opening a connection (10 s) and silence of a connection (30 s) have one.
pub struct Http2<B> {
    server: Url,
    connections: Client<Connector, B>,
}

impl HttpClient {
    /// No connection yet; the first request opens it. `server` is in errors.
    pub fn http2<B>(&self, caller: &Caller, server: Url) -> Http2<B>
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let connections =
            http2_connections(caller.permissions.clone(), self.lookups.clone(), self.tls.clone());
        Http2 { server, connections }
    }
}

impl<B> Clone for Http2<B> {
    fn clone(&self) -> Self {
        Self { server: self.server.clone(), connections: self.connections.clone() }
    }
}

impl<B> Service<Request<B>> for Http2<B>
where
    B: Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    type Response = Response<Incoming>;
    type Error = FetchError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, FetchError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), FetchError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (answer, server) = (self.connections.request(request), self.server.clone());
        Box::pin(async move { answer.await.map_err(|error| FetchError::failed(&server, &error)) })
    }
}
