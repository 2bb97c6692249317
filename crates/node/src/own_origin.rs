//! Web pages that belong to a listener of this node: the origin and the host of their requests.

use std::net::IpAddr;
use std::str::FromStr;

use http::header::{COOKIE, HOST};
use http::uri::Authority;
use http::{HeaderMap, HeaderName, HeaderValue, Uri};

/// Relation of the page to the requested site, set by browsers (Fetch Metadata).
pub const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Beginning of the names of session cookies of the control port, behind `__Host-` over TLS. Browsers send them to all ports of a
/// host, so that other listeners remove them from requests.
pub const SESSION_COOKIE: &str = "edgefaas-";

/// Removes session cookies of the control port. What a proxy has joined with commas, which no value of a cookie has, goes as one.
pub fn remove_session_cookies(headers: &mut HeaderMap) {
    let is_session = |cookie: &str| {
        cookie.split(',').any(|part| {
            let name = part.trim_start();
            name.strip_prefix("__Host-").unwrap_or(name).starts_with(SESSION_COOKIE)
        })
    };
    let has_session =
        |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).split(';').any(is_session);
    if !headers.get_all(COOKIE).iter().any(has_session) {
        return;
    }
    let values: Vec<HeaderValue> = headers.get_all(COOKIE).iter().cloned().collect();
    headers.remove(COOKIE);
    for value in values {
        let text = String::from_utf8_lossy(value.as_bytes()).into_owned();
        let rest: Vec<&str> = text.split(';').filter(|cookie| !is_session(cookie)).collect();
        let rest = rest.join(";");
        if let (false, Ok(rest)) = (rest.trim().is_empty(), HeaderValue::from_str(rest.trim_start())) {
            headers.append(COOKIE, rest);
        }
    }
}

/// True if `origin` is the listener itself, at which a request with the header `Host: host` has arrived. Without TLS only IP
/// addresses and `localhost` count, because an attacker can make any name resolve to this node (DNS rebinding). With TLS the
/// certificate proves the name.
pub fn is_own_origin(origin: &str, host: &str, secure: bool) -> bool {
    let Ok(uri) = Uri::from_str(origin) else { return false };
    let (Some(scheme), Some(authority)) = (uri.scheme_str(), uri.authority()) else { return false };
    let Ok(host) = Authority::from_str(host) else { return false };
    let (expected, default_port) = if secure { ("https", 443) } else { ("http", 80) };
    let port = |authority: &Authority| authority.port_u16().unwrap_or(default_port);
    scheme == expected
        && authority.host() == host.host()
        && port(authority) == port(&host)
        && (secure || is_ip_or_localhost(host.as_str()))
}

/// True for an IP address or `localhost`, with or without a port.
pub fn is_ip_or_localhost(host: &str) -> bool {
    let Ok(host) = Authority::from_str(host) else { return false };
    let name = host.host().trim_start_matches('[').trim_end_matches(']');
    name == "localhost" || name.parse::<IpAddr>().is_ok()
}

/// The host of a request in lower case: `:authority` of HTTP/2, or the header `Host`; empty without one.
pub fn host_of_request<B>(request: &http::Request<B>) -> String {
    let authority = request.uri().authority();
    authority
        .map_or_else(|| host_of(request.headers()), |authority| authority.as_str().to_ascii_lowercase())
}

/// The header `Host` in lower case; empty without one.
pub fn host_of(headers: &HeaderMap) -> String {
    let host = headers.get(HOST).map(|host| String::from_utf8_lossy(host.as_bytes()));
    host.unwrap_or_default().to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_session_cookies_are_removed() {
        for (given, left) in [
            (&["a=1; edgefaas-01AB=secret; b=2"][..], &["a=1; b=2"][..]),
            (&["__Host-edgefaas-01AB=secret", "c=3"], &["c=3"]),
            (&["edgefaas-1=x;edgefaas-2=y"], &[]),
            (&["x=1, edgefaas-1=secret; b=2"], &["b=2"]),
            (&["a=edgefaas-1; edgefaasx=1"], &["a=edgefaas-1; edgefaasx=1"]),
        ] {
            let mut headers = HeaderMap::new();
            for value in given {
                headers.append(COOKIE, HeaderValue::from_static(value));
            }
            remove_session_cookies(&mut headers);
            let found: Vec<_> =
                headers.get_all(COOKIE).iter().map(|value| value.to_str().unwrap()).collect();
            assert_eq!(found, left);
        }
    }

    #[test]
    fn only_the_listener_itself_is_its_own_origin() {
        for (origin, host, secure, expected) in [
            ("http://127.0.0.1:8080", "127.0.0.1:8080", false, true),
            ("http://localhost:8080", "localhost:8080", false, true),
            ("http://[::1]:8080", "[::1]:8080", false, true),
            ("http://127.0.0.1", "127.0.0.1:80", false, true),
            ("https://pi.local:8080", "pi.local:8080", true, true),
            // DNS rebinding: both are a name of the attacker.
            ("http://evil.example:8080", "evil.example:8080", false, false),
            ("http://evil.example", "127.0.0.1:8080", false, false),
            ("http://127.0.0.1:3000", "127.0.0.1:8080", false, false),
            ("http://localhost:8080", "127.0.0.1:8080", false, false),
            ("https://127.0.0.1:8080", "127.0.0.1:8080", false, false),
            ("http://pi.local:8080", "pi.local:8080", true, false),
            ("null", "127.0.0.1:8080", false, false),
            ("", "", false, false),
        ] {
            assert_eq!(is_own_origin(origin, host, secure), expected, "{origin:?} at {host:?}");
        }
    }
}
