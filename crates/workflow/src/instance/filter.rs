//! Filters of events, with all expressions evaluated that need the instance or its schedule.

use serde_json::Value;

use crate::data::Data;
use crate::event::{read, subset, topic_matches};
use crate::expression::{Bounds, Expression, Template};
use crate::program::{Correlation, DataTest, EventFilter, Pattern, Read};

/// The conditions of a filter. Expressions that need only the event remain; all others are evaluated.
#[derive(Debug, Clone)]
pub struct ActiveFilter {
    /// Attributes and their required values. The value of `subject` is an MQTT topic filter.
    pub attributes: Vec<(String, Value)>,
    /// Attributes whose text must match a pattern.
    pub patterns: Vec<(String, Pattern)>,
    /// Parts of the event and the values they must have.
    pub correlate: Vec<(Expression, Value)>,
}

impl ActiveFilter {
    /// The required value of an attribute, as text.
    pub fn attribute(&self, name: &str) -> Option<&str> {
        self.attributes.iter().find(|(known, _)| known == name).and_then(|(_, value)| value.as_str())
    }
}

/// True if an event has the attributes of a filter. Evaluates no expression.
pub fn has_attributes_of(filter: &ActiveFilter, event: &Value) -> bool {
    has_attributes(&filter.attributes, event) && has_patterns(&filter.patterns, event)
}

/// True if an event has the attributes and the correlated parts of a filter. The instance itself checks the condition
/// on the data.
pub fn accepts(filter: &ActiveFilter, event: &Value, unix_ms: u64) -> bool {
    has_attributes_of(filter, event)
        && filter
            .correlate
            .iter()
            .all(|(from, expected)| from.eval_json(event, unix_ms).is_ok_and(|found| found == *expected))
}

pub(super) fn has_attributes(attributes: &[(String, Value)], event: &Value) -> bool {
    attributes.iter().all(|(name, wanted)| match (name.as_str(), event.get(name), wanted) {
        ("subject", Some(Value::String(subject)), Value::String(filter)) => topic_matches(filter, subject),
        (_, Some(found), wanted) => found == wanted,
        (_, None, _) => false,
    })
}

pub(super) fn has_patterns(patterns: &[(String, Pattern)], event: &Value) -> bool {
    patterns.iter().all(|(name, pattern)| {
        event.get(name).and_then(Value::as_str).is_some_and(|text| pattern.matches(text))
    })
}

/// A filter of a schedule, evaluated without an instance; `None` if it depends on one.
pub fn start_filter(filter: &EventFilter) -> Option<ActiveFilter> {
    let attribute = |(name, template): &(String, Template)| {
        Some((name.clone(), template.eval(&Data::Null, &(), Bounds::at(0)).ok()?.to_json()))
    };
    let expected = |correlation: &Correlation| {
        let expect = correlation.expect.as_ref()?.eval(&Data::Null, &(), Bounds::at(0)).ok()?;
        Some((correlation.from.clone(), expect.to_json()))
    };
    Some(ActiveFilter {
        attributes: filter.attributes.iter().map(attribute).collect::<Option<_>>()?,
        patterns: filter.patterns.clone(),
        correlate: filter.correlate.iter().filter_map(expected).collect(),
    })
}

impl EventFilter {
    /// True if all of its expressions are native: they do not need jaq, and their length limits their time.
    pub fn is_native(&self) -> bool {
        let condition = match &self.data {
            Some(DataTest::Condition(condition) | DataTest::Message(condition)) => condition.is_native(),
            Some(DataTest::Contains(_)) | None => true,
        };
        condition && self.correlate.iter().all(|correlation| correlation.from.is_native())
    }

    /// True if an event's data matches the filter of a schedule.
    pub fn takes(&self, event: &Value) -> bool {
        let data = event.get("data").unwrap_or(&Value::Null);
        match &self.data {
            None => true,
            Some(DataTest::Contains(wanted)) => subset(wanted, data),
            Some(DataTest::Condition(condition)) => {
                Data::from_json(data).is_ok_and(|data| condition.is_true(&data, &(), 0).unwrap_or(false))
            }
            Some(DataTest::Message(condition)) => Data::from_json(&read(event, Read::Message))
                .is_ok_and(|message| condition.is_true(&message, &(), 0).unwrap_or(false)),
        }
    }
}
