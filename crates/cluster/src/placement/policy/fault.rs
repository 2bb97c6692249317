//! Problems of the text of a policy. Each has a place and says how to fix it.

use std::fmt;

/// Maximum number of problems that a report shows. It only counts further problems.
const SHOWN: usize = 20;
/// Maximum length of a line of the text in a report, in characters.
const LINE_CHARS: usize = 120;

/// A position in the text.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The line, counted from 1.
    pub line: u32,
    /// The column in characters, counted from 1.
    pub column: u32,
}

impl fmt::Display for Place {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "line {}, column {}", self.line, self.column)
    }
}

/// The text is not a valid policy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", Summary(.problems))]
pub struct PolicyError {
    /// All problems, in the order of the text; never empty.
    pub problems: Vec<Problem>,
}

impl PolicyError {
    /// All problems with their lines of the text, for a terminal. `file` is the name that the user knows.
    pub fn report(&self, file: &str, text: &str) -> String {
        let problems = self.problems.iter().map(|problem| (problem.place, problem.fault.to_string()));
        report(file, text, problems)
    }
}

/// One problem.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {fault}")]
pub struct Problem {
    /// The place in the text.
    pub place: Place,
    /// The fault.
    pub fault: Fault,
}

/// The kinds of a [`Problem`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The text has too many bytes.
    #[error("the policy is larger than {max_bytes} bytes")]
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
    /// A NUL character, at which the YAML parser would see the end of the text.
    #[error("there is a NUL character here; remove it")]
    Nul,
    /// An asterisk without quotes, which begins an alias in YAML.
    #[error("an asterisk needs quotes: write \"*\"")]
    UnquotedStar,
    /// The text has no document.
    #[error(
        "the policy is empty; write a tag and its blocks, or remove the policies of the cluster with `edgefaas policy rm`"
    )]
    Empty,
    /// The text has more than one document.
    #[error("a second document starts here; a policy is one document")]
    SecondDocument,
    /// An anchor or an alias.
    #[error("anchors and aliases are not allowed; repeat the value, and write \"*\" with quotes")]
    Anchor,
    /// A YAML tag, mostly an exclamation mark without quotes.
    #[error("YAML tags are not allowed; write a name with an exclamation mark in quotes: \"!name\"")]
    YamlTag,
    /// Lists and mappings nest too deeply.
    #[error("lists and mappings are nested more than {max_depth} deep")]
    TooDeep {
        /// The maximum.
        max_depth: usize,
    },
    /// The document has too many values.
    #[error("the policy has more than {max_values} values")]
    TooManyValues {
        /// The maximum.
        max_values: usize,
    },
    /// A key of a mapping is a list or a mapping.
    #[error("a key is a list or a mapping; keys are text")]
    KeyNotText,
    /// Two keys of a mapping are equal.
    #[error("the key `{key}` occurs twice; the first one is in line {first_line}")]
    DuplicateKey {
        /// The key.
        key: String,
        /// The line of the first one.
        first_line: u32,
    },
    /// Two tags are equal, or two entries set the same option of a tag.
    #[error("`{name}` is set twice; the first one is in line {first_line}")]
    Repeated {
        /// The tag or the option.
        name: String,
        /// The line of the first one.
        first_line: u32,
    },
    /// A value of another kind.
    #[error("`{key}` is {found}; write {expected}")]
    WrongKind {
        /// The key of the value.
        key: String,
        /// The accepted values.
        expected: &'static str,
        /// The kind of the value.
        found: &'static str,
    },
    /// A key that has no meaning there.
    #[error("`{key}` has no meaning in {within}{}; the keys are {}", Near(.nearest), Names(.known))]
    UnknownKey {
        /// The key.
        key: String,
        /// The part of the policy.
        within: &'static str,
        /// The nearest key.
        nearest: Option<&'static str>,
        /// All keys.
        known: &'static [&'static str],
    },
    /// A value that is not one of a list.
    #[error("`{value}` is no value of `{key}`{}; the values are {}", Near(.nearest), Names(.known))]
    UnknownValue {
        /// The key.
        key: &'static str,
        /// The value.
        value: String,
        /// The nearest value.
        nearest: Option<&'static str>,
        /// All values.
        known: &'static [&'static str],
    },
    /// A name with other characters or another length.
    #[error("`{name}` cannot be a {of}; {rule}")]
    InvalidName {
        /// The text, escaped and cut.
        name: String,
        /// What it would name.
        of: &'static str,
        /// The form of names.
        rule: &'static str,
    },
    /// A tag with a name of the language.
    #[error("`{name}` is a key of the language and cannot be a tag; choose another name")]
    ReservedTag {
        /// The name.
        name: String,
    },
    /// A number outside its range.
    #[error("`{key}` is `{value}`; write a number from {min} to {max}")]
    OutOfRange {
        /// The key.
        key: &'static str,
        /// The text of the value, cut.
        value: String,
        /// The least value.
        min: u32,
        /// The greatest value.
        max: u32,
    },
    /// A tag without a block.
    #[error("the tag `{tag}` has no block; write at least `- workers: \"*\"`")]
    NoBlock {
        /// The tag.
        tag: String,
    },
    /// An empty list.
    #[error("`{key}` is empty; {remedy}")]
    EmptyList {
        /// The key.
        key: &'static str,
        /// How to fix it.
        remedy: &'static str,
    },
    /// A list that is too long.
    #[error("{of} has more than {max} {things}")]
    TooMany {
        /// The part of the policy.
        of: &'static str,
        /// The entries.
        things: &'static str,
        /// The maximum.
        max: usize,
    },
    /// A list names the same thing twice.
    #[error("`{name}` is listed twice in `{key}`; remove one of them")]
    ListedTwice {
        /// The list.
        key: &'static str,
        /// The name.
        name: String,
    },
    /// A function must and must not run on the worker.
    #[error("`{function}` must run and must not run on the worker; remove one of them")]
    Contradiction {
        /// The function.
        function: String,
    },
    /// An option of a tag inside a block.
    #[error("`{key}` belongs to the tag; write it as the last entry of the tag: `- {key}: {example}`")]
    OptionInBlock {
        /// The key.
        key: &'static str,
        /// A value of the key.
        example: &'static str,
    },
    /// A block that tolerates another controller names none.
    #[error("`topology_tolerance` needs a `controller` with a name; add one, or remove the key")]
    ToleranceWithoutController,
}

struct Summary<'a>(&'a [Problem]);

impl fmt::Display for Summary<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.0.iter().take(SHOWN).enumerate() {
            let separator = if index > 0 { "; " } else { "" };
            write!(out, "{separator}{problem}")?;
        }
        match self.0.len().saturating_sub(SHOWN) {
            0 => Ok(()),
            more => write!(out, "; and {more} more"),
        }
    }
}

struct Near<'a>(&'a Option<&'static str>);

impl fmt::Display for Near<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |nearest| write!(out, "; did you mean `{nearest}`?"))
    }
}

struct Names<'a>(&'a [&'static str]);

impl fmt::Display for Names<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, name) in self.0.iter().enumerate() {
            let separator = if index > 0 { ", " } else { "" };
            write!(out, "{separator}`{name}`")?;
        }
        Ok(())
    }
}

/// Messages with the lines of the text that they are about, each line with a mark under the column. A message without a
/// place is about the whole text.
pub(crate) fn report(
    file: &str,
    text: &str,
    messages: impl ExactSizeIterator<Item = (Place, String)>,
) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let total = messages.len();
    let mut report = String::new();
    for (place, message) in messages.take(SHOWN) {
        let Place { line, column } = place;
        if place == Place::default() {
            report += &format!("{file}: {message}\n");
            continue;
        }
        report += &format!("{file}:{line}:{column}: {message}\n");
        let source = lines.get(line.saturating_sub(1) as usize).copied().unwrap_or_default();
        if !source.trim().is_empty() {
            let shown: String =
                source.chars().take(LINE_CHARS).map(|c| if c.is_control() { ' ' } else { c }).collect();
            let indent = " ".repeat(LINE_CHARS.min(column.saturating_sub(1) as usize));
            report += &format!("  | {shown}\n  | {indent}^\n");
        }
    }
    if total > SHOWN {
        report += &format!("and {} more\n", total - SHOWN);
    }
    report
}

/// The known name that is nearest to `name`, if it is near enough for a typing error.
pub(crate) fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let word = name.to_lowercase();
    known
        .map(|known| (strsim::damerau_levenshtein(&word, &known.to_lowercase()), known))
        .filter(|(distance, known)| *distance <= (known.len() / 3).max(1))
        .min()
        .map(|(_, known)| known)
}
