//! Connections: taken, encrypted, bounded in time, and let go of in good order.

use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use chronotile_archive::Archive;
use chronotile_historian::{Historian, HistorianOptions};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Sleep;
use tokio_rustls::TlsAcceptor;
use tower_service::Service as _;

use crate::access::Access;
use crate::app::{App, Peer, router};
use crate::diagnostics;
use crate::front_ends::FrontEnds;
use crate::machine;
use crate::settings::{ServiceError, Settings};

/// Serves an archive until the process is told to stop (SIGTERM or SIGINT): then no more connections are taken, requests that
/// are under way end, and what they brought is stored. `front_ends` answers for events and jobs; without it they are not served.
/// `listening` is called with the address once requests are answered.
///
/// # Errors
/// Settings that cannot be used, an address that is taken, an archive that keeps no history and cannot.
pub async fn serve(
    archive: Archive,
    settings: Settings,
    front_ends: Option<Arc<dyn FrontEnds>>,
    listening: impl FnOnce(std::net::SocketAddr) + Send,
) -> Result<(), ServiceError> {
    let access = Access::open(settings.tokens.as_deref())?;
    if !access.is_required() && !settings.listen.ip().is_loopback() {
        return Err(ServiceError::Exposed { listen: settings.listen });
    }
    check_open_files(settings.limits.connections)?;
    let tls = settings.tls.as_ref().map(|(certificate, key)| acceptor(certificate, key)).transpose()?;
    let failed = |error: io::Error| ServiceError::Listen { listen: settings.listen, reason: error.to_string() };
    let listener = TcpListener::bind(settings.listen).await.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    let mut signals = Signals::new().map_err(failed)?;
    let options = HistorianOptions { create: true, future_max_ns: settings.limits.future_max_ns };
    let historian = Historian::open(archive, options).await?;
    let app = App::new(historian, settings, access, front_ends);
    let mut upkeep = vec![tokio::spawn(refresh(app.clone()))];
    if let Some(every) = app.settings.diagnostics {
        upkeep.push(tokio::spawn(diagnostics::run(app.clone(), address, every)));
    }
    let scheme = if tls.is_some() { "https" } else { "http" };
    app.log.event("info", &format!("serving {} at {scheme}://{address}", app.historian.archive().url()));
    listening(address);
    let open = GracefulShutdown::new();
    accept(&app, listener, tls, &open, &mut signals).await;
    app.stopping.store(true, Ordering::Relaxed);
    app.log.event("info", "stopping: requests that are under way end first");
    let stop_time = app.settings.limits.stop_time;
    if tokio::time::timeout(stop_time, open.shutdown()).await.is_err() {
        app.log.event("warn", &format!("requests that were not over after {} s were cut off", stop_time.as_secs()));
    }
    upkeep.iter().for_each(tokio::task::JoinHandle::abort);
    app.log.event("info", "stopped");
    Ok(())
}

/// What answers requests, without connections: for programs that have requests of their own to put. Call it where a runtime of
/// tokio runs, which stores what comes. Files of `settings` other than tokens are left aside, and so is everything about
/// connections.
///
/// # Errors
/// A file of tokens that cannot be used.
pub fn routes(
    historian: Historian,
    settings: Settings,
    front_ends: Option<Arc<dyn FrontEnds>>,
) -> Result<Router, ServiceError> {
    let access = Access::open(settings.tokens.as_deref())?;
    Ok(router(&App::new(historian, settings, access, front_ends)))
}

/// Refuses more connections than files may be open.
fn check_open_files(connections: usize) -> Result<(), ServiceError> {
    match machine::connections_max() {
        Some((fit, files)) if connections > fit.max(1) => Err(ServiceError::Setting(format!(
            "{connections} connections do not fit the limit of {files} open files, of which the engine needs some: raise it \
             (ulimit -n), or allow {fit} connections"
        ))),
        _ => Ok(()),
    }
}

struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
}

impl Signals {
    fn new() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hang_up: signal(SignalKind::hangup())?,
        })
    }
}

/// Looks for definitions that other processes changed, and keeps the names at hand, since people search by any part of them.
async fn refresh(app: Arc<App>) {
    loop {
        if let Err(error) = app.historian.keep_names().await {
            app.log.event("warn", &format!("names of tags were not read ahead: {error}"));
        }
        tokio::time::sleep(app.settings.limits.definitions_time).await;
        app.historian.refresh().await;
    }
}

async fn accept(
    app: &Arc<App>,
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    open: &GracefulShutdown,
    signals: &mut Signals,
) {
    let routes = router(app);
    let slots = Arc::new(Semaphore::new(app.settings.limits.connections));
    loop {
        let taken = async {
            let slot = slots.clone().acquire_owned().await.ok()?;
            Some((slot, listener.accept().await))
        };
        let (slot, stream) = tokio::select! {
            Some(taken) = taken => taken,
            _ = signals.terminate.recv() => return,
            _ = signals.interrupt.recv() => return,
            _ = signals.hang_up.recv() => {
                match app.access.reload() {
                    Ok(count) => app.log.event("info", &format!("read {count} tokens again")),
                    Err(error) => app.log.event("error", &format!("the tokens stay as they were: {error}")),
                }
                continue;
            }
        };
        match stream {
            Ok((stream, peer)) => {
                let connection = Connection { app: app.clone(), routes: routes.clone(), peer: Peer(peer), slot };
                tokio::spawn(connection.serve(stream, tls.clone(), open.watcher()));
            }
            // No descriptors left, or a peer that is gone already: others may end meanwhile.
            Err(error) => {
                app.log.event("error", &format!("a connection could not be taken: {error}"));
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

struct Connection {
    app: Arc<App>,
    routes: Router,
    peer: Peer,
    slot: OwnedSemaphorePermit,
}

impl Connection {
    async fn serve(self, stream: TcpStream, tls: Option<TlsAcceptor>, open: Watcher) {
        self.app.metrics.connections.fetch_add(1, Ordering::Relaxed);
        // Answers are written whole: waiting for more of them only adds to their time.
        let _ = stream.set_nodelay(true);
        let client_time = self.app.settings.limits.client_time;
        match tls {
            None => self.speak(stream, open).await,
            Some(tls) => {
                if let Ok(Ok(stream)) = tokio::time::timeout(client_time, tls.accept(stream)).await {
                    self.speak(stream, open).await;
                }
            }
        }
        self.app.metrics.connections.fetch_sub(1, Ordering::Relaxed);
        drop(self.slot);
    }

    async fn speak(&self, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, open: Watcher) {
        let client_time = self.app.settings.limits.client_time;
        let (routes, peer) = (self.routes.clone(), self.peer);
        let service = hyper::service::service_fn(move |request: Request<Incoming>| {
            let mut request = request.map(Body::new);
            request.extensions_mut().insert(peer);
            routes.clone().call(request)
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(client_time)
            .serve_connection(TokioIo::new(Patient::new(stream, client_time)), service);
        // A connection that ends in the middle is logged with the request it had.
        let _ = open.watch(connection).await;
    }
}

/// A stream whose other end must take in what is written, piece by piece, within a time.
struct Patient<S> {
    stream: S,
    limit: Duration,
    waiting: Option<Pin<Box<Sleep>>>,
}

impl<S> Patient<S> {
    fn new(stream: S, limit: Duration) -> Self {
        Self { stream, limit, waiting: None }
    }

    fn bounded<T>(&mut self, context: &mut Context<'_>, outcome: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if outcome.is_ready() {
            self.waiting = None;
            return outcome;
        }
        let limit = self.limit;
        let waiting = self.waiting.get_or_insert_with(|| Box::pin(tokio::time::sleep(limit)));
        match waiting.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Patient<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Patient<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.bounded(context, outcome)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.stream).poll_flush(context);
        self.bounded(context, outcome)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.stream).poll_shutdown(context);
        self.bounded(context, outcome)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write_vectored(context, pieces);
        self.bounded(context, outcome)
    }
}

fn acceptor(certificate: &Path, key: &Path) -> Result<TlsAcceptor, ServiceError> {
    let refuse = |file: &Path, reason: String| ServiceError::Tls { reason: format!("{}: {reason}", file.display()) };
    let read = CertificateDer::pem_file_iter(certificate).map_err(|error| refuse(certificate, error.to_string()))?;
    let chain = read.collect::<Result<Vec<_>, _>>().map_err(|error| refuse(certificate, error.to_string()))?;
    if chain.is_empty() {
        return Err(refuse(certificate, "it holds no certificate in PEM form".into()));
    }
    let secret = PrivateKeyDer::from_pem_file(key).map_err(|error| refuse(key, error.to_string()))?;
    let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| refuse(certificate, error.to_string()))?
        .with_no_client_auth()
        .with_single_cert(chain, secret)
        .map_err(|error| refuse(certificate, format!("with {}: {error}", key.display())))?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}
