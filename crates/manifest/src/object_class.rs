//! What an app asks for its objects: `[objects."PATTERN"]` of the manifest.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::check::glob_matches;

/// When a change of an object is safe enough for whoever made it to go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ObjectDurability {
    /// At once: it is written with those of the next `write_interval`. A crash of the process loses them here; peers have
    /// them after the replication interval.
    Memory,
    /// With the operating system: `kill -9` loses nothing, a power cut what came within the store's `sync_interval`.
    #[default]
    Written,
    /// On the disk.
    Synced,
}

/// What a node does before a function may use objects that it has not had before, while its peers may have them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Recovery {
    /// The function waits until the peers that are there have sent what they have.
    Before,
    /// The function runs and sees what has come so far.
    #[default]
    While,
}

/// Where a change comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// Of this node: a function, or somebody at the control port.
    Local,
    /// Of a peer.
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

/// How objects are kept.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ObjectClass {
    /// How long changes are collected before peers are sent them; 0 sends at once. 200 ms by default, up to an hour.
    pub interval: Duration,
    /// See [`ObjectDurability`].
    pub durability: ObjectDurability,
    /// How long changes of durability `memory` are collected before they are written. 1 s by default, up to an hour.
    pub write_interval: Duration,
    /// On how many nodes of the cluster the object is to be. 2 by default, up to 16.
    pub copies: u8,
    /// The most that all fields of one object may take on the disk, in bytes. 4 MiB by default, up to 15 MiB.
    pub quota_bytes: u64,
    /// See [`Recovery`].
    pub recover: Recovery,
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
        }
    }
}

/// The classes of all apps that are deployed.
#[derive(Debug, Clone, Default)]
pub struct Classes {
    apps: HashMap<Arc<str>, Vec<(String, ObjectClass)>>,
}

impl Classes {
    /// Adds those of an app: patterns in which `*` stands for any characters.
    pub fn add(&mut self, app: Arc<str>, classes: impl IntoIterator<Item = (String, ObjectClass)>) {
        let mut classes: Vec<_> = classes.into_iter().collect();
        // What is said of `room-7` is said more closely than what is said of `room-*`.
        // All of a deployed app's objects have a class.
        classes.push(("*".to_owned(), ObjectClass::default()));
        classes.sort_by_key(|(pattern, _)| std::cmp::Reverse(closeness(pattern)));
        self.apps.insert(app, classes);
    }

    /// The class of an object, if its app is deployed: of the patterns that cover it the one with the most characters that
    /// are no `*`.
    pub fn class(&self, app: &str, object: &str) -> Option<ObjectClass> {
        let covers = |(pattern, _): &&(String, ObjectClass)| glob_matches(pattern, object);
        self.apps.get(app)?.iter().find(covers).map(|(_, class)| *class)
    }
}

impl Classes {
    /// Whether objects that fit the pattern may be of a class that is recovered before they are used.
    pub fn recovers_before(&self, app: &str, pattern: &str) -> bool {
        let classes = self.apps.get(app).map(Vec::as_slice).unwrap_or_default();
        let meet = |class: &str| {
            // Two patterns may cover the same name if what is before their first stars does not rule it out.
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
