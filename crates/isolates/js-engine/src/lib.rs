//! The JavaScript engine as a guest: QuickJS, the WinterTC globals and the host calls.
//!
//! At deploy the node runs `engine_init` and `load` and keeps a picture of the memory; every invocation
//! starts from a copy of it. The border to the node is described in `edgefaas-js-abi`.

mod boundary;
mod compression;
mod convert;
mod crypto;
mod engine;
mod fields;
mod groups;
mod natives;
mod request;
mod web;
