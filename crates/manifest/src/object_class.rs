//! Classes of objects: `[objects."PATTERN"]` of the manifest.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::check::glob_matches;

/// The durability of a change of an object before its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ObjectDurability {
    /// In memory: changes are written once a `write_interval`. A crash of the process loses them here; peers have
    /// them after the replication interval.
    Memory,
    /// With the operating system: `kill -9` loses nothing, a power cut the changes of the store's `sync_interval`.
    #[default]
    Written,
    /// On the disk.
    Synced,
}

/// The start of a function whose objects this node lacks and its peers may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Recovery {
    /// The function waits until the connected peers have sent their objects.
    Before,
    /// The function runs and sees the objects that have arrived.
    #[default]
    While,
}

/// The origin of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// This node: a function, or a client of the control API.
    Local,
    /// A peer.
    Remote,
}

impl Origin {
    /// Its name, as functions see it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Remote => "remote",
        }
    }
}

/// The class of objects: their replication, durability and quota.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ObjectClass {
    /// Changes are collected this long before peers get them; 0 sends immediately. 200 ms by default, up to an hour.
    pub interval: Duration,
    /// See [`ObjectDurability`].
    pub durability: ObjectDurability,
    /// Changes of durability `memory` are collected this long before they are written. 1 s by default, up to an hour.
    pub write_interval: Duration,
    /// The least number of nodes of the cluster that keep the object. 2 by default, up to 16.
    pub copies: u8,
    /// Limit of all fields of one object on the disk, in bytes. 4 MiB by default, up to 15 MiB.
    pub quota_bytes: u64,
    /// See [`Recovery`].
    pub recover: Recovery,
    /// An object is deleted when no field of it has changed for this long; `None` for never. 1 s up to 10 years.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl: Option<Duration>,
}

impl Default for ObjectClass {
    fn default() -> Self {
        Self {
            interval: Duration::from_millis(200),
            durability: ObjectDurability::default(),
            write_interval: Duration::from_secs(1),
            copies: 2,
            quota_bytes: 4 << 20,
            recover: Recovery::default(),
            ttl: None,
        }
    }
}

/// The classes of all deployed apps.
#[derive(Debug, Clone, Default)]
pub struct Classes {
    apps: HashMap<Arc<str>, Vec<(String, ObjectClass)>>,
}

impl Classes {
    /// Adds those of an app: patterns in which `*` stands for any characters.
    pub fn add(&mut self, app: Arc<str>, classes: impl IntoIterator<Item = (String, ObjectClass)>) {
        let mut classes: Vec<_> = classes.into_iter().collect();
        // `room-7` is closer than `room-*`. The default class covers all other objects of the app.
        classes.push(("*".to_owned(), ObjectClass::default()));
        classes.sort_by_key(|(pattern, _)| std::cmp::Reverse(closeness(pattern)));
        self.apps.insert(app, classes);
    }

    /// The class of an object, if its app is deployed: of the matching patterns the one with the most characters other than
    /// `*`.
    pub fn class(&self, app: &str, object: &str) -> Option<ObjectClass> {
        let covers = |(pattern, _): &&(String, ObjectClass)| glob_matches(pattern, object);
        self.apps.get(app)?.iter().find(covers).map(|(_, class)| *class)
    }
}

impl Classes {
    /// The shortest time to live of a class; `None` if no objects expire.
    pub fn shortest_ttl(&self) -> Option<Duration> {
        self.apps.values().flatten().filter_map(|(_, class)| class.ttl).min()
    }

    /// Whether objects that match the pattern may be of a class with `recover = "before"`.
    pub fn recovers_before(&self, app: &str, pattern: &str) -> bool {
        let classes = self.apps.get(app).map(Vec::as_slice).unwrap_or_default();
        let meet = |class: &str| {
            // Two patterns may match the same name unless their texts before the first `*` differ.
            let (one, next) = (class.split('*').next(), pattern.split('*').next());
            let (one, next) = (one.unwrap_or_default(), next.unwrap_or_default());
            one.starts_with(next) || next.starts_with(one)
        };
        classes.iter().any(|(class, kept)| kept.recover == Recovery::Before && meet(class))
    }
}

fn closeness(pattern: &str) -> (usize, bool) {
    (pattern.chars().filter(|c| *c != '*').count(), !pattern.contains('*'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_closest_pattern_counts() {
        let with = |copies| ObjectClass { copies, ..ObjectClass::default() };
        let mut classes = Classes::default();
        classes.add(
            "a".into(),
            [
                ("*".into(), with(1)),
                ("room-*".into(), with(3)),
                ("room-7".into(), with(5)),
                ("room-7*".into(), with(6)),
            ],
        );
        let copies = |app: &str, object: &str| classes.class(app, object).unwrap_or_default().copies;
        assert_eq!((copies("a", "room-7"), copies("a", "room-71"), copies("a", "room-8")), (5, 6, 3));
        assert_eq!((copies("a", "door"), copies("b", "room-7")), (1, 2));
        assert!(classes.class("b", "room-7").is_none());
    }
}
