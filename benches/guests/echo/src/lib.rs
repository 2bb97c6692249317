//! Answers requests with a greeting and everything else with what it got; echo.js does the same.

use edgefaas::prelude::*;

#[edgefaas::function]
fn echo(event: Event) -> Reply {
    match event.trigger() {
        Trigger::Http(_) => Reply::Text("hello".into()),
        _ => Reply::Bytes(event.into_bytes()),
    }
}
