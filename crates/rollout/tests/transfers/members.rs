//! Members that leave, return, restart or lie in the middle of a fetch.

use std::time::Duration;

use bytes::Bytes;
use edgefaas_cluster::artefacts::wire::{Chunk, Have, Kind, Message, TreeParts};
use edgefaas_cluster::artefacts::{BlobDigest, ChunkSet, Role, Tree};
use prost::Message as _;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;

use crate::MB;
use crate::shells::{Shells, blob};
use edgefaas_rollout::transfer::FetchBlobError;

#[tokio::test(start_paused = true)]
async fn another_holder_goes_on_when_one_vanishes() {
    let mut shells = Shells::default();
    for node in 1..=3 {
        shells.start(node);
    }
    let (digest, bytes) = blob(8 * MB, 21);
    shells.hold(1, &bytes);
    shells.hold(2, &bytes);
    let want = shells.fetch(3, digest, [(1, Role::Holds), (2, Role::Holds)]);
    want.reached(300).await;
    shells.kill(1);
    assert_eq!(want.await.expect("it is fetched").bytes, bytes);
    let received = shells.traffic(3).received_bytes;
    assert!(received < 10 * MB as u64, "{received} bytes: what had arrived is kept");
}

#[tokio::test(start_paused = true)]
async fn without_the_only_holder_the_fetch_fails_and_the_next_one_goes_on() {
    let mut shells = Shells::default();
    shells.start(1);
    shells.start(2);
    let (digest, bytes) = blob(8 * MB, 22);
    shells.hold(1, &bytes);
    let want = shells.fetch(2, digest, [(1, Role::Holds)]);
    want.reached(500).await;
    shells.kill(1);
    let error = want.await.expect_err("no holder");
    assert!(matches!(error, FetchBlobError::NoHolder), "{error}");
    let before = shells.traffic(2).received_bytes;

    shells.start(1);
    let fetched = shells.fetch(2, digest, [(1, Role::Holds)]).await.expect("it is fetched");
    assert_eq!(fetched.bytes, bytes);
    let after = shells.traffic(2).received_bytes - before;
    assert!(after < 5 * MB as u64, "{after} bytes after the return of the holder");
}

#[tokio::test(start_paused = true)]
async fn a_holder_that_becomes_a_candidate_later_is_used() {
    let mut shells = Shells::default();
    shells.start(1);
    shells.start(2);
    let (digest, bytes) = blob(MB, 23);
    shells.hold(1, &bytes);
    let want = shells.fetch(2, digest, []);
    tokio::time::sleep(Duration::from_secs(5)).await;
    shells.artefacts(2).set_candidates(digest, shells.candidates([(1, Role::Holds)])).await;
    assert_eq!(want.await.expect("it is fetched").bytes, bytes);
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_is_lost_for_a_moment_costs_no_chunk_twice() {
    let mut shells = Shells::default();
    shells.start(1);
    shells.start(2);
    let (digest, bytes) = blob(8 * MB, 24);
    shells.hold(1, &bytes);
    let want = shells.fetch(2, digest, [(1, Role::Holds)]);
    for permille in [200, 500, 800] {
        want.reached(permille).await;
        shells.disconnect(1);
        tokio::time::sleep(Duration::from_secs(6)).await;
        shells.connect(1);
    }
    assert_eq!(want.await.expect("it is fetched").bytes, bytes);
    let received = shells.traffic(2).received_bytes;
    assert!(received < 10 * MB as u64, "{received} bytes");
}

#[tokio::test(start_paused = true)]
async fn a_holder_that_restarts_unnoticed_is_asked_again() {
    let mut shells = Shells::default();
    shells.start(1);
    shells.start(2);
    let (digest, bytes) = blob(8 * MB, 25);
    shells.hold(1, &bytes);
    let want = shells.fetch(2, digest, [(1, Role::Holds)]);
    want.reached(300).await;
    // The members do not change meanwhile: only the streams tell.
    shells.kill_unnoticed(1);
    shells.start(1);
    assert_eq!(want.await.expect("it is fetched").bytes, bytes);
}

#[tokio::test(start_paused = true)]
async fn a_member_that_sends_wrong_chunks_is_not_asked_again() {
    let mut shells = Shells::default();
    shells.start(1);
    shells.start(3);
    let (digest, bytes) = blob(2 * MB, 26);
    shells.hold(1, &bytes);
    let lies = liar(&mut shells, 2, digest, bytes.clone());
    let want = shells.fetch(3, digest, [(1, Role::Holds), (2, Role::Holds)]);
    assert_eq!(want.await.expect("it is fetched").bytes, bytes);
    let lies = lies.await.expect("it ended");
    assert!((1..=4).contains(&lies), "{lies} wrong chunks: the requests that were open");

    // With the liar alone there is no holder.
    let lies = liar(&mut shells, 2, digest, bytes);
    shells.kill(3);
    std::fs::remove_file(shells.part_file(3, digest)).expect("the file of before");
    shells.start(3);
    let error = shells.fetch(3, digest, [(2, Role::Holds)]).await.expect_err("no holder");
    assert!(matches!(error, FetchBlobError::NoHolder), "{error}");
    drop(lies);
}

/// A node that sends chunks with a changed byte. Gives their number once nothing has come for a minute.
fn liar(shells: &mut Shells, node: u64, blob: BlobDigest, bytes: Bytes) -> tokio::task::JoinHandle<usize> {
    let (accept, mut streams) = mpsc::unbounded_channel();
    shells.add_foreign(node, accept);
    let open = shells.opener(node);
    tokio::spawn(async move {
        let (_, tree) = Tree::of(&bytes).expect("a tree");
        let mut lies = 0;
        while let Ok(Some((from, mut input))) =
            tokio::time::timeout(Duration::from_secs(60), streams.recv()).await
        {
            let mut output = open(from).await.expect("it reads");
            loop {
                let mut length = [0; 4];
                let read = tokio::time::timeout(Duration::from_secs(60), input.read_exact(&mut length));
                if !matches!(read.await, Ok(Ok(_))) {
                    break;
                }
                let mut frame = vec![0; u32::from_be_bytes(length) as usize];
                input.read_exact(&mut frame).await.expect("a frame");
                let message = Message::decode_frame(frame.into()).expect("a message");
                let answer = match message.kind {
                    Some(Kind::Open(_)) => Kind::Have(Have {
                        size_bytes: bytes.len() as u64,
                        chunks: ChunkSet::all(tree.chunks()).to_bytes(),
                    }),
                    Some(Kind::GetTree(_)) => Kind::Tree(TreeParts::from(&tree)),
                    Some(Kind::Request(request)) => {
                        lies += 1;
                        let set = ChunkSet::from_bytes(tree.chunks(), &request.chunks).expect("a set");
                        let index = set.iter().next().expect("a chunk");
                        let mut wrong = bytes[tree.range(index)].to_vec();
                        wrong[0] ^= 1;
                        Kind::Chunk(Chunk { id: request.id, index: index as u32, bytes: wrong.into() })
                    }
                    _ => continue,
                };
                let answer = Message::new(blob, answer).encode_to_vec();
                let frame = [&(answer.len() as u32).to_be_bytes()[..], &answer].concat();
                if output.write_all(&frame).await.is_err() {
                    break;
                }
            }
        }
        lies
    })
}
