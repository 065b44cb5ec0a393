//! The one runtime that all archives of a process share, and how Python waits for it.

use std::cell::RefCell;
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use chronotile_archive::ArchiveError;
use chronotile_types::ErrorKind;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use tokio::runtime::{Builder, Handle, Runtime};

use crate::errors::{Fault, archive_error};

/// Interval at which a wait checks for signals, so that Ctrl-C ends long work.
const SIGNAL_POLL: Duration = Duration::from_millis(100);

/// Idle time after which a thread for blocking work ends, which frees its memory.
const THREAD_IDLE: Duration = Duration::from_secs(1);

struct Shared {
    process: u32,
    runtime: Runtime,
}

static SHARED: OnceLock<Shared> = OnceLock::new();

/// The runtime, started at first use.
///
/// Its threads do not survive a fork, and neither do an engine's locks. A process that was forked after the first use
/// gets an error instead of hanging.
pub fn runtime() -> PyResult<&'static Runtime> {
    if SHARED.get().is_none() {
        let runtime = Builder::new_multi_thread()
            .enable_all()
            .thread_keep_alive(THREAD_IDLE)
            .thread_name("chronotile")
            .build()?;
        // Another thread may have been faster; then this runtime is dropped unused.
        if let Err(surplus) = SHARED.set(Shared { process: std::process::id(), runtime }) {
            surplus.runtime.shutdown_background();
        }
    }
    match SHARED.get() {
        Some(shared) if shared.process == std::process::id() => Ok(&shared.runtime),
        _ => Err(Fault::new(
            ErrorKind::Forked,
            "this process was forked from one that had used chronotile, whose threads and locks do not survive a fork: \
             start workers with multiprocessing's spawn or forkserver method and open the archive in each of them",
        )
        .raise()),
    }
}

/// Waits for `future` with the interpreter lock released, so that other Python threads run. Raises the exception of a
/// signal handler (`KeyboardInterrupt`); the work is then cancelled at its next step, as if the process had ended
/// there.
pub fn wait<T: Send>(py: Python<'_>, future: impl Future<Output = Result<T, ArchiveError>> + Send) -> PyResult<T> {
    wait_with(py, future, archive_error)
}

/// Like [`wait`], for a future whose errors `raise` converts to exceptions.
pub fn wait_with<T: Send, E: Send>(
    py: Python<'_>,
    future: impl Future<Output = Result<T, E>> + Send,
    raise: fn(E) -> PyErr,
) -> PyResult<T> {
    let runtime = runtime()?;
    py.detach(|| block_on(runtime, future)).and_then(|outcome| outcome.map_err(raise))
}

/// Waits for `future` on a thread that may or may not hold the interpreter lock.
///
/// While a write is awaited, it pulls rows from its input, and that input may itself read from an archive. Such a
/// nested wait must leave the context of the runtime for a moment, which `block_in_place` does. A thread of another
/// runtime, such as the one that a service uses for large requests, keeps its own.
pub fn block_on<T>(runtime: &Runtime, future: impl Future<Output = T>) -> PyResult<T> {
    let runtime = Handle::try_current().unwrap_or_else(|_| runtime.handle().clone());
    tokio::task::block_in_place(|| runtime.block_on(until_signal(future)))
}

/// Runs `work` on a separate thread with the interpreter lock released. The work may block in the operating system,
/// such as when opening a pipe that has no writer. If a signal handler raises, its exception is raised here and the
/// thread is abandoned.
pub fn interruptible<T: Send + 'static>(py: Python<'_>, work: impl FnOnce() -> T + Send + 'static) -> PyResult<T> {
    let (send, receive) = std::sync::mpsc::channel();
    std::thread::Builder::new().name("chronotile-file".to_owned()).spawn(move || {
        // The receiver is gone if the wait was interrupted.
        let _ = send.send(work());
    })?;
    py.detach(move || {
        loop {
            match receive.recv_timeout(SIGNAL_POLL) {
                Ok(outcome) => return Ok(outcome),
                Err(RecvTimeoutError::Timeout) => Python::attach(|py| py.check_signals())?,
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(PyRuntimeError::new_err("a thread of the library ended without a result"));
                }
            }
        }
    })
}

thread_local! {
    /// Set once nobody waits for the result of this thread.
    static GIVEN_UP: RefCell<Option<Arc<AtomicBool>>> = const { RefCell::new(None) };
}

/// Runs `work`. Once `given_up` is set, every wait on this thread fails.
pub fn until_given_up<T>(given_up: Arc<AtomicBool>, work: impl FnOnce() -> T) -> T {
    struct Restore(Option<Arc<AtomicBool>>);
    impl Drop for Restore {
        fn drop(&mut self) {
            GIVEN_UP.set(self.0.take());
        }
    }
    let _restore = Restore(GIVEN_UP.replace(Some(given_up)));
    work()
}

fn check_given_up() -> PyResult<()> {
    let given_up = GIVEN_UP.with_borrow(|flag| flag.as_ref().is_some_and(|flag| flag.load(Ordering::Relaxed)));
    if given_up { Err(archive_error(ArchiveError::Cancelled)) } else { Ok(()) }
}

async fn until_signal<T>(future: impl Future<Output = T>) -> PyResult<T> {
    let mut future = pin!(future);
    loop {
        check_given_up()?;
        // The timeout drops only a reference, so the work continues in the next round.
        match tokio::time::timeout(SIGNAL_POLL, &mut future).await {
            Ok(outcome) => return Ok(outcome),
            Err(_) => Python::attach(|py| py.check_signals())?,
        }
    }
}
