//! Servers that a function may connect to: patterns of `permissions.http` and `permissions.tcp`.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use ipnet::IpNet;
use url::{Host, Url};

use super::addresses::AddressKind;

/// A server, or several, that a function may send HTTP requests to: `[SCHEME://]HOST[:PORT]`.
///
/// `HOST` is a name, an address, a network (`192.168.1.0/24`), `*.NAME` for all names below it, or `*` for all. Without a
/// port the pattern covers those of http (80) and https (443), with `:*` every port. Patterns with `*` cover public addresses only:
/// others must be named, by a name, an address or a network.
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
    /// A network, or a single address as a network.
    Network(IpNet),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Port {
    Default,
    One(u16),
    Any,
}

impl HttpPattern {
    /// Whether the pattern allows a request to this URL; never with another scheme than http and https. A name that only `*`
    /// allows must resolve to a public address: see [`names_host`](Self::names_host).
    pub fn allows(&self, url: &Url) -> bool {
        self.allows_port(url) && url.host().is_some_and(|host| self.host.allows(&host))
    }

    /// Whether the pattern has the host name of this URL without `*`.
    pub fn names_host(&self, url: &Url) -> bool {
        matches!(self.host, HostPattern::Name(_)) && self.allows(url)
    }

    /// Whether the pattern has this address, or a network with it, for the URL's scheme and port.
    pub fn names_address(&self, url: &Url, address: IpAddr) -> bool {
        match &self.host {
            HostPattern::Network(network) => {
                self.allows_port(url) && network.contains(&address.to_canonical())
            }
            _ => false,
        }
    }

    /// Whether the pattern would allow this URL if its host were a public address.
    pub fn allows_if_public(&self, url: &Url) -> bool {
        self.host == HostPattern::Any && self.allows_port(url)
    }

    fn allows_port(&self, url: &Url) -> bool {
        let scheme = match url.scheme() {
            "http" => Scheme::Http,
            "https" => Scheme::Https,
            _ => return false,
        };
        let port = match self.port {
            Port::Any => true,
            // `Url` drops the default port of its scheme.
            Port::Default => url.port().is_none(),
            Port::One(port) => url.port_or_known_default() == Some(port),
        };
        port && self.scheme.is_none_or(|required| required == scheme)
    }
}

impl HostPattern {
    fn allows(&self, host: &Host<&str>) -> bool {
        let address = address_of(host);
        let name = match host {
            Host::Domain(name) => name.trim_end_matches('.'),
            _ => "",
        };
        match self {
            Self::Network(network) => address.is_some_and(|address| network.contains(&address)),
            Self::Name(own) => !name.is_empty() && name == own,
            Self::Below(suffix) => {
                let below = name.strip_suffix(suffix.as_str()).and_then(|head| head.strip_suffix('.'));
                below.is_some_and(|head| !head.is_empty())
            }
            Self::Any => match address {
                Some(address) => AddressKind::of(address) == AddressKind::Public,
                None => !is_local_name(name),
            },
        }
    }
}

/// The address of a URL's host; `None` for a name.
pub fn address_of(host: &Host<&str>) -> Option<IpAddr> {
    match host {
        Host::Domain(_) => None,
        Host::Ipv4(address) => Some(IpAddr::V4(*address)),
        Host::Ipv6(address) => Some(IpAddr::V6(*address).to_canonical()),
    }
}

/// Whether a name means this machine (RFC 6761, section 6.3).
pub fn is_local_name(name: &str) -> bool {
    let name = name.trim_end_matches('.');
    name == "localhost" || name.ends_with(".localhost")
}

/// Whether a permitted name may resolve to an address. `is_named`: the permission has the name without `*`. `is_own`: the
/// address belongs to this machine.
///
/// A name never leads to a loopback or link-local address, except `localhost`: the owner of a name chooses its addresses, and
/// services at these addresses trust this machine.
pub fn may_lead_to(
    name: &str,
    is_named: bool,
    address: IpAddr,
    is_own: impl FnOnce(IpAddr) -> bool,
) -> bool {
    match AddressKind::of(address) {
        AddressKind::Loopback => is_local_name(name),
        _ if is_local_name(name) => false,
        AddressKind::Link => false,
        AddressKind::Private => is_named,
        AddressKind::Public => is_named || !is_own(address),
    }
}

/// A text is not a valid [`HttpPattern`] or [`TcpTarget`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HostError {
    #[error("`{found}` is neither `http` nor `https`")]
    Scheme { found: String },
    #[error(
        "it names more than a host; write `api.example.com`, `https://api.example.com:8443` or `192.168.1.0/24`"
    )]
    MoreThanHost,
    #[error("`{found}` is not a host")]
    NoHost { found: String },
    #[error("`*` stands alone, or for what comes before the first dot, as in `*.example.com`")]
    Star,
    #[error("there is nothing below an address")]
    BelowAddress,
    #[error("it has no port; write `HOST:PORT`")]
    NoPort,
    #[error("`{found}` is not a port from 1 to 65535")]
    Port { found: String },
    #[error("write an IPv6 address in brackets, as in `[fd00::1]:80`")]
    NoBrackets,
    #[error("its `[` is not closed")]
    OpenBracket,
    #[error("after `]` comes `:PORT` or nothing")]
    AfterBracket,
    #[error("after the network comes `:PORT` or nothing")]
    AfterNetwork,
    #[error("`{address}/{prefix}` is not a network")]
    NoNetwork { address: IpAddr, prefix: String },
    #[error("`{network}` has more than a network; write `{}`", .network.trunc())]
    HostBits { network: IpNet },
    #[error(
        "`{network}` is too large a network: its prefix must be at least {min_prefix}; `*` stands for all public addresses"
    )]
    TooLarge { network: IpNet, min_prefix: u8 },
}

impl FromStr for HttpPattern {
    type Err = HostError;

    fn from_str(text: &str) -> Result<Self, HostError> {
        let (scheme, rest) = match text.split_once("://") {
            Some(("http", rest)) => (Some(Scheme::Http), rest),
            Some(("https", rest)) => (Some(Scheme::Https), rest),
            Some((other, _)) => return Err(HostError::Scheme { found: other.to_owned() }),
            None => (None, text),
        };
        let (host, port) = match Network::split(rest) {
            Some(network) => {
                let Network { network, port } = network?;
                (HostPattern::Network(network), port)
            }
            None if rest.contains(['/', '?', '#', '@']) => {
                return Err(HostError::MoreThanHost);
            }
            None => {
                let (host, port) = split_port(rest)?;
                (HostPattern::parse(host)?, port)
            }
        };
        let port = match port {
            None => Port::Default,
            Some("*") => Port::Any,
            Some(port) => match port_number(port)? {
                80 if scheme == Some(Scheme::Http) => Port::Default,
                443 if scheme == Some(Scheme::Https) => Port::Default,
                port => Port::One(port),
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

impl HostPattern {
    fn parse(text: &str) -> Result<Self, HostError> {
        if text == "*" {
            return Ok(Self::Any);
        }
        match text.strip_prefix("*.") {
            Some(suffix) => match parse_host(suffix)? {
                Host::Domain(name) => Ok(Self::Below(name)),
                _ => Err(HostError::BelowAddress),
            },
            None => match parse_host(text)? {
                Host::Domain(name) => Ok(Self::Name(name)),
                Host::Ipv4(address) => Ok(Self::Network(IpAddr::V4(address).into())),
                Host::Ipv6(address) => Ok(Self::Network(IpAddr::V6(address).to_canonical().into())),
            },
        }
    }
}

/// Servers that a function may open TCP connections to: `HOST:PORT`, where `HOST` is a name, an address or a network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TcpTarget {
    /// The servers.
    pub host: TcpHost,
    /// Their port.
    pub port: u16,
}

/// The servers of a [`TcpTarget`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TcpHost {
    /// A name in lower case.
    Name(String),
    /// A network, or a single address as a network.
    Network(IpNet),
}

impl TcpTarget {
    /// Whether it has this address, or a network with it.
    pub fn names_address(&self, address: SocketAddr) -> bool {
        let TcpHost::Network(network) = &self.host else { return false };
        self.port == address.port() && network.contains(&address.ip().to_canonical())
    }
}

impl FromStr for TcpTarget {
    type Err = HostError;

    fn from_str(text: &str) -> Result<Self, HostError> {
        let no_port = HostError::NoPort;
        if let Some(network) = Network::split(text) {
            let Network { network, port } = network?;
            return Ok(Self { host: TcpHost::Network(network), port: port_number(port.ok_or(no_port)?)? });
        }
        let (host, port) = split_port(text)?;
        let port = port.ok_or(no_port)?;
        let host = match parse_host(host)? {
            Host::Domain(name) => TcpHost::Name(name),
            Host::Ipv4(address) => TcpHost::Network(IpAddr::V4(address).into()),
            Host::Ipv6(address) => TcpHost::Network(IpAddr::V6(address).to_canonical().into()),
        };
        Ok(Self { host, port: port_number(port)? })
    }
}

impl fmt::Display for TcpTarget {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            TcpHost::Name(name) => out.write_str(name)?,
            TcpHost::Network(network) => {
                let single = network.prefix_len() == network.max_prefix_len();
                match (network.addr(), single) {
                    (IpAddr::V4(address), true) => write!(out, "{address}")?,
                    (IpAddr::V6(address), true) => write!(out, "[{address}]")?,
                    (IpAddr::V4(_), false) => write!(out, "{network}")?,
                    (IpAddr::V6(_), false) => write!(out, "[{network}]")?,
                }
            }
        }
        write!(out, ":{}", self.port)
    }
}

/// The largest networks that a pattern may name: the largest private ones. `*` is for the internet.
const MIN_PREFIX_V4: u8 = 8;
const MIN_PREFIX_V6: u8 = 7;

/// `NETWORK/PREFIX[:PORT]`, where an IPv6 network stands in brackets if there is a port.
struct Network<'a> {
    network: IpNet,
    port: Option<&'a str>,
}

impl<'a> Network<'a> {
    /// `None` if the text has no address before a `/`.
    fn split(text: &'a str) -> Option<Result<Self, HostError>> {
        let (address, rest) = text.split_once('/')?;
        let (address, brackets) = match address.strip_prefix('[') {
            Some(address) => (address, true),
            None => (address, false),
        };
        let address: IpAddr = address.parse().ok()?;
        Some(Self::parse(address, rest, brackets))
    }

    fn parse(address: IpAddr, rest: &'a str, brackets: bool) -> Result<Self, HostError> {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let (prefix, rest) = rest.split_at(digits);
        let rest = match brackets {
            true => rest.strip_prefix(']').ok_or(HostError::OpenBracket)?,
            false => rest,
        };
        let port = match rest.strip_prefix(':') {
            Some(port) => Some(port),
            None if rest.is_empty() => None,
            None => return Err(HostError::AfterNetwork),
        };
        let network = prefix.parse().ok().and_then(|prefix| IpNet::new(address, prefix).ok());
        let network = network.ok_or_else(|| HostError::NoNetwork { address, prefix: prefix.to_owned() })?;
        if network.trunc() != network {
            return Err(HostError::HostBits { network });
        }
        let min_prefix = if address.is_ipv4() { MIN_PREFIX_V4 } else { MIN_PREFIX_V6 };
        if network.prefix_len() < min_prefix {
            return Err(HostError::TooLarge { network, min_prefix });
        }
        Ok(Self { network, port })
    }
}

/// Host and port; an IPv6 address stands in brackets.
fn split_port(text: &str) -> Result<(&str, Option<&str>), HostError> {
    if let Some(inside) = text.strip_prefix('[') {
        let (_, rest) = inside.split_once(']').ok_or(HostError::OpenBracket)?;
        let host = &text[..text.len() - rest.len()];
        return match rest.strip_prefix(':') {
            Some(port) => Ok((host, Some(port))),
            None if rest.is_empty() => Ok((host, None)),
            None => Err(HostError::AfterBracket),
        };
    }
    match text.split_once(':') {
        Some((_, port)) if port.contains(':') => Err(HostError::NoBrackets),
        Some((host, port)) => Ok((host, Some(port))),
        None => Ok((text, None)),
    }
}

fn port_number(text: &str) -> Result<u16, HostError> {
    match text.parse() {
        Ok(port) if port > 0 => Ok(port),
        _ => Err(HostError::Port { found: text.to_owned() }),
    }
}

fn parse_host(text: &str) -> Result<Host<String>, HostError> {
    if text.contains('*') {
        return Err(HostError::Star);
    }
    Host::parse(text.trim_end_matches('.')).map_err(|_| HostError::NoHost { found: text.to_owned() })
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
                &["http://a.example:99", "http://1.1.1.1", "http://[2606:4700::1]:8"],
                &[
                    "http://10.0.0.1",
                    "http://192.168.1.1:8",
                    "http://100.64.0.1",
                    "http://[fd00::1]:8",
                    "http://[64:ff9b::10.0.0.1]",
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
            (
                "192.168.1.0/24",
                &["http://192.168.1.7", "https://192.168.1.255", "http://[::ffff:192.168.1.7]"],
                &["http://192.168.2.1", "http://192.168.1.7:8080", "http://plc.local", "http://1.1.1.1"],
            ),
            (
                "http://10.0.0.0/8:8080",
                &["http://10.9.9.9:8080"],
                &["https://10.9.9.9:8080", "http://10.9.9.9"],
            ),
            ("[fd00::/8]:*", &["http://[fd12::1]:99"], &["http://[fe80::1]"]),
            ("fd00::/8", &["http://[fd12::1]"], &["http://[fd12::1]:99"]),
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
            ("", "not a host"),
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
            ("a b", "not a host"),
            ("10.0.0.1/8", "write `10.0.0.0/8`"),
            ("10.0.0.0/33", "not a network"),
            ("10.0.0.0/", "not a network"),
            ("10.0.0.0/8/x", "`:PORT` or nothing"),
            ("0.0.0.0/0", "at least 8"),
            ("::/0", "at least 7"),
            ("[fd00::/8:80", "not closed"),
        ] {
            let error = pattern.parse::<HttpPattern>().unwrap_err();
            assert!(error.to_string().contains(reason), "{pattern}: {error}");
        }
        for (target, reason) in [
            ("plc", "no port"),
            ("*:502", "stands alone"),
            ("plc:*", "not a port"),
            ("10.0.0.0/8", "no port"),
        ] {
            let error = target.parse::<TcpTarget>().unwrap_err();
            assert!(error.to_string().contains(reason), "{target}: {error}");
        }
        assert_eq!("PLC.local:502".parse::<TcpTarget>().unwrap().to_string(), "plc.local:502");
        for text in ["[fd00::1]:502", "10.0.0.1:502", "10.0.0.0/8:502", "[fd00::/8]:502"] {
            assert_eq!(text.parse::<TcpTarget>().unwrap().to_string(), text);
        }
        let network: TcpTarget = "10.0.0.0/8:502".parse().unwrap();
        assert!(network.names_address("10.1.2.3:502".parse().unwrap()));
        assert!(network.names_address("[::ffff:10.1.2.3]:502".parse().unwrap()));
        assert!(!network.names_address("10.1.2.3:503".parse().unwrap()));
    }

    #[test]
    fn where_a_name_may_lead() {
        let may = |name: &str, is_named: bool, address: &str| {
            may_lead_to(name, is_named, address.parse().unwrap(), |own| own == IpAddr::from([1, 2, 3, 4]))
        };
        for (address, named, by_pattern) in [
            ("1.1.1.1", true, true),
            ("10.0.0.1", true, false),
            ("fd00::1", true, false),
            // The machine's own.
            ("1.2.3.4", true, false),
            ("169.254.169.254", false, false),
            ("127.0.0.1", false, false),
            ("::1", false, false),
        ] {
            assert_eq!(may("plc.local", true, address), named, "{address}");
            assert_eq!(may("a.example.com", false, address), by_pattern, "{address}");
        }
        assert!(may("localhost", true, "127.0.0.1") && may("x.localhost", false, "::1"));
        assert!(!may("localhost", true, "10.0.0.1") && !may("localhost", true, "1.1.1.1"));
    }
}
