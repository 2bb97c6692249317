//! Exit codes, and the errors that carry one.

use std::process::ExitCode;

use edgefaas_manifest::{ManifestError, SingleFileError};
use edgefaas_node::access::UsersError;
use edgefaas_workflow::DefinitionError;

/// What the process's exit code says. `docs/cli.md` and `--help` list them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Anything without a code of its own.
    Failed = 1,
    /// The command line makes no sense; clap's own code.
    Usage = 2,
    /// No node answers.
    Unreachable = 3,
    /// The node does not take the token, or is not the one that is trusted.
    Refused = 4,
    /// The function ran and failed.
    FunctionFailed = 5,
    /// There is no such app, function, revision, secret or user.
    NotFound = 6,
    /// The manifest or a source is no good, or a build failed.
    Invalid = 7,
    /// The node has no room now, or is stopping.
    Busy = 8,
}

/// The end of `edgefaas --help`.
pub const HELP: &str = "\
Exit codes:
  0  done
  1  failed
  2  the command line makes no sense
  3  no node answers
  4  the node does not take the token, or is not trusted
  5  the function failed
  6  no such app, function, revision, secret or user
  7  the manifest or a source is no good, or a build failed
  8  the node has no room now or is stopping; try again later";

/// An error with an exit code.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    exit: Exit,
    message: String,
}

impl Failure {
    // The one use of a failure is to be an error.
    #[allow(clippy::new_ret_no_self)]
    pub fn new(exit: Exit, message: impl Into<String>) -> anyhow::Error {
        Self { exit, message: message.into() }.into()
    }
}

/// Shows an error on stderr and gives its exit code.
pub fn report(error: &anyhow::Error) -> ExitCode {
    show(error);
    ExitCode::from(code(error) as u8)
}

/// Shows an error on stderr.
pub fn show(error: &anyhow::Error) {
    let text = format!("{error:#}");
    // Those of a manifest are laid out like a compiler's, here and when they come from a node.
    if text.starts_with("error: ") { eprintln!("{text}") } else { eprintln!("error: {text}") }
}

/// The exit code of an error.
pub fn code(error: &anyhow::Error) -> Exit {
    if let Some(failure) = error.downcast_ref::<Failure>() {
        failure.exit
    } else if error.is::<ManifestError>() || error.is::<SingleFileError>() || error.is::<DefinitionError>()
    {
        Exit::Invalid
    } else if let Some(error) = error.downcast_ref::<UsersError>() {
        // As a node would answer.
        match error {
            UsersError::Unknown { .. } => Exit::NotFound,
            UsersError::Exists { .. } => Exit::Invalid,
            _ => Exit::Failed,
        }
    } else {
        Exit::Failed
    }
}
