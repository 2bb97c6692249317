//! Records of bridges in the store, in addition to their sessions.
//!
//! ```text
//! b NAME 0 IDENTIFIER   a QoS 2 message of the other broker that waits for PUBREL
//! f NAME 0 FILTER       a subscription in the session at the other broker
//! ```
//!
//! The records are in the key space of hooks, where these tags belong to the bridges. IDENTIFIER is 2 bytes,
//! big-endian; values are empty.

use std::collections::{BTreeSet, HashMap, HashSet};

use bytes::Bytes;
use edgefaas_broker::{Broker, Change, Space, Storage, StorageError};

use super::config::BridgeSection;

const IDENTIFIER: u8 = b'b';
const FILTER: u8 = b'f';
/// Entries per page of a scan.
const PAGE: usize = 1024;

/// Records of one bridge.
#[derive(Debug, Default)]
pub struct BridgeRecords {
    /// QoS 2 messages that wait for PUBREL.
    pub unreleased: HashSet<u16>,
    /// Subscriptions at the other broker.
    pub subscribed: BTreeSet<String>,
}

/// The change that records that a QoS 2 message with this identifier was accepted, or removes the record.
pub fn identifier(bridge: &str, pkid: u16, accepted: bool) -> Change {
    change(IDENTIFIER, bridge, &pkid.to_be_bytes(), accepted)
}

/// The change that records a subscription at the other broker, or removes the record.
pub fn filter(bridge: &str, filter: &str, subscribed: bool) -> Change {
    change(FILTER, bridge, filter.as_bytes(), subscribed)
}

fn change(tag: u8, bridge: &str, rest: &[u8], is_present: bool) -> Change {
    let key = [&[tag], bridge.as_bytes(), &[0], rest].concat();
    Change { space: Space::Hook, key, value: is_present.then(Bytes::new) }
}

/// Loads the records by bridge. Deletes records of bridges that are no longer configured.
///
/// # Errors
/// The store cannot be read.
pub fn load(
    broker: &Broker,
    storage: &dyn Storage,
    sections: &[BridgeSection],
) -> Result<HashMap<String, BridgeRecords>, StorageError> {
    let mut records: HashMap<String, BridgeRecords> = HashMap::new();
    let mut deletions = Vec::new();
    let mut abandoned = BTreeSet::new();
    for tag in [IDENTIFIER, FILTER] {
        for key in keys(storage, tag)? {
            let known =
                parse(&key).filter(|(name, _)| sections.iter().any(|section| section.name == *name));
            match known {
                Some((name, Entry::Identifier(pkid))) => {
                    records.entry(name.to_owned()).or_default().unreleased.insert(pkid);
                }
                Some((name, Entry::Filter(filter))) => {
                    records.entry(name.to_owned()).or_default().subscribed.insert(filter.to_owned());
                }
                None => {
                    if let Some((name, Entry::Filter(_))) = parse(&key) {
                        abandoned.insert(name.to_owned());
                    }
                    deletions.push(Change { space: Space::Hook, key, value: None });
                }
            }
        }
    }
    for bridge in abandoned {
        tracing::warn!(
            bridge,
            "the bridge is no longer configured; its session at the other broker may still exist and collect messages \
             until it expires or is removed there"
        );
    }
    if !deletions.is_empty() {
        broker.record(deletions);
    }
    Ok(records)
}

enum Entry<'a> {
    Identifier(u16),
    Filter(&'a str),
}

fn parse(key: &[u8]) -> Option<(&str, Entry<'_>)> {
    let (tag, rest) = key.split_first()?;
    // Names contain no zero byte.
    let end = rest.iter().position(|byte| *byte == 0)?;
    let (name, rest) = (std::str::from_utf8(&rest[..end]).ok()?, &rest[end + 1..]);
    let entry = match *tag {
        IDENTIFIER => Entry::Identifier(u16::from_be_bytes(rest.try_into().ok()?)),
        _ => Entry::Filter(std::str::from_utf8(rest).ok()?),
    };
    Some((name, entry))
}

fn keys(storage: &dyn Storage, tag: u8) -> Result<Vec<Vec<u8>>, StorageError> {
    let mut keys = Vec::new();
    let mut from = vec![tag];
    loop {
        let page = storage.scan(Space::Hook, &from, PAGE)?;
        let complete = page.len() < PAGE;
        for (key, _) in page {
            if key.first() != Some(&tag) {
                return Ok(keys);
            }
            // The smallest key after this one.
            from = [&key[..], &[0]].concat();
            keys.push(key);
        }
        if complete {
            return Ok(keys);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_parsed_as_they_were_written() {
        for pkid in [0, 1, 0x0100, u16::MAX] {
            let key = identifier("b-1", pkid, true).key;
            assert!(matches!(parse(&key), Some(("b-1", Entry::Identifier(found))) if found == pkid));
        }
        let key = filter("b-1", "a/+/#", true).key;
        assert!(matches!(parse(&key), Some(("b-1", Entry::Filter("a/+/#")))));
        assert!(filter("b-1", "a", false).value.is_none());
        for bad in [&b"b"[..], b"bname", b"bname\0\x01", b"fname\0\xff"] {
            assert!(parse(bad).is_none(), "{bad:?}");
        }
    }
}
