//! Reads the subset of YAML that policies use, into a tree of values with their places.

use std::collections::HashMap;

use saphyr_parser::{Event, Parser, ScalarStyle, Span};

use super::fault::{Fault, Place, Problem};

/// Maximum size of the text of a policy, in bytes.
pub const MAX_BYTES: usize = 256 * 1024;
/// Maximum depth of the tree. The language needs 6.
const MAX_DEPTH: usize = 16;
/// Maximum number of values.
const MAX_VALUES: usize = 20_000;

/// A value and its place.
#[derive(Debug)]
pub(super) struct Value {
    pub(super) place: Place,
    pub(super) node: Node,
}

/// The kinds of values.
#[derive(Debug)]
pub(super) enum Node {
    /// Nothing, `null` or `~`.
    Nothing,
    /// A boolean, a number or a string.
    Text(String),
    /// A sequence.
    List(Vec<Value>),
    /// A mapping in the order of the text, with unique keys.
    Mapping(Vec<(Key, Value)>),
}

/// A key of a mapping.
#[derive(Debug)]
pub(super) struct Key {
    pub(super) place: Place,
    pub(super) text: String,
}

impl Value {
    /// The kind of the value, with its article, for messages.
    pub(super) fn kind(&self) -> &'static str {
        match &self.node {
            Node::Nothing => "empty",
            Node::Text(_) => "a single value",
            Node::List(_) => "a list",
            Node::Mapping(_) => "a mapping",
        }
    }
}

/// Reads the single document of a text. Repeated keys are added to `problems`, and their first value counts.
///
/// # Errors
/// The fault after which the text cannot be read.
pub(super) fn read(text: &str, problems: &mut Vec<Problem>) -> Result<Value, Problem> {
    let at_start = |fault| Problem { place: Place { line: 1, column: 1 }, fault };
    if text.len() > MAX_BYTES {
        return Err(at_start(Fault::TooLarge { max_bytes: MAX_BYTES }));
    }
    if let Some(offset) = text.find('\0') {
        return Err(Problem { place: place_of(text, offset), fault: Fault::Nul });
    }
    let mut reader = Reader { open: Vec::new(), root: None, values: 0, documents: 0, problems };
    for event in Parser::new_from_str(text) {
        let (event, span) = event.map_err(|error| {
            let place = at(error.marker().line(), error.marker().col());
            let star = has_star(text, place);
            let fault =
                if star { Fault::UnquotedStar } else { Fault::Syntax { detail: error.info().to_owned() } };
            Problem { place, fault }
        })?;
        reader.event(event, &span).map_err(|fault| Problem { place: start_of(&span), fault })?;
    }
    match reader.root {
        Some(Value { node: Node::Nothing, .. }) | None => Err(at_start(Fault::Empty)),
        Some(root) => Ok(root),
    }
}

/// True if there is an asterisk at a place of the text.
fn has_star(text: &str, place: Place) -> bool {
    let line = text.lines().nth(place.line as usize - 1);
    line.and_then(|line| line.chars().nth(place.column as usize - 1)) == Some('*')
}

/// The place of a byte of the text.
fn place_of(text: &str, offset: usize) -> Place {
    let before = text.get(..offset).unwrap_or_default();
    let line = before.rsplit('\n').next().unwrap_or_default();
    at(before.matches('\n').count() + 1, line.chars().count())
}

fn start_of(span: &Span) -> Place {
    at(span.start.line(), span.start.col())
}

/// The parser counts lines from 1 and columns from 0.
fn at(line: usize, column: usize) -> Place {
    let number = |value: usize| u32::try_from(value).unwrap_or(u32::MAX);
    Place { line: number(line.max(1)), column: number(column.saturating_add(1)) }
}

struct Reader<'a> {
    open: Vec<Open>,
    root: Option<Value>,
    values: usize,
    documents: usize,
    problems: &'a mut Vec<Problem>,
}

/// A sequence or mapping that has not ended yet.
struct Open {
    value: Value,
    key: Option<Key>,
    /// Lines of the keys.
    keys: HashMap<String, u32>,
}

impl Reader<'_> {
    fn event(&mut self, event: Event<'_>, span: &Span) -> Result<(), Fault> {
        let place = start_of(span);
        match event {
            Event::DocumentStart(_) => {
                self.documents += 1;
                if self.documents > 1 {
                    return Err(Fault::SecondDocument);
                }
            }
            Event::Alias(_) => return Err(Fault::Anchor),
            Event::Scalar(_, _, anchor, _)
            | Event::SequenceStart(anchor, _)
            | Event::MappingStart(anchor, _)
                if anchor > 0 =>
            {
                return Err(Fault::Anchor);
            }
            Event::Scalar(_, _, _, Some(_))
            | Event::SequenceStart(_, Some(_))
            | Event::MappingStart(_, Some(_)) => return Err(Fault::YamlTag),
            Event::Scalar(text, style, ..) => {
                let nothing = style == ScalarStyle::Plain && matches!(&*text, "" | "~" | "null");
                let node = if nothing { Node::Nothing } else { Node::Text(text.into_owned()) };
                self.add(Value { place, node })?;
            }
            Event::SequenceStart(..) => self.begin(place, Node::List(Vec::new()))?,
            Event::MappingStart(..) => self.begin(place, Node::Mapping(Vec::new()))?,
            Event::SequenceEnd | Event::MappingEnd => {
                if let Some(open) = self.open.pop() {
                    self.add(open.value)?;
                }
            }
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentEnd => {}
        }
        Ok(())
    }

    fn begin(&mut self, place: Place, node: Node) -> Result<(), Fault> {
        if self.open.len() >= MAX_DEPTH {
            return Err(Fault::TooDeep { max_depth: MAX_DEPTH });
        }
        self.open.push(Open { value: Value { place, node }, key: None, keys: HashMap::new() });
        Ok(())
    }

    fn add(&mut self, value: Value) -> Result<(), Fault> {
        self.values += 1;
        if self.values > MAX_VALUES {
            return Err(Fault::TooManyValues { max_values: MAX_VALUES });
        }
        let Some(open) = self.open.last_mut() else {
            self.root = Some(value);
            return Ok(());
        };
        match &mut open.value.node {
            Node::List(items) => items.push(value),
            Node::Mapping(entries) => match open.key.take() {
                Some(key) => match open.keys.get(&key.text) {
                    Some(&first_line) => self.problems.push(Problem {
                        place: key.place,
                        fault: Fault::DuplicateKey { key: key.text, first_line },
                    }),
                    None => {
                        open.keys.insert(key.text.clone(), key.place.line);
                        entries.push((key, value));
                    }
                },
                None => match value.node {
                    Node::Text(text) => open.key = Some(Key { place: value.place, text }),
                    _ => return Err(Fault::KeyNotText),
                },
            },
            Node::Nothing | Node::Text(_) => {}
        }
        Ok(())
    }
}
