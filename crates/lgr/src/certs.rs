//! Certificates for trying the router out and for testing it: a certificate authority, and an
//! identity for each program that speaks to the router or is one.
//!
//! [`create`] fills a directory, as `lgr certs DIR` does. [`Authority`] gives the same in memory,
//! and, through a [`Profile`], also the certificates that a router must refuse: expired, of the
//! wrong usage, of a foreign authority.
//!
//! Keys are RSA unless asked otherwise, since the TLS 1.2 suites that the router speaks
//! (`ECDHE_RSA`) cannot use any other server key.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, PKCS_RSA_SHA256, RsaKeySize,
};
use time::{Duration, OffsetDateTime};

use crate::Error;

/// The identities that [`create`] writes unless told otherwise: the router under the name that its
/// clients verify (`doppler`), the agent under the name that the router verifies (`metron`), the
/// usual consumers, and an agent's client side.
pub const NAMES: [&str; 5] = [
    "doppler",
    "metron",
    "reverselogproxy",
    "trafficcontroller",
    "agent",
];

/// The kind of key of a certificate. [`Profile`] has an example.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Key {
    /// RSA with 2048 bits: usable with TLS 1.3 and with the `ECDHE_RSA` suites of TLS 1.2.
    #[default]
    Rsa,
    /// ECDSA on P-256: as a server key usable with TLS 1.3 only.
    Ecdsa,
}

/// What a certificate may be used for (its extended key usages). [`Profile`] has an example.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Usage {
    /// Server and client: what a router and its peers need.
    #[default]
    Both,
    /// Server only: a router refuses it as a client certificate.
    ServerOnly,
    /// Client only: a client refuses it as a router's certificate.
    ClientOnly,
}

/// When a certificate is valid. [`Profile`] has an example.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Validity {
    /// From yesterday, for ten years.
    #[default]
    Now,
    /// Until yesterday.
    Expired,
    /// From tomorrow on.
    NotYet,
}

/// The X.509 version of a certificate. [`Profile`] has an example.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Version {
    /// Version 3, with extensions: what everybody uses.
    #[default]
    V3,
    /// Version 1, without extensions: a router refuses it.
    V1,
}

/// What an identity's certificate is like. The default is one that everybody accepts; tests change
/// a field to get one that somebody must refuse.
///
/// ```
/// use lgr::certs::{Authority, Key, Profile, Usage, Validity, Version};
///
/// let authority = Authority::new("an authority")?;
/// let profile = Profile {
///     key: Key::Ecdsa,
///     usage: Usage::ServerOnly,
///     validity: Validity::Expired,
///     version: Version::V3,
///     alternative_names: None,
/// };
/// let identity = authority.issue("doppler", &profile)?;
/// assert!(identity.cert.starts_with("-----BEGIN CERTIFICATE-----"));
/// # Ok::<(), lgr::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Profile {
    /// Kind of key.
    pub key: Key,
    /// Extended key usages.
    pub usage: Usage,
    /// Period of validity.
    pub validity: Validity,
    /// X.509 version.
    pub version: Version,
    /// Subject alternative names, host names and addresses alike; an empty list leaves the
    /// extension out. `None` is the usual list: the identity's name, `localhost`, `127.0.0.1` and
    /// `::1`.
    pub alternative_names: Option<Vec<String>>,
}

/// A certificate authority that lives in memory.
///
/// ```
/// let authority = lgr::certs::Authority::new("an authority")?;
/// let doppler = authority.issue("doppler", &Default::default())?;
/// assert_eq!(doppler.ca, authority.cert());
/// # Ok::<(), lgr::Error>(())
/// ```
#[derive(Debug)]
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    cert: String,
}

impl Authority {
    /// Makes an authority with an RSA key and `common_name` as its subject.
    ///
    /// # Errors
    /// [`Error::Certificate`] if the cryptography library fails.
    pub fn new(common_name: &str) -> Result<Self, Error> {
        let fail = |reason| Error::Certificate {
            name: common_name.to_owned(),
            reason,
        };
        let mut params = params(common_name, Validity::Now);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![
            KeyUsagePurpose::DigitalSignature,
            KeyUsagePurpose::KeyCertSign,
            KeyUsagePurpose::CrlSign,
        ];
        let key = generate(Key::Rsa).map_err(fail)?;
        let cert = params.self_signed(&key).map_err(fail)?.pem();
        Ok(Self {
            issuer: Issuer::new(params, key),
            cert,
        })
    }

    /// The authority's own certificate as PEM.
    pub fn cert(&self) -> &str {
        &self.cert
    }

    /// The authority's private key as PEM.
    pub fn key(&self) -> String {
        self.issuer.key().serialize_pem()
    }

    /// Issues a certificate with the common name `name`.
    ///
    /// # Errors
    /// [`Error::Certificate`] if an alternative name is not one, or the cryptography library fails.
    pub fn issue(&self, name: &str, profile: &Profile) -> Result<Identity, Error> {
        let fail = |reason| Error::Certificate {
            name: name.to_owned(),
            reason,
        };
        let names = profile.alternative_names.clone().unwrap_or_else(|| {
            [name, "localhost", "127.0.0.1", "::1"]
                .map(str::to_owned)
                .to_vec()
        });
        let mut params = params(name, profile.validity);
        params.subject_alt_names = CertificateParams::new(names)
            .map_err(fail)?
            .subject_alt_names;
        params.use_authority_key_identifier_extension = true;
        params.key_usages = vec![
            KeyUsagePurpose::DigitalSignature,
            KeyUsagePurpose::KeyEncipherment,
        ];
        params.extended_key_usages = match profile.usage {
            Usage::Both => {
                vec![
                    ExtendedKeyUsagePurpose::ServerAuth,
                    ExtendedKeyUsagePurpose::ClientAuth,
                ]
            }
            Usage::ServerOnly => vec![ExtendedKeyUsagePurpose::ServerAuth],
            Usage::ClientOnly => vec![ExtendedKeyUsagePurpose::ClientAuth],
        };
        let key = generate(profile.key).map_err(fail)?;
        let cert = params.signed_by(&key, &self.issuer).map_err(fail)?;
        let cert = match profile.version {
            Version::V3 => cert.pem(),
            Version::V1 => version_1::rewrite(cert.der(), self.issuer.key()).map_err(fail)?,
        };
        Ok(Identity {
            name: name.to_owned(),
            cert,
            key: key.serialize_pem(),
            ca: self.cert.clone(),
        })
    }
}

/// A certificate with its private key, and the authority to check peers against. All PEM.
///
/// ```
/// use lgr::certs::Authority;
///
/// let directory = tempfile::tempdir()?;
/// let agent = Authority::new("an authority")?.issue("agent", &Default::default())?;
/// let files = agent.write(directory.path())?;
/// assert!(files.key.ends_with("agent.key"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Common name.
    pub name: String,
    /// The certificate.
    pub cert: String,
    /// Its private key.
    pub key: String,
    /// The certificate of the authority that issued it. Replace it by another authority's to get a
    /// peer that trusts the wrong one.
    pub ca: String,
}

impl Identity {
    /// Writes `NAME.crt`, `NAME.key` (readable by the owner only) and `ca.crt` into `directory`,
    /// replacing what is there.
    ///
    /// # Errors
    /// [`Error::Write`] with the path that could not be written.
    pub fn write(&self, directory: &Path) -> Result<Files, Error> {
        let files = Files::of(directory, &self.name);
        write(&files.cert, &self.cert, PUBLIC)?;
        write(&files.key, &self.key, PRIVATE)?;
        write(&files.ca, &self.ca, PUBLIC)?;
        Ok(files)
    }
}

/// Where the three files of an identity are.
///
/// ```
/// let files = lgr::certs::Files::of("certs".as_ref(), "doppler");
/// assert!(files.cert.ends_with("certs/doppler.crt"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Files {
    /// Certificate.
    pub cert: PathBuf,
    /// Private key.
    pub key: PathBuf,
    /// Certificate of the authority.
    pub ca: PathBuf,
}

impl Files {
    /// The names that `lgr certs` gives the files of identity `name` in `directory`.
    pub fn of(directory: &Path, name: &str) -> Self {
        Self {
            cert: directory.join(format!("{name}.crt")),
            key: directory.join(format!("{name}.key")),
            ca: directory.join("ca.crt"),
        }
    }
}

/// Fills `directory` (made if it isn't there) with a new authority, `ca.crt` and `ca.key`, and for
/// each of `names` an identity, `NAME.crt` and `NAME.key`. Returns the identities' files in the
/// order of `names`.
///
/// With `force` an authority that is there is replaced; what it has issued is worthless then.
///
/// ```
/// let directory = tempfile::tempdir()?;
/// let files = lgr::certs::create(directory.path(), &["doppler"], false)?;
/// assert!(files[0].cert.exists());
/// assert!(lgr::certs::create(directory.path(), &["doppler"], false).is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`Error::AuthorityExists`] if there is one and `force` isn't set; [`Error::IdentityName`] for a
/// name that is no plain file name; [`Error::Write`] with the path that could not be written.
pub fn create(directory: &Path, names: &[&str], force: bool) -> Result<Vec<Files>, Error> {
    for name in names {
        let plain = !name.is_empty()
            && *name != "ca"
            && name
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
            && !name.starts_with('.');
        if !plain {
            return Err(Error::IdentityName {
                name: (*name).to_owned(),
            });
        }
    }
    let (ca_cert, ca_key) = (directory.join("ca.crt"), directory.join("ca.key"));
    if let Some(path) = [&ca_cert, &ca_key].into_iter().find(|path| path.exists())
        && !force
    {
        return Err(Error::AuthorityExists { path: path.clone() });
    }
    fs::create_dir_all(directory).map_err(|source| Error::Write {
        path: directory.to_owned(),
        source,
    })?;
    let authority = Authority::new("Loggregator test authority")?;
    let identities = names
        .iter()
        .map(|name| authority.issue(name, &Profile::default()))
        .collect::<Result<Vec<_>, _>>()?;
    write(&ca_key, &authority.key(), PRIVATE)?;
    write(&ca_cert, authority.cert(), PUBLIC)?;
    identities
        .iter()
        .map(|identity| identity.write(directory))
        .collect()
}

const PUBLIC: u32 = 0o644;
const PRIVATE: u32 = 0o600;

/// Writes a file that never exists with wider permissions than `mode`: an older file is removed
/// first, since opening it would keep its mode.
fn write(path: &Path, content: &str, mode: u32) -> Result<(), Error> {
    let attempt = || {
        match fs::remove_file(path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(mode)
            .open(path)?;
        file.write_all(content.as_bytes())
    };
    attempt().map_err(|source| Error::Write {
        path: path.to_owned(),
        source,
    })
}

fn generate(key: Key) -> Result<KeyPair, rcgen::Error> {
    match key {
        Key::Rsa => KeyPair::generate_rsa_for(&PKCS_RSA_SHA256, RsaKeySize::_2048),
        Key::Ecdsa => KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256),
    }
}

/// Subject and dates; everything else is up to the caller.
fn params(common_name: &str, validity: Validity) -> CertificateParams {
    let (now, day) = (OffsetDateTime::now_utc(), Duration::days(1));
    let (not_before, not_after) = match validity {
        Validity::Now => (now - day, now + 3650 * day),
        Validity::Expired => (now - 30 * day, now - day),
        Validity::NotYet => (now + day, now + 3650 * day),
    };
    let mut distinguished_name = DistinguishedName::new();
    distinguished_name.push(DnType::CommonName, common_name);
    let mut params = CertificateParams::default();
    params.distinguished_name = distinguished_name;
    params.not_before = not_before;
    params.not_after = not_after;
    params
}

/// Version 1 certificates, which the generator cannot make: the signed part of a version 3
/// certificate loses its first element (the version) and its last (the extensions), and is signed
/// again.
mod version_1 {
    use base64::prelude::{BASE64_STANDARD, Engine};
    use rcgen::SigningKey;
    use rustls_pki_types::CertificateDer;

    const SEQUENCE: u8 = 0x30;
    const BIT_STRING: u8 = 0x03;
    const VERSION: u8 = 0xA0;
    const EXTENSIONS: u8 = 0xA3;

    pub(super) fn rewrite(
        der: &CertificateDer<'_>,
        key: &impl SigningKey,
    ) -> Result<String, rcgen::Error> {
        let broken = || rcgen::Error::CouldNotParseCertificate;
        let (_, certificate, _) = element(der).ok_or_else(broken)?;
        let (_, signed, rest) = element(certificate).ok_or_else(broken)?;
        let (_, algorithm, _) = element(rest).ok_or_else(broken)?;

        let mut kept = Vec::new();
        let mut rest = signed;
        while !rest.is_empty() {
            let (tag, content, next) = element(rest).ok_or_else(broken)?;
            if tag != VERSION && tag != EXTENSIONS {
                kept.extend(encode(tag, content));
            }
            rest = next;
        }
        let signed = encode(SEQUENCE, &kept);
        let mut signature = vec![0]; // no unused bits
        signature.extend(key.sign(&signed)?);

        let mut certificate = signed;
        certificate.extend(encode(SEQUENCE, algorithm));
        certificate.extend(encode(BIT_STRING, &signature));
        Ok(pem(&encode(SEQUENCE, &certificate)))
    }

    /// Tag, content and what follows of the first element of `der`.
    fn element(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
        let (&tag, rest) = der.split_first()?;
        let (&first, rest) = rest.split_first()?;
        let (length, rest) = if first < 0x80 {
            (usize::from(first), rest)
        } else {
            let (bytes, rest) = rest.split_at_checked(usize::from(first & 0x7F))?;
            (
                bytes
                    .iter()
                    .fold(0, |length, &byte| length << 8 | usize::from(byte)),
                rest,
            )
        };
        let (content, rest) = rest.split_at_checked(length)?;
        Some((tag, content, rest))
    }

    fn encode(tag: u8, content: &[u8]) -> Vec<u8> {
        let mut der = vec![tag];
        let length = content.len().to_be_bytes();
        let length = &length[length.iter().take_while(|&&byte| byte == 0).count()..];
        match *length {
            [] => der.push(0),
            [short] if short < 0x80 => der.push(short),
            _ => {
                der.push(0x80 | length.len() as u8);
                der.extend(length);
            }
        }
        der.extend(content);
        der
    }

    fn pem(der: &[u8]) -> String {
        let text = BASE64_STANDARD.encode(der);
        let mut pem = String::from("-----BEGIN CERTIFICATE-----\n");
        for (position, symbol) in text.chars().enumerate() {
            pem.push(symbol);
            if position % 64 == 63 {
                pem.push('\n');
            }
        }
        pem.push_str("\n-----END CERTIFICATE-----\n");
        pem
    }
}
