//! Any bytes as a message about artefacts, and as a tree.

#![no_main]

use std::time::Duration;

use bytes::Bytes;
use edgefaas_cluster::artefacts::wire::{Kind, Message};
use edgefaas_cluster::artefacts::{Event, Settings, Transfers};
use edgefaas_cluster::replication::NodeId;
use libfuzzer_sys::fuzz_target;
use prost::Message as _;

fuzz_target!(|input: &[u8]| {
    let Ok(message) = Message::decode_frame(Bytes::copy_from_slice(input)) else { return };
    let again = Message::decode_frame(message.encode_to_vec().into());
    assert_eq!(again.expect("what was read can be written and read"), message);
    let Some(blob) = message.digest() else { return };
    if let Some(Kind::Tree(parts)) = message.kind.clone() {
        let _ = parts.check(&blob);
    }
    let mut machine = Transfers::new(NodeId(1), Settings::default());
    machine.handle(Event::Want { blob, candidates: Vec::new(), resumed: None }, Duration::ZERO);
    machine.handle(Event::Received { node: NodeId(2), message }, Duration::ZERO);
});
