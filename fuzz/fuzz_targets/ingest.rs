//! Gives arbitrary bytes to the readers of foreign formats. The first byte chooses one; remote write gets its bytes packed too,
//! because random bytes are seldom a snappy block.
//!
//! `./dev fuzz`.

#![no_main]

use chronotile_service::points::Points;
use chronotile_service::{arrow_stream, csv, json, line_protocol, remote_write};
use libfuzzer_sys::fuzz_target;

const BODY_BYTES_MAX: usize = 1 << 20;

fuzz_target!(|data: &[u8]| {
    let [reader, body @ ..] = data else { return };
    let mut points = Points::default();
    match reader % 6 {
        0 => line_protocol::read(body, 1_000, 0, &mut points),
        1 => drop(csv::read(body.to_vec().into(), 0, &mut points)),
        2 => drop(json::read(body, 0, &mut points)),
        3 => drop(arrow_stream::read(body.to_vec().into())),
        4 => drop(remote_write::read(body, BODY_BYTES_MAX, &mut points)),
        _ => {
            let packed = snap::raw::Encoder::new().compress_vec(body).expect("a small body is packed");
            drop(remote_write::read(&packed, BODY_BYTES_MAX, &mut points));
        }
    }
    // Whatever came, the rows are whole.
    assert_eq!(points.rows().count(), points.len());
});
