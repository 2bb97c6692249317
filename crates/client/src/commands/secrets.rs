//! `edgefaas secrets set|list|rm`

use std::io::ErrorKind;
use std::path::Path;

use edgefaas_api::control as proto;
use edgefaas_manifest::{FILE_NAME, Manifest, is_name, is_secret_name};
use serde_json::json;

use super::list::check_app;
use crate::app::read_manifest;
use crate::args::{Format, Global, Secrets};
use crate::connection;
use crate::exit::{Exit, Failure};
use crate::input;
use crate::output;

pub async fn run(args: &Secrets, global: &Global) -> anyhow::Result<()> {
    match args {
        Secrets::Set { name, app, this_node } => set(name, app.as_deref(), *this_node, global).await,
        Secrets::List { app } => list(app.as_deref(), global).await,
        Secrets::Rm { name, unassigned: true, .. } => remove(name, String::new(), true, global).await,
        Secrets::Rm { name, app, this_node, .. } => {
            remove(name, app_or_folder(app.as_deref())?, *this_node, global).await
        }
    }
}

/// The app of `--app`, or the one in this folder.
fn app_or_folder(app: Option<&str>) -> anyhow::Result<String> {
    let usage = |message: String| Failure::new(Exit::Usage, message);
    match app {
        Some(app) if is_name(app) => return Ok(app.to_owned()),
        Some(app) => return Err(usage(format!("`{app}` is not a name of an app"))),
        None => {}
    }
    let text = read_manifest(Path::new(FILE_NAME)).map_err(|error| {
        let found = match error.kind() {
            ErrorKind::NotFound => format!("this folder has no {FILE_NAME}"),
            _ => format!("{FILE_NAME} of this folder cannot be read: {error}"),
        };
        usage(format!(
            "a secret belongs to an app: name it with --app APP, or run this in its folder ({found})"
        ))
    })?;
    Ok(Manifest::parse(&text, FILE_NAME)?.app)
}

async fn set(name: &str, app: Option<&str>, this_node: bool, global: &Global) -> anyhow::Result<()> {
    if !is_secret_name(name) {
        let message = format!(
            "`{name}` is not a name of a secret: a name has 1 to 256 of letters, digits, `_`, `-` and `.`"
        );
        return Err(Failure::new(Exit::Usage, message));
    }
    let app = app_or_folder(app)?;
    // Report a missing node before the value is typed; the node closes an idle connection meanwhile.
    drop(connection::connect(global).await?);
    let value = input::secret(&format!("Value of {name}"), &format!("the value of {name}"))?;
    let mut client = connection::connect(global).await?;
    let request = proto::SetSecretRequest { name: name.to_owned(), value, app: app.clone(), this_node };
    client.set_secret(request).await.map_err(|status| connection::failure(&status))?;
    let listed =
        client.list(proto::ListRequest::default()).await.map_err(|status| connection::failure(&status))?;
    if !listed.into_inner().apps.iter().any(|deployed| deployed.name == app) {
        eprintln!("note: no app `{app}` is deployed yet; it gets the secret with its deploy");
    }
    done(json!({ "app": app, "name": name, "set": true }), &format!("{name} of {app} is set"), global)
}

async fn list(app: Option<&str>, global: &Global) -> anyhow::Result<()> {
    let mut client = connection::connect(global).await?;
    let request = proto::ListSecretsRequest { app: app.unwrap_or_default().to_owned() };
    let response = client.list_secrets(request).await;
    let secrets = response.map_err(|status| connection::failure(&status))?.into_inner().secrets;
    if let (Some(app), true) = (app, secrets.is_empty()) {
        check_app(app, "secret of it", global).await?;
    }
    let app = |secret: &proto::Secret| (!secret.app.is_empty()).then(|| secret.app.clone());
    match global.output {
        Format::Json => {
            let secret = |secret: &proto::Secret| json!({ "app": app(secret), "name": secret.name });
            output::json(&json!({ "secrets": secrets.iter().map(secret).collect::<Vec<_>>() }))
        }
        Format::Table => {
            let line = |secret: &proto::Secret| {
                format!("{} {}\n", app(secret).as_deref().unwrap_or("(no app)"), secret.name)
            };
            output::text(&secrets.iter().map(line).collect::<String>())
        }
    }
}

async fn remove(name: &str, app: String, this_node: bool, global: &Global) -> anyhow::Result<()> {
    let mut client = connection::connect(global).await?;
    let request = proto::RemoveSecretRequest { name: name.to_owned(), app: app.clone(), this_node };
    client.remove_secret(request).await.map_err(|status| connection::failure(&status))?;
    let app = (!app.is_empty()).then_some(app);
    let text = match &app {
        Some(app) => format!("{name} of {app} is removed"),
        None => format!("{name} is removed"),
    };
    done(json!({ "app": app, "name": name, "set": false }), &text, global)
}

fn done(value: serde_json::Value, text: &str, global: &Global) -> anyhow::Result<()> {
    match global.output {
        Format::Json => output::json(&value),
        Format::Table => output::text(&format!("{text}\n")),
    }
}
