//! The protocol of the control API between the node and its clients.
//!
//! Messages, servers and clients are generated from `proto/`. [`proof`](mod@proof) lets a client check that a port belongs
//! to the node of its token; [`ControlEndpoint`] is the file with which local clients find a control API that speaks TLS.

mod data_dir;
mod endpoint;
mod fingerprint;
mod proof;

pub use data_dir::default_data_dir;
pub use endpoint::ControlEndpoint;
pub use fingerprint::{Fingerprint, FingerprintError};
pub use proof::{Nonce, PROOF_HEADER, is_proof, proof as proof_of_token};

/// Descriptors of all services, for gRPC reflection.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/api.fds"));

/// `proto/edgefaas/control/v1/control.proto`: apps, functions, workflows, users and the cluster.
#[allow(missing_docs, clippy::all, rust_2018_idioms)]
pub mod control {
    tonic::include_proto!("edgefaas.control.v1");
}

/// `proto/edgefaas/objects/v1/objects.proto`: stateful objects.
#[allow(missing_docs, clippy::all, rust_2018_idioms)]
pub mod objects {
    tonic::include_proto!("edgefaas.objects.v1");
}

/// `proto/edgefaas/messages/v1/messages.proto`: topics, retained messages and clients of the broker.
#[allow(missing_docs, clippy::all, rust_2018_idioms)]
pub mod messages {
    tonic::include_proto!("edgefaas.messages.v1");
}

/// `proto/edgefaas/invocations/v1/invocations.proto`: durable invocations and dead letters.
#[allow(missing_docs, clippy::all, rust_2018_idioms)]
pub mod invocations {
    tonic::include_proto!("edgefaas.invocations.v1");
}

/// `proto/edgefaas/history/v1/history.proto`: samples and events of a node.
#[allow(missing_docs, clippy::all, rust_2018_idioms)]
pub mod history {
    tonic::include_proto!("edgefaas.history.v1");
}
