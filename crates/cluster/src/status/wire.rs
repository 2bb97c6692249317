//! The status as protocol buffers. Tags are never used again for something else.

use bytes::Bytes;

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct LoadWire {
    #[prost(uint64, tag = "1")]
    pub memory_free_bytes: u64,
    #[prost(uint64, tag = "2")]
    pub memory_total_bytes: u64,
    #[prost(uint32, tag = "3")]
    pub permits_free: u32,
    #[prost(uint32, tag = "4")]
    pub permits_total: u32,
    #[prost(uint32, tag = "5")]
    pub running: u32,
    #[prost(uint32, tag = "6")]
    pub queued: u32,
    #[prost(uint32, tag = "7")]
    pub pressure_permille: u32,
    /// 0 ready, 1 draining, else failing.
    #[prost(uint32, tag = "8")]
    pub readiness: u32,
    /// Digests of the names of functions that run.
    #[prost(fixed32, repeated, tag = "9")]
    pub functions: Vec<u32>,
    /// Occurrences of schedules that it has fired.
    #[prost(fixed64, repeated, tag = "10")]
    pub fired: Vec<u64>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct FactsWire {
    /// Empty if it is unknown.
    #[prost(string, tag = "1")]
    pub zone: String,
    #[prost(bool, tag = "2")]
    pub zone_is_measured: bool,
    #[prost(string, repeated, tag = "3")]
    pub labels: Vec<String>,
    #[prost(string, tag = "4")]
    pub software: String,
    #[prost(message, repeated, tag = "5")]
    pub apps: Vec<AppWire>,
    #[prost(uint32, tag = "6")]
    pub apps_omitted: u32,
    /// Empty if there are none.
    #[prost(bytes = "bytes", tag = "7")]
    pub policy: Bytes,
    #[prost(bool, tag = "8")]
    pub policy_refused: bool,
    #[prost(string, tag = "9")]
    pub policy_reason: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct AppWire {
    #[prost(string, tag = "1")]
    pub app: String,
    /// Empty if none is.
    #[prost(bytes = "bytes", tag = "2")]
    pub live: Bytes,
    /// 0 here, 1 elsewhere, 2 here alone; others are those of newer versions.
    #[prost(uint32, tag = "3")]
    pub runs: u32,
    /// Empty for a removal.
    #[prost(bytes = "bytes", tag = "4")]
    pub next: Bytes,
    /// 0 none, 1 fetching, 2 failed; others are those of newer versions.
    #[prost(uint32, tag = "5")]
    pub state: u32,
    #[prost(uint32, tag = "6")]
    pub permille: u32,
    #[prost(string, tag = "7")]
    pub reason: String,
    #[prost(uint64, tag = "8")]
    pub number: u64,
    /// Objects of its functions have not arrived yet.
    #[prost(bool, tag = "9")]
    pub lacks_objects: bool,
    /// Digests of the schedules of its live revision.
    #[prost(fixed32, repeated, tag = "10")]
    pub schedules: Vec<u32>,
}
