//! A step of a chain: adds to its input what it computed in the loop of a native step, which turns as often as `config` says. With
//! `us` in `config` it says how often the loop turns in so many microseconds.

#[path = "../../../src/work.rs"]
mod work;

use edgefaas::prelude::*;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Data {
    n: u64,
    #[serde(default)]
    x: u64,
}

#[edgefaas::function]
fn step(event: Event, context: Context) -> Result<Json<Data>, Error> {
    if let Some(turns) = context.config("turns")? {
        let data: Data = event.json()?;
        return Ok(Json(Data { x: work::work(turns), ..data }));
    }
    let us = context.config("us")?.ok_or_else(|| Error::new("neither turns nor us is configured"))?;
    Ok(Json(Data { n: 0, x: work::turns_in(us) }))
}
