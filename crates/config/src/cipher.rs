//! The TLS 1.2 cipher suites that can be chosen, by the names the platform uses for them.

use std::fmt;

/// A TLS 1.2 cipher suite the router can offer.
///
/// TLS 1.3 suites are not configurable.
///
/// ```
/// use config::CipherSuite;
///
/// let suite = CipherSuite::from_name("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256").unwrap();
/// assert_eq!(suite, CipherSuite::EcdheRsaAes128GcmSha256);
/// assert_eq!(suite.to_string(), "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CipherSuite {
    /// `TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256`
    EcdheRsaAes128GcmSha256,
    /// `TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384`
    EcdheRsaAes256GcmSha384,
}

impl CipherSuite {
    /// Every suite there is; also what is offered by default.
    pub const ALL: [CipherSuite; 2] = [
        CipherSuite::EcdheRsaAes128GcmSha256,
        CipherSuite::EcdheRsaAes256GcmSha384,
    ];

    /// The names of [`ALL`](Self::ALL), in the same order.
    pub const NAMES: [&'static str; 2] = [
        "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
        "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
    ];

    /// The suite of exactly this name.
    pub fn from_name(name: &str) -> Option<CipherSuite> {
        let index = Self::NAMES.iter().position(|known| *known == name)?;
        Some(Self::ALL[index])
    }

    /// The name as the platform writes it.
    pub fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }
}

impl fmt::Display for CipherSuite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_suites_correspond() {
        for suite in CipherSuite::ALL {
            assert_eq!(CipherSuite::from_name(suite.name()), Some(suite));
        }
        assert_eq!(
            CipherSuite::from_name("tls_ecdhe_rsa_with_aes_128_gcm_sha256"),
            None
        );
    }
}
