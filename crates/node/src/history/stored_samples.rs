//! Samples in the store, so that a restart keeps them.
//!
//! ```text
//! S PERIOD   the fine samples of a coarse step
//! W PERIOD   its coarse sample
//! ```
//!
//! PERIOD is the end of the step, 8 bytes, big-endian. One batch writes both records of a step when it ends, and deletes those that no
//! ring keeps any more: one small write in 5 minutes, and about 300 kB in all. What cannot be stored is lost at the next restart.

use std::collections::BTreeSet;
use std::sync::Arc;

use edgefaas_functions::records::{Damage, Records, decode, encode, prefixed, warn_damaged};
use edgefaas_state::store::{Batch, CommitError, Durability, Store, StoreError};
use serde::{Deserialize, Serialize};

use super::ring::{COARSE_STEP_MS, FINE_STEP_MS, Rings, period};
use super::sample::Sample;

/// Key spaces of hooks, durable invocations and workflows have no such kinds.
const FINE: u8 = b'S';
const COARSE: u8 = b'W';

/// The stored form; another form of samples gets another variant.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
enum Stored {
    V1(Vec<Sample>),
}

/// The records of the store.
pub struct StoredSamples {
    store: Arc<Store>,
    records: Records,
    /// Keys in the store.
    keys: BTreeSet<Vec<u8>>,
}

impl StoredSamples {
    /// Reads the stored samples. Damaged records are skipped, with a warning. Blocks.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn load(store: Arc<Store>) -> Result<(Self, Rings), StoreError> {
        let mut loaded = Self { records: Records::new(store.clone()), store, keys: BTreeSet::new() };
        let (fine, coarse) = (loaded.read(FINE)?, loaded.read(COARSE)?);
        Ok((loaded, Rings::restored(fine, coarse)))
    }

    fn read(&mut self, kind: u8) -> Result<Vec<Sample>, StoreError> {
        let (mut samples, keys) = (Vec::new(), &mut self.keys);
        self.records.for_each(kind, |key, value| {
            match decoded(key, value) {
                Ok(found) => samples.extend(found),
                Err(damage) => warn_damaged("samples of the node's history", key, damage),
            }
            // A damaged one is deleted with those that no ring keeps.
            keys.insert(key.to_vec());
        })?;
        Ok(samples)
    }

    /// Stores the samples of coarse steps, and deletes those that the rings do not keep any more.
    ///
    /// # Errors
    /// The samples could not be stored, for example since the disk is full; the next call may succeed.
    pub async fn save(&mut self, changes: Changes) -> Result<(), CommitError> {
        let Changes { puts, deletions } = changes;
        let mut batch = Batch::default();
        for key in &deletions {
            self.records.delete(&mut batch, key.clone());
        }
        let keys: Vec<_> = puts.iter().map(|(key, _)| key.clone()).collect();
        for (key, value) in puts {
            self.records.put(&mut batch, key, value);
        }
        self.store.committer().commit(batch, Durability::Written).await?;
        for key in deletions {
            self.keys.remove(&key);
        }
        self.keys.extend(keys);
        Ok(())
    }

    /// The changes that store these coarse steps of the rings.
    pub fn changes(&self, rings: &Rings, periods: &[u64]) -> Changes {
        let mut puts = Vec::new();
        for period in periods {
            let fine: Vec<_> = rings.fine_of(*period).copied().collect();
            let coarse = rings.coarse_of(*period).map(|sample| vec![*sample]);
            for (kind, samples) in [(FINE, Some(fine)), (COARSE, coarse)] {
                if let Some(samples) = samples.filter(|samples| !samples.is_empty()) {
                    puts.push((key(kind, *period), encode(&Stored::V1(samples))));
                }
            }
        }
        let is_kept = |stored: &[u8]| match parsed(stored) {
            Some((FINE, period)) => rings.keeps_fine(period),
            Some((_, period)) => rings.coarse_of(period).is_some(),
            None => false,
        };
        let deletions = self.keys.iter().filter(|key| !is_kept(key)).cloned().collect();
        Changes { puts, deletions }
    }
}

/// Changes of the stored records.
pub struct Changes {
    puts: Vec<(Vec<u8>, Vec<u8>)>,
    deletions: Vec<Vec<u8>>,
}

fn key(kind: u8, period: u64) -> Vec<u8> {
    prefixed(kind, &period.to_be_bytes())
}

/// The kind and the period of a key.
fn parsed(key: &[u8]) -> Option<(u8, u64)> {
    let (kind, period) = key.split_first()?;
    Some((*kind, u64::from_be_bytes(period.try_into().ok()?)))
}

/// The samples of a record, which are in order and belong to its key.
fn decoded(key: &[u8], value: &[u8]) -> Result<Vec<Sample>, Damage> {
    let (kind, end) = parsed(key).ok_or(Damage::Fields)?;
    let Stored::V1(samples) = decode(value)?;
    let step_ms = if kind == FINE { FINE_STEP_MS } else { COARSE_STEP_MS };
    let belongs = |sample: &Sample| sample.unix_ms.is_multiple_of(step_ms) && period(sample.unix_ms) == end;
    let is_right = samples.iter().all(belongs)
        && samples.is_sorted_by(|one, next| one.unix_ms < next.unix_ms)
        && samples.iter().all(|sample| {
            let Sample { invocations, failures, messages_in, messages_out, .. } = sample;
            [invocations, failures, messages_in, messages_out].iter().all(|rate| rate.is_finite())
        });
    if is_right { Ok(samples) } else { Err(Damage::Fields) }
}

#[cfg(test)]
mod tests {
    use edgefaas_platform::Clock;
    use edgefaas_state::store::StoreOptions;
    use proptest::prelude::*;

    use super::*;
    use crate::history::ring::{FINE_SAMPLES, Step};

    const START: u64 = 1_800_000_000_000;

    fn sample(unix_ms: u64) -> Sample {
        Sample {
            unix_ms,
            invocations: 1234.5,
            cpu_permille: 1000,
            rss_bytes: 1 << 28,
            memory_available_bytes: 1 << 29,
            disk_free_bytes: 1 << 40,
            mqtt_connections: 1000,
            isolates_running: 100,
            pending: 1_000_000,
            temperature_millicelsius: Some(61_000),
            ..Sample::default()
        }
    }

    fn store(dir: &tempfile::TempDir) -> Arc<Store> {
        Arc::new(Store::open(&StoreOptions::small(dir.path()), Clock::system()).unwrap())
    }

    /// Pushes and saves samples as a node does.
    async fn run(stored: &mut StoredSamples, rings: &mut Rings, from: u64, count: u64) {
        for number in 0..count {
            let closed = rings.push(sample(from + number * FINE_STEP_MS));
            if !closed.is_empty() {
                stored.save(stored.changes(rings, &closed)).await.unwrap();
            }
        }
    }

    fn shown(rings: &Rings) -> [Vec<Sample>; 2] {
        [Step::Fine, Step::Coarse].map(|step| rings.after(step, 0).copied().collect())
    }

    #[tokio::test]
    async fn a_restart_keeps_the_samples() {
        let dir = tempfile::tempdir().unwrap();
        let (mut stored, mut rings) = StoredSamples::load(store(&dir)).unwrap();
        run(&mut stored, &mut rings, START, 1000).await;
        // At a clean shutdown the step that has not ended.
        let open = rings.open_period().unwrap();
        stored.save(stored.changes(&rings, &[open])).await.unwrap();
        stored.store.close().unwrap();
        drop(stored);
        let (mut stored, mut again) = StoredSamples::load(store(&dir)).unwrap();
        assert_eq!(shown(&again), shown(&rings));
        assert_eq!(shown(&again).map(|samples| samples.len()), [FINE_SAMPLES, 17]);
        // The step goes on, and its coarse sample is of all of it.
        run(&mut stored, &mut again, START + 1000 * FINE_STEP_MS, 60).await;
        assert_eq!(again.fine_of(open).count(), 60);
        assert!(again.coarse_of(open).is_some());
    }

    #[tokio::test]
    async fn the_store_has_no_more_than_the_rings() {
        let dir = tempfile::tempdir().unwrap();
        let (mut stored, mut rings) = StoredSamples::load(store(&dir)).unwrap();
        run(&mut stored, &mut rings, START + FINE_STEP_MS, 60 * 2030).await;
        let (mut records, mut bytes) = (0, 0);
        for kind in [FINE, COARSE] {
            stored
                .records
                .for_each(kind, |key, value| {
                    records += 1;
                    bytes += key.len() + value.len();
                })
                .unwrap();
        }
        assert_eq!(records, 12 + 2016);
        assert_eq!(stored.keys.len(), records);
        assert!(bytes < 300_000, "{bytes}");
    }

    #[tokio::test]
    async fn a_damaged_record_is_skipped_and_deleted() {
        let dir = tempfile::tempdir().unwrap();
        let (mut stored, mut rings) = StoredSamples::load(store(&dir)).unwrap();
        run(&mut stored, &mut rings, START + FINE_STEP_MS, 180).await;
        let mut batch = Batch::default();
        let damaged = key(COARSE, START + COARSE_STEP_MS);
        stored.records.put(&mut batch, damaged.clone(), vec![1, 2, 3]);
        // Samples of another step, under a key that is too long.
        let other = encode(&Stored::V1(vec![sample(START)]));
        stored.records.put(&mut batch, key(FINE, START + 2 * COARSE_STEP_MS), other.clone());
        stored.records.put(&mut batch, prefixed(FINE, b"a key that is no time"), other);
        stored.store.committer().commit(batch, Durability::Written).await.unwrap();
        let (mut stored, mut again) = StoredSamples::load(stored.store.clone()).unwrap();
        assert_eq!(shown(&again).map(|samples| samples.len()), [120, 2]);
        run(&mut stored, &mut again, START + 181 * FINE_STEP_MS, 60).await;
        let left = stored.store.spaces().invocations.iter().count();
        assert_eq!((left, stored.keys.len()), (2 * 3, 2 * 3));
        assert!(!stored.keys.contains(&damaged));
    }

    proptest! {
        #[test]
        fn no_bytes_panic(key in prop::collection::vec(any::<u8>(), 0..12), value in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = decoded(&key, &value);
            // With a right checksum.
            let _ = decoded(&key, &encode(&value));
        }

        #[test]
        fn each_changed_byte_is_noticed(at in any::<prop::sample::Index>(), bit in 0..8_u8) {
            let end = START + COARSE_STEP_MS;
            let mut value = encode(&Stored::V1(vec![sample(START + FINE_STEP_MS), sample(end)]));
            prop_assert_eq!(decoded(&key(FINE, end), &value).map(|samples| samples.len()), Ok(2));
            let at = at.index(value.len());
            value[at] ^= 1 << bit;
            prop_assert!(decoded(&key(FINE, end), &value).is_err());
        }
    }
}
