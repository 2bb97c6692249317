//! Damage, full disks, and files that fail.

use std::io::{Seek, SeekFrom, Write};
use std::sync::atomic::Ordering;

use edgefaas_cluster::artefacts::Role;

use crate::MB;
use crate::shells::{Shells, blob};
use edgefaas_rollout::transfer::FetchBlobError;

#[tokio::test(start_paused = true)]
async fn damage_to_the_file_of_a_stopped_fetch_is_fetched_again() {
    let mut shells = Shells::default();
    shells.start(1);
    shells.start(2);
    let (digest, bytes) = blob(4 * MB, 11);
    shells.hold(1, &bytes);
    let want = shells.fetch(2, digest, [(1, Role::Holds)]);
    want.reached(700).await;
    shells.kill(2);
    drop(want);
    let path = shells.part_file(2, digest);
    let mut file = std::fs::OpenOptions::new().write(true).open(&path).expect("the file");
    for at in [100_000_u64, 500_000, 900_000, 1_500_000] {
        file.seek(SeekFrom::Start(at)).expect("a place");
        file.write_all(b"damage").expect("written");
    }
    drop(file);
    shells.start(2);
    let fetched = shells.fetch(2, digest, [(1, Role::Holds)]).await.expect("it is fetched");
    assert_eq!(fetched.bytes, bytes);

    // A file without a valid tree is of no use.
    let (digest, bytes) = blob(MB, 12);
    shells.hold(1, &bytes);
    std::fs::write(shells.part_file(2, digest), b"no tree").expect("written");
    let fetched = shells.fetch(2, digest, [(1, Role::Holds)]).await.expect("it is fetched");
    assert_eq!(fetched.bytes, bytes);
}

#[tokio::test(start_paused = true)]
async fn damage_during_the_fetch_is_found_at_its_end() {
    let mut shells = Shells::default();
    shells.start(1);
    shells.start(2);
    let (digest, bytes) = blob(4 * MB, 13);
    shells.hold(1, &bytes);
    let want = shells.fetch(2, digest, [(1, Role::Holds)]);
    want.reached(900).await;
    let path = shells.part_file(2, digest);
    // Zeros over nine tenths of it hit chunks that have been verified.
    let mut file = std::fs::OpenOptions::new().write(true).open(&path).expect("the file");
    file.seek(SeekFrom::Start(10_000)).expect("a place");
    file.write_all(&vec![0; 3 * MB]).expect("written");
    let error = want.await.expect_err("it is damaged");
    assert!(matches!(&error, FetchBlobError::Damaged { path: named } if *named == path), "{error}");
    assert!(!path.exists());
    let fetched = shells.fetch(2, digest, [(1, Role::Holds)]).await.expect("it is fetched");
    assert_eq!(fetched.bytes, bytes);
}

#[tokio::test(start_paused = true)]
async fn a_full_disk_ends_the_fetch_and_room_lets_it_begin() {
    let mut shells = Shells::default();
    shells.start(1);
    shells.start(2);
    let (digest, bytes) = blob(MB, 14);
    shells.hold(1, &bytes);
    // Its file, and three copies in the store.
    let needed = 4 * MB as u64;
    shells.store(2).room_bytes.store(needed - 1, Ordering::Relaxed);
    let error = shells.fetch(2, digest, [(1, Role::Holds)]).await.expect_err("no room");
    let FetchBlobError::DiskFull { room_bytes, needed_bytes } = error else { panic!("{error}") };
    assert_eq!((room_bytes, needed_bytes), (needed - 1, needed));
    assert!(!shells.part_file(2, digest).exists());
    assert!(shells.traffic(2).received_bytes < MB as u64 / 2, "only the tree");

    shells.store(2).room_bytes.store(needed, Ordering::Relaxed);
    let fetched = shells.fetch(2, digest, [(1, Role::Holds)]).await.expect("it is fetched");
    assert_eq!(fetched.bytes, bytes);
}

#[tokio::test(start_paused = true)]
async fn a_disk_that_fills_up_meanwhile_is_left_to_the_store() {
    let mut shells = Shells::default();
    shells.start(1);
    shells.start(2);
    let (digest, bytes) = blob(4 * MB, 15);
    shells.hold(1, &bytes);
    let want = shells.fetch(2, digest, [(1, Role::Holds)]);
    want.reached(500).await;
    shells.store(2).room_bytes.store(1000, Ordering::Relaxed);
    let error = want.await.expect_err("no room");
    assert!(matches!(error, FetchBlobError::DiskFull { room_bytes: 1000, .. }), "{error}");
    assert!(!shells.part_file(2, digest).exists());
    shells.store(2).room_bytes.store(u64::MAX, Ordering::Relaxed);
    let fetched = shells.fetch(2, digest, [(1, Role::Holds)]).await.expect("it is fetched");
    assert_eq!(fetched.bytes, bytes);
}

#[tokio::test(start_paused = true)]
async fn a_file_that_cannot_be_written_ends_the_fetch() {
    let mut shells = Shells::default();
    shells.start(1);
    shells.start(2);
    let (digest, bytes) = blob(MB, 16);
    shells.hold(1, &bytes);
    let path = shells.part_file(2, digest);
    std::fs::create_dir_all(&path).expect("a folder in its place");
    let error = shells.fetch(2, digest, [(1, Role::Holds)]).await.expect_err("a folder");
    assert!(matches!(&error, FetchBlobError::File { path: named, .. } if *named == path), "{error}");
    std::fs::remove_dir(&path).expect("it is empty");
    let fetched = shells.fetch(2, digest, [(1, Role::Holds)]).await.expect("it is fetched");
    assert_eq!(fetched.bytes, bytes);
}

#[tokio::test(start_paused = true)]
async fn a_holder_whose_store_is_damaged_has_nothing() {
    let mut shells = Shells::default();
    for node in 1..=3 {
        shells.start(node);
    }
    let (digest, bytes) = blob(MB, 17);
    shells.hold(2, &bytes);
    shells.store(1).hold_damaged(digest, bytes.len());
    let fetched =
        shells.fetch(3, digest, [(1, Role::Holds), (2, Role::Holds)]).await.expect("it is fetched");
    assert_eq!(fetched.bytes, bytes);
    let (only, bytes) = blob(MB, 18);
    shells.store(1).hold_damaged(only, bytes.len());
    let error = shells.fetch(3, only, [(1, Role::Holds)]).await.expect_err("no holder");
    assert!(matches!(error, FetchBlobError::NoHolder), "{error}");
}
