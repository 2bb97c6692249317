//! `edgefaas login URL`

use std::io::{IsTerminal, Write};

use anyhow::Context;
use edgefaas_api::control as proto;
use edgefaas_node::tls::Fingerprint;
use serde_json::json;

use crate::args::{Format, Global, Login};
use crate::client::{self, CONNECT_TIMEOUT, NodeUrl};
use crate::exit::{Exit, Failure};
use crate::input;
use crate::known_nodes::{KnownNode, KnownNodes};
use crate::output;
use crate::tls::PinnedConnector;

pub async fn run(args: &Login, global: &Global) -> anyhow::Result<()> {
    let url = NodeUrl::parse(&args.url)?;
    if !url.secure && args.url.contains("://") {
        let message = format!(
            "`{}`: only nodes that other machines can reach are logged in to, by https; commands find the \
             token of a node on this machine themselves",
            args.url
        );
        return Err(Failure::new(Exit::Usage, message));
    }
    let url = NodeUrl { secure: true, ..url };
    let connector = PinnedConnector::new(&url.host, url.port, None)?;
    let fingerprint =
        connector.probe(CONNECT_TIMEOUT).await.map_err(|error| client::unreachable(&url, &error))?;
    check(&url, fingerprint, args.fingerprint)?;
    let token = match &global.token {
        Some(token) => token.clone(),
        None => input::secret("Token (the file `token` in the node's data directory)", "the token")?,
    };
    let mut connected = client::connect_to(&url, Some(token.trim()), Some(fingerprint)).await?;
    let status =
        connected.status(proto::StatusRequest {}).await.map_err(|status| client::failure(&status))?;
    let node_id = status.into_inner().node_id;
    let known = KnownNode { fingerprint: fingerprint.to_string(), token: token.trim().to_owned() };
    let path = KnownNodes::remember(&url.to_string(), known)?;
    match global.output {
        Format::Json => output::json(&json!({
            "node": url.to_string(),
            "node_id": node_id,
            "fingerprint": fingerprint.to_string(),
        })),
        Format::Table => output::text(&format!(
            "logged in to node {node_id}; kept in {}\nnow: edgefaas --node {url} status\n",
            path.display()
        )),
    }
}

/// Is this the certificate it should be? A person is asked, a script says.
fn check(url: &NodeUrl, found: Fingerprint, wanted: Option<Fingerprint>) -> anyhow::Result<()> {
    match wanted {
        Some(wanted) if wanted == found => return Ok(()),
        Some(wanted) => {
            let message = format!(
                "the certificate of {url} has the fingerprint {found}, not {wanted} as given; nothing was \
                 sent and nothing is kept"
            );
            return Err(Failure::new(Exit::Refused, message));
        }
        None => {}
    }
    if !std::io::stdin().is_terminal() {
        let message = format!(
            "nobody is there to compare the fingerprint of {url}: it is {found}; if that is right, give it \
             with --fingerprint"
        );
        return Err(Failure::new(Exit::Usage, message));
    }
    let before = KnownNodes::load()?.get(&url.to_string()).and_then(KnownNode::pin);
    let changed = match before {
        Some(before) if before != found => {
            format!("\nIt is another than before, which had\n\n    {before}\n")
        }
        _ => String::new(),
    };
    eprint!(
        "The node at {url} shows a certificate with the SHA-256 fingerprint\n\n    {found}\n{changed}\n\
         Compare it with what the node says when it starts, or `edgefaas status` on the node.\n\
         Are they the same? [y/N] "
    );
    std::io::stderr().flush().context("the question cannot be shown")?;
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer).context("the answer cannot be read")?;
    match answer.trim().to_lowercase().as_str() {
        "y" | "yes" => Ok(()),
        _ => Err(Failure::new(Exit::Refused, "not logged in; nothing was sent and nothing is kept")),
    }
}
