//! Checks the tree of a text and makes a [`Policy`] of it. All problems are collected.
//!
//! Two forms of the document are accepted: a mapping of tags, and the list of mappings with one tag each that the
//! OpenWhisk artefact reads, where `strategy` and `followup` stand beside the tag.

use super::fault::{Fault, Place, PolicyError, nearest};
use super::language::{
    Block, BlockOrder, Controller, Distribution, Entry, Followup, Limits, Policy, Strategy, Tag, Target,
    Tolerance, WorkerList,
};
use super::values::{Values, known, shown};
use super::yaml::{self, Key, Node, Value};

/// Maximum number of blocks of a tag.
pub(crate) const MAX_BLOCKS_OF_TAG: usize = 64;
/// Maximum number of blocks of a policy.
const MAX_BLOCKS: usize = 1_024;
/// Maximum number of entries of a list of workers.
const MAX_ENTRIES: usize = 1_024;

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
/// Words that cannot be tags.
const RESERVED: &[&str] = &["distribution", "strategy", "followup"];

impl Policy {
    /// Reads the policies of a cluster: an empty text is none.
    ///
    /// # Errors
    /// Those of [`parse`](Self::parse).
    pub fn of_cluster(text: &str) -> Result<Self, PolicyError> {
        if text.trim().is_empty() { Ok(Self::default()) } else { Self::parse(text) }
    }

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
        let mut parser = Parser { values: Values { problems }, blocks: 0 };
        let policy = parser.document(root);
        let mut problems = parser.values.problems;
        if problems.is_empty() {
            return Ok(policy);
        }
        problems.sort_by_key(|problem| problem.place);
        Err(PolicyError { problems })
    }
}

struct Parser {
    values: Values,
    blocks: usize,
}

impl Parser {
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
            _ => self.values.wrong_kind("the policy", "a mapping from tags to their blocks", &root),
        }
        if document.tags.is_empty() && document.distribution.is_none() && self.values.problems.is_empty() {
            self.values.add(root.place, Fault::Empty);
        }
        Policy {
            distribution: document.distribution.map_or_else(Distribution::default, |(value, _)| value),
            tags: document.tags,
        }
    }

    fn distribution(&mut self, document: &mut Document, key: &Key, value: Value) {
        if let Some((_, first_line)) = document.distribution {
            return self.values.add(key.place, Fault::Repeated { name: key.text.clone(), first_line });
        }
        let distribution = self
            .values
            .word("distribution", value, Distribution::from_word, Distribution::WORDS)
            .unwrap_or_default();
        document.distribution = Some((distribution, key.place.line));
    }

    /// An item of the list form: one tag, with its options beside it.
    fn tag_item(&mut self, document: &mut Document, item: Value) {
        let Node::Mapping(entries) = item.node else {
            return self.values.wrong_kind("the policy", "a list of mappings with one tag each", &item);
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
                    self.values.add(
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
                    self.values
                        .add(key.place, Fault::UnknownKey { key: key.text, within, nearest: None, known });
                }
            }
        }
    }

    fn tag(&mut self, document: &mut Document, key: Key, value: Value) {
        if RESERVED.contains(&key.text.as_str()) {
            return self.values.add(key.place, Fault::ReservedTag { name: key.text });
        }
        let Some(name) = self.values.name("tag", key.place, key.text) else { return };
        if let Some(first) = document.tags.iter().find(|tag| tag.name == name.text) {
            let first_line = first.place.line;
            return self.values.add(name.place, Fault::Repeated { name: name.text, first_line });
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
                self.values.wrong_kind(
                    &tag.name,
                    "a list of blocks, each of which starts with `-`",
                    &value,
                );
                document.tags.push(tag);
                return;
            }
        };
        let before = self.values.problems.len();
        let mut options = OptionLines::default();
        for item in items {
            self.block_or_options(&mut tag, &mut options, item);
        }
        if tag.blocks.is_empty() && self.values.problems.len() == before {
            self.values.add(tag.place, Fault::NoBlock { tag: tag.name.clone() });
        }
        if tag.blocks.len() > MAX_BLOCKS_OF_TAG {
            let (of, things) = ("a tag", "blocks");
            self.values.add(tag.place, Fault::TooMany { of, things, max: MAX_BLOCKS_OF_TAG });
        }
        self.blocks += tag.blocks.len();
        if self.blocks > MAX_BLOCKS && self.blocks - tag.blocks.len() <= MAX_BLOCKS {
            self.values
                .add(tag.place, Fault::TooMany { of: "the policy", things: "blocks", max: MAX_BLOCKS });
        }
        document.tags.push(tag);
    }

    /// An entry of a tag. It is a block if it names workers or a controller; otherwise it has options of the tag.
    fn block_or_options(&mut self, tag: &mut Tag, options: &mut OptionLines, item: Value) {
        let place = item.place;
        let Node::Mapping(entries) = item.node else {
            let expected = "a block such as `workers: \"*\"`";
            return self.values.wrong_kind("an entry of the tag", expected, &item);
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
            return self.values.add(key.place, Fault::Repeated { name: key.text.clone(), first_line });
        }
        match key.text.as_str() {
            "strategy" => {
                tag.order = self
                    .values
                    .word("strategy", value, BlockOrder::from_word, BlockOrder::WORDS)
                    .unwrap_or_default();
            }
            _ => {
                tag.followup = self
                    .values
                    .word("followup", value, Followup::from_word, Followup::WORDS)
                    .unwrap_or_default();
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
                    let word = self.values.word(
                        "topology_tolerance",
                        value,
                        Tolerance::from_word,
                        Tolerance::WORDS,
                    );
                    tolerance = Some((key.place, word.unwrap_or_default()));
                }
                "workers" => block.workers = self.workers(value),
                "strategy" => block.strategy = self.strategy(value),
                "invalidate" => block.limits = self.values.limits(value),
                "prefer" => block.prefer = self.values.names("prefer", "label", value),
                "affinity" => block.affinity = self.values.affinity(value),
                "sticky" => block.sticky = self.values.boolean("sticky", value),
                "followup" => {
                    self.values.add(key.place, Fault::OptionInBlock { key: "followup", example: "fail" });
                }
                _ => self.values.unknown_key(key, "a block", BLOCK_KEYS),
            }
        }
        match (tolerance, &mut block.controller) {
            (Some((_, tolerance)), Some(controller)) => controller.tolerance = tolerance,
            (Some((place, _)), None) => self.values.add(place, Fault::ToleranceWithoutController),
            (None, _) => {}
        }
        block
    }

    fn controller(&mut self, value: Value) -> Option<Controller> {
        let place = value.place;
        let text = self.values.text("controller", "the name of a node, or \"*\"", value)?;
        if text == "*" {
            return None;
        }
        let name = self.values.name("node", place, text)?;
        Some(Controller { name, tolerance: Tolerance::default() })
    }

    fn workers(&mut self, value: Value) -> WorkerList {
        let expected = "\"*\", or a list of names, `wrk` and `set`";
        let items = match value.node {
            Node::Text(ref text) if text == "*" => return WorkerList::All,
            Node::List(items) => items,
            _ => {
                self.values.wrong_kind("workers", expected, &value);
                return WorkerList::All;
            }
        };
        if items.is_empty() {
            self.values.add(
                value.place,
                Fault::EmptyList { key: "workers", remedy: "write \"*\" for all workers" },
            );
        }
        if items.len() > MAX_ENTRIES {
            self.values
                .add(value.place, Fault::TooMany { of: "`workers`", things: "entries", max: MAX_ENTRIES });
        }
        WorkerList::Listed(
            items.into_iter().take(MAX_ENTRIES).filter_map(|item| self.entry(item)).collect(),
        )
    }

    fn entry(&mut self, item: Value) -> Option<Entry> {
        let place = item.place;
        let entries = match item.node {
            Node::Text(text) => {
                let target = Target::Worker(self.values.name("node", place, text)?);
                return Some(Entry { place, target, limits: Limits::default() });
            }
            Node::Mapping(entries) => entries,
            _ => {
                self.values.wrong_kind(
                    "an entry of `workers`",
                    "a name, `wrk: NAME` or `set: LABEL`",
                    &item,
                );
                return None;
            }
        };
        let (mut target, mut strategy, mut limits) = (None, None, Limits::default());
        for (key, value) in entries {
            match key.text.as_str() {
                "wrk" | "set" if target.is_some() => {
                    let (within, known) =
                        ("an entry that names workers already", &["strategy", "invalidate"]);
                    self.values
                        .add(key.place, Fault::UnknownKey { key: key.text, within, nearest: None, known });
                }
                "wrk" => {
                    let place = value.place;
                    let text = self.values.text("wrk", "the name of a node", value)?;
                    target = Some(Target::Worker(self.values.name("node", place, text)?));
                }
                "set" => {
                    target = Some(Target::Set {
                        labels: self.values.names("set", "label", value),
                        strategy: None,
                    })
                }
                "strategy" => strategy = Some((key.place, self.strategy(value))),
                "invalidate" => limits = self.values.limits(value),
                _ => self.values.unknown_key(key, "an entry of `workers`", ENTRY_KEYS),
            }
        }
        let Some(mut target) = target else {
            let fault = Fault::WrongKind {
                key: "an entry of `workers`".into(),
                expected: "`wrk: NAME` or `set: LABEL`",
                found: "without `wrk` and `set`",
            };
            self.values.add(place, fault);
            return None;
        };
        match (&mut target, strategy) {
            (Target::Set { strategy, .. }, Some((_, own))) => *strategy = Some(own),
            (Target::Worker(_), Some((place, _))) => {
                let (key, within) = ("strategy".into(), "an entry with one worker");
                let known = &["wrk", "invalidate"];
                self.values.add(place, Fault::UnknownKey { key, within, nearest: None, known });
            }
            (_, None) => {}
        }
        Some(Entry { place, target, limits })
    }

    fn strategy(&mut self, value: Value) -> Strategy {
        self.values.word("strategy", value, Strategy::from_word, Strategy::WORDS).unwrap_or_default()
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
