//! Any bytes as what a peer, a token or a member's files may be.

#![no_main]

use bytes::Bytes;
use edgefaas_cluster::wire::{MESSAGE_LIMIT_BYTES, Message};
use edgefaas_cluster::{Certificate, Membership, Revocation, RevocationList, Token};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    if let Ok(message) = Message::decode_frame(Bytes::copy_from_slice(input), MESSAGE_LIMIT_BYTES) {
        let again = Message::decode_frame(message.encode_frame(), MESSAGE_LIMIT_BYTES * 2);
        assert_eq!(again.expect("what was read can be written and read"), message);
    }
    let _ = Certificate::decode(input);
    let _ = Revocation::decode(input);
    let _ = RevocationList::decode(input);
    let _ = Membership::decode(input);
    if let Ok(text) = std::str::from_utf8(input) {
        let _ = text.parse::<Token>();
    }
});
