//! What `lgr certs` makes: certificates that TLS peers accept, and, on request, each kind that they
//! must refuse. Handshakes run in memory, with the rules of a router on the server's side.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::sync::{Arc, LazyLock};

use lgr::Error;
use lgr::certs::{self, Authority, Identity, Key, Profile, Usage, Validity, Version};
use lgr::client::Credentials;
use rustls::crypto::aws_lc_rs;
use rustls::server::WebPkiClientVerifier;
use rustls::{
    ClientConnection, RootCertStore, ServerConfig, ServerConnection, SupportedProtocolVersion,
};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};

static AUTHORITY: LazyLock<Authority> = LazyLock::new(|| Authority::new("authority").unwrap());

/// A router's side: asks for a client certificate; speaks the two `ECDHE_RSA` suites in TLS 1.2.
fn server(identity: &Identity) -> Arc<ServerConfig> {
    let mut provider = aws_lc_rs::default_provider();
    provider.cipher_suites.retain(|suite| {
        let name = format!("{:?}", suite.suite());
        suite.tls13().is_some() || (name.contains("ECDHE_RSA") && name.contains("GCM"))
    });
    let provider = Arc::new(provider);
    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_slice(identity.ca.as_bytes()).unwrap())
        .unwrap();
    let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), Arc::clone(&provider))
        .build()
        .unwrap();
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(verifier)
        .with_single_cert(
            vec![CertificateDer::from_pem_slice(identity.cert.as_bytes()).unwrap()],
            PrivateKeyDer::from_pem_slice(identity.key.as_bytes()).unwrap(),
        )
        .unwrap();
    Arc::new(config)
}

/// Runs a handshake; the error is that of whichever side refuses.
fn handshake(
    server_identity: &Identity,
    client: &Credentials,
    name: &str,
) -> Result<SupportedSuite, String> {
    let mut server = ServerConnection::new(server(server_identity)).unwrap();
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let mut client = ClientConnection::new(Arc::clone(client.config()), name).unwrap();
    while client.is_handshaking() || server.is_handshaking() {
        let sent = pass(&mut client, &mut server)? + pass(&mut server, &mut client)?;
        assert!(sent > 0, "a handshake that neither ends nor goes on");
    }
    Ok(format!(
        "{:?}",
        server.negotiated_cipher_suite().unwrap().suite()
    ))
}

type SupportedSuite = String;

/// Carries what one side has to say over to the other.
fn pass<A, B>(
    from: &mut impl std::ops::DerefMut<Target = rustls::ConnectionCommon<A>>,
    to: &mut impl std::ops::DerefMut<Target = rustls::ConnectionCommon<B>>,
) -> Result<usize, String> {
    let mut bytes = Vec::new();
    while from.wants_write() {
        from.write_tls(&mut bytes).unwrap();
    }
    let mut rest = bytes.as_slice();
    while !rest.is_empty() {
        to.read_tls(&mut rest)
            .map_err(|error: io::Error| error.to_string())?;
        to.process_new_packets()
            .map_err(|error| error.to_string())?;
    }
    Ok(bytes.len())
}

fn issue(profile: Profile) -> Identity {
    AUTHORITY.issue("doppler", &profile).unwrap()
}

fn only(version: &'static SupportedProtocolVersion, identity: &Identity) -> Credentials {
    Credentials::from_identity_with(identity, &[version]).unwrap()
}

#[test]
fn usual_identities_agree_with_both_tls_versions() {
    let doppler = issue(Profile::default());
    for name in ["doppler", "localhost", "127.0.0.1", "::1"] {
        handshake(
            &doppler,
            &Credentials::from_identity(&doppler).unwrap(),
            name,
        )
        .unwrap();
    }
    let suite = handshake(
        &doppler,
        &only(&rustls::version::TLS12, &doppler),
        "doppler",
    )
    .unwrap();
    assert!(suite.starts_with("TLS_ECDHE_RSA"), "{suite}");
    let suite = handshake(
        &doppler,
        &only(&rustls::version::TLS13, &doppler),
        "doppler",
    )
    .unwrap();
    assert!(suite.starts_with("TLS13"), "{suite}");
}

#[test]
fn other_names_are_refused() {
    let doppler = issue(Profile::default());
    let client = Credentials::from_identity(&doppler).unwrap();
    let error = handshake(&doppler, &client, "metron").unwrap_err();
    assert!(error.contains("not valid for name"), "{error}");
}

#[test]
fn ecdsa_server_keys_work_with_tls_1_3_only_and_client_keys_with_both() {
    let rsa = issue(Profile::default());
    let ecdsa = issue(Profile {
        key: Key::Ecdsa,
        ..Profile::default()
    });
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        handshake(&rsa, &only(version, &ecdsa), "doppler").unwrap();
    }
    handshake(&ecdsa, &only(&rustls::version::TLS13, &rsa), "doppler").unwrap();
    handshake(&ecdsa, &only(&rustls::version::TLS12, &rsa), "doppler").unwrap_err();
}

/// Field case O7: accepted without alternative names; refused for "server only", for a foreign
/// authority, for version 1, for none at all.
#[test]
fn client_certificates_that_a_router_must_refuse() {
    let doppler = issue(Profile::default());
    let attempt = |identity: &Identity| {
        handshake(
            &doppler,
            &Credentials::from_identity(identity).unwrap(),
            "doppler",
        )
    };

    attempt(&issue(Profile {
        alternative_names: Some(vec![]),
        ..Profile::default()
    }))
    .unwrap();
    attempt(&issue(Profile {
        usage: Usage::ClientOnly,
        ..Profile::default()
    }))
    .unwrap();

    let cases = [
        (
            Profile {
                usage: Usage::ServerOnly,
                ..Profile::default()
            },
            "extended key usage",
        ),
        (
            Profile {
                validity: Validity::Expired,
                ..Profile::default()
            },
            "expired",
        ),
        (
            Profile {
                validity: Validity::NotYet,
                ..Profile::default()
            },
            "not valid yet",
        ),
        (
            Profile {
                version: Version::V1,
                ..Profile::default()
            },
            "UnsupportedCertVersion",
        ),
    ];
    for (profile, reason) in cases {
        let error = attempt(&issue(profile.clone())).unwrap_err();
        assert!(error.contains(reason), "{profile:?}: {error}");
    }

    let foreign = Authority::new("foreign")
        .unwrap()
        .issue("doppler", &Profile::default())
        .unwrap();
    let error = attempt(&Identity {
        ca: doppler.ca.clone(),
        ..foreign
    })
    .unwrap_err();
    assert!(error.contains("UnknownIssuer"), "{error}");

    let error = handshake(
        &doppler,
        &Credentials::anonymous(&doppler.ca).unwrap(),
        "doppler",
    );
    assert!(error.unwrap_err().contains("no certificates"));
}

#[test]
fn client_only_certificates_are_no_router() {
    let doppler = issue(Profile {
        usage: Usage::ClientOnly,
        ..Profile::default()
    });
    let client = Credentials::from_identity(&issue(Profile::default())).unwrap();
    handshake(&doppler, &client, "doppler").unwrap_err();
}

#[test]
fn a_directory_of_identities() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path().join("made/on/the/way");
    let files = certs::create(&directory, &["doppler", "agent"], false).unwrap();

    let mode = |name: &str| {
        directory
            .join(name)
            .metadata()
            .unwrap()
            .permissions()
            .mode()
            & 0o777
    };
    for key in ["ca.key", "doppler.key", "agent.key"] {
        assert_eq!(mode(key), 0o600, "{key}");
    }
    for public in ["ca.crt", "doppler.crt", "agent.crt"] {
        assert_eq!(mode(public), 0o644, "{public}");
    }
    assert_eq!(files[1].key, directory.join("agent.key"));

    let doppler = Identity {
        name: "doppler".to_owned(),
        cert: std::fs::read_to_string(&files[0].cert).unwrap(),
        key: std::fs::read_to_string(&files[0].key).unwrap(),
        ca: std::fs::read_to_string(&files[0].ca).unwrap(),
    };
    let agent = Credentials::from_directory(&directory, "agent").unwrap();
    handshake(&doppler, &agent, "doppler").unwrap();
}

#[test]
fn an_authority_is_replaced_on_request_only() {
    let directory = tempfile::tempdir().unwrap();
    let files = certs::create(directory.path(), &["agent"], false).unwrap();
    let before = std::fs::read_to_string(&files[0].ca).unwrap();

    let error = certs::create(directory.path(), &["agent"], false).unwrap_err();
    assert!(matches!(error, Error::AuthorityExists { .. }));
    assert!(error.to_string().contains("ca.crt"), "{error}");
    assert_eq!(std::fs::read_to_string(&files[0].ca).unwrap(), before);

    certs::create(directory.path(), &["agent"], true).unwrap();
    assert_ne!(std::fs::read_to_string(&files[0].ca).unwrap(), before);
}

#[test]
fn names_that_are_no_file_names_are_refused_before_anything_is_written() {
    let directory = tempfile::tempdir().unwrap();
    for name in ["", "ca", "../agent", "a/b", ".hidden", "ä"] {
        let error = certs::create(directory.path(), &["agent", name], false).unwrap_err();
        assert!(
            matches!(error, Error::IdentityName { .. }),
            "{name}: {error}"
        );
    }
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[test]
fn unusable_files_are_named() {
    let directory = tempfile::tempdir().unwrap();
    let files = certs::create(directory.path(), &["agent", "metron"], false).unwrap();
    let empty = directory.path().join("empty.pem");
    std::fs::write(&empty, "nothing in here").unwrap();
    let [agent, metron] = files.as_slice() else {
        panic!("two identities")
    };

    let error = |cert, key, ca| Credentials::load(cert, key, ca).unwrap_err().to_string();
    assert!(error(&empty, &agent.key, &agent.ca).contains("empty.pem: holds no certificate"));
    assert!(error(&agent.cert, &empty, &agent.ca).contains("empty.pem: holds no private key"));
    assert!(error(&agent.cert, &agent.key, &empty).contains("empty.pem: holds no certificate"));
    let absent = directory.path().join("absent.pem");
    assert!(error(&agent.cert, &agent.key, &absent).contains("cannot read"));
    let mismatch = error(&agent.cert, &metron.key, &agent.ca);
    assert!(
        mismatch.contains("agent.crt and") && mismatch.contains("metron.key"),
        "{mismatch}"
    );
}
