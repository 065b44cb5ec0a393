//! Downsampling of points for plots.

use arrow_array::RecordBatch;
use futures::TryStreamExt;

use crate::columns::{Points, computed, points_schema};
use crate::error::{HistorianError, Result};
use crate::historian::Historian;
use crate::read::range;
use crate::rules::Output;
use crate::tag::{DataType, TagKey};

/// Downsampling methods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Downsampling {
    /// First, minimum, maximum and last point of each of `count / 4` equal spans of time.
    MinMax,
    /// Largest triangle three buckets (Steinarsson 2013), over `count` buckets of equal numbers of points.
    Lttb,
}

/// Maximum number of points that [`Downsampling::Lttb`] accepts; `MinMax` accepts any number.
const LTTB_POINTS_MAX: usize = 1 << 26;

impl Historian {
    /// About `count` points of a tag in `[start, end)` that preserve the shape of the series. Bad points are left out.
    ///
    /// # Errors
    /// An unknown or a text tag, a count below 4, too many points for `Lttb`, an error of the engine.
    pub async fn plot(
        &self,
        key: &TagKey,
        start: i64,
        end: i64,
        count: usize,
        how: Downsampling,
    ) -> Result<RecordBatch> {
        let tag = self.resolve(std::slice::from_ref(key)).await?.remove(0);
        if tag.data_type == DataType::String {
            return Err(HistorianError::NotNumeric { tag: tag.name.clone(), aggregate: "a plot" });
        }
        if start >= end || count < 4 {
            let reason = "a plot needs a range that ends after it starts, and room for at least 4 points";
            return Err(HistorianError::Request(reason.into()));
        }
        let dataset = self.points(&tag).await?;
        let mut rows = range(&dataset, tag.number, start, end).await?;
        let mut kept = Downsampler::new(start, end, count, how);
        while let Some(batch) = rows.try_next().await? {
            kept.take(&Points::new(batch)?)?;
        }
        computed(&tag, kept.finish(), &points_schema(arrow_schema::DataType::Float64))
    }
}

type Row = (i64, f64, u32);

struct Downsampler {
    start: i64,
    width: i128,
    count: usize,
    how: Downsampling,
    rows: Vec<Row>,
    /// The current span, and its first, minimum, maximum and last point.
    span: Option<(i128, [Row; 4])>,
}

impl Downsampler {
    fn new(start: i64, end: i64, count: usize, how: Downsampling) -> Self {
        let spans = (count / 4).max(1) as i128;
        // A range may be longer than an i64 counts.
        let width = ((i128::from(end) - i128::from(start)) / spans).max(1);
        Self { start, width, count, how, rows: Vec::new(), span: None }
    }

    fn take(&mut self, points: &Points) -> Result<()> {
        for (row, (time, value)) in points.times().iter().zip(points.values()).enumerate() {
            let status = points.statuses().map_or(0, |statuses| statuses[row]);
            // The highest bit is set in both severities of Bad, 2 and 3.
            if value.is_nan() || status >> 31 == 1 {
                continue;
            }
            let point = (*time, *value, status);
            match self.how {
                Downsampling::Lttb => self.rows.push(point),
                Downsampling::MinMax => self.meet(point),
            }
        }
        if self.rows.len() > LTTB_POINTS_MAX {
            let reason = format!(
                "the range holds more than {LTTB_POINTS_MAX} points, too many for lttb: narrow it, or use minmax"
            );
            return Err(HistorianError::Request(reason));
        }
        Ok(())
    }

    fn meet(&mut self, point: Row) {
        let index = (i128::from(point.0) - i128::from(self.start)) / self.width;
        match &mut self.span {
            Some((span, [_, least, greatest, last])) if *span == index => {
                if point.1 < least.1 {
                    *least = point;
                }
                if point.1 > greatest.1 {
                    *greatest = point;
                }
                *last = point;
            }
            _ => {
                self.close();
                self.span = Some((index, [point; 4]));
            }
        }
    }

    fn close(&mut self) {
        if let Some((_, mut rows)) = self.span.take() {
            rows.sort_unstable_by_key(|row| row.0);
            for row in rows {
                // The same point may be the first, the least, the greatest and the last.
                if self.rows.last().is_none_or(|last| last.0 != row.0) {
                    self.rows.push(row);
                }
            }
        }
    }

    fn finish(mut self) -> Output {
        self.close();
        let rows = match self.how {
            Downsampling::Lttb => lttb(&self.rows, self.count),
            Downsampling::MinMax => self.rows,
        };
        let mut output = Output::default();
        for (time, value, status) in rows {
            output.times.push(time);
            output.values.push(value);
            output.statuses.push(status);
        }
        output
    }
}

/// Returns the first point, the last point, and from each bucket in between the one that forms the largest triangle
/// with the point chosen before and the mean of the next bucket.
fn lttb(rows: &[Row], count: usize) -> Vec<Row> {
    if rows.len() <= count {
        return rows.to_vec();
    }
    let origin = rows[0].0;
    let x = |row: &Row| (row.0 - origin) as f64;
    let buckets = count - 2;
    let inner = rows.len() - 2;
    let edge = |bucket: usize| 1 + (bucket as u128 * inner as u128 / buckets as u128) as usize;
    let mut chosen = Vec::with_capacity(count);
    let mut before = rows[0];
    chosen.push(before);
    for bucket in 0..buckets {
        let here = &rows[edge(bucket)..edge(bucket + 1)];
        let next =
            if bucket + 1 < buckets { &rows[edge(bucket + 1)..edge(bucket + 2)] } else { &rows[rows.len() - 1..] };
        let length = next.len().max(1) as f64;
        let mean = (next.iter().map(x).sum::<f64>() / length, next.iter().map(|row| row.1).sum::<f64>() / length);
        let area = |row: &Row| {
            ((x(&before) - mean.0) * (row.1 - before.1) - (x(&before) - x(row)) * (mean.1 - before.1)).abs()
        };
        // There are more rows than buckets, so none is empty.
        let Some(best) = here.iter().max_by(|a, b| area(a).total_cmp(&area(b))).copied() else { continue };
        chosen.push(best);
        before = best;
    }
    chosen.push(rows[rows.len() - 1]);
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lttb_keeps_the_ends_and_the_spike() {
        let mut rows: Vec<Row> = (0..1_000).map(|i| (i, 0.0, 0)).collect();
        rows[500].1 = 9.0;
        let chosen = lttb(&rows, 20);
        assert_eq!(chosen.len(), 20);
        assert_eq!((chosen[0].0, chosen[19].0), (0, 999));
        assert!(chosen.iter().any(|row| row.1 == 9.0));
        assert!(chosen.is_sorted_by_key(|row| row.0));
    }

    #[test]
    fn min_max_keeps_every_extreme_of_its_spans() {
        let mut kept = Downsampler::new(0, 100, 8, Downsampling::MinMax);
        for i in 0..100 {
            kept.meet((
                i,
                if i == 33 {
                    -5.0
                } else if i == 77 {
                    5.0
                } else {
                    0.0
                },
                0,
            ));
        }
        let output = kept.finish();
        assert!(output.times.contains(&33) && output.times.contains(&77));
        assert!(output.times.len() <= 8);
    }
}
