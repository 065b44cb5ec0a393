//! A dataset whose records are rows keeps the contract of `Store` as well, on a real cluster.
//!
//! The conformance suite moves chunks of any bytes, which no table of records can hold: here each is wrapped in a chunk of
//! the plain form that has these bytes as values of its rows, and unwrapped when it comes back.

use std::sync::Arc;
use std::time::Instant;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{ArrayRef, BinaryArray, Int64Array, RecordBatch};
use arrow_schema::{DataType, Field, Schema};
use async_trait::async_trait;
use bytes::Bytes;
use chronotile_cassandra::CassandraStore;
use chronotile_chunk::{Binding, ChunkRows, Columns, Defaults, Head, Layout, Origin, Zone, encode_plain};
use chronotile_store::{
    CallOptions, Capabilities, Cells, Chunk, ChunkKey, Commit, DatasetRef, DropSlice, Placement, Record, Result, Scan,
    Store, StoreError, TileStatistics, Visibility, Windows, conformance,
};
use chronotile_types::{BatchId, ChunkId, DatasetName, NativeColumns, SliceId, Tile, ZoneKey};
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};

use crate::common::{contact_points, drop_keyspace, keyspace, open};

/// Datasets that the suite uses.
const DATASETS: [&str; 8] = ["detections", "a", "a_1", "b", "other", "x", "y", "detections_1"];
/// Claims about what does not differ from chunks (the catalog, and which slices there are), and long ones of which the
/// random operations show the same. `CHRONOTILE_TEST_CLAIM=_` runs all.
const ELSEWHERE: [&str; 9] = [
    "record",
    "condition",
    "increments",
    "of_many",
    "slices_are",
    "missing_slice",
    "slice_may_be_created",
    "datasets_do_not_mix",
    "scans_hold_exactly",
];
/// Bytes of a body in one row.
const PIECE: usize = 12_000;
/// Leaves room for what wrapping adds.
const CHUNK_BYTES_MAX: usize = 6 << 20;

fn schema() -> Schema {
    let field = |name: &str, data_type| Field::new(name, data_type, false);
    Schema::new(vec![field("rows", DataType::Int64), field("head", DataType::Binary), field("piece", DataType::Binary)])
}

fn layout() -> Layout {
    Layout::new(Arc::new(schema())).unwrap()
}

fn wrapped(chunk: &Chunk) -> Chunk {
    let pieces: Vec<&[u8]> = if chunk.body.is_empty() { vec![&[]] } else { chunk.body.chunks(PIECE).collect() };
    let rows = Int64Array::from(vec![i64::from(chunk.rows); pieces.len()]);
    let heads: Vec<&[u8]> = (0..pieces.len()).map(|at| if at == 0 { chunk.head.as_ref() } else { &[] }).collect();
    let columns: [ArrayRef; 3] =
        [Arc::new(rows), Arc::new(BinaryArray::from(heads)), Arc::new(BinaryArray::from(pieces))];
    let batch = RecordBatch::try_new(layout().schema().clone(), columns.to_vec()).unwrap();
    let origins = [Origin { batch: BatchId(1), written_us: 1, token: 9 }];
    let rows = ChunkRows { batch: &batch, origins: &origins, row_origin: None, ordinals: None, text: &[] };
    let zone = Zone { time_min: 0, time_max: 0, id_min: ZoneKey::MIN, id_max: ZoneKey::MAX };
    let binding = Binding { tile: chunk.key.tile, chunk: chunk.key.id };
    let encoded = encode_plain(&layout(), 0, &rows, &zone, true, &binding).unwrap();
    Chunk { key: chunk.key, rows: encoded.rows, head: encoded.head.into(), body: encoded.body.into() }
}

/// Panics where a chunk came back damaged.
fn unwrapped(chunk: &Chunk) -> Chunk {
    let binding = Binding { tile: chunk.key.tile, chunk: chunk.key.id };
    let head = Head::parse(&chunk.head, &binding).expect("a head comes back as it was put");
    let mut set = Columns::new(&layout(), &[0, 1, 2], &Defaults::none());
    set.append(&head, &chunk.body, 3).expect("a chunk comes back whole");
    let rows = set.finish();
    let pieces = rows.column(2).as_binary::<i32>();
    let body: Vec<u8> = pieces.iter().flatten().flatten().copied().collect();
    Chunk {
        key: chunk.key,
        rows: rows.column(0).as_primitive::<Int64Type>().value(0) as u32,
        head: Bytes::copy_from_slice(rows.column(1).as_binary::<i32>().value(0)),
        body: body.into(),
    }
}

/// A store all of whose datasets have rows.
#[derive(Debug)]
struct RowsOnlyStore(CassandraStore);

/// The dataset, its records as rows.
fn as_rows(dataset: &DatasetRef) -> DatasetRef {
    let native = NativeColumns { schema: Arc::new(schema()), versions: vec![3] };
    DatasetRef { placement: Placement::Rows(Arc::new(native)), ..dataset.clone() }
}

#[async_trait]
impl Store for RowsOnlyStore {
    fn capabilities(&self) -> Capabilities {
        Capabilities { chunk_bytes_max: CHUNK_BYTES_MAX, ..self.0.capabilities() }
    }

    fn with_options(&self, options: &CallOptions) -> Result<Arc<dyn Store>> {
        self.0.with_options(options)
    }

    fn with_visibility(&self, visibility: Visibility) -> Option<Arc<dyn Store>> {
        self.0.with_visibility(visibility)
    }

    async fn commit(&self, dataset: &DatasetRef, commit: Commit) -> Result<()> {
        commit.check_sizes("rows", CHUNK_BYTES_MAX)?;
        let put = commit.put.iter().map(wrapped).collect();
        self.0.commit(&as_rows(dataset), Commit { put, ..commit }).await
    }

    async fn scan(&self, dataset: &DatasetRef, scan: Scan) -> Result<BoxStream<'static, Result<Vec<Chunk>>>> {
        let (store, dataset, bodies) = (self.0.clone(), as_rows(dataset), scan.bodies);
        let groups = store.scan(&dataset, scan).await?;
        let whole = move |group: Vec<Chunk>| {
            let (store, dataset) = (store.clone(), dataset.clone());
            async move {
                if bodies {
                    return Ok(group.iter().map(unwrapped).collect());
                }
                // The bytes that the suite put as a head are in the body.
                assert!(group.iter().all(|chunk| chunk.body.is_empty()));
                let found = store.fetch(&dataset, group.iter().map(|chunk| chunk.key).collect()).await?;
                assert!(group.iter().zip(&found).all(|(a, b)| (&a.head, a.rows) == (&b.head, b.rows)));
                Ok(found.iter().map(|chunk| Chunk { body: Bytes::new(), ..unwrapped(chunk) }).collect())
            }
        };
        Ok(groups.and_then(whole).boxed())
    }

    async fn fetch(&self, dataset: &DatasetRef, keys: Vec<ChunkKey>) -> Result<Vec<Chunk>> {
        Ok(self.0.fetch(&as_rows(dataset), keys).await?.iter().map(unwrapped).collect())
    }

    async fn record(&self, key: &str) -> Result<Option<Bytes>> {
        self.0.record(key).await
    }

    async fn records(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<Vec<Record>> {
        self.0.records(prefix, after, limit).await
    }

    async fn create_slice(&self, dataset: &DatasetRef, slice: SliceId) -> Result<()> {
        self.0.create_slice(&as_rows(dataset), slice).await
    }

    async fn drop_slice(&self, dataset: &DatasetRef, slice: SliceId, when: DropSlice) -> Result<()> {
        // What the store holds differs from what it is taken to hold, by what the rows are wrapped in.
        if let Some(holding) = &when.holding
            && *holding != self.statistics(dataset, slice).await?
        {
            return Err(StoreError::SliceConflict { dataset: dataset.name.clone(), slice });
        }
        let when = DropSlice { holding: Some(self.0.statistics(&as_rows(dataset), slice).await?), ..when };
        self.0.drop_slice(&as_rows(dataset), slice, when).await
    }

    async fn slices(&self, dataset: &DatasetRef) -> Result<Vec<SliceId>> {
        self.0.slices(dataset).await
    }

    async fn statistics(&self, dataset: &DatasetRef, slice: SliceId) -> Result<Vec<TileStatistics>> {
        let (store, dataset) = (&self.0, &as_rows(dataset));
        let all = Scan { slices: vec![slice], cells: Cells::All, windows: Windows::ALL, bodies: true, older: true };
        let chunks: Vec<Chunk> = store.scan(dataset, all).await?.try_concat().await?;
        let count = |chunk: &Chunk| (chunk.key.id, chunk.rows, chunk.head.len() + chunk.body.len());
        let found = store.statistics(dataset, slice).await?;
        assert_eq!(found, by_tile(chunks.iter().map(|chunk| (chunk.key.tile, count(chunk)))), "as a scan counts");
        Ok(by_tile(chunks.iter().map(|chunk| (chunk.key.tile, count(&unwrapped(chunk))))))
    }
}

fn by_tile(chunks: impl Iterator<Item = (Tile, (ChunkId, u32, usize))>) -> Vec<TileStatistics> {
    let mut tiles: Vec<TileStatistics> = vec![];
    for (tile, (id, rows, bytes)) in chunks {
        if tiles.last().is_none_or(|last| last.tile != tile) {
            tiles.push(TileStatistics::none(tile));
        }
        if let Some(last) = tiles.last_mut() {
            last.add(id, rows, bytes as u64);
        }
    }
    tiles
}

/// Makes an archive as empty as a new one.
async fn emptied(store: &RowsOnlyStore) {
    for dataset in DATASETS {
        let dataset = DatasetRef::of_chunks(DatasetName::new(dataset).unwrap());
        for slice in store.slices(&dataset).await.unwrap() {
            store.drop_slice(&dataset, slice, DropSlice::default()).await.unwrap();
        }
    }
    store.0.forget_all_records().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_claim_about_chunks_holds_of_rows() {
    let Some(hosts) = contact_points() else { return };
    let keyspace = keyspace();
    let store = Arc::new(RowsOnlyStore(open(&hosts, &keyspace, "").await));
    let only = std::env::var("CHRONOTILE_TEST_CLAIM").unwrap_or_default();
    for (name, claim) in conformance::CLAIMS.iter().filter(|(name, _)| name.contains(&only)) {
        if only.is_empty() && ELSEWHERE.iter().any(|words| name.contains(words)) {
            continue;
        }
        let begun = Instant::now();
        emptied(&store).await;
        claim(store.clone()).await;
        println!("claim {name} of rows: {:.1} s", begun.elapsed().as_secs_f64());
    }
    drop_keyspace(&hosts, &keyspace).await;
}

#[test]
fn random_operations_on_rows_agree_with_a_plain_map() {
    let Some(hosts) = contact_points() else { return };
    let keyspace = keyspace();
    // A session lives in the runtime it was made in, and the suite makes its own.
    let opened: tokio::sync::OnceCell<Arc<RowsOnlyStore>> = tokio::sync::OnceCell::new();
    conformance::model(2, 20_260_107, || async {
        let make = || async { Arc::new(RowsOnlyStore(open(&hosts, &keyspace, "").await)) };
        let store = opened.get_or_init(make).await;
        emptied(store).await;
        store.clone() as Arc<dyn Store>
    });
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(drop_keyspace(&hosts, &keyspace));
}
