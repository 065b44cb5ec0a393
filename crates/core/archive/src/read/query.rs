//! A read request planned for a dataset: where to look, what to decode, which rows to keep.

use std::collections::HashSet;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_schema::{Schema, SchemaRef};
use chronotile_chunk::{Body, Head, Origin};
use chronotile_store::{Cells, Chunk, ChunkKey, Scan};
use chronotile_types::{Cell, CellRule, SliceId, Window, ZoneKey};
use hashbrown::HashMap;

use crate::error::Result;
use crate::frame::Frame;
use crate::keys::KeySet;
use crate::memory::{Memory, ReadCharge};
use crate::read::cells::{self, RowRule, filter_region};
use crate::read::part::{ParsedChunk, tile_ranges};
use crate::read::predicate::Test;
use crate::read::shared_scan::SharedScan;
use crate::read::slices::SliceList;
use crate::read::text::TextRequirement;
use crate::read::visible::{DecideOutcome, Visibility};
use crate::request::{Comparison, Predicate, ReadRequest};
use crate::time_axis::Bounds;

/// What identifies stored rows as the same record, of which one is returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Identity {
    /// The id columns.
    Ids,
    /// Id columns, version and batch: every version that was written.
    Versions,
    /// Batch and ordinal, for datasets without id columns.
    Ordinal,
}

pub(crate) struct Query {
    pub frame: Frame,
    pub cells: Cells,
    pub windows: (Window, Window),
    pub slices: Vec<SliceId>,
    pub bounds: Bounds,
    /// Cells of the requested keys, with the number of distinct keys in each.
    pub keys_in_cell: HashMap<Cell, usize>,
    pub identity: Identity,
    /// Whether to return only the newest version of each id across the whole read.
    pub newest_only: bool,
    /// Positions of the columns to return.
    pub output: Vec<usize>,
    /// The schema of the result.
    pub schema: SchemaRef,
    rule: RowRule,
    rule_columns: Vec<usize>,
    ids: Option<KeySet>,
    ids_columns: Vec<usize>,
    /// Range of the first id column's zone keys that match the prefixes in the predicates.
    id_zone: Option<(ZoneKey, ZoneKey)>,
    tests: Vec<Test>,
    /// What the text filter of each column must contain.
    pub needs: Vec<(usize, TextRequirement)>,
    /// Which attempts count; `None` if all do.
    pub visible: Option<Arc<Visibility>>,
    /// The only chunks to read: whole tiles in the order of a scan; `None` for all chunks of the scan.
    pub keys: Option<Arc<[ChunkKey]>>,
    /// The memory budget that the read is charged to; `None` for no limit.
    pub memory: Option<Memory>,
    /// The first scan of this read, if it is shared with reads of other datasets.
    pub shared_scan: Option<SharedScan>,
}

impl Query {
    /// The same query, with this visibility of attempts.
    pub(crate) fn with_visibility(self, visible: Arc<Visibility>) -> Self {
        Self { visible: Some(visible), ..self }
    }

    /// Plans a request on the slices that [`slices_of`] found. Without a visibility, the query returns rows of all
    /// attempts.
    pub(crate) fn new(frame: Frame, request: &ReadRequest, slices: Vec<SliceId>) -> Result<Self> {
        let bounds = Bounds::new(&frame.spec, &request.time)?;
        let windows = bounds.windows(&frame.spec);
        let place = cells::resolve(&frame.spec, &request.cells)?;
        let (ids, ids_columns) = wanted_ids(&frame, request)?;
        let output = output(&frame, request.columns.as_deref())?;
        let fields: Vec<_> = output.iter().map(|column| frame.spec.schema.fields()[*column].clone()).collect();
        let schema = Arc::new(Schema::new_with_metadata(fields, frame.spec.schema.metadata().clone()));
        let identity = match (frame.ids.is_empty(), frame.keeps_latest()) {
            (true, _) => Identity::Ordinal,
            (false, true) => Identity::Versions,
            (false, false) => Identity::Ids,
        };
        let tests: Vec<Test> = request.predicates.iter().map(|p| Test::new(&frame, p)).collect::<Result<_>>()?;
        let filtered = tests.iter().filter(|test| frame.text.contains(&test.column));
        let id_zone = zone_of_prefixes(&frame, request);
        let needs = filtered.filter_map(|test| Some((test.column, test.need.clone()?))).collect();
        let mut cells = place.cells;
        if let (Cells::All, Some(buckets)) = (&cells, id_buckets(&frame, request)) {
            cells = cells::resolve(&frame.spec, &crate::request::CellSelection::Keys(vec![buckets]))?.cells;
        }
        Ok(Self {
            cells,
            windows,
            slices,
            bounds,
            identity,
            newest_only: frame.keeps_latest() && !request.history,
            output,
            schema,
            rule_columns: match place.rows {
                RowRule::All => vec![],
                RowRule::Keys(_) | RowRule::Region(_) => frame.cell_columns()?,
            },
            rule: place.rows,
            keys_in_cell: place.keys_in_cell,
            ids,
            ids_columns,
            id_zone,
            tests,
            needs,
            visible: None,
            keys: None,
            memory: None,
            shared_scan: None,
            frame,
        })
    }

    /// Whether a read of the newest versions can skip chunks of older versions. Any newer version is in the same
    /// tile, so it is found unless a time bound separates the two.
    pub(crate) fn leaves_out_older(&self) -> bool {
        let (spec, (first, last)) = (&self.frame.spec, self.windows);
        let start = spec.window_start(first);
        // The last window may end beyond the greatest tick.
        let end = spec.window_start(last).saturating_add(spec.window_ticks()).saturating_sub(1);
        self.newest_only && (self.frame.timed_ids() || self.bounds.holds_all(start, end))
    }

    /// Whether the query reads chunks of older versions too.
    pub(crate) fn asks_older(&self) -> bool {
        !self.leaves_out_older()
    }

    /// An empty charge to the memory budget, for a part of the read.
    pub(crate) fn held(&self) -> ReadCharge {
        ReadCharge::of(self.memory.as_ref())
    }

    /// The scan of everything the query covers in these slices.
    pub(crate) fn scan(&self, slices: Vec<SliceId>, bodies: bool) -> Scan {
        Scan { slices, cells: self.cells.clone(), windows: self.windows.into(), bodies, older: true }
    }

    /// Whether the chunk with this head can contain a row that the read returns.
    pub(crate) fn touches(&self, head: &Head) -> bool {
        self.bounds.touches(head.zone.time_min, head.zone.time_max)
            && self.ids.as_ref().is_none_or(|ids| ids.touches(head.zone.id_min, head.zone.id_max))
            && self.id_zone.is_none_or(|(low, high)| head.zone.id_max >= low && head.zone.id_min <= high)
    }

    /// Decides which rows of these parts count. Returns whether the read may have missed rows of their batches; if
    /// so, they stay undecided.
    pub(crate) async fn is_late(&self, parts: &[ParsedChunk]) -> Result<bool> {
        let Some(visible) = &self.visible else { return Ok(false) };
        visible.learn_columns(&self.frame, parts.iter().map(|part| &part.head)).await?;
        Ok(visible.decide(parts.iter().map(|part| &part.head)).await? == DecideOutcome::Late)
    }

    /// Decides about all batches in these chunks. Returns whether some of them ended so late that the read may have
    /// missed some of their rows.
    pub(crate) async fn decides_late(&self, chunks: &[Chunk]) -> Result<bool> {
        let Some(visible) = &self.visible else { return Ok(false) };
        let heads = chunks.iter().map(|chunk| self.frame.head(chunk)).collect::<Result<Vec<_>>>()?;
        Ok(visible.decide_now(heads.iter()).await? == DecideOutcome::Late)
    }

    /// The parts with rows that count.
    pub(crate) fn visible(&self, mut parts: Vec<ParsedChunk>) -> Vec<ParsedChunk> {
        if let Some(visible) = &self.visible {
            parts.retain(|part| !visible.hides_all_of(&part.head));
        }
        parts
    }

    /// As [`Self::visible`], for parts that were fetched after their heads: meanwhile, other chunks may have replaced
    /// some of them.
    ///
    /// # Errors
    /// [`Visibility::begin_again`] if one of the batches ended so late that the read may have missed some of its
    /// rows.
    pub(crate) async fn visible_or_begin_again(&self, parts: Vec<ParsedChunk>) -> Result<Vec<ParsedChunk>> {
        match &self.visible {
            Some(visible) if self.is_late(&parts).await? => visible.begin_again(&self.frame),
            _ => Ok(self.visible(parts)),
        }
    }

    /// As [`Self::visible`], for tiles that need not show batches in a common state.
    pub(crate) async fn visible_now(&self, parts: Vec<ParsedChunk>) -> Result<Vec<ParsedChunk>> {
        if let Some(visible) = &self.visible {
            visible.learn_columns(&self.frame, parts.iter().map(|part| &part.head)).await?;
            let _ = visible.decide_now(parts.iter().map(|part| &part.head)).await?;
        }
        Ok(self.visible(parts))
    }

    fn hides(&self, origin: &Origin) -> bool {
        self.visible.as_ref().is_some_and(|visible| visible.hides(origin))
    }

    /// Whether some rows of the chunk with this head do not count.
    pub(crate) fn hides_rows_of(&self, head: &Head) -> bool {
        self.visible.as_ref().is_some_and(|visible| visible.hides_rows_of(head))
    }

    /// Whether no row of the chunk with this head counts.
    pub(crate) fn hides_all_of(&self, head: &Head) -> bool {
        self.visible.as_ref().is_some_and(|visible| visible.hides_all_of(head))
    }

    /// Clears `keep` for rows of the chunk that do not count.
    pub(crate) fn clear_hidden(&self, part: &ParsedChunk, body: &Body, keep: &mut [bool]) -> Result<()> {
        let left_out: Vec<bool> = part.head.origins.iter().map(|origin| self.hides(origin)).collect();
        let origins = body.row_origins().map_err(|damage| self.frame.damaged(&part.chunk.key, damage))?;
        for (row, keep) in keep.iter_mut().enumerate() {
            // A chunk without row origins has one origin, which is that of all its rows.
            *keep &= !left_out[origins.as_ref().map_or(0, |origins| origins[row] as usize)];
        }
        Ok(())
    }

    /// Whether heads alone may rule out most chunks, so that it pays to fetch bodies separately.
    pub(crate) fn prunes_by_head(&self) -> bool {
        self.ids.is_some() || self.id_zone.is_some() || self.prunes_by_text()
    }

    /// Clears `keep` for rows with other ids than the requested ones. May run before versions are compared, since
    /// versions share their id.
    pub(crate) fn keep_wanted_ids(&self, column: &dyn Fn(usize) -> ArrayRef, keep: &mut [bool]) -> Result<()> {
        let Some(ids) = &self.ids else { return Ok(()) };
        let columns: Vec<_> = self.ids_columns.iter().map(|position| column(*position)).collect();
        ids.filter(&columns, keep).map_err(|e| self.frame.compute("filtering rows", e))
    }

    /// Whether rows are tested for anything besides their time.
    pub(crate) fn tests_rows(&self) -> bool {
        !matches!(self.rule, RowRule::All) || self.ids.is_some() || !self.tests.is_empty()
    }

    /// Whether the read is likely to return few of the rows that it looks at: it names ids or has predicates. A
    /// region returns most of them.
    pub(crate) fn seeks_few(&self) -> bool {
        self.ids.is_some() || (!self.tests.is_empty() && !matches!(self.rule, RowRule::Region(_)))
    }

    /// Positions of the columns that [`Query::filter`] tests.
    pub(crate) fn tested_columns(&self) -> Vec<usize> {
        let tests = self.tests.iter().map(|test| test.column);
        self.rule_columns.iter().copied().chain(self.ids_columns.iter().copied()).chain(tests).collect()
    }

    /// Clears `keep` for rows that the request excludes; `column` returns a column by its position.
    pub(crate) fn filter(&self, column: &dyn Fn(usize) -> ArrayRef, keep: &mut [bool]) -> Result<()> {
        let failed = |e| self.frame.compute("filtering rows", e);
        let columns = |positions: &[usize]| positions.iter().map(|p| column(*p)).collect::<Vec<_>>();
        self.keep_wanted_ids(column, keep)?;
        match &self.rule {
            RowRule::All => {}
            RowRule::Keys(wanted) => wanted.filter(&columns(&self.rule_columns), keep).map_err(failed)?,
            RowRule::Region(region) => {
                // The columns of a sky rule are right ascension and declination, in this order.
                filter_region(region, &column(self.rule_columns[0]), &column(self.rule_columns[1]), keep);
            }
        }
        self.tests.iter().try_for_each(|test| test.filter(&column(test.column), keep).map_err(failed))
    }

    /// No rows, with the schema of the result.
    pub(crate) fn empty(&self) -> RecordBatch {
        RecordBatch::new_empty(self.schema.clone())
    }
}

impl Query {
    /// Whether the read has a condition that text filters can evaluate.
    pub(crate) fn tests_texts(&self) -> bool {
        !self.needs.is_empty()
    }

    /// Whether text filters may exclude chunks before the versions of records are compared.
    pub(crate) fn prunes_by_text(&self) -> bool {
        // Versions may be in any tile of the read: which chunk has the newest is known only after comparing all of
        // them.
        self.tests_texts() && !self.newest_only
    }

    /// Whether some row of a chunk may satisfy all conditions on texts; false only if no row does.
    pub(crate) fn may_hold_texts(&self, head: &Head) -> bool {
        let holds = |(column, need): &(usize, TextRequirement)| {
            head.text_filter(*column).is_none_or(|filter| need.may_hold(filter))
        };
        self.needs.iter().all(holds)
    }

    /// Excludes chunks whose filters show that they contain no match, unless one of their records may have another
    /// state in a chunk that stays. `parts` are whole tiles, with the chunks of a tile adjacent.
    pub(crate) fn skip_unmatchable(&self, parts: Vec<ParsedChunk>) -> Vec<ParsedChunk> {
        if !self.prunes_by_text() {
            return parts;
        }
        let may_match: Vec<bool> = parts.iter().map(|part| self.may_hold_texts(&part.head)).collect();
        let mut keep = may_match.clone();
        for tile in tile_ranges(&parts) {
            for place in tile.clone().filter(|place| !may_match[*place]) {
                let mut others = tile.clone().filter(|other| may_match[*other]);
                keep[place] = others.any(|other| self.may_share(&parts[place].head, &parts[other].head));
            }
        }
        parts.into_iter().zip(keep).filter_map(|(part, keep)| keep.then_some(part)).collect()
    }

    /// Whether two chunks of a tile may contain different states of one record.
    fn may_share(&self, a: &Head, b: &Head) -> bool {
        let (a_zone, b_zone) = (&a.zone, &b.zone);
        let ids_apart = a_zone.id_max < b_zone.id_min || b_zone.id_max < a_zone.id_min;
        let times_apart = a_zone.time_max < b_zone.time_min || b_zone.time_max < a_zone.time_min;
        let apart = ids_apart || self.frame.timed_ids() && times_apart;
        match self.identity {
            Identity::Ids => !apart,
            Identity::Versions => {
                let common = a.origins.iter().any(|origin| b.origins.iter().any(|other| other.batch == origin.batch));
                common && !apart
            }
            // A record is identified by its position in a batch, of which one attempt counts: it has no other state.
            Identity::Ordinal => false,
        }
    }
}

/// The slices that a request may read, ascending.
pub(crate) async fn slices_of(slices: &SliceList<'_>, frame: &Frame, request: &ReadRequest) -> Result<Vec<SliceId>> {
    let windows = Bounds::new(&frame.spec, &request.time)?.windows(&frame.spec);
    slices.within(frame, windows).await
}

fn wanted_ids(frame: &Frame, request: &ReadRequest) -> Result<(Option<KeySet>, Vec<usize>)> {
    let Some(given) = &request.ids else { return Ok((None, vec![])) };
    // A request may give only the leading id columns. If it gives none, `conform_keys` refuses it and names the first.
    let names: Vec<&str> = frame.spec.id.iter().map(String::as_str).take(given.len().max(1)).collect();
    if names.is_empty() {
        return Err(frame.refuse("it has no id columns to read by"));
    }
    let columns = cells::conform_keys(&frame.spec, &names, given, "ids")?;
    let wanted = KeySet::new(&columns).map_err(|e| frame.compute("reading ids", e))?;
    Ok((Some(wanted), frame.ids[..names.len()].to_vec()))
}

/// The range of zone keys of the first id column in rows with the requested prefixes. All versions of a record have
/// the same id, so skipping other rows misses no version.
fn zone_of_prefixes(frame: &Frame, request: &ReadRequest) -> Option<(ZoneKey, ZoneKey)> {
    let column = frame.spec.id.first()?;
    let asks = |p: &&Predicate| p.comparison == Comparison::Prefix && p.column == *column;
    let texts = request.predicates.iter().filter(asks).filter_map(|p| p.values.as_string_opt::<i32>());
    // Use the longest prefix: shorter ones add nothing or contradict it, which the test of the rows detects.
    let prefix = texts.filter(|texts| texts.len() == 1).map(|texts| texts.value(0)).max_by_key(|text| text.len())?;
    let mut last = prefix.as_bytes().to_vec();
    // A zone key is the beginning of a text, and no byte of UTF-8 is 255: padded with it, the prefix is at least every
    // key of a text that begins with it.
    last.resize(prefix.len().max(ZoneKey::LEN_MAX), u8::MAX);
    (!prefix.is_empty()).then(|| (ZoneKey::from_bytes(prefix.as_bytes()), ZoneKey::from_bytes(&last)))
}

/// If the cell is computed from the first id column, the requested ids determine the cells.
fn id_buckets(frame: &Frame, request: &ReadRequest) -> Option<ArrayRef> {
    let column = match &frame.spec.cell {
        CellRule::IdBucket { column, .. } | CellRule::Value { column } => column,
        _ => return None,
    };
    let given = request.ids.as_ref()?.first()?;
    (frame.spec.id.first() == Some(column)).then(|| given.clone())
}

fn output(frame: &Frame, columns: Option<&[String]>) -> Result<Vec<usize>> {
    let Some(names) = columns else { return Ok((0..frame.spec.schema.fields().len()).collect()) };
    let positions = names.iter().map(|name| frame.column(name)).collect::<Result<Vec<_>>>()?;
    let mut seen = HashSet::new();
    match positions.iter().position(|column| !seen.insert(*column)) {
        Some(twice) => Err(frame.refuse(format!("column {:?} is requested twice", names[twice]))),
        None => Ok(positions),
    }
}
