use edgefaas::prelude::*;
use serde::{Deserialize, Serialize};

#[derive(Deserialize)]
struct Order {
    pieces: u32,
}

#[derive(Serialize)]
struct Price {
    total: u32,
}

#[edgefaas::function]
fn price(event: Event, context: Context) -> Result<Json<Price>, Error> {
    let order: Order = event.json()?;
    let each: u32 = context.config("each")?.unwrap_or(4);
    Ok(Json(Price { total: order.pieces * each }))
}
