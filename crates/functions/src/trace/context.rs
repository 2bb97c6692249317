//! The trace context of requests and messages (W3C Trace Context, level 1).

use edgefaas_broker::Message;

/// The header and user property with the trace context (W3C Trace Context, section 3.2).
pub const TRACE_PARENT: &str = "traceparent";

/// The parts of a `traceparent`. Only a new trace has the span id 0.
struct Parts<'a> {
    trace: &'a str,
    span: &'a str,
    flags: &'a str,
}

/// `None` if it is not valid.
fn parts(trace_parent: &str) -> Option<Parts<'_>> {
    let is_hex = |text: &str| text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let mut parts = trace_parent.split('-');
    let (version, trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let fits = version.len() == 2 && trace.len() == 32 && span.len() == 16 && flags.len() == 2;
    // A later version may have more parts (section 3.2.4).
    let is_version = version != "ff" && (version != "00" || parts.next().is_none());
    let is_valid = fits
        && is_version
        && [version, trace, span, flags].into_iter().all(is_hex)
        && trace.bytes().any(|byte| byte != b'0');
    is_valid.then_some(Parts { trace, span, flags })
}

/// The `traceparent` of a new trace (W3C Trace Context, section 3.2). Its span id is 0, since no span is its parent; it never
/// leaves the node.
pub fn new_trace_parent() -> String {
    let trace: u128 = rand::random::<u128>().max(1);
    format!("00-{trace:032x}-{:016x}-01", 0)
}

/// The trace id in a `traceparent`; `None` if it is not valid.
pub fn trace_id(trace_parent: &str) -> Option<&str> {
    parts(trace_parent).map(|parts| parts.trace)
}

/// The id of the parent span in a `traceparent`, 16 hex digits; `None` if it is not valid or begins a trace.
pub fn parent_of(trace_parent: &str) -> Option<&str> {
    let Parts { span, .. } = parts(trace_parent)?;
    span.bytes().any(|byte| byte != b'0').then_some(span)
}

/// True if the flag `sampled` of a `traceparent` is set (section 3.2.2.5.1); false if it is not valid.
pub fn is_sampled(trace_parent: &str) -> bool {
    // The flag is the lowest bit of a hex number.
    parts(trace_parent).is_some_and(|parts| parts.flags.ends_with(|digit: char| "13579bdf".contains(digit)))
}

/// The `traceparent` of span `id` in the trace of `trace_parent`. It is sampled if that is.
pub fn context_of(trace_parent: &str, id: &str) -> Option<String> {
    let trace = trace_id(trace_parent)?;
    let flags = if is_sampled(trace_parent) { "01" } else { "00" };
    Some(format!("00-{trace}-{}-{flags}", span_id(id)))
}

/// A message with the trace context in its user property [`TRACE_PARENT`], unless it has one or would then be larger than
/// `max_bytes`.
pub fn with_context(message: Message, trace_parent: Option<&str>, max_bytes: usize) -> Message {
    let Some(trace_parent) = trace_parent else { return message };
    let mut properties = message.properties().cloned().unwrap_or_default();
    if properties.user.iter().any(|(name, _)| &**name == TRACE_PARENT) {
        return message;
    }
    properties.user.push((TRACE_PARENT.into(), trace_parent.into()));
    if properties.problem().is_some() {
        return message;
    }
    let traced = message.clone().with_properties(properties);
    if traced.weight() <= max_bytes { traced } else { message }
}

/// The id of a span for other programs, 16 hex digits: the first 8 bytes of the hash of its id.
pub fn span_id(id: &str) -> String {
    let mut hex = blake3::hash(id.as_bytes()).to_hex().to_string();
    hex.truncate(16);
    hex
}

/// The [`span_id`] of a span's parent.
pub fn parent_span_id(parent: &str) -> String {
    // The ids of invocations, instances and tasks are longer.
    match parent.len() {
        16 => parent.to_owned(),
        _ => span_id(parent),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_context_keeps_the_callers_sampled_flag() {
        let trace = "0af7651916cd43dd8448eb211c80319c";
        let parent = |flags: &str| format!("00-{trace}-b7ad6b7169203331-{flags}");
        for (flags, passed_on) in
            [("00", "00"), ("01", "01"), ("02", "00"), ("03", "01"), ("fe", "00"), ("ff", "01")]
        {
            assert_eq!(is_sampled(&parent(flags)), passed_on == "01", "{flags}");
            let expected = format!("00-{trace}-{}-{passed_on}", span_id("x"));
            assert_eq!(context_of(&parent(flags), "x"), Some(expected), "{flags}");
        }
        for invalid in ["", "0", "001", "0G", "01-"] {
            assert!(!is_sampled(&parent(invalid)), "{invalid}");
        }
        assert!(is_sampled(&new_trace_parent()));
    }
}
