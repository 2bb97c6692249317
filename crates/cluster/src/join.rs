//! How a node becomes a member: it trades a one-time token for a certificate on `/edgefaas/join/1`.
//!
//! The token names the issuer's peer id, so the newcomer knows whom it talks to, and a secret that goes over
//! the encrypted channel, so the issuer knows that the newcomer was asked in.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{AsyncReadExt, AsyncWriteExt, StreamExt};
use libp2p::swarm::SwarmEvent;
use libp2p::swarm::dial_opts::DialOpts;
use libp2p::{Multiaddr, PeerId, Stream, Swarm};
use prost::Message;
use tokio::sync::mpsc;

use crate::certificate::check_name;
use crate::known_addresses::encode_addresses;
use crate::membership::{Member, MemberWire};
use crate::transport::{Channels, Event, NoStream, Shared, count, frame, swarm};
use crate::{
    Certificate, CertificateError, ClusterPublicKey, Identity, Membership, NewCertificate, Revocation,
    RevocationList,
};

mod desk;
mod token;

pub(crate) use desk::Desk;
pub use token::{Token, TokenError};

const MAX_REQUEST_BYTES: usize = 1_024;
/// A cluster of 1,024 members with 8 addresses each fits.
const MAX_REPLY_BYTES: usize = 2 * 1_024 * 1_024;
/// Every refusal takes this long, whatever its reason.
const REFUSAL_DELAY: Duration = Duration::from_millis(300);
const SERVE_TIMEOUT: Duration = Duration::from_secs(10);
/// So often the issuer is dialled if connections break before anything was said.
const TRIES: u32 = 3;

/// What a newcomer would like to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JoinRequest {
    /// The node's name; no other node may have it.
    pub name: String,
    /// The node's number if it has one already; else the issuer gives it one.
    pub node_id: Option<u64>,
}

/// Why a node did not become a member.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// The issuer could not be reached, or another peer answered.
    #[error("no connection to {issuer} at {addresses:?}: {reason}; check that it runs and can be reached")]
    Unreachable {
        /// The peer that made the token.
        issuer: Box<PeerId>,
        /// Where it was looked for.
        addresses: Vec<Multiaddr>,
        /// What went wrong, for each address.
        reason: String,
    },
    /// The issuer has no token open.
    #[error("{issuer} lets nobody in just now: the token has expired; ask for a new one")]
    Closed {
        /// The peer that made the token.
        issuer: PeerId,
    },
    /// The connection broke or the issuer was too slow.
    #[error("the issuer did not answer: {reason}; ask for a new token if this one is reported as used")]
    NoAnswer {
        /// What went wrong.
        reason: String,
    },
    /// The issuer does not know the token.
    #[error("the token is wrong; copy it again or ask for a new one")]
    WrongToken,
    /// Someone has joined with this token.
    #[error("the token has been used; ask for a new one")]
    UsedToken,
    /// The token was good once.
    #[error("the token has expired; ask for a new one")]
    ExpiredToken,
    /// Too many wrong tokens were tried at the issuer.
    #[error("too many wrong tokens were tried; try again in a minute")]
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
    /// The name is none.
    #[error(transparent)]
    BadName(CertificateError),
    /// The issuer sent what cannot be.
    #[error("the issuer's answer is wrong: {reason}; update the older of the two nodes")]
    BadAnswer {
        /// What is wrong with it.
        reason: String,
    },
}

/// Becomes a member of the token's cluster: dials the issuer and comes back with what it knows of the
/// cluster, own certificate included. Takes at most `timeout`. Runs on a Tokio runtime.
pub async fn join(
    identity: &Identity,
    token: &Token,
    request: &JoinRequest,
    timeout: Duration,
) -> Result<Membership, JoinError> {
    check_name(&request.name).map_err(JoinError::BadName)?;
    let asked = tokio::time::timeout(timeout, ask(identity, token, request));
    let answer = asked.await.map_err(|_| JoinError::NoAnswer { reason: "it took too long".into() })??;
    let reply = JoinReply::decode(answer.as_slice())
        .map_err(|error| JoinError::BadAnswer { reason: error.to_string() })?;
    read_reply(reply, identity, token, request)
}

async fn ask(identity: &Identity, token: &Token, request: &JoinRequest) -> Result<Vec<u8>, JoinError> {
    let mut tries = 1;
    let (mut swarm, mut stream) = loop {
        match open(identity, token).await {
            Err(JoinError::NoAnswer { reason }) if tries < TRIES => {
                tracing::debug!(reason, tries, "the connection to the issuer broke");
                tries += 1;
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
        let no_answer = |reason: String| JoinError::NoAnswer { reason };
        (frame::write(&mut stream, frame::Kind::Data, &wire.encode_to_vec()).await)
            .map_err(|error| no_answer(error.to_string()))?;
        let (_, body) = frame::read(&mut stream, MAX_REPLY_BYTES, |_| ())
            .await
            .map_err(|error| no_answer(error.to_string()))?;
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

/// A connection to the issuer with a stream on which nothing was said yet.
async fn open(identity: &Identity, token: &Token) -> Result<(Swarm<Channels>, Stream), JoinError> {
    let (issuer, addresses) = (token.issuer(), token.addresses().to_vec());
    let unreachable = |reason: String| JoinError::Unreachable {
        issuer: Box::new(issuer),
        addresses: addresses.clone(),
        reason,
    };
    let mut swarm = swarm(identity, Arc::default(), Arc::default(), || Ok(Channels::newcomer()))
        .map_err(unreachable)?;
    let options = DialOpts::peer_id(issuer).addresses(addresses.clone()).allocate_new_port().build();
    swarm.dial(options).map_err(|error| unreachable(error.to_string()))?;
    loop {
        let opened = match swarm.select_next_some().await {
            SwarmEvent::Behaviour(opened) => opened,
            SwarmEvent::OutgoingConnectionError { error, .. } => {
                return Err(unreachable(error.to_string()));
            }
            SwarmEvent::ConnectionClosed { .. } => {
                return Err(JoinError::NoAnswer { reason: "it closed the connection".into() });
            }
            _ => continue,
        };
        return match opened.stream {
            Ok((_, stream)) => Ok((swarm, stream)),
            Err(NoStream::Unsupported) => Err(JoinError::Closed { issuer }),
            Err(NoStream::Failed(reason)) => Err(JoinError::NoAnswer { reason }),
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
        return Err(Refused::from_code(reply.code).into_error(request, reply.code));
    }
    let bad = |reason: &str| JoinError::BadAnswer { reason: reason.to_owned() };
    let wrong = |error: CertificateError| JoinError::BadAnswer { reason: error.to_string() };
    let cluster =
        ClusterPublicKey::from_bytes(&reply.cluster).map_err(|_| bad("the cluster's key is none"))?;
    if cluster.id() != token.cluster() {
        return Err(bad("the token is of another cluster"));
    }
    let certificate = Certificate::decode(&reply.certificate).map_err(wrong)?;
    if certificate.peer_id() != identity.peer_id() {
        return Err(bad("the certificate is of another node"));
    }
    let mut membership = Membership::new(certificate, cluster).map_err(wrong)?;
    membership.learn_revocations(&reply.revocations, &reply.revocation_lists).map_err(wrong)?;
    for member in &reply.members {
        membership.take_in(token.issuer(), member).map_err(wrong)?;
    }
    Ok(membership)
}

/// Answers one newcomer.
pub(crate) async fn serve(shared: &Shared, events: &mpsc::Sender<Event>, peer: PeerId, mut stream: Stream) {
    let served = tokio::time::timeout(SERVE_TIMEOUT, async {
        let (_, body) = frame::read(&mut stream, MAX_REQUEST_BYTES, |_| ()).await?;
        let reply = match decide(shared, peer, &body) {
            Ok(reply) => {
                tracing::info!(%peer, "a node has joined the cluster");
                count(&shared.counters.joins);
                shared.penalties.lock().forgive(&peer);
                // The node that does not listen any more is stopping.
                let _ = events.send(Event::MembershipChanged).await;
                shared.wake();
                reply
            }
            Err(refused) => {
                tracing::warn!(%peer, reason = ?refused, "a node was not let into the cluster");
                count(&shared.counters.joins_refused);
                tokio::time::sleep(REFUSAL_DELAY).await;
                JoinReply { code: refused.code(), ..JoinReply::default() }
            }
        };
        let io = frame::ReadError::Io;
        frame::write(&mut stream, frame::Kind::Data, &reply.encode_to_vec()).await.map_err(io)?;
        stream.close().await.map_err(io)?;
        let mut rest = [0; 64];
        while stream.read(&mut rest).await.map_err(io)? > 0 {}
        Ok::<(), frame::ReadError>(())
    });
    if let Ok(Err(error)) = served.await {
        tracing::debug!(%peer, %error, "a newcomer went away");
    }
}

/// Lets a newcomer in, or not.
fn decide(shared: &Shared, peer: PeerId, body: &[u8]) -> Result<JoinReply, Refused> {
    let request = RequestWire::decode(body).map_err(|_| Refused::Malformed)?;
    let listening = shared.addresses();
    let mut desk = shared.joins.lock();
    let key = desk.check(&request.secret, shared.now_ms())?;
    let mut membership = shared.membership.lock();
    if membership.revocations().revokes_peer(&peer) {
        return Err(Refused::Revoked);
    }
    let name_taken = |name: &str| {
        membership.own().name() == name
            || membership.members().any(|m| m.certificate.name() == name && m.certificate.peer_id() != peer)
    };
    let number_taken = |number: u64| {
        membership.own().node_id() == number
            || membership
                .members()
                .any(|m| m.certificate.node_id() == number && m.certificate.peer_id() != peer)
    };
    if name_taken(&request.name) {
        return Err(Refused::NameTaken);
    }
    let node_id = match request.node_id {
        0 => new_node_id(number_taken),
        number if number_taken(number) => return Err(Refused::NodeIdTaken),
        number => number,
    };
    // A newer certificate is the one that counts, whatever the clock was set to meanwhile.
    let latest = membership.member(&peer).map(|member| member.certificate.clone());
    let before_ms = latest.as_ref().map_or(0, Certificate::issued_unix_ms);
    let issued_unix_ms = shared.unix_ms().max(before_ms.saturating_add(1));
    let new = NewCertificate {
        peer_id: peer,
        node_id,
        name: request.name,
        serial: rand::random(),
        issued_unix_ms,
    };
    let issued = match &latest {
        Some(latest) => {
            let (name, serial) = (latest.name(), format!("{:016x}", latest.serial()));
            tracing::info!(%peer, name, serial, "the new certificate of this member replaces an earlier one");
            key.renew(new, latest)
        }
        None => key.issue(new),
    };
    let certificate = issued.map_err(|_| Refused::Malformed)?;
    membership.learn(certificate.clone()).map_err(|_| Refused::Malformed)?;
    let own = MemberWire {
        certificate: membership.own().encode(),
        addresses: encode_addresses(&listening),
        is_hearsay: false,
    };
    let others = membership.members().filter(|member| member.certificate.peer_id() != peer);
    let reply = JoinReply {
        code: 0,
        certificate: certificate.encode(),
        cluster: membership.cluster().to_bytes().to_vec(),
        members: std::iter::once(own).chain(others.map(Member::to_wire)).collect(),
        revocation_lists: membership.revocations().lists().map(RevocationList::encode).collect(),
        revocations: membership.revocations().peers().map(Revocation::encode).collect(),
    };
    desk.burn(&request.secret);
    Ok(reply)
}

fn new_node_id(taken: impl Fn(u64) -> bool) -> u64 {
    loop {
        let number = rand::random();
        if number != 0 && !taken(number) {
            return number;
        }
    }
}

/// Why a newcomer is not let in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refused {
    Malformed,
    Wrong,
    Used,
    Expired,
    TooMany,
    NameTaken,
    NodeIdTaken,
    Revoked,
    /// A reason of a newer version.
    Unknown,
}

impl Refused {
    fn code(self) -> u32 {
        match self {
            Self::Malformed => 1,
            Self::Wrong => 2,
            Self::Used => 3,
            Self::Expired => 4,
            Self::TooMany => 5,
            Self::NameTaken => 6,
            Self::NodeIdTaken => 7,
            Self::Revoked => 8,
            Self::Unknown => u32::MAX,
        }
    }

    fn from_code(code: u32) -> Self {
        let known = [
            Self::Malformed,
            Self::Wrong,
            Self::Used,
            Self::Expired,
            Self::TooMany,
            Self::NameTaken,
            Self::NodeIdTaken,
            Self::Revoked,
        ];
        known.into_iter().find(|reason| reason.code() == code).unwrap_or(Self::Unknown)
    }

    fn into_error(self, request: &JoinRequest, code: u32) -> JoinError {
        match self {
            Self::Malformed => JoinError::BadAnswer { reason: "it could not read the request".into() },
            Self::Wrong => JoinError::WrongToken,
            Self::Used => JoinError::UsedToken,
            Self::Expired => JoinError::ExpiredToken,
            Self::TooMany => JoinError::TooManyAttempts,
            Self::NameTaken => JoinError::NameTaken { name: request.name.clone() },
            Self::NodeIdTaken => JoinError::NodeIdTaken { node_id: request.node_id.unwrap_or(0) },
            Self::Revoked => JoinError::Revoked,
            Self::Unknown => JoinError::BadAnswer { reason: format!("it refused with code {code}") },
        }
    }
}

#[derive(Clone, PartialEq, prost::Message)]
struct RequestWire {
    #[prost(bytes = "vec", tag = "1")]
    secret: Vec<u8>,
    #[prost(string, tag = "2")]
    name: String,
    /// 0 asks for one.
    #[prost(fixed64, tag = "3")]
    node_id: u64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct JoinReply {
    /// 0: let in.
    #[prost(uint32, tag = "1")]
    code: u32,
    #[prost(bytes = "vec", tag = "2")]
    certificate: Vec<u8>,
    #[prost(bytes = "vec", tag = "3")]
    cluster: Vec<u8>,
    #[prost(message, repeated, tag = "4")]
    members: Vec<MemberWire>,
    /// At most one from versions up to 0.1.
    #[prost(bytes = "vec", repeated, tag = "5")]
    revocation_lists: Vec<Vec<u8>>,
    #[prost(bytes = "vec", repeated, tag = "6")]
    revocations: Vec<Vec<u8>>,
}
