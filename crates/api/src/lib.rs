//! The protocol of the control port: what the node serves and the CLI calls.
//!
//! Messages, servers and clients are generated from `proto/`. [`proof`](mod@proof) lets a client check that a port belongs
//! to the node whose token it holds; [`ControlEndpoint`] is the file by which local clients find a port that speaks TLS.

mod endpoint;
mod proof;

pub use endpoint::ControlEndpoint;
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
