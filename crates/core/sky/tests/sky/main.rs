//! Tests of pixels and regions.

mod pixels;
mod regions;

use chronotile_sky::{Pixelization, Scheme};

fn pixelization(scheme: Scheme, level: u32) -> Pixelization {
    Pixelization::new(scheme, level).expect("level in range")
}
