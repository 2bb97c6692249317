//! On whose behalf requests are sent, and where they may go.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, OnceLock};

use edgefaas_manifest::{AddressKind, HttpPattern, address_of, may_lead_to};
use url::{Host, Url};

use super::connector::Connections;
use super::own_addresses::is_own;

/// A function, a workflow or a part of the node that sends requests, with its connections: no other uses them, so that what
/// one may reach is not open to another.
pub struct Caller {
    pub(super) reach: Arc<Reach>,
    // Made at the first request.
    pub(super) connections: OnceLock<Connections>,
}

/// Where a caller's requests may go.
pub(super) struct Reach {
    /// Whose share of the pools it has, as errors name it: "function `f`".
    pub owner: Arc<str>,
    /// `permissions.http`.
    pub http: Arc<[HttpPattern]>,
}

impl Caller {
    /// `owner` is the name in errors and the key of its shares: "function `f`". `http` is what it may reach.
    pub fn new(owner: impl Into<Arc<str>>, http: Arc<[HttpPattern]>) -> Self {
        let reach = Arc::new(Reach { owner: owner.into(), http });
        Self { reach, connections: OnceLock::new() }
    }

    /// Whose share of the pools it has.
    pub fn owner(&self) -> &Arc<str> {
        &self.reach.owner
    }
}

/// A permitted name or `*` that leads to an address it must not lead to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Guarded {
    /// The address.
    pub address: IpAddr,
    /// The patterns that would permit it.
    write: String,
}

impl fmt::Display for Guarded {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, write } = self;
        match AddressKind::of(*address) {
            // Only then is a public address guarded.
            AddressKind::Public => write!(out, "{address} is an address of this machine")?,
            kind => write!(out, "{address} is {kind}")?,
        }
        write!(out, ", which must be named: add {write}")
    }
}

/// Why a URL may not be asked for.
pub(super) enum NotPermitted {
    /// No pattern is for it.
    NotNamed,
    /// Only `*` is for it, which does not cover its address.
    Guarded(Guarded),
}

impl Reach {
    /// Whether a request to this URL may be sent. The address that a name leads to is checked when it is known, by
    /// [`addresses`](Self::addresses).
    pub fn check(&self, url: &Url) -> Result<(), NotPermitted> {
        let address = url.host().and_then(|host| address_of(&host));
        let allowed = self.http.iter().any(|pattern| pattern.allows(url));
        let Some(address) = address else {
            return if allowed { Ok(()) } else { Err(NotPermitted::NotNamed) };
        };
        let named = || self.names(url, address);
        match allowed {
            true if AddressKind::of(address) != AddressKind::Public || named() || !is_own(address) => {
                Ok(())
            }
            false if !self.http.iter().any(|pattern| pattern.allows_if_public(url)) => {
                Err(NotPermitted::NotNamed)
            }
            _ => Err(NotPermitted::Guarded(Guarded { address, write: pattern(&host(address), url) })),
        }
    }

    /// Those of the addresses of `url`'s name that it may lead to.
    pub fn addresses(
        &self,
        url: &Url,
        name: &str,
        found: Vec<SocketAddr>,
    ) -> Result<Vec<SocketAddr>, Guarded> {
        let is_named = self.http.iter().any(|pattern| pattern.names_host(url));
        let may = |address: &SocketAddr| {
            may_lead_to(name, is_named, address.ip(), is_own) || self.names(url, address.ip())
        };
        let (open, guarded): (Vec<_>, Vec<_>) = found.into_iter().partition(may);
        match guarded.first() {
            Some(first) if open.is_empty() => {
                let address = first.ip().to_canonical();
                let mut write = pattern(&host(address), url);
                if !is_named && may_lead_to(name, true, address, is_own) {
                    write = format!("{} or {write}", pattern(&Host::Domain(name), url));
                }
                Err(Guarded { address, write })
            }
            _ => Ok(open),
        }
    }

    fn names(&self, url: &Url, address: IpAddr) -> bool {
        self.http.iter().any(|pattern| pattern.names_address(url, address))
    }
}

fn host(address: IpAddr) -> Host<&'static str> {
    match address {
        IpAddr::V4(address) => Host::Ipv4(address),
        IpAddr::V6(address) => Host::Ipv6(address),
    }
}

/// The narrowest pattern for a host of this URL, as it is written.
fn pattern(host: &Host<&str>, url: &Url) -> String {
    match url.port() {
        Some(port) => format!("`{host}:{port}`"),
        None => format!("`{host}`"),
    }
}

/// Those of the addresses of a name in `permissions.tcp` that it may lead to.
pub(super) fn tcp_addresses(
    name: &str,
    found: Vec<SocketAddr>,
    names_address: impl Fn(SocketAddr) -> bool,
) -> Result<Vec<SocketAddr>, Guarded> {
    let may =
        |address: &SocketAddr| may_lead_to(name, true, address.ip(), is_own) || names_address(*address);
    let (open, guarded): (Vec<_>, Vec<_>) = found.into_iter().partition(may);
    match guarded.first() {
        Some(first) if open.is_empty() => {
            let address = first.ip().to_canonical();
            Err(Guarded { address, write: format!("`{}`", SocketAddr::new(address, first.port())) })
        }
        _ => Ok(open),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reach(patterns: &[&str]) -> Reach {
        let http = patterns.iter().map(|pattern| pattern.parse().unwrap()).collect();
        Reach { owner: "function `f`".into(), http }
    }

    fn led(patterns: &[&str], url: &str, addresses: &[&str]) -> Result<Vec<String>, String> {
        let url = Url::parse(url).unwrap();
        let found = addresses.iter().map(|address| SocketAddr::new(address.parse().unwrap(), 80)).collect();
        let name = url.host_str().unwrap().to_owned();
        let open = reach(patterns).addresses(&url, &name, found).map_err(|guarded| guarded.to_string())?;
        Ok(open.into_iter().map(|address| address.ip().to_string()).collect())
    }

    fn refusal(patterns: &[&str], url: &str) -> String {
        match reach(patterns).check(&Url::parse(url).unwrap()) {
            Ok(()) => "permitted".to_owned(),
            Err(NotPermitted::NotNamed) => "not named".to_owned(),
            Err(NotPermitted::Guarded(guarded)) => guarded.to_string(),
        }
    }

    #[test]
    fn a_refusal_says_what_to_write() {
        assert_eq!(refusal(&["*"], "http://1.1.1.1/"), "permitted");
        assert_eq!(refusal(&["*"], "http://1.1.1.1:81/"), "not named");
        assert_eq!(refusal(&["a.example"], "http://10.0.0.1/"), "not named");
        assert_eq!(refusal(&["*", "10.0.0.0/8"], "http://10.0.0.1/"), "permitted");
        assert_eq!(
            refusal(&["*:*"], "http://10.0.0.1:81/"),
            "10.0.0.1 is an address of a private network, which must be named: add `10.0.0.1:81`"
        );
        assert_eq!(
            refusal(&["*"], "http://[fe80::1]/"),
            "fe80::1 is a link-local or multicast address, which must be named: add `[fe80::1]`"
        );
    }

    #[test]
    fn a_name_leads_to_what_is_named() {
        let (private, metadata) = ("10.0.0.1", "169.254.169.254");
        assert_eq!(led(&["*"], "http://a.example/", &["1.1.1.1", private]).unwrap(), ["1.1.1.1"]);
        assert_eq!(led(&["plc.local"], "http://plc.local/", &[private]).unwrap(), [private]);
        assert_eq!(led(&["*", "10.0.0.0/8"], "http://a.example/", &[private]).unwrap(), [private]);
        assert_eq!(
            led(&["a.example", "169.254.0.0/16"], "http://a.example/", &[metadata]).unwrap(),
            [metadata]
        );
        // A name that is permitted for one port is not for another.
        let patterns = ["*:*", "plc.local:80", "10.0.0.1:80"];
        assert!(
            led(&patterns, "http://plc.local:81/", &[private])
                .unwrap_err()
                .ends_with("`plc.local:81` or `10.0.0.1:81`")
        );
        assert_eq!(
            led(&["*.example"], "http://a.example/", &[private]).unwrap_err(),
            "10.0.0.1 is an address of a private network, which must be named: add `a.example` or `10.0.0.1`"
        );
        assert!(
            led(&["a.example"], "http://a.example/", &[metadata])
                .unwrap_err()
                .ends_with("add `169.254.169.254`")
        );
        assert!(
            led(&["a.example"], "http://a.example/", &["127.0.0.1"])
                .unwrap_err()
                .ends_with("add `127.0.0.1`")
        );
        assert!(led(&["*"], "http://a.example/", &["::ffff:10.0.0.1"]).is_err());
    }
}
