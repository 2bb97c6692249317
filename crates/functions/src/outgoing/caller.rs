//! Callers: the owners of outgoing requests, with their permissions and connections.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, OnceLock};

use edgefaas_manifest::{AddressKind, HttpPattern, address_of, may_lead_to};
use url::{Host, Url};

use super::MAX_RESPONSE_BYTES;
use super::connector::Connections;
use super::own_addresses::is_own;

/// A function, a workflow or a part of the node that sends requests. Callers do not share connections, because they have
/// different permissions.
pub struct Caller {
    pub(super) permissions: Arc<CallerPermissions>,
    /// Limit of each answer's body.
    pub(super) response_limit: ResponseLimit,
    // Created at the first request.
    pub(super) connections: OnceLock<Connections>,
}

/// Maximum size of the body of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResponseLimit {
    /// [`MAX_RESPONSE_BYTES`], which no manifest changes.
    Fixed,
    /// `limits.response` of a function, in bytes.
    OfFunction {
        /// The limit, in bytes.
        bytes: u64,
    },
}

impl ResponseLimit {
    /// The limit, in bytes.
    pub fn bytes(self) -> u64 {
        match self {
            Self::Fixed => MAX_RESPONSE_BYTES,
            Self::OfFunction { bytes } => bytes,
        }
    }

    /// The end of an error.
    pub(super) fn remedy(self) -> &'static str {
        match self {
            Self::Fixed => "",
            Self::OfFunction { .. } => "; raise limits.response in the manifest",
        }
    }
}

/// The permissions of a caller for outgoing requests.
pub(super) struct CallerPermissions {
    /// The owner of its shares in the pools, as errors name it: "function `f`".
    pub owner: Arc<str>,
    /// `permissions.http`.
    pub http: Arc<[HttpPattern]>,
}

impl Caller {
    /// `owner` is its name in errors and the owner of its shares in the pools: "function `f`". `http` are the patterns of
    /// permitted servers.
    pub fn new(
        owner: impl Into<Arc<str>>,
        http: Arc<[HttpPattern]>,
        response_limit: ResponseLimit,
    ) -> Self {
        let permissions = Arc::new(CallerPermissions { owner: owner.into(), http });
        Self { permissions, response_limit, connections: OnceLock::new() }
    }

    /// The owner of its shares in the pools.
    pub fn owner(&self) -> &Arc<str> {
        &self.permissions.owner
    }
}

/// An address that a permitted name or `*` does not cover: private, link-local, or of this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuardedAddress {
    /// The address.
    pub address: IpAddr,
    /// The patterns that would permit it, as text.
    patterns: String,
}

impl fmt::Display for GuardedAddress {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, patterns } = self;
        match AddressKind::of(*address) {
            // A public address is guarded only if it belongs to this machine.
            AddressKind::Public => write!(out, "{address} is an address of this machine")?,
            kind => write!(out, "{address} is {kind}")?,
        }
        write!(out, ", which must be named: add {patterns}")
    }
}

/// Reasons why a request to a URL is not permitted.
pub(super) enum NotPermitted {
    /// No pattern matches the URL.
    NotNamed,
    /// Only `*` matches the URL, which does not cover its address.
    Guarded(GuardedAddress),
}

impl CallerPermissions {
    /// Checks that a request to this URL is permitted. If the URL has a name, [`addresses`](Self::addresses) checks its
    /// addresses after the lookup.
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
            _ => Err(NotPermitted::Guarded(GuardedAddress {
                address,
                patterns: pattern(&host(address), url),
            })),
        }
    }

    /// The permitted ones of the addresses of `name`, the host of `url`.
    ///
    /// # Errors
    /// No address is permitted.
    pub fn addresses(
        &self,
        url: &Url,
        name: &str,
        found: Vec<SocketAddr>,
    ) -> Result<Vec<SocketAddr>, GuardedAddress> {
        let is_named = self.http.iter().any(|pattern| pattern.names_host(url));
        let may = |address: &SocketAddr| {
            may_lead_to(name, is_named, address.ip(), is_own) || self.names(url, address.ip())
        };
        let (permitted, guarded): (Vec<_>, Vec<_>) = found.into_iter().partition(may);
        match guarded.first() {
            Some(first) if permitted.is_empty() => {
                let address = first.ip().to_canonical();
                let mut patterns = pattern(&host(address), url);
                if !is_named && may_lead_to(name, true, address, is_own) {
                    patterns = format!("{} or {patterns}", pattern(&Host::Domain(name), url));
                }
                Err(GuardedAddress { address, patterns })
            }
            _ => Ok(permitted),
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

/// The narrowest pattern for a host of this URL, as text.
fn pattern(host: &Host<&str>, url: &Url) -> String {
    match url.port() {
        Some(port) => format!("`{host}:{port}`"),
        None => format!("`{host}`"),
    }
}

/// The permitted ones of the addresses of a name in `permissions.tcp`. `names_address` is true for an address that
/// `permissions.tcp` names.
///
/// # Errors
/// No address is permitted.
pub(super) fn tcp_addresses(
    name: &str,
    found: Vec<SocketAddr>,
    names_address: impl Fn(SocketAddr) -> bool,
) -> Result<Vec<SocketAddr>, GuardedAddress> {
    let may =
        |address: &SocketAddr| may_lead_to(name, true, address.ip(), is_own) || names_address(*address);
    let (permitted, guarded): (Vec<_>, Vec<_>) = found.into_iter().partition(may);
    match guarded.first() {
        Some(first) if permitted.is_empty() => {
            let address = first.ip().to_canonical();
            Err(GuardedAddress {
                address,
                patterns: format!("`{}`", SocketAddr::new(address, first.port())),
            })
        }
        _ => Ok(permitted),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn permissions(patterns: &[&str]) -> CallerPermissions {
        let http = patterns.iter().map(|pattern| pattern.parse().unwrap()).collect();
        CallerPermissions { owner: "function `f`".into(), http }
    }

    fn permitted_addresses(
        patterns: &[&str],
        url: &str,
        addresses: &[&str],
    ) -> Result<Vec<String>, String> {
        let url = Url::parse(url).unwrap();
        let found = addresses.iter().map(|address| SocketAddr::new(address.parse().unwrap(), 80)).collect();
        let name = url.host_str().unwrap().to_owned();
        let permitted =
            permissions(patterns).addresses(&url, &name, found).map_err(|guarded| guarded.to_string())?;
        Ok(permitted.into_iter().map(|address| address.ip().to_string()).collect())
    }

    fn refusal(patterns: &[&str], url: &str) -> String {
        match permissions(patterns).check(&Url::parse(url).unwrap()) {
            Ok(()) => "permitted".to_owned(),
            Err(NotPermitted::NotNamed) => "not named".to_owned(),
            Err(NotPermitted::Guarded(guarded)) => guarded.to_string(),
        }
    }

    #[test]
    fn a_refusal_says_which_pattern_to_add() {
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
    fn a_name_covers_only_permitted_addresses() {
        let (private, metadata) = ("10.0.0.1", "169.254.169.254");
        assert_eq!(
            permitted_addresses(&["*"], "http://a.example/", &["1.1.1.1", private]).unwrap(),
            ["1.1.1.1"]
        );
        assert_eq!(
            permitted_addresses(&["plc.local"], "http://plc.local/", &[private]).unwrap(),
            [private]
        );
        assert_eq!(
            permitted_addresses(&["*", "10.0.0.0/8"], "http://a.example/", &[private]).unwrap(),
            [private]
        );
        assert_eq!(
            permitted_addresses(&["a.example", "169.254.0.0/16"], "http://a.example/", &[metadata])
                .unwrap(),
            [metadata]
        );
        // A name that is permitted for one port is not permitted for another.
        let patterns = ["*:*", "plc.local:80", "10.0.0.1:80"];
        assert!(
            permitted_addresses(&patterns, "http://plc.local:81/", &[private])
                .unwrap_err()
                .ends_with("`plc.local:81` or `10.0.0.1:81`")
        );
        assert_eq!(
            permitted_addresses(&["*.example"], "http://a.example/", &[private]).unwrap_err(),
            "10.0.0.1 is an address of a private network, which must be named: add `a.example` or `10.0.0.1`"
        );
        assert!(
            permitted_addresses(&["a.example"], "http://a.example/", &[metadata])
                .unwrap_err()
                .ends_with("add `169.254.169.254`")
        );
        assert!(
            permitted_addresses(&["a.example"], "http://a.example/", &["127.0.0.1"])
                .unwrap_err()
                .ends_with("add `127.0.0.1`")
        );
        assert!(permitted_addresses(&["*"], "http://a.example/", &["::ffff:10.0.0.1"]).is_err());
    }
}
