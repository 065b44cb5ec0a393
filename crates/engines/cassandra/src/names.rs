//! Names of tables and the statements that create them. `docs/format.md` describes every column.

use chronotile_cql::TableOptions;
use chronotile_types::{DatasetName, SliceId};
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

/// Longest name a table may have.
const NAME_LEN_MAX: usize = 48;

pub(crate) const CATALOG: &str = "catalog";
pub(crate) const SLICES: &str = "slices";
pub(crate) const LEASES: &str = "leases";
pub(crate) const META: &str = "meta";

/// Columns of the tables that every archive has.
const FIXED: [(&str, &str); 4] = [
    (META, "name text PRIMARY KEY, value text"),
    (LEASES, "name text PRIMARY KEY, holder text"),
    (SLICES, "dataset text, slice int, table_id text, ready boolean, PRIMARY KEY ((dataset), slice)"),
    (CATALOG, "dataset text, bucket int, record_key text, value blob, PRIMARY KEY ((dataset, bucket), record_key)"),
];

/// Default compression of tables in layout `rows`: unlike chunks, their values are not compressed already.
const RECORD_COMPRESSION: &str = "LZ4Compressor";

/// Columns of a table of chunks. `epoch` changes with every removal from the partition.
const CHUNK_COLUMNS: &str = "cell bigint, time_window int, chunk_id blob, epoch bigint STATIC, row_count int, \
     byte_count int, head blob, body blob, PRIMARY KEY ((cell), time_window, chunk_id)";

/// The same where several cells share a partition.
const GROUP_COLUMNS: &str = "part bigint, cell bigint, time_window int, chunk_id blob, epoch bigint STATIC, row_count int, \
     byte_count int, head blob, body blob, PRIMARY KEY ((part), cell, time_window, chunk_id)";

/// Columns and key of a table of chunks with this many cells in a partition.
pub(crate) fn chunk_columns(cells: i64) -> &'static str {
    if cells == 1 { CHUNK_COLUMNS } else { GROUP_COLUMNS }
}

/// The table name of a slice's chunks, unique to the slice.
pub(crate) fn chunk_table(dataset: &DatasetName, slice: SliceId) -> String {
    slice_table("c_", "h_", dataset, slice)
}

/// The table name of a slice in layout `rows`, unique to the slice and different from every table of chunks.
pub(crate) fn row_table(dataset: &DatasetName, slice: SliceId) -> String {
    slice_table("r_", "q_", dataset, slice)
}

fn slice_table(prefix: &str, cut_prefix: &str, dataset: &DatasetName, slice: SliceId) -> String {
    let sign = if slice.0 < 0 { "m" } else { "" };
    let tail = format!("_{sign}{}", slice.0.unsigned_abs());
    let whole = format!("{prefix}{dataset}{tail}");
    if whole.len() <= NAME_LEN_MAX {
        return whole;
    }
    // A truncated name gets a hash, and a prefix that no full name has.
    let hash = format!("_{:016x}", xxh3_64(dataset.as_str().as_bytes()));
    // Names of datasets are ASCII, so they can be cut at any byte.
    let kept = NAME_LEN_MAX - cut_prefix.len() - hash.len() - tail.len();
    format!("{cut_prefix}{}{hash}{tail}", &dataset.as_str()[..kept])
}

/// Statements that create the tables of an archive. Clients that run them concurrently create the same tables: each table id is
/// derived from the name.
pub(crate) fn create_fixed(keyspace: &str, with_ids: bool) -> Vec<(&'static str, String)> {
    let create = |(name, columns): (&'static str, &str)| {
        let id = with_ids.then(|| table_id(&format!("{keyspace}.{name}"))).map(|id| format!(" WITH id = {id}"));
        (name, format!("CREATE TABLE IF NOT EXISTS {keyspace}.{name} ({columns}){}", id.unwrap_or_default()))
    };
    FIXED.map(create).to_vec()
}

/// The statement that creates a slice's table with these columns, for records or for chunks.
pub(crate) fn create_slice(
    keyspace: &str,
    table: &str,
    id: Option<&str>,
    columns: &str,
    records: bool,
    options: &TableOptions,
) -> String {
    let compression = match &options.compression {
        Some(class) => format!("{{'class': '{class}'}}"),
        None if records => format!("{{'class': '{RECORD_COMPRESSION}'}}"),
        None => "{'enabled': 'false'}".to_owned(),
    };
    let id = id.map(|id| format!("id = {id} AND ")).unwrap_or_default();
    format!(
        "CREATE TABLE IF NOT EXISTS {keyspace}.{table} ({columns}) WITH {id}compaction = {{'class': '{}'}} AND \
         compression = {compression} AND gc_grace_seconds = {} AND speculative_retry = '{}' \
         AND caching = {{'keys': 'ALL', 'rows_per_partition': 'NONE'}}",
        options.compaction, options.gc_grace_s, options.speculative_retry
    )
}

/// A UUID derived from a name (version 8 of RFC 9562).
pub(crate) fn table_id(name: &str) -> String {
    let bits = xxh3_128(name.as_bytes());
    // Bits 76 to 79 hold the version, bits 62 and 63 the variant.
    let bits = bits & !(0xf << 76) & !(0x3 << 62) | 0x8 << 76 | 0x2 << 62;
    let hex = format!("{bits:032x}");
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_of_different_slices_never_share_a_name_nor_exceed_the_limit() {
        let mut seen = std::collections::HashSet::new();
        let long = "a".repeat(48);
        let longer_by_one = format!("{}b", "a".repeat(47));
        for dataset in ["a", "a_1", "a_m1", "a_1_1", &long, &longer_by_one, &long[..40]] {
            for slice in [0, 1, -1, 11, -11, i32::MIN, i32::MAX] {
                for table in [chunk_table, row_table] {
                    let name = table(&DatasetName::new(dataset).unwrap(), SliceId(slice));
                    assert!(name.len() <= NAME_LEN_MAX, "{name}");
                    assert!(seen.insert(name), "{dataset} {slice}");
                }
            }
        }
    }

    #[test]
    fn ids_are_well_formed_and_differ_by_name() {
        let id = table_id("k.catalog");
        assert_eq!((id.len(), &id[14..15]), (36, "8"));
        assert!("89ab".contains(&id[19..20]));
        assert_ne!(id, table_id("k.slices"));
    }
}
