//! Attributes of spans and of the node.

use edgefaas_functions::trace::TraceSpan;

/// A value of an attribute.
pub(super) enum Attribute<'a> {
    Text(&'a str),
    Number(u64),
}

/// The attributes of a span, by name.
pub(super) fn attributes(span: &TraceSpan) -> [(&'static str, Attribute<'_>); 8] {
    let [queue, start, execution, state] = span.phases_us;
    [
        ("edgefaas.kind", Attribute::Text(span.kind.word())),
        ("edgefaas.id", Attribute::Text(&span.id)),
        ("edgefaas.input", Attribute::Text(&span.input)),
        ("edgefaas.output", Attribute::Text(&span.output)),
        ("edgefaas.queue_us", Attribute::Number(queue)),
        ("edgefaas.start_us", Attribute::Number(start)),
        ("edgefaas.execution_us", Attribute::Number(execution)),
        ("edgefaas.state_us", Attribute::Number(state)),
    ]
}

/// The attributes of the node.
pub(super) const RESOURCE: [(&str, Attribute<'_>); 2] = [
    ("service.name", Attribute::Text("edgefaas")),
    ("service.version", Attribute::Text(env!("CARGO_PKG_VERSION"))),
];
