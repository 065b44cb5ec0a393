//! Wrappers between a socket and its requests: write timeouts, a graceful close, and a marker while a request is in
//! progress.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Body, HttpBody};
use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

use crate::connections::ActiveRequest;

/// How long to discard further input after a response that did not wait for the whole request. Closing a connection with unread
/// bytes resets it, and the client may lose the response.
const DISCARD_TIME: Duration = Duration::from_secs(2);

/// A stream that fails if the peer does not accept each write within a time limit.
pub(crate) struct TimeoutStream<S> {
    stream: S,
    limit: Duration,
    waiting: Option<Pin<Box<Sleep>>>,
    /// Whether the rest of the input must be read and discarded.
    discards: Arc<AtomicBool>,
    discarding: Option<Pin<Box<Sleep>>>,
}

impl<S> TimeoutStream<S> {
    pub fn new(stream: S, limit: Duration, discards: Arc<AtomicBool>) -> Self {
        Self { stream, limit, waiting: None, discards, discarding: None }
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

impl<S: AsyncRead + Unpin> AsyncRead for TimeoutStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncRead + Unpin> TimeoutStream<S> {
    /// Completes when the peer has closed its side, or the time limit has passed.
    fn poll_discard(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let time = self.discarding.get_or_insert_with(|| Box::pin(tokio::time::sleep(DISCARD_TIME)));
        if time.as_mut().poll(context).is_ready() {
            return Poll::Ready(());
        }
        let mut room = [0; 8 << 10];
        loop {
            let mut buffer = ReadBuf::new(&mut room);
            let read = ready!(Pin::new(&mut self.stream).poll_read(context, &mut buffer));
            if read.is_err() || buffer.filled().is_empty() {
                return Poll::Ready(());
            }
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for TimeoutStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.bounded(context, outcome)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.stream).poll_flush(context);
        self.bounded(context, outcome)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // The own side is shut down first, so that the client sees the end of the response and closes its side, which
        // ends the discarding. Later polls of the discarding do not shut down again.
        if self.discarding.is_none() {
            let outcome = Pin::new(&mut self.stream).poll_shutdown(context);
            ready!(self.bounded(context, outcome))?;
        }
        if self.discards.load(Ordering::Relaxed) {
            ready!(self.poll_discard(context));
        }
        Poll::Ready(Ok(()))
    }

    // Without the next two methods, hyper would copy head and body of each response into one buffer.
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

/// The body of a response. Its connection counts as busy until the body has been sent.
pub(crate) struct TrackedBody {
    pub body: Body,
    pub _busy: Option<ActiveRequest>,
}

impl HttpBody for TrackedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<hyper::body::Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> hyper::body::SizeHint {
        self.body.size_hint()
    }
}
