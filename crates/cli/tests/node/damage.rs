//! Damaged stores: each file of a populated one is deleted, cut, overwritten and changed. The node starts with everything
//! that was there, or names the file and says what to do.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::disk::Client;
use crate::durable::eventually;
use crate::load::Connection;
use crate::support::{PATIENCE, Running, edgefaas};

const QUEUED: u32 = 12;
const RETAINED: usize = 3;

/// A data directory with secrets, retained messages, and a queue that was flushed to tables in part.
fn populate(data: &Path) {
    let node = Running::start(data, &[]);
    node.tell(&["secrets", "set", "first", "--app", "shop"], "one");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let port = node.mqtt_port.parse().unwrap();
    runtime.block_on(async {
        Client::connect(port, "away", false).await.subscribe("queue/#").await;
        let mut publisher = Client::connect(port, "publisher", true).await;
        for number in 0..RETAINED {
            publisher.publish(&format!("kept/{number}"), true, b"kept".to_vec(), None).await;
        }
        for _ in 0..QUEUED {
            let payload = publisher.noise(500_000);
            publisher.publish("queue/a", false, payload, None).await;
        }
    });
    node.tell(&["secrets", "set", "second", "--app", "shop"], "two");
    let spaces = data.join("store/keyspaces");
    // The engine flushes in the background, and forgets at its end what it has not begun.
    eventually("the queue is flushed to tables", || {
        let has_tables = std::fs::read_dir(&spaces).unwrap().filter(|space| {
            let tables = space.as_ref().unwrap().path().join("tables");
            std::fs::read_dir(tables).is_ok_and(|tables| tables.count() > 0)
        });
        has_tables.count() >= 2
    });
    assert_eq!(node.terminate(), Some(0));
}

/// Everything that `populate` stored is there.
fn check_contents(node: &Running, context: &str) {
    let secrets = node.ok(&["secrets", "list"]);
    assert!(secrets.contains("first") && secrets.contains("second"), "{context}: {secrets}");
    let mut reader = Connection::open(&node.mqtt_port, "reader", true).unwrap();
    reader.subscribe("kept/#", 0).unwrap();
    for _ in 0..RETAINED {
        let (kind, _) =
            reader.receive_within(PATIENCE).unwrap().unwrap_or_else(|| panic!("{context}: retained"));
        assert_eq!(kind & 0xf0, 0x30, "{context}");
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let port = node.mqtt_port.parse().unwrap();
    runtime.block_on(async { Client::connect(port, "away", false).await.drain(QUEUED).await });
}

/// What the node says if it does not start.
pub fn start(data: &Path, options: &[&str]) -> Result<Running, String> {
    let any = "127.0.0.1:0";
    let log = data.with_extension("stderr");
    let mut child = edgefaas(data)
        .args(["run", "--http", any, "--control", any, "--mqtt", any])
        .args(options)
        .stdout(Stdio::piped())
        .stderr(std::fs::File::create(&log).unwrap())
        .spawn()
        .unwrap();
    let mut ready = String::new();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    if stdout.read_line(&mut ready).unwrap() > 0 {
        return Ok(Running::of(child, ready, data));
    }
    let status = child.wait().unwrap();
    let said = std::fs::read_to_string(&log).unwrap();
    assert!(!status.success(), "it ended as if all were well: {said}");
    Err(said)
}

fn copy(from: &Path, to: &Path) {
    let copied = Command::new("cp").args(["-a", "--sparse=always"]).args([from, to]).status().unwrap();
    assert!(copied.success());
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(files(&path)),
            false => found.push(path),
        }
    }
    found.sort();
    found
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Damage {
    Deleted,
    CutInHalf,
    Zeroed,
    ByteChanged,
}

fn damage(path: &Path, damage: Damage) {
    let length = written_bytes(path);
    let file = || std::fs::File::options().write(true).open(path).unwrap();
    match damage {
        Damage::Deleted => std::fs::remove_file(path).unwrap(),
        Damage::CutInHalf => file().set_len(length / 2).unwrap(),
        Damage::Zeroed => file().write_all_at(&vec![0; length as usize], 0).unwrap(),
        Damage::ByteChanged => {
            let at = length / 2;
            let byte = std::fs::read(path).unwrap()[at as usize];
            file().write_all_at(&[byte ^ 0x55], at).unwrap();
        }
    }
}

/// Without the padding of a journal.
fn written_bytes(path: &Path) -> u64 {
    let bytes = std::fs::read(path).unwrap();
    bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last as u64 + 1)
}

#[test]
fn no_damage_of_a_file_makes_an_empty_store() {
    let home = tempfile::tempdir().unwrap();
    let data = home.path().join("data");
    populate(&data);
    let (mut started, mut refused) = (0, 0);
    for (number, path) in files(&data).into_iter().enumerate() {
        let place = path.strip_prefix(&data).unwrap();
        // Keys and tokens are not the store's.
        if !place.starts_with("store") && place != Path::new("store.manifest") && place != Path::new("lock")
        {
            continue;
        }
        // Key spaces are alike, and their tables: each file of those after the first is deleted and changed in one of the other
        // ways, in turn.
        let other = [Damage::CutInHalf, Damage::Zeroed, Damage::ByteChanged];
        let is_alike = place.starts_with("store/keyspaces") && !place.starts_with("store/keyspaces/0")
            || place.parent().is_some_and(|folder| folder.ends_with("tables"));
        let others = if is_alike { &other[number % 3..][..1] } else { &other[..] };
        for kind in [Damage::Deleted].iter().chain(others).copied() {
            if kind != Damage::Deleted && written_bytes(&path) == 0 {
                continue;
            }
            let context = format!("{} {kind:?}", place.display());
            let hurt = home.path().join("hurt");
            copy(&data, &hurt);
            damage(&hurt.join(place), kind);
            match start(&hurt, &[]) {
                Ok(node) => {
                    check_contents(&node, &context);
                    started += 1;
                }
                Err(said) => {
                    refused += 1;
                    let name = place.file_name().unwrap().to_str().unwrap();
                    assert!(said.contains(name), "{context}: the file is not named: {said}");
                    assert!(!said.contains("panicked"), "{context}: {said}");
                    if place.starts_with("store") {
                        assert!(
                            said.contains("--accept-loss") && said.contains("store check"),
                            "{context}: {said}"
                        );
                        let check = edgefaas(&hurt)
                            .args(["store", "check", "--data-dir"])
                            .arg(&hurt)
                            .output()
                            .unwrap();
                        let found = String::from_utf8(check.stdout).unwrap();
                        assert_eq!(check.status.code(), Some(1), "{context}: {found}");
                        assert!(
                            found.contains("damage: ")
                                && found.contains(&hurt.join(place).display().to_string()),
                            "{context}: {found}"
                        );
                        let node = start(&hurt, &["--accept-loss"]);
                        drop(node.unwrap_or_else(|said| panic!("{context}: with --accept-loss: {said}")));
                        start(&hurt, &[])
                            .unwrap_or_else(|said| panic!("{context}: after --accept-loss: {said}"));
                    }
                }
            }
            std::fs::remove_dir_all(&hurt).unwrap();
        }
    }
    println!("{started} started with everything, {refused} refused");
    assert!(started > 5 && refused > 20, "{started} started with everything, {refused} refused");
}

#[test]
fn a_store_without_a_manifest_is_taken_over_and_a_missing_folder_is_not() {
    let home = tempfile::tempdir().unwrap();
    let data = home.path().join("data");
    populate(&data);
    let manifests = [data.join("store.manifest"), data.join("store/manifest")];

    // As one of an earlier version.
    let adopted = home.path().join("adopted");
    copy(&data, &adopted);
    for manifest in &manifests {
        std::fs::remove_file(adopted.join(manifest.strip_prefix(&data).unwrap())).unwrap();
    }
    let node = start(&adopted, &[]).unwrap();
    check_contents(&node, "without a manifest");
    assert_eq!(node.terminate(), Some(0));
    assert!(adopted.join("store.manifest").exists(), "it has one now");

    // An old manifest: the node was killed before it could write a new one.
    let old = home.path().join("old");
    copy(&data, &old);
    let before: Vec<_> = manifests.iter().map(|path| std::fs::read(path).unwrap()).collect();
    let node = start(&old, &[]).unwrap();
    node.tell(&["secrets", "set", "third", "--app", "shop"], "three");
    node.kill();
    for (path, bytes) in manifests.iter().zip(before) {
        std::fs::write(old.join(path.strip_prefix(&data).unwrap()), bytes).unwrap();
    }
    let node = start(&old, &[]).unwrap();
    check_contents(&node, "with an old manifest");
    assert!(node.ok(&["secrets", "list"]).contains("third"));
    drop(node);

    // Folders.
    for folder in ["store", "store/keyspaces", "store/keyspaces/0", "store/keyspaces/8"] {
        let hurt = home.path().join("hurt");
        copy(&data, &hurt);
        std::fs::remove_dir_all(hurt.join(folder)).unwrap();
        let said = start(&hurt, &[]).err().unwrap_or_else(|| panic!("it started without {folder}"));
        assert!(said.contains("is missing") && said.contains("--accept-loss"), "{folder}: {said}");
        let has_names = matches!(folder, "store/keyspaces" | "store/keyspaces/0");
        assert_eq!(said.contains("loses EVERYTHING"), has_names, "{folder}: {said}");
        assert!(!hurt.join(folder).exists(), "nothing was made in its place");
        start(&hurt, &["--accept-loss"])
            .unwrap_or_else(|said| panic!("{folder}: with --accept-loss: {said}"));
        std::fs::remove_dir_all(&hurt).unwrap();
    }

    // With the manifest gone as well nothing says what there should be, but the node was here before.
    let emptied = home.path().join("emptied");
    copy(&data, &emptied);
    std::fs::remove_dir_all(emptied.join("store")).unwrap();
    std::fs::remove_file(emptied.join("store.manifest")).unwrap();
    drop(start(&emptied, &[]).unwrap());
    let said = std::fs::read_to_string(emptied.with_extension("stderr")).unwrap();
    assert!(said.contains("in use before") && said.contains("starts empty"), "{said}");

    let sound = edgefaas(&data).args(["store", "check", "--data-dir"]).arg(&data).output().unwrap();
    let said = String::from_utf8(sound.stdout).unwrap();
    assert!(sound.status.success() && said.ends_with("the store is sound\n"), "{said}");
    assert!(said.lines().any(|line| line.starts_with("secrets") && line.contains(" 2 ")), "{said}");
    let node = Running::start(&data, &[]);
    let busy = edgefaas(&data).args(["store", "check", "--data-dir"]).arg(&data).output().unwrap();
    assert!(String::from_utf8_lossy(&busy.stderr).contains("in use by another node"));
    check_contents(&node, "after a check");
}
