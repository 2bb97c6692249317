//! Answers with the property `name` of a JSON document: of a small one in PostgreSQL (`?from=postgres`), or of a large one that
//! an HTTP server has (`?from=http`), which is read as it comes and may be larger than the function's memory.

mod http;
mod postgres;
mod scan;

use edgefaas::prelude::*;

#[edgefaas::function]
fn document(event: Event) -> Result<Reply, Error> {
    let Trigger::Http(request) = event.trigger() else { return Err(Error::new("not an HTTP request")) };
    let name = match request.query_value("from").as_deref() {
        Some("postgres") => postgres::name().map_err(|error| format!("{}: {error}", postgres::SERVER)),
        Some("http") => http::name(),
        _ => Err("`from` is postgres or http".to_owned()),
    };
    name.map(Reply::Text).map_err(Error::new)
}
