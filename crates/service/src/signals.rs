//! Handles signals on a separate thread, which works even if all threads of the service are busy, and ends the process in time.

use std::io;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, oneshot};

/// Receivers of the signals that the process handles.
pub(crate) struct Signals {
    /// Resolves on SIGTERM or SIGINT.
    pub stop: oneshot::Receiver<()>,
    /// Receives a message on SIGHUP.
    pub hang_up: mpsc::Receiver<()>,
}

impl Signals {
    /// Starts to wait for signals. The process ends `stop_time` after SIGTERM or SIGINT, with status 0, even in the middle of
    /// work: a computation, such as one in Python that holds the interpreter's lock, cannot be interrupted.
    pub fn start(stop_time: Duration) -> io::Result<Self> {
        let ((stopping, stop), (hanging_up, hang_up), (started, has_started)) =
            (oneshot::channel(), mpsc::channel(1), std::sync::mpsc::channel());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        std::thread::Builder::new().name("chronotile-signals".into()).spawn(move || {
            let reported = runtime.block_on(wait(stopping, &hanging_up, &started));
            drop(runtime);
            if reported {
                std::thread::sleep(stop_time.saturating_sub(Duration::from_millis(100)));
                end(stop_time);
            }
        })?;
        // Waits until the handlers are installed: before that, SIGTERM would end the process at once.
        has_started.recv().unwrap_or_else(|_| Err(io::ErrorKind::Other.into()))?;
        Ok(Self { stop, hang_up })
    }
}

/// Waits for SIGTERM or SIGINT and returns true; returns false once the receiver is dropped.
async fn wait(
    mut stopping: oneshot::Sender<()>,
    hanging_up: &mpsc::Sender<()>,
    started: &std::sync::mpsc::Sender<io::Result<()>>,
) -> bool {
    let signals =
        (|| Ok((signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?, signal(SignalKind::hangup())?)))();
    let (mut terminate, mut interrupt, mut hang_up) = match signals {
        Ok(signals) => signals,
        Err(error) => {
            let _ = started.send(Err(error));
            return false;
        }
    };
    let _ = started.send(Ok(()));
    loop {
        tokio::select! {
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
            // If the channel is full, the pending message covers this signal too.
            _ = hang_up.recv() => drop(hanging_up.try_send(())),
            () = stopping.closed() => return false,
        }
    }
    let _ = stopping.send(());
    true
}

fn end(stop_time: Duration) {
    // A blocked log output must not delay the end.
    std::thread::spawn(move || {
        tracing::warn!("requests still running after {} s were interrupted", stop_time.as_secs_f64());
    });
    std::thread::sleep(Duration::from_millis(50));
    // Do not wait for the interpreter or other threads. Acknowledged writes are durable.
    signal_hook::low_level::exit(0);
}
