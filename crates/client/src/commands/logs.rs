//! `edgefaas logs [NAME]`

use edgefaas_api::control as proto;

use crate::args::{Global, Logs};
use crate::connection;
use crate::output;

pub async fn run(args: &Logs, global: &Global) -> anyhow::Result<()> {
    let mut client = connection::connect(global).await?;
    let request = proto::LogsRequest {
        function: args.name.clone().unwrap_or_default(),
        follow: args.follow,
        tail: args.tail.unwrap_or(0),
    };
    let mut lines = client.logs(request).await.map_err(|status| connection::failure(&status))?.into_inner();
    while let Some(line) = lines.message().await.map_err(|status| connection::failure(&status))? {
        output::log(&line, global.output)?;
    }
    Ok(())
}
