//! Reads values of a TOML document with their positions, and notes problems.

use std::ops::{Range, RangeInclusive};
use std::time::Duration;

use bytesize::ByteSize;
use toml::de::{DeTable, DeValue};

use super::diagnostic::Problems;

/// A table whose keys are known.
#[derive(Clone, Copy)]
pub(super) struct Table<'a> {
    entries: &'a DeTable<'a>,
}

/// A value with its key and its position.
#[derive(Clone)]
pub(super) struct Item<'a> {
    /// Its key, or the key of its array.
    pub(super) key: &'a str,
    /// The position of the key; in an array that of the value.
    pub(super) key_span: Range<usize>,
    /// The position of the value.
    pub(super) span: Range<usize>,
    value: &'a DeValue<'a>,
}

impl<'a> Table<'a> {
    /// Every key of `entries` that is not among `known` is a problem; `context` names the table in its message.
    pub(super) fn new(
        entries: &'a DeTable<'a>,
        context: &str,
        known: &[&str],
        problems: &mut Problems,
    ) -> Self {
        for (key, _) in entries.iter() {
            let name: &str = key.get_ref();
            if !known.contains(&name) {
                let message = format!("unknown key `{name}` {context}");
                problems.add(&key.span(), message, Some(suggestion(name, known)));
            }
        }
        Self { entries }
    }

    pub(super) fn get(&self, key: &str) -> Option<Item<'a>> {
        let (key, value) = self.entries.get_key_value(key)?;
        Some(Item { key: key.get_ref(), key_span: key.span(), span: value.span(), value: value.get_ref() })
    }
}

impl<'a> Item<'a> {
    pub(super) fn is_array(&self) -> bool {
        self.value.is_array()
    }

    pub(super) fn is_number(&self) -> bool {
        matches!(self.value, DeValue::Integer(_))
    }

    pub(super) fn is_string(&self) -> bool {
        matches!(self.value, DeValue::String(_))
    }

    pub(super) fn is_table(&self) -> bool {
        matches!(self.value, DeValue::Table(_))
    }

    /// The problem of a value of another type.
    pub(super) fn wrong_type(&self, expected: &str, problems: &mut Problems) {
        self.mismatch::<()>(expected, problems);
    }

    /// Whether this is a table with such a key.
    pub(super) fn has(&self, key: &str) -> bool {
        matches!(self.value, DeValue::Table(entries) if entries.contains_key(key))
    }

    pub(super) fn table(
        &self,
        context: &str,
        known: &[&str],
        problems: &mut Problems,
    ) -> Option<Table<'a>> {
        match self.value {
            DeValue::Table(entries) => Some(Table::new(entries, context, known, problems)),
            _ => self.mismatch("a table", problems),
        }
    }

    /// The entries of a table whose keys are chosen by the user.
    pub(super) fn entries(&self, problems: &mut Problems) -> Vec<Item<'a>> {
        match self.value {
            DeValue::Table(entries) => entries
                .iter()
                .map(|(key, value)| Item {
                    key: key.get_ref(),
                    key_span: key.span(),
                    span: value.span(),
                    value: value.get_ref(),
                })
                .collect(),
            _ => self.mismatch("a table", problems).unwrap_or_default(),
        }
    }

    pub(super) fn items(&self, problems: &mut Problems) -> Vec<Item<'a>> {
        match self.value {
            DeValue::Array(values) => values
                .iter()
                .map(|value| Item {
                    key: self.key,
                    key_span: value.span(),
                    span: value.span(),
                    value: value.get_ref(),
                })
                .collect(),
            _ => self.mismatch("an array", problems).unwrap_or_default(),
        }
    }

    /// The texts of an array, each with its position.
    pub(super) fn texts(&self, problems: &mut Problems) -> Vec<(&'a str, Range<usize>)> {
        let items = self.items(problems);
        items.into_iter().filter_map(|item| Some((item.text(problems)?, item.span))).collect()
    }

    pub(super) fn text(&self, problems: &mut Problems) -> Option<&'a str> {
        match self.value {
            DeValue::String(text) => Some(text),
            _ => self.mismatch("a string", problems),
        }
    }

    pub(super) fn boolean(&self, problems: &mut Problems) -> Option<bool> {
        match self.value {
            DeValue::Boolean(value) => Some(*value),
            _ => self.mismatch("true or false", problems),
        }
    }

    pub(super) fn count(&self, allowed: RangeInclusive<u32>, problems: &mut Problems) -> Option<u32> {
        let DeValue::Integer(number) = self.value else {
            return self.mismatch("a whole number", problems);
        };
        let value = u32::from_str_radix(number.as_str(), number.radix()).ok();
        let value = value.filter(|value| allowed.contains(value));
        if value.is_none() {
            let message = format!("`{}` must be from {} to {}", self.key, allowed.start(), allowed.end());
            problems.add(&self.span, message, Some(format!("it is {number} here")));
        }
        value
    }

    /// A size such as "32MiB", in bytes.
    pub(super) fn size(&self, allowed: RangeInclusive<u64>, problems: &mut Problems) -> Option<usize> {
        let DeValue::String(text) = self.value else {
            return self.mismatch("a size such as \"32MiB\"", problems);
        };
        let Ok(size) = text.parse::<ByteSize>() else {
            let help = "write a number and a unit: \"512KiB\", \"32MiB\", \"1GiB\"";
            problems.add(&self.span, format!("`{text}` is not a size"), Some(help.into()));
            return None;
        };
        if !allowed.contains(&size.as_u64()) {
            let (min, max) = (ByteSize::b(*allowed.start()), ByteSize::b(*allowed.end()));
            let message = format!("`{}` must be from {min} to {max}", self.key);
            problems.add(&self.span, message, Some(format!("it is {size} here")));
            return None;
        }
        usize::try_from(size.as_u64()).ok()
    }

    /// A duration such as "200ms".
    pub(super) fn duration(
        &self,
        allowed: RangeInclusive<Duration>,
        problems: &mut Problems,
    ) -> Option<Duration> {
        let DeValue::String(text) = self.value else {
            return self.mismatch("a duration such as \"200ms\"", problems);
        };
        let Ok(duration) = humantime::parse_duration(text) else {
            let help = "write a number and a unit: \"200ms\", \"2s\", \"1m 30s\"";
            problems.add(&self.span, format!("`{text}` is not a duration"), Some(help.into()));
            return None;
        };
        if !allowed.contains(&duration) {
            let shown = |duration| humantime::format_duration(duration);
            let (min, max) = (shown(*allowed.start()), shown(*allowed.end()));
            let message = format!("`{}` must be from {min} to {max}", self.key);
            problems.add(&self.span, message, Some(format!("it is {} here", shown(duration))));
            return None;
        }
        Some(duration)
    }

    /// One of a few words.
    pub(super) fn word(&self, known: &[&str], problems: &mut Problems) -> Option<&'a str> {
        let word = self.text(problems)?;
        if known.contains(&word) {
            return Some(word);
        }
        let message = format!("`{}` cannot be `{word}`", self.key);
        problems.add(&self.span, message, Some(suggestion(word, known)));
        None
    }

    /// The value as JSON, the form in which functions see `config`.
    pub(super) fn json(&self, problems: &mut Problems) -> Option<serde_json::Value> {
        json(self.value, &self.span, problems)
    }

    fn mismatch<T>(&self, expected: &str, problems: &mut Problems) -> Option<T> {
        let found = match self.value.type_str() {
            word if word.starts_with(['a', 'e', 'i', 'o', 'u']) => format!("an {word}"),
            word => format!("a {word}"),
        };
        let message = format!("`{}` must be {expected}, not {found}", self.key);
        problems.add(&self.span, message, None);
        None
    }
}

/// "did you mean", if a known word is similar, and all known words.
pub(super) fn suggestion(word: &str, known: &[&str]) -> String {
    let all = known.iter().map(|known| format!("`{known}`")).collect::<Vec<_>>().join(", ");
    match nearest(word, known) {
        Some(near) => format!("did you mean `{near}`? Known are {all}"),
        None => format!("known are {all}"),
    }
}

fn nearest<'k>(word: &str, known: &[&'k str]) -> Option<&'k str> {
    let word = word.to_lowercase();
    known
        .iter()
        .map(|known| (strsim::damerau_levenshtein(&word, &known.to_lowercase()), *known))
        .filter(|(distance, known)| *distance <= (known.len() / 3).max(1))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, known)| known)
}

fn json(value: &DeValue<'_>, span: &Range<usize>, problems: &mut Problems) -> Option<serde_json::Value> {
    use serde_json::{Number, Value};
    let number = match value {
        DeValue::String(text) => return Some(Value::String(text.clone().into_owned())),
        DeValue::Boolean(value) => return Some(Value::Bool(*value)),
        DeValue::Datetime(time) => return Some(Value::String(time.to_string())),
        DeValue::Array(values) => {
            let values = values.iter().map(|value| json(value.get_ref(), &value.span(), problems));
            return values.collect::<Vec<_>>().into_iter().collect::<Option<Vec<_>>>().map(Value::Array);
        }
        DeValue::Table(entries) => {
            let entries = entries.iter().map(|(key, value)| {
                Some((key.get_ref().to_string(), json(value.get_ref(), &value.span(), problems)?))
            });
            return entries.collect::<Vec<_>>().into_iter().collect::<Option<_>>().map(Value::Object);
        }
        DeValue::Integer(number) => {
            i64::from_str_radix(number.as_str(), number.radix()).ok().map(Number::from)
        }
        DeValue::Float(number) => number.as_str().parse().ok().and_then(Number::from_f64),
    };
    if number.is_none() {
        let help =
            "functions see `config` as JSON, whose numbers are finite and whose whole numbers have 64 bits";
        problems.add(span, "this number has no JSON form".into(), Some(help.into()));
    }
    number.map(Value::Number)
}
