//! Checks single values: words, numbers, names, limits and affinity.

use std::collections::HashSet;

use edgefaas_platform::{LABEL_RULE, is_label};

use super::fault::{Fault, Place, Problem, nearest};
use super::language::{Affinity, AffinityRule, Limits, Name};
use super::yaml::{Key, Node, Value};

/// Maximum number of labels of a set, of preferred labels, and of functions in `affinity`.
pub(crate) const MAX_NAMES: usize = 16;
/// Maximum of `max_concurrent_invocations`.
const MAX_CONCURRENT: u32 = 1_000_000;
/// The longest name of a function.
const MAX_FUNCTION_BYTES: usize = 63;
/// The part of a wrong text that a message shows, in characters.
const SHOWN_CHARS: usize = 63;
const LIMIT_KEYS: &[&str] = &["capacity_used", "max_concurrent_invocations", "overload"];

/// Reads values, and collects their problems.
pub(super) struct Values {
    pub(super) problems: Vec<Problem>,
}

impl Values {
    pub(super) fn add(&mut self, place: Place, fault: Fault) {
        self.problems.push(Problem { place, fault });
    }

    /// `overload`, a mapping of conditions, or a list of both.
    pub(super) fn limits(&mut self, value: Value) -> Limits {
        let mut limits = Limits::default();
        let mut lines = Vec::new();
        match value.node {
            Node::List(items) => {
                for item in items {
                    self.limit(&mut limits, &mut lines, item);
                }
            }
            _ => self.limit(&mut limits, &mut lines, value),
        }
        limits
    }

    fn limit(&mut self, limits: &mut Limits, lines: &mut Vec<(String, u32)>, value: Value) {
        let entries = match value.node {
            Node::Text(text) => {
                let key = Key { place: value.place, text };
                vec![(key, Value { place: value.place, node: Node::Nothing })]
            }
            Node::Mapping(entries) => entries,
            _ => {
                return self.wrong_kind(
                    "invalidate",
                    "a list of conditions such as `capacity_used: 50`",
                    &value,
                );
            }
        };
        for (key, value) in entries {
            if let Some((_, first_line)) = lines.iter().find(|(seen, _)| *seen == key.text) {
                let first_line = *first_line;
                self.add(key.place, Fault::Repeated { name: key.text, first_line });
                continue;
            }
            lines.push((key.text.clone(), key.place.line));
            match key.text.as_str() {
                "capacity_used" => {
                    let percent = self.number("capacity_used", 100, value);
                    limits.capacity_used_percent = percent.and_then(|percent| u8::try_from(percent).ok());
                }
                "max_concurrent_invocations" => {
                    limits.max_concurrent_invocations =
                        self.number("max_concurrent_invocations", MAX_CONCURRENT, value);
                }
                "overload" => match value.node {
                    Node::Nothing => limits.overload = true,
                    _ => self.wrong_kind("overload", "nothing after it", &value),
                },
                _ => self.unknown_key(key, "`invalidate`", LIMIT_KEYS),
            }
        }
    }

    pub(super) fn affinity(&mut self, value: Value) -> Vec<Affinity> {
        let mut affinity: Vec<Affinity> = Vec::new();
        for (place, text) in self.texts("affinity", value) {
            let (rule, text) = match text.strip_prefix('!') {
                Some(rest) => (AffinityRule::RunsNot, rest.to_owned()),
                None => (AffinityRule::Runs, text),
            };
            let Some(function) = self.name("function", place, text) else { continue };
            match affinity.iter().find(|known| known.function.text == function.text) {
                Some(known) if known.rule == rule => {
                    self.add(place, Fault::ListedTwice { key: "affinity", name: function.text });
                }
                Some(_) => self.add(place, Fault::Contradiction { function: function.text }),
                None => affinity.push(Affinity { function, rule }),
            }
        }
        affinity
    }

    /// A list of names, or one name.
    pub(super) fn names(&mut self, key: &'static str, of: &'static str, value: Value) -> Vec<Name> {
        let mut names: Vec<Name> = Vec::new();
        let mut seen = HashSet::new();
        // `set:` without a value is the set of all workers.
        if key == "set" && matches!(value.node, Node::Nothing) {
            return names;
        }
        for (place, text) in self.texts(key, value) {
            let Some(name) = self.name(of, place, text) else { continue };
            match seen.insert(name.text.clone()) {
                true => names.push(name),
                false => self.add(place, Fault::ListedTwice { key, name: name.text }),
            }
        }
        names
    }

    pub(super) fn texts(&mut self, key: &'static str, value: Value) -> Vec<(Place, String)> {
        let items = match value.node {
            Node::Text(text) => return vec![(value.place, text)],
            Node::List(items) => items,
            _ => {
                self.wrong_kind(key, "a name or a list of names", &value);
                return Vec::new();
            }
        };
        if items.is_empty() && key != "set" {
            self.add(value.place, Fault::EmptyList { key, remedy: "add a name, or remove the key" });
        }
        if items.len() > MAX_NAMES {
            self.add(value.place, Fault::TooMany { of: "the list", things: "names", max: MAX_NAMES });
        }
        let named = |item: Value| Some((item.place, self.text(key, "a list of names", item)?));
        items.into_iter().take(MAX_NAMES).filter_map(named).collect()
    }

    pub(super) fn name(&mut self, of: &'static str, place: Place, text: String) -> Option<Name> {
        let rule = match of {
            "function" if is_function(&text) => return Some(Name { text, place }),
            "function" => {
                "write the name of a function: 1 to 63 of a-z, 0-9, `_` and `-`, for one that must not run there with `!` before it"
            }
            _ if is_label(&text) => return Some(Name { text, place }),
            _ => LABEL_RULE,
        };
        self.add(place, Fault::InvalidName { name: shown(&text), of, rule });
        None
    }

    pub(super) fn text(
        &mut self,
        key: &'static str,
        expected: &'static str,
        value: Value,
    ) -> Option<String> {
        match value.node {
            Node::Text(text) => Some(text),
            _ => {
                self.wrong_kind(key, expected, &value);
                None
            }
        }
    }

    pub(super) fn word<T>(
        &mut self,
        key: &'static str,
        value: Value,
        from_word: fn(&str) -> Option<T>,
        words: &'static [&'static str],
    ) -> Option<T> {
        let place = value.place;
        let text = self.text(key, "one word", value)?;
        let found = from_word(&text);
        if found.is_none() {
            let nearest = nearest(&text, words.iter().copied()).and_then(known(words));
            self.add(place, Fault::UnknownValue { key, value: shown(&text), nearest, known: words });
        }
        found
    }

    pub(super) fn boolean(&mut self, key: &'static str, value: Value) -> bool {
        let from_word = |word: &str| match word {
            "true" => Some(true),
            "false" => Some(false),
            _ => None,
        };
        self.word(key, value, from_word, &["true", "false"]).unwrap_or_default()
    }

    /// A number from 1 to `max`; a percent sign may follow.
    pub(super) fn number(&mut self, key: &'static str, max: u32, value: Value) -> Option<u32> {
        let place = value.place;
        let text = self.text(key, "a number", value)?;
        let digits = if max == 100 { text.strip_suffix('%').unwrap_or(&text) } else { &text };
        match digits.parse::<u32>() {
            Ok(number) if (1..=max).contains(&number) => Some(number),
            _ => {
                self.add(place, Fault::OutOfRange { key, value: shown(&text), min: 1, max });
                None
            }
        }
    }

    pub(super) fn unknown_key(&mut self, key: Key, within: &'static str, keys: &'static [&'static str]) {
        let nearest = nearest(&key.text, keys.iter().copied()).and_then(known(keys));
        self.add(key.place, Fault::UnknownKey { key: shown(&key.text), within, nearest, known: keys });
    }

    pub(super) fn wrong_kind(&mut self, key: &str, expected: &'static str, value: &Value) {
        self.add(value.place, Fault::WrongKind { key: key.to_owned(), expected, found: value.kind() });
    }
}

/// The form of a function's name, as in `edgefaas.toml`.
fn is_function(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    text.len() <= MAX_FUNCTION_BYTES
        && text.bytes().next().is_some_and(allowed)
        && text.bytes().all(|byte| allowed(byte) || byte == b'_' || byte == b'-')
}

/// The static word that equals another.
pub(super) fn known<'a>(words: &'static [&'static str]) -> impl FnOnce(&'a str) -> Option<&'static str> {
    move |near| words.iter().find(|word| **word == near).copied()
}

/// A text from outside for a message.
pub(super) fn shown(text: &str) -> String {
    text.chars().take(SHOWN_CHARS).flat_map(char::escape_debug).collect()
}
