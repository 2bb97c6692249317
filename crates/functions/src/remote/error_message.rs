//! Errors of invocations on the network.
//!
//! A message has the fields of its variant, and besides them the status and the texts: a node that does not know the variant
//! shows them.

use std::time::Duration;

use edgefaas_isolates::{InternalError, RunError};
use edgefaas_state::store::CommitError;
use edgefaas_workflow::WorkflowError;
use prost::Message;
use ulid::Ulid;

use crate::invocation::{InvocationError, OverBudget};

/// An error of another node that this node knows only as text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteError {
    /// The HTTP status code, 400 to 599.
    pub status: u16,
    /// The kind.
    pub kind: RemoteErrorKind,
    /// The message.
    pub detail: String,
}

/// The kind of a [`RemoteError`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RemoteErrorKind {
    /// The program of the function could not be prepared.
    NotRunnable,
    /// The changes were refused, because the disk of the node is full.
    DiskFull,
    /// The changes could not be committed.
    Commit,
    /// The entry node has used up its share of the executing node.
    ShareUsed,
    /// A newer version of edgefaas has made the error.
    Unknown,
}

impl RemoteErrorKind {
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::NotRunnable => "Function cannot run",
            Self::DiskFull => "Disk full",
            Self::Commit => "Commit failed",
            Self::ShareUsed => "Share of the node used up",
            Self::Unknown => "Failed on another node",
        }
    }

    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::NotRunnable | Self::Unknown => "error",
            Self::DiskFull | Self::Commit => "commit",
            Self::ShareUsed => "rejected",
        }
    }
}

/// Numbers of the variants. They are never used again for something else.
#[derive(Debug, Clone, Copy, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
enum Kind {
    Unknown = 0,
    UnknownFunction = 1,
    PayloadTooLarge = 2,
    QueueFull = 3,
    DroppedFromQueue = 4,
    QueueTimeout = 5,
    TooDeep = 6,
    NoIsolate = 7,
    NoMemory = 8,
    NoGuestMemory = 9,
    Cancelled = 10,
    TooManyDescendants = 11,
    TooManyRootBytes = 12,
    TooManyNodeBytes = 13,
    Draining = 14,
    NotRunnable = 15,
    Workflow = 16,
    DiskFull = 17,
    Commit = 18,
    ShareUsed = 19,
    Failed = 20,
    TimedOut = 21,
    CpuTimeUsed = 22,
    OutOfMemory = 23,
    NodeOutOfMemory = 24,
    StackOverflow = 25,
    Trapped = 26,
    NeverSettles = 27,
    ReplyTooLarge = 28,
    InvalidReply = 29,
    NoCapacity = 30,
    InternalEngine = 31,
    InternalRequest = 32,
    ObjectsMissing = 33,
    Discarded = 34,
}

/// An error.
#[derive(Clone, PartialEq, Message)]
pub struct ErrorMessage {
    #[prost(enumeration = "Kind", tag = "1")]
    kind: i32,
    #[prost(uint32, tag = "2")]
    status: u32,
    /// The whole message, for a node that does not know the kind.
    #[prost(string, tag = "3")]
    detail: String,
    /// The name of the function or workflow.
    #[prost(string, tag = "4")]
    function: String,
    /// Texts and numbers of the variant.
    #[prost(string, tag = "5")]
    text: String,
    #[prost(string, optional, tag = "6")]
    location: Option<String>,
    #[prost(string, optional, tag = "7")]
    stack: Option<String>,
    #[prost(string, repeated, tag = "8")]
    near: Vec<String>,
    #[prost(uint64, tag = "9")]
    first: u64,
    #[prost(uint64, tag = "10")]
    second: u64,
    #[prost(string, optional, tag = "11")]
    title: Option<String>,
}

impl From<&InvocationError> for ErrorMessage {
    fn from(error: &InvocationError) -> Self {
        use InvocationError as E;
        let mut message =
            Self { status: error.status().into(), detail: error.to_string(), ..Self::default() };
        let (kind, function) = match error {
            E::UnknownFunction { name, near } | E::UnknownWorkflow { name, near } => {
                message.near.clone_from(near);
                (Kind::UnknownFunction, name.as_str())
            }
            E::PayloadTooLarge { function, actual_bytes, limit_bytes } => {
                (message.first, message.second) = (*actual_bytes as u64, *limit_bytes as u64);
                (Kind::PayloadTooLarge, function.as_str())
            }
            E::QueueFull { function, capacity } => {
                message.first = (*capacity).into();
                (Kind::QueueFull, function.as_str())
            }
            E::DroppedFromQueue { function } => (Kind::DroppedFromQueue, function.as_str()),
            E::Discarded { function } => (Kind::Discarded, function.as_str()),
            E::QueueTimeout { function, limit } => {
                message.first = micros(*limit);
                (Kind::QueueTimeout, function.as_str())
            }
            E::ObjectsMissing { function, limit } => {
                message.first = micros(*limit);
                (Kind::ObjectsMissing, function.as_str())
            }
            E::TooDeep { function, depth } => {
                message.first = (*depth).into();
                (Kind::TooDeep, function.as_str())
            }
            E::NoIsolate { function, max } => {
                message.first = (*max).into();
                (Kind::NoIsolate, function.as_str())
            }
            E::NoMemory { max_bytes } => {
                message.first = *max_bytes as u64;
                (Kind::NoMemory, "")
            }
            E::NoGuestMemory { function, waited, max_bytes } => {
                (message.first, message.second) = (micros(*waited), *max_bytes);
                (Kind::NoGuestMemory, function.as_str())
            }
            E::Cancelled { function } => (Kind::Cancelled, function.as_str()),
            E::OverBudget { workflow, error } => {
                let (kind, root, max) = match error {
                    // Only a root instance is refused so, and it starts on the node at which its event arrives.
                    OverBudget::Running { max, .. } => (Kind::QueueFull, None, max),
                    OverBudget::Descendants { root, max } => (Kind::TooManyDescendants, Some(root), max),
                    OverBudget::RootBytes { root, max_bytes } => {
                        (Kind::TooManyRootBytes, Some(root), max_bytes)
                    }
                    OverBudget::NodeBytes { max_bytes } => (Kind::TooManyNodeBytes, None, max_bytes),
                };
                message.text = root.map(Ulid::to_string).unwrap_or_default();
                message.first = *max as u64;
                (kind, workflow.as_str())
            }
            E::Draining => (Kind::Draining, ""),
            E::NotRunnable { function, .. } => (Kind::NotRunnable, function.as_str()),
            E::Run { function, error } => (message.run(error), function.as_str()),
            E::Workflow { workflow, error } => {
                message.text.clone_from(&error.kind);
                message.first = error.status.into();
                message.title.clone_from(&error.title);
                message.stack.clone_from(&error.detail);
                message.location.clone_from(&error.instance);
                (Kind::Workflow, workflow.as_str())
            }
            E::Commit { function, error } | E::NotStored { function, error } => {
                let is_full = matches!(error, CommitError::DiskFull { .. });
                (if is_full { Kind::DiskFull } else { Kind::Commit }, function.as_str())
            }
            E::Remote { function, error } => {
                let kind = match error.kind {
                    RemoteErrorKind::NotRunnable => Kind::NotRunnable,
                    RemoteErrorKind::DiskFull => Kind::DiskFull,
                    RemoteErrorKind::Commit => Kind::Commit,
                    RemoteErrorKind::ShareUsed => Kind::ShareUsed,
                    RemoteErrorKind::Unknown => Kind::Unknown,
                };
                (kind, function.as_str())
            }
            E::NodeLost { function, .. } | E::NoNode { function, .. } => (Kind::Unknown, function.as_str()),
        };
        message.kind = kind.into();
        message.function = function.to_owned();
        message
    }
}

impl ErrorMessage {
    /// Sets the fields of an error of the run. Returns its kind.
    fn run(&mut self, error: &RunError) -> Kind {
        match error {
            RunError::Failed { message, location, stack } => {
                self.text.clone_from(message);
                self.location.clone_from(location);
                self.stack.clone_from(stack);
                Kind::Failed
            }
            RunError::TimedOut { limit } => {
                self.first = micros(*limit);
                Kind::TimedOut
            }
            RunError::CpuTimeUsed { limit } => {
                self.first = micros(*limit);
                Kind::CpuTimeUsed
            }
            RunError::OutOfMemory { limit_bytes } => {
                self.first = *limit_bytes as u64;
                Kind::OutOfMemory
            }
            RunError::NodeOutOfMemory { max_bytes } => {
                self.first = *max_bytes;
                Kind::NodeOutOfMemory
            }
            RunError::StackOverflow { location } => {
                self.location.clone_from(location);
                Kind::StackOverflow
            }
            RunError::Trapped { message, location, stack } => {
                self.text.clone_from(message);
                self.location.clone_from(location);
                self.stack.clone_from(stack);
                Kind::Trapped
            }
            RunError::NeverSettles => Kind::NeverSettles,
            RunError::ReplyTooLarge { actual_bytes, limit_bytes } => {
                (self.first, self.second) = (*actual_bytes as u64, *limit_bytes as u64);
                Kind::ReplyTooLarge
            }
            RunError::InvalidReply { reason } => {
                self.text.clone_from(reason);
                Kind::InvalidReply
            }
            RunError::NoCapacity { limit } => {
                self.first = (*limit).into();
                Kind::NoCapacity
            }
            RunError::Internal(InternalError::Engine { detail }) => {
                self.text.clone_from(detail);
                Kind::InternalEngine
            }
            RunError::Internal(InternalError::Request { detail }) => {
                self.text.clone_from(detail);
                Kind::InternalRequest
            }
        }
    }

    /// The error, as if it had occurred here.
    pub(super) fn into_error(self) -> InvocationError {
        use InvocationError as E;
        let function = self.function;
        let (first, second) = (self.first as usize, self.second as usize);
        let run = |error: RunError| E::Run { function: function.clone(), error };
        let remote = |kind: RemoteErrorKind| {
            let status = u16::try_from(self.status).ok().filter(|status| (400..=599).contains(status));
            let error = RemoteError { status: status.unwrap_or(500), kind, detail: self.detail.clone() };
            E::Remote { function: function.clone(), error: Box::new(error) }
        };
        let over_budget = |error: OverBudget| E::OverBudget { workflow: function.clone(), error };
        let root = Ulid::from_string(&self.text).unwrap_or_default();
        match Kind::try_from(self.kind).unwrap_or(Kind::Unknown) {
            Kind::Unknown => remote(RemoteErrorKind::Unknown),
            Kind::NotRunnable => remote(RemoteErrorKind::NotRunnable),
            Kind::DiskFull => remote(RemoteErrorKind::DiskFull),
            Kind::Commit => remote(RemoteErrorKind::Commit),
            Kind::ShareUsed => remote(RemoteErrorKind::ShareUsed),
            Kind::UnknownFunction => E::UnknownFunction { name: function, near: self.near },
            Kind::PayloadTooLarge => {
                E::PayloadTooLarge { function, actual_bytes: first, limit_bytes: second }
            }
            Kind::QueueFull => E::QueueFull { function, capacity: self.first as u32 },
            Kind::DroppedFromQueue => E::DroppedFromQueue { function },
            Kind::Discarded => E::Discarded { function },
            Kind::QueueTimeout => E::QueueTimeout { function, limit: Duration::from_micros(self.first) },
            Kind::ObjectsMissing => {
                E::ObjectsMissing { function, limit: Duration::from_micros(self.first) }
            }
            Kind::TooDeep => E::TooDeep { function, depth: self.first as u8 },
            Kind::NoIsolate => E::NoIsolate { function, max: self.first as u32 },
            Kind::NoMemory => E::NoMemory { max_bytes: first },
            Kind::NoGuestMemory => {
                let waited = Duration::from_micros(self.first);
                E::NoGuestMemory { function, waited, max_bytes: self.second }
            }
            Kind::Cancelled => E::Cancelled { function },
            Kind::TooManyDescendants => over_budget(OverBudget::Descendants { root, max: first }),
            Kind::TooManyRootBytes => over_budget(OverBudget::RootBytes { root, max_bytes: first }),
            Kind::TooManyNodeBytes => over_budget(OverBudget::NodeBytes { max_bytes: first }),
            Kind::Draining => E::Draining,
            Kind::Workflow => {
                let error = WorkflowError {
                    kind: self.text,
                    status: u16::try_from(self.first).unwrap_or(500),
                    title: self.title,
                    detail: self.stack,
                    instance: self.location,
                };
                E::Workflow { workflow: function, error: Box::new(error) }
            }
            Kind::Failed => {
                run(RunError::Failed { message: self.text, location: self.location, stack: self.stack })
            }
            Kind::TimedOut => run(RunError::TimedOut { limit: Duration::from_micros(self.first) }),
            Kind::CpuTimeUsed => run(RunError::CpuTimeUsed { limit: Duration::from_micros(self.first) }),
            Kind::OutOfMemory => run(RunError::OutOfMemory { limit_bytes: first }),
            Kind::NodeOutOfMemory => run(RunError::NodeOutOfMemory { max_bytes: self.first }),
            Kind::StackOverflow => run(RunError::StackOverflow { location: self.location }),
            Kind::Trapped => {
                run(RunError::Trapped { message: self.text, location: self.location, stack: self.stack })
            }
            Kind::NeverSettles => run(RunError::NeverSettles),
            Kind::ReplyTooLarge => {
                run(RunError::ReplyTooLarge { actual_bytes: first, limit_bytes: second })
            }
            Kind::InvalidReply => run(RunError::InvalidReply { reason: self.text }),
            Kind::NoCapacity => run(RunError::NoCapacity { limit: self.first as u32 }),
            Kind::InternalEngine => run(InternalError::Engine { detail: self.text }.into()),
            Kind::InternalRequest => run(InternalError::Request { detail: self.text }.into()),
        }
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use edgefaas_cluster::calls::MayHaveRun;
    use edgefaas_state::store::StoreError;

    use super::*;
    use crate::problem::Problem;
    use crate::registry::ProgramError;
    use crate::remote::NoNode;

    fn run_errors() -> Vec<RunError> {
        let text = || Some("src/a.ts:7:3".to_owned());
        vec![
            RunError::Failed { message: "no such table".into(), location: text(), stack: text() },
            RunError::Failed { message: String::new(), location: None, stack: None },
            RunError::TimedOut { limit: Duration::from_millis(1500) },
            RunError::CpuTimeUsed { limit: Duration::from_millis(10) },
            RunError::OutOfMemory { limit_bytes: 64 << 20 },
            RunError::NodeOutOfMemory { max_bytes: 1 << 33 },
            RunError::StackOverflow { location: text() },
            RunError::Trapped { message: "unreachable".into(), location: text(), stack: text() },
            RunError::NeverSettles,
            RunError::ReplyTooLarge { actual_bytes: 7, limit_bytes: 6 },
            RunError::InvalidReply { reason: "status 99".into() },
            RunError::NoCapacity { limit: 4 },
            InternalError::Engine { detail: "engine".into() }.into(),
            InternalError::Request { detail: "request".into() }.into(),
        ]
    }

    fn errors() -> Vec<InvocationError> {
        use InvocationError as E;
        let function = || "f".to_owned();
        let root = Ulid(77);
        let limit = Duration::from_secs(30);
        let workflow = WorkflowError {
            kind: "https://example.com/errors/card".into(),
            status: 422,
            title: Some("Card refused".into()),
            detail: Some("expired".into()),
            instance: Some("/do/1/pay".into()),
        };
        let mut errors = vec![
            E::UnknownFunction { name: "ff".into(), near: vec!["f".into(), "g".into()] },
            E::PayloadTooLarge { function: function(), actual_bytes: 2, limit_bytes: 1 },
            E::QueueFull { function: function(), capacity: 7 },
            E::DroppedFromQueue { function: function() },
            E::Discarded { function: function() },
            E::QueueTimeout { function: function(), limit },
            E::ObjectsMissing { function: function(), limit },
            E::TooDeep { function: function(), depth: 17 },
            E::NoIsolate { function: function(), max: 3 },
            E::NoMemory { max_bytes: 9 },
            E::NoGuestMemory { function: function(), waited: limit, max_bytes: 1 << 40 },
            E::Cancelled { function: function() },
            E::OverBudget { workflow: "w".into(), error: OverBudget::Descendants { root, max: 5 } },
            E::OverBudget { workflow: "w".into(), error: OverBudget::RootBytes { root, max_bytes: 5 } },
            E::OverBudget { workflow: "w".into(), error: OverBudget::NodeBytes { max_bytes: 5 } },
            E::Draining,
            E::Workflow { workflow: "w".into(), error: Box::new(workflow) },
        ];
        errors.extend(run_errors().into_iter().map(|error| E::Run { function: function(), error }));
        errors
    }

    fn sent(error: &InvocationError) -> InvocationError {
        let bytes = ErrorMessage::from(error).encode_to_vec();
        ErrorMessage::decode(&bytes[..]).unwrap().into_error()
    }

    #[test]
    fn an_error_of_another_node_is_shown_like_one_of_this_node() {
        for error in errors() {
            let received = sent(&error);
            assert_eq!(format!("{received:?}"), format!("{error:?}"));
        }
    }

    #[test]
    fn errors_with_causes_keep_their_status_title_text_and_label() {
        use InvocationError as E;
        let damaged = StoreError::Damaged { what: "a source".into(), reason: "its checksum".into() };
        let full = CommitError::DiskFull { free_bytes: 1, needed_bytes: 2 };
        let function = || "f".to_owned();
        let errors = [
            E::NotRunnable { function: function(), error: ProgramError::Source(Arc::new(damaged)) },
            E::Commit { function: function(), error: full.clone() },
            E::Commit { function: function(), error: CommitError::Closed },
        ];
        for error in errors {
            let received = sent(&error);
            assert_eq!(Problem::of(&received, Some("01J")), Problem::of(&error, Some("01J")));
            assert_eq!(received.label(), error.label());
            // Once more, over a second node.
            assert_eq!(Problem::of(&sent(&received), None), Problem::of(&error, None));
        }
        let lost = E::NodeLost {
            function: function(),
            node: "hall".into(),
            error: MayHaveRun::ConnectionLost { started: true },
        };
        for error in [lost, E::NoNode { function: function(), reason: NoNode::NotHere }] {
            let received = sent(&error);
            assert_eq!((received.status(), received.detail()), (error.status(), error.detail()));
        }
    }

    #[test]
    fn an_unknown_kind_is_shown_with_its_status_and_text() {
        let message = ErrorMessage {
            kind: 9999,
            status: 418,
            detail: "I am a teapot".into(),
            ..ErrorMessage::default()
        };
        let error = ErrorMessage::decode(&message.encode_to_vec()[..]).unwrap().into_error();
        assert_eq!((error.status(), error.detail().as_str()), (418, "I am a teapot"));
        assert_eq!(error.title(), "Failed on another node");
        let impossible = ErrorMessage { kind: 9999, status: 70_200, ..ErrorMessage::default() };
        assert_eq!(impossible.into_error().status(), 500);
    }
}
