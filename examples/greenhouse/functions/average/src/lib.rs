//! Keeps the average climate of each zone of the greenhouse; called with a zone's name, it tells it.
//!
//! The sums are counters, in thousandths: additions on several nodes add up, where a register would keep
//! only the last.

use edgefaas::Object;
use edgefaas::prelude::*;
use serde::{Deserialize, Serialize};

#[derive(Deserialize)]
struct Climate {
    temperature_c: f64,
    humidity_pct: f64,
}

#[derive(Debug, PartialEq, Serialize)]
struct Average {
    readings: i64,
    /// None before the first reading.
    temperature_c: Option<f64>,
    humidity_pct: Option<f64>,
}

#[edgefaas::function]
fn average(event: Event, context: Context) -> Result<Json<Average>, Error> {
    let zone = match event.trigger() {
        Trigger::Mqtt(message) => message.level(1).unwrap_or_default(),
        _ => event.text()?.trim(),
    };
    if zone.is_empty() {
        return Err(Error::new("which zone? send its name, such as: north"));
    }
    let state = context.object(format!("greenhouse/{zone}"));
    if event.mqtt().is_some() {
        add(&state, &event.json()?)?;
    }
    Ok(Json(read(&state)?))
}

fn add(state: &Object, climate: &Climate) -> Result<(), HostError> {
    state.counter("readings").add(1)?;
    state.counter("temperature_sum_mc").add(thousandths(climate.temperature_c))?;
    state.counter("humidity_sum_mpct").add(thousandths(climate.humidity_pct))
}

fn read(state: &Object) -> Result<Average, HostError> {
    let readings = state.counter("readings").value()?;
    let mean = |sum: i64| (readings > 0).then(|| sum as f64 / readings as f64 / 1000.0);
    Ok(Average {
        readings,
        temperature_c: mean(state.counter("temperature_sum_mc").value()?),
        humidity_pct: mean(state.counter("humidity_sum_mpct").value()?),
    })
}

fn thousandths(value: f64) -> i64 {
    (value * 1000.0).round() as i64
}

#[cfg(test)]
mod tests {
    use edgefaas::{DirectCall, MqttMessage, TestNode};

    use super::*;

    fn reading(zone: &str, payload: &str) -> Event {
        let message = MqttMessage { topic: format!("greenhouse/{zone}/climate"), ..MqttMessage::default() };
        Event::new(Trigger::Mqtt(message), payload)
    }

    fn ask(zone: &str) -> Event {
        Event::new(Trigger::Call(DirectCall::default()), zone)
    }

    #[test]
    fn each_zone_has_its_average() {
        let node = TestNode::new();
        let none = Average { readings: 0, temperature_c: None, humidity_pct: None };
        assert_eq!(average(ask("north"), node.context()).unwrap(), Json(none));
        for temperature in ["20.5", "21.5"] {
            let payload = format!(r#"{{"temperature_c": {temperature}, "humidity_pct": 60}}"#);
            average(reading("north", &payload), node.context()).unwrap();
        }
        average(reading("south", r#"{"temperature_c": 30, "humidity_pct": 40}"#), node.context()).unwrap();

        let north = Average { readings: 2, temperature_c: Some(21.0), humidity_pct: Some(60.0) };
        assert_eq!(average(ask("north\n"), node.context()).unwrap(), Json(north));
    }

    #[test]
    fn what_is_no_reading_is_an_error() {
        let node = TestNode::new();
        let error = average(reading("north", r#"{"temperature_c": 20}"#), node.context()).unwrap_err();
        assert!(error.message().contains("missing field `humidity_pct`"), "{error}");
        assert!(average(ask(""), node.context()).is_err());
    }
}
