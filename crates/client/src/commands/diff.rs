//! `edgefaas diff APP [FROM] [TO]`

use edgefaas_api::control as proto;
use serde_json::json;

use crate::args::{Diff, Format, Global};
use crate::connection;
use crate::output;

pub async fn run(args: &Diff, global: &Global) -> anyhow::Result<()> {
    let mut client = connection::connect(global).await?;
    let from = match &args.from {
        Some(from) => from.clone(),
        None => revision_before(&mut client, &args.app).await?,
    };
    let to = args.to.clone().unwrap_or_default();
    let request = proto::CompareRevisionsRequest { app: args.app.clone(), from, to };
    let response =
        client.compare_revisions(request).await.map_err(|status| connection::failure(&status))?;
    let files = response.into_inner().files;
    if global.output == Format::Json {
        let file = |file: &proto::FileDifference| json!({ "file": file.file, "diff": file.unified, "from_bytes": file.from_bytes, "to_bytes": file.to_bytes });
        return output::json(&json!({ "files": files.iter().map(file).collect::<Vec<_>>() }));
    }
    if files.is_empty() {
        eprintln!("the revisions are the same");
    }
    let text: String = files.iter().map(text_of).collect();
    output::text(&text)
}

/// The revision that was live before; empty, the live one, if there is none.
async fn revision_before(client: &mut connection::Client, app: &str) -> anyhow::Result<String> {
    let response = client.list(proto::ListRequest::default()).await;
    let apps = response.map_err(|status| connection::failure(&status))?.into_inner().apps;
    let live = apps.into_iter().find(|live| live.name == app);
    Ok(live.and_then(|live| live.previous_revisions.into_iter().next()).unwrap_or_default())
}

fn text_of(file: &proto::FileDifference) -> String {
    let side = |bytes: Option<u64>| bytes.map_or_else(|| "nothing".to_owned(), output::size);
    let name = output::line(&file.file);
    match file.unified.is_empty() {
        true => format!("{name}: {} instead of {}\n", side(file.to_bytes), side(file.from_bytes)),
        false => format!("--- {name}\n+++ {name}\n{}", output::laid_out(&file.unified)),
    }
}
