//! The request of an HTTP event: read from the event's message when a function asks for a part of it.

use edgefaas_js_abi::Trigger;
use rquickjs::{Ctx, Exception, String as JsString, Value};

use crate::boundary::Utf8;
use crate::natives::{current, flat};

/// A call of an HTTP function that is no request is a POST of the data to this URL.
const URL_OF_CALLS: &str = "http://localhost/";

/// The method.
pub fn method() -> &'static str {
    let method = current(|now| match now.trigger {
        Trigger::Http { method, .. } => Some(method),
        _ => None,
    });
    method.flatten().unwrap_or("POST")
}

/// The URL, as the URL standard writes it.
pub fn url(ctx: Ctx<'_>) -> rquickjs::Result<String> {
    let url = current(|now| match &now.trigger {
        Trigger::Http { path, query, headers, .. } => {
            let host = headers.iter().find(|(name, _)| *name == "host");
            full_url(host.map_or("localhost", |(_, host)| host), path, query)
        }
        _ => Ok(URL_OF_CALLS.to_owned()),
    });
    match url.unwrap_or_else(|| Ok(URL_OF_CALLS.to_owned())) {
        Ok(url) => Ok(url),
        Err(UrlFault::Invalid(url)) => {
            let message =
                format!("Invalid URL: {url:?}; it has to be absolute, such as https://example.com/path");
            Err(Exception::throw_type(&ctx, &message))
        }
        Err(UrlFault::Credentials) => {
            let message = "a request's URL has no user name or password; use the header authorization";
            Err(Exception::throw_type(&ctx, message))
        }
    }
}

/// The values of a header, joined; null if there is none.
pub fn header<'js>(ctx: Ctx<'js>, name: JsString<'js>) -> rquickjs::Result<Value<'js>> {
    let name = Utf8::of(name)?;
    let joined = current(|now| {
        let Trigger::Http { headers, .. } = &now.trigger else { return Ok(None) };
        let mut values = headers.iter().filter(|(known, _)| *known == &*name).map(|(_, value)| *value);
        let Some(first) = values.next() else { return Ok(None) };
        let value = match values.next() {
            None => JsString::from_str(ctx.clone(), first),
            Some(second) => {
                let all: Vec<&str> = [first, second].into_iter().chain(values).collect();
                JsString::from_str(ctx.clone(), &all.join(", "))
            }
        };
        value.map(Some)
    });
    let value = joined.transpose()?.flatten();
    Ok(value.map_or_else(|| Value::new_null(ctx.clone()), JsString::into_value))
}

/// All headers: `[name, value, …]`.
pub fn headers(ctx: Ctx<'_>) -> rquickjs::Result<Value<'_>> {
    let headers = current(|now| match &now.trigger {
        Trigger::Http { headers, .. } => flat(&ctx, headers),
        _ => flat(&ctx, &[]),
    });
    headers.unwrap_or_else(|| flat(&ctx, &[]))
}

/// The URL of a request cannot be one.
#[derive(Debug, PartialEq)]
enum UrlFault {
    /// It is no URL.
    Invalid(String),
    /// It has a user name or a password.
    Credentials,
}

fn full_url(host: &str, path: &str, query: &str) -> Result<String, UrlFault> {
    let mut text = String::with_capacity("http://?".len() + host.len() + path.len() + query.len());
    text.push_str("http://");
    text.push_str(host);
    text.push_str(path);
    if !query.is_empty() {
        text.push('?');
        text.push_str(query);
    }
    if is_plain_host(host) && is_plain_path(path) && is_plain_query(query) {
        return Ok(text);
    }
    match url::Url::parse(&text) {
        Ok(url) if !url.username().is_empty() || url.password().is_some() => Err(UrlFault::Credentials),
        Ok(url) => Ok(url.into()),
        Err(_) => Err(UrlFault::Invalid(text)),
    }
}

/// True if the parser of URLs leaves the host as it is: a name in lower case or an IPv4 address, and a port. False says
/// nothing.
fn is_plain_host(host: &str) -> bool {
    let (name, port) = host.split_once(':').map_or((host, None), |(name, port)| (name, Some(port)));
    let is_port = |port: &str| {
        port.bytes().all(|byte| byte.is_ascii_digit())
            && !port.starts_with('0')
            && port != "80"
            && port.parse::<u16>().is_ok()
    };
    let is_name = |label: &str| {
        label.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
            && !label.is_empty()
            && !label.starts_with("xn--")
    };
    let is_number = |label: &str| label.parse::<u8>().is_ok_and(|number| number.to_string() == label);
    let mut labels = name.split('.');
    let last = labels.next_back().unwrap_or_default();
    let is_address = || name.split('.').count() == 4 && name.split('.').all(is_number);
    port.is_none_or(is_port)
        && match last.bytes().next() {
            Some(b'a'..=b'z') => is_name(last) && labels.all(is_name),
            Some(b'0'..=b'9') => is_address(),
            _ => false,
        }
}

/// The same for a path without dots at the beginning of a segment.
fn is_plain_path(path: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/!$&'()*+,;=:@%".contains(&byte);
    path.starts_with('/') && path.bytes().all(is_plain) && !path.contains("/.") && !path.contains("/%2")
}

fn is_plain_query(query: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/!$&()*+,;=:@%?".contains(&byte);
    query.bytes().all(is_plain)
}
