//! Runs a caller's statements: queries and other statements.

use std::sync::Arc;
use std::time::Duration;

use arrow_array::RecordBatch;
use chronotile_cql::scylla::response::PagingState;
use chronotile_cql::scylla::response::query_result::{IntoRowsResultError, QueryResult};
use chronotile_cql::scylla::statement::Consistency;
use chronotile_cql::scylla::statement::prepared::PreparedStatement;
use chronotile_cql::{Call, CqlError, Session, Settings};

use crate::decode::Decoder;
use crate::error::{Result, TablesError};
use crate::pages::{PAGE_BYTES, Page, PageSize, Source};
use crate::params::Parameters;
use crate::stream::RowStream;
use crate::types::Mapping;

/// Options for reading rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadOptions {
    /// The Arrow types of the CQL types that have no single equivalent.
    pub mapping: Mapping,
    /// Consistency level; by default that of the URL.
    pub consistency: Option<Consistency>,
    /// Time limit of a page, retries included; by default that of the URL.
    pub timeout: Option<Duration>,
    /// Target size of a page in bytes.
    pub page_bytes: usize,
}

impl Default for ReadOptions {
    fn default() -> Self {
        Self { mapping: Mapping::default(), consistency: None, timeout: None, page_bytes: PAGE_BYTES }
    }
}

/// A session with a cluster, for any statement on any table. All methods may be called concurrently.
#[derive(Clone, Debug)]
pub struct Tables {
    pub(crate) session: Arc<Session>,
}

impl Tables {
    /// Connects. Table names without a keyspace refer to the keyspace of the URL.
    ///
    /// # Errors
    /// [`TablesError::Cluster`], and [`TablesError::Request`] if the keyspace cannot be used.
    pub async fn connect(settings: Settings) -> Result<Self> {
        let keyspace = settings.keyspace.clone();
        let session = Session::connect(settings).await?;
        if !keyspace.is_empty() {
            session.driver().use_keyspace(&keyspace, false).await.map_err(|error| TablesError::Request {
                reason: format!("keyspace {keyspace} of the URL cannot be used: {error}"),
            })?;
        }
        Ok(Self { session: Arc::new(session) })
    }

    /// Prepares a statement. Only statements with markers are cached: these are meant to be repeated. Each result carries its own
    /// column metadata, since a table may be altered.
    async fn prepare(&self, cql: &str, parameters: &Parameters) -> Result<PreparedStatement> {
        if parameters.is_empty() {
            return Ok(self.session.prepare_again(cql).await?);
        }
        let mut statement = self.session.prepare(cql, true).await?;
        statement.set_use_cached_result_metadata(false);
        Ok(statement)
    }

    pub(crate) fn call(&self, options: &ReadOptions) -> Call {
        let settings = self.session.settings();
        Call {
            consistency: options.consistency.unwrap_or(settings.read_consistency),
            timeout: options.timeout.unwrap_or(settings.timeout),
            instead: None,
        }
    }

    /// Runs a query, and returns when its first page has arrived.
    ///
    /// # Errors
    /// [`TablesError::Request`] for a statement that returns no rows, which is not run; errors of [`Parameters::bind`]; and
    /// [`TablesError::Cluster`].
    pub async fn query(&self, cql: &str, parameters: &Parameters, options: ReadOptions) -> Result<RowStream> {
        options.mapping.check()?;
        let statement = self.prepare(cql, parameters).await?;
        if statement.get_current_result_set_col_specs().get().len() == 0 {
            let reason = "the statement has no rows to read, and was not run: use execute()".to_owned();
            return Err(TablesError::Request { reason });
        }
        let values = parameters.bind(statement.get_variable_col_specs().as_slice())?;
        let size = Arc::new(PageSize::new(options.page_bytes));
        let source = Source { session: self.session.clone(), statement, values, call: self.call(&options), size };
        let first = source.page(PagingState::start()).await?;
        let decoder = Decoder::new(first.rows.column_specs().as_slice(), options.mapping)?;
        source.size.bound(decoder.row_bytes());
        Ok(RowStream::of_query(source, Arc::new(decoder), first))
    }

    /// Runs a statement that changes something, and returns its rows if it has any, such as those of a conditional write. After
    /// a schema change, waits until all nodes that are up agree on the schema.
    ///
    /// Set `repeatable` for an idempotent statement: it is then also retried if the first attempt may have taken effect.
    ///
    /// # Errors
    /// Errors of [`Parameters::bind`], and [`TablesError::Cluster`].
    pub async fn execute(
        &self,
        cql: &str,
        parameters: &Parameters,
        repeatable: bool,
        options: ReadOptions,
    ) -> Result<Option<RecordBatch>> {
        let settings = self.session.settings();
        let call = Call {
            consistency: options.consistency.unwrap_or(settings.write_consistency),
            timeout: options.timeout.unwrap_or(settings.timeout),
            instead: None,
        };
        if parameters.is_empty() && changes_schema(cql) {
            self.session.change_schema(cql).await?;
            // A table of the same name may now have different types.
            // Every statement contains the empty text, so all are forgotten.
            self.session.forget("");
            return Ok(None);
        }
        let answer = if parameters.is_empty() && !repeatable {
            self.session.run(cql, &call).await?
        } else {
            let mut statement = self.prepare(cql, parameters).await?;
            // The statement is a copy: the cached one keeps its own setting.
            statement.set_is_idempotent(repeatable);
            let values = parameters.bind(statement.get_variable_col_specs().as_slice())?;
            self.session.execute(&statement, &values, &call).await?
        };
        rows_of(answer, options.mapping)
    }
}

fn rows_of(answer: QueryResult, mapping: Mapping) -> Result<Option<RecordBatch>> {
    match answer.into_rows_result() {
        Ok(rows) => {
            let decoder = Decoder::new(rows.column_specs().as_slice(), mapping)?;
            Page { rows, next: None }.decode(&decoder).map(Some)
        }
        Err(IntoRowsResultError::ResultNotRows(_)) => Ok(None),
        Err(error) => Err(CqlError::Protocol { reason: error.to_string() }.into()),
    }
}

/// Whether a statement changes the schema, after which nodes must agree.
fn changes_schema(cql: &str) -> bool {
    let word = first_word(cql);
    ["CREATE", "ALTER", "DROP"].iter().any(|verb| word.eq_ignore_ascii_case(verb))
}

/// The first word after comments.
fn first_word(cql: &str) -> &str {
    let mut rest = cql.trim_start();
    loop {
        let comment_end = if rest.starts_with("--") || rest.starts_with("//") {
            rest.find('\n')
        } else if let Some(comment) = rest.strip_prefix("/*") {
            // The end is the last byte of the comment, as for a line break. `/*/` only begins a comment.
            comment.find("*/").map(|at| at + 3)
        } else {
            break;
        };
        rest = comment_end.map_or("", |at| &rest[at + 1..]).trim_start();
    }
    rest.split(|c: char| !c.is_ascii_alphabetic()).next().unwrap_or("")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schema_changes_are_known_by_their_first_word() {
        for cql in ["CREATE TABLE t", " drop table t", "-- note\n/* more */ Alter TYPE t", "//x\ncreate index"] {
            assert!(changes_schema(cql), "{cql}");
        }
        for cql in ["INSERT INTO t", "createx", "", "-- CREATE", "/* CREATE", "/*/ CREATE */ SELECT", "TRUNCATE t"] {
            assert!(!changes_schema(cql), "{cql}");
        }
    }
}
