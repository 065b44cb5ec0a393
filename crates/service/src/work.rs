//! Work that keeps a processor busy: away from the threads that drive connections, and little of it at the same time.
//!
//! Small requests (a look-up of some names, a write of some lines) are served by the threads that drive connections. All others are
//! served [`in_background`], by threads to which the system gives a processor once no other thread of the service wants it, so that
//! no number of large requests makes a small one wait.
//!
//! As many threads as there are processors unpack, parse and encode, and front ends in Python, which hold one lock most of the time,
//! get a few. More would only take turns: each would hold memory for longer.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use chronotile_archive::ArchiveError;
use futures::stream::{self, BoxStream};
use futures::{Future, StreamExt};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinHandle;

use crate::failure::{Failure, Result};

/// Bytes on which work is done at once where they are: a thread of their own would take longer to start.
pub(crate) const APART_BYTES: usize = 32 << 10;

/// Threads that unpack, parse or encode.
static TURNS: LazyLock<Arc<Semaphore>> = LazyLock::new(|| Arc::new(Semaphore::new(processors())));

/// Threads on which front ends work. Some of them wait for the engine.
static FRONT_END_TURNS: LazyLock<Arc<Semaphore>> =
    LazyLock::new(|| Arc::new(Semaphore::new((2 * processors()).clamp(4, 16))));

/// How much nicer threads in the background are. With 3 such a thread gets a third of a processor that another one wants: other
/// programs of the machine do not starve large requests, and a lock is let go of soon.
#[cfg(target_os = "linux")]
const NICER: i32 = 3;

/// How long a thread for blocking work waits for more: what it allocated goes back when it ends.
const THREAD_IDLE: Duration = Duration::from_secs(1);

/// What drives large requests. It never ends: threads of front ends may be in the middle of a wait when the service stops.
static BACKGROUND: LazyLock<Option<Runtime>> = LazyLock::new(|| {
    let mut builder = Builder::new_multi_thread();
    builder.enable_all().worker_threads(processors()).thread_keep_alive(THREAD_IDLE).thread_name("chronotile-bg");
    builder.on_thread_start(give_way).build().ok()
});

/// Lowers the priority of this thread; on Linux alone each thread has one of its own.
fn give_way() {
    #[cfg(target_os = "linux")]
    // Where it is not allowed, large requests are as fast as small ones.
    let _ = rustix::process::nice(NICER);
}

/// Makes threads among which the work of one request is spread give way too: only large requests have so much. To be called before there
/// are any; threads that this process has already stay as they are.
pub(crate) fn spread_in_background() {
    let threads = rayon::ThreadPoolBuilder::new().thread_name(|number| format!("chronotile-cpu{number}"));
    if threads.start_handler(|_| give_way()).build_global().is_err() {
        tracing::debug!("threads for large requests were there before the service");
    }
}

/// What drives large requests; where the system had no threads for it, what drives all others.
pub(crate) fn background() -> Handle {
    BACKGROUND.as_ref().map_or_else(Handle::current, |runtime| runtime.handle().clone())
}

/// A task that ends when nobody waits for it any more.
struct Task<T>(JoinHandle<T>);

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Does work that may take long in the background. It is given up where this is dropped.
///
/// # Errors
/// Work that panicked.
pub(crate) async fn in_background<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> Result<T> {
    let mut task = Task(background().spawn(work));
    (&mut task.0).await.map_err(|_| cancelled())
}

/// The same items, made in the background: one waits to be taken while the next is made.
pub(crate) fn stream_in_background<T: Send + 'static>(mut items: BoxStream<'static, T>) -> BoxStream<'static, T> {
    let (made, taken) = mpsc::channel(1);
    let task = Task(background().spawn(async move {
        while let Some(item) = items.next().await {
            if made.send(item).await.is_err() {
                return;
            }
        }
    }));
    stream::unfold((taken, task), |(mut taken, task)| async move { Some((taken.recv().await?, (taken, task))) }).boxed()
}

fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

fn cancelled() -> Failure {
    ArchiveError::Cancelled.into()
}

/// Does work on so many bytes: where they are few, here; otherwise as [`in_turn`].
///
/// # Errors
/// Work that panicked.
pub(crate) async fn apart<T: Send + 'static>(bytes: usize, work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    if bytes < APART_BYTES { Ok(work()) } else { in_turn(work).await }
}

/// Does work on a thread of its own, once a processor is free for it.
///
/// # Errors
/// Work that panicked.
pub(crate) async fn in_turn<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    on_thread(&TURNS, work).await
}

/// Does work of a front end, once it may have a thread.
///
/// # Errors
/// Work that panicked.
pub(crate) async fn of_front_end<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    on_thread(&FRONT_END_TURNS, work).await
}

async fn on_thread<T: Send + 'static>(turns: &Arc<Semaphore>, work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    let turn = turns.clone().acquire_owned().await.map_err(|_| cancelled())?;
    let work = move || {
        // Also where nobody waits any more.
        let _turn = turn;
        work()
    };
    background().spawn_blocking(work).await.map_err(|_| cancelled())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[tokio::test]
    async fn only_as_many_threads_as_processors_work_at_the_same_time() {
        let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let works = (0..4 * processors()).map(|_| {
            let (now, most) = (now.clone(), most.clone());
            apart(APART_BYTES, move || {
                most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                std::thread::sleep(Duration::from_millis(20));
                now.fetch_sub(1, Ordering::SeqCst);
            })
        });
        for done in futures::future::join_all(works).await {
            done.unwrap();
        }
        assert!((1..=processors()).contains(&most.load(Ordering::SeqCst)), "{most:?}");
    }

    #[tokio::test]
    async fn small_work_waits_for_nobody() {
        let all = TURNS.acquire_many(processors() as u32).await.unwrap();
        let here = std::thread::current().id();
        assert_eq!(apart(APART_BYTES - 1, || std::thread::current().id()).await.unwrap(), here);
        drop(all);
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn large_work_gives_way_to_small() {
        let nice = || rustix::process::getpriority_process(None).unwrap();
        let here = nice();
        let lower = (here + NICER).min(19);
        assert_eq!(in_background(async move { nice() }).await.unwrap(), lower);
        assert_eq!(in_turn(nice).await.unwrap(), lower);
        assert_eq!(of_front_end(nice).await.unwrap(), lower);
        let made = stream_in_background(stream::iter(0..3).map(move |_| nice()).boxed());
        assert_eq!(made.collect::<Vec<_>>().await, [lower; 3]);
        assert_eq!(nice(), here, "this thread drives connections");
    }

    #[tokio::test]
    async fn what_nobody_waits_for_ends_in_the_background() {
        let held = Arc::new(());
        let (work, items) = (held.clone(), held.clone());
        let given_up = in_background(async move {
            std::future::pending::<()>().await;
            drop(work);
        });
        assert!(tokio::time::timeout(Duration::from_millis(20), given_up).await.is_err());
        let mut endless = stream_in_background(stream::repeat(items).boxed());
        assert!(endless.next().await.is_some());
        drop(endless);
        for _ in 0..1_000 {
            if Arc::strong_count(&held) == 1 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("{} still hold it", Arc::strong_count(&held));
    }

    #[tokio::test]
    async fn work_that_panics_gives_its_turn_back() {
        for _ in 0..2 * processors() {
            assert!(in_turn::<u8>(|| panic!("as this test wants")).await.is_err());
            assert!(in_background::<u8>(async { panic!("as this test wants") }).await.is_err());
        }
        assert_eq!(in_turn(|| 1).await.unwrap(), 1);
    }
}
