//! Tests of pixels and regions, in one program, which compiles and links faster than one for each file.

mod pixels;
mod regions;

use chronotile_sky::{Pixelization, Scheme};

fn pixelization(scheme: Scheme, level: u32) -> Pixelization {
    Pixelization::new(scheme, level).expect("level in range")
}
