//! Endpoints for datasets of any kind: list, describe, size, read.

use std::sync::Arc;

use arrow_array::{ArrayRef, BooleanArray, RecordBatch, StringArray};
use chronotile_archive::{CellSelection, Comparison, Dataset, Predicate, ReadRequest};
use chronotile_sky::{AngleKind, Region, parse_angle};
use chronotile_types::{DatasetSpec, Instant, TimeRange};
use futures::StreamExt;
use serde_json::{Value, json};

use crate::answers::{self, Reply, RowStream};
use crate::app::{App, Call};
use crate::failure::{Failure, Result};
use crate::points::shown;

fn described(spec: &DatasetSpec) -> Value {
    let columns = spec.schema.fields().iter();
    let columns: Vec<Value> =
        columns.map(|field| json!({ "name": field.name(), "type": field.data_type().to_string() })).collect();
    json!({
        "name": spec.name.as_str(),
        "columns": columns,
        "cell": spec.cell,
        "time": spec.time,
        "window": spec.window,
        "id": spec.id,
        "merge": spec.merge,
        "retention": spec.retention,
    })
}

pub(crate) async fn list(app: Arc<App>, _: Call) -> Result<Reply> {
    let datasets: Vec<Value> = app.historian.archive().datasets().await?.iter().map(|spec| described(spec)).collect();
    Ok(Reply::json(&json!({ "datasets": datasets })))
}

pub(crate) async fn state(app: Arc<App>, call: Call) -> Result<Reply> {
    let dataset = app.historian.archive().dataset(call.part("name")).await?;
    let info = dataset.info().await?;
    let slices: Vec<Value> = info
        .slices
        .iter()
        .map(|slice| {
            json!({
                "slice": slice.slice.0,
                "ticks": [slice.ticks.0, slice.ticks.1],
                "tiles": slice.tiles,
                "chunks": slice.chunks,
                "rows": slice.rows,
                "bytes": slice.bytes,
            })
        })
        .collect();
    let total = |get: fn(&chronotile_archive::SliceInfo) -> u64| info.slices.iter().map(get).sum::<u64>();
    let mut state = described(&dataset.spec());
    state["slices"] = slices.into();
    state["rows"] = total(|slice| slice.rows).into();
    state["chunks"] = total(|slice| slice.chunks).into();
    state["bytes"] = total(|slice| slice.bytes).into();
    Ok(Reply::json(&state))
}

pub(crate) async fn read(app: Arc<App>, call: Call) -> Result<Reply> {
    let dataset = app.historian.archive().dataset(call.part("name")).await?;
    let request = request(&dataset, &call)?;
    let mut rows = RowStream::from(dataset.read(request).await?);
    if let Some(limit) = call.parameters.number::<usize>("limit")? {
        rows.stream = at_most(rows.stream, limit).boxed();
    }
    answers::rows(&app, &call, rows).await
}

/// Limits a stream to `limit` rows.
fn at_most(
    rows: futures::stream::BoxStream<'static, Result<RecordBatch>>,
    limit: usize,
) -> impl futures::Stream<Item = Result<RecordBatch>> + Send + 'static {
    futures::stream::unfold((rows, limit), |(mut rows, left)| async move {
        // Ending here, without a further poll, drops the read and so cancels the rest of its work.
        if left == 0 {
            return None;
        }
        let batch = match rows.next().await? {
            Ok(batch) => batch,
            Err(failure) => return Some((Err(failure), (rows, left))),
        };
        let taken = batch.num_rows().min(left);
        Some((Ok(batch.slice(0, taken)), (rows, left - taken)))
    })
}

fn request(dataset: &Dataset, call: &Call) -> Result<ReadRequest> {
    let (given, spec) = (&call.parameters, dataset.spec());
    let instant = |time: Option<i64>| time.map(|ns| Instant::UtcNanoseconds(i128::from(ns)));
    let columns = given.one("columns")?.map(|names| names.split(',').map(|name| name.trim().to_owned()).collect());
    let predicates = given.all("where").map(predicate).collect::<Result<Vec<_>>>()?;
    let ids: Vec<&str> = given.all("id").collect();
    let ids = match (ids.is_empty(), spec.id.first()) {
        (true, _) => None,
        (false, None) => return Err(Failure::invalid(format!("dataset {} has no id columns", spec.name))),
        (false, Some(_)) => Some(vec![constants(&ids)]),
    };
    Ok(ReadRequest {
        cells: cells(&spec, call)?,
        time: TimeRange {
            start: instant(given.time("start", call.now_ns)?),
            end: instant(given.time("end", call.now_ns)?),
        },
        ids,
        columns,
        predicates,
        history: given.flag("history")?.unwrap_or(false),
    })
}

fn cells(spec: &DatasetSpec, call: &Call) -> Result<CellSelection> {
    let given = &call.parameters;
    let (cells, keys): (Vec<&str>, Vec<&str>) = (given.all("cell").collect(), given.all("key").collect());
    match (cells.is_empty(), keys.is_empty(), given.one("region")?) {
        (true, true, None) => Ok(CellSelection::All),
        (false, true, None) => {
            let number = |text: &&str| {
                text.parse().map_err(|_| Failure::invalid(format!("cell is {}: give a number", shown(text))))
            };
            Ok(CellSelection::Cells(cells.iter().map(number).collect::<Result<_>>()?))
        }
        (true, false, None) => match spec.cell.columns()[..] {
            [_] => Ok(CellSelection::Keys(vec![constants(&keys)])),
            _ => Err(Failure::invalid(format!("the cell of dataset {} is not a single column: use where", spec.name))),
        },
        (true, true, Some(text)) => region(text),
        _ => Err(Failure::invalid("give only one of cell, key and region")),
    }
}

fn region(text: &str) -> Result<CellSelection> {
    use AngleKind::{Other, RightAscension};
    let words: Vec<&str> = text.split(',').collect();
    let ["circle", ra, dec, radius] = words[..] else {
        let message = "write circle,RA,DEC,RADIUS in degrees or with units: circle,10h20m,-5d20m,3arcsec";
        return Err(Failure::invalid(format!("region is {}: {message}", shown(text))));
    };
    let angle = |text, kind| parse_angle(text, kind).map_err(chronotile_archive::ArchiveError::Sky);
    let (ra, dec, radius) = (angle(ra, RightAscension)?, angle(dec, Other)?, angle(radius, Other)?);
    let circle = Region::circle(ra, dec, radius).map_err(chronotile_archive::ArchiveError::Sky)?;
    Ok(CellSelection::Region(circle))
}

/// Constants of a condition as texts; the archive converts them to the types of the columns.
fn constants(words: &[&str]) -> ArrayRef {
    Arc::new(StringArray::from(words.to_vec()))
}

/// Parses a condition: `mag<18`, `band in g,r`, `x between 1,2`, `line contains refused`, `x exists`.
fn predicate(text: &str) -> Result<Predicate> {
    // Longer operators first, because some begin with a shorter one.
    const SIGNS: [(&str, Comparison); 14] = [
        (" between ", Comparison::Between),
        (" in ", Comparison::In),
        (" contains ", Comparison::Contains),
        (" matches ", Comparison::Matches),
        (" prefix ", Comparison::Prefix),
        (" exists", Comparison::Exists),
        ("<=", Comparison::LessOrEqual),
        (">=", Comparison::GreaterOrEqual),
        ("==", Comparison::Equal),
        ("!=", Comparison::NotEqual),
        ("<>", Comparison::NotEqual),
        ("=", Comparison::Equal),
        ("<", Comparison::Less),
        (">", Comparison::Greater),
    ];
    let found = SIGNS.iter().filter_map(|(sign, comparison)| text.find(sign).map(|at| (at, sign, *comparison)));
    // The first sign in the text counts; of those that begin at the same place, the longest.
    let Some((at, sign, comparison)) = found.min_by_key(|(at, sign, _)| (*at, usize::MAX - sign.len())) else {
        return Err(Failure::invalid(format!(
            "where is {}: write a column, a comparison and a value, such as cores>=8",
            shown(text)
        )));
    };
    let (column, value) = (text[..at].trim(), text[at + sign.len()..].trim());
    let values = match comparison {
        Comparison::In | Comparison::Between => constants(&value.split(',').map(str::trim).collect::<Vec<_>>()),
        Comparison::Contains | Comparison::Matches | Comparison::Prefix => constants(&[unquoted(value)]),
        Comparison::Exists => {
            let wanted = match value {
                "" | "true" => true,
                "false" => false,
                _ => return Err(Failure::invalid(format!("{column} exists is {}: use true or false", shown(value)))),
            };
            Arc::new(BooleanArray::from(vec![wanted])) as ArrayRef
        }
        _ => constants(&[value]),
    };
    Ok(Predicate { column: column.to_owned(), comparison, values })
}

/// Removes the quotes around a text.
fn unquoted(text: &str) -> &str {
    let within = |quote| text.strip_prefix(quote).and_then(|rest: &str| rest.strip_suffix(quote));
    within('"').or_else(|| within('\'')).unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow_array::cast::AsArray;

    fn read(text: &str) -> (String, Comparison, Vec<String>) {
        let found = predicate(text).unwrap();
        let values = match found.comparison {
            Comparison::Exists => vec![found.values.as_boolean().value(0).to_string()],
            _ => found.values.as_string::<i32>().iter().flatten().map(str::to_owned).collect(),
        };
        (found.column, found.comparison, values)
    }

    #[test]
    fn a_condition_is_cut_at_its_first_sign() {
        for (text, column, comparison, values) in [
            ("cores>=8", "cores", Comparison::GreaterOrEqual, vec!["8"]),
            ("user in ann, bob", "user", Comparison::In, vec!["ann", "bob"]),
            ("line contains a=b in c", "line", Comparison::Contains, vec!["a=b in c"]),
            ("line contains \" a \"", "line", Comparison::Contains, vec![" a "]),
            ("line matches ^(a|b) contains$", "line", Comparison::Matches, vec!["^(a|b) contains$"]),
            ("name prefix 'ZTF18", "name", Comparison::Prefix, vec!["'ZTF18"]),
            ("a=b exists", "a", Comparison::Equal, vec!["b exists"]),
            ("mag exists", "mag", Comparison::Exists, vec!["true"]),
            ("mag exists false", "mag", Comparison::Exists, vec!["false"]),
        ] {
            let wanted = (column.to_owned(), comparison, values.into_iter().map(str::to_owned).collect());
            assert_eq!(read(text), wanted, "{text}");
        }
        for text in ["", "mag", "line contains", "mag exists maybe", "[[[["] {
            assert!(predicate(text).is_err(), "{text}");
        }
    }
}
