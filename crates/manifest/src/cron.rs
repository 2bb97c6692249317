//! Cron expressions of triggers and schedules.

use chrono::{DateTime, Local, TimeZone};
use croner::Cron;
pub use croner::errors::CronError;
use croner::parser::{CronParser, Seconds, Year};

/// Parses the cron expression of a trigger: five fields, six with seconds first, or a nickname (`@hourly`).
///
/// # Errors
///
/// The expression is invalid.
pub fn parse_cron(schedule: &str) -> Result<Cron, CronError> {
    CronParser::builder().seconds(Seconds::Optional).year(Year::Disallowed).build().parse(schedule)
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
}
