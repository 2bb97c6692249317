//! `edgefaas deploy PATH`

use edgefaas_api::control as proto;
use serde_json::json;

use crate::app::{App, deploy_request};
use crate::app_nodes;
use crate::args::{Deploy, Format, Global};
use crate::connection::{self, Boxed, Client};
use crate::fitting;
use crate::output;
use crate::progress::Step;
use crate::tables;
use crate::type_check::{self, TypeErrors};

pub(super) async fn run(args: &Deploy, global: &Global) -> anyhow::Result<()> {
    let app = App::load(&args.app)?;
    // Report a missing node before a build that may take minutes. The deploy uses a new connection, since the node closes an idle
    // one after some seconds.
    drop(connection::connect(global).await?);
    type_check::check(&app, TypeErrors::of(args.strict)).await?;
    let mut request = deploy_request(&app, app.build().await?, args.strict)?;
    (request.this_node, request.wait_ms) = (args.reach.this_node, args.reach.wait.wait_ms());
    let mut client = connection::connect(global).await?;
    let response = send(&app, request, &mut client).await?;
    let deployed = response.app.unwrap_or_default();
    if global.output == Format::Json {
        return output::json(&json!({
            "app": output::App::from(&deployed),
            "unchanged": response.unchanged,
            "warnings": response.warnings,
            "nodes": app_nodes::json(&response.nodes),
        }));
    }
    warn(&response.warnings);
    app_nodes::warn(&response.nodes);
    let what = if response.unchanged { "was already live" } else { "is live" };
    output::text(&format!("{} {} {what}\n", deployed.name, output::short(&deployed.revision)))?;
    if !deployed.functions.is_empty() {
        fitting::print(&tables::DEPLOYED, tables::deployed_rows(&deployed))?;
    }
    for workflow in &deployed.workflows {
        let durable = if workflow.durable { ", durable" } else { "" };
        let triggers = match workflow.triggers.as_slice() {
            [] => String::new(),
            triggers => format!(", started by {}", triggers.join(" or ")),
        };
        output::text(&format!("workflow {} {}{durable}{triggers}\n", workflow.name, workflow.version))?;
    }
    if response.nodes.len() > 1 {
        fitting::print(&app_nodes::COLUMNS, app_nodes::rows(&response.nodes))?;
    }
    Ok(())
}

/// Builds an app and makes it live.
pub fn deploy<'a>(app: &'a App, strict: bool, client: &'a mut Client) -> Boxed<'a, proto::DeployResponse> {
    Box::pin(async move {
        let request = deploy_request(app, app.build().await?, strict)?;
        send(app, request, client).await
    })
}

async fn send(
    app: &App,
    request: proto::DeployRequest,
    client: &mut Client,
) -> anyhow::Result<proto::DeployResponse> {
    let _step = Step::start(format!("Deploying {}", app.manifest.app));
    let response = client.deploy(request).await.map_err(|status| connection::failure(&status))?;
    Ok(response.into_inner())
}

/// Shows a node's warnings.
pub fn warn(warnings: &[String]) {
    for warning in warnings {
        eprintln!("warning: {}", output::indented(warning));
    }
}
