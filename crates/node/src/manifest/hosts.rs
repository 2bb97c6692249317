//! Which servers a function may reach: patterns of `permissions.http` and `permissions.tcp`.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use url::{Host, Url};

/// A server, or several, that a function may send HTTP requests to: `[SCHEME://]HOST[:PORT]`.
///
/// `HOST` is a name, an address, `*.NAME` for all names below it, or `*` for all. Without a port those of http (80) and
/// https (443) are meant, with `:*` every one. The node's own addresses and link-local ones are reached by those who name
/// them only: `localhost`, a name below it, or the address itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpPattern {
    text: String,
    scheme: Option<Scheme>,
    host: HostPattern,
    port: Port,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scheme {
    Http,
    Https,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum HostPattern {
    Any,
    Below(String),
    Name(String),
    Address(IpAddr),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Port {
    Default,
    One(u16),
    Any,
}

impl HttpPattern {
    /// Whether a request to this URL is meant; never one of another scheme than http and https.
    pub fn allows(&self, url: &Url) -> bool {
        let scheme = match url.scheme() {
            "http" => Scheme::Http,
            "https" => Scheme::Https,
            _ => return false,
        };
        let port = match self.port {
            Port::Any => true,
            // The URL does not keep a port that is its scheme's own.
            Port::Default => url.port().is_none(),
            Port::One(port) => url.port_or_known_default() == Some(port),
        };
        let host = url.host().is_some_and(|host| self.host.allows(&host));
        host && port && self.scheme.is_none_or(|wanted| wanted == scheme)
    }
}

impl HostPattern {
    fn allows(&self, host: &Host<&str>) -> bool {
        let address = match host {
            Host::Domain(_) => None,
            Host::Ipv4(address) => Some(IpAddr::V4(*address)),
            Host::Ipv6(address) => Some(IpAddr::V6(*address).to_canonical()),
        };
        let name = match host {
            Host::Domain(name) => name.trim_end_matches('.'),
            _ => "",
        };
        match self {
            Self::Address(wanted) => address == Some(*wanted),
            Self::Name(wanted) => !name.is_empty() && name == wanted,
            Self::Below(suffix) => {
                let below = name.strip_suffix(suffix.as_str()).and_then(|head| head.strip_suffix('.'));
                below.is_some_and(|head| !head.is_empty())
            }
            Self::Any => !address.is_some_and(is_guarded) && !is_local_name(name),
        }
    }
}

/// Whether a name stands for this machine by itself (RFC 6761, section 6.3).
pub fn is_local_name(name: &str) -> bool {
    let name = name.trim_end_matches('.');
    name == "localhost" || name.ends_with(".localhost")
}

/// Whether an address is the node's own or valid on one link only, so that a name must not lead there unseen: loopback,
/// link-local (cloud metadata among them), unspecified, multicast and broadcast ones.
pub fn is_guarded(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(v4) => {
            v4.is_loopback()
                || v4.is_link_local()
                || v4.is_unspecified()
                || v4.is_multicast()
                || v4.is_broadcast()
                || v4.octets()[0] == 0
        }
        IpAddr::V6(v6) => {
            v6.is_loopback() || v6.is_unicast_link_local() || v6.is_unspecified() || v6.is_multicast()
        }
    }
}

impl FromStr for HttpPattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (scheme, rest) = match text.split_once("://") {
            Some(("http", rest)) => (Some(Scheme::Http), rest),
            Some(("https", rest)) => (Some(Scheme::Https), rest),
            Some((other, _)) => return Err(format!("`{other}` is neither `http` nor `https`")),
            None => (None, text),
        };
        if rest.contains(['/', '?', '#', '@']) {
            return Err(
                "it names more than a host; write `api.example.com` or `https://api.example.com:8443`"
                    .into(),
            );
        }
        let (host, port) = split_port(rest)?;
        let port = match port {
            None => Port::Default,
            Some("*") => Port::Any,
            Some(port) => match port_number(port)? {
                80 if scheme == Some(Scheme::Http) => Port::Default,
                443 if scheme == Some(Scheme::Https) => Port::Default,
                port => Port::One(port),
            },
        };
        let host = match host {
            "*" => HostPattern::Any,
            _ => match host.strip_prefix("*.") {
                Some(suffix) => match parse_host(suffix)? {
                    Host::Domain(name) => HostPattern::Below(name),
                    _ => return Err("there is nothing below an address".into()),
                },
                None => match parse_host(host)? {
                    Host::Domain(name) => HostPattern::Name(name),
                    Host::Ipv4(address) => HostPattern::Address(address.into()),
                    Host::Ipv6(address) => HostPattern::Address(IpAddr::V6(address).to_canonical()),
                },
            },
        };
        Ok(Self { text: text.to_owned(), scheme, host, port })
    }
}

impl fmt::Display for HttpPattern {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.text)
    }
}

/// A server that a function may open TCP connections to: `HOST:PORT`, without patterns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TcpTarget {
    /// A name in lower case, or an address.
    pub host: Host<String>,
    /// Its port.
    pub port: u16,
}

impl FromStr for TcpTarget {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (host, port) = split_port(text)?;
        let port = port.ok_or("it has no port; write `HOST:PORT`")?;
        Ok(Self { host: parse_host(host)?, port: port_number(port)? })
    }
}

impl fmt::Display for TcpTarget {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}:{}", self.host, self.port)
    }
}

/// Host and port; an IPv6 address stands in brackets.
fn split_port(text: &str) -> Result<(&str, Option<&str>), String> {
    if let Some(inside) = text.strip_prefix('[') {
        let (_, rest) = inside.split_once(']').ok_or("its `[` is not closed")?;
        let host = &text[..text.len() - rest.len()];
        return match rest.strip_prefix(':') {
            Some(port) => Ok((host, Some(port))),
            None if rest.is_empty() => Ok((host, None)),
            None => Err("after `]` comes `:PORT` or nothing".into()),
        };
    }
    match text.split_once(':') {
        Some((_, port)) if port.contains(':') => {
            Err("write an IPv6 address in brackets, as in `[fd00::1]:80`".into())
        }
        Some((host, port)) => Ok((host, Some(port))),
        None => Ok((text, None)),
    }
}

fn port_number(text: &str) -> Result<u16, String> {
    match text.parse() {
        Ok(port) if port > 0 => Ok(port),
        _ => Err(format!("`{text}` is not a port from 1 to 65535")),
    }
}

fn parse_host(text: &str) -> Result<Host<String>, String> {
    if text.contains('*') {
        return Err(
            "`*` stands alone, or for what comes before the first dot, as in `*.example.com`".into()
        );
    }
    let host = Host::parse(text.trim_end_matches('.')).map_err(|_| format!("`{text}` is no host"))?;
    Ok(host)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allows(pattern: &str, url: &str) -> bool {
        let pattern: HttpPattern = pattern.parse().unwrap();
        pattern.allows(&Url::parse(url).unwrap())
    }

    #[test]
    fn what_a_pattern_means() {
        for (pattern, yes, no) in [
            (
                "api.example.com",
                &[
                    "http://api.example.com/",
                    "https://API.example.com./x?y",
                    "https://api.example.com:443/",
                ][..],
                &["http://example.com/", "http://x.api.example.com/", "http://api.example.com:8080/"][..],
            ),
            ("https://api.example.com", &["https://api.example.com/"], &["http://api.example.com/"]),
            ("a.example:8080", &["http://a.example:8080", "https://a.example:8080"], &["http://a.example"]),
            ("a.example:443", &["https://a.example"], &["http://a.example"]),
            ("http://a.example:80", &["http://a.example"], &["https://a.example"]),
            ("a.example:*", &["http://a.example:1", "https://a.example"], &["http://b.example:1"]),
            (
                "*.example.com",
                &["http://a.example.com", "http://a.b.example.com"],
                &[
                    "http://example.com",
                    "http://.example.com",
                    "http://badexample.com",
                    "http://example.com.evil.org",
                ],
            ),
            (
                "*:*",
                &["http://a.example:99", "http://10.0.0.1", "http://[fd00::1]:8"],
                &[
                    "http://localhost:99",
                    "http://x.localhost",
                    "http://127.0.0.1",
                    "http://[::1]",
                    "http://169.254.169.254",
                    "http://[::ffff:127.0.0.1]",
                    "http://0.0.0.0",
                    "http://[fe80::1]",
                    "http://2130706433/",
                    "http://0x7f.1/",
                ],
            ),
            (
                "localhost:3000",
                &["http://localhost:3000/x"],
                &["http://127.0.0.1:3000", "http://localhost"],
            ),
            (
                "127.0.0.1",
                &["http://127.0.0.1", "http://[::ffff:127.0.0.1]/", "http://127.1/"],
                &["http://127.0.0.2"],
            ),
            ("[::1]:80", &["http://[::1]"], &["http://[::2]"]),
            ("bücher.example", &["http://xn--bcher-kva.example/", "http://bücher.example"], &[]),
        ] {
            for url in yes {
                assert!(allows(pattern, url), "{pattern} means {url}");
            }
            for url in no {
                if let Ok(parsed) = Url::parse(url) {
                    assert!(
                        !pattern.parse::<HttpPattern>().unwrap().allows(&parsed),
                        "{pattern} does not mean {url}"
                    );
                }
            }
        }
        assert!(!allows("*:*", "ftp://a.example/"));
    }

    #[test]
    fn what_is_no_pattern() {
        for (pattern, reason) in [
            ("", "no host"),
            ("ftp://a", "neither"),
            ("a.example/path", "more than a host"),
            ("user@a.example", "more than a host"),
            ("a.example:0", "not a port"),
            ("a.example:99999", "not a port"),
            ("a.example:", "not a port"),
            ("a*.example", "stands alone"),
            ("*.*.example", "stands alone"),
            ("*.10.0.0.1", "below an address"),
            ("::1", "brackets"),
            ("[::1", "not closed"),
            ("[::1]x", "after `]`"),
            ("a b", "no host"),
        ] {
            let error = pattern.parse::<HttpPattern>().unwrap_err();
            assert!(error.contains(reason), "{pattern}: {error}");
        }
        for (target, reason) in [("plc", "no port"), ("*:502", "stands alone"), ("plc:*", "not a port")] {
            let error = target.parse::<TcpTarget>().unwrap_err();
            assert!(error.contains(reason), "{target}: {error}");
        }
        assert_eq!("PLC.local:502".parse::<TcpTarget>().unwrap().to_string(), "plc.local:502");
        assert_eq!("[fd00::1]:502".parse::<TcpTarget>().unwrap().to_string(), "[fd00::1]:502");
    }
}
