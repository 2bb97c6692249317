//! Reads YAML 1.2, which includes JSON, into a tree of values with their lines and columns.

use std::collections::{HashMap, HashSet};

use saphyr::Scalar;
use saphyr_parser::{Event, Parser, ScalarStyle, ScanError, Span};
use serde_json::{Number, Value};

/// Maximum size of the text, in bytes.
const MAX_BYTES: usize = 1 << 20;
/// Maximum depth of the tree.
const MAX_DEPTH: usize = 100;
/// Maximum number of values. Every use of an alias counts its values again.
const MAX_VALUES: usize = 200_000;

/// A position in the text.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The line, counted from 1.
    pub line: usize,
    /// The column in characters, counted from 1.
    pub column: usize,
}

/// A value and its place.
#[derive(Debug, Clone, PartialEq)]
pub struct Located {
    /// The start of the value.
    pub place: Place,
    /// The value.
    pub node: Node,
}

/// The kinds of values.
#[derive(Debug, Clone, PartialEq)]
pub enum Node {
    /// null, true, false, a number or a string.
    Scalar(Value),
    /// A sequence.
    Array(Vec<Located>),
    /// A mapping in the order of the text, with unique keys.
    Object(Vec<(Key, Located)>),
}

/// A key of a mapping.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key {
    /// The start of the key.
    pub place: Place,
    /// The text of the key.
    pub text: String,
}

impl Located {
    /// The value of a key; `None` if the key does not exist or the value is not a mapping.
    pub fn get(&self, key: &str) -> Option<&Located> {
        self.entries().iter().find(|(name, _)| name.text == key).map(|(_, value)| value)
    }

    /// The entries of a mapping; empty for other values.
    pub fn entries(&self) -> &[(Key, Located)] {
        match &self.node {
            Node::Object(entries) => entries,
            _ => &[],
        }
    }

    /// The items of a sequence; `None` for other values.
    pub fn items(&self) -> Option<&[Located]> {
        match &self.node {
            Node::Array(items) => Some(items),
            _ => None,
        }
    }

    /// True for a mapping.
    pub fn is_object(&self) -> bool {
        matches!(self.node, Node::Object(_))
    }

    /// The text of a string; `None` for other values.
    pub fn text(&self) -> Option<&str> {
        match &self.node {
            Node::Scalar(Value::String(text)) => Some(text),
            _ => None,
        }
    }

    /// The value as JSON, without places.
    pub fn to_json(&self) -> Value {
        match &self.node {
            Node::Scalar(value) => value.clone(),
            Node::Array(items) => items.iter().map(Self::to_json).collect(),
            Node::Object(entries) => {
                entries.iter().map(|(key, value)| (key.text.clone(), value.to_json())).collect()
            }
        }
    }

    /// The kind of the value, with its article, for messages.
    pub fn kind(&self) -> &'static str {
        match &self.node {
            Node::Scalar(Value::Null) => "nothing",
            Node::Scalar(Value::Bool(_)) => "a boolean",
            Node::Scalar(Value::Number(_)) => "a number",
            Node::Scalar(_) => "a string",
            Node::Array(_) => "a list",
            Node::Object(_) => "an object",
        }
    }

    /// The place of the value that a JSON pointer (RFC 6901) names, or of its nearest ancestor that exists.
    pub fn place_of(&self, pointer: &str) -> Place {
        let mut at = self;
        for part in pointer.split('/').skip(1) {
            let part = part.replace("~1", "/").replace("~0", "~");
            let next = match &at.node {
                Node::Array(items) => part.parse::<usize>().ok().and_then(|index| items.get(index)),
                _ => at.get(&part),
            };
            match next {
                Some(next) => at = next,
                None => break,
            }
        }
        at.place
    }
}

/// The text is not a valid document of a workflow.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {}, column {}: {fault}", place.line, place.column)]
pub struct DocumentError {
    /// The place of the fault.
    pub place: Place,
    /// The fault.
    pub fault: DocumentFault,
}

/// The kinds of a [`DocumentError`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DocumentFault {
    /// The text has too many bytes.
    #[error("the text is larger than {max_bytes} bytes")]
    TooLarge {
        /// The maximum.
        max_bytes: usize,
    },
    /// The YAML parser rejects the text.
    #[error("this is not valid YAML: {detail}")]
    Syntax {
        /// The parser's message.
        detail: String,
    },
    /// The text has no document.
    #[error("the text is empty")]
    Empty,
    /// The text has more than one document.
    #[error("a second document starts here; put each workflow into a file of its own")]
    SecondDocument,
    /// A value has a tag that is not of YAML's core schema.
    #[error("tags have no meaning in a workflow")]
    Tag,
    /// A value does not have the form that its tag requires.
    #[error("the value does not fit its tag")]
    TagMismatch,
    /// An alias names an anchor that does not exist before it, or an anchor whose value contains the alias.
    #[error("the alias names no anchor that has ended before")]
    UnknownAnchor,
    /// Lists and objects nest too deeply.
    #[error("it is nested more than {max_depth} deep")]
    TooDeep {
        /// The maximum.
        max_depth: usize,
    },
    /// The document has too many values.
    #[error("it has more than {max_values} values")]
    TooManyValues {
        /// The maximum.
        max_values: usize,
    },
    /// Aliases make the document too large or too deep.
    #[error("with its aliases it has more than {max_values} values or {max_depth} levels")]
    AliasesTooLarge {
        /// The maximum number of values.
        max_values: usize,
        /// The maximum depth.
        max_depth: usize,
    },
    /// A key of a mapping is a list or an object.
    #[error("a key is a list or an object; keys are text")]
    KeyNotText,
    /// Two keys of a mapping are equal.
    #[error("the key `{key}` occurs twice")]
    DuplicateKey {
        /// The key.
        key: String,
    },
}

/// Reads the single document of a text.
///
/// # Errors
/// See [`DocumentFault`].
pub fn read(text: &str) -> Result<Located, DocumentError> {
    let at_start = |fault| DocumentError { place: Place { line: 1, column: 1 }, fault };
    if text.len() > MAX_BYTES {
        return Err(at_start(DocumentFault::TooLarge { max_bytes: MAX_BYTES }));
    }
    let mut reader = Reader::default();
    for event in Parser::new_from_str(text) {
        let (event, span) = event.map_err(|error| syntax_error(&error))?;
        reader.event(event, span).map_err(|fault| DocumentError { place: place(&span), fault })?;
    }
    reader.root.ok_or_else(|| at_start(DocumentFault::Empty))
}

fn syntax_error(error: &ScanError) -> DocumentError {
    let mark = error.marker();
    let place = Place { line: mark.line().max(1), column: mark.col() + 1 };
    DocumentError { place, fault: DocumentFault::Syntax { detail: error.info().to_owned() } }
}

fn place(span: &Span) -> Place {
    Place { line: span.start.line().max(1), column: span.start.col() + 1 }
}

#[derive(Default)]
struct Reader {
    open: Vec<Open>,
    root: Option<Located>,
    anchors: HashMap<usize, Located>,
    values: usize,
    documents: usize,
}

/// A sequence or mapping that has not ended yet.
struct Open {
    anchor: usize,
    value: Located,
    key: Option<Key>,
    keys: HashSet<String>,
}

impl Reader {
    fn event(&mut self, event: Event<'_>, span: Span) -> Result<(), DocumentFault> {
        let place = place(&span);
        match event {
            Event::DocumentStart(_) => {
                self.documents += 1;
                if self.documents > 1 {
                    return Err(DocumentFault::SecondDocument);
                }
            }
            Event::Scalar(text, style, anchor, tag) => {
                let tagged = tag.as_ref().is_some_and(|tag| !tag.is_yaml_core_schema());
                if tagged {
                    return Err(DocumentFault::Tag);
                }
                let plain = style == ScalarStyle::Plain;
                let scalar = Scalar::parse_from_cow_and_metadata(text.clone(), style, tag.as_ref())
                    .ok_or(DocumentFault::TagMismatch)?;
                let value = match scalar {
                    Scalar::Null => Value::Null,
                    Scalar::Boolean(value) => Value::Bool(value),
                    Scalar::Integer(value) => Value::Number(value.into()),
                    // A number that JSON cannot represent (.inf) stays a text.
                    Scalar::FloatingPoint(value) => match plain.then(|| text.parse::<u64>().ok()).flatten()
                    {
                        Some(large) => Value::Number(large.into()),
                        None => Number::from_f64(value.into_inner())
                            .map_or_else(|| Value::String(text.into_owned()), Value::Number),
                    },
                    Scalar::String(text) => Value::String(text.into_owned()),
                };
                self.add(Located { place, node: Node::Scalar(value) }, anchor)?;
            }
            Event::SequenceStart(anchor, _) => self.open(place, Node::Array(Vec::new()), anchor)?,
            Event::MappingStart(anchor, _) => self.open(place, Node::Object(Vec::new()), anchor)?,
            Event::SequenceEnd | Event::MappingEnd => {
                if let Some(open) = self.open.pop() {
                    self.add(open.value, open.anchor)?;
                }
            }
            Event::Alias(anchor) => {
                let value = self.anchors.get(&anchor).ok_or(DocumentFault::UnknownAnchor)?;
                let value = value.clone();
                self.count(&value)?;
                self.add(value, 0)?;
            }
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentEnd => {}
        }
        Ok(())
    }

    fn open(&mut self, place: Place, node: Node, anchor: usize) -> Result<(), DocumentFault> {
        if self.open.len() >= MAX_DEPTH {
            return Err(DocumentFault::TooDeep { max_depth: MAX_DEPTH });
        }
        self.open.push(Open { anchor, value: Located { place, node }, key: None, keys: HashSet::new() });
        Ok(())
    }

    /// Counts the values of an anchor or alias before they are copied, since aliases of aliases grow exponentially.
    fn count(&mut self, value: &Located) -> Result<(), DocumentFault> {
        self.values += size(value);
        match self.values > MAX_VALUES || depth(value) + self.open.len() > MAX_DEPTH {
            true => Err(DocumentFault::AliasesTooLarge { max_values: MAX_VALUES, max_depth: MAX_DEPTH }),
            false => Ok(()),
        }
    }

    fn add(&mut self, value: Located, anchor: usize) -> Result<(), DocumentFault> {
        self.values += 1;
        if self.values > MAX_VALUES {
            return Err(DocumentFault::TooManyValues { max_values: MAX_VALUES });
        }
        if anchor > 0 {
            self.count(&value)?;
            self.anchors.insert(anchor, value.clone());
        }
        let Some(open) = self.open.last_mut() else {
            self.root = Some(value);
            return Ok(());
        };
        match &mut open.value.node {
            Node::Array(items) => items.push(value),
            Node::Object(entries) => match open.key.take() {
                Some(key) => entries.push((key, value)),
                None => {
                    let text = match &value.node {
                        Node::Scalar(Value::String(text)) => text.clone(),
                        Node::Scalar(other) => other.to_string(),
                        _ => return Err(DocumentFault::KeyNotText),
                    };
                    if !open.keys.insert(text.clone()) {
                        return Err(DocumentFault::DuplicateKey { key: text });
                    }
                    open.key = Some(Key { place: value.place, text });
                }
            },
            Node::Scalar(_) => {}
        }
        Ok(())
    }
}

fn size(value: &Located) -> usize {
    1 + match &value.node {
        Node::Scalar(_) => 0,
        Node::Array(items) => items.iter().map(size).sum(),
        Node::Object(entries) => entries.iter().map(|(_, value)| size(value)).sum(),
    }
}

fn depth(value: &Located) -> usize {
    match &value.node {
        Node::Scalar(_) => 0,
        Node::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Node::Object(entries) => 1 + entries.iter().map(|(_, value)| depth(value)).max().unwrap_or(0),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_have_their_places() {
        let read = read("a: 1\nb:\n  - x\n  - {c: 1.5, d: null}\n").unwrap();
        assert_eq!(read.to_json(), json!({"a": 1, "b": ["x", {"c": 1.5, "d": null}]}));
        assert_eq!(read.place_of("/b/1/c"), Place { line: 4, column: 9 });
    }

    #[test]
    fn versions_stay_text() {
        let read = read("dsl: 1.0.3\nversion: '1.0'\nlarge: 18446744073709551615").unwrap();
        assert_eq!(read.to_json(), json!({"dsl": "1.0.3", "version": "1.0", "large": u64::MAX}));
    }

    #[test]
    fn an_error_has_the_place_of_the_fault() {
        for (text, line, part) in [
            ("a: 1\na: 2\n", 2, "occurs twice"),
            ("a: [1, 2\nb: 3\n", 2, "not valid YAML"),
            ("", 1, "empty"),
            ("a: 1\n---\nb: 2\n", 2, "second document"),
            ("a: !mine 1\n", 1, "tags"),
        ] {
            let DocumentError { place, fault } = read(text).unwrap_err();
            let message = fault.to_string();
            assert!(message.contains(part), "{text:?}: {message}");
            assert_eq!(place.line, line, "{text:?}: {message}");
        }
    }

    #[test]
    fn aliases_of_aliases_end() {
        let mut text = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n".to_owned();
        for level in 1..12 {
            let before = level - 1;
            let list = vec![format!("*a{before}"); 10].join(",");
            text.push_str(&format!("a{level}: &a{level} [{list}]\n"));
        }
        assert!(matches!(read(&text).unwrap_err().fault, DocumentFault::AliasesTooLarge { .. }));
        assert!(read(&format!("{}{}", "[".repeat(5000), "]".repeat(5000))).is_err());
    }
}
