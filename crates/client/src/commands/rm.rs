//! `edgefaas rm NAME`

use edgefaas_api::control as proto;
use serde_json::json;

use crate::args::{Format, Global, Rm};
use crate::connection;
use crate::output;

pub async fn run(args: &Rm, global: &Global) -> anyhow::Result<()> {
    let mut client = connection::connect(global).await?;
    let request = proto::RemoveRequest { app: args.name.clone() };
    let response = client.remove(request).await.map_err(|status| connection::failure(&status))?;
    let functions = response.into_inner().functions;
    match global.output {
        Format::Json => output::json(&json!({ "app": args.name, "functions": functions })),
        Format::Table => {
            let line = format!("{} is removed, with its functions {}\n", args.name, functions.join(", "));
            output::text(&line)
        }
    }
}
