//! The rule, read from the JSON of `metadata.events`.

use std::fmt;

use serde_json::{Number, Value};

use super::Predicate;
use super::error::RuleError;
use super::fields::{Compile, Fields};
use crate::data::kind_of;
use crate::expression::ExpressionError;

/// The condition keys. A rule has exactly one of them.
const CONDITIONS: &[&str] = &["count", "window", "rate", "silence", "all", "threshold", "queue"];
const KEYS: &[&str] =
    &["key", "count", "window", "rate", "silence", "all", "threshold", "queue", "limit", "within"];

/// The maximum number of events stored for one key.
pub(super) const KEY_EVENTS: usize = 10_000;
/// The maximum rate, in events per period. The times of these events are stored.
pub(super) const RATE_EVENTS: usize = 1_000_000;
/// The default of `limit`: the maximum number of keys.
const DEFAULT_KEYS: usize = 10_000;
/// The maximum value of `limit`.
const MAX_KEYS: u64 = 100_000;
/// The maximum number of filters of `all`.
const MAX_SOURCES: usize = 100;
/// The maximum number of overlapping windows that contain one event.
const MAX_OVERLAP: i64 = 10_000;

/// The condition, over the events that a workflow listens to, on which the workflow starts or continues. Cheap to
/// clone.
#[derive(Clone)]
pub struct Rule {
    pub(super) key: Option<Predicate>,
    pub(super) kind: Kind,
    /// The maximum number of keys.
    pub(super) limit: usize,
    /// The age in milliseconds at which an event leaves an unfinished collection.
    pub(super) within_ms: Option<i64>,
}

/// The queue that a rule watches.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Queue {
    /// The queue of the function with this name: its waiting invocations.
    Function(String),
    /// The messages that wait for subscribers of this topic filter.
    Filter(String),
}

/// The condition. Durations are in milliseconds and at least 1.
#[derive(Clone)]
pub(super) enum Kind {
    Count { events: usize },
    Window { every_ms: i64, of_ms: i64, empty: bool },
    RateAbove { above: usize, per_ms: i64 },
    RateBelow { below: usize, per_ms: i64 },
    Silence { for_ms: i64 },
    All { sources: usize },
    Threshold { value: Predicate, level: Level },
    Queue { of: Queue, longer_than: u64 },
}

/// The levels at which a threshold fires and at which it is reset.
#[derive(Debug, Clone)]
pub(super) struct Level {
    /// True: it fires above `fires`. False: it fires below `fires`.
    pub(super) rising: bool,
    pub(super) fires: Number,
    pub(super) back: Number,
}

impl Rule {
    /// Reads a rule in the format that the [module](super) describes.
    ///
    /// `sources` is the number of filters that `all` waits for; the other conditions ignore it. `compile` compiles the
    /// jq text inside of `${ … }`.
    ///
    /// # Errors
    ///
    /// The first error, with its location in the rule and the remedy.
    pub fn parse(
        value: &Value,
        sources: usize,
        compile: &dyn Fn(&str) -> Result<Predicate, ExpressionError>,
    ) -> Result<Self, RuleError> {
        let fields = Fields::new(value, String::new(), KEYS)?;
        let mut conditions = CONDITIONS.iter().filter(|key| fields.get(key).is_some());
        let condition = match (conditions.next(), conditions.next()) {
            (None, _) => return Err(RuleError::NoCondition { known: CONDITIONS }),
            (Some(first), Some(second)) => {
                let help = "a rule has one condition; leave one away, or write two workflows";
                return Err(RuleError::Conflict {
                    pointer: fields.at(second),
                    other: fields.at(first),
                    help,
                });
            }
            (Some(only), None) => *only,
        };
        let kind = match condition {
            "count" => count(&fields)?,
            "window" => window(&fields)?,
            "rate" => rate(&fields)?,
            "silence" => silence(&fields)?,
            "all" => all(&fields, sources)?,
            "threshold" => threshold(&fields, compile)?,
            _ => queue(&fields)?,
        };
        fields.not_both("key", "queue", "a queue has one length for all events; remove `key`")?;
        if fields.get("limit").is_some() && fields.get("key").is_none() {
            let help = "`limit` is the number of keys kept; add `key` or remove `limit`";
            return Err(RuleError::Missing { pointer: fields.at("key"), help });
        }
        if !matches!(kind, Kind::Count { .. } | Kind::All { .. }) {
            let help = "only `count` and `all` collect events that can grow too old; remove `within`";
            fields.not_both("within", condition, help)?;
        }
        let limit = fields.whole("limit", 1, MAX_KEYS)?.and_then(|limit| usize::try_from(limit).ok());
        Ok(Self {
            key: fields.expression("key", compile)?,
            kind,
            limit: limit.unwrap_or(DEFAULT_KEYS),
            within_ms: fields.duration_ms("within")?,
        })
    }

    /// The condition's key: `count`, `window`, `rate`, `silence`, `all`, `threshold` or `queue`.
    pub fn condition(&self) -> &'static str {
        match self.kind {
            Kind::Count { .. } => "count",
            Kind::Window { .. } => "window",
            Kind::RateAbove { .. } | Kind::RateBelow { .. } => "rate",
            Kind::Silence { .. } => "silence",
            Kind::All { .. } => "all",
            Kind::Threshold { .. } => "threshold",
            Kind::Queue { .. } => "queue",
        }
    }

    /// True if the condition can change with time alone. The caller must then call
    /// [`Synthesizer::tick`](super::Synthesizer::tick).
    pub fn needs_ticks(&self) -> bool {
        match self.kind {
            Kind::Window { .. } | Kind::RateBelow { .. } | Kind::Silence { .. } => true,
            Kind::Count { .. } | Kind::All { .. } => self.within_ms.is_some(),
            Kind::RateAbove { .. } | Kind::Threshold { .. } | Kind::Queue { .. } => false,
        }
    }

    /// The watched queue and its maximum length, if the condition is `queue`. Such a rule gets no events. Its input
    /// is the queue's length, through [`Synthesizer::queue_length`](super::Synthesizer::queue_length).
    pub fn queue(&self) -> Option<(&Queue, u64)> {
        match &self.kind {
            Kind::Queue { of, longer_than } => Some((of, *longer_than)),
            _ => None,
        }
    }
}

impl fmt::Debug for Rule {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Rule")
            .field("condition", &self.condition())
            .field("keyed", &self.key.is_some())
            .field("limit", &self.limit)
            .field("within_ms", &self.within_ms)
            .finish_non_exhaustive()
    }
}

fn count(fields: &Fields<'_>) -> Result<Kind, RuleError> {
    let events = fields.whole("count", 1, KEY_EVENTS as u64)?;
    Ok(Kind::Count { events: size(events) })
}

fn window(fields: &Fields<'_>) -> Result<Kind, RuleError> {
    let help = "write `window: { every: 10s }`";
    let window = fields.object("window", &["every", "of", "empty"])?;
    let window = fields.required("window", window, help)?;
    let every_ms = window.required("every", window.duration_ms("every")?, help)?;
    let of_ms = window.duration_ms("of")?.unwrap_or(every_ms);
    let number = |allowed: String| RuleError::Number {
        pointer: window.at("of"),
        found: window.get("of").map(Value::to_string).unwrap_or_default(),
        allowed,
    };
    if of_ms < every_ms {
        return Err(number(
            "at least as long as `every`, since else events fall between the windows".into(),
        ));
    }
    if of_ms / every_ms > MAX_OVERLAP {
        return Err(number(format!("at most {MAX_OVERLAP} times as long as `every`")));
    }
    Ok(Kind::Window { every_ms, of_ms, empty: window.boolean("empty")?.unwrap_or(false) })
}

fn rate(fields: &Fields<'_>) -> Result<Kind, RuleError> {
    let help = "write `rate: { above: 100, per: 1s }`, or `below`";
    let rate = fields.object("rate", &["above", "below", "per"])?;
    let rate = fields.required("rate", rate, help)?;
    rate.not_both("below", "above", "a rate has one limit; write a workflow for each")?;
    let per_ms = rate.required("per", rate.duration_ms("per")?, help)?;
    let above = rate.whole("above", 0, RATE_EVENTS as u64)?;
    match (above, rate.whole("below", 1, RATE_EVENTS as u64)?) {
        (Some(above), _) => Ok(Kind::RateAbove { above: size(Some(above)), per_ms }),
        (None, Some(below)) => Ok(Kind::RateBelow { below: size(Some(below)), per_ms }),
        (None, None) => Err(RuleError::Missing { pointer: rate.at("above"), help }),
    }
}

fn silence(fields: &Fields<'_>) -> Result<Kind, RuleError> {
    let for_ms = fields.required("silence", fields.duration_ms("silence")?, "write `silence: 30s`")?;
    Ok(Kind::Silence { for_ms })
}

fn all(fields: &Fields<'_>, sources: usize) -> Result<Kind, RuleError> {
    let (pointer, allowed) =
        (fields.at("all"), format!("{sources}, the number of filters that it waits for"));
    if sources == 0 || sources > MAX_SOURCES {
        let allowed =
            format!("over 1 to {MAX_SOURCES} filters; write them in the `all` of `listen` or `on`");
        return Err(RuleError::Number { pointer, found: format!("over {sources} filters"), allowed });
    }
    match fields.get("all") {
        Some(Value::Bool(true)) => {}
        Some(Value::Number(_)) => {
            let number = fields.whole("all", 1, MAX_SOURCES as u64)?;
            if size(number) != sources {
                return Err(RuleError::Number { pointer, found: size(number).to_string(), allowed });
            }
        }
        Some(Value::Array(filters)) => {
            if filters.len() != sources {
                let found = format!("a list of {}", filters.len());
                return Err(RuleError::Number { pointer, found, allowed });
            }
        }
        other => {
            let (expected, found) = ("`true` or a list of filters", kind_of(other.unwrap_or(&Value::Null)));
            return Err(RuleError::Type { pointer, expected, found });
        }
    }
    Ok(Kind::All { sources })
}

fn threshold(fields: &Fields<'_>, compile: &Compile<'_>) -> Result<Kind, RuleError> {
    let help = "write `threshold: { value: ${ .data.temp }, above: 30, below: 28 }`";
    let threshold = fields.object("threshold", &["value", "above", "below", "back"])?;
    let threshold = fields.required("threshold", threshold, help)?;
    let value = threshold.required("value", threshold.expression("value", compile)?, help)?;
    let (above, below) = (threshold.number("above")?, threshold.number("below")?);
    let back = threshold.number("back")?;
    if above.is_some() {
        let help = "with `above` there, `below` is where it comes back; remove one";
        threshold.not_both("back", "below", help)?;
    }
    let (rising, fires, back_key, back) = match (above, below, back) {
        (Some(above), Some(below), _) => (true, above, "below", below),
        (Some(above), None, back) => (true, above, "back", back.unwrap_or(above)),
        (None, Some(below), back) => (false, below, "back", back.unwrap_or(below)),
        (None, None, _) => return Err(RuleError::Missing { pointer: threshold.at("above"), help }),
    };
    let wrong_way = match rising {
        true => float(back) > float(fires),
        false => float(back) < float(fires),
    };
    if wrong_way {
        let allowed = match rising {
            true => format!("at most {fires}, since it fires above that"),
            false => format!("at least {fires}, since it fires below that"),
        };
        let pointer = threshold.at(back_key);
        return Err(RuleError::Number { pointer, found: back.to_string(), allowed });
    }
    let level = Level { rising, fires: fires.clone(), back: back.clone() };
    Ok(Kind::Threshold { value, level })
}

fn queue(fields: &Fields<'_>) -> Result<Kind, RuleError> {
    let help = "write `queue: { function: NAME, longer_than: 100 }`, or `filter: \"topic/#\"` instead of `function`";
    let queue = fields.object("queue", &["function", "filter", "longer_than"])?;
    let queue = fields.required("queue", queue, help)?;
    queue.not_both("filter", "function", "a rule watches one queue; write a workflow for each")?;
    let longer_than = queue.required("longer_than", queue.whole("longer_than", 0, u64::MAX)?, help)?;
    let wrong = |key: &str, text: &str, reason| RuleError::Text {
        pointer: queue.at(key),
        text: text.to_owned(),
        reason,
    };
    let of = match (queue.text("function")?, queue.text("filter")?) {
        (Some(""), _) => return Err(wrong("function", "", "write the function's name")),
        (Some(name), _) => Queue::Function(name.to_owned()),
        (None, Some(filter)) => match filter_error(filter) {
            Some(reason) => return Err(wrong("filter", filter, reason)),
            None => Queue::Filter(filter.to_owned()),
        },
        (None, None) => return Err(RuleError::Missing { pointer: queue.at("function"), help }),
    };
    Ok(Kind::Queue { of, longer_than })
}

/// The reason why a topic filter is invalid (MQTT 5.0, section 4.7). `None` if it is valid.
fn filter_error(filter: &str) -> Option<&'static str> {
    let levels: Vec<&str> = filter.split('/').collect();
    let before_last = levels.len().saturating_sub(1);
    if filter.is_empty() || filter.contains('\0') || filter.len() > 65_535 {
        Some("a topic filter has 1 to 65,535 bytes and no zero among them")
    } else if levels.iter().any(|level| level.len() > 1 && level.contains(['#', '+'])) {
        Some("`#` and `+` stand for whole levels: write `a/#` or `a/+/b`")
    } else if levels.iter().take(before_last).any(|level| *level == "#") {
        Some("`#` stands at the end only; for one level write `+`")
    } else {
        None
    }
}

pub(super) fn float(number: &Number) -> f64 {
    number.as_f64().unwrap_or(f64::NAN)
}

/// Converts a number whose range was checked before.
fn size(number: Option<u64>) -> usize {
    number.and_then(|number| usize::try_from(number).ok()).unwrap_or(0)
}
