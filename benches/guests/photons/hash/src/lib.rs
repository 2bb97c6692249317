//! Hashes a file.

use edgefaas::prelude::*;

#[edgefaas::function]
fn hash(_: Event) -> Reply {
    Reply::Text(kernels::hash())
}
