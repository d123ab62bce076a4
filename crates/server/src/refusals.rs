//! Why a connection was turned away, in words for an operator.

use std::io;

use rustls::{CertificateError, PeerIncompatible};

/// Why, in words for an operator who has the peer's certificate or configuration to mend.
pub(crate) fn reason(error: &io::Error) -> String {
    let tls = error
        .get_ref()
        .and_then(|inner| inner.downcast_ref::<rustls::Error>());
    let words = match (tls, error.kind()) {
        (Some(error), _) => return tls_reason(error),
        (None, io::ErrorKind::TimedOut) => "no handshake within the time limit",
        (None, io::ErrorKind::UnexpectedEof) => "it went away during the handshake",
        (None, _) => return error.to_string(),
    };
    words.to_owned()
}

/// The library's own words end in identifiers of its code, and tell times in seconds since 1970.
fn tls_reason(error: &rustls::Error) -> String {
    use CertificateError as Bad;
    use rustls::Error as Tls;

    let words = match error {
        Tls::NoCertificatesPresented => "it showed no certificate",
        Tls::InvalidCertificate(bad) => match bad {
            Bad::UnknownIssuer => "its certificate is not from an authority in ROUTER_CA_FILE",
            Bad::Expired | Bad::ExpiredContext { .. } => "its certificate has expired",
            Bad::NotValidYet | Bad::NotValidYetContext { .. } => "its certificate is not valid yet",
            Bad::InvalidPurpose | Bad::InvalidPurposeContext { .. } => {
                "its certificate is not for authenticating clients (extended key usage)"
            }
            // the only name that this error has
            Bad::Other(other) if other.to_string() == "UnsupportedCertVersion" => {
                "its certificate is not X.509 version 3"
            }
            bad => return format!("its certificate can't be used: {bad}"),
        },
        Tls::InvalidMessage(_) => "it does not speak TLS",
        Tls::NoApplicationProtocol => "it did not ask for h2 (ALPN)",
        Tls::PeerIncompatible(why) => match why {
            PeerIncompatible::Tls12NotOffered
            | PeerIncompatible::Tls12NotOfferedOrEnabled
            | PeerIncompatible::ServerDoesNotSupportTls12Or13
            | PeerIncompatible::SupportedVersionsExtensionRequired
            // what clients up to 1.1 don't send is missed first
            | PeerIncompatible::SignatureAlgorithmsExtensionRequired => {
                "its TLS is too old: 1.2 or 1.3 is needed"
            }
            PeerIncompatible::NoCipherSuitesInCommon => "it has no cipher suite of ours",
            PeerIncompatible::NoSignatureSchemesInCommon => {
                "it has no signature scheme for our certificate's key"
            }
            why => return format!("it lacks something of TLS: {why:?}"),
        },
        Tls::AlertReceived(alert) => return format!("it ended the handshake: {alert:?}"),
        error => return error.to_string(),
    };
    words.to_owned()
}
