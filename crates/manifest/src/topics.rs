//! Topics that belong to the node: the `$faas/` namespace. Triggers may name some of them.

/// The prefix of all of them.
pub const PREFIX: &str = "$faas/";
/// First level of all of them.
pub const NODE_LEVEL: &str = "$faas";
/// Second level of [`EVENTS`].
pub const EVENTS_LEVEL: &str = "events";
/// Dead letters of durable invocations and workflow instances; the name of the function follows.
pub const DEAD_LETTERS: &str = "$faas/dead/";
/// Events of workflows.
pub const EVENTS: &str = "$faas/events/";
/// Events of workflows without a topic; their type follows.
pub const EMITTED_EVENTS: &str = "$faas/events/emitted/";
/// Lifecycle events of workflows; the workflow, `workflow` or `task`, and the change follow.
pub const LIFECYCLE_EVENTS: &str = "$faas/events/workflow/";
