//! The allocator of the process, and how a process that serves many clients gives memory back.

use std::alloc::{GlobalAlloc, Layout};
use std::cell::Cell;
use std::ffi::{c_int, c_long};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use mimalloc::MiMalloc;

/// mimalloc. Reads and writes allocate blocks of megabytes and free them soon; the system's allocator gives their pages back each
/// time.
///
/// mimalloc keeps the empty pages of a thread until that thread allocates again or collects them; no other thread can. A service
/// has dozens of threads that work for a moment and then wait, and each would hold what it freed last. So after
/// [`give_back_soon`] each thread collects its own pages for every [`COLLECT_AFTER_BYTES`] that it frees.
pub struct Allocator;

/// What a thread frees before it collects: the most that it keeps while it waits. A collection takes some ten microseconds.
const COLLECT_AFTER_BYTES: usize = 1 << 20;

static GIVES_BACK: AtomicBool = AtomicBool::new(false);

thread_local! {
    static FREED_BYTES: Cell<usize> = const { Cell::new(0) };
}

/// Counts what the current thread has freed, and collects its pages when that is enough.
fn freed(bytes: usize) {
    if GIVES_BACK.load(Ordering::Relaxed) {
        let total = FREED_BYTES.get() + bytes;
        FREED_BYTES.set(if total < COLLECT_AFTER_BYTES { total } else { 0 });
        if total >= COLLECT_AFTER_BYTES {
            collect_thread();
        }
    }
}

// SAFETY: mimalloc does the work. What is added frees no block that is in use.
#[allow(unsafe_code)]
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as the caller promises.
        unsafe { MiMalloc.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as the caller promises.
        unsafe { MiMalloc.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { MiMalloc.dealloc(block, layout) }
        freed(layout.size());
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        // SAFETY: as the caller promises.
        let block = unsafe { MiMalloc.realloc(block, layout, bytes) };
        freed(layout.size());
        block
    }
}

/// How long freed blocks may stay with the process, milliseconds. The allocator's own second is longer than a service needs to take and
/// drop several times its whole budget in bodies.
const PURGE_DELAY_MS: c_long = 10;

/// `mi_option_purge_delay` of mimalloc, whose number is the same in its versions 2 and 3.
const OPTION_PURGE_DELAY: c_int = 15;

/// `M_ARENA_MAX` of glibc.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const M_ARENA_MAX: c_int = -8;
/// Arenas of glibc, from which SQLite and the interpreter take their memory: each reserves 64 MiB of address space, and by default
/// there are eight for each core.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const ARENAS: c_int = 2;
/// `M_MMAP_THRESHOLD` and `M_TRIM_THRESHOLD` of glibc.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const M_MMAP_THRESHOLD: c_int = -3;
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const M_TRIM_THRESHOLD: c_int = -1;
/// A block of this size or more gets pages of its own, which go back to the system when it is freed. By default glibc raises the
/// threshold to the size of the largest block freed so far; bodies then leave holes in the heap that stay resident.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const OWN_PAGES_BYTES: c_int = 256 << 10;

/// How often a service that has nothing to do gives back what was freed last.
pub const COLLECT_EVERY: Duration = Duration::from_secs(1);

/// Gives back what has been free for long enough: without this the allocators do so when they are asked for more, and glibc only
/// at the end of its heap, while bodies and rows that Python held leave holes within it.
pub fn collect() {
    collect_thread();
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        #[allow(unsafe_code)]
        unsafe extern "C" {
            fn malloc_trim(keep: usize) -> c_int;
        }
        // SAFETY: it may be called at any time from any thread, and gives pages back in which there is no block.
        #[allow(unsafe_code)]
        unsafe {
            malloc_trim(0);
        }
    }
}

/// Gives back the empty pages of this thread.
fn collect_thread() {
    #[allow(unsafe_code)]
    unsafe extern "C" {
        fn mi_collect(force: bool);
    }
    // SAFETY: it may be called at any time from any thread, and frees what nobody holds.
    #[allow(unsafe_code)]
    unsafe {
        mi_collect(false);
    }
}

/// From now on freed memory goes back to the system soon, and few threads have memory of their own. For a process that serves: one
/// that reads and writes in bulk is faster when it keeps what it will need again.
pub fn give_back_soon() {
    GIVES_BACK.store(true, Ordering::Relaxed);
    #[allow(unsafe_code)]
    unsafe extern "C" {
        fn mi_option_set(option: c_int, value: c_long);
        #[cfg(all(target_os = "linux", target_env = "gnu"))]
        fn mallopt(parameter: c_int, value: c_int) -> c_int;
    }
    // SAFETY: both functions store numbers in settings that are read with each use; neither takes or frees memory.
    #[allow(unsafe_code)]
    unsafe {
        mi_option_set(OPTION_PURGE_DELAY, PURGE_DELAY_MS);
        #[cfg(all(target_os = "linux", target_env = "gnu"))]
        for (parameter, value) in
            [(M_ARENA_MAX, ARENAS), (M_MMAP_THRESHOLD, OWN_PAGES_BYTES), (M_TRIM_THRESHOLD, OWN_PAGES_BYTES)]
        {
            mallopt(parameter, value);
        }
    }
}
