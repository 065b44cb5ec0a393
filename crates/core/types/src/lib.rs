//! The domain model as types: datasets, cells, windows, tiles, chunks, batches.
//!
//! Nothing here does I/O. All other crates use these types; `docs/glossary.md` defines the terms.

mod contain;
mod dataset;
mod error;
mod ids;
mod kind;
mod nearest;
mod schema;
mod time;

pub use contain::contained;
pub use dataset::{
    CellRule, DatasetSpec, GROUP_DATASETS_MAX, INDEX_COLUMNS_MAX, INDEXES_MAX, IndexSpec, Membership, MergeRule,
    ROWS_PREFIX, SliceOwner, SpecError, StorageLayout,
};
pub use error::{Damage, DamageKind};
pub use ids::{BatchId, Cell, ChunkId, DatasetName, NameError, SliceId, Tile, Window, ZoneKey};
pub use kind::{ErrorClass, ErrorKind};
pub use nearest::{list_names, name_hint, nearest};
pub use schema::{COLUMNS_MAX, NativeColumns, SchemaError, normalize_schema, schema_from_base64, schema_to_base64};
pub use time::{
    Duration, Instant, Placed, TimeError, TimeFormat, TimeRange, TimeScale, TimeSpec, tai_minus_utc_nanoseconds,
};
