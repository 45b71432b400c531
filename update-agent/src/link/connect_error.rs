//! Why a connection to the server failed, in the words of an operator.

use std::error::Error;
use std::io;

use rustls::{AlertDescription, CertificateError, Error as TlsError};

/// Explains the usual mistakes: no server, no TLS, another listener, a wrong clock. None for other errors.
pub(super) fn explain(error: &(dyn Error + 'static)) -> Option<&'static str> {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(reason) = explain_one(error) {
            return Some(reason);
        }
        cause = error.source();
    }
    None
}

fn explain_one(error: &(dyn Error + 'static)) -> Option<&'static str> {
    if let Some(error) = error.downcast_ref::<io::Error>() {
        // An error of a proxy has the same kind, but its own text.
        if error.kind() == io::ErrorKind::ConnectionRefused && error.raw_os_error().is_some() {
            return Some("connection refused. Is evenkeeld running there, and is the port right?");
        }
        // The source of an I/O error skips the error in it.
        return error.get_ref().and_then(|inner| explain_one(inner));
    }
    match error.downcast_ref::<TlsError>()? {
        TlsError::InvalidMessage(_) => Some(
            "it does not speak TLS. Nodes connect to southbound.listen of the server, port 50002 by default",
        ),
        TlsError::AlertReceived(AlertDescription::NoApplicationProtocol) => Some(
            "it is another listener. Nodes connect to southbound.listen of the server, port 50002 by default",
        ),
        TlsError::AlertReceived(
            AlertDescription::UnknownCA
            | AlertDescription::BadCertificate
            | AlertDescription::CertificateUnknown
            | AlertDescription::CertificateRevoked
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateExpired,
        ) => Some(
            "the server refuses the certificate of this node. If its certification authority was replaced, enrol again",
        ),
        TlsError::InvalidCertificate(
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. },
        ) => Some(
            "this machine's clock is behind: the server's certificate is not valid yet. Set the clock, best with NTP",
        ),
        TlsError::InvalidCertificate(
            CertificateError::Expired | CertificateError::ExpiredContext { .. },
        ) => Some(
            "the server's certificate has expired, or this machine's clock is ahead: check the clocks of both machines",
        ),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use rustls::InvalidMessage;

    use super::*;

    #[test]
    fn the_usual_mistakes_are_explained() {
        let refused = io::Error::from(rustix::io::Errno::CONNREFUSED);
        let tls = |error: TlsError| io::Error::new(io::ErrorKind::InvalidData, error);
        let no_tls = tls(TlsError::InvalidMessage(InvalidMessage::InvalidContentType));
        let other = tls(TlsError::AlertReceived(AlertDescription::NoApplicationProtocol));
        let unknown = tls(TlsError::AlertReceived(AlertDescription::UnknownCA));
        let too_early = tls(TlsError::InvalidCertificate(CertificateError::NotValidYet));
        let too_late = tls(TlsError::InvalidCertificate(CertificateError::Expired));
        for (error, part) in [
            (too_early, "this machine's clock is behind"),
            (too_late, "this machine's clock is ahead"),
            (unknown, "refuses the certificate of this node"),
            (refused, "connection refused"),
            (no_tls, "does not speak TLS"),
            (other, "another listener"),
        ] {
            let reason = explain(&error).unwrap_or_default();
            assert!(reason.contains(part), "{error}: {reason}");
        }
    }

    #[test]
    fn other_errors_keep_their_own_text() {
        let proxy =
            io::Error::new(io::ErrorKind::ConnectionRefused, "the proxy http://p:1: refused");
        for error in [proxy, io::ErrorKind::TimedOut.into(), io::Error::other("no route")] {
            assert_eq!(explain(&error), None, "{error}");
        }
    }
}
