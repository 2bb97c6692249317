//! The commands that call a node.
//!
//! [`args`] has their options, [`commands`] one file for each. [`connection`] finds the node and its token; a connection with
//! TLS accepts one certificate ([`pinned_tls`]), one without TLS proves the node before it gets a token that was found.
//! [`app`] reads and builds the folder of an app, [`output`] shows results as tables or JSON, and [`exit`] has the exit codes.
//!
//! A node is known by its control API only: this crate does not link one.

pub mod app;
mod app_nodes;
pub mod args;
mod cargo;
pub mod commands;
pub mod connection;
pub mod dev_file;
pub mod exit;
mod fitting;
pub mod input;
mod known_nodes;
mod other_port;
pub mod output;
mod payload;
mod pinned_tls;
pub mod progress;
mod proof;
mod sdk_sources;
mod tables;
mod templates;
pub mod type_check;
