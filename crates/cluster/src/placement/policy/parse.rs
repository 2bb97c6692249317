//! Checks the tree of a text and makes a [`Policy`] of it. All problems are collected.
//!
//! Two forms of the document are accepted: a mapping of tags, and the list of mappings with one tag each that the
//! OpenWhisk artefact reads, where `strategy` and `followup` stand beside the tag.

use std::collections::HashSet;

use edgefaas_platform::{LABEL_RULE, is_label};

use super::fault::{Fault, Place, PolicyError, Problem, nearest};
use super::language::{
    Affinity, AffinityRule, Block, BlockOrder, Controller, Distribution, Entry, Followup, Limits, Name,
    Policy, Strategy, Tag, Target, Tolerance, WorkerList,
};
use super::yaml::{self, Key, Node, Value};

/// Maximum number of blocks of a tag.
pub(crate) const MAX_BLOCKS_OF_TAG: usize = 64;
/// Maximum number of blocks of a policy.
const MAX_BLOCKS: usize = 1_024;
/// Maximum number of entries of a list of workers.
const MAX_ENTRIES: usize = 1_024;
/// Maximum number of labels of a set, of preferred labels, and of functions in `affinity`.
pub(crate) const MAX_NAMES: usize = 16;
/// Maximum of `max_concurrent_invocations`.
const MAX_CONCURRENT: u32 = 1_000_000;
/// The longest name of a function.
const MAX_FUNCTION_BYTES: usize = 63;
/// The part of a wrong text that a message shows, in characters.
const SHOWN_CHARS: usize = 63;

const TAG_KEYS: &[&str] = &["strategy", "followup"];
const BLOCK_KEYS: &[&str] = &[
    "controller",
    "topology_tolerance",
    "workers",
    "strategy",
    "invalidate",
    "prefer",
    "affinity",
    "sticky",
];
const ENTRY_KEYS: &[&str] = &["wrk", "set", "strategy", "invalidate"];
const LIMIT_KEYS: &[&str] = &["capacity_used", "max_concurrent_invocations", "overload"];
/// Words that cannot be tags.
const RESERVED: &[&str] = &["distribution", "strategy", "followup"];

impl Policy {
    /// Reads a policy.
    ///
    /// # Errors
    /// All problems of the text, or the first one after which it cannot be read. The text has at most 256 KiB.
    pub fn parse(text: &str) -> Result<Self, PolicyError> {
        let mut problems = Vec::new();
        let root = match yaml::read(text, &mut problems) {
            Ok(root) => root,
            Err(problem) => {
                problems.push(problem);
                return Err(PolicyError { problems });
            }
        };
        let mut parser = Parser { problems, blocks: 0 };
        let policy = parser.document(root);
        let mut problems = parser.problems;
        if problems.is_empty() {
            return Ok(policy);
        }
        problems.sort_by_key(|problem| problem.place);
        Err(PolicyError { problems })
    }
}

struct Parser {
    problems: Vec<Problem>,
    blocks: usize,
}

impl Parser {
    fn add(&mut self, place: Place, fault: Fault) {
        self.problems.push(Problem { place, fault });
    }

    fn document(&mut self, root: Value) -> Policy {
        let mut document = Document::default();
        match root.node {
            Node::Mapping(entries) => {
                for (key, value) in entries {
                    match key.text.as_str() {
                        "distribution" => self.distribution(&mut document, &key, value),
                        _ => self.tag(&mut document, key, value),
                    }
                }
            }
            Node::List(items) => {
                for item in items {
                    self.tag_item(&mut document, item);
                }
            }
            _ => self.wrong_kind("the policy", "a mapping from tags to their blocks", &root),
        }
        if document.tags.is_empty() && document.distribution.is_none() && self.problems.is_empty() {
            self.add(root.place, Fault::Empty);
        }
        Policy {
            distribution: document.distribution.map_or_else(Distribution::default, |(value, _)| value),
            tags: document.tags,
        }
    }

    fn distribution(&mut self, document: &mut Document, key: &Key, value: Value) {
        if let Some((_, first_line)) = document.distribution {
            return self.add(key.place, Fault::Repeated { name: key.text.clone(), first_line });
        }
        let distribution = self
            .word("distribution", value, Distribution::from_word, Distribution::WORDS)
            .unwrap_or_default();
        document.distribution = Some((distribution, key.place.line));
    }

    /// An item of the list form: one tag, with its options beside it.
    fn tag_item(&mut self, document: &mut Document, item: Value) {
        let Node::Mapping(entries) = item.node else {
            return self.wrong_kind("the policy", "a list of mappings with one tag each", &item);
        };
        let mut options = Vec::new();
        let before = document.tags.len();
        for (key, value) in entries {
            match key.text.as_str() {
                "distribution" => self.distribution(document, &key, value),
                "strategy" | "followup" => options.push((key, value)),
                _ if document.tags.len() > before => {
                    let nearest = nearest(&key.text, TAG_KEYS.iter().copied()).and_then(known(TAG_KEYS));
                    let within = "an entry that has a tag already";
                    self.add(
                        key.place,
                        Fault::UnknownKey { key: shown(&key.text), within, nearest, known: TAG_KEYS },
                    );
                }
                _ => self.tag(document, key, value),
            }
        }
        match document.tags.get_mut(before..).and_then(<[Tag]>::first_mut) {
            Some(tag) => {
                let mut set = OptionLines::default();
                for (key, value) in options {
                    self.option(tag, &mut set, &key, value);
                }
            }
            None => {
                for (key, _) in options {
                    let within = "an entry without a tag";
                    let known = &["distribution"];
                    self.add(key.place, Fault::UnknownKey { key: key.text, within, nearest: None, known });
                }
            }
        }
    }

    fn tag(&mut self, document: &mut Document, key: Key, value: Value) {
        if RESERVED.contains(&key.text.as_str()) {
            return self.add(key.place, Fault::ReservedTag { name: key.text });
        }
        let Some(name) = self.name("tag", key.place, key.text) else { return };
        if let Some(first) = document.tags.iter().find(|tag| tag.name == name.text) {
            let first_line = first.place.line;
            return self.add(name.place, Fault::Repeated { name: name.text, first_line });
        }
        let mut tag = Tag {
            name: name.text,
            place: name.place,
            blocks: Vec::new(),
            order: BlockOrder::default(),
            followup: Followup::default(),
        };
        let items = match value.node {
            Node::List(items) => items,
            Node::Nothing => Vec::new(),
            _ => {
                self.wrong_kind(&tag.name, "a list of blocks, each of which starts with `-`", &value);
                document.tags.push(tag);
                return;
            }
        };
        let before = self.problems.len();
        let mut options = OptionLines::default();
        for item in items {
            self.block_or_options(&mut tag, &mut options, item);
        }
        if tag.blocks.is_empty() && self.problems.len() == before {
            self.add(tag.place, Fault::NoBlock { tag: tag.name.clone() });
        }
        if tag.blocks.len() > MAX_BLOCKS_OF_TAG {
            let (of, things) = ("a tag", "blocks");
            self.add(tag.place, Fault::TooMany { of, things, max: MAX_BLOCKS_OF_TAG });
        }
        self.blocks += tag.blocks.len();
        if self.blocks > MAX_BLOCKS && self.blocks - tag.blocks.len() <= MAX_BLOCKS {
            self.add(tag.place, Fault::TooMany { of: "the policy", things: "blocks", max: MAX_BLOCKS });
        }
        document.tags.push(tag);
    }

    /// An entry of a tag. It is a block if it names workers or a controller; otherwise it has options of the tag.
    fn block_or_options(&mut self, tag: &mut Tag, options: &mut OptionLines, item: Value) {
        let place = item.place;
        let Node::Mapping(entries) = item.node else {
            let expected = "a block such as `workers: \"*\"`";
            return self.wrong_kind("an entry of the tag", expected, &item);
        };
        let is_options =
            !entries.is_empty() && entries.iter().all(|(key, _)| TAG_KEYS.contains(&key.text.as_str()));
        if is_options {
            for (key, value) in entries {
                self.option(tag, options, &key, value);
            }
            return;
        }
        let block = self.block(place, entries);
        tag.blocks.push(block);
    }

    fn option(&mut self, tag: &mut Tag, lines: &mut OptionLines, key: &Key, value: Value) {
        let line = match key.text.as_str() {
            "strategy" => &mut lines.strategy,
            _ => &mut lines.followup,
        };
        if let Some(first_line) = line.replace(key.place.line) {
            return self.add(key.place, Fault::Repeated { name: key.text.clone(), first_line });
        }
        match key.text.as_str() {
            "strategy" => {
                tag.order = self
                    .word("strategy", value, BlockOrder::from_word, BlockOrder::WORDS)
                    .unwrap_or_default();
            }
            _ => {
                tag.followup =
                    self.word("followup", value, Followup::from_word, Followup::WORDS).unwrap_or_default();
            }
        }
    }

    fn block(&mut self, place: Place, entries: Vec<(Key, Value)>) -> Block {
        let mut block = Block {
            place,
            controller: None,
            workers: WorkerList::All,
            strategy: Strategy::default(),
            limits: Limits::default(),
            prefer: Vec::new(),
            affinity: Vec::new(),
            sticky: false,
        };
        let mut tolerance = None;
        for (key, value) in entries {
            match key.text.as_str() {
                "controller" => block.controller = self.controller(value),
                "topology_tolerance" => {
                    let word =
                        self.word("topology_tolerance", value, Tolerance::from_word, Tolerance::WORDS);
                    tolerance = Some((key.place, word.unwrap_or_default()));
                }
                "workers" => block.workers = self.workers(value),
                "strategy" => block.strategy = self.strategy(value),
                "invalidate" => block.limits = self.limits(value),
                "prefer" => block.prefer = self.names("prefer", "label", value),
                "affinity" => block.affinity = self.affinity(value),
                "sticky" => block.sticky = self.boolean("sticky", value),
                "followup" => {
                    self.add(key.place, Fault::OptionInBlock { key: "followup", example: "fail" });
                }
                _ => self.unknown_key(key, "a block", BLOCK_KEYS),
            }
        }
        match (tolerance, &mut block.controller) {
            (Some((_, tolerance)), Some(controller)) => controller.tolerance = tolerance,
            (Some((place, _)), None) => self.add(place, Fault::ToleranceWithoutController),
            (None, _) => {}
        }
        block
    }

    fn controller(&mut self, value: Value) -> Option<Controller> {
        let place = value.place;
        let text = self.text("controller", "the name of a node, or \"*\"", value)?;
        if text == "*" {
            return None;
        }
        let name = self.name("node", place, text)?;
        Some(Controller { name, tolerance: Tolerance::default() })
    }

    fn workers(&mut self, value: Value) -> WorkerList {
        let expected = "\"*\", or a list of names, `wrk` and `set`";
        let items = match value.node {
            Node::Text(ref text) if text == "*" => return WorkerList::All,
            Node::List(items) => items,
            _ => {
                self.wrong_kind("workers", expected, &value);
                return WorkerList::All;
            }
        };
        if items.is_empty() {
            self.add(
                value.place,
                Fault::EmptyList { key: "workers", remedy: "write \"*\" for all workers" },
            );
        }
        if items.len() > MAX_ENTRIES {
            self.add(value.place, Fault::TooMany { of: "`workers`", things: "entries", max: MAX_ENTRIES });
        }
        WorkerList::Listed(
            items.into_iter().take(MAX_ENTRIES).filter_map(|item| self.entry(item)).collect(),
        )
    }

    fn entry(&mut self, item: Value) -> Option<Entry> {
        let place = item.place;
        let entries = match item.node {
            Node::Text(text) => {
                let target = Target::Worker(self.name("node", place, text)?);
                return Some(Entry { place, target, limits: Limits::default() });
            }
            Node::Mapping(entries) => entries,
            _ => {
                self.wrong_kind("an entry of `workers`", "a name, `wrk: NAME` or `set: LABEL`", &item);
                return None;
            }
        };
        let (mut target, mut strategy, mut limits) = (None, None, Limits::default());
        for (key, value) in entries {
            match key.text.as_str() {
                "wrk" | "set" if target.is_some() => {
                    let (within, known) =
                        ("an entry that names workers already", &["strategy", "invalidate"]);
                    self.add(key.place, Fault::UnknownKey { key: key.text, within, nearest: None, known });
                }
                "wrk" => {
                    let place = value.place;
                    let text = self.text("wrk", "the name of a node", value)?;
                    target = Some(Target::Worker(self.name("node", place, text)?));
                }
                "set" => {
                    target = Some(Target::Set { labels: self.names("set", "label", value), strategy: None })
                }
                "strategy" => strategy = Some((key.place, self.strategy(value))),
                "invalidate" => limits = self.limits(value),
                _ => self.unknown_key(key, "an entry of `workers`", ENTRY_KEYS),
            }
        }
        let Some(mut target) = target else {
            let fault = Fault::WrongKind {
                key: "an entry of `workers`".into(),
                expected: "`wrk: NAME` or `set: LABEL`",
                found: "without `wrk` and `set`",
            };
            self.add(place, fault);
            return None;
        };
        match (&mut target, strategy) {
            (Target::Set { strategy, .. }, Some((_, own))) => *strategy = Some(own),
            (Target::Worker(_), Some((place, _))) => {
                let (key, within) = ("strategy".into(), "an entry with one worker");
                let known = &["wrk", "invalidate"];
                self.add(place, Fault::UnknownKey { key, within, nearest: None, known });
            }
            (_, None) => {}
        }
        Some(Entry { place, target, limits })
    }

    fn strategy(&mut self, value: Value) -> Strategy {
        self.word("strategy", value, Strategy::from_word, Strategy::WORDS).unwrap_or_default()
    }

    /// `overload`, a mapping of conditions, or a list of both.
    fn limits(&mut self, value: Value) -> Limits {
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

    fn affinity(&mut self, value: Value) -> Vec<Affinity> {
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
    fn names(&mut self, key: &'static str, of: &'static str, value: Value) -> Vec<Name> {
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

    fn texts(&mut self, key: &'static str, value: Value) -> Vec<(Place, String)> {
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

    fn name(&mut self, of: &'static str, place: Place, text: String) -> Option<Name> {
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

    fn text(&mut self, key: &'static str, expected: &'static str, value: Value) -> Option<String> {
        match value.node {
            Node::Text(text) => Some(text),
            _ => {
                self.wrong_kind(key, expected, &value);
                None
            }
        }
    }

    fn word<T>(
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

    fn boolean(&mut self, key: &'static str, value: Value) -> bool {
        let from_word = |word: &str| match word {
            "true" => Some(true),
            "false" => Some(false),
            _ => None,
        };
        self.word(key, value, from_word, &["true", "false"]).unwrap_or_default()
    }

    /// A number from 1 to `max`; a percent sign may follow.
    fn number(&mut self, key: &'static str, max: u32, value: Value) -> Option<u32> {
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

    fn unknown_key(&mut self, key: Key, within: &'static str, keys: &'static [&'static str]) {
        let nearest = nearest(&key.text, keys.iter().copied()).and_then(known(keys));
        self.add(key.place, Fault::UnknownKey { key: shown(&key.text), within, nearest, known: keys });
    }

    fn wrong_kind(&mut self, key: &str, expected: &'static str, value: &Value) {
        self.add(value.place, Fault::WrongKind { key: key.to_owned(), expected, found: value.kind() });
    }
}

#[derive(Default)]
struct Document {
    distribution: Option<(Distribution, u32)>,
    tags: Vec<Tag>,
}

/// Lines in which options of a tag are set.
#[derive(Default)]
struct OptionLines {
    strategy: Option<u32>,
    followup: Option<u32>,
}

/// The form of a function's name, as in `edgefaas.toml`.
fn is_function(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    text.len() <= MAX_FUNCTION_BYTES
        && text.bytes().next().is_some_and(allowed)
        && text.bytes().all(|byte| allowed(byte) || byte == b'_' || byte == b'-')
}

/// The static word that equals another.
fn known<'a>(words: &'static [&'static str]) -> impl FnOnce(&'a str) -> Option<&'static str> {
    move |near| words.iter().find(|word| **word == near).copied()
}

/// A text from outside for a message.
fn shown(text: &str) -> String {
    text.chars().take(SHOWN_CHARS).flat_map(char::escape_debug).collect()
}
