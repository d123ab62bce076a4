//! The router's process: read the settings, serve, and drain when told to end.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use server::{Server, logging, report};
use tokio::signal::unix::{SignalKind, signal};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// For a port that can't be had, as the reference; anything else that is wrong is 1.
const NO_PORT: u8 = 2;

/// What a shell reports for a process that a signal ended.
const INTERRUPTED: u8 = 130;

fn main() -> ExitCode {
    let settings = match config::Settings::from_env() {
        Ok(settings) => settings,
        Err(error) => {
            for problem in error.problems() {
                eprintln!(
                    "{} {problem}",
                    logging::timestamp(config::Timestamps::Local)
                );
            }
            return ExitCode::FAILURE;
        }
    };
    eprint!("{}", report::table());
    logging::init(settings.log.timestamps);
    for warning in &settings.warnings {
        tracing::warn!("{warning}");
    }

    serve(&settings)
}

#[tokio::main(flavor = "current_thread")]
async fn serve(settings: &config::Settings) -> ExitCode {
    // before anybody can know that we run: a signal from then on must not cut us off
    let (mut terminate, mut interrupt, mut hang_up) = match (
        signal(SignalKind::terminate()),
        signal(SignalKind::interrupt()),
        signal(SignalKind::hangup()),
    ) {
        (Ok(terminate), Ok(interrupt), Ok(hang_up)) => (terminate, interrupt, hang_up),
        (Err(error), ..) | (_, Err(error), _) | (.., Err(error)) => {
            tracing::error!("can't listen for signals: {error}");
            return ExitCode::FAILURE;
        }
    };

    let server = match Server::start(settings) {
        Ok(server) => server,
        Err(error) => {
            tracing::error!("{error}");
            return match error {
                server::Error::Bind { .. } => ExitCode::from(NO_PORT),
                _ => ExitCode::FAILURE,
            };
        }
    };
    tracing::info!("grpc bound to: {}", server.grpc_address());
    tracing::info!("pprof bound to: {}", server.debug_address());

    let told = loop {
        tokio::select! {
            _ = terminate.recv() => break "SIGTERM",
            _ = interrupt.recv() => break "SIGINT",
            _ = hang_up.recv() => reload_certificates(&server),
        }
    };
    tracing::info!("told to end ({told}): draining");
    let drained = tokio::task::spawn_blocking(|| server.drain());
    tokio::select! {
        ended = drained => {
            match ended {
                Ok(true) => tracing::info!("drained"),
                _ => tracing::warn!("the drain deadline has passed: connections were cut"),
            }
            ExitCode::SUCCESS
        }
        _ = terminate.recv() => std::process::exit(INTERRUPTED.into()),
        _ = interrupt.recv() => std::process::exit(INTERRUPTED.into()),
    }
}

fn reload_certificates(server: &Server) {
    match server.reload_certificates() {
        Ok(()) => tracing::info!("certificates read again (SIGHUP): new connections see them"),
        Err(error) => {
            tracing::error!("certificates not read again (SIGHUP), the old ones stay: {error}");
        }
    }
}
