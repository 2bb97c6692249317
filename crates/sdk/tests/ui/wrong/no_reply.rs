use edgefaas::prelude::*;

struct Average(f64);

#[edgefaas::function]
fn handler(_: Event, _: Context) -> Average {
    Average(1.0)
}

fn main() {}
