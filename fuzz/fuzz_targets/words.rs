//! Gives arbitrary text to what reads addresses: parameters, times and lengths of time.

#![no_main]

use chronotile_service::parameters::{duration_ns, pairs, time_ns};
use libfuzzer_sys::fuzz_target;

const NOW_NS: i64 = 1_767_225_600_000_000_000;

fuzz_target!(|text: &str| {
    if let Ok(pairs) = pairs(text) {
        // As many as there are parts, whatever they hold.
        assert_eq!(pairs.len(), text.split('&').filter(|part| !part.is_empty()).count());
    }
    let _ = time_ns(text, NOW_NS);
    if let Ok(length) = duration_ns(text) {
        assert!(length >= 0);
        assert_eq!(time_ns(&format!("now-{text}"), NOW_NS).ok(), NOW_NS.checked_sub(length));
    }
});
