use edgefaas::prelude::*;

#[edgefaas::function]
async fn handler(_: Event, _: Context, _: u8) {}

fn main() {}
