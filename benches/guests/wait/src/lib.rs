//! Answers after as many milliseconds as the query asks for; wait.js does the same.

use std::time::Duration;

use edgefaas::prelude::*;

#[edgefaas::function]
fn wait(event: Event) -> Reply {
    if let Trigger::Http(request) = event.trigger() {
        let ms = request.query_value("ms").and_then(|ms| ms.parse().ok());
        std::thread::sleep(Duration::from_millis(ms.unwrap_or(0)));
    }
    Reply::Text("hello".into())
}
