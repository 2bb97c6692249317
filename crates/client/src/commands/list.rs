//! `edgefaas list`

use edgefaas_api::control as proto;
use serde_json::json;

use crate::app_nodes;
use crate::args::{Format, Global, List};
use crate::connection;
use crate::fitting::{self, Column, Fit};
use crate::output;
use crate::tables;

pub async fn run(args: &List, global: &Global) -> anyhow::Result<()> {
    let mut client = connection::connect(global).await?;
    let request = proto::ListRequest { nodes: args.nodes };
    let response = client.list(request).await.map_err(|status| connection::failure(&status))?;
    let apps = response.into_inner().apps;
    if global.output == Format::Json {
        let apps: Vec<_> = apps.iter().map(output::App::from).collect();
        return output::json(&json!({ "apps": apps }));
    }
    if apps.is_empty() {
        eprintln!("nothing is deployed; `edgefaas deploy PATH` deploys an app or a single file");
        return Ok(());
    }
    apps.iter().for_each(app_nodes::warn_lost);
    if args.nodes {
        return list_nodes(&apps);
    }
    fitting::print(&tables::APPS, apps.iter().map(tables::app_row).collect())?;
    let (functions, workflows): (Vec<_>, Vec<_>) = (
        apps.iter().flat_map(tables::function_rows).collect(),
        apps.iter().flat_map(tables::workflow_rows).collect(),
    );
    if !functions.is_empty() {
        fitting::print(&tables::FUNCTIONS, functions)?;
    }
    match workflows.is_empty() {
        true => Ok(()),
        false => fitting::print(&tables::WORKFLOWS, workflows),
    }
}

fn list_nodes(apps: &[proto::App]) -> anyhow::Result<()> {
    let mut columns = vec![Column { name: "APP", fit: Fit::Middle(8) }];
    columns.extend(app_nodes::COLUMNS);
    let rows = apps.iter().flat_map(|app| {
        app_nodes::rows(&app.nodes).into_iter().map(|mut row| {
            row.insert(0, app.name.clone());
            row
        })
    });
    fitting::print(&columns, rows.collect())
}
