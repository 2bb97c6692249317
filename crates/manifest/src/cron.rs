//! Cron expressions of triggers and schedules.

use std::fmt;

use chrono::{DateTime, Local, TimeZone};
use croner::Cron;
use croner::parser::{CronParser, Seconds, Year};

/// Names of the fields; schedules with five fields have no seconds.
const FIELDS: [&str; 6] = ["second", "minute", "hour", "day of the month", "month", "day of the week"];

/// A text is no schedule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CronError {
    /// It has another number of fields.
    #[error(
        "it has {}, and a schedule has 5 (minute, hour, day of the month, month, day of the week), or 6 with seconds first", Count(*fields)
    )]
    Fields {
        /// Their number.
        fields: usize,
    },
    /// No nickname is written like this.
    #[error("the nicknames are @yearly, @monthly, @weekly, @daily and @hourly")]
    Nickname,
    /// A field is out of range, or has another form.
    #[error("`{text}` is not valid for the {field}")]
    Field {
        /// Name of the field.
        field: &'static str,
        /// Its text.
        text: String,
    },
    /// The fields are valid, and not together.
    #[error("its fields do not fit together")]
    Together,
}

struct Count(usize);

impl fmt::Display for Count {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => write!(out, "no field"),
            1 => write!(out, "1 field"),
            fields => write!(out, "{fields} fields"),
        }
    }
}

/// Parses the cron expression of a trigger: five fields, six with seconds first, or a nickname (`@hourly`).
///
/// # Errors
///
/// The expression is invalid.
pub fn parse_cron(schedule: &str) -> Result<Cron, CronError> {
    parse(schedule).ok_or_else(|| error(schedule))
}

fn parse(schedule: &str) -> Option<Cron> {
    CronParser::builder().seconds(Seconds::Optional).year(Year::Disallowed).build().parse(schedule).ok()
}

/// The first field with which no schedule is valid, since the library's errors do not name it.
fn error(schedule: &str) -> CronError {
    let texts: Vec<&str> = schedule.split_whitespace().collect();
    match texts.as_slice() {
        [nickname] if nickname.starts_with('@') => return CronError::Nickname,
        [_, _, _, _, _] | [_, _, _, _, _, _] => {}
        other => return CronError::Fields { fields: other.len() },
    }
    let names = FIELDS.iter().skip(FIELDS.len() - texts.len());
    let wrong = names.zip(&texts).enumerate().find(|(at, (_, text))| {
        let mut alone = vec!["*"; texts.len()];
        alone[*at] = text;
        parse(&alone.join(" ")).is_none()
    });
    match wrong {
        Some((_, (field, text))) => CronError::Field { field, text: (*text).to_owned() },
        None => CronError::Together,
    }
}

/// The first time after `now_ms`, in milliseconds since the Unix epoch; `None` if there is none. Schedules are in the
/// machine's time zone.
pub fn next_after(cron: &Cron, now_ms: u64) -> Option<u64> {
    let now: DateTime<Local> = Local.timestamp_millis_opt(i64::try_from(now_ms).ok()?).single()?;
    let next = cron.find_next_occurrence(&now, false).ok()?;
    u64::try_from(next.timestamp_millis()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_time_is_after_now() {
        let cron = parse_cron("*/5 * * * * *").unwrap();
        assert_eq!(next_after(&cron, 1_700_000_000_000), Some(1_700_000_005_000));
        assert_eq!(next_after(&cron, 1_700_000_001_500), Some(1_700_000_005_000));
    }

    #[test]
    fn an_error_names_the_field() {
        for (schedule, words) in [
            ("bad", "it has 1 field, and a schedule has 5 (minute,"),
            ("", "it has no field"),
            ("* * * * * * *", "it has 7 fields"),
            ("@often", "@daily and @hourly"),
            ("61 * * * *", "`61` is not valid for the minute"),
            ("0 0 24 * * *", "`24` is not valid for the hour"),
            ("0 6 * * fri-x", "`fri-x` is not valid for the day of the week"),
            ("*/0 * * * *", "`*/0` is not valid for the minute"),
        ] {
            let error = parse_cron(schedule).unwrap_err().to_string();
            assert!(error.contains(words), "{schedule:?}: {error}");
        }
    }
}
