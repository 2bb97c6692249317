//! `edgefaas secrets set|list|rm`

use edgefaas_node::control::proto;
use edgefaas_node::manifest::is_secret_name;
use serde_json::json;

use crate::args::{Format, Global, Secrets};
use crate::client;
use crate::exit::{Exit, Failure};
use crate::input;
use crate::output;

pub async fn run(args: &Secrets, global: &Global) -> anyhow::Result<()> {
    match args {
        Secrets::Set { name } => set(name, global).await,
        Secrets::List => list(global).await,
        Secrets::Rm { name } => remove(name, global).await,
    }
}

async fn set(name: &str, global: &Global) -> anyhow::Result<()> {
    if !is_secret_name(name) {
        let message = format!(
            "`{name}` is no name of a secret: it has 1 to 256 of letters, digits, `_`, `-` and `.`"
        );
        return Err(Failure::new(Exit::Usage, message));
    }
    let mut client = client::connect(global).await?;
    let value = input::secret(&format!("Value of {name}"), &format!("the value of {name}"))?;
    let request = proto::SetSecretRequest { name: name.to_owned(), value };
    client.set_secret(request).await.map_err(|status| client::failure(&status))?;
    done(json!({ "name": name, "set": true }), &format!("{name} is set"), global)
}

async fn list(global: &Global) -> anyhow::Result<()> {
    let mut client = client::connect(global).await?;
    let response = client.list_secrets(proto::ListSecretsRequest {}).await;
    let names = response.map_err(|status| client::failure(&status))?.into_inner().names;
    match global.output {
        Format::Json => output::json(&json!({ "names": names })),
        Format::Table => {
            let lines: String = names.iter().map(|name| format!("{name}\n")).collect();
            output::text(&lines)
        }
    }
}

async fn remove(name: &str, global: &Global) -> anyhow::Result<()> {
    let mut client = client::connect(global).await?;
    let request = proto::RemoveSecretRequest { name: name.to_owned() };
    client.remove_secret(request).await.map_err(|status| client::failure(&status))?;
    done(json!({ "name": name, "set": false }), &format!("{name} is forgotten"), global)
}

fn done(value: serde_json::Value, text: &str, global: &Global) -> anyhow::Result<()> {
    match global.output {
        Format::Json => output::json(&value),
        Format::Table => output::text(&format!("{text}\n")),
    }
}
