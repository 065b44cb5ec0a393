//! Compression of byte strings (LZ4, zstd) and of columns of numbers (pco).

use std::cell::RefCell;

use arrow_buffer::{ArrowNativeType, MutableBuffer};
use chronotile_types::Damage;
use pco::data_types::Number as PcoNumber;
use pco::metadata::DeltaEncoding;
use pco::wrapped::{FileCompressor, FileDecompressor};
use pco::{ChunkConfig, PagingSpec};

use crate::number::{Number, numbers, with_number};
use crate::wire::{Reader, put_varint};

const ZSTD_LEVEL: i32 = 3;
/// Level of pco for the numbers of a column.
pub(crate) const PCO_LEVEL: usize = 4;
/// Level of pco for the integers of decimals: finer probabilities save another thirtieth of their few distinct differences.
pub(crate) const PCO_LEVEL_DECIMALS: usize = 8;
/// Minimum size of blocks and single values for which compression is tried.
pub(crate) const COMPRESS_BYTES_MIN: usize = 256;
/// A compressed form must save at least one byte in this many.
const WORTH: usize = 16;

/// How a small block is compressed. The discriminant is the code in the head's flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Compression {
    None = 0,
    Lz4 = 1,
    Zstd = 2,
}

impl Compression {
    pub(crate) fn from_code(code: u8) -> Result<Self, Damage> {
        match code {
            0 => Ok(Self::None),
            1 => Ok(Self::Lz4),
            2 => Ok(Self::Zstd),
            _ => Err(Damage::malformed("unknown block compression")),
        }
    }

    /// Decompresses `bytes` into exactly `out`.
    pub(crate) fn decompress(self, bytes: &[u8], out: &mut [u8]) -> Result<(), Damage> {
        let written = match self {
            Self::None => return Err(Damage::malformed("a plain block is not decompressed")),
            Self::Lz4 => lz4_flex::block::decompress_into(bytes, out).ok(),
            Self::Zstd => zstd_decompress(bytes, out),
        };
        if written == Some(out.len()) { Ok(()) } else { Err(Damage::malformed("a block does not decompress")) }
    }
}

/// Decompresses with a context per thread: creating one takes longer than decompressing most columns.
fn zstd_decompress(bytes: &[u8], out: &mut [u8]) -> Option<usize> {
    thread_local! {
        static CONTEXT: RefCell<Option<zstd::bulk::Decompressor<'static>>> = const { RefCell::new(None) };
    }
    CONTEXT.with_borrow_mut(|context| {
        if context.is_none() {
            *context = zstd::bulk::Decompressor::new().ok();
        }
        context.as_mut()?.decompress_to_buffer(bytes, out).ok()
    })
}

/// Compresses `bytes`; `None` if that does not save enough.
pub(crate) fn compress(bytes: &[u8], compression: Compression) -> Option<Vec<u8>> {
    let packed = match compression {
        Compression::None => return None,
        Compression::Lz4 => lz4_flex::block::compress(bytes),
        // Compression in memory fails only if memory is exhausted; then the bytes are stored plain.
        Compression::Zstd => zstd::bulk::compress(bytes, ZSTD_LEVEL).ok()?,
    };
    (packed.len() + bytes.len() / WORTH < bytes.len()).then_some(packed)
}

/// Appends `bytes` in the packed form: `0` and the bytes, or `1`, a length and a zstd frame.
pub(crate) fn put_packed(out: &mut Vec<u8>, bytes: &[u8]) {
    match compress(bytes, Compression::Zstd) {
        Some(packed) => {
            out.push(1);
            put_varint(out, packed.len() as u64);
            out.extend_from_slice(&packed);
        }
        None => {
            out.push(0);
            out.extend_from_slice(bytes);
        }
    }
}

/// Reads a packed byte string of `len` bytes; a compressed one is decompressed into `scratch`.
pub(crate) fn read_packed<'s, 'a: 's>(
    reader: &mut Reader<'a>,
    len: usize,
    scratch: &'s mut Vec<u8>,
) -> Result<&'s [u8], Damage> {
    match reader.u8()? {
        0 => reader.take(len),
        1 => {
            let packed_len = reader.size(reader.rest().len())?;
            let packed = reader.take(packed_len)?;
            scratch.clear();
            // The caller knows `len` from rows and lengths, so a frame that announces more cannot enlarge the
            // allocation.
            scratch.resize(len, 0);
            Compression::Zstd.decompress(packed, scratch)?;
            Ok(scratch)
        }
        _ => Err(Damage::malformed("unknown packing")),
    }
}

/// Compresses little-endian numbers with pco: wrapped header, chunk metadata, one page. `None` if pco refuses.
pub(crate) fn pco_compress(bytes: &[u8], number: Number, level: usize) -> Option<Vec<u8>> {
    with_number!(number, T => {
        let values: Vec<T> = numbers!(bytes, T).collect();
        pco_compress_numbers(&values, level)
    })
}

fn pco_compress_numbers<T: PcoNumber>(values: &[T], level: usize) -> Option<Vec<u8>> {
    let config = ChunkConfig::default()
        .with_compression_level(level)
        // pco refuses integers of 8 bits without this option.
        .with_enable_8_bit(true)
        // The format has one page; by default, pco begins another after 2^18 numbers.
        .with_paging_spec(PagingSpec::Exact(vec![values.len()]));
    let file = FileCompressor::default();
    let mut chunk = file.chunk_compressor(values, &config).ok()?;
    // pco chooses the delta encoding itself, and may choose one that the format excludes. It does not choose
    // dictionaries unless asked to.
    if !is_allowed(&chunk.meta().delta_encoding) {
        return None;
    }
    let out = file.write_header(Vec::new()).ok()?;
    let out = chunk.write_meta(out).ok()?;
    chunk.write_page(0, out).ok()
}

/// pco's dictionary mode and lookback deltas state sizes that their input need not fill. The format excludes them, so that a
/// decoder's allocations are bounded by the chunk's content.
fn is_allowed(delta: &DeltaEncoding) -> bool {
    !matches!(delta, DeltaEncoding::Lookback { .. })
}

const PCO_MODE_DICT: u8 = 4;

/// Decompresses exactly `count` numbers and appends them to `out`, whose length is a multiple of the type's width.
pub(crate) fn pco_decompress(
    bytes: &[u8],
    number: Number,
    count: usize,
    out: &mut MutableBuffer,
) -> Result<(), Damage> {
    with_number!(number, T => {
        let start = out.len() / size_of::<T>();
        out.resize(out.len() + count * size_of::<T>(), 0);
        pco_decompress_into::<T>(bytes, &mut out.typed_data_mut::<T>()[start..])
    })
}

fn pco_decompress_into<T: PcoNumber + ArrowNativeType>(bytes: &[u8], out: &mut [T]) -> Result<(), Damage> {
    let damaged = |_| Damage::malformed("a column does not decompress");
    let (file, rest) = FileDecompressor::new(bytes).map_err(damaged)?;
    // The mode is looked up in the bytes: pco allocates the announced dictionary as soon as it parses the metadata.
    if rest.first().is_some_and(|byte| byte & 0xf == PCO_MODE_DICT) {
        return Err(Damage::malformed("a column uses a dictionary of pco"));
    }
    let (mut chunk, rest) = file.chunk_decompressor::<T, _>(rest).map_err(damaged)?;
    if !is_allowed(&chunk.meta().delta_encoding) {
        return Err(Damage::malformed("a column uses lookback of pco"));
    }
    let mut page = chunk.page_decompressor(rest, out.len()).map_err(damaged)?;
    let progress = page.read(out).map_err(damaged)?;
    if !progress.finished || progress.n_processed != out.len() || !page.into_src().is_empty() {
        return Err(Damage::malformed("a column has the wrong number of values"));
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a test may unwrap
mod tests {
    use super::*;
    use pco::{DeltaSpec, ModeSpec};

    /// Repeated noise, which pco encodes best with lookback deltas.
    fn repeated() -> Vec<u64> {
        let noise = (0..200u64).map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 8);
        noise.cycle().take(4_000).collect()
    }

    #[test]
    fn bytes_are_compressed_where_that_saves_more_than_one_in_sixteen() {
        let noise: Vec<u8> = repeated().iter().flat_map(|value| value.to_le_bytes()[..5].to_vec()).take(900).collect();
        let mut equal = 0;
        for zeros in 0..200 {
            let bytes = [noise.as_slice(), &vec![0; zeros]].concat();
            let packed = lz4_flex::block::compress(&bytes);
            equal += usize::from(packed.len() + bytes.len() / 16 == bytes.len());
            let is_worth = packed.len() + bytes.len() / 16 < bytes.len();
            assert_eq!(compress(&bytes, Compression::Lz4).is_some(), is_worth, "{zeros} zeros");
        }
        assert!(equal > 0, "no case lies on the bound");
    }

    fn by_pco(values: &[u64], config: &ChunkConfig) -> Vec<u8> {
        let file = FileCompressor::default();
        let mut chunk = file.chunk_compressor(values, config).unwrap();
        let out = chunk.write_meta(file.write_header(Vec::new()).unwrap()).unwrap();
        chunk.write_page(0, out).unwrap()
    }

    fn damage_of(bytes: &[u8], count: usize) -> String {
        pco_decompress(bytes, Number::U64, count, &mut MutableBuffer::new(0)).unwrap_err().to_string()
    }

    #[test]
    fn a_wrong_number_of_values_is_refused() {
        let mut bytes = by_pco(&repeated(), &ChunkConfig::default().with_delta_spec(DeltaSpec::NoOp));
        pco_decompress(&bytes, Number::U64, 4_000, &mut MutableBuffer::new(0)).unwrap();
        for count in [3_900, 4_100] {
            assert!(pco_decompress(&bytes, Number::U64, count, &mut MutableBuffer::new(0)).is_err());
        }
        bytes.push(0);
        assert!(damage_of(&bytes, 4_000).contains("the wrong number of values"));
    }

    #[test]
    fn dictionaries_of_pco_are_not_read() {
        let values = repeated();
        let bytes = by_pco(&values, &ChunkConfig::default().with_mode_spec(ModeSpec::TryDict));
        let damage = damage_of(&bytes, values.len());
        assert!(damage.contains("dictionary"), "{damage}");
    }

    #[test]
    fn lookback_is_neither_written_nor_read() {
        let values = repeated();
        let config = ChunkConfig::default().with_delta_spec(DeltaSpec::TryLookback);
        let damage = damage_of(&by_pco(&values, &config), values.len());
        assert!(damage.contains("lookback"), "{damage}");

        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        if let Some(packed) = pco_compress(&bytes, Number::U64, PCO_LEVEL) {
            let mut out = MutableBuffer::new(0);
            pco_decompress(&packed, Number::U64, values.len(), &mut out).unwrap();
            assert_eq!(out.as_slice(), bytes);
        }
    }
}
