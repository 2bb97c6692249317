//! `edgefaas run`

use serde_json::json;

use crate::args::{Format, Global, Run};
use crate::commands::dev::ready;
use crate::node;
use crate::output;

pub async fn run(args: &Run, global: &Global) -> anyhow::Result<()> {
    let as_json = global.output == Format::Json;
    node::start_tracing("info", as_json);
    let config = node::config(&args.listen, global.data_dir.clone())?;
    let data_dir = config.data_dir.clone();
    let shutdown = node::shutdown_signal()?;
    let node = node::build(config).await?;
    let addresses = node.addresses();
    if as_json {
        output::json(&json!({
            "ready": true,
            "http": format!("http://{}", addresses.http),
            "mqtt": format!("mqtt://{}", addresses.mqtt),
            "control": format!("http://{}", addresses.control),
            "data_dir": data_dir,
        }))?;
    } else {
        let line = format!("ready {} data-dir={}\n", ready(&addresses), data_dir.display());
        output::write(line.as_bytes())?;
    }
    Ok(node.run(shutdown).await?)
}
