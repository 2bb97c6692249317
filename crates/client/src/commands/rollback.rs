//! `edgefaas rollback NAME`

use edgefaas_api::control as proto;
use serde_json::json;

use crate::app_nodes;
use crate::args::{Format, Global, Rollback};
use crate::connection;
use crate::fitting;
use crate::output;
use crate::tables;

pub async fn run(args: &Rollback, global: &Global) -> anyhow::Result<()> {
    let mut client = connection::connect(global).await?;
    let (this_node, wait_ms) = (args.reach.this_node, args.reach.wait.wait_ms());
    let revision = args.to.clone().unwrap_or_default();
    // Only for what the command says: an error comes again with the rollback itself.
    let before = client.list(proto::ListRequest::default()).await.map(|list| list.into_inner().apps);
    let live = before.unwrap_or_default().into_iter().find(|app| app.name == args.name);
    if let (None, Some(live)) = (&args.to, &live)
        && let Some(last) = live.previous_revisions.first()
    {
        let (live, last) = (output::short(&live.revision), output::short(last));
        eprintln!("rolling back {} from {live} to {last}, the revision before it", args.name);
    }
    let request = proto::RollbackRequest { app: args.name.clone(), revision, this_node, wait_ms };
    let response = client.rollback(request).await.map_err(|status| connection::failure(&status))?;
    let proto::RollbackResponse { app, nodes } = response.into_inner();
    let app = app.unwrap_or_default();
    app_nodes::warn(&nodes);
    if global.output == Format::Json {
        return output::json(&json!({ "app": output::App::from(&app), "nodes": app_nodes::json(&nodes) }));
    }
    let was =
        live.map(|live| format!(", and no longer {}", output::short(&live.revision))).unwrap_or_default();
    let earlier = output::earlier_revisions(&app);
    output::text(&format!(
        "{} {} is live{was}; `--to` can name {earlier}\n",
        app.name,
        output::short(&app.revision)
    ))?;
    fitting::print(&tables::FUNCTIONS, tables::function_rows(&app))?;
    match nodes.len() {
        0 | 1 => Ok(()),
        _ => fitting::print(&app_nodes::COLUMNS, app_nodes::rows(&nodes)),
    }
}
