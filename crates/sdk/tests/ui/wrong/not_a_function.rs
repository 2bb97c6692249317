#[edgefaas::function]
struct Handler;

fn main() {}
