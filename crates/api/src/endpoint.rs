//! `control.json` in the data directory: address and certificate of a control API that speaks TLS, for commands on this machine.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;

use edgefaas_platform::replace_file;
use serde::{Deserialize, Serialize};

/// The file's name.
const FILE: &str = "control.json";

/// Content of the file. Only a node whose control API speaks TLS writes one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ControlEndpoint {
    /// URL of the control API for this machine.
    pub url: String,
    /// SHA-256 of its certificate.
    pub fingerprint: String,
}

impl ControlEndpoint {
    /// Reads the file in a data directory; `None` if it is missing or invalid.
    pub fn read(data_dir: &Path) -> Option<Self> {
        serde_json::from_slice(&std::fs::read(data_dir.join(FILE)).ok()?).ok()
    }

    /// Writes the file for a port with TLS and the fingerprint of its certificate, or removes it.
    ///
    /// # Errors
    /// The file cannot be written or removed.
    pub fn write(data_dir: &Path, port: Option<(SocketAddr, String)>) -> io::Result<()> {
        let path = data_dir.join(FILE);
        let Some((mut address, fingerprint)) = port else {
            return match std::fs::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                _ => Ok(()),
            };
        };
        // A port on all addresses also listens on loopback.
        if address.ip().is_unspecified() {
            address.set_ip(match address {
                SocketAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
                SocketAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
            });
        }
        let endpoint = Self { url: format!("https://{address}"), fingerprint };
        replace_file(&path, &serde_json::to_vec_pretty(&endpoint)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_written_read_and_removed() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(ControlEndpoint::read(folder.path()), None);
        ControlEndpoint::write(folder.path(), None).unwrap();
        for (address, url) in [
            ("0.0.0.0:7070", "https://127.0.0.1:7070"),
            ("[::]:7070", "https://[::1]:7070"),
            ("192.0.2.1:1", "https://192.0.2.1:1"),
        ] {
            let port = Some((address.parse().unwrap(), "AB".to_owned()));
            ControlEndpoint::write(folder.path(), port).unwrap();
            let read = ControlEndpoint::read(folder.path()).unwrap();
            assert_eq!((read.url.as_str(), read.fingerprint.as_str()), (url, "AB"));
        }
        ControlEndpoint::write(folder.path(), None).unwrap();
        assert_eq!(ControlEndpoint::read(folder.path()), None);
    }
}
