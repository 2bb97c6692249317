//! A command sends a token that it found on this machine only to the node of that token, over the connection on which the
//! node proved its identity.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use edgefaas_api::{Nonce, PROOF_HEADER, is_proof};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tonic::codegen::Service;
use tonic::codegen::http::{Request, StatusCode, Uri};
use tonic::transport::Channel;

use crate::connection::{CONNECT_TIMEOUT, NodeUrl};
use crate::exit::Exit;

/// The source of a found token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FoundIn {
    /// The token file of a data directory.
    File(PathBuf),
    /// The file of `edgefaas dev` in a folder of the app.
    DevFile,
}

impl std::fmt::Display for FoundIn {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::File(path) => write!(out, "{}", path.display()),
            Self::DevFile => out.write_str("`dev.json` of `edgefaas dev`"),
        }
    }
}

/// The program at the node's address did not prove that it is the node of the token.
#[derive(Debug, thiserror::Error)]
pub enum Unproven {
    /// The program gave no answer.
    #[error(
        "the program at {url} gave no proof that it is the node of the token in {found_in} ({reason}), and the token was not sent; \
         name the node with --node URL"
    )]
    NoAnswer {
        /// The node's URL.
        url: NodeUrl,
        /// The source of the token.
        found_in: FoundIn,
        /// The reason.
        reason: String,
    },
    /// The program closed the connection before it gave a proof. A node does so while others open many connections.
    #[error(
        "the program at {url} closed the connection before it proved that it is the node of the token in {found_in}, and the token \
         was not sent; too many connections without a token? Try again"
    )]
    Closed {
        /// The node's URL.
        url: NodeUrl,
        /// The source of the token.
        found_in: FoundIn,
    },
    /// An answer without a proof.
    #[error(
        "the program at {url} answered {status} and gave no proof that it is the node of the token in {found_in}, and the token \
         was not sent; an older edgefaas gives no proof: restart the node with this version, or give the token with --token \
         if you trust that program"
    )]
    NoProof {
        /// The node's URL.
        url: NodeUrl,
        /// The source of the token.
        found_in: FoundIn,
        /// The status of its answer.
        status: StatusCode,
    },
    /// The proof of another token, or of a node at another address.
    #[error(
        "the program at {url} is not the node of the token in {found_in}, and the token was not sent; name that node with --node \
         URL, or the data directory of this one with --data-dir; through a forwarded port, give the token with --token"
    )]
    WrongProof {
        /// The node's URL.
        url: NodeUrl,
        /// The source of the token.
        found_in: FoundIn,
    },
}

impl Unproven {
    /// The exit code of the command.
    pub fn exit(&self) -> Exit {
        match self {
            Self::Closed { .. } => Exit::Unreachable,
            Self::NoAnswer { .. } | Self::NoProof { .. } | Self::WrongProof { .. } => Exit::Refused,
        }
    }
}

/// Connects once, without TLS: a second connection might reach a program without a proof.
#[derive(Clone)]
pub struct OnceConnector {
    host: Arc<str>,
    port: u16,
    peer: Arc<OnceLock<SocketAddr>>,
}

impl OnceConnector {
    /// A connector for the node at `url`.
    pub fn new(url: &NodeUrl) -> Self {
        let host = url.host.trim_matches(['[', ']']).into();
        Self { host, port: url.port, peer: Arc::default() }
    }

    async fn connect(&self) -> io::Result<TcpStream> {
        if self.peer.get().is_some() {
            return Err(io::Error::new(io::ErrorKind::ConnectionAborted, "the node closed the connection"));
        }
        let stream = TcpStream::connect((&*self.host, self.port)).await?;
        stream.set_nodelay(true)?;
        self.peer
            .set(stream.peer_addr()?)
            .map_err(|_| io::Error::from(io::ErrorKind::ConnectionAborted))?;
        Ok(stream)
    }
}

impl Service<Uri> for OnceConnector {
    type Response = TokioIo<TcpStream>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    // The URI of a request is ignored: there is one node.
    fn call(&mut self, _: Uri) -> Self::Future {
        let connector = self.clone();
        Box::pin(async move { connector.connect().await.map(TokioIo::new) })
    }
}

/// Requests a proof from the program at the other end of `channel`, which `connector` connected, that it is the node with
/// `token`. The request contains nothing about the token.
///
/// # Errors
/// [`Unproven`] if no valid proof arrives within [`CONNECT_TIMEOUT`].
pub async fn ask(
    channel: &mut Channel,
    connector: &OnceConnector,
    url: &NodeUrl,
    token: &str,
    found_in: &FoundIn,
) -> Result<(), Unproven> {
    let silent =
        |reason: String| Unproven::NoAnswer { url: url.clone(), found_in: found_in.clone(), reason };
    let Some(peer) = connector.peer.get() else { return Err(silent("not connected".to_owned())) };
    let nonce = Nonce::random();
    let request = Request::get(format!("http://{}:{}{}", url.host, url.port, nonce.path()))
        .body(tonic::body::Body::empty())
        .map_err(|error| silent(error.to_string()))?;
    let answer = async {
        std::future::poll_fn(|context| channel.poll_ready(context)).await?;
        channel.call(request).await
    };
    let answer = tokio::time::timeout(CONNECT_TIMEOUT, answer).await;
    let answer = answer
        .map_err(|_| silent(format!("no answer within {} s", CONNECT_TIMEOUT.as_secs())))?
        .map_err(|error| match is_closed(&error) {
        true => Unproven::Closed { url: url.clone(), found_in: found_in.clone() },
        false => silent(crate::connection::root_cause(&error)),
    })?;
    match answer.headers().get(PROOF_HEADER) {
        Some(proof) if proof.to_str().is_ok_and(|proof| is_proof(proof, token, nonce, *peer)) => Ok(()),
        Some(_) => Err(Unproven::WrongProof { url: url.clone(), found_in: found_in.clone() }),
        None => {
            Err(Unproven::NoProof { url: url.clone(), found_in: found_in.clone(), status: answer.status() })
        }
    }
}

/// True if the other end closed the connection.
fn is_closed(error: &(dyn std::error::Error + 'static)) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, NotConnected, UnexpectedEof};
    let kinds = [BrokenPipe, ConnectionAborted, ConnectionReset, NotConnected, UnexpectedEof];
    let is_one = |error: &io::Error| kinds.contains(&error.kind());
    let mut causes = std::iter::successors(Some(error), |error| error.source());
    causes.any(|cause| cause.downcast_ref().is_some_and(is_one))
}
