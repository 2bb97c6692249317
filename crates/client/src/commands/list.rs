//! `edgefaas list`

use edgefaas_api::control as proto;
use serde_json::json;

use crate::app_nodes;
use crate::args::{Format, Global, List};
use crate::connection;
use crate::exit::{Exit, Failure};
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

/// Fails if no app has the name, for which nothing was found: it is probably misspelt. `nothing` names what was looked for.
pub(super) async fn check_app(name: &str, nothing: &str, global: &Global) -> anyhow::Result<()> {
    let mut client = connection::connect(global).await?;
    let request = proto::ListRequest::default();
    let response = client.list(request).await.map_err(|status| connection::failure(&status))?;
    if response.into_inner().apps.iter().any(|app| app.name == name) {
        return Ok(());
    }
    let text = format!("there is no app `{name}`, and no {nothing}; `edgefaas list` shows all");
    Err(Failure::new(Exit::NotFound, text))
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
