//! Reads a whole table by token ranges.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use chronotile_cql::scylla::frame::response::result::TableSpec;
use chronotile_cql::scylla::response::PagingState;
use chronotile_cql::scylla::routing::Token;
use chronotile_cql::scylla::statement::prepared::PreparedStatement;
use chronotile_cql::{Call, CqlError};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::checkpoint::{Identity, ReadPosition, Recorder, hex};
use crate::decode::Decoder;
use crate::error::{Result, TablesError};
use crate::pages::{PageSize, Source};
use crate::params::{Bound, Parameters};
use crate::ring::{RangePolicy, TokenRange, split};
use crate::session::{ReadOptions, Tables};
use crate::stream::{Delivery, RowStream, Start, read};

/// Default number of ranges that are read concurrently, per node.
const READERS_PER_NODE: usize = 2;
/// Default number of ranges for each concurrent reader: with several, no reader works alone for long at the end.
const RANGES_PER_READER: usize = 8;
/// Maximum number of ranges: each costs a request.
const RANGES_MAX: usize = 1 << 20;
/// Maximum number of ranges that are read concurrently.
const READERS_MAX: usize = 256;
/// Keyspaces whose content is local to each node.
const LOCAL_KEYSPACES: [&str; 4] = ["system", "system_schema", "system_views", "system_virtual_schema"];
const PARTITIONER: &str = "Murmur3Partitioner";

/// A scan of a table: what to read, and how.
#[derive(Clone, Debug, PartialEq)]
pub struct Scan {
    /// Its keyspace, as stored: case matters.
    pub keyspace: String,
    /// Its name, as stored: case matters.
    pub table: String,
    /// Columns to read, in this order; all by default.
    pub columns: Option<Vec<String>>,
    /// A CQL condition on the rows, with markers.
    pub condition: Option<String>,
    /// Values of its markers.
    pub parameters: Parameters,
    /// Minimum number of ranges into which the tokens are divided; by default eight for each concurrent reader.
    pub ranges: Option<usize>,
    /// Number of ranges that are read concurrently; by default two for each node.
    pub concurrency: Option<usize>,
    /// File that records the progress of the scan. If it exists, the scan resumes from it.
    pub checkpoint: Option<PathBuf>,
}

impl Scan {
    /// A scan of a whole table with default options.
    pub fn of(keyspace: &str, table: &str) -> Self {
        Self {
            keyspace: keyspace.to_owned(),
            table: table.to_owned(),
            columns: None,
            condition: None,
            parameters: Parameters::none(),
            ranges: None,
            concurrency: None,
            checkpoint: None,
        }
    }

    fn check(&self) -> Result<()> {
        let refuse = |reason: String| Err(TablesError::Request { reason });
        match (self.concurrency, self.ranges) {
            (Some(readers), _) if !(1..=READERS_MAX).contains(&readers) => {
                refuse(format!("concurrency is a number from 1 to {READERS_MAX}"))
            }
            (_, Some(ranges)) if !(1..=RANGES_MAX).contains(&ranges) => {
                refuse(format!("ranges is a number from 1 to {RANGES_MAX}"))
            }
            _ if self.columns.as_ref().is_some_and(Vec::is_empty) => refuse("columns names no column".to_owned()),
            _ if LOCAL_KEYSPACES.contains(&self.keyspace.as_str()) => refuse(format!(
                "each node has tables of its own in {}: read what the node you are connected to has with query()",
                self.keyspace
            )),
            _ => Ok(()),
        }
    }

    fn statement(&self, partition_key: &[String]) -> String {
        let list = |names: &[String]| names.iter().map(|name| quoted(name)).collect::<Vec<_>>().join(", ");
        let columns = self.columns.as_ref().map_or("*".to_owned(), |names| list(names));
        let key = list(partition_key);
        let mut cql = format!("SELECT {columns} FROM {}.{} WHERE ", quoted(&self.keyspace), quoted(&self.table));
        if let Some(condition) = &self.condition {
            cql.push_str(&format!("{condition} AND "));
        }
        cql.push_str(&format!("token({key}) > ? AND token({key}) <= ?"));
        if self.condition.is_some() {
            cql.push_str(" ALLOW FILTERING");
        }
        cql
    }
}

fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

impl Tables {
    /// Reads a whole table. Rows of one range are in token order; ranges are interleaved as they are read.
    ///
    /// With a checkpoint, a batch counts as read when the next one is requested, and is then never returned again: when an
    /// interrupted scan is resumed, it repeats only the last batch. A finished scan returns no rows until the file is removed.
    ///
    /// # Errors
    /// [`TablesError::Request`], [`TablesError::Checkpoint`], what [`Parameters::bind`] refuses, and
    /// [`TablesError::Cluster`].
    pub async fn scan(&self, scan: Scan, options: ReadOptions) -> Result<RowStream> {
        scan.check()?;
        options.mapping.check()?;
        let key = self.partition_key(&scan.keyspace, &scan.table, &self.call(&options)).await?;
        let cql = scan.statement(&key);
        let mut statement = self.session.prepare_again(&cql).await?;
        // A page may take long, and `Source::page` retries it: the driver must not send a second request in the meantime.
        statement.set_is_idempotent(false);
        let markers = statement.get_variable_col_specs();
        // The markers of the token range come last, after those of the condition.
        let (own, tokens) = markers.as_slice().split_at(markers.len().saturating_sub(2));
        if tokens.len() != 2 {
            return Err(TablesError::Request { reason: format!("the statement lost its bounds: {cql}") });
        }
        let values = scan.parameters.bind(own)?;
        let columns = statement.get_current_result_set_col_specs();
        let decoder = Arc::new(Decoder::new(columns.get().as_slice(), options.mapping)?);
        let nodes = self.session.driver().get_cluster_state().get_nodes_info().len();
        let readers = scan.concurrency.unwrap_or((nodes * READERS_PER_NODE).clamp(2, READERS_MAX));
        let wanted = scan.ranges.unwrap_or(readers * RANGES_PER_READER);
        let identity = Identity { statement: cql, values: values.iter().map(|value| value.map(hex)).collect() };
        // A resumed scan keeps the ranges of its file, since its paging states belong to them, even if the ring has
        // changed.
        let recorder = scan.checkpoint.as_ref().map(|path| Recorder::open(path, identity, || self.ranges(wanted)));
        let recorder = recorder.transpose()?;
        let ranges = match &recorder {
            Some(recorder) => recorder.ranges().to_vec(),
            None => self.ranges(wanted).into_iter().map(|range| (range, ReadPosition::Start)).collect(),
        };
        let size = Arc::new(PageSize::new(options.page_bytes));
        size.bound(decoder.row_bytes());
        let open: Vec<_> =
            ranges.into_iter().enumerate().filter(|(_, (_, place))| *place != ReadPosition::Done).collect();
        let count = open.len();
        let state = Arc::new(ScanState {
            tables: self.clone(),
            table: TableSpec::owned(scan.keyspace, scan.table),
            statement,
            values,
            call: self.call(&options),
            size,
            decoder: decoder.clone(),
            open,
            begun: AtomicUsize::new(0),
            resumed: recorder.is_some(),
            checkpoint: scan.checkpoint.unwrap_or_default(),
        });
        Ok(RowStream::of_scan(decoder.schema(), count, recorder, |tasks: &mut JoinSet<()>, sender| {
            // The closure owns the first sender and drops it: the channel closes when the last reader has ended.
            for _ in 0..readers.min(count) {
                tasks.spawn(state.clone().run(sender.clone()));
            }
        }))
    }

    fn ranges(&self, wanted: usize) -> Vec<TokenRange> {
        let cluster = self.session.driver().get_cluster_state();
        let tokens: Vec<i64> = cluster.replica_locator().ring().iter().map(|(token, _)| token.value()).collect();
        split(&tokens, wanted)
    }

    /// Columns of a table's partition key, in order.
    async fn partition_key(&self, keyspace: &str, table: &str, call: &Call) -> Result<Vec<String>> {
        let unreadable = |error: &dyn std::fmt::Display| CqlError::Protocol { reason: error.to_string() };
        let local = self.session.prepare("SELECT partitioner FROM system.local WHERE key = 'local'", true).await?;
        let local = self.session.execute(&local, (), call).await?.into_rows_result().map_err(|e| unreadable(&e))?;
        let (partitioner,) = local.first_row::<(String,)>().map_err(|e| unreadable(&e))?;
        if !partitioner.ends_with(PARTITIONER) {
            let reason =
                format!("the cluster's partitioner is {partitioner}; whole tables are read with {PARTITIONER}");
            return Err(TablesError::Request { reason });
        }
        let cql =
            "SELECT column_name, kind, position FROM system_schema.columns WHERE keyspace_name = ? AND table_name = ?";
        let statement = self.session.prepare(cql, true).await?;
        let found = self.session.execute(&statement, (keyspace, table), call).await?;
        let found = found.into_rows_result().map_err(|e| unreadable(&e))?;
        let mut key = vec![];
        for row in found.rows::<(String, String, i32)>().map_err(|e| unreadable(&e))? {
            let (name, kind, position) = row.map_err(|e| unreadable(&e))?;
            if kind == "partition_key" {
                key.push((position, name));
            }
        }
        if key.is_empty() {
            let reason = format!("there is no table {keyspace}.{table} (names are case-sensitive here)");
            return Err(CqlError::NoTable { reason }.into());
        }
        // The rows come in alphabetical order; `token()` needs the columns in that of the key.
        key.sort();
        Ok(key.into_iter().map(|(_, name)| name).collect())
    }
}

/// The state of a scan that its readers share.
struct ScanState {
    tables: Tables,
    table: TableSpec<'static>,
    statement: PreparedStatement,
    values: Bound,
    call: Call,
    size: Arc<PageSize>,
    decoder: Arc<Decoder>,
    /// Ranges to read, with their numbers.
    open: Vec<(usize, (TokenRange, ReadPosition))>,
    /// Number of ranges that readers have taken.
    begun: AtomicUsize,
    resumed: bool,
    checkpoint: PathBuf,
}

impl ScanState {
    /// Reads ranges until none is left, an error occurs or the receiver is dropped.
    async fn run(self: Arc<Self>, sender: mpsc::Sender<Result<Delivery>>) {
        // The counter hands out each range once and orders no other memory, so `Relaxed` is enough.
        while let Some((number, (range, place))) = self.open.get(self.begun.fetch_add(1, Ordering::Relaxed)) {
            let source = Arc::new(self.source(*range));
            let start = match place {
                ReadPosition::At(from) => match self.resume(&source, from.clone()).await {
                    Ok(page) => Start::Page(Box::new(page)),
                    Err(error) => {
                        // Without a receiver, nobody needs the error.
                        let _ = sender.send(Err(error)).await;
                        return;
                    }
                },
                _ => Start::At(PagingState::start()),
            };
            if !read(source, &self.decoder, start, *number, &sender).await {
                return;
            }
        }
    }

    fn source(&self, range: TokenRange) -> Source {
        let mut statement = self.statement.clone();
        statement.set_load_balancing_policy(Some(Arc::new(RangePolicy {
            inner: self.tables.session.routing(),
            table: self.table.clone(),
            token: Token::new(range.end),
        })));
        Source {
            session: self.tables.session.clone(),
            statement,
            values: self.values.clone().with_bigints(&[range.start, range.end]),
            call: self.call,
            size: self.size.clone(),
        }
    }

    /// The page at which an interrupted scan continues.
    async fn resume(&self, source: &Source, from: PagingState) -> Result<crate::pages::Page> {
        source.page(from).await.map_err(|error| match error {
            TablesError::Cluster(
                ref refusal @ (CqlError::Invalid { ref reason } | CqlError::Protocol { ref reason }),
            ) if self.resumed => TablesError::Checkpoint {
                path: self.checkpoint.display().to_string(),
                reason: format!("the cluster cannot resume there ({reason}): delete it to start over"),
                source: Some(Arc::new(refusal.clone())),
            },
            other => other,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_quoted_and_conditions_stand_before_the_bounds() {
        let mut scan = Scan::of("ks", "odd\"name");
        assert_eq!(
            scan.statement(&["a".to_owned(), "B".to_owned()]),
            r#"SELECT * FROM "ks"."odd""name" WHERE token("a", "B") > ? AND token("a", "B") <= ?"#
        );
        scan.columns = Some(vec!["x".to_owned(), "y".to_owned()]);
        scan.condition = Some("x > ?".to_owned());
        assert_eq!(
            scan.statement(&["a".to_owned()]),
            r#"SELECT "x", "y" FROM "ks"."odd""name" WHERE x > ? AND token("a") > ? AND token("a") <= ? ALLOW FILTERING"#
        );
    }

    #[test]
    fn an_invalid_scan_is_refused_before_any_request() {
        let reason = |change: fn(&mut Scan)| {
            let mut scan = Scan::of("ks", "t");
            change(&mut scan);
            scan.check().unwrap_err().to_string()
        };
        assert!(reason(|scan| scan.concurrency = Some(0)).contains("1 to 256"));
        assert!(reason(|scan| scan.ranges = Some(0)).contains("1 to 1048576"));
        assert!(reason(|scan| scan.concurrency = Some(READERS_MAX + 1)).contains("1 to 256"));
        assert!(reason(|scan| scan.ranges = Some(RANGES_MAX + 1)).contains("1 to 1048576"));
        assert!(reason(|scan| scan.columns = Some(vec![])).contains("no column"));
        assert!(reason(|scan| scan.keyspace = "system".to_owned()).contains("query()"));
        for (concurrency, ranges) in [(1, 1), (READERS_MAX, RANGES_MAX)] {
            let scan = Scan { concurrency: Some(concurrency), ranges: Some(ranges), ..Scan::of("ks", "t") };
            assert!(scan.check().is_ok());
        }
    }
}
