//! Classification of the failure of a request.

use std::error::Error;
use std::io;

use edgefaas_isolates::FetchCause;

use super::connector::AddressNotPermitted;
use super::lookup::LookupError;

/// The cause of a failure: that of the innermost known error in the chain of sources.
pub fn of(error: &(dyn Error + 'static)) -> FetchCause {
    let mut found = FetchCause::Other;
    let mut next = Some(error);
    while let Some(error) = next {
        // Inner errors are more specific.
        if let Some(cause) = of_one(error) {
            found = cause;
        }
        // `source` of an I/O error skips the error that it wraps.
        let wrapped = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        next = match wrapped {
            Some(wrapped) => Some(wrapped),
            None => error.source(),
        };
    }
    found
}

fn of_one(error: &(dyn Error + 'static)) -> Option<FetchCause> {
    if let Some(error) = error.downcast_ref::<rustls::Error>() {
        return Some(match error {
            rustls::Error::InvalidCertificate(_) | rustls::Error::NoCertificatesPresented => {
                FetchCause::Certificate
            }
            _ => FetchCause::Tls,
        });
    }
    if let Some(error) = error.downcast_ref::<hyper::Error>() {
        return match () {
            () if error.is_incomplete_message() || error.is_closed() => Some(FetchCause::Closed),
            () if error.is_parse() => Some(FetchCause::Protocol),
            () => None,
        };
    }
    if error.is::<AddressNotPermitted>() {
        return Some(FetchCause::AddressDenied);
    }
    if let Some(error) = error.downcast_ref::<LookupError>() {
        return Some(match error {
            LookupError::Share(_) => FetchCause::Overloaded,
            LookupError::Failed { .. } => FetchCause::NoAddress,
        });
    }
    let kind = error.downcast_ref::<io::Error>()?.kind();
    Some(match kind {
        io::ErrorKind::ConnectionRefused => FetchCause::Refused,
        io::ErrorKind::TimedOut => FetchCause::ConnectTimeout,
        io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable | io::ErrorKind::NetworkDown => {
            FetchCause::Unreachable
        }
        io::ErrorKind::ConnectionReset
        | io::ErrorKind::ConnectionAborted
        | io::ErrorKind::BrokenPipe
        | io::ErrorKind::UnexpectedEof => FetchCause::Closed,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_innermost_known_error_is_the_cause() {
        let tls = rustls::Error::InvalidCertificate(rustls::CertificateError::Expired);
        let wrapped = io::Error::other(io::Error::new(io::ErrorKind::InvalidData, tls));
        assert_eq!(of(&wrapped), FetchCause::Certificate);
        assert_eq!(of(&io::Error::from(io::ErrorKind::ConnectionRefused)), FetchCause::Refused);
        assert_eq!(of(&io::Error::other("unknown")), FetchCause::Other);
    }
}
