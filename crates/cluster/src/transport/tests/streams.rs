//! Streams beside the channel.

use std::io::ErrorKind;

use futures_util::{AsyncReadExt, AsyncWriteExt};

use super::refusals::{Cluster, Stranger, greet, let_in, let_in_old_version};
use super::*;
use crate::StreamPurpose;
use crate::network::frame::Kind;
use crate::network::side_streams::MAX_SIDE_STREAMS;

impl Node {
    async fn open(&self, node_id: u64, purpose: StreamPurpose) -> PeerStream {
        self.handle.open_stream(node_id, purpose).await.unwrap()
    }

    async fn accept(&mut self) -> IncomingStream {
        let accepted = tokio::time::timeout(LIMIT, self.streams.recv()).await;
        accepted.expect("waited too long for a stream").expect("the transport has ended")
    }
}

async fn both_sides_open_streams(kind: TransportKind) {
    let Cluster { mut a, mut b, .. } = Cluster::start(kind).await;
    for (purpose, text) in [(StreamPurpose::Calls, b"call"), (StreamPurpose::Artefacts, b"file")] {
        for (from, to) in [(&a.handle, &mut b.streams), (&b.handle, &mut a.streams)] {
            let own = if from.peers()[0].node_id == 2 { 1 } else { 2 };
            let (opened, accepted) = tokio::join!(from.open_stream(3 - own, purpose), to.recv());
            let mut opened = opened.unwrap();
            let IncomingStream { node_id, purpose: accepted_purpose, mut stream } = accepted.unwrap();
            assert_eq!((node_id, accepted_purpose), (own, purpose));
            let large = vec![7; 1 << 20];
            let sent = async {
                opened.write_all(text).await.unwrap();
                opened.write_all(&large).await.unwrap();
                opened.close().await.unwrap();
                let mut answer = Vec::new();
                opened.read_to_end(&mut answer).await.unwrap();
                answer
            };
            let served = async {
                let mut received = Vec::new();
                stream.read_to_end(&mut received).await.unwrap();
                stream.write_all(b"done").await.unwrap();
                stream.close().await.unwrap();
                received
            };
            let (answer, received) = tokio::join!(sent, served);
            assert_eq!(answer, b"done");
            assert_eq!(received, [text.as_slice(), &large].concat());
        }
    }
    // The channel is as it was.
    a.handle.try_send(2, "a".into()).unwrap();
    assert_eq!(b.wait_frame(1).await, "a");
    let gone = a.handle.open_stream(9, StreamPurpose::Calls).await.unwrap_err();
    assert_eq!(gone, OpenStreamError::Gone { node_id: 9 });
}

#[tokio::test]
async fn both_sides_open_streams_by_tcp() {
    both_sides_open_streams(TransportKind::Tcp).await;
}

#[tokio::test]
async fn both_sides_open_streams_by_quic() {
    both_sides_open_streams(TransportKind::Quic).await;
}

#[tokio::test]
async fn streams_end_with_the_channel() {
    for kind in [TransportKind::Tcp, TransportKind::Quic] {
        let Cluster { mut a, mut b, .. } = Cluster::start(kind).await;
        let mut opened = a.open(2, StreamPurpose::Calls).await;
        let mut accepted = b.accept().await.stream;
        a.handle.disconnect(2);
        let mut byte = [0];
        assert_eq!(opened.read(&mut byte).await.unwrap_err().kind(), ErrorKind::ConnectionAborted);
        assert_eq!(opened.write(&[1]).await.unwrap_err().kind(), ErrorKind::ConnectionAborted);
        b.wait_down(1).await;
        assert_eq!(accepted.read(&mut byte).await.unwrap_err().kind(), ErrorKind::ConnectionAborted);
        tokio::join!(a.wait_up(2), b.wait_up(1));
        let _ = tokio::join!(a.open(2, StreamPurpose::Calls), b.accept());
        // A waiting call ends, too.
        let mut held = Vec::new();
        for _ in 0..MAX_SIDE_STREAMS {
            held.push(a.open(2, StreamPurpose::Calls).await);
        }
        let revocation = async {
            tokio::task::yield_now().await;
            a.handle.disconnect(2);
        };
        let (waiting, ()) = tokio::join!(a.handle.open_stream(2, StreamPurpose::Calls), revocation);
        assert_eq!(waiting.unwrap_err(), OpenStreamError::Gone { node_id: 2 });
    }
}

#[tokio::test]
async fn streams_of_a_revoked_member_end() {
    let Cluster { key, a, mut b, .. } = Cluster::start(TransportKind::Tcp).await;
    let mut opened = a.open(2, StreamPurpose::Artefacts).await;
    let mut accepted = b.accept().await.stream;
    a.handle.revoke(key.revoke(b.identity.peer_id())).unwrap();
    let mut byte = [0];
    assert_eq!(opened.read(&mut byte).await.unwrap_err().kind(), ErrorKind::ConnectionAborted);
    b.wait_down(1).await;
    assert_eq!(accepted.read(&mut byte).await.unwrap_err().kind(), ErrorKind::ConnectionAborted);
    let error = a.handle.open_stream(2, StreamPurpose::Artefacts).await.unwrap_err();
    assert_eq!(error, OpenStreamError::Gone { node_id: 2 });
}

/// Streams of a peer that has not proved to be a member are not served, and wait if it does so later.
#[tokio::test]
async fn a_peer_in_the_handshake_gets_no_stream() {
    let mut cluster = Cluster::start(TransportKind::Tcp).await;
    let identity = Identity::generate();
    let stranger = Stranger::connect(&identity, &cluster.at).await;
    let mut early = stranger.side_streams.opener.open(StreamPurpose::Calls).await.unwrap().unwrap();
    early.stream.write_all(b"early").await.unwrap();
    early.stream.flush().await.unwrap();
    // A stream of a member that was opened later is there, and this one is not.
    let _opened = cluster.b.open(1, StreamPurpose::Artefacts).await;
    assert_eq!(cluster.a.accept().await.node_id, 2);
    assert!(tokio::time::timeout(Duration::ZERO, cluster.a.streams.recv()).await.is_err());
    let stranger = greet(&mut cluster, stranger, &identity).await;
    let IncomingStream { node_id, mut stream, .. } = cluster.a.accept().await;
    let mut text = [0; 5];
    stream.read_exact(&mut text).await.unwrap();
    assert_eq!((node_id, &text), (3, b"early"));
    drop(stranger);

    let mut stranger = Stranger::connect(&Identity::generate(), &cluster.at).await;
    let mut early = stranger.side_streams.opener.open(StreamPurpose::Calls).await.unwrap().unwrap();
    stranger.say(Kind::Hello, b"no hello").await;
    let ended = tokio::time::timeout(LIMIT, early.stream.read(&mut text)).await.expect("it stays open");
    assert!(matches!(ended, Ok(0) | Err(_)), "{ended:?}");
    assert!(tokio::time::timeout(Duration::ZERO, cluster.a.streams.recv()).await.is_err());
}

#[tokio::test]
async fn an_older_version_serves_no_streams() {
    let mut cluster = Cluster::start(TransportKind::Tcp).await;
    let _old = let_in_old_version(&mut cluster).await;
    let error = cluster.a.handle.open_stream(3, StreamPurpose::Calls).await.unwrap_err();
    assert_eq!(error, OpenStreamError::Unsupported { node_id: 3, purpose: StreamPurpose::Calls });
    assert_eq!(cluster.a.handle.peers().len(), 2, "its channel stays");
}

/// A member that opens streams without end: those over the limit are reset, and the others are served.
async fn streams_are_bounded(kind: TransportKind) {
    let mut cluster = Cluster::start(kind).await;
    let flooder = let_in(&mut cluster).await;
    let mut held = Vec::new();
    for _ in 0..MAX_SIDE_STREAMS {
        held.push(flooder.side_streams.opener.open(StreamPurpose::Calls).await.unwrap().unwrap());
        assert_eq!(cluster.a.accept().await.node_id, 3);
    }
    // Both ends count: a new one gets through when an old one is gone.
    for _ in 0..10 * MAX_SIDE_STREAMS {
        held.remove(0);
        held.push(flooder.side_streams.opener.open(StreamPurpose::Calls).await.unwrap().unwrap());
        assert_eq!(cluster.a.accept().await.node_id, 3);
    }
    assert_eq!(cluster.a.handle.peers().len(), 2);
    let _opened = cluster.b.open(1, StreamPurpose::Artefacts).await;
    assert_eq!(cluster.a.accept().await.node_id, 2);
}

#[tokio::test]
async fn streams_are_bounded_by_tcp() {
    streams_are_bounded(TransportKind::Tcp).await;
}

#[tokio::test]
async fn streams_are_bounded_by_quic() {
    streams_are_bounded(TransportKind::Quic).await;
}

/// A node that takes no streams resets those of its members, and its channels go on.
#[tokio::test]
async fn streams_that_the_node_does_not_take_are_refused() {
    let key = ClusterKey::generate();
    let mut a = start(Options { incoming_stream_capacity: 1, ..options(&key, 1) }).await;
    let of_b = Options { bootstrap: vec![a.address(TransportKind::Tcp)], ..options(&key, 2) };
    let mut b = start(of_b).await;
    tokio::join!(a.wait_up(2), b.wait_up(1));
    let _first = b.open(1, StreamPurpose::Calls).await;
    let mut second = b.open(1, StreamPurpose::Calls).await;
    let mut byte = [0];
    let read = tokio::time::timeout(LIMIT, second.read(&mut byte)).await.expect("it stays open");
    assert!(matches!(read, Ok(0) | Err(_)), "{read:?}");
    assert_eq!(a.handle.counters().streams_refused, 1);
    assert_eq!(a.accept().await.node_id, 2);
    drop(second);
    let mut third = b.open(1, StreamPurpose::Calls).await;
    third.write_all(b"x").await.unwrap();
    third.flush().await.unwrap();
    a.accept().await.stream.read_exact(&mut byte).await.unwrap();
    assert_eq!(&byte, b"x");
    b.handle.try_send(1, "on".into()).unwrap();
    assert_eq!(a.wait_frame(2).await, "on");
}
