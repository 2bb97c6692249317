//! Transfers between several nodes in one process: streams in memory, files on the disk, virtual time.

mod bad_days;
mod members;
mod shells;

use std::time::Duration;

use edgefaas_cluster::artefacts::Role;

use edgefaas_rollout::transfer::FetchBlobError;
use shells::{Shells, blob};

const MB: usize = 1_000_000;

#[tokio::test(start_paused = true)]
async fn nodes_fetch_from_the_holder_and_from_each_other() {
    let mut shells = Shells::default();
    let (digest, bytes) = blob(4 * MB, 1);
    for node in 1..=5 {
        shells.start(node);
    }
    shells.hold(1, &bytes);
    let wants: Vec<_> = (2..=5)
        .map(|node| {
            let others = (2..=5).filter(|other| *other != node).map(|other| (other, Role::Fetches));
            shells.fetch(node, digest, others.chain([(1, Role::Holds)]))
        })
        .collect();
    for want in wants {
        let fetched = want.await.expect("it is fetched");
        assert_eq!(fetched.bytes, bytes);
    }
    let sent: u64 = shells.traffic(1).sent_bytes;
    assert!(sent < 2 * bytes.len() as u64, "the holder has sent {sent} bytes for four nodes");
    for node in 2..=5 {
        let received = shells.traffic(node).received_bytes;
        assert!((4_000_000..5_000_000).contains(&received), "node {node} has received {received} bytes");
    }
}

#[tokio::test(start_paused = true)]
async fn small_and_large_blobs_arrive_whole() {
    let mut shells = Shells::default();
    shells.start(1);
    shells.start(2);
    // One byte, around a chunk, and one that is served from a file.
    for (seed, size) in [(1, 1), (2, 65_535), (3, 65_536), (4, 65_537), (5, 3 * MB)] {
        let (digest, bytes) = blob(size, seed);
        shells.hold(1, &bytes);
        let fetched = shells.fetch(2, digest, [(1, Role::Holds)]).await.expect("it is fetched");
        assert_eq!(fetched.bytes, bytes);
    }
}

#[tokio::test(start_paused = true)]
async fn a_killed_node_fetches_only_the_rest_after_its_start() {
    let mut shells = Shells::default();
    shells.start(1);
    shells.start(2);
    let (digest, bytes) = blob(8 * MB, 2);
    shells.hold(1, &bytes);
    let want = shells.fetch(2, digest, [(1, Role::Holds)]);
    want.reached(400).await;
    shells.kill(2);
    drop(want);
    assert!(shells.part_file(2, digest).exists());

    shells.start(2);
    let fetched = shells.fetch(2, digest, [(1, Role::Holds)]).await.expect("it is fetched");
    assert_eq!(fetched.bytes, bytes);
    let received = shells.traffic(2).received_bytes;
    assert!(received < 6 * MB as u64, "{received} bytes after the restart, of {}", bytes.len());

    // The store has it: the file goes.
    shells.hold(2, &bytes);
    shells.until(|shells| !shells.part_file(2, digest).exists()).await;
}

#[tokio::test(start_paused = true)]
async fn a_dropped_fetch_ends_and_its_file_is_removed_after_an_hour() {
    let mut shells = Shells::default();
    shells.start(1);
    shells.start(2);
    let (digest, bytes) = blob(8 * MB, 3);
    shells.hold(1, &bytes);
    let want = shells.fetch(2, digest, [(1, Role::Holds)]);
    want.reached(200).await;
    drop(want);
    tokio::time::sleep(Duration::from_secs(20)).await;
    let received = shells.traffic(2).received_bytes;
    tokio::time::sleep(Duration::from_secs(3000)).await;
    assert_eq!(shells.traffic(2).received_bytes, received, "nothing is fetched");
    assert!(shells.part_file(2, digest).exists(), "for the next fetch");
    tokio::time::sleep(Duration::from_secs(900)).await;
    assert!(!shells.part_file(2, digest).exists());
}

#[tokio::test(start_paused = true)]
async fn a_forgotten_blob_leaves_no_file() {
    let mut shells = Shells::default();
    shells.start(1);
    shells.start(2);
    let (digest, bytes) = blob(8 * MB, 4);
    shells.hold(1, &bytes);
    let want = shells.fetch(2, digest, [(1, Role::Holds)]);
    want.reached(300).await;
    shells.artefacts(2).forget(digest).await;
    assert!(matches!(want.await, Err(FetchBlobError::NoHolder)));
    assert!(!shells.part_file(2, digest).exists());
    let fetched = shells.fetch(2, digest, [(1, Role::Holds)]).await.expect("it is fetched");
    assert_eq!(fetched.bytes, bytes);
}

#[tokio::test(start_paused = true)]
async fn several_waiters_get_one_fetch() {
    let mut shells = Shells::default();
    shells.start(1);
    shells.start(2);
    let (digest, bytes) = blob(MB, 5);
    shells.hold(1, &bytes);
    let (one, two) =
        (shells.fetch(2, digest, [(1, Role::Holds)]), shells.fetch(2, digest, [(1, Role::Holds)]));
    assert_eq!(one.await.expect("fetched").bytes, bytes);
    assert_eq!(two.await.expect("fetched").bytes, bytes);
    assert!(shells.traffic(2).received_bytes < 3 * MB as u64 / 2);
}

/// Open files of this process whose names have this part.
fn open_files(name: &str) -> usize {
    let open = std::fs::read_dir("/proc/self/fd").expect("the open files");
    let targets = open.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
    targets.filter(|target| target.to_string_lossy().contains(name)).count()
}

#[tokio::test(start_paused = true)]
async fn dropped_fetches_hold_no_file_and_only_wanted_files_stay() {
    let mut shells = Shells::default();
    shells.start(1);
    shells.start(2);
    let blobs: Vec<_> = (0..3).map(|seed| blob(4 * MB, 40 + seed)).collect();
    for (digest, bytes) in &blobs {
        shells.hold(1, bytes);
        let want = shells.fetch(2, *digest, [(1, Role::Holds)]);
        want.reached(200).await;
        drop(want);
        // Long before the next look at files.
        let name = digest.to_string();
        let dropped = tokio::time::Instant::now();
        shells.until(|_| open_files(&name) == 0).await;
        assert!(dropped.elapsed() < Duration::from_secs(1), "{:?}", dropped.elapsed());
        assert!(shells.part_file(2, *digest).exists(), "it is not known yet what is wanted");
    }
    let kept = blobs[2].0;
    *shells.store(2).wanted.lock() = Some([kept].into());
    shells.until(|shells| blobs[..2].iter().all(|(blob, _)| !shells.part_file(2, *blob).exists())).await;
    assert!(shells.part_file(2, kept).exists());
    let before = shells.traffic(2).received_bytes;
    let fetched = shells.fetch(2, kept, [(1, Role::Holds)]).await.expect("it is fetched");
    assert_eq!(fetched.bytes, blobs[2].1);
    assert!(shells.traffic(2).received_bytes - before < 7 * MB as u64 / 2, "only the rest");

    // It arrived whole, and is wanted no longer: neither its file nor a descriptor stays.
    *shells.store(2).wanted.lock() = Some([].into());
    shells.until(|shells| !shells.part_file(2, kept).exists()).await;
    assert_eq!(open_files(&kept.to_string()), 0);
}

#[tokio::test(start_paused = true)]
async fn a_blob_that_was_served_and_then_deleted_is_fetched_again() {
    let mut shells = Shells::default();
    for node in 1..=3 {
        shells.start(node);
    }
    let (digest, bytes) = blob(MB, 44);
    shells.hold(1, &bytes);
    shells.hold(2, &bytes);
    shells.fetch(3, digest, [(2, Role::Holds)]).await.expect("node 2 serves it");
    shells.store(2).delete(digest);
    let fetched = shells.fetch(2, digest, [(1, Role::Holds)]).await.expect("it is not damaged");
    assert_eq!(fetched.bytes, bytes);
}

#[tokio::test(start_paused = true)]
async fn a_fetch_that_begins_again_and_again_has_one_file() {
    let mut shells = Shells::default();
    shells.start(1);
    shells.start(2);
    let (digest, bytes) = blob(MB, 45);
    shells.hold(1, &bytes);
    for _ in 0..20 {
        let want = shells.fetch(2, digest, [(1, Role::Holds)]);
        tokio::task::yield_now().await;
        tokio::task::yield_now().await;
        drop(want);
        shells.artefacts(2).forget(digest).await;
    }
    let fetched = shells.fetch(2, digest, [(1, Role::Holds)]).await.expect("it is fetched");
    assert_eq!(fetched.bytes, bytes);
}
