//! Client certificates: their subject's common name is the user. The TLS handshake has verified them.

use x509_parser::prelude::{FromDer, X509Certificate};

/// The common name in a certificate's subject, if it has exactly one that is text.
pub fn common_name(der: &[u8]) -> Option<String> {
    let (_, certificate) = X509Certificate::from_der(der).ok()?;
    let mut names = certificate.subject().iter_common_name();
    let (name, further) = (names.next()?, names.next());
    let name = name.as_str().ok()?;
    (further.is_none() && !name.is_empty()).then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};

    use super::*;

    fn certificate(names: &[(DnType, &str)]) -> Vec<u8> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        for (kind, name) in names {
            params.distinguished_name.push(kind.clone(), *name);
        }
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().to_vec()
    }

    #[test]
    fn the_user_is_the_common_name() {
        let named = certificate(&[(DnType::OrganizationName, "plant"), (DnType::CommonName, "pump-1")]);
        assert_eq!(common_name(&named).as_deref(), Some("pump-1"));
        for none in [
            certificate(&[(DnType::OrganizationName, "plant")]),
            certificate(&[(DnType::CommonName, "")]),
            b"nonsense".to_vec(),
        ] {
            assert_eq!(common_name(&none), None);
        }
    }
}
