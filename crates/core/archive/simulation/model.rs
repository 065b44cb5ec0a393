//! The model of one history: all calls that change batches or drop slices, and from them what readers may see.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, LazyLock, Mutex};

use arrow_array::cast::AsArray;
use arrow_array::types::{Int64Type, TimestampMicrosecondType, UInt64Type};
use arrow_array::{Array, Float64Array, Int64Array, RecordBatch, StringArray, TimestampMicrosecondArray};
use tokio::time::Instant;

use crate::common::{HOUR, noted};

/// Characters added to the notes of long rows.
const LONG: usize = 4_000;
/// Most combinations of states that are tested. With more, a read of newest versions is not checked.
const SETS: usize = 4_096;
/// Most batches that may or may not have rows in a dropped slice. With more, its rows are not checked.
const OPTIONAL: usize = 10;

/// The rows of one batch. The note determines their number and version, and each row contains it.
#[derive(Clone, Debug)]
pub struct WrittenBatch {
    pub note: Arc<str>,
    pub size: usize,
    /// The version of all rows. The order of versions differs from the order of writes.
    version: f64,
}

impl WrittenBatch {
    pub fn of(note: &str) -> Self {
        let size = 3 + (note.len() + note.bytes().map(usize::from).sum::<usize>()) % 4;
        let hash = |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        Self { note: note.into(), size, version: note.bytes().fold(7, hash) as f64 }
    }

    /// The rows, in several tiles. Long rows make a write take two or three steps. With `versions`, the rows of all
    /// batches have the same ids.
    pub fn rows(&self, name: &str, versions: bool) -> RecordBatch {
        let first = if versions { 0 } else { number_of(name) * 1_000 };
        let long = if self.note.contains("long") { "x".repeat(LONG) } else { String::new() };
        let places: Vec<_> = (0..self.size).map(|at| (hour_of(at) * HOUR, first + at as i64, at as i64 % 3)).collect();
        let rows = noted(&places, &format!("{}{long}", self.note));
        let place = rows.schema().index_of("x").unwrap();
        let mut columns = rows.columns().to_vec();
        columns[place] = Arc::new(Float64Array::from(vec![self.version; self.size]));
        RecordBatch::try_new(rows.schema(), columns).unwrap()
    }
}

/// The hour of a row of any batch. Rows with the same remainder modulo three are in one tile.
fn hour_of(at: usize) -> i64 {
    at as i64 * 47 % 3
}

/// The note in a row's text, without the filling of long rows.
fn note_of(text: &str) -> &str {
    static TAIL: LazyLock<String> = LazyLock::new(|| "x".repeat(LONG));
    text.strip_suffix(TAIL.as_str()).unwrap_or(text)
}

/// The number with which the ids of a batch begin.
fn number_of(name: &str) -> i64 {
    name.bytes().fold(0, |number, byte| number * 256 + i64::from(byte))
}

/// A slice: the number of the dataset that owns it, and the hour at which it begins.
pub type Slice = (usize, i64);

/// Slices of datasets: two hours long in the first dataset and four in the second, unless the second shares those of
/// the first.
#[derive(Clone, Copy, Debug)]
pub struct Slices {
    pub shared: bool,
}

impl Slices {
    fn of(self, dataset: usize, at: usize) -> Slice {
        self.at(dataset, hour_of(at))
    }

    pub fn at(self, dataset: usize, hour: i64) -> Slice {
        if dataset == 0 || self.shared { (0, hour / 2 * 2) } else { (dataset, hour / 4 * 4) }
    }

    /// The slices that end before this hour.
    pub fn before(self, hour: i64) -> BTreeSet<Slice> {
        let ends = |(dataset, start): &Slice| start + if *dataset == 0 { 2 } else { 4 } <= hour;
        (0..2).flat_map(|dataset| (0..3).map(move |at| self.at(dataset, at))).filter(ends).collect()
    }
}

/// A row of a batch: the dataset, and the index of the row in the batch.
type RowIndex = (usize, usize);

/// Rows that a reader saw, by batch.
#[derive(Clone, Debug, Default)]
pub struct ObservedRows(BTreeMap<String, BTreeMap<RowIndex, Arc<str>>>);

impl ObservedRows {
    /// Adds rows of a dataset. With `versions`, only the note tells to which batch a row belongs.
    pub fn enter(&mut self, dataset: usize, rows: &RecordBatch, versions: bool) {
        let column = |name: &str| rows.column_by_name(name).unwrap().clone();
        let (ids, tags, t, x, notes) = (column("id"), column("tag"), column("t"), column("x"), column("note"));
        let integers = |column: &dyn Array| column.as_any().downcast_ref::<Int64Array>().unwrap().values().to_vec();
        let (ids, tags) = (integers(&ids), integers(&tags));
        let t = t.as_any().downcast_ref::<TimestampMicrosecondArray>().unwrap();
        let x = x.as_any().downcast_ref::<Float64Array>().unwrap();
        let notes = notes.as_any().downcast_ref::<StringArray>().unwrap();
        for (row, id) in ids.into_iter().enumerate() {
            let note = note_of(notes.value(row));
            assert_eq!(x.value(row), WrittenBatch::of(note).version, "row {id} of {note} is not as it was written");
            let t = t.value(row);
            assert_eq!(t % HOUR, 0, "row {id} of {note} is not as it was written");
            self.enter_row(dataset, (id, t, tags[row], notes.value(row)), HOUR, versions);
        }
    }

    /// Adds rows of a dataset, as [`Self::enter`], from counts by window, id, tag and note. `window` is the length of a
    /// window.
    pub fn enter_counts(&mut self, dataset: usize, counts: &RecordBatch, window: i64, versions: bool) {
        let integers = |at: usize| counts.column(at).as_primitive::<Int64Type>().values().to_vec();
        let windows = counts.column(0).as_primitive::<TimestampMicrosecondType>().values();
        let (ids, tags, notes) = (integers(1), integers(2), counts.column(3).as_string::<i32>());
        for (row, count) in counts.column(4).as_primitive::<UInt64Type>().values().iter().enumerate() {
            assert_eq!(*count, 1, "row {} of {} is counted {count} times", ids[row], note_of(notes.value(row)));
            self.enter_row(dataset, (ids[row], windows[row], tags[row], notes.value(row)), window, versions);
        }
    }

    /// Adds a row whose time is in the window that begins at `t`.
    fn enter_row(&mut self, dataset: usize, (id, t, tag, text): (i64, i64, i64, &str), window: i64, versions: bool) {
        let note = note_of(text);
        assert_eq!(note.contains("long"), note.len() < text.len(), "a note was cut off: {note}");
        let name = note.split('-').next().unwrap_or_default();
        let at = (id - if versions { 0 } else { number_of(name) * 1_000 }) as usize;
        assert!(at < 6, "row {id} is not of the batch of its note {note}");
        let written = (hour_of(at) * HOUR / window * window, at as i64 % 3);
        assert_eq!((t, tag), written, "row {id} of {note} is not as it was written");
        let twice = self.0.entry(name.to_owned()).or_default().insert((dataset, at), note.into());
        assert!(twice.is_none(), "row {id} of dataset {dataset} comes twice: {twice:?} and {note}");
    }

    /// The rows of all batches, of a read that returns only the newest version of each id.
    fn newest(&self) -> BTreeMap<RowIndex, Arc<str>> {
        let rows = self.0.values().flatten().map(|(place, note)| (*place, note.clone()));
        let mut newest = BTreeMap::new();
        for (place, note) in rows {
            let twice = newest.insert(place, note);
            assert!(twice.is_none(), "two versions of row {place:?} are newest");
        }
        newest
    }

    /// The rows of one dataset.
    pub fn only(&self, dataset: usize) -> Self {
        let own = |rows: &BTreeMap<RowIndex, Arc<str>>| {
            rows.iter().filter(|(place, _)| place.0 == dataset).map(|(place, note)| (*place, note.clone())).collect()
        };
        Self(self.0.iter().map(|(name, rows)| (name.clone(), own(rows))).collect())
    }

    fn has(&self, name: &str, place: RowIndex, note: &str) -> bool {
        self.0.get(name).and_then(|rows| rows.get(&place)).is_some_and(|seen| **seen == *note)
    }
}

/// The datasets and hours of a read, and when it ran.
#[derive(Clone, Debug)]
pub struct ReadRecord {
    pub who: &'static str,
    pub datasets: Vec<usize>,
    pub hours: std::ops::Range<i64>,
    pub began: Instant,
    pub ended: Instant,
    /// A drop that must not explain missing rows, since the rows were read for that drop.
    pub but: Option<usize>,
}

impl ReadRecord {
    fn places(&self, at: std::ops::Range<usize>) -> impl Iterator<Item = RowIndex> {
        let inside = at.filter(|at| self.hours.contains(&hour_of(*at))).collect::<Vec<_>>();
        self.datasets.iter().flat_map(move |dataset| inside.clone().into_iter().map(move |at| (*dataset, at)))
    }
}

/// A call that changes a batch.
#[derive(Clone, Debug)]
struct BatchChange {
    began: Instant,
    /// `None` until it has ended. If its process died, the time of that; the call may have taken effect until then.
    ended: Option<Instant>,
    /// Whether it took effect; `None` if unknown.
    done: Option<bool>,
    /// The new rows of the batch; `None` for a removal.
    written: Option<WrittenBatch>,
    /// The number of rows that a removal reported.
    removed: Option<u64>,
}

/// A call that drops slices.
#[derive(Clone, Debug)]
struct Retire {
    began: Instant,
    ended: Option<Instant>,
    /// Whether all of the slices were dropped, or none; `None` if unknown.
    done: Option<bool>,
    slices: BTreeSet<Slice>,
    /// The rows read from the slices beforehand, if they are dropped only with exactly these.
    copy: Option<ObservedRows>,
}

impl BatchChange {
    /// Whether, because of this call, the rows of `other` may no longer count when the slices are dropped.
    fn may_end(&self, other: &Self, retire: &Retire) -> bool {
        let later = !std::ptr::eq(self, other) && self.ended.is_none_or(|end| end >= other.began);
        later && self.done != Some(false) && retire.ended.is_none_or(|end| self.began <= end)
    }
}

impl Retire {
    fn is_beside(&self, look: &ReadRecord) -> bool {
        self.began <= look.ended && self.ended.is_none_or(|end| end >= look.began)
    }
}

/// All calls of a history.
#[derive(Debug)]
pub struct Model {
    pub slices: Slices,
    acts: Mutex<BTreeMap<String, Vec<BatchChange>>>,
    retires: Mutex<Vec<Retire>>,
}

/// A state in which a reader may see a batch.
#[derive(Clone, Debug)]
struct State {
    written: Option<WrittenBatch>,
    /// Slices whose rows may be missing, and slices whose rows must be.
    may_lack: BTreeSet<Slice>,
    must_lack: BTreeSet<Slice>,
}

impl Model {
    pub fn new(slices: Slices) -> Self {
        Self { slices, acts: Mutex::default(), retires: Mutex::default() }
    }

    pub fn begin(&self, name: &str, written: Option<WrittenBatch>) -> usize {
        let mut acts = self.acts.lock().unwrap();
        let of = acts.entry(name.to_owned()).or_default();
        of.push(BatchChange { began: Instant::now(), ended: None, done: None, written, removed: None });
        of.len() - 1
    }

    /// Records the end of a call; `done` is `None` if its process died.
    pub fn end(&self, name: &str, at: usize, done: Option<bool>, removed: Option<u64>) {
        let mut acts = self.acts.lock().unwrap();
        let act = &mut acts.get_mut(name).unwrap()[at];
        (act.ended, act.done, act.removed) = (Some(Instant::now()), done, removed);
    }

    pub fn begin_retire(&self, slices: BTreeSet<Slice>, copy: Option<ObservedRows>) -> usize {
        let mut retires = self.retires.lock().unwrap();
        retires.push(Retire { began: Instant::now(), ended: None, done: None, slices, copy });
        retires.len() - 1
    }

    pub fn end_retire(&self, at: usize, done: Option<bool>) {
        let retire = &mut self.retires.lock().unwrap()[at];
        (retire.ended, retire.done) = (Some(Instant::now()), done);
    }

    pub fn names(&self) -> Vec<String> {
        self.acts.lock().unwrap().keys().cloned().collect()
    }

    /// The calls whose result a reader may see that read from `began` to `ended`, and whether it may see the batch as
    /// before all calls.
    fn possible(acts: &[BatchChange], began: Instant, ended: Instant) -> (bool, Vec<&BatchChange>) {
        let before = |act: &BatchChange| act.done == Some(true) && act.ended.is_some_and(|end| end < began);
        let overtaken = |since: Instant| acts.iter().any(|act| before(act) && act.began > since);
        let may =
            |act: &&BatchChange| act.done != Some(false) && act.began < ended && !act.ended.is_some_and(overtaken);
        (!acts.iter().any(before), acts.iter().filter(may).collect())
    }

    fn states(&self, name: &str, look: &ReadRecord) -> Vec<State> {
        let (acts, retires) = (self.acts.lock().unwrap(), self.retires.lock().unwrap());
        let acts = acts.get(name).map_or(&[][..], Vec::as_slice);
        let (initial, possible) = Self::possible(acts, look.began, look.ended);
        let none = || State { written: None, may_lack: BTreeSet::new(), must_lack: BTreeSet::new() };
        let mut states: Vec<State> = initial.then(none).into_iter().collect();
        for act in possible {
            let mut state = State { written: act.written.clone(), ..none() };
            let Some(written) = &act.written else {
                states.push(state);
                continue;
            };
            let alone = is_alone(acts, written);
            for (_, retire) in retires.iter().enumerate().filter(|(at, _)| Some(*at) != look.but) {
                let before_act = retire.ended.is_some_and(|end| end < act.began);
                if retire.done == Some(false) || retire.began > look.ended || before_act {
                    continue;
                }
                for slice in &retire.slices {
                    let copied = retire.copy.as_ref().map(|copy| self.holds(copy, name, written, *slice));
                    // Rows that no longer count are kept for running reads; a drop may remove them although the copy
                    // lacks them.
                    let superseded = || retire.is_beside(look) && acts.iter().any(|other| other.may_end(act, retire));
                    if copied == Some(false) && !superseded() {
                        continue;
                    }
                    state.may_lack.insert(*slice);
                    let after_act = act.ended.is_some_and(|end| end < retire.began);
                    let gone = retire.done == Some(true) && retire.ended.is_some_and(|end| end < look.began);
                    if gone && (after_act || copied == Some(true) && alone) {
                        state.must_lack.insert(*slice);
                    }
                }
            }
            states.push(state);
        }
        states
    }

    /// The rows of a batch in a slice.
    fn in_slice(&self, written: &WrittenBatch, slice: Slice) -> impl Iterator<Item = RowIndex> {
        let (slices, size) = (self.slices, written.size);
        let places = (0..2).flat_map(move |dataset| (0..size).map(move |at| (dataset, at)));
        places.filter(move |(dataset, at)| slices.of(*dataset, *at) == slice)
    }

    /// Whether a copy of a slice has all rows of the batch in that slice.
    fn holds(&self, copy: &ObservedRows, name: &str, written: &WrittenBatch, slice: Slice) -> bool {
        self.in_slice(written, slice).all(|place| copy.has(name, place, &written.note))
    }

    /// Whether slices may be dropped during this read: the reader may then see only some of their tiles.
    fn beside_a_drop(&self, look: &ReadRecord) -> bool {
        let retires = self.retires.lock().unwrap();
        look.but.is_none() && retires.iter().any(|retire| retire.is_beside(look))
    }

    /// Checks what a reader of all versions saw.
    pub fn judge(&self, look: &ReadRecord, seen: &ObservedRows) {
        let beside = self.beside_a_drop(look);
        let mut left: BTreeSet<&String> = seen.0.keys().collect();
        for name in self.names() {
            left.remove(&name);
            let none = BTreeMap::new();
            let seen = seen.0.get(&name).unwrap_or(&none);
            let states = self.states(&name, look);
            assert!(
                states.iter().any(|state| self.fits(&[state], look, beside, seen)),
                "{} sees {seen:?} of {name}, and may see {states:?}, by {look:?}",
                look.who,
            );
        }
        assert!(left.is_empty(), "{} sees rows of no batch: {left:?}", look.who);
    }

    /// Ids of all rows of the batches begun so far. Calls for other batches begin later.
    pub fn ids(&self, versions: bool) -> Vec<i64> {
        let of = |first: i64| first..first + 6;
        if versions {
            of(0).collect()
        } else {
            self.names().iter().flat_map(|name| of(number_of(name) * 1_000)).collect()
        }
    }

    /// All combinations of one state per batch; `None` if there are more than [`SETS`].
    fn sets<'a>(&self, states: &'a [Vec<State>]) -> Option<Vec<Vec<&'a State>>> {
        let mut sets: Vec<Vec<&State>> = vec![vec![]];
        for states in states {
            let with = |set: &Vec<_>, state| set.iter().copied().chain([state]).collect::<Vec<_>>();
            sets = sets.iter().flat_map(|set| states.iter().map(move |state| with(set, state))).collect();
            if sets.len() > SETS {
                return None;
            }
        }
        Some(sets)
    }

    /// Checks the number of rows that a reader counted. Only for histories that drop no slices.
    pub fn judge_number(&self, look: &ReadRecord, seen: u64) {
        let mut numbers: BTreeSet<usize> = [0].into();
        for name in self.names() {
            let rows = |state: &State| look.places(0..state.written.as_ref().map_or(0, |written| written.size)).count();
            let own: BTreeSet<usize> = self.states(&name, look).iter().map(rows).collect();
            numbers = numbers.iter().flat_map(|sum| own.iter().map(move |rows| sum + rows)).collect();
        }
        assert!(numbers.contains(&(seen as usize)), "{} counts {seen} rows, of {numbers:?}, by {look:?}", look.who);
    }

    /// Checks the newest row of each tag. Only for histories without drops and versions. All rows of a tag have the
    /// same time, so the newest is the one with the highest id.
    pub fn judge_latest(&self, look: &ReadRecord, seen: &ObservedRows) {
        let names = self.names();
        let states: Vec<Vec<State>> = names.iter().map(|name| self.states(name, look)).collect();
        let Some(sets) = self.sets(&states) else { return };
        let found: BTreeMap<usize, (i64, Arc<str>)> = seen
            .0
            .iter()
            .flat_map(|(name, rows)| rows.iter().map(move |(place, note)| (place.1, number_of(name), note.clone())))
            .map(|(at, number, note)| (at % 3, (number * 1_000 + at as i64, note)))
            .collect();
        let last = |set: &Vec<&State>| {
            let mut last: BTreeMap<usize, (i64, Arc<str>)> = BTreeMap::new();
            for (name, written) in
                names.iter().zip(set).filter_map(|(name, state)| Some((name, state.written.as_ref()?)))
            {
                for (_, at) in look.places(0..written.size) {
                    let row = (number_of(name) * 1_000 + at as i64, written.note.clone());
                    let newest = last.entry(at % 3).or_insert_with(|| row.clone());
                    *newest = row.max(newest.clone());
                }
            }
            last
        };
        assert!(
            sets.iter().any(|set| last(set) == found),
            "{} sees {found:?} as the newest of each tag, and may see one of each of {states:?}, by {look:?}",
            look.who,
        );
    }

    /// Checks what a reader of the newest versions saw.
    pub fn judge_newest(&self, look: &ReadRecord, seen: &ObservedRows) {
        let (beside, newest) = (self.beside_a_drop(look), seen.newest());
        let states: Vec<Vec<State>> = self.names().iter().map(|name| self.states(name, look)).collect();
        let Some(sets) = self.sets(&states) else { return };
        assert!(
            sets.iter().any(|set| self.fits(set, look, beside, &newest)),
            "{} sees {newest:?} as the newest, and may see one of each of {states:?}, by {look:?}",
            look.who,
        );
    }

    /// Whether a reader that sees batches in these states may see these rows. Dropped rows are missing by slice or, if
    /// the drop runs during the read, by tile.
    fn fits(&self, set: &[&State], look: &ReadRecord, beside: bool, seen: &BTreeMap<RowIndex, Arc<str>>) -> bool {
        let mut rows = 0;
        let mut parts: BTreeMap<(Slice, Option<RowIndex>), Vec<RowIndex>> = BTreeMap::new();
        for place in look.places(0..6) {
            let slice = self.slices.of(place.0, place.1);
            let tile = beside.then_some((place.0, place.1 % 3));
            rows += usize::from(seen.contains_key(&place));
            parts.entry((slice, tile)).or_default().push(place);
        }
        // If the numbers differ, the reader sees rows that it did not ask for.
        rows == seen.len() && parts.iter().all(|((slice, _), places)| part_fits(set, *slice, places, seen))
    }

    /// Checks that no removal counted rows that were also moved elsewhere.
    pub fn judge_counts(&self, datasets: usize) {
        let (acts, retires) = (self.acts.lock().unwrap(), self.retires.lock().unwrap());
        for (name, acts) in &*acts {
            for act in acts.iter().filter(|act| act.done == Some(true)) {
                let (Some(removed), Some(ended)) = (act.removed, act.ended) else { continue };
                let (_, possible) = Self::possible(acts, act.began, ended);
                let writes: Vec<&WrittenBatch> = possible.iter().filter_map(|act| act.written.as_ref()).collect();
                let [written] = writes[..] else { continue };
                if !is_alone(acts, written) {
                    continue;
                }
                let mut moved: BTreeSet<RowIndex> = BTreeSet::new();
                for retire in retires.iter().filter(|retire| retire.done == Some(true)) {
                    let Some(copy) = &retire.copy else { continue };
                    let own = retire.slices.iter().flat_map(|slice| self.in_slice(written, *slice));
                    moved.extend(own.filter(|place| copy.has(name, *place, &written.note)));
                }
                let whole = written.size * datasets;
                assert!(
                    removed as usize + moved.len() <= whole,
                    "of {whole} rows of {name} a removal took out {removed}, and {} were moved elsewhere",
                    moved.len(),
                );
            }
        }
    }
}

/// Whether only one call wrote these rows: rows of two calls with the same note cannot be distinguished.
fn is_alone(acts: &[BatchChange], written: &WrittenBatch) -> bool {
    let of_note = |act: &&BatchChange| act.written.as_ref().is_some_and(|other| other.note == written.note);
    acts.iter().filter(of_note).count() == 1
}

/// As [`Model::fits`], for rows that can only be missing together.
fn part_fits(set: &[&State], slice: Slice, places: &[RowIndex], seen: &BTreeMap<RowIndex, Arc<str>>) -> bool {
    let (mut there, mut optional): (Vec<&WrittenBatch>, Vec<&WrittenBatch>) = (vec![], vec![]);
    for state in set {
        let Some(written) = &state.written else { continue };
        match (state.may_lack.contains(&slice), state.must_lack.contains(&slice)) {
            (_, true) => {}
            (true, false) => optional.push(written),
            (false, false) => there.push(written),
        }
    }
    if optional.len() > OPTIONAL {
        return true;
    }
    (0..1_usize << optional.len()).any(|chosen| {
        let also = optional.iter().enumerate().filter(|(at, _)| chosen >> at & 1 == 1).map(|(_, written)| written);
        let there: Vec<&&WrittenBatch> = there.iter().chain(also).collect();
        places.iter().all(|place| {
            let own = there.iter().filter(|written| place.1 < written.size);
            let newest = own.max_by(|a, b| a.version.total_cmp(&b.version));
            newest.map(|written| &written.note) == seen.get(place)
        })
    })
}
