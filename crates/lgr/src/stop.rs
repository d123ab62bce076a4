//! The wish to stop: ctrl-c, or the polite signal of a supervisor.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Listens for SIGINT and SIGTERM from its making on.
#[derive(Debug)]
pub(crate) struct Stop {
    interrupt: Signal,
    terminate: Signal,
}

impl Stop {
    /// Must be called within a tokio runtime.
    pub(crate) fn listen() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    /// Returns when one of the signals has come since the last call. Cancel safe.
    pub(crate) async fn requested(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
