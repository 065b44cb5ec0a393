//! Connections: accepts them, encrypts them, limits their time, and shuts them down gracefully.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, Response, StatusCode};
use chronotile_archive::Archive;
use chronotile_historian::{Historian, HistorianOptions};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;
use tower_service::Service as _;

use crate::access::{Access, exposure};
use crate::app::{App, Peer};
use crate::connections::{Admission, ConnectionSlot, Connections};
use crate::diagnostics;
use crate::front_ends::FrontEnds;
use crate::log;
use crate::machine;
use crate::requests::router;
use crate::settings::{ServiceError, Settings};
use crate::signals::Signals;
use crate::streams::{TimeoutStream, TrackedBody};
use crate::work;

/// Read buffer of a connection: room for the longest request head.
const BUFFER_BYTES: usize = 128 << 10;

/// Serves an archive until SIGTERM or SIGINT. It then accepts no more connections, completes the requests in progress
/// and stores what they wrote. The process ends within [`Limits::stop_time`](crate::Limits::stop_time) of the signal,
/// even if requests or other work of the caller are still running. `front_ends` serves events and jobs; without it,
/// only the historian is served. `listening` is called with the address once the service accepts requests.
///
/// # Errors
/// Invalid settings, an address that is in use, or an archive in which no historian can be opened or created.
pub async fn serve(
    archive: Archive,
    settings: Settings,
    front_ends: Option<Arc<dyn FrontEnds>>,
    listening: impl FnOnce(std::net::SocketAddr) + Send,
) -> Result<(), ServiceError> {
    log::start(settings.log);
    work::lower_rayon_priority();
    let access = Access::open(settings.tokens.as_deref())?;
    if !access.is_required() && !settings.listen.ip().is_loopback() {
        return Err(ServiceError::Exposed { listen: settings.listen });
    }
    check_open_files(settings.limits.connections)?;
    let tls = settings.tls.as_ref().map(Tls::open).transpose()?.map(Arc::new);
    let failed = |error: io::Error| ServiceError::Listen { listen: settings.listen, source: error };
    let listener = TcpListener::bind(settings.listen).await.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    let Signals { stop: mut stop_signal, hang_up } = Signals::start(settings.limits.stop_time).map_err(failed)?;
    let options = HistorianOptions { create: true, future_max_ns: settings.limits.future_max_ns };
    let historian = Historian::open(archive, options).await?;
    let app = App::new(historian, settings, access, front_ends);
    let mut maintenance =
        vec![tokio::spawn(refresh(app.clone())), tokio::spawn(reload_on_hang_up(app.clone(), tls.clone(), hang_up))];
    if let Some(every) = app.settings.diagnostics {
        maintenance.push(tokio::spawn(diagnostics::run(app.clone(), address, every)));
    }
    let scheme = if tls.is_some() { "https" } else { "http" };
    tracing::info!("serving {} at {scheme}://{address}", app.historian.archive().url());
    warn_of_exposed_files(&app);
    listening(address);
    let (stop, stopping) = watch::channel(false);
    let (held, mut all_ended) = mpsc::channel(1);
    let open = OpenConnections { stopping, _held: held };
    accept(&app, listener, tls.as_deref(), &open, &mut stop_signal).await;
    // From here on, /ready answers that the service stops; requests on open connections are still served.
    app.stopping.store(true, Ordering::Relaxed);
    tracing::info!("stopping after the requests in progress");
    stop.send_replace(true);
    // `all_ended` resolves once no sender is left, so the clone of this function must go too.
    drop(open);
    // The rest of the time is for ending everything else.
    let stop_time = app.settings.limits.stop_time;
    let for_requests = stop_time - (stop_time / 5).min(Duration::from_secs(1));
    if tokio::time::timeout(for_requests, all_ended.recv()).await.is_err() {
        let seconds = for_requests.as_secs_f64();
        tracing::warn!("requests still running after {seconds} s were interrupted");
    }
    maintenance.iter().for_each(tokio::task::JoinHandle::abort);
    tracing::info!("stopped");
    Ok(())
}

/// The router of the service without its connections, for programs that submit requests themselves. Call it inside a
/// tokio runtime, on which writes are stored. Of the files in `settings` only the tokens are read; settings of
/// connections are ignored.
///
/// # Errors
/// The file of tokens is invalid.
pub fn routes(
    historian: Historian,
    settings: Settings,
    front_ends: Option<Arc<dyn FrontEnds>>,
) -> Result<Router, ServiceError> {
    let access = Access::open(settings.tokens.as_deref())?;
    Ok(router(&App::new(historian, settings, access, front_ends)))
}

/// Rejects a connection limit that exceeds the limit of open files.
fn check_open_files(connections: usize) -> Result<(), ServiceError> {
    match machine::connections_max() {
        Some((fit, files)) if connections > fit.max(1) => Err(ServiceError::Setting(format!(
            "{connections} connections do not fit the limit of {files} open files, of which the engine needs some: raise it \
             (ulimit -n), or allow {fit} connections"
        ))),
        _ => Ok(()),
    }
}

/// Reloads tag definitions that other processes changed, and caches all names, because users search for any part of
/// them.
async fn refresh(app: Arc<App>) {
    loop {
        if let Err(error) = app.historian.keep_names().await {
            tracing::warn!("preloading the tag names failed: {error}");
        }
        tokio::time::sleep(app.settings.limits.definitions_time).await;
        app.historian.refresh().await;
    }
}

/// Accepts connections until `stop` resolves.
async fn accept(
    app: &Arc<App>,
    listener: TcpListener,
    tls: Option<&Tls>,
    open: &OpenConnections,
    stop: &mut oneshot::Receiver<()>,
) {
    let routes = router(app);
    let connections = Connections::new(app.settings.limits.connections);
    let mut unheard = AcceptFailures::default();
    loop {
        let taken = tokio::select! {
            taken = listener.accept() => taken,
            _ = &mut *stop => return,
        };
        let (stream, address) = match taken {
            Ok(taken) => taken,
            // No file descriptors are left, or the peer has disconnected. Either may pass, so keep accepting.
            Err(error) => {
                unheard.report(&error);
                // Without the pause, a lack of file descriptors would make this loop spin: `accept` then fails at once
                // each time.
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        match connections.admit(address.ip()) {
            Admission::Taken { slot, made_room } => {
                app.metrics.connections_closed.inc_by(u64::from(made_room));
                let (app, routes) = (app.clone(), routes.clone());
                let connection = Connection { app, routes, address, slot: Arc::new(slot) };
                let tls = tls.map(Tls::acceptor);
                let open = open.clone();
                tokio::spawn(async move { connection.serve(stream, tls, open).await });
            }
            Admission::Full => {
                app.metrics.connections_refused.inc();
                // A client of TLS expects a handshake and could not read this response.
                if tls.is_none() {
                    // The send buffer of a new socket is empty, so this does not block. A failure concerns only this
                    // peer.
                    let _ = stream.try_write(FULL);
                }
            }
        }
    }
}

/// The response if the limit of connections is reached and none of them is idle.
const FULL: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";

/// Counts connections that could not be accepted, and logs the count at most every ten seconds.
#[derive(Default)]
struct AcceptFailures {
    count: u64,
    reported: Option<Instant>,
}

impl AcceptFailures {
    const EVERY: Duration = Duration::from_secs(10);

    fn report(&mut self, error: &io::Error) {
        self.count += 1;
        if self.reported.is_none_or(|reported| reported.elapsed() >= Self::EVERY) {
            tracing::error!("{} connections could not be accepted: {error}", self.count);
            *self = Self { count: 0, reported: Some(Instant::now()) };
        }
    }
}

/// Reloads files after each SIGHUP, on a blocking thread: a file may be a pipe or on a disk that does not respond.
async fn reload_on_hang_up(app: Arc<App>, tls: Option<Arc<Tls>>, mut hang_up: mpsc::Receiver<()>) {
    while hang_up.recv().await.is_some() {
        let (app, tls) = (app.clone(), tls.clone());
        // A failed reload has logged the reason.
        let _ = tokio::task::spawn_blocking(move || reload(&app, tls.as_deref())).await;
    }
}

/// Reloads the tokens and the certificate.
fn reload(app: &App, tls: Option<&Tls>) {
    if app.access.is_required() {
        match app.access.reload() {
            Ok(count) => tracing::info!("reloaded {count} tokens"),
            Err(error) => tracing::error!("keeping the previous tokens: {error}"),
        }
    }
    if let Some(tls) = tls {
        match tls.reload() {
            Ok(()) => tracing::info!("reloaded the certificate for new connections"),
            Err(error) => tracing::error!("keeping the previous certificate: {error}"),
        }
    }
    warn_of_exposed_files(app);
}

fn warn_of_exposed_files(app: &App) {
    let key = app.settings.tls.as_ref().map(|(_, key)| key);
    for exposed in app.settings.tokens.iter().chain(key).filter_map(|path| exposure(path)) {
        tracing::warn!("{exposed}");
    }
}

/// Tracks open connections: `stopping` tells them that the service stops. All have ended once every clone of `_held` is
/// dropped.
#[derive(Clone)]
struct OpenConnections {
    stopping: watch::Receiver<bool>,
    _held: mpsc::Sender<()>,
}

struct Connection {
    app: Arc<App>,
    routes: Router,
    address: SocketAddr,
    slot: Arc<ConnectionSlot>,
}

impl Connection {
    async fn serve(self, stream: TcpStream, tls: Option<TlsAcceptor>, open: OpenConnections) {
        self.app.metrics.connections.inc();
        // Responses are written whole, so Nagle's algorithm would only delay them.
        let _ = stream.set_nodelay(true);
        tokio::select! {
            () = self.exchange(stream, tls, open) => {}
            // This connection was idle and was closed to make room for another.
            () = self.slot.closed() => {}
        }
        self.app.metrics.connections.dec();
    }

    async fn exchange(&self, stream: TcpStream, tls: Option<TlsAcceptor>, open: OpenConnections) {
        let Some(tls) = tls else { return self.speak(stream, open).await };
        let client_time = self.app.settings.limits.client_time;
        // The timeout of hyper covers only the head of a request, so the handshake before it needs its own.
        if let Ok(Ok(stream)) = tokio::time::timeout(client_time, tls.accept(stream)).await {
            self.speak(stream, open).await;
        }
    }

    async fn speak(&self, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, mut open: OpenConnections) {
        let client_time = self.app.settings.limits.client_time;
        let peer = Peer { address: self.address, discards: Arc::default() };
        let stream = TokioIo::new(TimeoutStream::new(stream, client_time, peer.discards.clone()));
        let service = hyper::service::service_fn(move |request| self.answer(request, peer.clone()));
        let mut http = http1::Builder::new();
        let http = http.timer(TokioTimer::new()).header_read_timeout(client_time).max_buf_size(BUFFER_BYTES);
        let mut connection = std::pin::pin!(http.serve_connection(stream, service));
        // A broken connection needs no log line here: the log line of its request reports it.
        tokio::select! {
            _ = connection.as_mut() => return,
            _ = open.stopping.wait_for(|stopping| *stopping) => {}
        }
        // The branch above that lost polled only a reference, so the request in progress is intact. The await below
        // completes it and closes the connection after its response.
        connection.as_mut().graceful_shutdown();
        let _ = connection.await;
    }

    async fn answer(&self, request: Request<Incoming>, peer: Peer) -> Result<Response<TrackedBody>, Infallible> {
        let Some(busy) = self.slot.request() else {
            // The connection is being closed. Nothing of the request was executed.
            let mut response = Response::new(TrackedBody { body: Body::empty(), _busy: None });
            *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
            return Ok(response);
        };
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(peer);
        // Calling without `poll_ready` is allowed here: a router of axum is always ready. `call` takes `&mut self`,
        // hence the clone.
        let response = self.routes.clone().call(request).await?;
        Ok(response.map(|body| TrackedBody { body, _busy: Some(busy) }))
    }
}

/// TLS configuration of connections.
struct Tls {
    certificate: PathBuf,
    key: PathBuf,
    acceptor: RwLock<TlsAcceptor>,
}

impl Tls {
    fn open((certificate, key): &(PathBuf, PathBuf)) -> Result<Self, ServiceError> {
        let acceptor = RwLock::new(acceptor(certificate, key)?);
        Ok(Self { certificate: certificate.clone(), key: key.clone(), acceptor })
    }

    /// Reloads certificate and key. On an error, new connections keep using the previous ones.
    fn reload(&self) -> Result<(), ServiceError> {
        let new = acceptor(&self.certificate, &self.key)?;
        // Open connections keep the configuration of their handshake; only `acceptor` hands out the new one.
        *self.acceptor.write().unwrap_or_else(PoisonError::into_inner) = new;
        Ok(())
    }

    fn acceptor(&self) -> TlsAcceptor {
        self.acceptor.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

pub(crate) fn acceptor(certificate: &Path, key: &Path) -> Result<TlsAcceptor, ServiceError> {
    let chain = CertificateDer::pem_file_iter(certificate).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let chain = chain.map_err(|error| refused_file(certificate, error))?;
    if chain.is_empty() {
        let reason = format!("{}: it holds no certificate in PEM form", certificate.display());
        return Err(ServiceError::Tls { reason, source: None });
    }
    let secret = PrivateKeyDer::from_pem_file(key).map_err(|error| refused_file(key, error))?;
    // Two providers are compiled in, because the driver of the cluster depends on aws-lc; rustls chooses no default
    // then.
    let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| refused_file(certificate, error))?
        .with_no_client_auth()
        .with_single_cert(chain, secret)
        .map_err(|error| ServiceError::Tls {
            reason: format!("{}: with {}: {error}", certificate.display(), key.display()),
            source: Some(error.into()),
        })?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

fn refused_file(file: &Path, error: impl std::error::Error + Send + Sync + 'static) -> ServiceError {
    ServiceError::Tls { reason: format!("{}: {error}", file.display()), source: Some(error.into()) }
}
