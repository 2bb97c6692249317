//! Web pages that belong to a listener of this node: the origin and the host of their requests.

use std::net::IpAddr;
use std::str::FromStr;

use http::header::HOST;
use http::uri::Authority;
use http::{HeaderMap, HeaderName, Uri};

/// Relation of the page to the requested site, set by browsers (Fetch Metadata).
pub const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

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

/// The header `Host` in lower case; empty without one.
pub fn host_of(headers: &HeaderMap) -> String {
    let host = headers.get(HOST).map(|host| String::from_utf8_lossy(host.as_bytes()));
    host.unwrap_or_default().to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

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
