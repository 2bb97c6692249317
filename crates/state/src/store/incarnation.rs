//! Incarnation: the number of this start of the node.

use fjall::{Database, Keyspace, PersistMode};

const NODE_ID_KEY: &str = "node-id";
const INCARNATION_KEY: &str = "incarnation";
/// 2024-01-01.
const INCARNATIONS_FROM_UNIX_S: u64 = 1_704_067_200;

/// Reads the node's number, which is drawn at the first start, and stores the incarnation of this start.
pub(super) fn next(database: &Database, meta: &Keyspace, now_unix_ms: u64) -> fjall::Result<(u64, u32)> {
    let number = |key: &str| -> fjall::Result<Option<u64>> {
        let value = meta.get(key)?;
        Ok(value.and_then(|value| Some(u64::from_le_bytes(value.as_ref().try_into().ok()?))))
    };
    let node_id = number(NODE_ID_KEY)?.unwrap_or_else(rand::random);
    let incarnation = incarnation_after(number(INCARNATION_KEY)?, now_unix_ms);
    let mut batch = database.batch().durability(Some(PersistMode::SyncAll));
    batch.insert(meta, NODE_ID_KEY, node_id.to_le_bytes());
    batch.insert(meta, INCARNATION_KEY, incarnation.to_le_bytes());
    batch.commit()?;
    Ok((node_id, u32::try_from(incarnation).unwrap_or(u32::MAX)))
}

/// The incarnation after `last`. It is greater than `last`, and not less than the seconds since 2024: a restored copy
/// of the data directory then does not reuse an incarnation of the original. If the clock is wrong, other members of
/// the cluster refuse such a copy.
fn incarnation_after(last: Option<u64>, now_unix_ms: u64) -> u64 {
    let Some(last) = last else { return 0 };
    let since_2024_s = (now_unix_ms / 1000).saturating_sub(INCARNATIONS_FROM_UNIX_S);
    // A clock that is decades ahead would exhaust the numbers.
    let is_likely = since_2024_s < u64::from(u32::MAX) / 2;
    last.saturating_add(1).max(if is_likely { since_2024_s } else { 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_that_is_put_back_goes_on_with_a_new_number() {
        const IN_2026_MS: u64 = 1_790_000_000_000;
        assert_eq!(incarnation_after(None, IN_2026_MS), 0);
        let first = incarnation_after(Some(0), IN_2026_MS);
        let later = incarnation_after(Some(first), IN_2026_MS + 60_000);
        // The copy is made at the first start, and restored after the later one.
        let put_back = incarnation_after(Some(first), IN_2026_MS + 120_000);
        assert!(0 < first && first < later && later < put_back && put_back < u64::from(u32::MAX));
        // The incarnation grows without a clock, and at two starts within a second.
        assert_eq!(incarnation_after(Some(later), 0), later + 1);
        assert_eq!(incarnation_after(Some(put_back), IN_2026_MS), put_back + 1);
        assert_eq!(incarnation_after(Some(7), u64::MAX), 8);
    }
}
