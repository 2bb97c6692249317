//! `[[bridges]]` in the node's configuration.

use std::collections::HashSet;
use std::path::PathBuf;
use std::time::Duration;

use edgefaas_broker::{QoS, TopicFilter};
use serde::{Deserialize, Serialize};

/// `[[bridges]]`: one connection to another broker.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct BridgeSection {
    /// Name in logs, metrics and `edgefaas status`.
    pub name: String,
    /// `mqtt://HOST[:PORT]`, or `mqtts://HOST[:PORT]` for TLS.
    pub url: String,
    /// Trusted certificates (PEM) that verify the other broker's; required for `mqtts://`.
    pub ca: Option<PathBuf>,
    /// The node's client certificate (PEM) for the other broker.
    pub cert: Option<PathBuf>,
    /// The key of that certificate (PEM).
    pub key: Option<PathBuf>,
    /// User name at the other broker.
    pub username: Option<String>,
    /// The file with the password; a trailing line break is ignored.
    pub password_file: Option<PathBuf>,
    /// Client identifier at the other broker; by default made of the node's id and the bridge's name.
    pub client_id: Option<String>,
    /// Interval of PINGREQ. The bridge disconnects if nothing arrives between two of them. A Server Keep Alive of the other broker
    /// replaces this value.
    #[serde(with = "humantime_serde", default = "default_keepalive")]
    pub keepalive: Duration,
    /// The version of the protocol.
    #[serde(default)]
    pub version: BridgeVersion,
    /// Relayed topics.
    pub topics: Vec<TopicSection>,
}

/// The version of the protocol that a bridge speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize)]
pub enum BridgeVersion {
    /// MQTT 3.1.1.
    #[serde(rename = "3.1.1")]
    V311,
    /// MQTT 5.
    #[default]
    #[serde(rename = "5")]
    V5,
}

/// An entry of `topics` of a bridge.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct TopicSection {
    /// Topic filter, without the prefixes.
    pub filter: String,
    /// Direction of the messages.
    pub direction: Direction,
    /// The highest quality of service.
    #[serde(default)]
    pub qos: BridgeQoS,
    /// Prefix of these topics on this node.
    #[serde(default)]
    pub local_prefix: String,
    /// Prefix of these topics on the other broker.
    #[serde(default)]
    pub remote_prefix: String,
}

/// Direction of messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// From the other broker to this node.
    In,
    /// From this node to the other broker.
    Out,
    /// Both directions.
    Both,
}

/// 0, 1 or 2; 1 if it is not set.
#[derive(Debug, Clone, Copy, Deserialize, Serialize)]
#[serde(try_from = "u8", into = "u8")]
pub struct BridgeQoS(pub QoS);

impl From<BridgeQoS> for u8 {
    fn from(qos: BridgeQoS) -> Self {
        qos.0 as u8
    }
}

impl Default for BridgeQoS {
    fn default() -> Self {
        Self(QoS::AtLeastOnce)
    }
}

impl TryFrom<u8> for BridgeQoS {
    type Error = String;

    fn try_from(number: u8) -> Result<Self, String> {
        match number {
            0 => Ok(Self(QoS::AtMostOnce)),
            1 => Ok(Self(QoS::AtLeastOnce)),
            2 => Ok(Self(QoS::ExactlyOnce)),
            _ => Err(format!("qos is 0, 1 or 2, not {number}")),
        }
    }
}

fn default_keepalive() -> Duration {
    Duration::from_secs(60)
}

impl Direction {
    /// True if messages go from the other broker to this node.
    pub fn is_in(self) -> bool {
        self != Direction::Out
    }

    /// True if messages go from this node to the other broker.
    pub fn is_out(self) -> bool {
        self != Direction::In
    }
}

impl TopicSection {
    /// The filter with the prefix of this node.
    pub fn local_filter(&self) -> String {
        format!("{}{}", self.local_prefix, self.filter)
    }

    /// The filter with the prefix of the other broker.
    pub fn remote_filter(&self) -> String {
        format!("{}{}", self.remote_prefix, self.filter)
    }
}

/// Settings of a bridge are invalid.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("bridge `{bridge}`: {problem}")]
pub struct BridgeConfigError {
    /// Name of the bridge.
    pub bridge: String,
    /// The problem, and a valid setting.
    pub problem: String,
}

/// Address of the other broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remote {
    /// Host name or address, an IPv6 address without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
    /// True for TLS.
    pub tls: bool,
}

impl BridgeSection {
    /// Address of the other broker.
    ///
    /// # Errors
    /// The URL is not a valid URL of a broker.
    pub fn remote(&self) -> Result<Remote, BridgeConfigError> {
        let invalid = |problem: String| BridgeConfigError { bridge: self.name.clone(), problem };
        let invalid_url =
            || invalid(format!("url = {:?} is not mqtt://HOST:PORT or mqtts://HOST:PORT", self.url));
        let uri: http::Uri = self.url.parse().map_err(|_| invalid_url())?;
        let (tls, default_port) = match uri.scheme_str() {
            Some("mqtt") => (false, 1883),
            Some("mqtts") => (true, 8883),
            _ => return Err(invalid_url()),
        };
        let authority = uri.authority().ok_or_else(invalid_url)?;
        if authority.as_str().contains('@') {
            return Err(invalid("the URL contains a user name: use `username` and `password_file`".into()));
        }
        if uri.path_and_query().is_some_and(|path| path != "/") {
            return Err(invalid_url());
        }
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        Ok(Remote { host, port: authority.port_u16().unwrap_or(default_port), tls })
    }

    /// Validates the settings of this bridge; the error is the problem.
    fn validate(&self) -> Result<(), String> {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
        if self.name.is_empty() || self.name.len() > 63 || !self.name.bytes().all(allowed) {
            return Err("a name must have 1 to 63 characters of a-z, A-Z, 0-9, `_`, `-` and `.`".into());
        }
        let remote = self.remote().map_err(|error| error.problem)?;
        if remote.tls && self.ca.is_none() {
            return Err("mqtts:// needs `ca`: the file with the trusted certificates".into());
        }
        if !remote.tls && (self.ca.is_some() || self.cert.is_some()) {
            return Err("`ca` and `cert` are for mqtts:// only".into());
        }
        if self.cert.is_some() != self.key.is_some() {
            return Err("`cert` and `key` must be set together".into());
        }
        if self.password_file.is_some() && self.username.is_none() {
            return Err("`password_file` needs `username`".into());
        }
        if !(1..=65_535).contains(&self.keepalive.as_secs()) {
            return Err("`keepalive` must be from 1s to 65535s".into());
        }
        if self.topics.is_empty() {
            return Err("`topics` is empty: the bridge would relay nothing".into());
        }
        for topic in &self.topics {
            for prefix in [&topic.local_prefix, &topic.remote_prefix] {
                if prefix.contains(['+', '#', '\0']) {
                    return Err(format!("the prefix {prefix:?} must not contain `+`, `#` or a zero byte"));
                }
            }
            for filter in [topic.local_filter(), topic.remote_filter()] {
                let parsed = TopicFilter::new(filter.clone());
                let parsed = parsed.map_err(|error| format!("the filter {filter:?}: {error}"))?;
                if parsed.is_shared() {
                    return Err(format!("the filter {filter:?} must not be a shared subscription"));
                }
            }
        }
        Ok(())
    }
}

/// Validates the settings of all bridges.
///
/// # Errors
/// [`BridgeConfigError`] with the first invalid setting.
pub fn check(bridges: &[BridgeSection]) -> Result<(), BridgeConfigError> {
    let mut names = HashSet::new();
    for section in bridges {
        let invalid = |problem: String| BridgeConfigError { bridge: section.name.clone(), problem };
        section.validate().map_err(invalid)?;
        if !names.insert(&section.name) {
            return Err(invalid("another bridge has the same name".into()));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Deserialize, Serialize)]
    struct File {
        bridges: Vec<BridgeSection>,
    }

    fn parse(extra: &str) -> Result<BridgeSection, String> {
        let topics = "topics = [{ filter = \"t/#\", direction = \"both\" }]";
        let topics = if extra.contains("topics") { "" } else { topics };
        let url = if extra.contains("url") { "" } else { "url = \"mqtt://127.0.0.1\"" };
        let text = format!("[[bridges]]\nname = \"b\"\n{url}\n{topics}\n{extra}\n");
        let mut file: File = toml::from_str(&text).map_err(|error| error.to_string())?;
        check(&file.bridges).map_err(|error| error.to_string())?;
        Ok(file.bridges.remove(0))
    }

    #[test]
    fn urls_are_parsed() {
        for (url, host, port, tls) in [
            ("mqtt://127.0.0.1", "127.0.0.1", 1883, false),
            ("mqtts://broker.example.org", "broker.example.org", 8883, true),
            ("mqtt://[::1]:1884/", "::1", 1884, false),
        ] {
            let extra = format!("url = {url:?}\n{}", if tls { "ca = \"ca.pem\"" } else { "" });
            let remote = parse(&extra).unwrap().remote().unwrap();
            assert_eq!(remote, Remote { host: host.into(), port, tls });
        }
    }

    #[test]
    fn invalid_settings_are_refused_with_the_reason() {
        for (extra, reason) in [
            ("url = \"http://a\"", "is not mqtt://HOST:PORT"),
            ("url = \"mqtt://me@a\"", "use `username`"),
            ("url = \"mqtts://a\"", "needs `ca`"),
            ("ca = \"x\"", "for mqtts:// only"),
            ("password_file = \"x\"", "needs `username`"),
            ("keepalive = \"0s\"", "from 1s"),
            ("version = \"3.1\"", "3.1.1"),
            ("topics = []", "would relay nothing"),
            ("topics = [{ filter = \"a/#/b\", direction = \"in\" }]", "a/#/b"),
            ("topics = [{ filter = \"a\", direction = \"in\", qos = 3 }]", "qos is 0, 1 or 2"),
            (
                "topics = [{ filter = \"a\", direction = \"in\", local_prefix = \"+/\" }]",
                "must not contain",
            ),
        ] {
            let error = parse(extra).expect_err(extra);
            assert!(error.contains(reason), "{extra}: {error}");
        }
    }
}
