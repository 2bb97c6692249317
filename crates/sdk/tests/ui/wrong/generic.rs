#[edgefaas::function]
fn handler<T>(_: T) {}

fn main() {}
