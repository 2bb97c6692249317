//! Durations as texts: `1h30m` and ISO 8601.

/// The longest duration, in milliseconds: ten years.
const MOST_MS: u64 = 10 * 365 * DAY_MS;
const DAY_MS: u64 = 86_400_000;

/// The units of short texts, each with its milliseconds.
const UNITS: [(&str, u64); 5] = [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("d", DAY_MS)];

/// A text as milliseconds: whole numbers with `ms`, `s`, `m`, `h` or `d` (`30s`, `1h30m`), or an ISO 8601 duration of
/// weeks, days, hours, minutes and seconds (`PT0.5S`). Gives the reason if it is none, is zero, or is longer than ten
/// years.
pub(super) fn parse_ms(text: &str) -> Result<u64, &'static str> {
    let ms = match text.strip_prefix('P') {
        Some(rest) => iso_ms(rest)?,
        None => short_ms(text)?,
    };
    match ms {
        0 => Err("it is zero"),
        ms if ms > MOST_MS => Err("it is longer than ten years"),
        ms => Ok(ms),
    }
}

fn short_ms(text: &str) -> Result<u64, &'static str> {
    let mut rest = text;
    let mut total = 0u64;
    if rest.is_empty() {
        return Err("it is empty");
    }
    while !rest.is_empty() {
        let (number, after) = digits(rest).ok_or("a whole number is expected")?;
        let unit_end = after.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(after.len());
        let (unit, after) = after.split_at_checked(unit_end).ok_or("it has no unit")?;
        let Some((_, unit_ms)) = UNITS.iter().find(|(name, _)| *name == unit) else {
            return Err(if unit.is_empty() {
                "it has no unit"
            } else {
                "its unit is not `ms`, `s`, `m`, `h` or `d`"
            });
        };
        total = add(total, number, *unit_ms)?;
        rest = after;
    }
    Ok(total)
}

/// What follows the `P`.
fn iso_ms(text: &str) -> Result<u64, &'static str> {
    const DATE: [(char, u64); 2] = [('W', 7 * DAY_MS), ('D', DAY_MS)];
    const TIME: [(char, u64); 3] = [('H', 3_600_000), ('M', 60_000), ('S', 1_000)];
    let (date, time) = match text.split_once('T') {
        Some((_, "")) => return Err("nothing follows its `T`"),
        Some((date, time)) => (date, time),
        None => (text, ""),
    };
    if date.is_empty() && time.is_empty() {
        return Err("nothing follows its `P`");
    }
    if date.contains(['Y', 'M']) {
        return Err("years and months have no fixed length");
    }
    add(iso_part(date, &DATE)?, iso_part(time, &TIME)?, 1)
}

/// The units must come in this order, each at most once; seconds may have a fraction.
fn iso_part(text: &str, units: &[(char, u64)]) -> Result<u64, &'static str> {
    const FORM: &str = "it is not of the form P1DT2H3M4.5S";
    let (mut rest, mut total, mut units) = (text, 0u64, units.iter());
    while !rest.is_empty() {
        let (number, after) = digits(rest).ok_or(FORM)?;
        let (fraction_ms, after) = match after.strip_prefix(['.', ',']) {
            Some(after) => {
                let end = after.find(|c: char| !c.is_ascii_digit()).unwrap_or(after.len());
                let (fraction, after) = after.split_at_checked(end).ok_or(FORM)?;
                if fraction.is_empty() || !after.starts_with('S') {
                    return Err("only its seconds may have a fraction");
                }
                (thousandths(fraction), after)
            }
            None => (0, after),
        };
        let mut characters = after.chars();
        let unit = characters.next().ok_or(FORM)?;
        let (_, unit_ms) = units.by_ref().find(|(name, _)| *name == unit).ok_or(FORM)?;
        total = add(add(total, number, *unit_ms)?, fraction_ms, 1)?;
        rest = characters.as_str();
    }
    Ok(total)
}

/// The first three digits after the point; the rest is less than a millisecond.
fn thousandths(fraction: &str) -> u64 {
    fraction
        .bytes()
        .chain(*b"00")
        .take(3)
        .fold(0, |sum, digit| sum * 10 + u64::from(digit.saturating_sub(b'0')))
}

fn digits(text: &str) -> Option<(u64, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, rest) = text.split_at_checked(end)?;
    // What is too large is far beyond the longest duration.
    (!number.is_empty()).then(|| (number.parse().unwrap_or(u64::MAX), rest))
}

fn add(total: u64, number: u64, unit_ms: u64) -> Result<u64, &'static str> {
    let sum = number.checked_mul(unit_ms).and_then(|ms| total.checked_add(ms));
    sum.filter(|sum| *sum <= MOST_MS).ok_or("it is longer than ten years")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn durations() {
        for (text, ms) in [
            ("200ms", 200),
            ("30s", 30_000),
            ("5m", 300_000),
            ("1h", 3_600_000),
            ("1d", 86_400_000),
            ("1h30m", 5_400_000),
            ("PT30S", 30_000),
            ("PT0.5S", 500),
            ("PT0,0019S", 1),
            ("PT1.05S", 1_050),
            ("P1DT1M", 86_460_000),
            ("P2W", 1_209_600_000),
        ] {
            assert_eq!(parse_ms(text), Ok(ms), "{text}");
        }
        for text in [
            "",
            "s",
            "30",
            "30 s",
            "-1s",
            "1.5s",
            "1y",
            "30S",
            "0s",
            "PT0S",
            "P",
            "PT",
            "P1DT",
            "P1Y",
            "P1M",
            "PT1",
            "PT1S1H",
            "PT1S1S",
            "PT1.5M",
            "PT.5S",
            "PT1.S",
            "P1H",
            "pt1s",
            "4000d",
            "99999999999999999999d",
            "1s 1",
            "３s",
        ] {
            assert!(parse_ms(text).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn nothing_panics(text in "\\PC{0,12}", iso in "P[0-9.,WDTHMS]{0,12}") {
            let _ = parse_ms(&text);
            let _ = parse_ms(&iso);
        }

        #[test]
        fn both_forms_agree(days in 0u64..99, hours in 0u64..99, minutes in 0u64..99, seconds in 1u64..99) {
            prop_assert_eq!(
                parse_ms(&format!("{days}d{hours}h{minutes}m{seconds}s")),
                parse_ms(&format!("P{days}DT{hours}H{minutes}M{seconds}S"))
            );
        }
    }
}
