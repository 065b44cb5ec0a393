//! The allocator of the process, and how a process that serves many clients returns memory to the system.

use std::alloc::{GlobalAlloc, Layout};
use std::cell::Cell;
use std::ffi::{c_int, c_long};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use mimalloc::MiMalloc;

/// mimalloc. Reads and writes allocate blocks of megabytes and free them soon after; the system's allocator returns the
/// pages each time.
///
/// mimalloc keeps the empty pages of a thread until that thread allocates again or collects them; no other thread can.
/// A service has dozens of threads that work briefly and then wait, each holding what it freed last. So after
/// [`give_back_soon`] each thread collects its own pages whenever it has freed [`COLLECT_AFTER_BYTES`].
pub struct Allocator;

/// Bytes that a thread frees before it collects, and so the most that it keeps while it waits. A collection takes about
/// 10 µs.
const COLLECT_AFTER_BYTES: usize = 1 << 20;

static GIVES_BACK: AtomicBool = AtomicBool::new(false);

thread_local! {
    // Initialized at compile time and without a destructor: its first use allocates nothing, and it stays usable while
    // its thread ends.
    static FREED_BYTES: Cell<usize> = const { Cell::new(0) };
}

/// Counts the bytes that the current thread has freed, and collects its pages once they reach [`COLLECT_AFTER_BYTES`].
fn freed(bytes: usize) {
    if GIVES_BACK.load(Ordering::Relaxed) {
        let total = FREED_BYTES.get() + bytes;
        FREED_BYTES.set(if total < COLLECT_AFTER_BYTES { total } else { 0 });
        if total >= COLLECT_AFTER_BYTES {
            collect_thread();
        }
    }
}

// SAFETY: mimalloc does the work. The additions free no block that is in use.
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

/// How long freed blocks may stay with the process, milliseconds. In mimalloc's default of one second, a service can
/// allocate and free several times its memory limit in bodies.
const PURGE_DELAY_MS: c_long = 10;

/// `mi_option_purge_delay` of mimalloc, whose number is the same in its versions 2 and 3.
const OPTION_PURGE_DELAY: c_int = 15;

/// `M_ARENA_MAX` of glibc.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const M_ARENA_MAX: c_int = -8;
/// Maximum number of glibc arenas, from which SQLite and the interpreter allocate. Each reserves 64 MiB of address
/// space; the default is eight per core.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const ARENAS: c_int = 2;
/// `M_MMAP_THRESHOLD` and `M_TRIM_THRESHOLD` of glibc.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const M_MMAP_THRESHOLD: c_int = -3;
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const M_TRIM_THRESHOLD: c_int = -1;
/// Blocks of this size or more get their own pages, which return to the system when the block is freed. By default
/// glibc raises the threshold to the size of the largest block freed so far; bodies then leave holes in the heap that
/// stay resident.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const OWN_PAGES_BYTES: c_int = 256 << 10;

/// Interval at which an idle service returns free memory to the system.
pub const COLLECT_EVERY: Duration = Duration::from_secs(1);

/// Returns free memory to the system. Without this call the allocators do so only on a later allocation, and glibc only
/// at the end of its heap, although freed bodies and Python rows leave holes within it.
pub fn collect() {
    collect_thread();
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        #[allow(unsafe_code)]
        unsafe extern "C" {
            fn malloc_trim(keep: usize) -> c_int;
        }
        // SAFETY: may be called at any time from any thread, and returns only pages without a block in use.
        #[allow(unsafe_code)]
        unsafe {
            malloc_trim(0);
        }
    }
}

/// Returns the empty pages of this thread.
fn collect_thread() {
    #[allow(unsafe_code)]
    unsafe extern "C" {
        fn mi_collect(force: bool);
    }
    // SAFETY: may be called at any time from any thread, and frees only unused pages.
    #[allow(unsafe_code)]
    unsafe {
        mi_collect(false);
    }
}

/// Makes the allocators return freed memory soon, and limits the number of arenas. For services only: a process that
/// reads and writes in bulk is faster when it keeps freed memory for reuse.
pub fn give_back_soon() {
    GIVES_BACK.store(true, Ordering::Relaxed);
    #[allow(unsafe_code)]
    unsafe extern "C" {
        fn mi_option_set(option: c_int, value: c_long);
        #[cfg(all(target_os = "linux", target_env = "gnu"))]
        fn mallopt(parameter: c_int, value: c_int) -> c_int;
    }
    // SAFETY: both functions store numbers in settings that are read at each use; neither allocates or frees memory.
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
