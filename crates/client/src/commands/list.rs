//! `edgefaas list`

use edgefaas_api::control as proto;
use serde_json::json;

use crate::args::{Format, Global};
use crate::connection;
use crate::output;

pub async fn run(global: &Global) -> anyhow::Result<()> {
    let mut client = connection::connect(global).await?;
    let response =
        client.list(proto::ListRequest {}).await.map_err(|status| connection::failure(&status))?;
    let apps = response.into_inner().apps;
    if global.output == Format::Json {
        let apps: Vec<_> = apps.iter().map(output::App::from).collect();
        return output::json(&json!({ "apps": apps }));
    }
    if apps.is_empty() {
        eprintln!("nothing is deployed; `edgefaas deploy PATH` deploys an app or a single file");
        return Ok(());
    }
    let (functions, workflows): (Vec<_>, Vec<_>) = (
        apps.iter().flat_map(output::function_rows).collect(),
        apps.iter().flat_map(output::workflow_rows).collect(),
    );
    if !functions.is_empty() {
        output::table(&output::FUNCTION_HEADER, functions)?;
    }
    match workflows.is_empty() {
        true => Ok(()),
        false => output::table(&output::WORKFLOW_HEADER, workflows),
    }
}
