//! YAML 1.2 (and so JSON) as a tree in which everything knows its line and column.

use std::collections::{HashMap, HashSet};

use saphyr::Scalar;
use saphyr_parser::{Event, Parser, ScalarStyle, ScanError, Span};
use serde_json::{Number, Value};

/// A longer text is not looked at.
const MAX_BYTES: usize = 1 << 20;
/// Deeper trees are refused.
const MAX_DEPTH: usize = 100;
/// Values in a document, aliases counted as often as they are used.
const MAX_VALUES: usize = 200_000;

/// A place in the text.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Counted from 1.
    pub line: usize,
    /// In characters, counted from 1.
    pub column: usize,
}

/// A value and its place.
#[derive(Debug, Clone, PartialEq)]
pub struct Located {
    /// Where it starts.
    pub place: Place,
    /// What it is.
    pub node: Node,
}

/// The kinds of values.
#[derive(Debug, Clone, PartialEq)]
pub enum Node {
    /// null, true, false, a number or a string.
    Scalar(Value),
    /// A sequence.
    Array(Vec<Located>),
    /// A mapping in the order of the text; no key comes twice.
    Object(Vec<(Key, Located)>),
}

/// A key of a mapping.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key {
    /// Where it starts.
    pub place: Place,
    /// Its text.
    pub text: String,
}

impl Located {
    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&Located> {
        self.entries().iter().find(|(name, _)| name.text == key).map(|(_, value)| value)
    }

    /// The entries of a mapping; none if it is something else.
    pub fn entries(&self) -> &[(Key, Located)] {
        match &self.node {
            Node::Object(entries) => entries,
            _ => &[],
        }
    }

    /// The items of a sequence.
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

    /// A string's text.
    pub fn text(&self) -> Option<&str> {
        match &self.node {
            Node::Scalar(Value::String(text)) => Some(text),
            _ => None,
        }
    }

    /// Without the places.
    pub fn to_json(&self) -> Value {
        match &self.node {
            Node::Scalar(value) => value.clone(),
            Node::Array(items) => items.iter().map(Self::to_json).collect(),
            Node::Object(entries) => {
                entries.iter().map(|(key, value)| (key.text.clone(), value.to_json())).collect()
            }
        }
    }

    /// What it is, in a word.
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

    /// The place of what a JSON pointer (RFC 6901) within this value names, or of as much of it as there is.
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

/// Reads the one document of a text.
///
/// # Errors
/// The place and what is wrong there: no YAML, more than one document, a key that comes twice, too large or too deep,
/// an alias or a tag that means nothing here.
pub fn read(text: &str) -> Result<Located, (Place, String)> {
    if text.len() > MAX_BYTES {
        return Err((Place { line: 1, column: 1 }, format!("the text is larger than {MAX_BYTES} bytes")));
    }
    let mut reader = Reader::default();
    for event in Parser::new_from_str(text) {
        let (event, span) = event.map_err(|error| scan_error(&error))?;
        reader.event(event, span).map_err(|message| (place(&span), message))?;
    }
    reader.root.ok_or_else(|| (Place { line: 1, column: 1 }, "there is nothing in it".to_owned()))
}

fn scan_error(error: &ScanError) -> (Place, String) {
    let mark = error.marker();
    (
        Place { line: mark.line().max(1), column: mark.col() + 1 },
        format!("this is no YAML: {}", error.info()),
    )
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

/// A sequence or mapping whose end has not come.
struct Open {
    anchor: usize,
    value: Located,
    key: Option<Key>,
    keys: HashSet<String>,
}

impl Reader {
    fn event(&mut self, event: Event<'_>, span: Span) -> Result<(), String> {
        let place = place(&span);
        match event {
            Event::DocumentStart(_) => {
                self.documents += 1;
                if self.documents > 1 {
                    return Err(
                        "a second document starts here; put each workflow into a file of its own".into()
                    );
                }
            }
            Event::Scalar(text, style, anchor, tag) => {
                let tagged = tag.as_ref().is_some_and(|tag| !tag.is_yaml_core_schema());
                if tagged {
                    return Err("tags have no meaning in a workflow".into());
                }
                let plain = style == ScalarStyle::Plain;
                let scalar = Scalar::parse_from_cow_and_metadata(text.clone(), style, tag.as_ref())
                    .ok_or("the value does not fit its tag")?;
                let value = match scalar {
                    Scalar::Null => Value::Null,
                    Scalar::Boolean(value) => Value::Bool(value),
                    Scalar::Integer(value) => Value::Number(value.into()),
                    // A number JSON has no form for (.inf) stays the text that it was.
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
                let value =
                    self.anchors.get(&anchor).ok_or("the alias names no anchor that has ended before")?;
                let value = value.clone();
                self.count(&value)?;
                self.add(value, 0)?;
            }
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentEnd => {}
        }
        Ok(())
    }

    fn open(&mut self, place: Place, node: Node, anchor: usize) -> Result<(), String> {
        if self.open.len() >= MAX_DEPTH {
            return Err(format!("it is nested more than {MAX_DEPTH} deep"));
        }
        self.open.push(Open { anchor, value: Located { place, node }, key: None, keys: HashSet::new() });
        Ok(())
    }

    /// Counts what an alias stands for before it is put in, since aliases of aliases grow without end.
    fn count(&mut self, value: &Located) -> Result<(), String> {
        self.values += size(value);
        match self.values > MAX_VALUES || depth(value) + self.open.len() > MAX_DEPTH {
            true => {
                Err(format!("with its aliases it has more than {MAX_VALUES} values or {MAX_DEPTH} levels"))
            }
            false => Ok(()),
        }
    }

    fn add(&mut self, value: Located, anchor: usize) -> Result<(), String> {
        self.values += 1;
        if self.values > MAX_VALUES {
            return Err(format!("it has more than {MAX_VALUES} values"));
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
                        _ => return Err("a key is a list or an object; keys are text".into()),
                    };
                    if !open.keys.insert(text.clone()) {
                        return Err(format!("the key `{text}` comes twice"));
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
    fn values_know_their_places() {
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
    fn what_is_refused_has_its_place() {
        for (text, line, part) in [
            ("a: 1\na: 2\n", 2, "comes twice"),
            ("a: [1, 2\nb: 3\n", 2, "no YAML"),
            ("", 1, "nothing"),
            ("a: 1\n---\nb: 2\n", 2, "second document"),
            ("a: !mine 1\n", 1, "tags"),
        ] {
            let (place, message) = read(text).unwrap_err();
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
        assert!(read(&text).unwrap_err().1.contains("aliases"));
        assert!(read(&format!("{}{}", "[".repeat(5000), "]".repeat(5000))).is_err());
    }
}
