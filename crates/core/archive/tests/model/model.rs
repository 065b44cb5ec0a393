//! A model of the archive: its documented behaviour, implemented as simply as possible on a vector of rows.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, HashSet};

use chronotile_sky::Region;
use chronotile_types::DatasetSpec;

use crate::world::{EXTRA_DEFAULT, Ids, Merge, NOTES, PARTS, PLACES, Row, Rule, Shape, T, XS, pixels, sub_text};

/// A stored row with the values that writing assigned to it.
#[derive(Clone, Debug)]
pub struct Stored {
    pub row: Row,
    pub batch: usize,
    /// Order of writing.
    pub stamp: usize,
    pub ordinal: usize,
    pub slice: i32,
    pub cell: i64,
    pub window: i32,
    pub time: T,
}

#[derive(Debug)]
pub struct Model {
    pub shape: Shape,
    pub spec: DatasetSpec,
    pub rows: Vec<Stored>,
    /// Rows of each stored named batch, as given.
    pub named: BTreeMap<u8, (usize, Vec<Row>)>,
    /// Batches with retired rows.
    retired: BTreeSet<usize>,
    /// Whether the added column has a default; `None` before a column was added.
    pub extra: Option<bool>,
    stamps: usize,
}

/// The required outcome of a write.
#[derive(Debug, PartialEq, Eq)]
pub enum ExpectedWrite {
    Stored { rows: usize, duplicates: usize },
    Unchanged,
    Refused,
}

/// An id for comparisons.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IdKey(Vec<IdPart>);

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum IdPart {
    Number(i64),
    Text(String),
}

#[derive(Clone, Debug)]
pub enum AskPlace {
    All,
    Cells(Vec<usize>),
    Keys(Vec<Row>),
    Region(usize, f64),
}

#[derive(Clone, Copy, Debug)]
pub enum AskPredicate {
    X(AskComparison, usize, usize),
    Tag(AskComparison, i64, i64),
    Note(AskComparison, usize, usize),
    Version(AskComparison, i64, i64),
    Text(AskText, usize),
    Exists(&'static str, bool),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AskText {
    Contains,
    Prefix,
    /// A regular expression that ignores case.
    Matches,
    /// A regular expression that matches either of two parts after some character.
    MatchesEither,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AskComparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    In,
    Between,
}

#[derive(Clone, Debug)]
pub struct Ask {
    pub place: AskPlace,
    /// Rows whose ids are requested, and whether only the first id column is given.
    pub ids: Option<(Vec<Row>, bool)>,
    pub start: Option<(i64, u8)>,
    pub end: Option<(i64, u8)>,
    pub columns: Option<Vec<usize>>,
    pub predicates: Vec<AskPredicate>,
    pub history: bool,
}

impl Model {
    pub fn new(shape: Shape) -> Self {
        let spec = shape.spec();
        Self { shape, spec, rows: vec![], named: BTreeMap::new(), retired: BTreeSet::new(), extra: None, stamps: 0 }
    }

    /// A row as written now, with or without the added column.
    pub fn given(&self, row: &Row, with_extra: bool) -> Row {
        let extra = match (self.extra, with_extra, row.extra) {
            (Some(_), true, extra) => extra,
            _ => None,
        };
        Row { extra, ..row.clone() }
    }

    pub fn absent_extra(&self) -> Option<i32> {
        self.extra.unwrap_or(false).then_some(EXTRA_DEFAULT)
    }

    fn same_content(&self, a: &[Row], b: &[Row]) -> bool {
        let plain = |rows: &[Row]| -> Vec<String> {
            let resolved = |row: &Row| Row { extra: Some(row.extra.unwrap_or(self.absent_extra())), ..row.clone() };
            let mut rows: Vec<_> = rows.iter().map(|row| format!("{:?}", self.storable(&resolved(row)))).collect();
            if self.shape.ids != Ids::None {
                rows.sort();
            }
            rows
        };
        plain(a) == plain(b)
    }

    /// The part of a row that the archive can store: a date has no fraction.
    fn storable(&self, row: &Row) -> Row {
        let fine = if matches!(self.shape.time(0, 1), T::Tick(0)) { 0 } else { row.fine };
        Row { fine, ..row.clone() }
    }

    pub fn write(&mut self, name: Option<u8>, rows: &[Row], replace: bool) -> ExpectedWrite {
        if let Some((batch, stored)) = name.and_then(|name| self.named.get(&name)) {
            // Writing a batch with retired rows again stores all of its rows. If none are left, its name is free.
            let retired = self.retired.contains(batch);
            let free = retired && self.rows.iter().all(|row| row.batch != *batch);
            let same = self.same_content(stored, rows);
            if same && !retired {
                return ExpectedWrite::Unchanged;
            }
            if !same && !replace && !free {
                return ExpectedWrite::Refused;
            }
        }
        self.stamps += 1;
        let batch = self.stamps;
        if let Some(name) = name {
            self.remove(name);
            self.named.insert(name, (batch, rows.to_vec()));
        }
        let mut kept: Vec<Stored> = vec![];
        for (ordinal, row) in rows.iter().enumerate() {
            let window = self.shape.window(&self.spec, row);
            let stored = Stored {
                row: row.clone(),
                batch,
                stamp: batch,
                ordinal,
                slice: self.spec.slice_of(window).0,
                cell: self.shape.cell(row),
                window: window.0,
                time: self.shape.time_of(row),
            };
            if self.shape.ids != Ids::None {
                kept.retain(|other| self.tile_identity(other) != self.tile_identity(&stored));
            }
            kept.push(stored);
        }
        let duplicates = rows.len() - kept.len();
        let written = ExpectedWrite::Stored { rows: kept.len(), duplicates };
        self.rows.extend(kept);
        written
    }

    pub fn remove(&mut self, name: u8) -> bool {
        let Some((batch, _)) = self.named.remove(&name) else { return false };
        self.rows.retain(|row| row.batch != batch);
        true
    }

    pub fn retire(&mut self, limit: T) {
        let (shape, spec) = (&self.shape, &self.spec);
        let limit = shape.tick(spec, limit);
        let kept = |row: &Stored| spec.slice_ticks(chronotile_types::SliceId(row.slice)).1 > limit;
        self.retired.extend(self.rows.iter().filter(|row| !kept(row)).map(|row| row.batch));
        self.rows.retain(kept);
    }

    pub fn id(&self, row: &Row) -> IdKey {
        let text = || IdPart::Text(sub_text(row.sub));
        let time = match self.shape.time_of(row) {
            T::Tick(tick) => IdPart::Number(tick),
            T::Day(day) => IdPart::Number(day.to_bits() as i64),
        };
        IdKey(match self.shape.ids {
            Ids::None => vec![],
            Ids::Number => vec![IdPart::Number(row.id)],
            Ids::Text => vec![text()],
            Ids::Both => vec![text(), IdPart::Number(row.id)],
            Ids::NumberAndTime => vec![IdPart::Number(row.id), time],
        })
    }

    /// The version for comparisons: null is the oldest.
    fn version(&self, row: &Row) -> Option<i64> {
        match self.shape.merge {
            Merge::LatestByVersion => row.version,
            // The total order of IEEE 754, as an integer.
            Merge::LatestByFloat => row.x.map(|x| XS[x].to_bits() as i64).map(|b| b ^ ((b >> 63) & i64::MAX)),
            _ => None,
        }
    }

    fn tile_identity(&self, stored: &Stored) -> (i64, i32, IdKey, Option<i64>) {
        (stored.cell, stored.window, self.id(&stored.row), self.version(&stored.row))
    }

    /// The rows that a read returns, in its order.
    pub fn read(&self, ask: &Ask) -> Vec<&Stored> {
        let in_cells = self.cells(&ask.place);
        let placed = |(k, fine): (i64, u8)| self.shape.time(k, fine);
        let mut rows: Vec<&Stored> = self
            .rows
            .iter()
            .filter(|s| in_cells(s.cell))
            .filter(|s| ask.start.is_none_or(|start| s.time.order(&placed(start)) != Ordering::Less))
            .filter(|s| ask.end.is_none_or(|end| s.time.order(&placed(end)) == Ordering::Less))
            .collect();
        if self.shape.ids != Ids::None {
            rows = match (self.shape.merge, ask.history) {
                (Merge::Append, _) => newest_of(rows, |s| (s.cell, s.window, self.id(&s.row)), |s| s.stamp),
                (_, true) => rows,
                (_, false) => newest_of(
                    rows,
                    |s| self.id(&s.row),
                    |s| (self.version(&s.row), s.stamp, s.window, s.cell, s.ordinal),
                ),
            };
        }
        rows.retain(|s| self.wanted(ask, &s.row));
        rows.sort_by(|a, b| self.order(a, b));
        rows
    }

    fn order(&self, a: &Stored, b: &Stored) -> Ordering {
        (a.slice, a.cell, a.window)
            .cmp(&(b.slice, b.cell, b.window))
            .then_with(|| a.time.order(&b.time))
            .then_with(|| self.id(&a.row).cmp(&self.id(&b.row)))
            .then_with(|| self.version(&a.row).cmp(&self.version(&b.row)))
            .then_with(|| (a.stamp, a.ordinal).cmp(&(b.stamp, b.ordinal)))
    }

    /// The cells that have rows.
    pub fn known_cells(&self) -> Vec<i64> {
        let mut cells: Vec<i64> = self.rows.iter().map(|s| s.cell).collect();
        cells.sort_unstable();
        cells.dedup();
        cells
    }

    fn cells(&self, place: &AskPlace) -> Box<dyn Fn(i64) -> bool> {
        match place {
            AskPlace::All => Box::new(|_| true),
            AskPlace::Cells(picks) => {
                let cells: HashSet<i64> = self.picked_cells(picks).into_iter().collect();
                Box::new(move |cell| cells.contains(&cell))
            }
            AskPlace::Keys(keys) => {
                let cells: HashSet<i64> = keys.iter().map(|row| self.shape.cell(row)).collect();
                Box::new(move |cell| cells.contains(&cell))
            }
            AskPlace::Region(center, radius_deg) => {
                let cover = region(*center, *radius_deg).cover_limited(&pixels(), 4_096);
                Box::new(move |cell| cover.iter().any(|r| (r.first..=r.last).contains(&(cell as u64))))
            }
        }
    }

    pub fn picked_cells(&self, picks: &[usize]) -> Vec<i64> {
        let known = self.known_cells();
        picks.iter().map(|pick| known.get(*pick).copied().unwrap_or(*pick as i64 - 3)).collect()
    }

    fn wanted(&self, ask: &Ask, row: &Row) -> bool {
        let placed = match &ask.place {
            AskPlace::Keys(keys) => keys.iter().any(|key| self.same_key(key, row)),
            AskPlace::Region(center, radius_deg) => {
                let (ra, dec) = PLACES[row.place];
                region(*center, *radius_deg).contains(ra, dec)
            }
            _ => true,
        };
        let named = ask.ids.as_ref().is_none_or(|(wanted, first_only)| {
            let columns = if *first_only { 1 } else { usize::MAX };
            let cut = |row: &Row| self.id(row).0.into_iter().take(columns).collect::<Vec<_>>();
            wanted.iter().any(|other| cut(other) == cut(row))
        });
        placed && named && ask.predicates.iter().all(|predicate| holds(predicate, row))
    }

    fn same_key(&self, a: &Row, b: &Row) -> bool {
        match self.shape.rule {
            Rule::Value | Rule::TagBucket | Rule::HashOfTag => a.tag == b.tag,
            Rule::IdBucket => a.id == b.id,
            Rule::HashOfText => (a.sub, a.note) == (b.sub, b.note),
            Rule::Single | Rule::Sky => unreachable!("not read by key"),
        }
    }

    /// The newest row by time for each value of `by`, ordered by that value. Of rows at the same time, the one read last.
    pub fn latest(&self, ask: &Ask, by: &[&str]) -> Vec<&Stored> {
        let mut newest: BTreeMap<Vec<Option<IdPart>>, &Stored> = BTreeMap::new();
        for stored in self.read(ask) {
            let key = by.iter().map(|column| self.group_value(column, &stored.row)).collect();
            match newest.get(&key) {
                Some(other) if other.time.order(&stored.time) == Ordering::Greater => {}
                _ => {
                    newest.insert(key, stored);
                }
            }
        }
        newest.into_values().collect()
    }

    fn group_value(&self, column: &str, row: &Row) -> Option<IdPart> {
        match column {
            "id" => Some(IdPart::Number(row.id)),
            "sub" => Some(IdPart::Text(sub_text(row.sub))),
            "tag" => Some(IdPart::Number(row.tag)),
            "note" => row.note.map(|note| IdPart::Text(NOTES[note].to_owned())),
            "version" => row.version.map(IdPart::Number),
            "t" => Some(IdPart::Number(self.shape.tick(&self.spec, self.shape.time_of(row)))),
            _ => unreachable!("{column}"),
        }
    }
}

pub fn region(center: usize, radius_deg: f64) -> Region {
    Region::circle(PLACES[center].0, PLACES[center].1, radius_deg).unwrap()
}

/// One row of each identity: the one with the greatest `age`.
fn newest_of<I: Ord, A: Ord>(
    rows: Vec<&Stored>,
    identity: impl Fn(&Stored) -> I,
    age: impl Fn(&Stored) -> A,
) -> Vec<&Stored> {
    let mut newest: BTreeMap<I, &Stored> = BTreeMap::new();
    for row in rows {
        let kept = newest.entry(identity(row)).or_insert(row);
        if age(kept) < age(row) {
            *kept = row;
        }
    }
    newest.into_values().collect()
}

fn has(comparison: AskText, note: &str, part: &str) -> bool {
    match comparison {
        AskText::Contains | AskText::Matches => note.contains(part),
        AskText::Prefix => note.starts_with(part),
        AskText::MatchesEither => {
            let after = |part: &str| note.char_indices().skip(1).any(|(at, _)| note[at..].starts_with(part));
            part.is_empty() && !note.is_empty() || after(part) || after("while")
        }
    }
}

fn holds(predicate: &AskPredicate, row: &Row) -> bool {
    fn test<V: PartialOrd>(comparison: AskComparison, value: Option<V>, a: V, b: V) -> bool {
        use AskComparison::*;
        let Some(v) = value else { return false };
        match comparison {
            Equal => v == a,
            NotEqual => v != a,
            Less => v < a,
            LessOrEqual => v <= a,
            Greater => v > a,
            GreaterOrEqual => v >= a,
            In => v == a || v == b,
            Between => a <= v && v <= b,
        }
    }
    match *predicate {
        AskPredicate::X(comparison, a, b) => test(comparison, row.x.map(|x| XS[x]), XS[a], XS[b]),
        AskPredicate::Tag(comparison, a, b) => test(comparison, Some(row.tag), a, b),
        AskPredicate::Note(comparison, a, b) => test(comparison, row.note.map(|n| NOTES[n]), NOTES[a], NOTES[b]),
        AskPredicate::Version(comparison, a, b) => test(comparison, row.version, a, b),
        AskPredicate::Text(comparison, part) => row.note.is_some_and(|note| has(comparison, NOTES[note], PARTS[part])),
        AskPredicate::Exists("x", wanted) => row.x.is_some() == wanted,
        AskPredicate::Exists(_, wanted) => row.note.is_some() == wanted,
    }
}
