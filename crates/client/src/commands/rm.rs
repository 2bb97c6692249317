//! `edgefaas rm NAME`

use edgefaas_api::control as proto;
use serde_json::json;

use crate::app_nodes;
use crate::args::{Format, Global, Rm};
use crate::connection;
use crate::output;

pub async fn run(args: &Rm, global: &Global) -> anyhow::Result<()> {
    let mut client = connection::connect(global).await?;
    let (this_node, wait_ms) = (args.reach.this_node, args.reach.wait.wait_ms());
    let request = proto::RemoveRequest { app: args.name.clone(), this_node, wait_ms };
    let response = client.remove(request).await.map_err(|status| connection::failure(&status))?;
    let proto::RemoveResponse { functions, nodes } = response.into_inner();
    app_nodes::warn(&nodes);
    match global.output {
        Format::Json => output::json(
            &json!({ "app": args.name, "functions": functions, "nodes": app_nodes::json(&nodes) }),
        ),
        Format::Table => {
            let line = format!("{} is removed, with its functions {}\n", args.name, functions.join(", "));
            output::text(&line)?;
            match nodes.len() {
                0 | 1 => Ok(()),
                _ => output::table(&app_nodes::HEADER, app_nodes::rows(&nodes)),
            }
        }
    }
}
