//! TLS of the listeners: MQTT over TLS, and control port and gateway on addresses off loopback.
//!
//! Without a configured certificate the node creates a self-signed one at its first start, with the known names and
//! addresses of the machine. Clients trust it by its fingerprint: `edgefaas login` pins it.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use bytes::Bytes;
use edgefaas_api::Fingerprint;
use edgefaas_platform::private_files::{self, ExposedFiles};
use edgefaas_platform::replace_file;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::address_limits::AddressLimits;
use crate::config::NodeConfig;

/// The node's own certificate and key, if no others are configured.
const CERTIFICATE_FILE: &str = "tls-cert.pem";
pub(crate) const KEY_FILE: &str = "tls-key.pem";
/// Maximum time of a handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of concurrent handshakes of each service; further connections are closed.
const MAX_HANDSHAKES: usize = 1024;
/// Maximum number of them with one address.
const HANDSHAKES_PER_ADDRESS: usize = 128;

/// `[tls]`
#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct TlsSection {
    /// PEM file with the server's certificate and its intermediate certificates; by default the node creates its own.
    pub cert: Option<PathBuf>,
    /// PEM file with its private key.
    pub key: Option<PathBuf>,
    /// Whether MQTT clients present certificates.
    pub client_certificates: ClientCertificates,
    /// PEM file with the authorities that sign the certificates of clients.
    pub client_ca: Option<PathBuf>,
    /// PEM file with the list of revoked client certificates (CRL).
    pub client_crl: Option<PathBuf>,
}

/// Whether MQTT clients present certificates.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ClientCertificates {
    /// The server requests no certificate.
    #[default]
    Off,
    /// The server requests a certificate and accepts clients without one.
    Optional,
    /// The handshake fails without a valid certificate.
    Required,
}

/// Certificates or keys cannot be loaded or created.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A key of the configuration requires another one that is missing.
    #[error("[tls] has `{has}` without `{needs}`")]
    Missing {
        /// The key that is set.
        has: &'static str,
        /// The missing key.
        needs: &'static str,
    },
    /// A file cannot be read or parsed.
    #[error("tls.{key} {path}: {reason}")]
    File {
        /// The setting.
        key: &'static str,
        /// The file.
        path: PathBuf,
        /// The problem.
        reason: String,
    },
    /// Other users can read the key.
    #[error("tls.key: {0}")]
    Exposed(#[from] ExposedFiles),
    /// The node's own certificate cannot be created.
    #[error("the node's own certificate {path} cannot be created: {reason}")]
    Make {
        /// The file.
        path: PathBuf,
        /// The problem.
        reason: String,
    },
    /// Certificate and key do not fit together, or the client authority is invalid.
    #[error("the certificates cannot be used: {0}")]
    Unusable(String),
}

/// A service that speaks TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Service {
    /// MQTT.
    Mqtt,
    /// The gateway.
    Http,
    /// The control port.
    Control,
}

/// TLS of the node's listeners.
pub struct Tls {
    section: TlsSection,
    data_dir: PathBuf,
    addresses: Vec<IpAddr>,
    current: ArcSwap<Certificates>,
    /// Limits for each service, so that a flood of handshakes of one service does not block the others.
    handshakes: [Handshakes; 3],
}

struct Handshakes {
    permits: Semaphore,
    address_limits: Arc<AddressLimits>,
}

impl Handshakes {
    fn new() -> Self {
        Self {
            permits: Semaphore::new(MAX_HANDSHAKES),
            address_limits: AddressLimits::new(HANDSHAKES_PER_ADDRESS),
        }
    }
}

/// TLS configurations of the services, from one reading of the files.
pub struct Certificates {
    mqtt: Arc<ServerConfig>,
    http: Arc<ServerConfig>,
    control: Arc<ServerConfig>,
    fingerprint: Fingerprint,
}

/// The TLS handshake of a connection failed.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    /// Too many concurrent handshakes.
    #[error("{MAX_HANDSHAKES} TLS handshakes are in progress")]
    Busy,
    /// Too many concurrent handshakes with this address.
    #[error("{HANDSHAKES_PER_ADDRESS} TLS handshakes with this address are in progress")]
    AddressBusy,
    /// The handshake took too long.
    #[error("the handshake took longer than {HANDSHAKE_TIMEOUT:?}")]
    Timeout,
    /// The connection ended, or the client violated the protocol or presented an invalid certificate.
    #[error(transparent)]
    Tls(#[from] io::Error),
}

impl Tls {
    /// TLS of the configured listeners; `None` if no listener speaks TLS.
    ///
    /// # Errors
    /// A file is missing or invalid.
    pub fn open_for(config: &NodeConfig) -> Result<Option<Self>, TlsError> {
        let addresses = config.tls_addresses();
        if addresses.is_empty() {
            return Ok(None);
        }
        let addresses = addresses.into_iter().map(|address| address.ip()).collect();
        Self::open(config.tls.clone(), &config.data_dir, addresses).map(Some)
    }

    /// Reads the files, or creates the node's own certificate for these addresses. Blocks.
    ///
    /// # Errors
    /// A file is missing or invalid.
    pub fn open(section: TlsSection, data_dir: &Path, addresses: Vec<IpAddr>) -> Result<Self, TlsError> {
        let certificates = Certificates::load(&section, data_dir, &addresses)?;
        Ok(Self {
            section,
            data_dir: data_dir.to_owned(),
            addresses,
            current: ArcSwap::from_pointee(certificates),
            handshakes: [(); 3].map(|()| Handshakes::new()),
        })
    }

    /// Reads the files again; [`replace`](Self::replace) puts the result in use. Blocks.
    ///
    /// # Errors
    /// A file is missing or invalid.
    pub fn load_again(&self) -> Result<Certificates, TlsError> {
        Certificates::load(&self.section, &self.data_dir, &self.addresses)
    }

    /// Uses these certificates for new connections; existing connections are not affected.
    pub fn replace(&self, certificates: Certificates) {
        self.current.store(Arc::new(certificates));
    }

    /// The fingerprint of the server's certificate.
    pub fn fingerprint(&self) -> String {
        self.current.load().fingerprint.to_string()
    }

    /// Performs the handshake with a client. Dropping the future closes the connection.
    ///
    /// # Errors
    /// Too many handshakes are in progress, the client violates the protocol, its certificate is missing or invalid, or
    /// the handshake takes longer than 10 seconds.
    pub async fn accept<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        service: Service,
        peer: SocketAddr,
        stream: S,
    ) -> Result<TlsStream<S>, HandshakeError> {
        let handshakes = &self.handshakes[service as usize];
        let _address_permit =
            handshakes.address_limits.acquire(peer.ip()).ok_or(HandshakeError::AddressBusy)?;
        let _permit = handshakes.permits.try_acquire().map_err(|_| HandshakeError::Busy)?;
        let config = {
            let current = self.current.load();
            match service {
                Service::Mqtt => current.mqtt.clone(),
                Service::Http => current.http.clone(),
                Service::Control => current.control.clone(),
            }
        };
        match tokio::time::timeout(HANDSHAKE_TIMEOUT, TlsAcceptor::from(config).accept(stream)).await {
            Ok(accepted) => Ok(accepted?),
            Err(_) => Err(HandshakeError::Timeout),
        }
    }
}

/// The certificate that a client presented (DER), which the handshake has verified.
pub fn client_certificate(stream: &TlsStream<TcpStream>) -> Option<Bytes> {
    let (_, connection) = stream.get_ref();
    let chain = connection.peer_certificates()?;
    chain.first().map(|end_entity| Bytes::copy_from_slice(end_entity))
}

impl Certificates {
    fn load(section: &TlsSection, data_dir: &Path, addresses: &[IpAddr]) -> Result<Self, TlsError> {
        section.check()?;
        let (cert, key) = match (&section.cert, &section.key) {
            (Some(cert), Some(key)) => (cert.clone(), key.clone()),
            _ => own_certificate(data_dir, addresses)?,
        };
        private_files::check([&key])?;
        let chain = certificates("cert", &cert)?;
        let fingerprint = Fingerprint::of(&chain[0]);
        let private_key = PrivateKeyDer::from_pem_file(&key).map_err(|error| TlsError::File {
            key: "key",
            path: key,
            reason: error.to_string(),
        })?;

        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = match (&section.client_certificates, &section.client_ca) {
            (ClientCertificates::Off, _) | (_, None) => None,
            (mode, Some(ca)) => {
                let mut roots = RootCertStore::empty();
                for authority in certificates("client_ca", ca)? {
                    roots.add(authority).map_err(|error| TlsError::Unusable(error.to_string()))?;
                }
                let mut builder =
                    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone());
                if let Some(path) = &section.client_crl {
                    builder = builder.with_crls(revocations(path)?).allow_unknown_revocation_status();
                }
                if *mode == ClientCertificates::Optional {
                    builder = builder.allow_unauthenticated();
                }
                Some(builder.build().map_err(|error| TlsError::Unusable(error.to_string()))?)
            }
        };
        let config = |verifier, protocols: &[&[u8]]| {
            let builder = ServerConfig::builder_with_provider(provider.clone())
                .with_safe_default_protocol_versions()?;
            let builder = match verifier {
                Some(verifier) => builder.with_client_cert_verifier(verifier),
                None => builder.with_no_client_auth(),
            };
            let mut config = builder.with_single_cert(chain.clone(), private_key.clone_key())?;
            config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
            Ok(Arc::new(config))
        };
        let unusable = |error: rustls::Error| TlsError::Unusable(error.to_string());
        Ok(Self {
            mqtt: config(verifier, &[]).map_err(unusable)?,
            http: config(None, &[b"http/1.1"]).map_err(unusable)?,
            control: config(None, &[b"h2", b"http/1.1"]).map_err(unusable)?,
            fingerprint,
        })
    }
}

impl TlsSection {
    /// Checks that the keys are consistent.
    ///
    /// # Errors
    /// A key requires another one that is missing.
    pub fn check(&self) -> Result<(), TlsError> {
        let missing = |has, needs| Err(TlsError::Missing { has, needs });
        match (&self.cert, &self.key) {
            (Some(_), None) => return missing("cert", "key"),
            (None, Some(_)) => return missing("key", "cert"),
            _ => {}
        }
        match (self.client_certificates, &self.client_ca) {
            (ClientCertificates::Off, Some(_)) => missing("client_ca", "client_certificates"),
            (ClientCertificates::Optional | ClientCertificates::Required, None) => {
                missing("client_certificates", "client_ca")
            }
            (ClientCertificates::Off, None) if self.client_crl.is_some() => {
                missing("client_crl", "client_ca")
            }
            _ => Ok(()),
        }
    }
}

/// Logs a failed handshake: as a warning if a client certificate is missing or invalid or a limit is reached, since the
/// client gets no explanation; else as debug output, since scanners and clients that do not trust the node's certificate
/// are common.
pub(crate) fn log_failure(service: Service, peer: SocketAddr, error: &HandshakeError) {
    static LAST: AtomicU64 = AtomicU64::new(0);
    static STARTED: LazyLock<Instant> = LazyLock::new(Instant::now);
    let is_warning = match error {
        HandshakeError::Busy | HandshakeError::AddressBusy => true,
        HandshakeError::Timeout => false,
        HandshakeError::Tls(error) => error.get_ref().is_some_and(|error| {
            matches!(
                error.downcast_ref(),
                Some(
                    rustls::Error::InvalidCertificate(_)
                        | rustls::Error::InvalidCertRevocationList(_)
                        | rustls::Error::NoCertificatesPresented
                )
            )
        }),
    };
    // At most one warning per second, since any client can cause them.
    let now = STARTED.elapsed().as_secs() + 1;
    if is_warning && LAST.swap(now, Ordering::Relaxed) != now {
        tracing::warn!(?service, %peer, %error, "a client's TLS handshake failed");
    } else {
        tracing::debug!(?service, %peer, %error, "a TLS handshake failed");
    }
}

fn certificates(key: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let wrong = |reason: String| TlsError::File { key, path: path.to_owned(), reason };
    let found: Result<Vec<_>, _> =
        CertificateDer::pem_file_iter(path).map_err(|error| wrong(error.to_string()))?.collect();
    match found {
        Ok(found) if found.is_empty() => Err(wrong("it has no `-----BEGIN CERTIFICATE-----`".into())),
        Ok(found) => Ok(found),
        Err(error) => Err(wrong(error.to_string())),
    }
}

fn revocations(path: &Path) -> Result<Vec<CertificateRevocationListDer<'static>>, TlsError> {
    let wrong = |reason: String| TlsError::File { key: "client_crl", path: path.to_owned(), reason };
    let found: Result<Vec<_>, _> = CertificateRevocationListDer::pem_file_iter(path)
        .map_err(|error| wrong(error.to_string()))?
        .collect();
    match found {
        Ok(found) if found.is_empty() => Err(wrong("it has no `-----BEGIN X509 CRL-----`".into())),
        Ok(found) => Ok(found),
        Err(error) => Err(wrong(error.to_string())),
    }
}

/// The paths of the node's own certificate and key. Creates both if one is missing.
fn own_certificate(data_dir: &Path, addresses: &[IpAddr]) -> Result<(PathBuf, PathBuf), TlsError> {
    let (cert, key) = (data_dir.join(CERTIFICATE_FILE), data_dir.join(KEY_FILE));
    if cert.exists() && key.exists() {
        return Ok((cert, key));
    }
    let failed = |reason: String| TlsError::Make { path: cert.clone(), reason };
    let made = || -> Result<_, rcgen::Error> {
        let key = rcgen::KeyPair::generate()?;
        // The default validity of rcgen, from 1975 to 4096: the clock of a node may be wrong, and clients trust the
        // fingerprint.
        let mut params = rcgen::CertificateParams::new(names(addresses))?;
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(rcgen::DnType::CommonName, "edgefaas node");
        Ok((params.self_signed(&key)?.pem(), key.serialize_pem()))
    };
    let (cert_pem, key_pem) = made().map_err(|error| failed(error.to_string()))?;
    replace_file(&key, key_pem.as_bytes()).map_err(|error| failed(error.to_string()))?;
    replace_file(&cert, cert_pem.as_bytes()).map_err(|error| failed(error.to_string()))?;
    Ok((cert, key))
}

/// Names and addresses of this machine for its certificate.
fn names(addresses: &[IpAddr]) -> Vec<String> {
    let mut names = vec!["localhost".to_owned()];
    let hostname = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let hostname = hostname.trim();
    if !hostname.is_empty() && hostname.bytes().all(|b| b.is_ascii_alphanumeric() || b"-.".contains(&b)) {
        names.push(hostname.to_owned());
        if !hostname.contains('.') {
            names.push(format!("{hostname}.local"));
        }
    }
    let loopback = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
    let mut known: Vec<IpAddr> = loopback.into_iter().chain(addresses.iter().copied()).collect();
    known.retain(|address| !address.is_unspecified());
    known.extend(main_address());
    for address in known {
        let name = address.to_string();
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

/// The address of the default route. No packet is sent: connecting a datagram socket only looks up the route.
fn main_address() -> Option<IpAddr> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    // A documentation address (RFC 5737), which stands for any address beyond the local network.
    socket.connect((Ipv4Addr::new(192, 0, 2, 1), 9)).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn the_nodes_own_certificate_is_created_once_and_private() {
        let folder = tempfile::tempdir().unwrap();
        let open = || Tls::open(TlsSection::default(), folder.path(), vec!["10.1.2.3".parse().unwrap()]);
        let first = open().unwrap().fingerprint();
        for file in [CERTIFICATE_FILE, KEY_FILE] {
            let mode = std::fs::metadata(folder.path().join(file)).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{file}");
        }
        assert_eq!(open().unwrap().fingerprint(), first);
        std::fs::remove_file(folder.path().join(KEY_FILE)).unwrap();
        assert_ne!(open().unwrap().fingerprint(), first, "without its key a certificate is replaced");
    }

    #[test]
    fn inconsistent_settings_are_refused() {
        let some = || Some(PathBuf::from("x.pem"));
        let (off, required) = (ClientCertificates::Off, ClientCertificates::Required);
        for (section, words) in [
            (TlsSection { cert: some(), ..TlsSection::default() }, "`cert` without `key`"),
            (TlsSection { key: some(), ..TlsSection::default() }, "`key` without `cert`"),
            (
                TlsSection { client_certificates: required, ..TlsSection::default() },
                "`client_certificates` without `client_ca`",
            ),
            (
                TlsSection { client_certificates: off, client_ca: some(), ..TlsSection::default() },
                "`client_ca` without `client_certificates`",
            ),
            (
                TlsSection { client_crl: some(), ..TlsSection::default() },
                "`client_crl` without `client_ca`",
            ),
        ] {
            assert!(section.check().unwrap_err().to_string().contains(words));
        }
        let folder = tempfile::tempdir().unwrap();
        let missing = TlsSection { cert: some(), key: some(), ..TlsSection::default() };
        let error = Tls::open(missing, folder.path(), Vec::new()).err().unwrap().to_string();
        assert!(error.contains("tls.cert x.pem"), "{error}");
    }
}
