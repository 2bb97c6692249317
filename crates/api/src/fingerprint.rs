//! Fingerprint of a certificate: how users compare the certificates of nodes.

use std::fmt;
use std::str::FromStr;

/// SHA-256 of a certificate (DER). Shown as openssl does, read with or without colons.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fingerprint([u8; 32]);

/// Not a fingerprint.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a fingerprint has 64 hexadecimal digits (SHA-256), with or without colons")]
pub struct FingerprintError;

impl Fingerprint {
    /// Of a certificate (DER).
    pub fn of(certificate: &[u8]) -> Self {
        let digest = ring::digest::digest(&ring::digest::SHA256, certificate);
        let mut bytes = [0; 32];
        bytes.copy_from_slice(digest.as_ref());
        Self(bytes)
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, byte) in self.0.iter().enumerate() {
            let colon = if index == 0 { "" } else { ":" };
            write!(out, "{colon}{byte:02X}")?;
        }
        Ok(())
    }
}

impl FromStr for Fingerprint {
    type Err = FingerprintError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let text = text.trim();
        let text = text.strip_prefix("SHA256:").unwrap_or(text);
        let digits: Vec<u8> = text.bytes().filter(|byte| *byte != b':').collect();
        if digits.len() != 64 || !digits.iter().all(u8::is_ascii_hexdigit) {
            return Err(FingerprintError);
        }
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            let pair = std::str::from_utf8(pair).map_err(|_| FingerprintError)?;
            *byte = u8::from_str_radix(pair, 16).map_err(|_| FingerprintError)?;
        }
        Ok(Self(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fingerprints_are_read_as_they_are_shown() {
        let fingerprint = Fingerprint::of(b"");
        let text = fingerprint.to_string();
        // SHA-256 of nothing.
        assert!(text.starts_with("E3:B0:C4:42:98:FC:1C:14:"), "{text}");
        for form in [text.clone(), text.replace(':', "").to_lowercase(), format!(" SHA256:{text}\n")] {
            assert_eq!(form.parse(), Ok(fingerprint));
        }
        for bad in ["", "E3", &text[..62], &format!("{text}:00"), &text.replace('E', "G")] {
            assert_eq!(bad.parse::<Fingerprint>(), Err(FingerprintError), "{bad}");
        }
    }
}
