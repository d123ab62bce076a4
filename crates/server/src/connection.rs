//! One client's connection: TCP, then TLS, then HTTP/2, until either side has had enough.

use std::{
    convert::Infallible,
    io,
    net::{SocketAddr, TcpStream as StdTcpStream},
    pin::pin,
    sync::Arc,
    time::Duration,
};

use gather::Gather;
use http::Request;
use hyper::{body::Incoming, server::conn::http2, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::{io::BufReader, net::TcpStream, time};
use tokio_rustls::server::TlsStream;

use crate::{
    preface::{self, Begun},
    refusals::reason,
    service::Services,
    summed_up::SummedUp,
    tls,
};

/// Under TLS, which otherwise reads 4 KiB at a time: a message of a hundred envelopes in one go.
const READ_BUFFER: usize = 48 * 1024;

/// Per stream: what a producer may send ahead of its turn ([`pace`](crate::pace)), which thousands of
/// them may do at once. The library opens the window again when a third of it is used up, by a write
/// that wakes the producer. A third is more than a message of a hundred envelopes, so that not each of
/// those costs such a write.
const STREAM_WINDOW: u32 = 128 * 1024;

/// Per connection, for many streams at once.
const CONNECTION_WINDOW: u32 = 1024 * 1024;

/// Stale data that a slow subscriber's stream may hold behind its ring.
const SEND_BUFFER: usize = 128 * 1024;

/// Streams of a connection that may be reset before we have come to see them; one more ends the
/// connection. Consumers that subscribe and change their minds are no attack, however busy we are;
/// the library's 20 would take all other streams of a large proxy with them.
const HASTY_RESETS: usize = 1024;

/// How the router finds out that a client has vanished without a word. A client that is there
/// answers pings by itself, however slowly it reads its streams.
///
/// # Examples
///
/// ```
/// let keepalive = server::Keepalive::default();
/// // within a minute the other members of its shard group get everything
/// assert!((keepalive.interval + keepalive.timeout).as_secs() < 60);
/// ```
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Keepalive {
    /// Time without a word from the client after which it is pinged. Default: 30 s.
    pub interval: Duration,
    /// Time it has for its answer. Default: 20 s.
    pub timeout: Duration,
}

impl Default for Keepalive {
    fn default() -> Self {
        Self {
            interval: Duration::from_secs(30),
            timeout: Duration::from_secs(20),
        }
    }
}

/// What is the same for all connections.
pub(crate) struct Shared {
    pub(crate) tls: Arc<tls::Port>,
    pub(crate) services: Services,
    pub(crate) handshake_timeout: Duration,
    pub(crate) keepalive: Keepalive,
    pub(crate) max_age: Option<config::ConnectionAge>,
    pub(crate) refusals: Arc<SummedUp>,
}

/// Serves one accepted socket to its end.
pub(crate) async fn serve(socket: StdTcpStream, peer: SocketAddr, shared: Arc<Shared>) {
    // 127.0.0.1 rather than ::ffff:127.0.0.1
    let peer = SocketAddr::new(peer.ip().to_canonical(), peer.port());
    let drain = shared.services.drain.clone();
    let opened = tokio::select! {
        opened = time::timeout(shared.handshake_timeout, handshake(socket, &shared)) => opened,
        // a peer that has not finished its handshake has nothing to lose
        () = drain.cancelled() => return,
    };
    let client = match opened.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
        Ok(client) => client,
        Err(error) => {
            let line = || format!("connection from {peer} refused: {}", reason(&error));
            return shared.refusals.note(line);
        }
    };

    let name: Arc<str> = peer.to_string().into();
    let services = shared.services.clone();
    let service = service_fn(move |request: Request<Incoming>| {
        let answer = services.clone().call(name.clone(), request);
        async move { Ok::<_, Infallible>(answer.await) }
    });
    let mut connection = pin!(
        http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .max_concurrent_streams(None)
            .max_pending_accept_reset_streams(HASTY_RESETS)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_send_buf_size(SEND_BUFFER)
            .keep_alive_interval(shared.keepalive.interval)
            .keep_alive_timeout(shared.keepalive.timeout)
            .serve_connection(TokioIo::new(Gather::new(client)), service)
    );

    let old = async {
        match shared.max_age {
            Some(max) => time::sleep(max.age).await,
            None => std::future::pending().await,
        }
    };
    // how a connection ends is the peer's business: nothing to log
    tokio::select! {
        _ = &mut connection => {}
        () = drain.cancelled() => {
            connection.as_mut().graceful_shutdown();
            let _ = connection.await;
        }
        () = old => {
            connection.as_mut().graceful_shutdown();
            let grace = shared.max_age.map_or(Duration::ZERO, |max| max.grace);
            let _ = time::timeout(grace, connection).await;
        }
    }
}

/// A client that has shown its certificate and begun to speak HTTP/2.
type Client = Begun<TlsStream<BufReader<TcpStream>>>;

async fn handshake(socket: StdTcpStream, shared: &Shared) -> io::Result<Client> {
    let socket = TcpStream::from_std(socket)?;
    prepare(&socket, shared.keepalive)?;
    let client = shared
        .tls
        .acceptor()
        .accept(BufReader::with_capacity(READ_BUFFER, socket))
        .await?;
    if client.get_ref().1.alpn_protocol() != Some(b"h2") {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "it did not ask for h2 (ALPN)",
        ));
    }
    preface::expect(client).await
}

/// Sets what the system has to know of a socket.
fn prepare(socket: &TcpStream, keepalive: Keepalive) -> io::Result<()> {
    // with it off, small frames wait for the peer's delayed acknowledgements
    socket.set_nodelay(true)?;
    // A ping without an answer ends the streams. If the peer vanished while much was on its way,
    // the last words of the connection would wait in a full socket, and the connection with them.
    #[cfg(target_os = "linux")]
    {
        let longest = (keepalive.interval + keepalive.timeout).as_millis();
        let longest = u32::try_from(longest).unwrap_or(u32::MAX);
        rustix::net::sockopt::set_tcp_user_timeout(socket, longest)?;
    }
    #[cfg(not(target_os = "linux"))]
    let _ = keepalive;
    Ok(())
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    /// Field case R13: without it there would be steps of 40 ms in the latency of small batches.
    #[tokio::test]
    async fn accepted_sockets_do_not_delay() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let _peer = TcpStream::connect(listener.local_addr().unwrap()).await;
        let (socket, _) = listener.accept().await.unwrap();
        assert!(!socket.nodelay().unwrap(), "nothing to set");
        prepare(&socket, Keepalive::default()).unwrap();
        assert!(socket.nodelay().unwrap());
        #[cfg(target_os = "linux")]
        assert_eq!(
            rustix::net::sockopt::tcp_user_timeout(&socket).unwrap(),
            50_000
        );
    }
}
