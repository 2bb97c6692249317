//! A greeting as a component of `wasi:http/proxy`, which `wasmtime serve` and the node run as it is.

use wasip2::http::types::{Fields, IncomingRequest, OutgoingBody, OutgoingResponse, ResponseOutparam};

struct Component;

wasip2::http::proxy::export!(Component);

impl wasip2::exports::http::incoming_handler::Guest for Component {
    fn handle(_: IncomingRequest, out: ResponseOutparam) {
        let headers = [("content-type", "text/plain; charset=utf-8"), ("content-length", "5")];
        let headers = headers.map(|(name, value)| (name.to_owned(), value.as_bytes().to_vec()));
        let response = OutgoingResponse::new(Fields::from_list(&headers).unwrap());
        let body = response.body().unwrap();
        ResponseOutparam::set(out, Ok(response));
        let stream = body.write().unwrap();
        stream.blocking_write_and_flush(b"hello").unwrap();
        drop(stream);
        OutgoingBody::finish(body, None).unwrap();
    }
}
