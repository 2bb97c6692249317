//! Messages of `/edgefaas/join/1`: one request, one reply.

use crate::membership::MemberWire;

/// The largest request.
pub(crate) const MAX_REQUEST_BYTES: usize = 1_024;
/// The largest reply. A cluster of 1,024 members with 8 addresses each fits.
pub(crate) const MAX_REPLY_BYTES: usize = 2 * 1_024 * 1_024;

/// The reason why a joining node is not admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum JoinRefusal {
    Malformed,
    WrongToken,
    UsedToken,
    ExpiredToken,
    TooManyAttempts,
    NameTaken,
    NodeIdTaken,
    Revoked,
    /// A reason of a newer version.
    Unknown,
}

impl JoinRefusal {
    /// The code in [`JoinReply`]; 0 is admission.
    pub(crate) fn code(self) -> u32 {
        match self {
            Self::Malformed => 1,
            Self::WrongToken => 2,
            Self::UsedToken => 3,
            Self::ExpiredToken => 4,
            Self::TooManyAttempts => 5,
            Self::NameTaken => 6,
            Self::NodeIdTaken => 7,
            Self::Revoked => 8,
            Self::Unknown => u32::MAX,
        }
    }

    pub(crate) fn from_code(code: u32) -> Self {
        let known = [
            Self::Malformed,
            Self::WrongToken,
            Self::UsedToken,
            Self::ExpiredToken,
            Self::TooManyAttempts,
            Self::NameTaken,
            Self::NodeIdTaken,
            Self::Revoked,
        ];
        known.into_iter().find(|reason| reason.code() == code).unwrap_or(Self::Unknown)
    }
}

/// A joining node's request.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct RequestWire {
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) secret: Vec<u8>,
    #[prost(string, tag = "2")]
    pub(crate) name: String,
    /// 0 asks the issuer to choose one.
    #[prost(fixed64, tag = "3")]
    pub(crate) node_id: u64,
}

/// The issuer's reply.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct JoinReply {
    /// 0: admitted; else a [`JoinRefusal`].
    #[prost(uint32, tag = "1")]
    pub(crate) code: u32,
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) certificate: Vec<u8>,
    #[prost(bytes = "vec", tag = "3")]
    pub(crate) cluster: Vec<u8>,
    #[prost(message, repeated, tag = "4")]
    pub(crate) members: Vec<MemberWire>,
    /// Revocation lists; at most one from versions up to 0.1.
    #[prost(bytes = "vec", repeated, tag = "5")]
    pub(crate) revocation_lists: Vec<Vec<u8>>,
    #[prost(bytes = "vec", repeated, tag = "6")]
    pub(crate) revocations: Vec<Vec<u8>>,
}
