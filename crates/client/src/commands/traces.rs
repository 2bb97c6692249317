//! `edgefaas traces`

use edgefaas_api::control as proto;
use serde_json::json;

use crate::args::{Format, Global, Traces};
use crate::connection;
use crate::fitting::{self, Column, Fit};
use crate::output;

const COLUMNS: [Column; 7] = [
    Column { name: "TRACE", fit: Fit::Whole },
    Column { name: "KIND", fit: Fit::LeftOut(1) },
    Column { name: "NAME", fit: Fit::Middle(10) },
    Column { name: "STARTED", fit: Fit::End(8, 2) },
    Column { name: "TOOK", fit: Fit::Whole },
    Column { name: "SPANS", fit: Fit::LeftOut(0) },
    Column { name: "ERROR", fit: Fit::End(8, 3) },
];

pub async fn run(args: &Traces, global: &Global) -> anyhow::Result<()> {
    let mut client = connection::connect(global).await?;
    let search = args.search.clone().unwrap_or_default();
    let request = proto::ListTracesRequest { limit: args.limit, failed: args.failed, search };
    let response = client.list_traces(request).await.map_err(|status| connection::failure(&status))?;
    let proto::ListTracesResponse { traces, more } = response.into_inner();
    if global.output == Format::Json {
        let trace = |trace: &proto::TraceSummary| {
            json!({
                "trace": trace.trace_id,
                "kind": trace.kind,
                "name": trace.name,
                "started_unix_us": trace.started_unix_us,
                "duration_us": trace.duration_us,
                "spans": trace.spans,
                "error": (!trace.error.is_empty()).then_some(&trace.error),
                "running": trace.running,
            })
        };
        return output::json(
            &json!({ "traces": traces.iter().map(trace).collect::<Vec<_>>(), "more": more }),
        );
    }
    if traces.is_empty() {
        eprintln!("no such trace is kept; see [traces] in the configuration");
        return Ok(());
    }
    let row = |trace: &proto::TraceSummary| {
        vec![
            trace.trace_id.clone(),
            trace.kind.clone(),
            output::line(&trace.name),
            output::since(trace.started_unix_us / 1000),
            match trace.running {
                true => format!("{} so far", output::micros(trace.duration_us)),
                false => output::micros(trace.duration_us),
            },
            trace.spans.to_string(),
            output::line(&trace.error),
        ]
    };
    fitting::print(&COLUMNS, traces.iter().map(row).collect())?;
    if more > 0 {
        eprintln!("and {more} more; --limit shows them");
    }
    Ok(())
}
