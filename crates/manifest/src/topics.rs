//! Topics that belong to the node: the `$faas/` namespace. Triggers may name some of them.

/// What all of them start with.
pub const PREFIX: &str = "$faas/";
/// First level of all of them.
pub const NODE_LEVEL: &str = "$faas";
/// Second level of [`EVENTS`].
pub const EVENTS_LEVEL: &str = "events";
/// Dead letters: durable invocations and workflow instances that were given up; the name of the function comes after it.
pub const DEAD_LETTERS: &str = "$faas/dead/";
/// Events of workflows.
pub const EVENTS: &str = "$faas/events/";
/// Events of workflows that name no topic; their type comes after it.
pub const EMITTED_EVENTS: &str = "$faas/events/emitted/";
/// Lifecycle events of workflows; the workflow, `workflow` or `task`, and what happened come after it.
pub const LIFECYCLE_EVENTS: &str = "$faas/events/workflow/";
