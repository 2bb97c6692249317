//! `edgefaas dev PATH`

mod env_file;
mod workflow_progress;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::Context;
use edgefaas_api::control as proto;
use edgefaas_broker::Broker;
use edgefaas_manifest::CorsOrigin;
use edgefaas_node::Addresses;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::args::Dev;
use crate::commands::run::announce_ready;
use crate::hints::hints;
use crate::log;
use crate::node;
use crate::watch::{RecursiveMode, Watch};
use edgefaas_client::app::App;
use edgefaas_client::args::{Format, Global};
use edgefaas_client::commands::deploy;
use edgefaas_client::connection::{self, Client, NodeUrl};
use edgefaas_client::dev_file::{self, DevNode};
use edgefaas_client::exit;
use edgefaas_client::output;
use edgefaas_client::type_check;

/// Pages of development servers on this machine, which may send requests to the gateway.
const LOCAL_PAGES: [&str; 4] =
    ["http://localhost:*", "http://127.0.0.1:*", "https://localhost:*", "https://127.0.0.1:*"];

pub async fn run(args: &Dev, global: &Global) -> anyhow::Result<()> {
    // Log lines of functions come over the control API.
    let _log = log::start("warn,edgefaas::function=off", global.output);
    let app = App::load(&args.app)?;
    let root = app.root.clone();
    node::raise_open_files();
    let data_dir = match &global.data_dir {
        Some(folder) => folder.clone(),
        None => dev_file::prepare(&root).with_context(|| cannot_write(&root))?,
    };
    let mut config = node::config(&args.listen, Some(data_dir.clone()))?;
    config.gateway.cors.extend(LOCAL_PAGES.iter().filter_map(|origin| origin.parse::<CorsOrigin>().ok()));
    node::check_ports(&config)?;
    let shutdown = node::shutdown_signal()?;
    let node = node::build(config).await?;
    let (addresses, broker) = (node.addresses(), node.broker().clone());
    let fingerprint = node.fingerprint();
    let mut serving = tokio::spawn(node.run(shutdown.clone()));

    let session =
        session(args, global.output, app, (&addresses, broker), fingerprint, &data_dir, &shutdown);
    tokio::select! {
        served = &mut serving => Ok(served??),
        result = session => {
            shutdown.cancel();
            Ok(result.and(serving.await?.map_err(anyhow::Error::from))?)
        }
    }
}

/// Deploys, shows logs and redeploys until the shutdown.
async fn session(
    args: &Dev,
    format: Format,
    app: App,
    (addresses, broker): (&Addresses, Broker),
    fingerprint: Option<String>,
    data_dir: &Path,
    shutdown: &CancellationToken,
) -> anyhow::Result<()> {
    let root = app.root.clone();
    let control = dev_file::control_url(addresses.control, addresses.control_tls);
    let token_file = data_dir.join("token");
    let token = tokio::fs::read_to_string(&token_file)
        .await
        .with_context(|| format!("the node's token {} cannot be read", token_file.display()))?;
    let token = token.trim().to_owned();
    let mut client = {
        let pin = fingerprint.as_deref().and_then(|text| text.parse().ok());
        connection::connect_to(&NodeUrl::parse(&control)?, Some(&token), pin).await?
    };
    let dev_node = DevNode { control, token, fingerprint: fingerprint.clone(), pid: std::process::id() };
    let _written = dev_file::write(&root, &dev_node).with_context(|| cannot_write(&root))?;

    let mode = if app.is_file { RecursiveMode::NonRecursive } else { RecursiveMode::Recursive };
    // Start before the first build, so that no change is missed.
    let mut watch = Watch::start(&root, mode)?;
    announce_ready(addresses, fingerprint.as_deref(), data_dir, format)?;
    let _logs = AbortOnDropHandle::new(follow_logs(client.clone(), format));

    let _progress = AbortOnDropHandle::new(tokio::spawn(workflow_progress::show(broker)));

    let mut shown = Vec::new();
    let mut secrets = EnvSecrets::default();
    let mut loaded = Ok(app);
    // Type errors are warnings, and delay no deploy. The next change ends the check.
    let mut _types;
    loop {
        let deployed = async {
            let app = loaded?;
            set_secrets(&app, &mut secrets, &mut client).await?;
            let response = deploy::deploy(&app, false, &mut client).await?;
            anyhow::Ok((app, response))
        };
        tokio::select! {
            () = shutdown.cancelled() => return Ok(()),
            result = deployed => match result {
                Ok((app, response)) => announce(&app, &response, addresses, &mut shown),
                Err(error) => {
                    exit::show(&error);
                    eprintln!("{}", not_deployed(&mut client).await);
                }
            },
        }
        _types = (mode == RecursiveMode::Recursive)
            .then(|| AbortOnDropHandle::new(tokio::spawn(show_type_errors(root.clone()))));
        let changed = tokio::select! {
            () = shutdown.cancelled() => return Ok(()),
            changed = watch.changed() => changed,
        };
        let Some(path) = changed else { anyhow::bail!("the watcher of the app's files ended") };
        eprintln!("changed {}", output::line(&relative(&path, &root).to_string_lossy()));
        loaded = App::load(&args.app);
    }
}

/// What runs after a deploy that failed: perhaps a revision of an earlier session.
async fn not_deployed(client: &mut Client) -> &'static str {
    match client.list(proto::ListRequest::default()).await {
        Ok(list) if list.get_ref().apps.is_empty() => {
            "not deployed; no revision is live: the next change that builds is deployed"
        }
        _ => "not deployed; the live revision stays live until a change builds",
    }
}

fn announce(app: &App, response: &proto::DeployResponse, addresses: &Addresses, shown: &mut Vec<String>) {
    deploy::warn(&response.warnings);
    if response.unchanged {
        eprintln!("nothing to deploy: this revision is live");
    } else if let Some(deployed) = &response.app {
        eprintln!("{} {} is live", deployed.name, output::short(&deployed.revision));
    }
    let lines: Vec<_> = hints(&app.manifest, addresses).iter().map(|hint| output::line(hint)).collect();
    if lines != *shown {
        eprintln!("try:\n  {}", lines.join("\n  "));
        *shown = lines;
    }
}

/// Sets those secrets of the file `.env` that the app names, if they have changed since `known`, and removes those that it has no more.
async fn set_secrets(app: &App, known: &mut EnvSecrets, client: &mut Client) -> anyhow::Result<()> {
    if app.is_file {
        return Ok(());
    }
    let read = env_file::read(&app.root)?;
    let named = if read.is_empty() { BTreeSet::new() } else { app.secret_names()? };
    let (set, left_out): (BTreeMap<_, _>, BTreeMap<_, _>) =
        read.into_iter().partition(|(name, _)| named.contains(name));
    let secrets = EnvSecrets { set, left_out: left_out.into_keys().collect() };
    if secrets == *known {
        return Ok(());
    }
    let name_of_app = || app.manifest.app.clone();
    for (name, value) in &secrets.set {
        let (app, name, value) = (name_of_app(), name.clone(), value.clone());
        let request = proto::SetSecretRequest { app, name, value, this_node: true };
        client.set_secret(request).await.map_err(|status| connection::failure(&status))?;
    }
    for name in known.set.keys().filter(|name| !secrets.set.contains_key(*name)) {
        let request =
            proto::RemoveSecretRequest { app: name_of_app(), name: name.clone(), this_node: true };
        client.remove_secret(request).await.map_err(|status| connection::failure(&status))?;
    }
    let list = |names: Vec<&str>| if names.is_empty() { "none".to_owned() } else { names.join(", ") };
    eprintln!(
        "secrets of {}: {}",
        env_file::FILE_NAME,
        list(secrets.set.keys().map(String::as_str).collect())
    );
    if !secrets.left_out.is_empty() {
        eprintln!(
            "left out, since no function and no workflow names them in `secrets`: {}",
            list(secrets.left_out.iter().map(String::as_str).collect())
        );
    }
    *known = secrets;
    Ok(())
}

/// Entries of the file `.env`.
#[derive(Default, PartialEq, Eq)]
struct EnvSecrets {
    /// Those that the app names, with their values: the node has them.
    set: BTreeMap<String, String>,
    /// The names of the others.
    left_out: Vec<String>,
}

async fn show_type_errors(root: PathBuf) {
    type_check::show(&type_check::problems(&root).await);
}

/// Prints log lines as they arrive.
fn follow_logs(mut client: Client, format: Format) -> JoinHandle<()> {
    tokio::spawn(async move {
        let request = proto::LogsRequest { follow: true, ..Default::default() };
        let Ok(response) = client.logs(request).await else { return };
        let mut lines = response.into_inner();
        // The stream ends with the node.
        while let Ok(Some(line)) = lines.message().await {
            if output::log(&line, format).is_err() {
                return;
            }
        }
    })
}

fn relative(path: &Path, root: &Path) -> PathBuf {
    let root = root.canonicalize();
    root.ok().and_then(|root| path.strip_prefix(root).ok()).unwrap_or(path).to_owned()
}

fn cannot_write(root: &Path) -> String {
    format!(
        "{} cannot be written; give another folder with --data-dir",
        root.join(dev_file::FOLDER).display()
    )
}
