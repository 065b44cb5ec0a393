//! Work that keeps a processor busy: away from the threads that drive connections, and little of it at the same time.
//!
//! As many threads as there are processors unpack, parse and encode, and front ends in Python, which hold one lock most of the time,
//! get a few. More would only take turns: each would hold memory for longer, and a small request would wait behind all of them.

use std::sync::{Arc, LazyLock};

use chronotile_archive::ArchiveError;
use tokio::sync::Semaphore;

use crate::failure::{Failure, Result};

/// Bytes on which work is done at once where they are: a thread of their own would take longer to start.
const APART_BYTES: usize = 32 << 10;

/// Threads that unpack, parse or encode.
static TURNS: LazyLock<Arc<Semaphore>> = LazyLock::new(|| Arc::new(Semaphore::new(processors())));

/// Threads on which front ends work. Some of them wait for the engine.
static FRONT_END_TURNS: LazyLock<Arc<Semaphore>> =
    LazyLock::new(|| Arc::new(Semaphore::new((2 * processors()).clamp(4, 16))));

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
    tokio::task::spawn_blocking(work).await.map_err(|_| cancelled())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

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

    #[tokio::test]
    async fn work_that_panics_gives_its_turn_back() {
        for _ in 0..2 * processors() {
            assert!(in_turn::<u8>(|| panic!("as this test wants")).await.is_err());
        }
        assert_eq!(in_turn(|| 1).await.unwrap(), 1);
    }
}
