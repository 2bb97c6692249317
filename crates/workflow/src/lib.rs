//! Workflows in the CNCF Serverless Workflow DSL 1.0: read, checked, compiled and run, without I/O.
//!
//! ```text
//! text --document--> located values --program--> Program      (at the deploy)
//! Program + Event + Environment --instance--> Action, Action  (while it runs)
//! ```
//!
//! This crate has no access to sockets, clocks, functions or threads.

pub mod api_document;
pub mod data;
pub mod document;
pub mod duration;
pub mod error;
pub mod event;
pub mod expression;
pub mod flowchart;
pub mod graph;
pub mod instance;
pub mod program;
pub mod schema;
pub mod synthesizer;
pub mod weight;

pub use data::Data;
pub use document::DefinitionError;
pub use error::{ErrorKind, WorkflowError};
pub use flowchart::flowchart;
pub use instance::{Action, Environment, Event, Instance, Status};
pub use program::{Compiled, Program, compile, compile_for_deploy};
pub use weight::weight;
