//! `lgr certs`: a directory full of certificates.

use std::path::PathBuf;

use lgr::Error;
use lgr::certs::{NAMES, create};

/// Make an authority and identities, for trying things out
///
/// Writes ca.crt and ca.key, and NAME.crt and NAME.key for each identity: doppler (the router),
/// metron (the router's agent), reverselogproxy, trafficcontroller and agent (its clients). All
/// are valid for localhost, too. Not meant for production.
///
/// Example, with a router to go with it:
///
///   lgr certs certs
///   ROUTER_PORT=8082 ROUTER_CA_FILE=certs/ca.crt ROUTER_CERT_FILE=certs/doppler.crt \
///     ROUTER_KEY_FILE=certs/doppler.key router
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Arguments {
    /// Directory to write to; made if it isn't there
    directory: PathBuf,
    /// Make one more identity; may be repeated
    #[arg(long, value_name = "NAME")]
    identity: Vec<String>,
    /// Replace an authority that is there; what it has issued is worthless then
    #[arg(long)]
    force: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Error> {
    let mut names = NAMES.to_vec();
    for name in &arguments.identity {
        if !names.contains(&name.as_str()) {
            names.push(name);
        }
    }
    create(&arguments.directory, &names, arguments.force)?;
    let (directory, names) = (arguments.directory.display(), names.join(", "));
    eprintln!("lgr: wrote an authority and the identities {names} to {directory}");
    Ok(())
}
