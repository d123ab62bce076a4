//! The running router: its threads, its ports, and how it ends.
//!
//! ```text
//! control thread: accepts connections, deals them out, serves the debug port
//! data-plane threads (one by default): handshakes, streams, the repeater
//! ```
//!
//! Each thread drives a current-thread runtime: on the data path a wake-up across threads costs
//! more than the work that it would move.

use std::{
    future::Future,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use config::Settings;
use diode::Limits;
use router::{EgressLimits, FanOut, Options, Ordering, Router};
use tokio::{
    net::{TcpListener, TcpSocket},
    runtime::{Builder, Handle},
    time,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    Error, Keepalive,
    agent::Agent,
    connection,
    debug::Debug,
    drops::Drops,
    metrics::{Exposition, Sources},
    service::Services,
    summed_up::SummedUp,
    tls,
};

/// Connections that the kernel holds for us until they are accepted: a whole fleet may reconnect
/// at once.
const BACKLOG: u32 = 4096;

/// Pause when a connection can't be accepted, which means that descriptors have run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What reporting the last figures may take at the end.
const LAST_REPORTS: Duration = Duration::from_secs(2);

/// A router that listens.
///
/// # Examples
///
/// ```no_run
/// let settings = config::Settings::from_env()?;
/// let server = server::Server::start(&settings)?;
/// println!("listening on {}", server.grpc_address());
/// server.drain();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Server {
    grpc_address: SocketAddr,
    debug_address: SocketAddr,
    router: Router,
    tls: Arc<tls::Port>,
    ready: Arc<AtomicBool>,
    /// Stops accepting and starts to drain.
    drain: CancellationToken,
    /// Connections; empty when all have ended.
    connections: TaskTracker,
    drain_timeout: Duration,
    /// Those who report figures, and what tells them to report the last ones.
    reporters: TaskTracker,
    last_reports: CancellationToken,
    control: Worker,
    data_plane: Vec<Worker>,
}

/// A thread with a current-thread runtime.
struct Worker {
    handle: Handle,
    end: CancellationToken,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Binds the ports and starts to serve.
    ///
    /// # Errors
    ///
    /// Whatever keeps the router from serving; nothing is left running.
    pub fn start(settings: &Settings) -> Result<Self, Error> {
        Self::start_with(settings, Keepalive::default())
    }

    /// The same with other intervals for finding out who has vanished.
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start).
    pub fn start_with(settings: &Settings, keepalive: Keepalive) -> Result<Self, Error> {
        let tls = Arc::new(tls::Port::new(settings.tls.clone())?);
        let (router, repeater) = Router::new(options(settings))?;

        let control = Worker::start("control".to_owned())?;
        let data_plane = (0..settings.listen.data_plane_threads.get())
            .map(|index| Worker::start(format!("data-{index}")))
            .collect::<Result<Vec<_>, _>>()?;

        let grpc = control.bind(
            &[
                (Ipv6Addr::UNSPECIFIED, settings.listen.port).into(),
                // on a machine without IPv6
                (Ipv4Addr::UNSPECIFIED, settings.listen.port).into(),
            ],
            "ROUTER_PORT",
        )?;
        let debug = control.bind(
            &[(Ipv4Addr::LOCALHOST, settings.pprof.port).into()],
            "ROUTER_PPROF_PORT",
        )?;
        let (grpc_address, debug_address) = (local_address(&grpc)?, local_address(&debug)?);

        let drain = CancellationToken::new();
        let refusals = Arc::new(SummedUp::new("connections refused"));
        let undecodable = Arc::new(SummedUp::new("undecodable v1 envelopes"));
        let shared = Arc::new(connection::Shared {
            tls: tls.clone(),
            services: Services {
                router: router.clone(),
                drain: drain.clone(),
                undecodable: undecodable.clone(),
            },
            handshake_timeout: settings.listen.handshake_timeout,
            keepalive,
            max_age: settings.listen.max_connection_age,
            refusals: refusals.clone(),
        });
        let connections = TaskTracker::new();
        let ready = Arc::new(AtomicBool::new(true));

        data_plane[0].handle.spawn(repeater.run());
        let dealt_to = data_plane
            .iter()
            .map(|worker| worker.handle.clone())
            .collect();
        control
            .handle
            .spawn(accept(grpc, shared, connections.clone(), dealt_to));
        control.handle.spawn(
            Debug {
                ready: ready.clone(),
                metrics: Exposition::new(Sources {
                    router: router.clone(),
                    capacities: settings.buffers.clone(),
                    connections: connections.clone(),
                    refusals: refusals.clone(),
                    undecodable: undecodable.clone(),
                    tls: tls.clone(),
                }),
            }
            .serve(debug),
        );
        for often in [refusals, undecodable] {
            control.handle.spawn(async move { often.report().await });
        }

        let (reporters, last_reports) = (TaskTracker::new(), CancellationToken::new());
        let drops = Drops::default().watch(router.clone(), last_reports.clone());
        reporters.spawn_on(drops, &control.handle);
        if let Some(agent) = Agent::new(settings, router.clone()) {
            reporters.spawn_on(agent.run(last_reports.clone()), &control.handle);
        }

        Ok(Self {
            grpc_address,
            debug_address,
            router,
            tls,
            ready,
            drain,
            connections,
            drain_timeout: settings.drain.timeout,
            reporters,
            last_reports,
            control,
            data_plane,
        })
    }

    /// Where producers and consumers connect.
    pub fn grpc_address(&self) -> SocketAddr {
        self.grpc_address
    }

    /// Where health and metrics are.
    pub fn debug_address(&self) -> SocketAddr {
        self.debug_address
    }

    /// The pipeline inside.
    pub fn router(&self) -> &Router {
        &self.router
    }

    /// Reads the certificate files again. Connections from now on see the new identity and are
    /// checked against the new authorities; open ones stay as they are.
    ///
    /// # Errors
    ///
    /// Whatever is wrong with the files, as at the start; the router goes on with what it has.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # let settings = config::Settings::from_env()?;
    /// let server = server::Server::start(&settings)?;
    /// if let Err(error) = server.reload_certificates() {
    ///     eprintln!("the old certificates stay in use: {error}");
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn reload_certificates(&self) -> Result<(), Error> {
        self.tls.reload()
    }

    /// Ends in order, within the drain deadline: no new connection; producers' streams end;
    /// subscribers get what was accepted, then their streams end with UNAVAILABLE. Returns
    /// whether everybody had ended by the deadline.
    pub fn drain(mut self) -> bool {
        let deadline = Instant::now() + self.drain_timeout;
        self.ready.store(false, Relaxed);
        self.drain.cancel();
        self.connections.close();

        let (router, connections) = (self.router.clone(), self.connections.clone());
        let ended = self.control.run(async move {
            // Streams of producers have seen the end of their input by the next turn of their
            // thread; the ring is closed behind the last message that they took.
            router.stop();
            time::timeout_at(deadline.into(), connections.wait())
                .await
                .is_ok()
        });
        for worker in self.data_plane.drain(..) {
            drop(worker);
        }

        // what rings still held is counted as dropped by now
        self.last_reports.cancel();
        self.reporters.close();
        let reporters = self.reporters.clone();
        self.control.run(async move {
            let _ = time::timeout(LAST_REPORTS, reporters.wait()).await;
        });
        ended
    }
}

/// Accepts connections and deals them out, until the drain begins.
async fn accept(
    listener: TcpListener,
    shared: Arc<connection::Shared>,
    connections: TaskTracker,
    data_plane: Vec<Handle>,
) {
    let drain = shared.services.drain.clone();
    for handle in data_plane.iter().cycle() {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = drain.cancelled() => return,
        };
        // from here on it belongs to another thread's runtime
        match accepted.and_then(|(socket, peer)| Ok((socket.into_std()?, peer))) {
            Ok((socket, peer)) => {
                let serve = connection::serve(socket, peer, shared.clone());
                connections.spawn_on(serve, handle);
            }
            Err(error) => {
                tracing::warn!("can't accept a connection: {error}");
                time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

impl Worker {
    fn start(name: String) -> Result<Self, Error> {
        let fail = |source| Error::Start {
            what: "thread's runtime",
            source,
        };
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(fail)?;
        let handle = runtime.handle().clone();
        let end = CancellationToken::new();
        let until = end.clone();
        let thread = thread::Builder::new()
            .name(name)
            .spawn(move || runtime.block_on(until.cancelled()))
            .map_err(fail)?;
        Ok(Self {
            handle,
            end,
            thread: Some(thread),
        })
    }

    /// Runs a future there and waits for it here.
    fn run<T: Send + 'static>(&self, future: impl Future<Output = T> + Send + 'static) -> T {
        let (done, result) = std::sync::mpsc::channel();
        self.handle.spawn(async move {
            let _ = done.send(future.await);
        });
        result.recv().expect("the worker runs until it is dropped")
    }

    /// Binds the first of the addresses that the machine has.
    fn bind(&self, addresses: &[SocketAddr], variable: &'static str) -> Result<TcpListener, Error> {
        let _in_runtime = self.handle.enter();
        let mut failed = None;
        for &address in addresses {
            match listen(address) {
                Ok(listener) => return Ok(listener),
                Err(source) => {
                    let first = failed.get_or_insert(Error::Bind {
                        address,
                        variable,
                        source,
                    });
                    // only a missing protocol is worth another try
                    let Error::Bind { source, .. } = first else {
                        break;
                    };
                    if source.kind() == std::io::ErrorKind::AddrInUse {
                        break;
                    }
                }
            }
        }
        Err(failed.expect("at least one address"))
    }
}

fn listen(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = if address.is_ipv6() {
        TcpSocket::new_v6()
    } else {
        TcpSocket::new_v4()
    }?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

fn local_address(listener: &TcpListener) -> Result<SocketAddr, Error> {
    listener.local_addr().map_err(|source| Error::Start {
        what: "listener",
        source,
    })
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.end.cancel();
        if let Some(thread) = self.thread.take() {
            // a panic of the runtime itself has been printed already
            let _ = thread.join();
        }
    }
}

fn options(settings: &Settings) -> Options {
    let buffers = &settings.buffers;
    Options {
        ingress: Limits {
            weight: buffers.ingress,
            bytes: buffers.ingress_bytes,
        },
        egress: EgressLimits {
            ring: Limits {
                weight: buffers.egress_v2,
                bytes: buffers.egress_bytes,
            },
            batch_bytes: buffers.egress_batch_bytes,
            ..EgressLimits::default()
        },
        egress_v1: EgressLimits {
            ring: Limits {
                weight: buffers.egress_v1,
                bytes: buffers.egress_bytes,
            },
            batch_bytes: buffers.egress_batch_bytes,
            ..EgressLimits::default()
        },
        egress_total_bytes: buffers.egress_total_bytes,
        fanout: settings.fanout.as_ref().map(|fanout| FanOut {
            ordering: match fanout.ordering {
                config::Ordering::None => Ordering::None,
                config::Ordering::Source => Ordering::Source,
            },
            ..FanOut::new(fanout.workers)
        }),
    }
}
