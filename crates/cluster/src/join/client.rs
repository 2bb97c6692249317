//! The joining node's side: dials the issuer, sends the token, checks the reply.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{AsyncWriteExt, StreamExt};
use libp2p::swarm::dial_opts::DialOpts;
use libp2p::swarm::{DialError, StreamUpgradeError, SwarmEvent};
use libp2p::{Stream, Swarm};
use prost::Message;

use super::protocol::{JoinRefusal, JoinReply, MAX_REPLY_BYTES, RequestWire};
use super::token::Token;
use super::unreachable::Unreachable;
use crate::certificate::check_name;
use crate::network::behaviour::{Channels, NoStream};
use crate::network::frame::{self, ReadError};
use crate::network::swarm::{SetupError, swarm};
use crate::{Certificate, CertificateError, ClusterPublicKey, Identity, Membership};

/// Dials of the issuer if connections break before the request was sent.
const MAX_DIALS: u32 = 3;

/// The identity that a joining node asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JoinRequest {
    /// The node's name; no other node may have it.
    pub name: String,
    /// The node's number if it has one already; else the issuer chooses one.
    pub node_id: Option<u64>,
}

/// The reason why a node did not become a member.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// The issuer could not be reached, or another peer answered.
    #[error("the token cannot be used: {reason}")]
    Unreachable {
        /// The cause.
        #[from]
        reason: Unreachable,
    },
    /// libp2p could not be set up.
    #[error(transparent)]
    Setup(#[from] SetupError),
    /// The issuer has no open token.
    #[error(
        "the token has expired, or the node that made it was started again since; make a new one there with \
         `edgefaas cluster token`"
    )]
    Closed,
    /// The connection broke or the issuer was too slow.
    #[error(
        "the node that made the token did not answer: {reason}; try again, with a new token if this one is reported as used"
    )]
    NoAnswer {
        /// The cause.
        reason: NoAnswer,
    },
    /// The issuer does not know the token.
    #[error(
        "the node that made the token does not know it: a part of it is wrong, or that node was started again since; make \
         a new one there with `edgefaas cluster token`"
    )]
    WrongToken,
    /// A node has joined with this token.
    #[error(
        "a node has joined with this token already; make a new one with `edgefaas cluster token` on the node that made it"
    )]
    UsedToken,
    /// The token has expired.
    #[error("the token has expired; make a new one with `edgefaas cluster token` on the node that made it")]
    ExpiredToken,
    /// Too many wrong tokens were tried at the issuer.
    #[error("too many wrong tokens were tried at the node that made the token; try again in a minute")]
    TooManyAttempts,
    /// Another member has the name.
    #[error("another node of the cluster is named `{name}`; choose another name")]
    NameTaken {
        /// The name.
        name: String,
    },
    /// Another member has the number.
    #[error("another node of the cluster has the number {node_id}; start with an empty data folder")]
    NodeIdTaken {
        /// The number.
        node_id: u64,
    },
    /// The cluster has revoked this node's key.
    #[error(
        "the key of this node was revoked in the cluster and is never accepted again; stop the node, move `cluster/` \
         out of its data directory so that it makes a new key, start it and join with the same token"
    )]
    Revoked,
    /// The name is invalid.
    #[error(transparent)]
    BadName(CertificateError),
    /// The issuer's reply is invalid.
    #[error(
        "the answer of the node that made the token is wrong: {reason}; update the older of the two nodes"
    )]
    BadAnswer {
        /// The cause.
        #[source]
        reason: WrongReply,
    },
}

/// The reason why the issuer did not answer.
#[derive(Debug, thiserror::Error)]
pub enum NoAnswer {
    /// The time limit of the call was reached.
    #[error("it took too long")]
    TimedOut,
    /// The issuer closed the connection before the request was sent.
    #[error("it closed the connection")]
    Closed,
    /// The stream could not be opened.
    #[error(transparent)]
    NoStream(Box<StreamUpgradeError<Infallible>>),
    /// The request could not be written.
    #[error(transparent)]
    Write(std::io::Error),
    /// The reply could not be read.
    #[error(transparent)]
    Read(ReadError),
}

/// The reason why a reply is invalid.
#[derive(Debug, thiserror::Error)]
pub enum WrongReply {
    /// The message is not a reply.
    #[error(transparent)]
    Undecodable(#[from] prost::DecodeError),
    /// The issuer could not read the request.
    #[error("it could not read the request")]
    RequestUnread,
    /// The issuer refused with an unknown code.
    #[error("it refused with code {code}")]
    UnknownRefusal {
        /// The code.
        code: u32,
    },
    /// The cluster's key is invalid.
    #[error("the cluster's key is none")]
    BadClusterKey,
    /// The reply is that of another cluster.
    #[error("the token is of another cluster")]
    OtherCluster,
    /// The certificate is that of another node.
    #[error("the certificate is of another node")]
    OtherNode,
    /// A certificate or revocation is invalid.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
}

/// Becomes a member of the token's cluster: dials the issuer and returns its view of the cluster, own certificate
/// included. Takes at most `timeout`. Runs on a Tokio runtime. If it is cancelled, the token may be used up.
///
/// # Errors
/// `JoinError`; after `NoAnswer` the token may be used up.
// Boxed: the crate that polls a future compiles it, and this one contains libp2p.
pub fn join<'a>(
    identity: &'a Identity,
    token: &'a Token,
    request: &'a JoinRequest,
    timeout: Duration,
) -> Pin<Box<dyn Future<Output = Result<Membership, JoinError>> + Send + 'a>> {
    Box::pin(dial_and_ask(identity, token, request, timeout))
}

async fn dial_and_ask(
    identity: &Identity,
    token: &Token,
    request: &JoinRequest,
    timeout: Duration,
) -> Result<Membership, JoinError> {
    check_name(&request.name).map_err(JoinError::BadName)?;
    let asked = tokio::time::timeout(timeout, ask(identity, token, request));
    let answer = asked.await.map_err(|_| JoinError::NoAnswer { reason: NoAnswer::TimedOut })??;
    let reply = JoinReply::decode(answer.as_slice()).map_err(wrong)?;
    read_reply(reply, identity, token, request)
}

async fn ask(identity: &Identity, token: &Token, request: &JoinRequest) -> Result<Vec<u8>, JoinError> {
    let mut dials = 1;
    let (mut swarm, mut stream) = loop {
        match open(identity, token).await {
            Err(JoinError::NoAnswer { reason }) if dials < MAX_DIALS => {
                tracing::debug!(%reason, dials, "the connection to the issuer broke");
                dials += 1;
            }
            opened => break opened?,
        }
    };
    let wire = RequestWire {
        secret: token.secret().to_vec(),
        name: request.name.clone(),
        node_id: request.node_id.unwrap_or(0),
    };
    let talk = async {
        (frame::write(&mut stream, frame::Kind::Data, &wire.encode_to_vec()).await)
            .map_err(|error| JoinError::NoAnswer { reason: NoAnswer::Write(error) })?;
        let read = frame::read(&mut stream, MAX_REPLY_BYTES, |_| ()).await;
        let (_, body) = read.map_err(|error| JoinError::NoAnswer { reason: NoAnswer::Read(error) })?;
        let _ = stream.close().await;
        Ok(body.to_vec())
    };
    tokio::pin!(talk);
    loop {
        tokio::select! {
            answer = &mut talk => return answer,
            _ = swarm.select_next_some() => {}
        }
    }
}

/// A connection to the issuer with an unused stream.
async fn open(identity: &Identity, token: &Token) -> Result<(Swarm<Channels>, Stream), JoinError> {
    let (issuer, addresses) = (token.issuer(), token.addresses().to_vec());
    let unreachable = |reason: DialError| JoinError::Unreachable { reason: reason.into() };
    let mut swarm = swarm(identity, Arc::default(), Arc::default(), || Ok(Channels::joining()))?;
    let options = DialOpts::peer_id(issuer).addresses(addresses).allocate_new_port().build();
    swarm.dial(options).map_err(unreachable)?;
    loop {
        let opened = match swarm.select_next_some().await {
            SwarmEvent::Behaviour(opened) => opened,
            SwarmEvent::OutgoingConnectionError { error, .. } => {
                return Err(unreachable(error));
            }
            SwarmEvent::ConnectionClosed { .. } => {
                return Err(JoinError::NoAnswer { reason: NoAnswer::Closed });
            }
            _ => continue,
        };
        return match opened.stream {
            Ok(first) => Ok((swarm, first.stream)),
            Err(NoStream::Unsupported) => Err(JoinError::Closed),
            Err(NoStream::TimedOut) => Err(JoinError::NoAnswer { reason: NoAnswer::TimedOut }),
            Err(NoStream::Failed(reason)) => {
                Err(JoinError::NoAnswer { reason: NoAnswer::NoStream(reason) })
            }
        };
    }
}

fn read_reply(
    reply: JoinReply,
    identity: &Identity,
    token: &Token,
    request: &JoinRequest,
) -> Result<Membership, JoinError> {
    if reply.code != 0 {
        return Err(refusal_error(reply.code, request));
    }
    let cluster =
        ClusterPublicKey::from_bytes(&reply.cluster).map_err(|_| wrong(WrongReply::BadClusterKey))?;
    if cluster.id() != token.cluster() {
        return Err(wrong(WrongReply::OtherCluster));
    }
    let certificate = Certificate::decode(&reply.certificate).map_err(wrong)?;
    if certificate.peer_id() != identity.peer_id() {
        return Err(wrong(WrongReply::OtherNode));
    }
    let mut membership = Membership::new(certificate, cluster).map_err(wrong)?;
    membership.learn_revocations(&reply.revocations, &reply.revocation_lists).map_err(wrong)?;
    for member in &reply.members {
        membership.take_in(token.issuer(), member).map_err(wrong)?;
    }
    Ok(membership)
}

fn wrong(reason: impl Into<WrongReply>) -> JoinError {
    JoinError::BadAnswer { reason: reason.into() }
}

fn refusal_error(code: u32, request: &JoinRequest) -> JoinError {
    match JoinRefusal::from_code(code) {
        JoinRefusal::Malformed => wrong(WrongReply::RequestUnread),
        JoinRefusal::WrongToken => JoinError::WrongToken,
        JoinRefusal::UsedToken => JoinError::UsedToken,
        JoinRefusal::ExpiredToken => JoinError::ExpiredToken,
        JoinRefusal::TooManyAttempts => JoinError::TooManyAttempts,
        JoinRefusal::NameTaken => JoinError::NameTaken { name: request.name.clone() },
        JoinRefusal::NodeIdTaken => JoinError::NodeIdTaken { node_id: request.node_id.unwrap_or(0) },
        JoinRefusal::Revoked => JoinError::Revoked,
        JoinRefusal::Unknown => wrong(WrongReply::UnknownRefusal { code }),
    }
}
