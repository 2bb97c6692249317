//! Interests: the objects that a node wants to receive.

use std::collections::{BTreeMap, BTreeSet};

use crate::replication::ObjectKey;
use crate::wire::{APP_BYTES, INTERESTS, InterestEntry, OBJECT_BYTES};

/// Objects of an app that a function uses.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Interest {
    /// The app's name; at most 255 bytes.
    pub app: String,
    /// Names of objects, in which `*` stands for any characters; at most 1024 bytes.
    pub pattern: String,
}

/// Approximate limit of the message with interests, in bytes.
const TOLD_BYTES: usize = 200 * 1024;

/// All interests of a node, sorted by app.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct InterestSet(Vec<Interest>);

impl InterestSet {
    /// Drops interests that cannot match or be sent. A set that is too large to send becomes wider: all objects of its apps.
    pub(crate) fn new(interests: Vec<Interest>) -> Self {
        let mut by_app: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for Interest { app, pattern } in interests {
            if app.len() <= APP_BYTES && pattern.len() <= OBJECT_BYTES {
                by_app.entry(app).or_default().insert(pattern);
            }
        }
        let everything = |patterns: &mut BTreeSet<String>| *patterns = BTreeSet::from(["*".to_owned()]);
        by_app.values_mut().filter(|patterns| patterns.contains("*")).for_each(everything);
        let told: usize = by_app
            .iter()
            .flat_map(|(app, patterns)| patterns.iter().map(|pattern| app.len() + pattern.len() + 8))
            .sum();
        let count: usize = by_app.values().map(BTreeSet::len).sum();
        if told > TOLD_BYTES || count > INTERESTS {
            by_app.values_mut().for_each(everything);
        }
        let flat = by_app.into_iter().flat_map(|(app, patterns)| {
            patterns.into_iter().map(move |pattern| Interest { app: app.clone(), pattern })
        });
        let mut set = Vec::new();
        let mut told = 0;
        for interest in flat.take(INTERESTS) {
            told += interest.app.len() + interest.pattern.len() + 8;
            if told > TOLD_BYTES {
                break;
            }
            set.push(interest);
        }
        Self(set)
    }

    pub(crate) fn matches(&self, key: &ObjectKey) -> bool {
        let first = self.0.partition_point(|interest| *interest.app < *key.app);
        self.0
            .iter()
            .skip(first)
            .take_while(|interest| *interest.app == *key.app)
            .any(|interest| matches(&interest.pattern, &key.object))
    }

    pub(crate) fn to_wire(&self) -> Vec<InterestEntry> {
        let entry = |interest: &Interest| InterestEntry {
            app: interest.app.clone(),
            pattern: interest.pattern.clone(),
        };
        self.0.iter().map(entry).collect()
    }

    pub(crate) fn from_wire(entries: Vec<InterestEntry>) -> Self {
        let mut set: Vec<Interest> =
            entries.into_iter().map(|e| Interest { app: e.app, pattern: e.pattern }).collect();
        set.sort_unstable();
        set.dedup();
        set.shrink_to_fit();
        Self(set)
    }
}

/// True if `name` matches `pattern`, in which `*` stands for any characters. Takes at most the product of
/// the lengths in steps, whatever the pattern.
fn matches(pattern: &str, name: &str) -> bool {
    if pattern == "*" {
        return true;
    }
    let (pattern, name) = (pattern.as_bytes(), name.as_bytes());
    let (mut p, mut n) = (0, 0);
    // Position to continue at if the last star must match one byte more.
    let mut retry: Option<(usize, usize)> = None;
    while n < name.len() {
        match (pattern.get(p), retry) {
            (Some(b'*'), _) => {
                p += 1;
                retry = Some((p, n));
            }
            (Some(byte), _) if name.get(n) == Some(byte) => {
                p += 1;
                n += 1;
            }
            (_, Some((after_star, taken))) => {
                p = after_star;
                n = taken + 1;
                retry = Some((after_star, n));
            }
            (_, None) => return false,
        }
    }
    pattern.iter().skip(p).all(|byte| *byte == b'*')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn interest(app: &str, pattern: &str) -> Interest {
        Interest { app: app.into(), pattern: pattern.into() }
    }

    /// The definition: exponential but plain.
    fn defined(pattern: &[u8], name: &[u8]) -> bool {
        match pattern.split_first() {
            None => name.is_empty(),
            Some((b'*', rest)) => (0..=name.len()).any(|taken| defined(rest, &name[taken..])),
            Some((byte, rest)) => {
                name.split_first().is_some_and(|(b, name)| b == byte && defined(rest, name))
            }
        }
    }

    proptest! {
        #[test]
        fn patterns_match_as_defined(pattern in "[ab*]{0,7}", name in "[ab]{0,9}") {
            prop_assert_eq!(matches(&pattern, &name), defined(pattern.as_bytes(), name.as_bytes()));
        }
    }

    #[test]
    fn interests_are_of_one_app() {
        let set = InterestSet::new(vec![interest("b", "room-*"), interest("a", "x"), interest("b", "y")]);
        for (app, object, expected) in [
            ("a", "x", true),
            ("a", "y", false),
            ("b", "y", true),
            ("b", "room-1", true),
            ("b", "room", false),
            ("c", "x", false),
        ] {
            assert_eq!(set.matches(&ObjectKey::new(app, object)), expected, "{app} {object}");
        }
        assert_eq!(InterestSet::from_wire(set.to_wire()), set);
    }

    #[test]
    fn too_many_interests_become_wider_and_never_narrower() {
        let many = (0..INTERESTS + 1).map(|i| interest(["a", "b"][i % 2], &format!("object-{i}")));
        let set = InterestSet::new(many.collect());
        assert_eq!(set.0, [interest("a", "*"), interest("b", "*")]);
    }
}
