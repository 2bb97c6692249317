//! The control API.

/// Messages, server and client generated from `proto/edgefaas/control/v1/control.proto`.
#[allow(missing_docs, clippy::all)]
pub mod proto {
    tonic::include_proto!("edgefaas.control.v1");
}
