//! A member with a valid certificate that lies about others, over the real transport.

use super::frame::Kind;
use super::refusals::{Cluster, let_in};
use super::*;
use crate::known_addresses::encode_addresses;
use crate::membership::{MemberWire, encode_members};
use crate::revocation::encode_revocation;
use crate::{Certificate, Multiaddr, NewCertificate};

fn member(certificate: &Certificate, addresses: &[&str]) -> MemberWire {
    let addresses: Vec<Multiaddr> = addresses.iter().map(|text| text.parse().unwrap()).collect();
    MemberWire {
        certificate: certificate.encode(),
        addresses: encode_addresses(&addresses),
        is_hearsay: false,
    }
}

/// Addresses that a member reports about others never replace addresses that the node has seen itself.
#[tokio::test]
async fn lies_about_the_addresses_of_others_change_nothing() {
    let mut cluster = Cluster::start(TransportKind::Tcp).await;
    let of_b = cluster.b.membership.lock().own().clone();
    let peer = of_b.peer_id();
    let known = |cluster: &Cluster| {
        cluster.a.membership.lock().member(&peer).map(|member| member.addresses.clone()).unwrap()
    };
    cluster.a.until(|node| node.membership.lock().member(&peer).is_some()).await;
    let first_hand = known(&cluster).first_hand();
    assert!(!first_hand.is_empty());
    let mut liar = let_in(&mut cluster).await;
    for number in 0..500_u32 {
        let lies =
            [1, 2, 3, 4].map(|port| format!("/ip4/127.9.{}.{}/tcp/{port}", number / 250, number % 250));
        let lies: Vec<&str> = lies.iter().map(String::as_str).collect();
        liar.say(Kind::Members, &encode_members(&[member(&of_b, &lies)])).await;
    }
    // Frames are taken in their order.
    liar.say(Kind::Data, b"told").await;
    assert_eq!(cluster.a.wait_frame(3).await, "told");
    let after = known(&cluster);
    assert_eq!(after.first_hand(), first_hand);
    assert_eq!(after.all()[..first_hand.len()], first_hand);
    assert!(after.hearsay().len() <= 2, "{after:?}");
    // The honest are connected, and connect again.
    cluster.b.handle.disconnect(1);
    tokio::join!(cluster.a.wait_up(2), cluster.b.wait_up(1));
}

/// Only the holder of the cluster key can issue members and revocations.
#[tokio::test]
async fn forged_members_and_revocations_end_the_channel() {
    let mut cluster = Cluster::start(TransportKind::Tcp).await;
    let of_b = cluster.b.membership.lock().own().clone();
    let foreign = ClusterKey::generate();
    let new = NewCertificate {
        peer_id: of_b.peer_id(),
        node_id: 9,
        name: "node-2".into(),
        serial: 9,
        issued_unix_ms: u64::MAX,
    };
    let certificate = foreign.issue(new).unwrap();
    let mut altered = encode_revocation(&cluster.key.revoke(PeerId::random()));
    *altered.last_mut().unwrap() ^= 1;
    let cases = [
        (Kind::Members, encode_members(&[member(&certificate, &[])])),
        (Kind::RevocationSet, encode_revocation(&foreign.revoke(of_b.peer_id()))),
        (Kind::RevocationSet, altered),
        (Kind::Revocations, foreign.revoke_serials(9, [of_b.serial()]).encode()),
        (Kind::Copied, b"no address".to_vec()),
    ];
    for (number, (kind, body)) in cases.into_iter().enumerate() {
        let mut forger = let_in(&mut cluster).await;
        forger.say(kind, &body).await;
        assert_eq!(cluster.a.wait_down(3).await, DownReason::Refused(Refusal::Malformed), "{kind:?}");
        assert_eq!(cluster.a.handle.counters().refused(Refusal::Malformed), number as u64 + 1);
    }
    assert!(!cluster.a.membership.lock().is_revoked(&of_b));
    assert_eq!(cluster.a.membership.lock().member(&of_b.peer_id()).unwrap().certificate, of_b);
    assert_eq!(cluster.a.handle.peers().len(), 1);
    cluster.a.handle.try_send(2, "on".into()).unwrap();
    assert_eq!(cluster.b.wait_frame(1).await, "on");
}

/// Heartbeats, unknown kinds and its own membership, again and again, without reading an answer.
#[tokio::test]
async fn a_flood_is_bounded_and_the_others_are_served() {
    let mut cluster = Cluster::start(TransportKind::Tcp).await;
    let mut flooder = let_in(&mut cluster).await;
    let of_a = cluster.a.membership.lock().own().clone();
    let members = encode_members(&vec![member(&of_a, &["/ip4/127.0.0.9/tcp/1"]); 200]);
    let flood = async {
        for number in 0..3_000_u64 {
            flooder.say(Kind::Ping, &number.to_be_bytes()).await;
            flooder.say(Kind::Unknown, &[7; 100]).await;
            if number % 20 == 0 {
                flooder.say(Kind::Members, &members).await;
            }
        }
    };
    let Cluster { a, b, .. } = &mut cluster;
    let served = async {
        for number in 0..50_u64 {
            a.handle.try_send(2, Bytes::copy_from_slice(&number.to_be_bytes())).unwrap();
            assert_eq!(b.wait_frame(1).await, number.to_be_bytes().as_slice());
        }
    };
    // Its end may be that it does not read: then it is silent.
    let _ = tokio::join!(tokio::time::timeout(LIMIT, flood), served);
    assert!(cluster.a.handle.peers().iter().any(|peer| peer.node_id == 2));
}
