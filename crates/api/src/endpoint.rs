//! How commands on this machine find and trust a control port that speaks TLS: a file in the data directory.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;

use edgefaas_platform::replace_file;
use serde::{Deserialize, Serialize};

/// The file's name.
const FILE: &str = "control.json";

/// What the file says. Only a node whose control port speaks TLS writes one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ControlEndpoint {
    /// Where this machine reaches the control port.
    pub url: String,
    /// SHA-256 of its certificate.
    pub fingerprint: String,
}

impl ControlEndpoint {
    /// Of a node in this data directory, if it wrote one.
    pub fn read(data_dir: &Path) -> Option<Self> {
        serde_json::from_slice(&std::fs::read(data_dir.join(FILE)).ok()?).ok()
    }

    /// Writes the file for a port that speaks TLS with this certificate, or takes it away.
    ///
    /// # Errors
    /// What the system says.
    pub fn write(data_dir: &Path, port: Option<(SocketAddr, String)>) -> io::Result<()> {
        let path = data_dir.join(FILE);
        let Some((mut address, fingerprint)) = port else {
            return match std::fs::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                _ => Ok(()),
            };
        };
        // What listens everywhere listens on the loopback interface too.
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
    fn what_is_written_is_read_and_taken_away() {
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
