//! `edgefaas cluster init|token|join|revoke`

use std::time::Duration;

use edgefaas_api::control as proto;
use serde_json::json;

use crate::args::{Cluster, Format, Global};
use crate::connection::{self, Client};
use crate::output;
use crate::progress::Step;

pub async fn run(args: &Cluster, global: &Global) -> anyhow::Result<()> {
    let client = connection::connect(global).await?;
    match args {
        Cluster::Init { name } => init(client, name.as_deref(), global).await,
        Cluster::Token { life } => token(client, *life, global).await,
        Cluster::Join { invitation, name } => join(client, invitation, name.as_deref(), global).await,
        Cluster::Revoke { name } => revoke(client, name, global).await,
    }
}

async fn init(mut client: Client, name: Option<&str>, global: &Global) -> anyhow::Result<()> {
    let request = proto::InitClusterRequest { name: name.unwrap_or_default().to_owned() };
    let cluster =
        client.init_cluster(request).await.map_err(|status| connection::failure(&status))?.into_inner();
    let request = proto::OpenClusterRequest { life_ms: 0 };
    let opened = client.open_cluster(request).await.map_err(|status| connection::failure(&status))?;
    let token = opened.into_inner().token;
    match global.output {
        Format::Json => {
            output::json(&json!({ "cluster": cluster.id, "name": cluster.name, "token": token }))
        }
        Format::Table => output::text(&format!(
            "{} is the first member of cluster {}\nwithin an hour, run on the next node:\n\n  edgefaas cluster join {token}\n",
            cluster.name, cluster.id
        )),
    }
}

async fn token(mut client: Client, life: Duration, global: &Global) -> anyhow::Result<()> {
    let request =
        proto::OpenClusterRequest { life_ms: u64::try_from(life.as_millis()).unwrap_or(u64::MAX) };
    let opened = client.open_cluster(request).await.map_err(|status| connection::failure(&status))?;
    let token = opened.into_inner().token;
    match global.output {
        Format::Json => output::json(&json!({ "token": token })),
        Format::Table => output::text(&format!("{token}\n")),
    }
}

async fn join(mut client: Client, token: &str, name: Option<&str>, global: &Global) -> anyhow::Result<()> {
    let name = name.unwrap_or_default().to_owned();
    let request = proto::JoinClusterRequest { token: token.to_owned(), name };
    let cluster = {
        let _step = Step::start("Joining the cluster");
        client.join_cluster(request).await.map_err(|status| connection::failure(&status))?.into_inner()
    };
    match global.output {
        Format::Json => output::json(&json!({ "cluster": cluster.id, "name": cluster.name })),
        Format::Table => output::text(&format!(
            "{} is a member of cluster {}; `edgefaas nodes` lists all members\n",
            cluster.name, cluster.id
        )),
    }
}

async fn revoke(mut client: Client, name: &str, global: &Global) -> anyhow::Result<()> {
    let request = proto::RevokeMemberRequest { name: name.to_owned() };
    client.revoke_member(request).await.map_err(|status| connection::failure(&status))?;
    match global.output {
        Format::Json => output::json(&json!({ "name": name })),
        Format::Table => output::text(&format!("{name} is revoked\n")),
    }
}
