use edgefaas::prelude::*;

#[edgefaas::function]
fn handler() -> Result<Reply, Error> {
    Ok(Reply::None)
}

fn main() {}
