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
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct AppWire {
    #[prost(string, tag = "1")]
    pub app: String,
    #[prost(bytes = "bytes", tag = "2")]
    pub revision: Bytes,
    /// 0 live, 1 elsewhere, 2 fetching, 3 failed; other states are those of newer versions.
    #[prost(uint32, tag = "3")]
    pub state: u32,
    #[prost(uint32, tag = "4")]
    pub permille: u32,
    #[prost(string, tag = "5")]
    pub reason: String,
    /// Objects of its functions have not arrived yet.
    #[prost(bool, tag = "6")]
    pub lacks_objects: bool,
}
