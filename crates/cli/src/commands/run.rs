//! `edgefaas run`

use std::path::Path;

use edgefaas_node::Addresses;
use edgefaas_node::config::NodeConfig;
use serde_json::json;
use tokio_util::task::AbortOnDropHandle;

use crate::args::Run;
use crate::data_owner::other_owner;
use crate::log;
use crate::node;
use crate::program_pages;
use crate::service_manager::ServiceManager;
use edgefaas_client::args::{Format, Global};
use edgefaas_client::output;

pub async fn run(args: &Run, global: &Global) -> anyhow::Result<()> {
    let _log = log::start("info,fjall=warn,lsm_tree=warn", global.output);
    node::raise_open_files();
    let mut config = node::config(&args.listen, global.data_dir.clone())?;
    config.store.accept_loss = args.accept_loss;
    if let Some((user, group)) = other_owner(&config.data_dir)?
        && user != 0
    {
        tracing::warn!(
            data_dir = %config.data_dir.display(), user, group,
            "the data directory belongs to another user, who cannot read the files that this node creates as root; \
             run the node as that user (sudo -u USER edgefaas run)"
        );
    }
    serve(config, global).await
}

/// Runs a node until SIGTERM or SIGINT.
pub async fn serve(config: NodeConfig, global: &Global) -> anyhow::Result<()> {
    let data_dir = config.data_dir.clone();
    let shutdown = node::shutdown_signal()?;
    let node = node::build(config).await?;
    let addresses = node.addresses();
    let manager = ServiceManager::from_environment();
    node::reload_on_hangup(node.access(), manager.clone())?;
    announce_ready(&addresses, node.fingerprint().as_deref(), &data_dir, global.output)?;
    let _notifying = manager.follow(&node, &shutdown);
    let _giving_back = AbortOnDropHandle::new(tokio::spawn(program_pages::give_back_at_rest()));
    Ok(node.run(shutdown).await?)
}

/// Prints the `ready` line with the node's addresses.
pub fn announce_ready(
    addresses: &Addresses,
    fingerprint: Option<&str>,
    data_dir: &Path,
    format: Format,
) -> anyhow::Result<()> {
    let (http, mqtt, control) = (addresses.http_url(), addresses.mqtt, addresses.control_url());
    if format == Format::Json {
        return output::json(&json!({
            "ready": true,
            "http": http,
            "mqtt": format!("mqtt://{mqtt}"),
            "mqtts": addresses.mqtts.map(|mqtts| format!("mqtts://{mqtts}")),
            "control": control,
            "dashboard": addresses.dashboard_url(),
            "tls_fingerprint": fingerprint,
            "data_dir": data_dir,
        }));
    }
    let mqtts = addresses.mqtts.map(|mqtts| format!(" mqtts=mqtts://{mqtts}")).unwrap_or_default();
    let fingerprint = fingerprint.map(|text| format!(" tls-fingerprint={text}")).unwrap_or_default();
    let dashboard = addresses.dashboard_url().map(|url| format!(" dashboard={url}")).unwrap_or_default();
    let line = format!(
        "ready http={http} mqtt=mqtt://{mqtt}{mqtts} control={control}{dashboard}{fingerprint} data-dir={}\n",
        data_dir.display()
    );
    output::text(&line)
}
