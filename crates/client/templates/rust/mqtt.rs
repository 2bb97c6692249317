use edgefaas::prelude::*;
use serde::{Deserialize, Serialize};

#[derive(Deserialize, Serialize)]
struct Reading {
    celsius: f64,
}

#[edgefaas::function]
fn handle(event: Event, context: Context) -> Result<(), Error> {
    let Some(message) = event.mqtt() else { return Err(Error::new("only for messages")) };
    let place = message.level(1).unwrap_or_default();
    let reading: Reading = event.json()?;
    context.object("{{name}}").map("latest").register(place).set(&reading.celsius)?;
    if reading.celsius > context.config("limit_c")?.unwrap_or(30.0) {
        log::warn!("{place}: {} °C", reading.celsius);
        context.publish(&format!("{{name}}/{place}/alarm"), Json(reading))?;
    }
    Ok(())
}
