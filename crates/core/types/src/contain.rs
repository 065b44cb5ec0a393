//! Contains panics of third-party decoders on damaged bytes.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::Once;

thread_local! {
    static IS_CONTAINED: Cell<bool> = const { Cell::new(false) };
}

/// Runs `work`, which decodes possibly damaged bytes with code that may panic. Returns a panic's message instead of printing it.
///
/// After a panic, everything that `work` was changing is in an unknown state: callers must drop it. Panics of threads that `work`
/// starts are not contained, nor are failed allocations, which abort the process: callers must check lengths against the available
/// bytes first.
///
/// # Errors
/// The message of the panic.
pub fn contained<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    quiet_hook();
    // The former value is restored, because `contained` may run inside `contained`.
    let outer = IS_CONTAINED.replace(true);
    // Callers drop what `work` was changing, so nobody sees its state after a panic.
    let outcome = catch_unwind(AssertUnwindSafe(work));
    IS_CONTAINED.set(outer);
    outcome.map_err(|panic| message(panic.as_ref()))
}

/// Installs a panic hook that ignores contained panics and passes others to the previous hook.
fn quiet_hook() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let before = take_hook();
        // The hook is that of the process, the flag that of the panicking thread: panics of other threads stay visible.
        set_hook(Box::new(move |panic| {
            if !IS_CONTAINED.get() {
                before(panic);
            }
        }));
    });
}

fn message(panic: &(dyn Any + Send)) -> String {
    // `panic!` carries `&str` for a literal message and `String` for a formatted one.
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
    let line = text.lines().next().unwrap_or_default();
    format!("the decoder failed: {}", line.chars().take(200).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_panics_outside_are_printed() {
        use std::sync::Arc;
        use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

        // The hook is installed once per process and wraps the existing one, so this test uses a process of its own.
        const CHILD: &str = "CHRONOTILE_TEST_PRINTED";
        if std::env::var_os(CHILD).is_none() {
            let name = "contain::tests::only_panics_outside_are_printed";
            let mut child = std::process::Command::new(std::env::current_exe().unwrap());
            let done = child.args(["--exact", name, "--test-threads", "1"]).env(CHILD, "1").output().unwrap();
            assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stdout));
            return;
        }
        let printed = Arc::new(AtomicUsize::new(0));
        let counted = printed.clone();
        set_hook(Box::new(move |_| _ = counted.fetch_add(1, Relaxed)));
        assert!(contained(|| panic!("held")).is_err());
        assert_eq!(printed.load(Relaxed), 0);
        assert!(catch_unwind(|| panic!("not held")).is_err());
        assert_eq!(printed.load(Relaxed), 1);
        assert!(contained(|| panic!("held again")).is_err());
        assert_eq!(printed.load(Relaxed), 1);
    }

    #[test]
    fn a_panic_becomes_its_message_and_the_next_one_too() {
        assert_eq!(contained(|| 7), Ok(7));
        for place in 3..5 {
            let bytes = [0u8; 3];
            let read = contained(|| bytes[place]);
            assert!(read.unwrap_err().contains("out of bounds"));
        }
        let nested = contained(|| contained(|| panic!("inner {}", 1)).map(|(): ()| 1));
        assert_eq!(nested, Ok(Err("the decoder failed: inner 1".to_owned())));
        assert!(!IS_CONTAINED.get());
    }
}
