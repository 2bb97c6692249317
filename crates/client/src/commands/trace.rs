//! `edgefaas trace ID`

use edgefaas_api::control as proto;
use serde_json::json;

use crate::args::{Format, Global, Trace};
use crate::connection;
use crate::fitting::{self, Column, Fit};
use crate::output;

/// Maximum indentation; deeper spans have the same.
const MAX_INDENT: usize = 12;
const COLUMNS: [Column; 10] = [
    Column { name: "SPAN", fit: Fit::Middle(28) },
    Column { name: "NODE", fit: Fit::Middle(6) },
    Column { name: "AT", fit: Fit::Whole },
    Column { name: "TOOK", fit: Fit::Whole },
    Column { name: "QUEUE", fit: Fit::LeftOut(2) },
    Column { name: "START", fit: Fit::LeftOut(3) },
    Column { name: "EXECUTION", fit: Fit::LeftOut(4) },
    Column { name: "STATE", fit: Fit::LeftOut(1) },
    Column { name: "INPUT", fit: Fit::End(8, 0) },
    Column { name: "OUTPUT", fit: Fit::End(8, 5) },
];
/// The columns' numbers.
const NODE: usize = 1;

pub async fn run(args: &Trace, global: &Global) -> anyhow::Result<()> {
    let mut client = connection::connect(global).await?;
    let request = proto::TraceRequest { id: args.id.clone() };
    let response = client.trace(request).await.map_err(|status| connection::failure(&status))?;
    let spans = response.into_inner().spans;
    if global.output == Format::Json {
        let spans: Vec<_> = spans.iter().map(as_json).collect();
        return output::json(&json!({ "spans": spans }));
    }
    output::write(table(&spans, fitting::width()).as_bytes())
}

fn table(spans: &[proto::Span], width: usize) -> String {
    let begin = spans.iter().map(|span| span.started_unix_us).min().unwrap_or(0);
    let mut rows = Vec::new();
    let is_root = |span: &proto::Span| !spans.iter().any(|other| other.id == span.parent);
    for root in spans.iter().filter(|span| is_root(span)) {
        add(spans, root, 0, begin, &mut rows);
    }
    // Without other nodes the column says nothing.
    if spans.iter().all(|span| span.node.is_empty()) {
        rows.iter_mut().filter_map(|row| row.get_mut(NODE)).for_each(String::clear);
    }
    fitting::table(&COLUMNS, rows, width)
}

fn add(spans: &[proto::Span], span: &proto::Span, depth: usize, begin: u64, rows: &mut Vec<Vec<String>>) {
    if rows.len() > spans.len() {
        return;
    }
    let part = |us: u64| if us == 0 { String::new() } else { output::micros(us) };
    let result = match (&*span.status, &*span.error) {
        ("", "") => span.output.clone(),
        ("", error) => format!("failed: {error}"),
        (status, _) => status.to_owned(),
    };
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
        "span_id": span.span_id,
        "status": span.status,
    })
}

#[cfg(test)]
mod tests {
    use unicode_width::UnicodeWidthStr;

    use super::*;

    #[test]
    fn the_tree_fits_the_width_and_no_row_wraps() {
        let span = |number: usize, status: &str| proto::Span {
            id: number.to_string(),
            parent: if number == 0 { String::new() } else { (number - 1).to_string() },
            kind: "function".into(),
            name: format!("{number}-collects-the-measurements-of-all-halls-and-floors-{number}"),
            started_unix_us: 1_000_000 * number as u64,
            duration_us: 12_345_678,
            queue_us: 123_456,
            start_us: 234_567,
            execution_us: 3_456_789,
            state_us: 4_567,
            input: "{\"measurements\": [1, 2, 3, 4, 5, 6, 7, 8, 9]}".repeat(3),
            output: "温度".repeat(40),
            node: "hall-17-of-the-northern-building".into(),
            status: status.into(),
            ..Default::default()
        };
        let mut spans: Vec<_> = (0..20).map(|number| span(number, "")).collect();
        spans.push(span(20, "waiting"));
        for width in [60, 80, 100, 120, 200] {
            let text = table(&spans, width);
            let lines: Vec<&str> = text.lines().collect();
            assert_eq!(lines.len(), 1 + spans.len(), "{text}");
            assert!(lines.iter().all(|line| line.width() <= width), "{width}:\n{text}");
            assert!(lines[1].starts_with("function") && lines[1].contains('…'), "{text}");
            if width >= 80 {
                assert!(lines[0].contains("EXECUTION"), "{width}:\n{text}");
                assert!(lines[21].contains("waiting"), "{width}:\n{text}");
            }
        }
        // What fits is whole.
        let text = table(&[proto::Span { name: "f".into(), output: "x".into(), ..span(0, "") }], 300);
        assert!(
            text.contains("function f ") && text.contains("hall-17-of-the-northern-building"),
            "{text}"
        );
    }
}
