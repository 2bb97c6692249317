//! Scales an image.

use edgefaas::prelude::*;

#[edgefaas::function]
fn scale(_: Event) -> Result<Reply, Error> {
    kernels::scale().map(Reply::Text).map_err(|error| Error::new(error.to_string()))
}
