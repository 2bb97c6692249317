//! `edgefaas rollback NAME`

use edgefaas_api::control as proto;
use serde_json::json;

use crate::args::{Format, Global, Rollback};
use crate::connection;
use crate::output;

pub async fn run(args: &Rollback, global: &Global) -> anyhow::Result<()> {
    let mut client = connection::connect(global).await?;
    let request =
        proto::RollbackRequest { app: args.name.clone(), revision: args.to.clone().unwrap_or_default() };
    let response = client.rollback(request).await.map_err(|status| connection::failure(&status))?;
    let app = response.into_inner().app.unwrap_or_default();
    if global.output == Format::Json {
        return output::json(&json!({ "app": output::App::from(&app) }));
    }
    output::text(&format!("{} {} is live\n", app.name, output::short(&app.revision)))?;
    output::table(&output::FUNCTION_HEADER, output::function_rows(&app))
}
