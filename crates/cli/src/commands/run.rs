//! `edgefaas run`

use std::path::Path;

use edgefaas_node::Addresses;
use serde_json::json;

use crate::args::{Format, Global, Run};
use crate::node;
use crate::output;

pub async fn run(args: &Run, global: &Global) -> anyhow::Result<()> {
    node::start_tracing("info,fjall=warn,lsm_tree=warn", global.output);
    node::raise_open_files();
    let config = node::config(&args.listen, global.data_dir.clone())?;
    let data_dir = config.data_dir.clone();
    let shutdown = node::shutdown_signal()?;
    let node = node::build(config).await?;
    let addresses = node.addresses();
    announce_ready(&addresses, &data_dir, global.output)?;
    Ok(node.run(shutdown).await?)
}

/// Prints the one line that says that a node is ready, and where.
pub fn announce_ready(addresses: &Addresses, data_dir: &Path, format: Format) -> anyhow::Result<()> {
    let Addresses { http, mqtt, control } = addresses;
    if format == Format::Json {
        return output::json(&json!({
            "ready": true,
            "http": format!("http://{http}"),
            "mqtt": format!("mqtt://{mqtt}"),
            "control": format!("http://{control}"),
            "data_dir": data_dir,
        }));
    }
    let line = format!(
        "ready http=http://{http} mqtt=mqtt://{mqtt} control=http://{control} data-dir={}\n",
        data_dir.display()
    );
    output::text(&line)
}
