//! How a process that serves many clients gives memory back.

use std::ffi::{c_int, c_long};
use std::time::Duration;

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

/// Gives back what has been free for long enough: without this the allocator does so when it is asked for more.
pub fn collect() {
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
