//! Topics under `$faas/`: calls, their results, and topics that only the node publishes to.

use edgefaas_broker::topic::{SYS_PREFIX, TopicName, TopicNameError};
use edgefaas_manifest::NODE_TRIGGERS;

pub use edgefaas_manifest::topics::{
    DEAD_LETTERS, EMITTED_EVENTS, EVENTS, EVENTS_LEVEL, LIFECYCLE_EVENTS, NODE_LEVEL, PREFIX,
};

/// The target of a call by topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallKind {
    /// A function.
    Function,
    /// A workflow.
    Workflow,
}

impl CallKind {
    /// The topic level that stands for this kind.
    fn level(self) -> &'static str {
        match self {
            Self::Function => "fn",
            Self::Workflow => "wf",
        }
    }
}

/// A call by topic: `$faas/fn/NAME/invoke` or `$faas/fn/NAME/invoke/REQUEST-ID`; `wf` instead of `fn` for a workflow.
#[derive(Debug, PartialEq, Eq)]
pub struct Call<'a> {
    /// The target is a function or a workflow.
    pub kind: CallKind,
    /// The name of the function or workflow.
    pub function: &'a str,
    /// The request id, if the topic has one.
    pub request_id: Option<&'a str>,
}

/// Parses the topic of a call; `None` if the topic is not one.
pub fn parse_call(topic: &str) -> Option<Call<'_>> {
    let mut levels = topic.strip_prefix(PREFIX)?.split('/');
    let (kind, function, verb) = (levels.next()?, levels.next()?, levels.next()?);
    let request_id = levels.next();
    let kind = [CallKind::Function, CallKind::Workflow].into_iter().find(|known| known.level() == kind)?;
    let is_call = verb == "invoke" && levels.next().is_none() && request_id != Some("");
    is_call.then_some(Call { kind, function, request_id })
}

/// True if clients may publish to the topic, as far as the rules of access allow it. Under `$SYS/` only the broker publishes,
/// and under `$faas/` clients only call.
pub fn takes_from_clients(topic: &str) -> bool {
    match topic.starts_with(PREFIX) {
        true => parse_call(topic).is_some(),
        false => !topic.starts_with(SYS_PREFIX),
    }
}

/// True if the topic is not reserved for the node. Topics that start with `$` are reserved.
pub fn is_open(topic: &str) -> bool {
    !topic.starts_with('$')
}

/// The topic of an emitted event: its type is the last level, with `_` for `/`.
///
/// # Errors
/// The type has a character that a topic cannot have, or is empty or too long.
pub fn event_topic(kind: &str) -> Result<TopicName, TopicNameError> {
    if kind.is_empty() {
        return Err(TopicNameError::Empty);
    }
    TopicName::new(format!("{EMITTED_EVENTS}{}", kind.replace('/', "_")))
}

/// The topic for calls of a function, without a request id.
pub fn call_topic(function: &str) -> String {
    format!("{PREFIX}{}/{function}/invoke", CallKind::Function.level())
}

/// True if functions and workflows may publish to the topic: it is open, or a call.
pub fn functions_may_publish(topic: &str) -> bool {
    is_open(topic) || parse_call(topic).is_some()
}

/// True if the node publishes messages to this topic that can trigger functions.
pub fn may_trigger(topic: &str) -> bool {
    NODE_TRIGGERS.iter().any(|prefix| topic.starts_with(prefix))
}

impl Call<'_> {
    /// True if `topic` is a result topic of this function or workflow.
    pub fn is_result(&self, topic: &str) -> bool {
        let prefix = format!("{PREFIX}{}/{}/result/", self.kind.level(), self.function);
        topic.strip_prefix(&prefix).is_some_and(|id| !id.is_empty() && !id.contains('/'))
    }

    /// The topic for the result; `None` if the call has no request id.
    pub fn result_topic(&self) -> Option<TopicName> {
        let request_id = self.request_id?;
        TopicName::new(format!("{PREFIX}{}/{}/result/{request_id}", self.kind.level(), self.function)).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topics_of_calls_are_parsed() {
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
