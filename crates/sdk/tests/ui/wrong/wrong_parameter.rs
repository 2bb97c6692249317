#[edgefaas::function]
fn handler(_: String) {}

fn main() {}
