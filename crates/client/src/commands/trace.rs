//! `edgefaas trace ID`

use edgefaas_api::control as proto;
use serde_json::json;

use crate::args::{Format, Global, Trace};
use crate::connection;
use crate::output;

/// Maximum indentation; deeper spans have the same.
const MAX_INDENT: usize = 12;
/// The column with the names of nodes.
const NODE_COLUMN: usize = 1;

pub async fn run(args: &Trace, global: &Global) -> anyhow::Result<()> {
    let mut client = connection::connect(global).await?;
    let request = proto::TraceRequest { id: args.id.clone() };
    let response = client.trace(request).await.map_err(|status| connection::failure(&status))?;
    let spans = response.into_inner().spans;
    if global.output == Format::Json {
        let spans: Vec<_> = spans.iter().map(as_json).collect();
        return output::json(&json!({ "spans": spans }));
    }
    let begin = spans.iter().map(|span| span.started_unix_us).min().unwrap_or(0);
    let mut rows = Vec::new();
    let is_root = |span: &proto::Span| !spans.iter().any(|other| other.id == span.parent);
    for root in spans.iter().filter(|span| is_root(span)) {
        add(&spans, root, 0, begin, &mut rows);
    }
    let mut header =
        vec!["SPAN", "NODE", "AT", "TOOK", "QUEUE", "START", "EXECUTION", "STATE", "INPUT", "OUTPUT"];
    if spans.iter().all(|span| span.node.is_empty()) {
        header.remove(NODE_COLUMN);
        rows.iter_mut().for_each(|row| drop(row.remove(NODE_COLUMN)));
    }
    output::table(&header, rows)
}

fn add(spans: &[proto::Span], span: &proto::Span, depth: usize, begin: u64, rows: &mut Vec<Vec<String>>) {
    if rows.len() > spans.len() {
        return;
    }
    let part = |us: u64| if us == 0 { String::new() } else { output::micros(us) };
    let result =
        if span.error.is_empty() { span.output.clone() } else { format!("failed: {}", span.error) };
    rows.push(vec![
        format!("{}{} {}", "  ".repeat(depth.min(MAX_INDENT)), span.kind, span.name),
        if span.node.is_empty() { "here".to_owned() } else { span.node.clone() },
        format!("+{}", output::micros(span.started_unix_us.saturating_sub(begin))),
        output::micros(span.duration_us),
        part(span.queue_us),
        part(span.start_us),
        part(span.execution_us),
        part(span.state_us),
        span.input.clone(),
        result,
    ]);
    for child in spans.iter().filter(|child| child.parent == span.id && child.id != span.id) {
        add(spans, child, depth + 1, begin, rows);
    }
}

fn as_json(span: &proto::Span) -> serde_json::Value {
    json!({
        "trace_id": span.trace_id,
        "id": span.id,
        "parent": span.parent,
        "kind": span.kind,
        "name": span.name,
        "started_unix_us": span.started_unix_us,
        "duration_us": span.duration_us,
        "queue_us": span.queue_us,
        "start_us": span.start_us,
        "execution_us": span.execution_us,
        "state_us": span.state_us,
        "input": span.input,
        "output": span.output,
        "error": span.error,
        "node": span.node,
    })
}
