//! The `$faas/` namespace of topics: which belong to the node, which are calls, where the node publishes.

use edgefaas_broker::topic::TopicName;
use edgefaas_manifest::NODE_TRIGGERS;

pub use edgefaas_manifest::topics::{
    DEAD_LETTERS, EMITTED_EVENTS, EVENTS, EVENTS_LEVEL, LIFECYCLE_EVENTS, NODE_LEVEL, PREFIX,
};

/// What a call by topic is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallKind {
    /// A function.
    Function,
    /// A workflow.
    Workflow,
}

impl CallKind {
    /// Its level in the topic.
    fn level(self) -> &'static str {
        match self {
            Self::Function => "fn",
            Self::Workflow => "wf",
        }
    }
}

/// A call by topic: `$faas/fn/NAME/invoke` or `$faas/fn/NAME/invoke/REQUEST-ID`; of a workflow with `wf`.
#[derive(Debug, PartialEq, Eq)]
pub struct Call<'a> {
    /// What it is for.
    pub kind: CallKind,
    /// The name of the function or workflow.
    pub function: &'a str,
    /// The request id, where there is one.
    pub request_id: Option<&'a str>,
}

/// The call that a topic is, if it is one.
pub fn parse_call(topic: &str) -> Option<Call<'_>> {
    let mut levels = topic.strip_prefix(PREFIX)?.split('/');
    let (kind, function, verb) = (levels.next()?, levels.next()?, levels.next()?);
    let request_id = levels.next();
    let kind = [CallKind::Function, CallKind::Workflow].into_iter().find(|known| known.level() == kind)?;
    let whole = verb == "invoke" && levels.next().is_none();
    (whole && request_id != Some("")).then_some(Call { kind, function, request_id })
}

/// True if a client that may publish anything may publish here: topics that start with `$` belong to the node.
pub fn is_open(topic: &str) -> bool {
    !topic.starts_with('$')
}

/// The topic of a call of a function.
pub fn call_topic(function: &str) -> String {
    format!("{PREFIX}{}/{function}/invoke", CallKind::Function.level())
}

/// True if functions may publish here, as far as the topic is the node's: calls alone.
pub fn takes_from_functions(topic: &str) -> bool {
    !topic.starts_with(PREFIX) || parse_call(topic).is_some()
}

/// True if triggers may have topics like this one of the node's.
pub fn has_triggers(topic: &str) -> bool {
    NODE_TRIGGERS.iter().any(|prefix| topic.starts_with(prefix))
}

impl Call<'_> {
    /// True if `topic` is one for results of this function.
    pub fn is_result(&self, topic: &str) -> bool {
        let prefix = format!("{PREFIX}{}/{}/result/", self.kind.level(), self.function);
        topic.strip_prefix(&prefix).is_some_and(|id| !id.is_empty() && !id.contains('/'))
    }

    /// Where the result of a call with a request id is published.
    pub fn result_topic(&self) -> Option<TopicName> {
        let request_id = self.request_id?;
        TopicName::new(format!("{PREFIX}{}/{}/result/{request_id}", self.kind.level(), self.function)).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_told_by_their_topic() {
        let call = |function, request_id| Some(Call { kind: CallKind::Function, function, request_id });
        for (topic, expected) in [
            ("$faas/fn/hello/invoke", call("hello", None)),
            ("$faas/fn/hello/invoke/r-1", call("hello", Some("r-1"))),
            ("$faas/fn/hello/invoke/", None),
            ("$faas/fn/hello/invoke/a/b", None),
            ("$faas/fn/hello/result/r-1", None),
            ("$faas/wf/hello", None),
            ("$faas/fn/hello", None),
            ("faas/fn/hello/invoke", None),
        ] {
            assert_eq!(parse_call(topic), expected, "{topic}");
        }
        let call = parse_call("$faas/fn/hello/invoke/r-1").unwrap();
        assert_eq!(call.result_topic().unwrap().as_str(), "$faas/fn/hello/result/r-1");
    }
}
