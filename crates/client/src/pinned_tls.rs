//! TLS to a node: only the pinned certificate is trusted; its signer and its names do not count.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::Mutex;
use std::task::{Context, Poll};
use std::time::Duration;

use edgefaas_api::Fingerprint;
use hyper_util::rt::TokioIo;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, SignatureScheme};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tonic::codegen::Service;
use tonic::codegen::http::Uri;

/// The certificate that a server showed last.
pub type Seen = Arc<Mutex<Option<Fingerprint>>>;

/// Connects to one node.
#[derive(Clone)]
pub struct PinnedConnector {
    host: Arc<str>,
    port: u16,
    name: ServerName<'static>,
    connector: TlsConnector,
    seen: Seen,
}

impl PinnedConnector {
    /// For a node whose certificate has this fingerprint; without `pin` it accepts any certificate, to read it.
    ///
    /// # Errors
    /// `host` is neither a name nor an address.
    pub fn new(host: &str, port: u16, pin: Option<Fingerprint>) -> io::Result<Self> {
        let host = host.trim_matches(['[', ']']);
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let seen = Seen::default();
        let verifier = Verifier { pin, seen: seen.clone(), provider: provider.clone() };
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(io::Error::other)?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_no_client_auth();
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(Self { host: host.into(), port, name, connector: Arc::new(config).into(), seen })
    }

    /// The fingerprint of the certificate that the node showed last, trusted or not.
    pub fn seen(&self) -> Option<Fingerprint> {
        *self.seen.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Connects once.
    ///
    /// # Errors
    /// No answer, another certificate, or no TLS.
    pub async fn connect(&self) -> io::Result<TlsStream<TcpStream>> {
        let stream = TcpStream::connect((&*self.host, self.port)).await?;
        stream.set_nodelay(true)?;
        self.connector.connect(self.name.clone(), stream).await
    }

    /// Connects to read the certificate.
    ///
    /// # Errors
    /// No certificate within `limit`.
    pub async fn probe(&self, limit: Duration) -> io::Result<Fingerprint> {
        let connected = tokio::time::timeout(limit, self.connect()).await;
        connected.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        self.seen().ok_or_else(|| io::Error::other("the server showed no certificate"))
    }
}

impl Service<Uri> for PinnedConnector {
    type Response = TokioIo<TlsStream<TcpStream>>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    // The URI of a request is ignored: there is one node.
    fn call(&mut self, _: Uri) -> Self::Future {
        let connector = self.clone();
        Box::pin(async move { connector.connect().await.map(TokioIo::new) })
    }
}

/// Compares the certificate with the pin. The server's possession of the key is verified as usual.
#[derive(Debug)]
struct Verifier {
    pin: Option<Fingerprint>,
    seen: Seen,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let fingerprint = Fingerprint::of(end_entity);
        *self.seen.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = Some(fingerprint);
        match self.pin {
            Some(pin) if pin != fingerprint => {
                Err(Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure))
            }
            _ => Ok(ServerCertVerified::assertion()),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
