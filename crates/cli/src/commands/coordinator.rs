//! `edgefaas coordinator --broker URL --in FILTER`

use std::net::{Ipv4Addr, SocketAddr};

use edgefaas_node::bridge::config::{BridgeQoS, BridgeSection, BridgeVersion, Direction, TopicSection};

use super::run::serve;
use crate::args::Coordinator;
use crate::log;
use crate::node;
use edgefaas_client::args::Global;
use edgefaas_client::exit::{Exit, Failure};

/// MQTT keepalive of the connection to the broker.
const KEEPALIVE: std::time::Duration = std::time::Duration::from_secs(30);

/// Runs a node whose messages come from another broker, and go there.
pub async fn run(args: &Coordinator, global: &Global) -> anyhow::Result<()> {
    let _log = log::start("info,fjall=warn,lsm_tree=warn", global.output);
    node::raise_open_files();
    let mut config = node::config(&args.listen, global.data_dir.clone())?;
    if args.listen.mqtt.is_none() {
        // Its own broker has no other clients, and 1883 may belong to the other broker.
        config.mqtt = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    }
    let invalid = |reason: String| Failure::new(Exit::Usage, reason);
    let qos = BridgeQoS::try_from(args.qos).map_err(invalid)?;
    let topics = |filters: &[String], direction: Direction| {
        let topic = |filter: &String| TopicSection {
            filter: filter.clone(),
            direction,
            qos,
            local_prefix: String::new(),
            remote_prefix: String::new(),
        };
        filters.iter().map(topic).collect::<Vec<_>>()
    };
    let mut all = topics(&args.inward, Direction::In);
    all.extend(topics(&args.outward, Direction::Out));
    config.bridges.push(BridgeSection {
        name: "coordinator".to_owned(),
        url: args.broker.clone(),
        ca: None,
        cert: None,
        key: None,
        username: args.username.clone(),
        password_file: args.password_file.clone(),
        client_id: None,
        keepalive: KEEPALIVE,
        version: BridgeVersion::V5,
        topics: all,
    });
    serve(config, global).await
}
