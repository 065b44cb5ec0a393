//! Pixelizations: a scheme at one level, and its pixels.

use crate::cube::Kind;
use crate::polygon;
use crate::scheme::Scheme;
use crate::vector::{Vec3, is_position};
use crate::{SkyError, healpix, htm};
use rayon::prelude::*;
use std::f64::consts::PI;
use std::fmt;
use std::str::FromStr;

/// Minimum number of points for several threads: below it, waking them takes longer.
const PARALLEL_ROWS_MIN: usize = 20_000;
const PARALLEL_CHUNK_ROWS: usize = 4_096;

impl FromStr for Scheme {
    type Err = SkyError;

    /// Reads "mq3c", "q3c", "htm" or "healpix", in any case.
    fn from_str(name: &str) -> Result<Self, SkyError> {
        Scheme::ALL
            .into_iter()
            .find(|s| s.name().eq_ignore_ascii_case(name))
            .ok_or_else(|| SkyError::UnknownScheme { name: name.to_owned() })
    }
}

/// A range of pixels, inclusive at both ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PixelRange {
    /// First pixel.
    pub first: u64,
    /// Last pixel. Inclusive, since the last MQ3C pixel of level 30 is 2^64 - 1.
    pub last: u64,
}

impl PixelRange {
    /// Number of pixels.
    #[allow(clippy::len_without_is_empty)] // A range is never empty.
    pub fn len(&self) -> u64 {
        self.last - self.first + 1
    }

    /// Whether the range contains a pixel.
    pub fn contains(&self, index: u64) -> bool {
        (self.first..=self.last).contains(&index)
    }
}

/// A scheme at one level: a numbering of the sphere's pixels.
///
/// Pixels nest: pixel `i` of one level is divided into pixels `4 i` to `4 i + 3` of the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Pixelization {
    scheme: Scheme,
    level: u32,
}

impl fmt::Display for Pixelization {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} level {}", self.scheme, self.level)
    }
}

impl Pixelization {
    /// The pixelization of `scheme` at `level`.
    ///
    /// # Errors
    /// [`SkyError::LevelOutOfRange`] for a level beyond [`Scheme::level_max`].
    pub fn new(scheme: Scheme, level: u32) -> Result<Self, SkyError> {
        let level_max = scheme.level_max();
        if level > level_max {
            return Err(SkyError::LevelOutOfRange { scheme, level, level_max });
        }
        Ok(Self { scheme, level })
    }

    /// The scheme.
    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// The level.
    pub fn level(&self) -> u32 {
        self.level
    }

    /// The range of all pixels.
    pub fn index_range(&self) -> PixelRange {
        let (first, count) = self.scheme.roots();
        let shift = 2 * self.level;
        // MQ3C's last index at level 30 is 2^64 - 1, so last + 1 would overflow.
        PixelRange { first: first << shift, last: ((first + count - 1) << shift) | ((1u64 << shift) - 1) }
    }

    /// The pixel of a position in degrees. Right ascension may be any finite number.
    ///
    /// # Errors
    /// [`SkyError::BadPosition`] for NaN, infinities, and declinations beyond the poles.
    pub fn index(&self, ra_deg: f64, dec_deg: f64) -> Result<u64, SkyError> {
        if !is_position(ra_deg, dec_deg) {
            return Err(SkyError::BadPosition { row: None, ra: ra_deg, dec: dec_deg });
        }
        Ok(self.index_unchecked(ra_deg, dec_deg))
    }

    fn index_unchecked(&self, ra: f64, dec: f64) -> u64 {
        match self.scheme {
            Scheme::Mq3c => Kind::Mq3c.index(Vec3::from_degrees(ra, dec), self.level),
            Scheme::Q3c => Kind::Q3c.index(Vec3::from_degrees(ra, dec), self.level),
            Scheme::Htm => htm::index(Vec3::from_degrees(ra, dec), self.level),
            Scheme::Healpix => healpix::index_degrees(ra, dec, self.level),
        }
    }

    /// Writes the pixels of many positions in degrees to `out`; large inputs use all threads of the current rayon pool.
    ///
    /// # Errors
    /// [`SkyError::BadPosition`] with the first invalid row (`out` is then unspecified), [`SkyError::LengthMismatch`],
    /// and [`SkyError::IndexTooWide`] for MQ3C level 30: use [`Pixelization::index_many_u64`].
    pub fn index_many(&self, ra_deg: &[f64], dec_deg: &[f64], out: &mut [i64]) -> Result<(), SkyError> {
        if i64::try_from(self.index_range().last).is_err() {
            // Only MQ3C has indices past 2^63, and only at its deepest level, so the next coarser level fits.
            return Err(SkyError::IndexTooWide { scheme: self.scheme, level: self.level, level_max: self.level - 1 });
        }
        self.index_each(ra_deg, dec_deg, out, |index| index as i64)
    }

    /// As [`Pixelization::index_many`], with unsigned indices, which suffice for every level.
    ///
    /// # Errors
    /// [`SkyError::BadPosition`] with the first invalid row (`out` is then unspecified), [`SkyError::LengthMismatch`].
    pub fn index_many_u64(&self, ra_deg: &[f64], dec_deg: &[f64], out: &mut [u64]) -> Result<(), SkyError> {
        self.index_each(ra_deg, dec_deg, out, |index| index)
    }

    fn index_each<T: Send>(
        &self,
        ra: &[f64],
        dec: &[f64],
        out: &mut [T],
        convert: impl Fn(u64) -> T + Sync,
    ) -> Result<(), SkyError> {
        if ra.len() != dec.len() || ra.len() != out.len() {
            return Err(SkyError::LengthMismatch { ra: ra.len(), dec: dec.len(), out: out.len() });
        }
        check_positions(ra, dec)?;
        let fill = |(start, part): (usize, &mut [T])| {
            let rows = start..start + part.len();
            for ((o, &ra), &dec) in part.iter_mut().zip(&ra[rows.clone()]).zip(&dec[rows]) {
                *o = convert(self.index_unchecked(ra, dec));
            }
        };
        if out.len() < PARALLEL_ROWS_MIN {
            fill((0, out));
        } else {
            out.par_chunks_mut(PARALLEL_CHUNK_ROWS)
                .enumerate()
                .for_each(|(chunk, part)| fill((chunk * PARALLEL_CHUNK_ROWS, part)));
        }
        Ok(())
    }

    fn check_index(&self, index: u64) -> Result<(), SkyError> {
        let PixelRange { first, last } = self.index_range();
        if (first..=last).contains(&index) {
            return Ok(());
        }
        Err(SkyError::NoSuchPixel { index, scheme: self.scheme, level: self.level, first, last })
    }

    pub(crate) fn vertex_vectors(&self, index: u64) -> Result<Vec<Vec3>, SkyError> {
        self.check_index(index)?;
        let square = |kind: Kind| {
            let (face, s, t) = kind.locate(index, self.level);
            kind.vertices(face, s, t, self.level).to_vec()
        };
        Ok(match self.scheme {
            Scheme::Mq3c => square(Kind::Mq3c),
            Scheme::Q3c => square(Kind::Q3c),
            Scheme::Htm => htm::vertices(index, self.level).to_vec(),
            Scheme::Healpix => {
                let (face, x, y) = healpix::locate(index, self.level);
                healpix::vertices(face, x, y, self.level).to_vec()
            }
        })
    }

    /// The corners of a pixel as (ra, dec) in degrees, counter-clockwise as seen from outside the sphere (as seen from inside,
    /// like the sky: clockwise with east to the right). Three for HTM, four for other schemes. The edges are great circles,
    /// except for HEALPix, whose edges are other curves.
    ///
    /// # Errors
    /// [`SkyError::NoSuchPixel`].
    pub fn pixel_vertices(&self, index: u64) -> Result<Vec<(f64, f64)>, SkyError> {
        Ok(self.vertex_vectors(index)?.into_iter().map(Vec3::to_degrees).collect())
    }

    /// A point well inside a pixel, (ra, dec) in degrees: the centre in the scheme's own coordinates, or for HTM the centroid of
    /// the corners.
    ///
    /// # Errors
    /// [`SkyError::NoSuchPixel`].
    pub fn pixel_center(&self, index: u64) -> Result<(f64, f64), SkyError> {
        self.check_index(index)?;
        let square = |kind: Kind| {
            let (face, s, t) = kind.locate(index, self.level);
            kind.point(face, f64::from(s) + 0.5, f64::from(t) + 0.5, self.level)
        };
        let center = match self.scheme {
            Scheme::Mq3c => square(Kind::Mq3c),
            Scheme::Q3c => square(Kind::Q3c),
            Scheme::Htm => {
                let [a, b, c] = htm::vertices(index, self.level);
                a.add(b).add(c)
            }
            Scheme::Healpix => {
                let (face, x, y) = healpix::locate(index, self.level);
                healpix::point(face, f64::from(x) + 0.5, f64::from(y) + 0.5, self.level)
            }
        };
        Ok(center.to_degrees())
    }

    /// The area of a pixel in steradians.
    ///
    /// # Errors
    /// [`SkyError::NoSuchPixel`].
    pub fn pixel_area(&self, index: u64) -> Result<f64, SkyError> {
        // The edges of HEALPix pixels are not great circles, so a polygon of the corners would have another area. All
        // pixels of a level have the same area.
        if self.scheme == Scheme::Healpix {
            self.check_index(index)?;
            return Ok(4.0 * PI / (12u64 << (2 * self.level)) as f64);
        }
        Ok(polygon::area(&self.vertex_vectors(index)?))
    }

    /// The pixel of the next coarser level that contains pixel `index`; `None` at level 0.
    ///
    /// # Errors
    /// [`SkyError::NoSuchPixel`].
    pub fn parent(&self, index: u64) -> Result<Option<u64>, SkyError> {
        self.check_index(index)?;
        Ok((self.level > 0).then_some(index >> 2))
    }

    /// The four pixels of the next finer level that form pixel `index`; `None` at the deepest level.
    ///
    /// # Errors
    /// [`SkyError::NoSuchPixel`].
    pub fn children(&self, index: u64) -> Result<Option<PixelRange>, SkyError> {
        self.check_index(index)?;
        let children = PixelRange { first: index << 2, last: (index << 2) | 3 };
        Ok((self.level < self.scheme.level_max()).then_some(children))
    }
}

/// Checks that all rows are valid positions; the error names the first that is not.
pub(crate) fn check_positions(ra: &[f64], dec: &[f64]) -> Result<(), SkyError> {
    match ra.iter().zip(dec).position(|(&r, &d)| !is_position(r, d)) {
        None => Ok(()),
        Some(row) => Err(SkyError::BadPosition { row: Some(row), ra: ra[row], dec: dec[row] }),
    }
}
