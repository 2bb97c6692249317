//! A component of `wasi:http/proxy` that answers with what it was asked, sends a request on, or does nothing good: the first
//! segment of the path says what, and `ce-type` where there is none.

use wasip2::http::outgoing_handler;
use wasip2::http::types::{
    ErrorCode, Fields, IncomingBody, IncomingRequest, IncomingResponse, Method, OutgoingBody,
    OutgoingRequest, OutgoingResponse, RequestOptions, ResponseOutparam, Scheme,
};
use wasip2::io::streams::StreamError;

struct Component;

wasip2::http::proxy::export!(Component);

impl wasip2::exports::http::incoming_handler::Guest for Component {
    fn handle(request: IncomingRequest, out: ResponseOutparam) {
        let target = request.path_with_query().unwrap_or_default();
        let (path, query) = target.split_once('?').unwrap_or((&target, ""));
        match path.trim_start_matches('/').split('/').next().unwrap_or_default() {
            "unset" => {}
            "unset-kept" => std::mem::forget(out),
            "code" => ResponseOutparam::set(out, Err(ErrorCode::LoopDetected)),
            "unfinished" => std::mem::forget(begin(out, 200, &[], b"half")),
            "dropped" => drop(begin(out, 200, &[], b"half")),
            "short" => {
                let body = begin(out, 200, &[("content-length", "9")], b"half");
                OutgoingBody::finish(body, None).expect_err("it is too short");
            }
            "trap" => {
                finish(begin(out, 200, &[], b"whole"));
                panic!("after the response");
            }
            "never" => {
                finish(begin(out, 200, &[], b"whole"));
                loop {
                    std::hint::black_box(0);
                }
            }
            "hoard" => {
                let all: Vec<_> = (0..10_000).map(|_| Fields::new()).collect();
                answer(out, 200, &[], all.len().to_string().as_bytes());
            }
            "large" => answer(out, 200, &[], &vec![b'x'; query.parse().unwrap()]),
            "endless" => {
                let body = begin(out, 200, &[], b"");
                let stream = body.write().unwrap();
                loop {
                    stream.blocking_write_and_flush(&[b'x'; 4096]).unwrap();
                }
            }
            "status" => {
                answer(out, query.parse().unwrap(), &[("x-first", "1"), ("x-second", "2")], b"told")
            }
            "trailers" => {
                let trailers = Fields::from_list(&[("x-late".to_owned(), b"1".to_vec())]).unwrap();
                OutgoingBody::finish(begin(out, 200, &[], b"body"), Some(trailers)).unwrap();
            }
            "environment" => {
                let mut all = wasip2::cli::environment::get_environment();
                all.sort();
                let arguments = wasip2::cli::environment::get_arguments();
                let text: Vec<String> = all.iter().map(|(name, value)| format!("{name}={value}")).collect();
                answer(out, 200, &[], format!("{} {arguments:?}", text.join(" ")).as_bytes());
            }
            "fetch" => match fetch(query, &read(request.consume().unwrap())) {
                Ok((status, body)) => answer(out, status, &[], &body),
                Err(code) => answer(out, 502, &[], format!("{code:?}").as_bytes()),
            },
            "count" => answer(out, 200, &[], count(query).as_bytes()),
            _ => {
                let method = match request.method() {
                    Method::Get => "GET".to_owned(),
                    Method::Post => "POST".to_owned(),
                    other => format!("{other:?}"),
                };
                let named = |name: &str| match request.headers().get(name).pop() {
                    Some(value) => String::from_utf8(value).unwrap(),
                    None => "-".to_owned(),
                };
                let (authority, kind) = (request.authority().unwrap(), named("ce-type"));
                let subject = named("ce-subject");
                let body = read(request.consume().unwrap());
                let body = String::from_utf8(body).unwrap();
                let text = format!("{method} {target} {authority} {kind} {subject} {body}");
                answer(out, 200, &[("content-type", "text/plain")], text.as_bytes());
            }
        }
    }
}

fn begin(out: ResponseOutparam, status: u16, headers: &[(&str, &str)], text: &[u8]) -> OutgoingBody {
    let headers: Vec<_> =
        headers.iter().map(|(name, value)| (name.to_string(), value.as_bytes().to_vec())).collect();
    let response = OutgoingResponse::new(Fields::from_list(&headers).unwrap());
    response.set_status_code(status).unwrap();
    let body = response.body().unwrap();
    ResponseOutparam::set(out, Ok(response));
    if !text.is_empty() {
        write(&body, text).unwrap();
    }
    body
}

fn answer(out: ResponseOutparam, status: u16, headers: &[(&str, &str)], text: &[u8]) {
    finish(begin(out, status, headers, text));
}

fn finish(body: OutgoingBody) {
    OutgoingBody::finish(body, None).unwrap();
}

fn write(body: &OutgoingBody, bytes: &[u8]) -> Result<(), StreamError> {
    let stream = body.write().unwrap();
    bytes.chunks(4096).try_for_each(|part| stream.blocking_write_and_flush(part))
}

fn read(body: IncomingBody) -> Vec<u8> {
    let stream = body.stream().unwrap();
    let mut all = Vec::new();
    loop {
        match stream.blocking_read(64 << 10) {
            Ok(bytes) => all.extend(bytes),
            Err(StreamError::Closed) => return all,
            Err(error) => panic!("{error:?}"),
        }
    }
}

/// POSTs `body`; the head is sent before the body is written.
fn fetch(authority: &str, body: &[u8]) -> Result<(u16, Vec<u8>), ErrorCode> {
    let request = OutgoingRequest::new(Fields::new());
    request.set_method(&Method::Post).unwrap();
    request.set_scheme(Some(&Scheme::Http)).unwrap();
    let (authority, path) = authority.split_once('/').unwrap_or((authority, ""));
    request.set_authority(Some(authority)).unwrap();
    request.set_path_with_query(Some(&format!("/{path}"))).unwrap();
    let outgoing = request.body().unwrap();
    let pending = outgoing_handler::handle(request, None)?;
    // Also if the request is refused: the answer says so.
    write(&outgoing, body).unwrap();
    OutgoingBody::finish(outgoing, None)?;
    pending.subscribe().block();
    let response: IncomingResponse = pending.get().unwrap().unwrap()?;
    Ok((response.status(), read(response.consume().unwrap())))
}

/// GETs, and reads the body piece by piece: its status and size, or the size until an error and the error.
fn count(authority: &str) -> String {
    let request = OutgoingRequest::new(Fields::new());
    request.set_scheme(Some(&Scheme::Http)).unwrap();
    let (authority, path) = authority.split_once('/').unwrap_or((authority, ""));
    request.set_authority(Some(authority)).unwrap();
    request.set_path_with_query(Some(&format!("/{path}"))).unwrap();
    let options = RequestOptions::new();
    // 10 s: a busy server is not one that stalls.
    options.set_between_bytes_timeout(path.starts_with("stalls").then_some(10_000_000_000)).unwrap();
    let pending = match outgoing_handler::handle(request, Some(options)) {
        Ok(pending) => pending,
        Err(code) => return format!("{code:?}"),
    };
    pending.subscribe().block();
    let response: IncomingResponse = match pending.get().unwrap().unwrap() {
        Ok(response) => response,
        Err(code) => return format!("{code:?}"),
    };
    let status = response.status();
    let body = response.consume().unwrap();
    let stream = body.stream().unwrap();
    let mut bytes = 0;
    loop {
        match stream.blocking_read(1 << 20) {
            Ok(piece) => bytes += piece.len(),
            Err(StreamError::Closed) => return format!("{status} {bytes}"),
            Err(StreamError::LastOperationFailed(error)) => {
                return format!("{bytes} {}", error.to_debug_string());
            }
        }
    }
}
