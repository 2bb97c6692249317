//! Durations as the DSL writes them: an object of parts, ISO 8601, and the short form of the manifest (`30s`).

use serde_json::Value;

/// A day's milliseconds.
const DAY_MS: f64 = 86_400_000.0;
/// Longer ones are refused: ten years.
pub const MAX_MS: u64 = 10 * 366 * 86_400_000;

/// The milliseconds of a duration: `{minutes: 1, seconds: 30}`, `"PT1M30S"` or `"90s"`.
///
/// # Errors
/// What is wrong with it. Months and years are refused, since they have no fixed length.
pub fn parse(value: &Value) -> Result<u64, String> {
    let ms = match value {
        Value::Object(parts) => {
            let mut sum = 0.0;
            for (name, amount) in parts {
                let unit = match name.as_str() {
                    "days" => DAY_MS,
                    "hours" => 3_600_000.0,
                    "minutes" => 60_000.0,
                    "seconds" => 1000.0,
                    "milliseconds" => 1.0,
                    _ => {
                        return Err(format!(
                            "`{name}` is no part of a duration: days, hours, minutes, seconds, milliseconds"
                        ));
                    }
                };
                let amount = amount.as_f64().filter(|amount| *amount >= 0.0);
                sum += unit
                    * amount.ok_or_else(|| format!("`{name}` of a duration is no number from 0 on"))?;
            }
            if parts.is_empty() {
                return Err("the duration has no parts".into());
            }
            sum
        }
        Value::String(text) => {
            let text = text.trim();
            let parsed = if text.starts_with('P') { iso8601(text) } else { short(text) };
            parsed.ok_or_else(|| format!("`{text}` is no duration; write `30s`, `PT30S` or seconds: 30"))?
        }
        _ => return Err("a duration is text such as `PT30S` or an object such as {seconds: 30}".into()),
    };
    match ms.is_finite() && ms <= MAX_MS as f64 {
        true => Ok(ms.round() as u64),
        false => Err("the duration is longer than ten years".into()),
    }
}

/// `PnDTnHnMnS` or `PnW`, each part a decimal number (ISO 8601-1, section 5.5.2).
fn iso8601(text: &str) -> Option<f64> {
    let (date, time) = match text.strip_prefix('P')?.split_once('T') {
        Some((date, time)) if !time.is_empty() => (date, time),
        Some(_) => return None,
        None => (text.strip_prefix('P')?, ""),
    };
    if date.is_empty() && time.is_empty() {
        return None;
    }
    let date = parts(date, &[('W', 7.0 * DAY_MS), ('D', DAY_MS)])?;
    Some(date + parts(time, &[('H', 3_600_000.0), ('M', 60_000.0), ('S', 1000.0)])?)
}

fn parts(mut text: &str, units: &[(char, f64)]) -> Option<f64> {
    let mut sum = 0.0;
    let mut units = units.iter();
    while !text.is_empty() {
        let end = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let amount: f64 = text[..end].parse().ok()?;
        let designator = text[end..].chars().next()?;
        let (_, unit) = units.find(|(name, _)| *name == designator)?;
        sum += amount * unit;
        text = &text[end + designator.len_utf8()..];
    }
    Some(sum)
}

fn short(text: &str) -> Option<f64> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
    let amount: f64 = text[..end].parse().ok()?;
    let unit = match text[end..].trim() {
        "ms" => 1.0,
        "s" => 1000.0,
        "m" | "min" => 60_000.0,
        "h" => 3_600_000.0,
        "d" => DAY_MS,
        _ => return None,
    };
    Some(amount * unit)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_form() {
        for (value, ms) in [
            (json!({"minutes": 1, "seconds": 30}), 90_000),
            (json!("PT1M30S"), 90_000),
            (json!("P1DT0.5S"), 86_400_500),
            (json!("P2W"), 1_209_600_000),
            (json!("200ms"), 200),
            (json!("1.5h"), 5_400_000),
            (json!({"milliseconds": 0}), 0),
        ] {
            assert_eq!(parse(&value), Ok(ms), "{value}");
        }
        for value in [
            json!("P"),
            json!("PT"),
            json!("P1M"),
            json!("PT1S1M"),
            json!("1 year"),
            json!("-1s"),
            json!(5),
            json!({}),
            json!({"years": 1}),
            json!({"days": -1}),
            json!({"days": 1e9}),
            json!(""),
            json!("PTé"),
        ] {
            assert!(parse(&value).is_err(), "{value}");
        }
    }
}
