//! The graph as an SVG image without anything from outside.

use std::fmt::Write;

use super::layout::{LINE, Layout, Rect, TITLE, layout, text_width};
use super::{Graph, Kind, Node, lines};

/// Colours for light and dark; all names begin with `wf-`, so that the image can stand in a page.
const STYLE: &str = "\
.wf{--wf-text:#1f2328;--wf-line:#59636e;--wf-fill:#fff;--wf-box:#8c959f1f;--wf-back:#fff;--wf-task:#0969da;\
--wf-choice:#9a6700;--wf-event:#1a7f37;--wf-wait:#8250df;--wf-error:#cf222e}\
@media(prefers-color-scheme:dark){.wf{--wf-text:#e6edf3;--wf-line:#9198a1;--wf-fill:#161b22;--wf-back:#0d1117;\
--wf-task:#58a6ff;--wf-choice:#d29922;--wf-event:#3fb950;--wf-wait:#bc8cff;--wf-error:#ff7b72}}\
.wf text{font:12px ui-monospace,Menlo,Consolas,monospace;fill:var(--wf-text);text-anchor:middle;\
dominant-baseline:central}\
.wf .wf-title{text-anchor:start;font-weight:bold}\
.wf .wf-group{fill:var(--wf-box);stroke:var(--wf-line);stroke-dasharray:4 3}\
.wf .wf-edge{fill:none;stroke:var(--wf-line);stroke-width:1.3;stroke-linejoin:round}\
.wf .wf-head{fill:var(--wf-line)}\
.wf .wf-label{fill:var(--wf-back);opacity:.85}\
.wf .wf-shape{fill:var(--wf-fill);stroke:var(--wf-line);stroke-width:1.5}\
.wf .wf-task .wf-shape{stroke:var(--wf-task)}.wf .wf-choice .wf-shape{stroke:var(--wf-choice)}\
.wf .wf-event .wf-shape{stroke:var(--wf-event)}.wf .wf-wait .wf-shape{stroke:var(--wf-wait)}\
.wf .wf-error .wf-shape{stroke:var(--wf-error)}";

/// The image's text. Every node is a `g` with `data-node` (its id), so that a page can mark it.
pub fn svg(graph: &Graph) -> String {
    let Layout { width, height, nodes, groups, edges } = layout(graph);
    let mut out = String::new();
    let _ = write!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"wf\" role=\"img\" width=\"{width:.0}\" \
         height=\"{height:.0}\" viewBox=\"0 0 {width:.0} {height:.0}\"><style>{STYLE}</style>\
         <rect width=\"100%\" height=\"100%\" fill=\"var(--wf-back)\"/><defs>\
         <marker id=\"wf-arrow\" viewBox=\"0 0 8 8\" refX=\"8\" refY=\"4\" markerWidth=\"8\" markerHeight=\"8\" \
         orient=\"auto\"><path class=\"wf-head\" d=\"M0 0L8 4L0 8z\"/></marker></defs>"
    );
    for group in &groups {
        let Rect { x, y, width, height } = group.rect;
        let _ = write!(
            out,
            "<rect class=\"wf-group\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" rx=\"8\"/>"
        );
        let title = lines(&group.title).into_iter().next().unwrap_or_default();
        write_text(&mut out, "wf-title", (x + 10.0, y + TITLE / 2.0 + 3.0), &title);
    }
    for route in edges.iter().flatten() {
        let points: Vec<_> = route.points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let points = points.join(" ");
        let _ =
            write!(out, "<polyline class=\"wf-edge\" marker-end=\"url(#wf-arrow)\" points=\"{points}\"/>");
    }
    for (node, rect) in graph.nodes.iter().zip(&nodes) {
        write_node(&mut out, node, *rect);
    }
    for (edge, route) in graph.edges.iter().zip(&edges) {
        let (Some(label), Some(route)) = (&edge.label, route) else {
            continue;
        };
        let Some(line) = lines(label).into_iter().next().filter(|line| !line.trim().is_empty()) else {
            continue;
        };
        let (text, (x, y)) = (text_width(&line) + 6.0, route.label_at);
        // A label beside a way along the side stays in the picture.
        let x = x.min(width - text / 2.0).max(text / 2.0);
        let (left, top) = (x - text / 2.0, y - LINE / 2.0);
        let _ = write!(
            out,
            "<rect class=\"wf-label\" x=\"{left:.1}\" y=\"{top:.1}\" width=\"{text:.1}\" height=\"{LINE}\" rx=\"3\"/>"
        );
        write_text(&mut out, "", (x, y), &line);
    }
    out.push_str("</svg>\n");
    out
}

fn write_node(out: &mut String, node: &Node, rect: Rect) {
    let Rect { x, y, width, height } = rect;
    let (right, bottom, middle_x, middle_y) = (x + width, y + height, x + width / 2.0, y + height / 2.0);
    let _ = write!(out, "<g class=\"wf-{}\" data-node=\"{}\">", node.kind.name(), escaped(&node.id));
    let polygon = |points: &[(f64, f64)]| {
        let points: Vec<_> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        format!("<polygon class=\"wf-shape\" points=\"{}\"/>", points.join(" "))
    };
    let rounded = |radius: f64| {
        format!(
            "<rect class=\"wf-shape\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" \
             rx=\"{radius:.1}\"/>"
        )
    };
    out.push_str(&match node.kind {
        Kind::Start | Kind::End => rounded(height / 2.0),
        Kind::Task => rounded(4.0),
        Kind::Wait => rounded(10.0),
        Kind::Choice => polygon(&[
            (x, middle_y),
            (x + 14.0, y),
            (right - 14.0, y),
            (right, middle_y),
            (right - 14.0, bottom),
            (x + 14.0, bottom),
        ]),
        Kind::Event => polygon(&[(x + 8.0, y), (right, y), (right - 8.0, bottom), (x, bottom)]),
        Kind::Error => polygon(&[
            (x + 8.0, y),
            (right - 8.0, y),
            (right, y + 8.0),
            (right, bottom - 8.0),
            (right - 8.0, bottom),
            (x + 8.0, bottom),
            (x, bottom - 8.0),
            (x, y + 8.0),
        ]),
    });
    let lines = lines(&node.label);
    let first = middle_y - LINE * (lines.len().saturating_sub(1)) as f64 / 2.0;
    for (index, line) in lines.iter().enumerate() {
        write_text(out, "", (middle_x, first + LINE * index as f64), line);
    }
    out.push_str("</g>");
}

fn write_text(out: &mut String, class: &str, (x, y): (f64, f64), text: &str) {
    let class = if class.is_empty() { String::new() } else { format!(" class=\"{class}\"") };
    let _ = write!(out, "<text{class} x=\"{x:.1}\" y=\"{y:.1}\">{}</text>", escaped(text));
}

/// A text in XML 1.0, in an element or between quotes; characters that XML has not are replaced.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\t' | '\n' | '\r' => out.push(' '),
            '\u{fffe}' | '\u{ffff}' => out.push('\u{fffd}'),
            control if control < ' ' => out.push('\u{fffd}'),
            character => out.push(character),
        }
    }
    out
}
