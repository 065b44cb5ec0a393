//! CPU-bound work: runs it on threads other than those that drive connections, with limited concurrency.
//!
//! Small requests (a look-up of some names, a write of some lines) are served by the threads that drive connections. All others are
//! served [`in_background`], by threads of lower priority, so that large requests do not delay small ones, however many they are.
//!
//! Unpacking, parsing and encoding use one thread per processor; front ends in Python, which hold one lock most of the time, get a
//! few. More threads would only take turns, and each would hold its memory for longer.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use chronotile_archive::ArchiveError;
use futures::stream::{self, BoxStream};
use futures::{Future, StreamExt};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinHandle;

use crate::failure::Result;

/// Work on fewer bytes runs on the calling thread: starting another would take longer.
pub(crate) const APART_BYTES: usize = 32 << 10;

/// Limits the threads that unpack, parse or encode.
static CPU_PERMITS: LazyLock<Arc<Semaphore>> = LazyLock::new(|| Arc::new(Semaphore::new(processors())));

/// Limits the threads of front ends, some of which wait for the engine.
static FRONT_END_PERMITS: LazyLock<Arc<Semaphore>> =
    LazyLock::new(|| Arc::new(Semaphore::new((2 * processors()).clamp(4, 16))));

/// Increment of the nice value of background threads. With 3, such a thread gets a third of a contended processor, so that other
/// programs do not starve large requests and locks are released soon.
#[cfg(target_os = "linux")]
const NICE_INCREMENT: i32 = 3;

/// Idle time after which a thread for blocking work ends, which returns its memory.
const THREAD_IDLE: Duration = Duration::from_secs(1);

/// The runtime of large requests. It is never shut down: threads of front ends may be waiting when the service stops.
static BACKGROUND: LazyLock<Option<Runtime>> = LazyLock::new(|| {
    let mut builder = Builder::new_multi_thread();
    builder.enable_all().worker_threads(processors()).thread_keep_alive(THREAD_IDLE).thread_name("chronotile-bg");
    builder.on_thread_start(lower_priority).build().ok()
});

/// Lowers the priority of this thread. Only Linux has priorities per thread.
fn lower_priority() {
    #[cfg(target_os = "linux")]
    // If this is not permitted, large requests compete with small ones at equal priority.
    let _ = rustix::process::nice(NICE_INCREMENT);
}

/// Lowers the priority of rayon's threads too, which only large requests use. Call this before the first use of rayon: existing
/// threads keep their priority.
pub(crate) fn lower_rayon_priority() {
    let threads = rayon::ThreadPoolBuilder::new().thread_name(|number| format!("chronotile-cpu{number}"));
    if threads.start_handler(|_| lower_priority()).build_global().is_err() {
        tracing::debug!("the threads for large requests exist already");
    }
}

/// The runtime of large requests, or the current one if the system had no threads for it.
pub(crate) fn background() -> Handle {
    BACKGROUND.as_ref().map_or_else(Handle::current, |runtime| runtime.handle().clone())
}

/// A task that is aborted on drop.
struct AbortOnDrop<T>(JoinHandle<T>);

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Runs long work in the background. Dropping the future cancels it.
///
/// # Errors
/// The work panicked.
pub(crate) async fn in_background<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> Result<T> {
    let mut task = AbortOnDrop(background().spawn(work));
    Ok((&mut task.0).await?)
}

/// Produces the items of a stream in the background, one ahead of the consumer. If an item panics, the stream ends with
/// an error: without one, the response would look complete.
pub(crate) fn stream_in_background<T: Send + 'static>(
    mut items: BoxStream<'static, Result<T>>,
) -> BoxStream<'static, Result<T>> {
    let (sender, receiver) = mpsc::channel(1);
    let task = AbortOnDrop(background().spawn(async move {
        while let Some(item) = items.next().await {
            if sender.send(item).await.is_err() {
                return;
            }
        }
    }));
    stream::unfold((receiver, Some(task)), |(mut receiver, task)| async move {
        if let Some(item) = receiver.recv().await {
            return Some((item, (receiver, task)));
        }
        let failed = (&mut task?.0).await.err()?;
        Some((Err(failed.into()), (receiver, None)))
    })
    .boxed()
}

fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// Runs work on `bytes` bytes: on the calling thread if they are few, otherwise as [`with_cpu_permit`].
///
/// # Errors
/// The work panicked.
pub(crate) async fn apart<T: Send + 'static>(bytes: usize, work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    if bytes < APART_BYTES { Ok(work()) } else { with_cpu_permit(work).await }
}

/// Runs work on a separate thread, once a processor is free for it.
///
/// # Errors
/// The work panicked.
pub(crate) async fn with_cpu_permit<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    on_thread(&CPU_PERMITS, work).await
}

/// Runs work of a front end on a separate thread, once one is free.
///
/// # Errors
/// The work panicked.
pub(crate) async fn with_front_end_permit<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    on_thread(&FRONT_END_PERMITS, work).await
}

async fn on_thread<T: Send + 'static>(
    permits: &Arc<Semaphore>,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T> {
    // The semaphores are never closed.
    let permit = permits.clone().acquire_owned().await.map_err(|_| ArchiveError::Cancelled)?;
    let work = move || {
        // The permit is held until the work ends, even if the caller has stopped waiting.
        let _permit = permit;
        work()
    };
    // Threads of the background runtime have the lower priority, also those for blocking work.
    Ok(background().spawn_blocking(work).await?)
}

#[cfg(test)]
mod tests {
    use chronotile_types::ErrorKind;
    use futures::TryStreamExt;

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
        let all = CPU_PERMITS.acquire_many(processors() as u32).await.unwrap();
        let here = std::thread::current().id();
        assert_eq!(apart(APART_BYTES - 1, || std::thread::current().id()).await.unwrap(), here);
        drop(all);
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn large_work_gives_way_to_small() {
        let nice = || rustix::process::getpriority_process(None).unwrap();
        let here = nice();
        let lower = (here + NICE_INCREMENT).min(19);
        assert_eq!(in_background(async move { nice() }).await.unwrap(), lower);
        assert_eq!(with_cpu_permit(nice).await.unwrap(), lower);
        assert_eq!(with_front_end_permit(nice).await.unwrap(), lower);
        let made = stream_in_background(stream::iter(0..3).map(move |_| Ok(nice())).boxed());
        assert_eq!(made.try_collect::<Vec<_>>().await.unwrap(), [lower; 3]);
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
        let mut endless = stream_in_background(stream::repeat(items).map(Ok).boxed());
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
    async fn work_that_panics_returns_its_permit() {
        for _ in 0..2 * processors() {
            for failed in [
                with_cpu_permit::<u8>(|| panic!("as this test wants")).await,
                in_background::<u8>(async { panic!("as this test wants") }).await,
            ] {
                let failure = failed.unwrap_err();
                assert_eq!(failure.kind, ErrorKind::Internal);
                assert!(failure.message.contains("as this test wants"), "{failure:?}");
            }
        }
        assert_eq!(with_cpu_permit(|| 1).await.unwrap(), 1);
        let items = stream::iter([1, 2]).map(|item| Ok(if item == 1 { item } else { panic!("as this test wants") }));
        let given: Vec<_> = stream_in_background(items.boxed()).collect().await;
        assert!(matches!(given[..], [Ok(1), Err(_)]), "{given:?}");
    }
}
