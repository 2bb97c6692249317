//! `edgefaas login URL`

use std::io::{IsTerminal, Write};

use anyhow::Context;
use edgefaas_api::Fingerprint;
use edgefaas_api::control as proto;
use serde_json::json;

use crate::args::{Format, Global, Login};
use crate::connection::{self, CONNECT_TIMEOUT, NodeUrl};
use crate::exit::{Exit, Failure};
use crate::input;
use crate::known_nodes::{KnownNode, KnownNodes};
use crate::output;
use crate::pinned_tls::PinnedConnector;

pub async fn run(args: &Login, global: &Global) -> anyhow::Result<()> {
    let url = NodeUrl::parse(&args.url)?;
    if !url.secure && args.url.contains("://") {
        let message = format!(
            "`{}`: a login is for nodes on other machines, over https; commands find the \
             token of a node on this machine themselves",
            args.url
        );
        return Err(Failure::new(Exit::Usage, message));
    }
    let url = NodeUrl { secure: true, ..url };
    let connector = PinnedConnector::new(&url.host, url.port, None)?;
    let fingerprint =
        connector.probe(CONNECT_TIMEOUT).await.map_err(|error| connection::unreachable(&url, &error))?;
    check(&url, fingerprint, args.fingerprint)?;
    let token = match &global.token {
        Some(token) => token.clone(),
        None => input::secret("Token (the file `token` in the node's data directory)", "the token")?,
    };
    let mut connected = connection::connect_to(&url, Some(token.trim()), Some(fingerprint)).await?;
    let status =
        connected.status(proto::StatusRequest {}).await.map_err(|status| connection::failure(&status))?;
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
            "logged in to node {node_id}; stored in {}\nnext: edgefaas --node {url} status\n",
            path.display()
        )),
    }
}

/// Compares the certificate with `--fingerprint`, or asks the user to confirm it.
fn check(url: &NodeUrl, found: Fingerprint, expected: Option<Fingerprint>) -> anyhow::Result<()> {
    match expected {
        Some(expected) if expected == found => return Ok(()),
        Some(expected) => {
            let message = format!(
                "the certificate of {url} has the fingerprint {found}, not {expected} as given; nothing was \
                 sent or stored"
            );
            return Err(Failure::new(Exit::Refused, message));
        }
        None => {}
    }
    if !std::io::stdin().is_terminal() {
        let message = format!(
            "stdin is not a terminal, so you cannot confirm the fingerprint of {url}: it is {found}; if it is correct, \
             give it with --fingerprint"
        );
        return Err(Failure::new(Exit::Usage, message));
    }
    let before = KnownNodes::load()?.get(&url.to_string()).and_then(KnownNode::pin);
    let changed = match before {
        Some(before) if before != found => {
            format!("\nIt differs from the trusted one:\n\n    {before}\n")
        }
        _ => String::new(),
    };
    eprint!(
        "The certificate of the node at {url} has the SHA-256 fingerprint\n\n    {found}\n{changed}\n\
         Compare it with the fingerprint that the node prints when it starts, or that `edgefaas status` shows on the node.\n\
         Are they the same? [y/N] "
    );
    std::io::stderr().flush().context("the question cannot be shown")?;
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer).context("the answer cannot be read")?;
    match answer.trim().to_lowercase().as_str() {
        "y" | "yes" => Ok(()),
        _ => Err(Failure::new(Exit::Refused, "not logged in; nothing was sent or stored")),
    }
}
