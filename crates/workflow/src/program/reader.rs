//! Reads located values and reports problems with their places.

use std::collections::BTreeSet;

use serde_json::Value;

use super::DurationSpec;
use crate::document::{Located, Node, Place, Problems};
use crate::duration;
use crate::expression::{Expression, ExpressionError, Mode, Template, expression_text};
use crate::schema::Schema;

/// The remedy for a text with an expression in it.
const EMBEDDED_HELP: &str = "write it as one expression: '${ \"Hello \\(.name)\" }'; and the signs themselves as '${ \"$\" + \"{\" }'";

/// Names that every expression may use.
pub const VARIABLES: [&str; 8] =
    ["context", "input", "output", "secrets", "authorization", "task", "workflow", "runtime"];

/// The state of reading a definition: the problems found so far, and the variables in scope.
#[derive(Default)]
pub struct Reader {
    /// The problems found so far.
    pub problems: Problems,
    /// Problems that a deploy refuses. A stored definition of an earlier version may have them.
    pub deploy_problems: Problems,
    /// Variables of the surrounding tasks.
    pub scope: Vec<String>,
    /// The minimum of [`Expression::quick_bytes`] in the current task.
    pub quick_bytes: u64,
    /// The strings that are expressions.
    pub mode: Mode,
    /// The secrets that expressions of the current task name.
    pub secrets: BTreeSet<String>,
}

impl Reader {
    /// Reports every unknown key, and a value that is not a mapping.
    pub fn check_keys(&mut self, value: &Located, what: &str, known: &[&str]) {
        if !value.is_object() {
            self.problems.add(value.place, format!("{what} is an object, not {}", value.kind()));
        }
        for (key, _) in value.entries() {
            if known.contains(&key.text.as_str()) {
                continue;
            }
            let help = match near(&key.text, known) {
                Some(near) => format!("did you mean `{near}`?"),
                None if known.len() == 1 => format!("there is only `{}`", known.join("")),
                None => format!("there are {}", known.join(", ")),
            };
            self.problems.add_with_help(key.place, format!("{what} has no key `{}`", key.text), help);
        }
    }

    /// The mapping, or a problem.
    pub fn object<'a>(&mut self, value: &'a Located, what: &str) -> Option<&'a Located> {
        if value.is_object() {
            return Some(value);
        }
        self.problems.add(value.place, format!("{what} is an object, not {}", value.kind()));
        None
    }

    /// The text, or a problem.
    pub fn text(&mut self, value: &Located, what: &str) -> Option<String> {
        match value.text() {
            Some(text) => Some(text.to_owned()),
            None => {
                self.problems.add(value.place, format!("{what} is text, not {}", value.kind()));
                None
            }
        }
    }

    /// The value of a required key.
    pub fn required<'a>(&mut self, value: &'a Located, key: &str, what: &str) -> Option<&'a Located> {
        let found = value.get(key);
        if found.is_none() && value.is_object() {
            self.problems.add(value.place, format!("{what} needs `{key}`"));
        }
        found
    }

    /// A boolean.
    pub fn boolean(&mut self, value: Option<&Located>, what: &str, default: bool) -> bool {
        match value.map(|value| (value, value.to_json())) {
            None => default,
            Some((_, Value::Bool(flag))) => flag,
            Some((value, _)) => {
                self.problems.add(value.place, format!("{what} is true or false, not {}", value.kind()));
                default
            }
        }
    }

    /// A whole number within bounds.
    pub fn number(&mut self, value: &Located, what: &str, least: u64, max: u64) -> Option<u64> {
        let number = value.to_json().as_u64().filter(|number| (least..=max).contains(number));
        if number.is_none() {
            self.problems.add(value.place, format!("{what} is a whole number from {least} to {max}"));
        }
        number
    }

    /// An expression, with or without `${ }`.
    pub fn expression(&mut self, value: &Located, what: &str) -> Option<Expression> {
        let text = match value.to_json() {
            Value::String(text) => text,
            // `while: true` is YAML's boolean, and jq's.
            Value::Bool(flag) => flag.to_string(),
            _ => {
                self.problems.add(value.place, format!("{what} is an expression, not {}", value.kind()));
                return None;
            }
        };
        match Expression::parse(&text, &self.variables()) {
            Ok(expression) => {
                self.quick_bytes = self.quick_bytes.min(expression.quick_bytes());
                self.secrets.extend(expression.secrets().iter().cloned());
                Some(expression)
            }
            Err(error) => {
                self.bad_expression(value.place, what, &error);
                None
            }
        }
    }

    /// A value with expressions in it.
    pub fn template(&mut self, value: &Located, what: &str) -> Option<Template> {
        let parsed = Template::parse(&value.to_json(), &self.variables(), self.mode);
        self.parsed(value, what, parsed)
    }

    /// A text, or an expression that gives one: a deploy refuses other values.
    pub fn text_template(&mut self, value: &Located, what: &str) -> Option<Template> {
        let template = self.template(value, what)?;
        if template.literal().is_some_and(|literal| !literal.is_string()) {
            let message = format!("{what} is text, or an expression that gives text, not {}", value.kind());
            self.deploy_problems.add(value.place, message);
        }
        Some(template)
    }

    /// Like `template`, but a string is an expression with or without `${ }`.
    pub fn expression_or_template(&mut self, value: &Located, what: &str) -> Option<Template> {
        let parsed = Template::parse_expression_or_template(&value.to_json(), &self.variables(), self.mode);
        self.parsed(value, what, parsed)
    }

    /// The object that a secret holds as JSON: `use: NAME` of an authentication.
    pub fn secret_object(&mut self, place: &Located, name: &str) -> Option<Template> {
        let name = Value::from(name);
        let text = Value::from(format!("${{ $secrets[{name}] | fromjson }}"));
        let parsed = Template::parse(&text, &self.variables(), Mode::Strict);
        self.parsed(place, "`use`", parsed)
    }

    fn parsed(
        &mut self,
        value: &Located,
        what: &str,
        parsed: Result<Template, (String, ExpressionError)>,
    ) -> Option<Template> {
        match parsed {
            Ok(template) => {
                self.find_embedded(value, what);
                self.quick_bytes = self.quick_bytes.min(template.quick_bytes());
                template.each_expression(&mut |expression| {
                    self.secrets.extend(expression.secrets().iter().cloned())
                });
                Some(template)
            }
            Err((pointer, error)) => {
                self.bad_expression(value.place_of(&pointer), what, &error);
                None
            }
        }
    }

    fn bad_expression(&mut self, place: Place, what: &str, error: &ExpressionError) {
        let inside = expression_text(&error.text).unwrap_or_default();
        let help = if inside.contains("${") { EMBEDDED_HELP } else { "" };
        self.problems.add_with_help(place, format!("{what}: {error}"), help);
    }

    /// Reports texts with an expression in the middle, which are texts and nothing more.
    fn find_embedded(&mut self, value: &Located, what: &str) {
        let mut left = vec![value];
        while let Some(next) = left.pop() {
            match &next.node {
                Node::Scalar(Value::String(text))
                    if expression_text(text).is_none() && text.contains("${") =>
                {
                    let message = format!("{what}: an expression is a whole value, not a part of a text");
                    self.deploy_problems.add_with_help(next.place, message, EMBEDDED_HELP);
                }
                Node::Scalar(_) => {}
                Node::Array(items) => left.extend(items.iter().rev()),
                Node::Object(entries) => left.extend(entries.iter().rev().map(|(_, value)| value)),
            }
        }
    }

    /// A duration, or an expression that returns one.
    pub fn duration(&mut self, value: &Located, what: &str) -> Option<DurationSpec> {
        let template = self.template(value, what)?;
        match template.literal() {
            None => Some(DurationSpec::Computed(template)),
            Some(literal) => match duration::parse(literal) {
                Ok(ms) => Some(DurationSpec::Fixed(ms)),
                Err(reason) => {
                    self.problems.add(value.place, format!("{what}: {reason}"));
                    None
                }
            },
        }
    }

    /// A duration without expressions.
    pub fn fixed_duration(&mut self, value: &Located, what: &str) -> Option<u64> {
        match duration::parse(&value.to_json()) {
            Ok(ms) => Some(ms),
            Err(reason) => {
                self.problems.add(value.place, format!("{what}: {reason}"));
                None
            }
        }
    }

    /// `schema: {format, document}`.
    pub fn schema(&mut self, value: &Located) -> Option<Schema> {
        self.check_keys(value, "`schema`", &["format", "document", "resource"]);
        if let Some(format) = value.get("format") {
            let name = format.text().unwrap_or_default();
            if name != "json" && !name.starts_with("json:") {
                self.problems.add(format.place, "schemas are JSON Schemas: format `json`");
            }
        }
        if let Some(resource) = value.get("resource") {
            self.problems.add_with_help(
                resource.place,
                "a schema is not fetched from elsewhere",
                "put it into the definition as `document`",
            );
            return None;
        }
        let document = self.required(value, "document", "`schema`")?;
        match Schema::compile(&document.to_json()) {
            Ok(schema) => Some(schema),
            Err(reason) => {
                self.problems.add(document.place, format!("this is not JSON Schema: {reason}"));
                None
            }
        }
    }

    /// All names that expressions may use here.
    pub fn variables(&self) -> Vec<&str> {
        VARIABLES.iter().copied().chain(self.scope.iter().map(String::as_str)).collect()
    }

    /// A name for a variable, given with or without `$`.
    pub fn variable(&mut self, value: Option<&Located>, what: &str, default: &str) -> String {
        let Some(value) = value else { return default.to_owned() };
        let name = self.text(value, what).unwrap_or_default();
        let name = name.strip_prefix('$').unwrap_or(&name).to_owned();
        let first = name.chars().next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_');
        if !first || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
            self.problems.add(value.place, format!("{what}: `{name}` is not a name of a variable"));
        } else if VARIABLES.contains(&name.as_str()) {
            self.problems.add(
                value.place,
                format!("{what}: `${name}` has a meaning of its own; choose another name"),
            );
        }
        name
    }
}

/// The most similar known name, if one is similar enough.
pub fn near<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    let scored = known.iter().map(|known| (strsim::jaro_winkler(name, known), *known));
    scored.filter(|(score, _)| *score > 0.8).max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, name)| name)
}
