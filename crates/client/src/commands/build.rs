//! `edgefaas build PATH`

use serde_json::json;

use crate::app::{App, deploy_request, source_bytes};
use crate::args::{Build, Format, Global};
use crate::output;
use crate::type_check::{self, TypeErrors};

pub async fn run(args: &Build, global: &Global) -> anyhow::Result<()> {
    let app = App::load(&args.app)?;
    type_check::check(&app, TypeErrors::of(args.strict)).await?;
    let request = deploy_request(&app, app.build().await?, false)?;
    let asset_bytes: usize = request.assets.iter().map(|asset| asset.content.len()).sum();
    let sizes = || request.artifacts.iter().map(|artifact| (&artifact.function, source_bytes(artifact)));
    if global.output == Format::Json {
        let functions: Vec<_> =
            sizes().map(|(name, bytes)| json!({ "name": name, "source_bytes": bytes })).collect();
        return output::json(
            &json!({ "app": app.manifest.app, "functions": functions, "asset_bytes": asset_bytes }),
        );
    }
    let rows = sizes().map(|(name, bytes)| {
        let triggers = app.manifest.functions[name].triggers.iter().map(ToString::to_string);
        vec![name.clone(), output::size(bytes), triggers.collect::<Vec<_>>().join("; ")]
    });
    output::table(&["FUNCTION", "SIZE", "TRIGGERS"], rows.collect())
}
