//! Exit codes, and the errors that carry one.

use std::process::ExitCode;

use edgefaas_manifest::{ManifestError, SingleFileError};
use edgefaas_workflow::DefinitionError;

use crate::output;

/// Exit codes of the process. `docs/cli.md` and `--help` list them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Anything without a code of its own.
    Failed = 1,
    /// Invalid command line; clap's own code.
    Usage = 2,
    /// No node answers the client.
    Unreachable = 3,
    /// The node refuses the token, or is not trusted.
    Refused = 4,
    /// The function ran and failed.
    FunctionFailed = 5,
    /// The app, function, revision, secret or user does not exist.
    NotFound = 6,
    /// Invalid manifest or source, or a failed build.
    Invalid = 7,
    /// The node has no room now, or is stopping.
    Busy = 8,
}

/// The end of `edgefaas --help`.
pub const HELP: &str = "\
Exit codes:
  0  done
  1  failed
  2  invalid command line
  3  no node answers
  4  the node refuses the token, or is not trusted
  5  the function, or a test, failed
  6  not found: no such app, function, revision, secret, user or test
  7  invalid manifest or source, or a failed build
  8  the node has no room now or is stopping; try again later";

/// An error with an exit code.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    exit: Exit,
    message: String,
}

impl Failure {
    /// An error with this exit code and this message for the user.
    // A failure is only used as an error.
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
    // It may name files and quote sources of an app that somebody else wrote.
    let text = output::laid_out(&format!("{error:#}"));
    // Errors of a manifest have the layout of a compiler's, from here and from a node.
    if text.starts_with("error: ") { eprintln!("{text}") } else { eprintln!("error: {text}") }
}

/// The exit code of an error.
pub fn code(error: &anyhow::Error) -> Exit {
    if let Some(failure) = error.downcast_ref::<Failure>() {
        failure.exit
    } else if error.is::<ManifestError>() || error.is::<SingleFileError>() || error.is::<DefinitionError>()
    {
        Exit::Invalid
    } else {
        Exit::Failed
    }
}
