//! Runs random sequences of operations on a dataset, on two engines, and compares the results with a simple model.
#![allow(clippy::unwrap_used)] // In a test a panic is the way to fail.

#[path = "../archive/common.rs"]
mod common;
mod model;
mod world;

use std::sync::Arc;

use arrow_array::{Array, ArrayRef, BooleanArray, Float64Array, Int32Array, Int64Array, RecordBatch, StringArray};
use arrow_schema::{DataType, Field};
use chronotile_archive::{
    AddedColumn, ArchiveError, CellSelection, Comparison, ConsolidateOptions, Dataset, Predicate, ReadRequest,
    RetireLimit, WriteOptions,
};
use chronotile_store::Store;
use chronotile_types::TimeRange;
use futures::TryStreamExt;
use model::{Ask, AskComparison, AskPlace, AskPredicate, AskText, ExpectedWrite, Model, Stored, region};
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use world::{EXTRA_DEFAULT, Ids, NOTES, PARTS, PLACES, Row, Rule, Shape, T, XS};

#[derive(Clone, Debug)]
enum Op {
    Write {
        name: Option<u8>,
        rows: Vec<Row>,
        cuts: Vec<usize>,
        replace: bool,
        with_extra: bool,
    },
    /// Writes the rows of a stored batch again, rotated by `turn` positions.
    Again {
        pick: usize,
        turn: usize,
        cuts: Vec<usize>,
        replace: bool,
    },
    Remove(u8),
    Consolidate {
        chunks_min: u64,
        before: Option<i64>,
    },
    Retire(i64),
    AddColumn {
        default: bool,
    },
    Read(Ask),
    Latest(Ask, usize),
}

fn ask() -> impl Strategy<Value = Ask> {
    let place = prop_oneof![
        3 => Just(AskPlace::All),
        1 => prop::collection::vec(0..6usize, 0..4).prop_map(AskPlace::Cells),
        2 => prop::collection::vec(Row::strategy(), 0..4).prop_map(AskPlace::Keys),
        2 => (0..PLACES.len(), prop_oneof![Just(0.0), Just(0.4), Just(1.2), Just(170.0)])
            .prop_map(|(center, radius_deg)| AskPlace::Region(center, radius_deg)),
    ];
    let comparison = || {
        use AskComparison::*;
        prop::sample::select(vec![Equal, NotEqual, Less, LessOrEqual, Greater, GreaterOrEqual, In, Between])
    };
    let texts = {
        use AskText::*;
        prop::sample::select(vec![Contains, Prefix, Matches, MatchesEither])
    };
    let predicate = prop_oneof![
        (comparison(), 0..XS.len(), 0..XS.len()).prop_map(|(c, a, b)| AskPredicate::X(c, a, b)),
        (comparison(), -3..4i64, -3..4i64).prop_map(|(c, a, b)| AskPredicate::Tag(c, a, b)),
        (comparison(), 0..NOTES.len(), 0..NOTES.len()).prop_map(|(c, a, b)| AskPredicate::Note(c, a, b)),
        (comparison(), -2..3i64, -2..3i64).prop_map(|(c, a, b)| AskPredicate::Version(c, a, b)),
        (texts, 0..PARTS.len()).prop_map(|(c, part)| AskPredicate::Text(c, part)),
        (prop::sample::select(vec!["x", "note"]), any::<bool>())
            .prop_map(|(c, wanted)| AskPredicate::Exists(c, wanted)),
    ];
    let edge = || prop::option::of((-16..31i64, 0..3u8));
    (
        place,
        prop::option::weighted(0.25, (prop::collection::vec(Row::strategy(), 0..5), any::<bool>())),
        (edge(), edge()),
        prop::option::of(prop::collection::vec(0..9usize, 0..6)),
        prop::collection::vec(predicate, 0..3),
        any::<bool>(),
    )
        .prop_map(|(place, ids, (start, end), columns, predicates, history)| Ask {
            place,
            ids,
            start: start.min(end.or(start)),
            end: end.max(start.and(end)),
            columns: columns.map(distinct),
            predicates,
            history,
        })
}

fn distinct(columns: Vec<usize>) -> Vec<usize> {
    let mut seen = vec![];
    columns.into_iter().for_each(|column| {
        if !seen.contains(&column) {
            seen.push(column);
        }
    });
    seen
}

fn op() -> impl Strategy<Value = Op> {
    let cuts = || prop::collection::vec(0..40usize, 0..4);
    prop_oneof![
        6 => (prop::option::of(0..4u8), prop::collection::vec(Row::strategy(), 0..40), cuts(), any::<bool>(), any::<bool>())
            .prop_map(|(name, rows, cuts, replace, with_extra)| Op::Write { name, rows, cuts, replace, with_extra }),
        2 => (0..4usize, 0..10usize, cuts(), any::<bool>())
            .prop_map(|(pick, turn, cuts, replace)| Op::Again { pick, turn, cuts, replace }),
        1 => (0..4u8).prop_map(Op::Remove),
        3 => (1..4u64, prop::option::of(-16..31i64)).prop_map(|(chunks_min, before)| Op::Consolidate { chunks_min, before }),
        1 => (-20..20i64).prop_map(Op::Retire),
        1 => any::<bool>().prop_map(|default| Op::AddColumn { default }),
        7 => ask().prop_map(Op::Read),
        3 => (ask(), 0..5usize).prop_map(|(ask, by)| Op::Latest(ask, by)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 120,
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct("tests/model/regressions.txt"))),
        ..ProptestConfig::default()
    })]

    #[test]
    fn a_dataset_means_what_the_model_says(shape in Shape::strategy(), ops in prop::collection::vec(op(), 1..24)) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        for (store, _folder) in common::engines() {
            runtime.block_on(run(store, shape.clone(), &ops));
        }
    }
}

async fn run(store: Arc<dyn Store>, shape: Shape, ops: &[Op]) {
    let mut model = Model::new(shape);
    let dataset = common::create(&store, model.spec.clone()).await;
    for op in ops {
        step(&dataset, &mut model, op).await;
    }
    check_read(&dataset, &model, &everything(false)).await;
    check_read(&dataset, &model, &everything(true)).await;
    let report = dataset.verify(None).await.unwrap();
    assert_eq!(report.damage, vec![]);
    let batches = dataset.batches().await.unwrap();
    assert!(batches.iter().all(|batch| batch.finished));
    let keys: Vec<_> = batches.iter().filter_map(|batch| batch.key.clone()).collect();
    assert_eq!(keys.len(), model.named.len(), "{keys:?}");
}

fn everything(history: bool) -> Ask {
    let (ids, start, end, columns) = (None, None, None, None);
    Ask { place: AskPlace::All, ids, start, end, columns, predicates: vec![], history }
}

async fn step(dataset: &Dataset, model: &mut Model, op: &Op) {
    match op {
        Op::Write { name, rows, cuts, replace, with_extra } => {
            let with_extra = *with_extra && model.extra.is_some();
            let rows: Vec<Row> = rows.iter().map(|row| model.given(row, with_extra)).collect();
            write(dataset, model, *name, &rows, cuts, *replace).await;
        }
        Op::Again { pick, turn, cuts, replace } => {
            let Some((name, (_, rows))) = model.named.iter().nth(*pick) else { return };
            let (name, mut rows) = (*name, rows.clone());
            let turn = turn % rows.len().max(1);
            rows.rotate_left(turn);
            write(dataset, model, Some(name), &rows, cuts, *replace).await;
        }
        Op::Remove(name) => {
            let (stored, done) = (model.remove(*name), dataset.remove_batch(&key(*name)).await);
            match done {
                Ok(_) => assert!(stored, "removed a batch that was not there"),
                Err(ArchiveError::BatchNotFound { .. }) => assert!(!stored, "did not find a stored batch"),
                Err(error) => panic!("{error}"),
            }
        }
        Op::Consolidate { chunks_min, before } => {
            let before = before.map(|k| model.shape.time(k, 0).instant());
            // The model has few rows that are older versions.
            let older_min = (*chunks_min % 2 == 0).then_some(1);
            let options = ConsolidateOptions { chunks_min: Some(*chunks_min), before, older_min, ..Default::default() };
            let dry = dataset.consolidate(ConsolidateOptions { dry_run: true, ..options.clone() }, None).await.unwrap();
            let done = dataset.consolidate(options, None).await.unwrap();
            assert_eq!(dry, done);
            assert_eq!(done.tiles_contended, 0);
        }
        Op::Retire(k) => {
            let limit = model.shape.time(*k, 0);
            let dry = dataset.retire(RetireLimit::Before(limit.instant()), true).await.unwrap();
            let done = dataset.retire(RetireLimit::Before(limit.instant()), false).await.unwrap();
            assert_eq!(dry, done);
            model.retire(limit);
        }
        Op::AddColumn { default } => add_column(dataset, model, *default).await,
        Op::Read(ask) => check_read(dataset, model, ask).await,
        Op::Latest(ask, by) => check_latest(dataset, model, ask, *by).await,
    }
}

fn key(name: u8) -> String {
    format!("batch {name}")
}

async fn write(dataset: &Dataset, model: &mut Model, name: Option<u8>, rows: &[Row], cuts: &[usize], replace: bool) {
    // Rows that were written before the column was added are written again without it.
    let with_extra = rows.iter().any(|row| row.extra.is_some());
    let shown: Vec<&Row> = rows.iter().collect();
    let batch = model.shape.batch(&shown, with_extra.then_some(None));
    let options = WriteOptions { batch: name.map(key), replace, ..WriteOptions::default() };
    let outcome = dataset.write(common::input(cut(&batch, cuts)), options).await;
    let expected = model.write(name, rows, replace);
    match (&outcome, &expected) {
        (Ok(report), ExpectedWrite::Stored { rows, duplicates }) => {
            assert!(report.stored);
            assert_eq!((report.rows, report.duplicates), (*rows as u64, *duplicates as u64));
        }
        (Ok(report), ExpectedWrite::Unchanged) => assert!(!report.stored),
        (Err(ArchiveError::BatchDiffers { .. }), ExpectedWrite::Refused) => {}
        _ => panic!("{outcome:?}, but the model says {expected:?}"),
    }
}

fn cut(batch: &RecordBatch, cuts: &[usize]) -> Vec<RecordBatch> {
    let mut borders: Vec<usize> = cuts.iter().map(|cut| *cut.min(&batch.num_rows())).collect();
    borders.extend([0, batch.num_rows()]);
    borders.sort_unstable();
    borders.windows(2).map(|pair| batch.slice(pair[0], pair[1] - pair[0])).collect()
}

async fn add_column(dataset: &Dataset, model: &mut Model, default: bool) {
    let value: ArrayRef = Arc::new(Int32Array::from(vec![EXTRA_DEFAULT]));
    let column = AddedColumn { field: Field::new("extra", DataType::Int32, true), default: default.then_some(value) };
    let added = dataset.add_columns(vec![column]).await;
    assert_eq!(added.is_ok(), model.extra.is_none(), "{added:?}");
    model.extra.get_or_insert(default);
}

async fn check_read(dataset: &Dataset, model: &Model, ask: &Ask) {
    let Some(request) = request(model, ask) else { return };
    let expected = expected(model, ask, &model.read(ask));
    let found = common::read(dataset, request.clone()).await.unwrap();
    assert_same(&found, &expected, ask);
    assert_eq!(dataset.count(request).await.unwrap(), expected.num_rows() as u64, "count of {ask:?}");
}

async fn check_latest(dataset: &Dataset, model: &Model, ask: &Ask, by: usize) {
    let Some(request) = request(model, ask) else { return };
    let defaults: Vec<&str> = match model.shape.rule {
        Rule::Value | Rule::HashOfTag | Rule::HashOfText => model.spec.cell.columns(),
        _ => model.spec.id.iter().map(String::as_str).collect(),
    };
    let choices: [&[&str]; 5] = [&[], &["tag"], &["note"], &["id", "sub"], &["version"]];
    let by_given = (by > 0).then(|| choices[by].iter().map(|name| (*name).to_owned()).collect());
    let by = if by > 0 { choices[by] } else { &defaults };
    let found = match dataset.latest(request, by_given).await {
        Ok(stream) => stream,
        Err(ArchiveError::Request { .. }) if by.is_empty() => return,
        Err(error) => panic!("{error}"),
    };
    let schema = found.schema();
    let found: Vec<RecordBatch> = found.try_collect().await.unwrap();
    let expected = expected(model, ask, &model.latest(ask, by));
    let rows: usize = found.iter().map(RecordBatch::num_rows).sum();
    assert_eq!(rows, expected.num_rows(), "latest by {by:?} of {ask:?}");
    if schema.fields().is_empty() {
        return;
    }
    let found = arrow_select::concat::concat_batches(&schema, &found).unwrap();
    assert_same(&found, &expected, ask);
}

fn assert_same(found: &RecordBatch, expected: &RecordBatch, ask: &Ask) {
    let names = |batch: &RecordBatch| batch.schema().fields().iter().map(|f| f.name().clone()).collect::<Vec<_>>();
    assert_eq!(names(found), names(expected));
    let same = found.num_rows() == expected.num_rows() && found.columns() == expected.columns();
    let show = |batch: &RecordBatch| arrow_cast::pretty::pretty_format_batches(std::slice::from_ref(batch)).unwrap();
    assert!(same, "{ask:?}\nfound\n{}\nexpected\n{}", show(found), show(expected));
}

fn expected(model: &Model, ask: &Ask, rows: &[&Stored]) -> RecordBatch {
    let rows: Vec<&Row> = rows.iter().map(|stored| &stored.row).collect();
    let batch = model.shape.batch(&rows, model.extra.map(|_| model.absent_extra()));
    match &ask.columns {
        None => batch,
        Some(columns) => batch.project(columns).unwrap(),
    }
}

/// The request; `None` if the shape does not allow it.
fn request(model: &Model, ask: &Ask) -> Option<ReadRequest> {
    let place = match &ask.place {
        AskPlace::All => CellSelection::All,
        AskPlace::Cells(picks) => CellSelection::Cells(model.picked_cells(picks)),
        AskPlace::Keys(rows) => CellSelection::Keys(key_columns(model, rows)?),
        AskPlace::Region(center, radius_deg) => {
            (model.shape.rule == Rule::Sky).then(|| CellSelection::Region(region(*center, *radius_deg)))?
        }
    };
    let ids = match &ask.ids {
        Some(_) if model.shape.ids == Ids::None => return None,
        Some((rows, first_only)) => {
            let columns = if *first_only { 1 } else { model.spec.id.len() };
            Some(model.spec.id[..columns].iter().map(|name| column(model, rows, name)).collect())
        }
        None => None,
    };
    let instant = |(k, fine): (i64, u8)| -> chronotile_types::Instant {
        let time: T = model.shape.time(k, fine);
        time.instant()
    };
    let schema = model.shape.batch(&[], None).schema();
    Some(ReadRequest {
        cells: place,
        time: TimeRange { start: ask.start.map(instant), end: ask.end.map(instant) },
        ids,
        columns: ask.columns.as_ref().map(|c| c.iter().map(|c| schema.field(*c).name().clone()).collect()),
        predicates: ask.predicates.iter().map(predicate).collect(),
        history: ask.history,
    })
}

fn key_columns(model: &Model, rows: &[Row]) -> Option<Vec<ArrayRef>> {
    let keyed = !matches!(model.shape.rule, Rule::Single | Rule::Sky);
    keyed.then(|| model.spec.cell.columns().iter().map(|name| column(model, rows, name)).collect())
}

fn column(model: &Model, rows: &[Row], name: &str) -> ArrayRef {
    let rows: Vec<&Row> = rows.iter().collect();
    model.shape.batch(&rows, None).column_by_name(name).unwrap().clone()
}

fn text_predicate(ask: AskText, part: &str) -> Predicate {
    let (comparison, text) = match ask {
        AskText::Contains => (Comparison::Contains, part.to_owned()),
        AskText::Prefix => (Comparison::Prefix, part.to_owned()),
        AskText::Matches => (Comparison::Matches, format!("(?i){}", part.to_uppercase())),
        AskText::MatchesEither => (Comparison::Matches, format!(".({part}|while)")),
    };
    let values: ArrayRef = Arc::new(StringArray::from(vec![text]));
    Predicate { column: "note".to_owned(), comparison, values }
}

fn predicate(ask: &AskPredicate) -> Predicate {
    let (column, comparison, values): (_, _, ArrayRef) = match *ask {
        AskPredicate::X(c, a, b) => ("x", c, Arc::new(Float64Array::from(vec![XS[a], XS[b]]))),
        AskPredicate::Tag(c, a, b) => ("tag", c, Arc::new(Int64Array::from(vec![a, b]))),
        AskPredicate::Note(c, a, b) => ("note", c, Arc::new(StringArray::from(vec![NOTES[a], NOTES[b]]))),
        AskPredicate::Version(c, a, b) => ("version", c, Arc::new(Int64Array::from(vec![a, b]))),
        AskPredicate::Text(c, part) => return text_predicate(c, PARTS[part]),
        AskPredicate::Exists(column, wanted) => {
            let values: ArrayRef = Arc::new(BooleanArray::from(vec![wanted]));
            return Predicate { column: column.to_owned(), comparison: Comparison::Exists, values };
        }
    };
    let (comparison, constants) = match comparison {
        AskComparison::Equal => (Comparison::Equal, 1),
        AskComparison::NotEqual => (Comparison::NotEqual, 1),
        AskComparison::Less => (Comparison::Less, 1),
        AskComparison::LessOrEqual => (Comparison::LessOrEqual, 1),
        AskComparison::Greater => (Comparison::Greater, 1),
        AskComparison::GreaterOrEqual => (Comparison::GreaterOrEqual, 1),
        AskComparison::In => (Comparison::In, 2),
        AskComparison::Between => (Comparison::Between, 2),
    };
    Predicate { column: column.to_owned(), comparison, values: values.slice(0, constants) }
}
