//! Text filters: the runs of four bytes that occur in a column of a chunk, as bits in its head, with which a reader skips a
//! chunk that cannot contain a text without reading its body. The parameters: `docs/decisions/009-text-filters.md`.

use std::borrow::Cow;
use std::cell::RefCell;

use arrow_array::cast::AsArray;
use arrow_array::{RecordBatch, StringArray};
use chronotile_types::Damage;

use crate::wire::{Reader, put_varint};

/// Bytes in a run. A filter cannot exclude shorter texts.
pub const GRAM_BYTES: usize = 4;

/// Number of bits of a run's hash that are used as its key.
const KEY_BITS: u32 = 22;
/// The filters of a chunk take at most one byte per this many bytes of its body.
const BODY_SHARE: usize = 20;
/// Minimum size of a body with filters: a shorter one is read as fast as it is skipped.
const BODY_BYTES_MIN: usize = 256;
/// Maximum bits per run. More improve almost nothing, since most texts have several runs.
const BITS_PER_GRAM_MAX: f64 = 6.0;
/// Minimum bits per run. With fewer, nine of ten bits are set, and the filter would pass nearly everything.
const BITS_PER_GRAM_MIN: f64 = 0.45;
const PROBES_MAX: u8 = 8;

/// The case-folded text for filters: ASCII letters, and the two other letters that are case variants of ASCII letters, become
/// ASCII lower case. Folding is letter by letter, so a substring of a text folds to a substring of the folded text.
pub fn fold(text: &str) -> Cow<'_, [u8]> {
    if text.bytes().all(|byte| byte.is_ascii() && !byte.is_ascii_uppercase()) {
        return Cow::Borrowed(text.as_bytes());
    }
    let mut folded = Vec::with_capacity(text.len());
    fold_into(text, &mut folded);
    Cow::Owned(folded)
}

fn fold_into(text: &str, folded: &mut Vec<u8>) {
    if text.is_ascii() {
        folded.extend_from_slice(text.as_bytes());
        folded.make_ascii_lowercase();
        return;
    }
    for letter in text.chars() {
        match letter {
            '\u{17f}' => folded.push(b's'),
            '\u{212a}' => folded.push(b'k'),
            _ => folded.extend_from_slice(letter.to_ascii_lowercase().encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
}

/// The finalizer of MurmurHash3, 32 bits.
fn mix(mut hash: u32) -> u32 {
    hash = (hash ^ hash >> 16).wrapping_mul(0x85eb_ca6b);
    hash = (hash ^ hash >> 13).wrapping_mul(0xc2b2_ae35);
    hash ^ hash >> 16
}

fn keys(folded: &[u8]) -> impl Iterator<Item = u32> + '_ {
    let key = |gram: &[u8]| mix(u32::from_le_bytes([gram[0], gram[1], gram[2], gram[3]])) >> (32 - KEY_BITS);
    folded.windows(GRAM_BYTES).map(key)
}

/// The position of the bit for one probe of a key.
fn place(key: u32, probe: u8, bytes: usize) -> usize {
    // The number of the probe takes the bits above those of the key. The product maps the hash to the bits of the
    // filter without a division, so the length of a filter need not be a power of two.
    let hash = mix(key | u32::from(probe) << KEY_BITS);
    ((u64::from(hash) * (bytes as u64 * 8)) >> 32) as usize
}

/// The runs of a search text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grams(Box<[u32]>);

impl Grams {
    /// The runs of a folded text; none if it is shorter than [`GRAM_BYTES`].
    pub fn of(folded: &[u8]) -> Self {
        let mut keys: Vec<u32> = keys(folded).collect();
        keys.sort_unstable();
        keys.dedup();
        Self(keys.into())
    }

    /// Whether there are no runs, so that every filter passes.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The filter of one column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextFilter {
    column: usize,
    probes: u8,
    bits: Box<[u8]>,
}

impl TextFilter {
    /// The position of its column in the schema.
    pub fn column(&self) -> usize {
        self.column
    }

    /// Whether some value of the column may contain all of these runs. Never false if one does.
    pub fn may_hold(&self, grams: &Grams) -> bool {
        let is_set = |at: usize| self.bits[at / 8] >> (at % 8) & 1 == 1;
        grams.0.iter().all(|key| (0..self.probes).all(|probe| is_set(place(*key, probe, self.bits.len()))))
    }
}

/// The distinct runs of one column, in order of appearance.
struct Runs {
    /// One bit per possible key; all zero between uses.
    present: Vec<u64>,
    keys: Vec<u32>,
}

thread_local! {
    static RUNS: RefCell<Runs> = RefCell::new(Runs { present: vec![0; 1 << (KEY_BITS - 6)], keys: vec![] });
}

impl Runs {
    fn add(&mut self, texts: &StringArray) {
        let mut folded = Vec::new();
        for text in texts.iter().flatten() {
            folded.clear();
            fold_into(text, &mut folded);
            for key in keys(&folded) {
                let (word, bit) = (&mut self.present[key as usize / 64], 1 << (key % 64));
                if *word & bit == 0 {
                    *word |= bit;
                    self.keys.push(key);
                }
            }
        }
    }

    fn take(&mut self) -> Vec<u32> {
        let keys = std::mem::take(&mut self.keys);
        // The table takes half a MiB, so only the words with a bit of this column are cleared.
        keys.iter().for_each(|key| self.present[*key as usize / 64] = 0);
        keys
    }
}

fn distinct_runs(texts: &StringArray) -> Vec<u32> {
    RUNS.with_borrow_mut(|runs| {
        runs.add(texts);
        runs.take()
    })
}

/// The encoded filters of these columns; `None` if they would not save time. Columns other than text have no filter.
pub(crate) fn put_filters(rows: &RecordBatch, columns: &[usize], body_bytes: usize) -> Option<Vec<u8>> {
    if columns.is_empty() || body_bytes < BODY_BYTES_MIN {
        return None;
    }
    let texts = columns.iter().filter_map(|column| Some((*column, rows.column(*column).as_string_opt::<i32>()?)));
    let mut runs: Vec<(usize, Vec<u32>)> = texts.map(|(column, texts)| (column, distinct_runs(texts))).collect();
    // The format lists filters by ascending position; `columns` may have any order.
    runs.sort_unstable_by_key(|(column, _)| *column);
    let count: usize = runs.iter().map(|(_, keys)| keys.len()).sum();
    let room_bits = (body_bytes / BODY_SHARE * 8) as f64;
    // There may be no run: all texts may be null or shorter than a run.
    let bits_per_gram = (room_bits / count.max(1) as f64).min(BITS_PER_GRAM_MAX);
    if runs.is_empty() || bits_per_gram < BITS_PER_GRAM_MIN {
        return None;
    }
    // This number of probes sets half of the bits, which minimizes false positives.
    let probes = (bits_per_gram * std::f64::consts::LN_2).round().max(1.0) as u8;
    let mut out = Vec::with_capacity(body_bytes / BODY_SHARE + 16);
    put_varint(&mut out, runs.len() as u64);
    for (column, keys) in runs {
        // A filter takes at least one byte. Without a bit set, it excludes every text that has a run.
        let mut bits = vec![0u8; ((keys.len() as f64 * bits_per_gram / 8.0) as usize).max(1)];
        for key in keys {
            for probe in 0..probes {
                let at = place(key, probe, bits.len());
                bits[at / 8] |= 1 << (at % 8);
            }
        }
        put_varint(&mut out, column as u64);
        out.push(probes);
        put_varint(&mut out, bits.len() as u64);
        out.extend_from_slice(&bits);
    }
    Some(out)
}

/// Reads what [`put_filters`] wrote.
pub(crate) fn read_filters(reader: &mut Reader) -> Result<Box<[TextFilter]>, Damage> {
    // Each filter takes at least four bytes, which bounds the allocation by the head's own size.
    let count = reader.size(reader.rest().len() / 4)?;
    let mut filters: Vec<TextFilter> = Vec::with_capacity(count);
    for _ in 0..count {
        let column = reader.size(u32::MAX as usize)?;
        let probes = reader.u8()?;
        let bytes = reader.size(reader.rest().len())?;
        if filters.last().is_some_and(|last| last.column >= column) || !(1..=PROBES_MAX).contains(&probes) || bytes == 0
        {
            return Err(Damage::malformed("a text filter is out of order or empty"));
        }
        filters.push(TextFilter { column, probes, bits: reader.take(bytes)?.into() });
    }
    if filters.is_empty() {
        return Err(Damage::malformed("text filters are declared but missing"));
    }
    Ok(filters.into())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a test may unwrap
mod tests {
    use super::*;
    use arrow_array::ArrayRef;
    use proptest::prelude::*;
    use std::sync::Arc;

    fn filter(texts: &[Option<String>], body_bytes: usize) -> Option<TextFilter> {
        let column: ArrayRef = Arc::new(StringArray::from_iter(texts));
        let rows = RecordBatch::try_from_iter([("text", column)]).unwrap();
        let bytes = put_filters(&rows, &[0], body_bytes)?;
        let mut reader = Reader::new(&bytes);
        let filters = read_filters(&mut reader).unwrap();
        assert!(reader.is_empty());
        Some(filters[0].clone())
    }

    fn text() -> impl Strategy<Value = String> {
        prop_oneof!["[a-dA-D]{0,12}", "\\PC{0,12}", "[kK\u{212a}sS\u{17f}éÉ]{0,10}"]
    }

    proptest! {
        #[test]
        fn a_filter_passes_every_part_of_every_text(
            texts in prop::collection::vec(prop::option::of(text()), 1..40), body_bytes in 256..20_000usize,
        ) {
            let Some(filter) = filter(&texts, body_bytes) else { return Ok(()) };
            for text in texts.iter().flatten() {
                let places: Vec<usize> = text.char_indices().map(|(at, _)| at).chain([text.len()]).collect();
                for (i, start) in places.iter().enumerate() {
                    for end in &places[i..] {
                        let part = &text[*start..*end];
                        prop_assert!(filter.may_hold(&Grams::of(&fold(part))), "{part:?} of {text:?}");
                        prop_assert!(filter.may_hold(&Grams::of(&fold(&part.to_ascii_uppercase()))));
                    }
                }
            }
        }

        #[test]
        fn folding_a_part_gives_a_part_of_the_folded_text(before in text(), part in text(), after in text()) {
            let whole = fold(&format!("{before}{part}{after}")).into_owned();
            prop_assert_eq!(whole, [fold(&before), fold(&part), fold(&after)].concat());
        }
    }

    #[test]
    fn letters_that_are_case_variants_of_ascii_fold_to_ascii() {
        assert_eq!(&*fold("\u{212a}elvin, \u{17f}ession, ÉÀ, Straße"), "kelvin, session, ÉÀ, straße".as_bytes());
        assert_eq!(&*fold("Log LINE 7"), b"log line 7");
        assert!(matches!(fold("log line 7 []"), Cow::Borrowed(b"log line 7 []")));
    }

    #[test]
    fn a_filter_excludes_absent_texts() {
        let texts: Vec<_> =
            (0..400).map(|i| Some(format!("connection {} from host{:02} closed", i * 7, i % 60))).collect();
        let filter = filter(&texts, 60_000).unwrap();
        for absent in ["segmentation fault", "out of memory", "host77", "CLOSED by"] {
            assert!(!filter.may_hold(&Grams::of(&fold(absent))), "{absent}");
        }
        assert!(filter.may_hold(&Grams::of(&fold("Host17 CLOSED"))));
        assert!(Grams::of(b"abc").is_empty() && !Grams::of(b"abcd").is_empty() && filter.may_hold(&Grams::of(b"xyz")));
    }

    #[test]
    fn filters_stay_within_their_share_and_are_left_out_where_they_would_pass_everything() {
        let texts: Vec<_> =
            (0u64..2_000).map(|i| Some(format!("{:016x}", i.wrapping_mul(0x9e37_79b9_7f4a_7c15)))).collect();
        let column: ArrayRef = Arc::new(StringArray::from_iter(&texts));
        let rows = RecordBatch::try_from_iter([("text", column)]).unwrap();
        for body_bytes in [256, 5_000, 50_000, 400_000] {
            let bytes = put_filters(&rows, &[0], body_bytes).map_or(0, |bytes| bytes.len());
            assert!(bytes <= body_bytes / BODY_SHARE + 16, "{bytes} of {body_bytes}");
        }
        assert_eq!(filter(&texts, 1_000), None);
        assert!(filter(&texts, 50_000).is_some());
        assert_eq!(filter(&[Some("a text".to_owned())], BODY_BYTES_MIN - 1), None);
        // The filter of a column without runs passes nothing.
        assert!(!filter(&[None, Some("abc".to_owned())], 1_000).unwrap().may_hold(&Grams::of(b"text")));
    }

    #[test]
    fn a_filter_passes_few_absent_runs() {
        let texts: Vec<_> = (0..3_000).map(|i| Some(format!("{:04x}", i * 7))).collect();
        let filter = filter(&texts, 400_000).unwrap();
        let absent = (0..10_000).map(|i| format!("{i:04}z"));
        let passed = absent.filter(|text| filter.may_hold(&Grams::of(&text.as_bytes()[1..]))).count();
        // Six bits per run, less for runs that share a key. Four probes of bits that are half set pass one text of sixteen.
        assert_eq!((filter.probes, filter.bits.len() / 10), (4, 224));
        assert!((500..750).contains(&passed), "{passed}");
    }

    #[test]
    fn filters_are_made_from_the_least_room_that_pays_and_of_texts_alone() {
        // 18 bytes, which are 144 bits, have 0.45 for each of 320 runs.
        let texts = |count: usize| vec![Some((0..count).map(|i| format!("{i:04}")).collect::<Vec<_>>().concat())];
        let runs = |count: usize| distinct_runs(&StringArray::from(texts(count))).len();
        let (count, more) = (1..200).find_map(|n| (runs(n) > 320).then_some((n - 1, n))).unwrap();
        let exact: Vec<_> =
            texts(count).into_iter().chain((runs(count)..320).map(|i| Some(format!("{i:03}z")))).collect();
        assert_eq!(distinct_runs(&StringArray::from(exact.clone())).len(), 320);
        assert!(filter(&exact, 360).is_some());
        assert_eq!(filter(&texts(more), 360), None);
        assert_eq!(filter(&exact, 359), None);
        let some = [Some("a text".to_owned())];
        assert!(filter(&some, BODY_BYTES_MIN).is_some());
        let column: ArrayRef = Arc::new(arrow_array::Int64Array::from(vec![1, 2]));
        let rows = RecordBatch::try_from_iter([("number", column)]).unwrap();
        assert_eq!(put_filters(&rows, &[0], 10_000), None);
        assert_eq!(put_filters(&rows, &[], 10_000), None);
    }

    #[test]
    fn filters_that_break_a_rule_are_refused() {
        let refused = |bytes: &[u8]| read_filters(&mut Reader::new(bytes)).is_err();
        assert!(!refused(&[2, 0, 1, 1, 0xff, 3, 8, 1, 0xff]));
        for bytes in [
            &[0][..],
            &[1, 0, 0, 1, 0xff],
            &[1, 0, 9, 1, 0xff],
            &[1, 0, 1, 0, 0xff],
            &[1, 0, 1, 9, 0xff],
            &[2, 3, 1, 1, 0xff, 3, 1, 1, 0xff],
            &[2, 3, 1, 1, 0xff, 0, 1, 1, 0xff],
            &[200, 0, 1, 1, 0xff],
        ] {
            assert!(refused(bytes), "{bytes:?}");
        }
        // The bytes cannot contain two filters, so nothing is allocated for them.
        let damage = read_filters(&mut Reader::new(&[2, 0, 1, 1, 0xff])).unwrap_err().to_string();
        assert!(damage.contains("limit"), "{damage}");
    }
}
