//! `[traces]` of the configuration.

use edgefaas_functions::trace::TraceLimits;
use serde::{Deserialize, Serialize};
use url::Url;

/// `[traces]`: recording and export of spans.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct TracesSection {
    /// Maximum number of spans in memory, 512 bytes each on average; 0 disables recording.
    pub spans: usize,
    /// Maximum number of traces that begin in a second; further ones are not recorded.
    pub per_second: u64,
    /// URL of an OpenTelemetry collector that gets the spans of sampled traces, such as `http://127.0.0.1:4318`, or
    /// `http://127.0.0.1:4317` for gRPC.
    pub otlp: Option<String>,
    /// The form of the spans for the collector.
    pub otlp_protocol: OtlpProtocol,
}

/// A form of OTLP, in the words of `OTEL_EXPORTER_OTLP_PROTOCOL`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
pub enum OtlpProtocol {
    /// JSON over HTTP.
    #[default]
    #[serde(rename = "http/json")]
    HttpJson,
    /// Protobuf over HTTP.
    #[serde(rename = "http/protobuf")]
    HttpProtobuf,
    /// gRPC.
    #[serde(rename = "grpc")]
    Grpc,
}

/// `traces.otlp` is not the URL of a collector.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OtlpUrlError {
    /// It is not an `http` or `https` URL with a host.
    #[error("traces.otlp is not an http or https URL with a host, such as \"http://127.0.0.1:4318\"")]
    NotHttp,
    /// It has a user or a password.
    #[error("traces.otlp has a user or a password; edgefaas sends none to a collector")]
    Credentials,
    /// It has a query or a fragment.
    #[error("traces.otlp has a query or a fragment; give the URL up to the path")]
    Query,
    /// It has a path, and the protocol is gRPC.
    #[error(
        "traces.otlp has a path, which gRPC does not use; give host and port alone, or set otlp_protocol to \"http/protobuf\""
    )]
    PathForGrpc,
}

impl Default for TracesSection {
    fn default() -> Self {
        let limits = TraceLimits::default();
        Self {
            spans: limits.spans,
            per_second: limits.per_second,
            otlp: None,
            otlp_protocol: OtlpProtocol::default(),
        }
    }
}

impl TracesSection {
    /// The collector; `None` without one.
    ///
    /// # Errors
    /// `otlp` is not the URL of a collector.
    pub(crate) fn collector(&self) -> Result<Option<Collector>, OtlpUrlError> {
        let Some(text) = &self.otlp else { return Ok(None) };
        let url = Url::parse(text).map_err(|_| OtlpUrlError::NotHttp)?;
        if !matches!(url.scheme(), "http" | "https") || url.host().is_none() {
            return Err(OtlpUrlError::NotHttp);
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(OtlpUrlError::Credentials);
        }
        if url.query().is_some() || url.fragment().is_some() {
            return Err(OtlpUrlError::Query);
        }
        let protocol = self.otlp_protocol;
        if protocol == OtlpProtocol::Grpc && url.path() != "/" {
            return Err(OtlpUrlError::PathForGrpc);
        }
        Ok(Some(Collector { url, protocol }))
    }
}

/// Where spans are exported to.
#[derive(Debug, Clone)]
pub(crate) struct Collector {
    /// An `http` or `https` URL without user, query and fragment; for gRPC without a path.
    pub url: Url,
    pub protocol: OtlpProtocol,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_of_collectors() {
        let checked = |otlp: &str, protocol: &str| {
            let text = format!("otlp = {otlp:?}\notlp_protocol = {protocol:?}");
            let section: TracesSection = toml::from_str(&text).unwrap();
            section.collector().map(|collector| collector.unwrap().url.to_string())
        };
        assert!(TracesSection::default().collector().unwrap().is_none());
        for protocol in ["http/json", "http/protobuf", "grpc"] {
            assert_eq!(checked("http://h:4317", protocol).unwrap(), "http://h:4317/");
            assert_eq!(checked("https://[::1]:1/", protocol).unwrap(), "https://[::1]:1/");
            for text in ["", "h", "127.0.0.1:4317", "grpc://h:4317", "http://", "unix:/x"] {
                assert_eq!(checked(text, protocol), Err(OtlpUrlError::NotHttp), "{text}");
            }
            assert_eq!(checked("http://u:p@h", protocol), Err(OtlpUrlError::Credentials));
            assert_eq!(checked("http://h/?a=b", protocol), Err(OtlpUrlError::Query));
        }
        assert_eq!(checked("http://h/otlp", "http/protobuf").unwrap(), "http://h/otlp");
        assert_eq!(checked("http://h/otlp", "grpc"), Err(OtlpUrlError::PathForGrpc));
        assert!(toml::from_str::<TracesSection>("otlp_protocol = \"http\"").is_err());
    }
}
