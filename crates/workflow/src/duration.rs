//! Durations: an object of parts, ISO 8601, and short texts (`30s`, `1h30m`).

use serde_json::Value;

const DAY_MS: f64 = 86_400_000.0;
/// The maximum duration: about ten years. Longer durations are refused.
pub const MAX_MS: u64 = 10 * 366 * 86_400_000;

/// The reason why a value is not a duration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DurationError {
    /// The value is neither a text nor an object.
    #[error("a duration is text such as `PT30S` or an object such as {{seconds: 30}}")]
    Kind,
    /// The text does not have a supported form.
    #[error("`{text}` is not a duration; write `30s`, `PT30S` or seconds: 30")]
    Text {
        /// The text.
        text: String,
        /// The fault.
        reason: TextError,
    },
    /// The object has an unknown key.
    #[error("`{name}` is not a part of a duration: days, hours, minutes, seconds, milliseconds")]
    Part {
        /// The key.
        name: String,
    },
    /// The amount is not a number, or is negative.
    #[error("`{name}` of a duration is not a number from 0 on")]
    Amount {
        /// The key.
        name: String,
    },
    /// The object has no keys.
    #[error("the duration has no parts")]
    NoParts,
    /// The duration is longer than [`MAX_MS`].
    #[error("the duration is longer than ten years")]
    TooLong,
}

/// The reason why a text is not a duration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TextError {
    /// The text is empty.
    #[error("it is empty")]
    Empty,
    /// A number is missing.
    #[error("a number is expected")]
    Number,
    /// A number has no unit.
    #[error("it has no unit")]
    NoUnit,
    /// The unit is unknown.
    #[error("its unit is not `ms`, `s`, `m`, `h` or `d`")]
    Unit,
    /// The text ends with `P` or `T`.
    #[error("nothing follows its `{0}`")]
    Nothing(char),
    /// The text has `Y`, or `M` before the `T`.
    #[error("years and months have no fixed length")]
    NoFixedLength,
    /// The text is not a supported form of an ISO 8601 duration.
    #[error("it is not of the form P1DT2H3M4.5S")]
    Form,
    /// The duration is longer than [`MAX_MS`].
    #[error("it is longer than ten years")]
    TooLong,
    /// The duration is zero, and the caller requires a longer one.
    #[error("it is zero")]
    Zero,
}

/// The milliseconds of a duration: `{minutes: 1, seconds: 30}`, or a [text](parse_text).
///
/// # Errors
/// See [`DurationError`].
pub fn parse(value: &Value) -> Result<u64, DurationError> {
    match value {
        Value::Object(parts) => {
            let mut sum_ms = 0.0;
            for (name, amount) in parts {
                let unit_ms = match name.as_str() {
                    "days" => DAY_MS,
                    "hours" => 3_600_000.0,
                    "minutes" => 60_000.0,
                    "seconds" => 1000.0,
                    "milliseconds" => 1.0,
                    _ => return Err(DurationError::Part { name: name.clone() }),
                };
                let amount = amount.as_f64().filter(|amount| *amount >= 0.0);
                sum_ms += unit_ms * amount.ok_or_else(|| DurationError::Amount { name: name.clone() })?;
            }
            match parts.is_empty() {
                true => Err(DurationError::NoParts),
                false => whole(sum_ms).ok_or(DurationError::TooLong),
            }
        }
        Value::String(text) => parse_text(text.trim()).map_err(|reason| match reason {
            TextError::TooLong => DurationError::TooLong,
            reason => DurationError::Text { text: text.trim().to_owned(), reason },
        }),
        _ => Err(DurationError::Kind),
    }
}

/// The milliseconds of `PnW` or `PnDTnHnMnS` (ISO 8601-1, section 5.5.2), or of decimal numbers, each followed by
/// `ms`, `s`, `m`, `h` or `d`. Fractions of a millisecond are cut off.
///
/// # Errors
/// See [`TextError`]. Months and years are refused, because they have no fixed length.
pub fn parse_text(text: &str) -> Result<u64, TextError> {
    let ms = match text.strip_prefix('P') {
        Some(rest) => iso8601_ms(rest)?,
        None => short_ms(text)?,
    };
    whole(ms).ok_or(TextError::TooLong)
}

fn whole(ms: f64) -> Option<u64> {
    // A decimal fraction such as 0.1 has no exact binary form. The small addition corrects a result just below a
    // whole millisecond.
    (ms.is_finite() && ms <= MAX_MS as f64).then_some((ms + 1e-6) as u64)
}

/// `rest` is the text after the `P`.
fn iso8601_ms(rest: &str) -> Result<f64, TextError> {
    const DATE: [(char, f64); 2] = [('W', 7.0 * DAY_MS), ('D', DAY_MS)];
    const TIME: [(char, f64); 3] = [('H', 3_600_000.0), ('M', 60_000.0), ('S', 1000.0)];
    let (date, time) = match rest.split_once('T') {
        Some((_, "")) => return Err(TextError::Nothing('T')),
        Some((date, time)) => (date, time),
        None => (rest, ""),
    };
    if date.is_empty() && time.is_empty() {
        return Err(TextError::Nothing('P'));
    }
    if date.contains(['Y', 'M']) {
        return Err(TextError::NoFixedLength);
    }
    Ok(iso8601_part_ms(date, &DATE)? + iso8601_part_ms(time, &TIME)?)
}

/// The units must come in this order, each at most once.
fn iso8601_part_ms(text: &str, units: &[(char, f64)]) -> Result<f64, TextError> {
    let (mut rest, mut sum_ms, mut units) = (text, 0.0, units.iter());
    while !rest.is_empty() {
        let (amount, after) = number(rest).ok_or(TextError::Form)?;
        let mut characters = after.chars();
        let unit = characters.next().ok_or(TextError::Form)?;
        let (_, unit_ms) = units.find(|(name, _)| *name == unit).ok_or(TextError::Form)?;
        sum_ms += amount * unit_ms;
        rest = characters.as_str();
    }
    Ok(sum_ms)
}

fn short_ms(text: &str) -> Result<f64, TextError> {
    if text.is_empty() {
        return Err(TextError::Empty);
    }
    let (mut rest, mut sum_ms) = (text, 0.0);
    while !rest.is_empty() {
        let (amount, after) = number(rest).ok_or(TextError::Number)?;
        let after = after.trim_start();
        let end = after.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(after.len());
        let (unit, after) = after.split_at(end);
        sum_ms += amount
            * match unit {
                "ms" => 1.0,
                "s" => 1000.0,
                "m" | "min" => 60_000.0,
                "h" => 3_600_000.0,
                "d" => DAY_MS,
                "" => return Err(TextError::NoUnit),
                _ => return Err(TextError::Unit),
            };
        rest = after.trim_start();
    }
    Ok(sum_ms)
}

/// Reads a decimal number with digits on both sides of its point or comma. Returns it with the remaining text.
fn number(text: &str) -> Option<(f64, &str)> {
    let digits = |text: &str| text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let mut end = digits(text);
    if end == 0 {
        return None;
    }
    if let Some(fraction) = text[end..].strip_prefix(['.', ',']) {
        match digits(fraction) {
            0 => return None,
            count => end += 1 + count,
        }
    }
    let amount = text[..end].replace(',', ".").parse().ok()?;
    Some((amount, &text[end..]))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn every_form() {
        for (value, ms) in [
            (json!({"minutes": 1, "seconds": 30}), 90_000),
            (json!("PT1M30S"), 90_000),
            (json!("P1DT0.5S"), 86_400_500),
            (json!("P1DT1M"), 86_460_000),
            (json!("P2W"), 1_209_600_000),
            (json!("PT0,0019S"), 1),
            (json!("PT1.05S"), 1_050),
            (json!("PT0S"), 0),
            (json!("200ms"), 200),
            (json!("30 s"), 30_000),
            (json!("1.5h"), 5_400_000),
            (json!("1h30m"), 5_400_000),
            (json!("1h 30min"), 5_400_000),
            (json!("0.1s"), 100),
            (json!("0.7s"), 700),
            (json!({"milliseconds": 0}), 0),
        ] {
            assert_eq!(parse(&value), Ok(ms), "{value}");
        }
        for value in [
            json!("P"),
            json!("PT"),
            json!("P1DT"),
            json!("P1M"),
            json!("P1Y"),
            json!("P1H"),
            json!("PT1"),
            json!("PT1S1M"),
            json!("PT1S1S"),
            json!("PT.5S"),
            json!("PT1.S"),
            json!("pt1s"),
            json!("PTé"),
            json!("1 year"),
            json!("-1s"),
            json!("30"),
            json!("s"),
            json!("30S"),
            json!("1s 1"),
            json!("３s"),
            json!("4000d"),
            json!("99999999999999999999d"),
            json!(5),
            json!({}),
            json!({"years": 1}),
            json!({"days": -1}),
            json!({"days": 1e9}),
            json!(""),
        ] {
            assert!(parse(&value).is_err(), "{value}");
        }
    }

    proptest! {
        #[test]
        fn nothing_panics(text in "\\PC{0,12}", iso in "P[0-9.,WDTHMS]{0,12}") {
            let _ = parse_text(&text);
            let _ = parse_text(&iso);
        }

        #[test]
        fn both_forms_agree(days in 0u64..99, hours in 0u64..99, minutes in 0u64..99, seconds in 1u64..99) {
            prop_assert_eq!(
                parse_text(&format!("{days}d{hours}h{minutes}m{seconds}s")),
                parse_text(&format!("P{days}DT{hours}H{minutes}M{seconds}S"))
            );
        }
    }
}
