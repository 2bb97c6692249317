use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use edgefaas_crdt::Operation;
use edgefaas_platform::Clock;

use super::*;
use crate::store::{Batch, Durability, Store, StoreOptions};

const OBJECTS: usize = 2000;

fn open(dir: &Path) -> Arc<Store> {
    Arc::new(Store::open(&StoreOptions::small(dir), Clock::new(|| 1_800_000_000_000)).unwrap())
}

fn name(number: usize) -> String {
    format!("o{number:04}")
}

fn key(number: usize) -> FieldKey {
    FieldKey::new("app", &name(number), "n")
}

/// The largest file of the tables.
fn table_file(dir: &Path) -> PathBuf {
    let (mut folders, mut files) = (vec![dir.join("store/keyspaces")], Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
            match entry.file_type().unwrap().is_dir() {
                true => folders.push(entry.path()),
                false => files.push((entry.metadata().unwrap().len(), entry.path())),
            }
        }
    }
    files.into_iter().max().unwrap().1
}

#[tokio::test]
async fn what_lies_on_both_sides_of_damage_is_found_and_the_damage_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let mut batch = Batch::default();
    for number in 0..OBJECTS {
        // Not to be compressed.
        let text: String = (0..100).map(|_| rand::random_range('!'..='~')).collect();
        batch.operate(key(number), Operation::RegisterSet(text.into()));
    }
    store.committer().commit(batch, Durability::Synced).await.unwrap();
    store.objects().space.rotate_memtable_and_wait().unwrap();
    drop(store);

    // While it is open, and before anything is read: a store that is damaged before does not open.
    let store = open(dir.path());
    let path = table_file(dir.path());
    let mut bytes = std::fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0xff;
    std::fs::write(&path, bytes).unwrap();

    let objects = store.objects();
    let mut seen = BTreeSet::new();
    objects.visit_keys(|key| {
        seen.insert(key.object().to_owned());
    });
    let missing: Vec<_> = (0..OBJECTS).filter(|number| !seen.contains(&name(*number))).collect();
    let (first, last) = (*missing.first().unwrap(), *missing.last().unwrap());
    assert!(first > 0 && last < OBJECTS - 1 && last - first == missing.len() - 1, "{missing:?}");

    let error = objects.visit::<StoreError>(|_, _| Ok(())).unwrap_err();
    let before = name(first - 1);
    assert!(matches!(&error, StoreError::Unreadable { after, .. } if after.contains(&before)), "{error}");
    // The visit reads one or two keys ahead, and stops that many keys too early.
    let lost = missing.iter().filter(|number| objects.read(&key(**number), |_| ()).is_err()).count();
    assert!(lost > 0 && missing.len() - lost <= 4, "{lost} of {missing:?}");
    assert!(objects.read(&key(first - 1), |field| field.is_some()).unwrap());

    let mut batch = Batch::default();
    batch.operate(key(last + 1), Operation::RegisterSet("new".into()));
    batch.operate(FieldKey::new("app", "another", "n"), Operation::CounterAdd(1));
    store.committer().commit(batch, Durability::Synced).await.unwrap();
    assert!(objects.read(&FieldKey::new("app", "another", "n"), |field| field.is_some()).unwrap());
}
