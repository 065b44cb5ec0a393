//! A table of the first rows for people: aligned, cut to the width of a terminal, safe to print.

use arrow_array::{Array, RecordBatch};
use arrow_cast::display::{ArrayFormatter, FormatOptions};
use arrow_schema::{ArrowError, DataType, Schema};
use chronotile_types::list_names;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use crate::options::TableOptions;
use crate::types::format_type;

/// Rows collected for a table; only those that are shown are kept.
pub(crate) struct Table {
    options: TableOptions,
    columns: Vec<Column>,
    rows: u64,
}

struct Column {
    name: String,
    kind: String,
    to_the_right: bool,
    cells: Vec<String>,
}

impl Table {
    pub(crate) fn new(schema: &Schema, options: TableOptions) -> Self {
        let cut = |text: &str| clean(text, options.max_cell_width);
        let options = TableOptions { max_cell_width: options.max_cell_width.max(1), ..options };
        let columns = schema.fields().iter().map(|field| Column {
            name: cut(field.name()),
            kind: cut(&format_type(field.data_type())),
            to_the_right: field.data_type().is_numeric(),
            cells: Vec::new(),
        });
        Self { columns: columns.collect(), options, rows: 0 }
    }

    pub(crate) fn add(&mut self, batch: &RecordBatch) -> Result<(), ArrowError> {
        let held = usize::try_from(self.rows).unwrap_or(usize::MAX);
        let shown = self.options.max_rows.saturating_sub(held).min(batch.num_rows());
        self.rows += batch.num_rows() as u64;
        let options = FormatOptions::new().with_null("null");
        // Characters to keep of a cell: up to the width of the whole table, if it has one.
        let kept = self.options.max_cell_width.max(self.options.width.unwrap_or(0));
        for (column, array) in self.columns.iter_mut().zip(batch.columns()) {
            let values = array.slice(0, shown);
            let formatter = ArrayFormatter::try_new(&values, &options)?;
            for row in 0..shown {
                let is_null = values.is_null(row) || values.data_type() == &DataType::Null;
                let text = if is_null { "null".to_owned() } else { formatter.value(row).to_string() };
                column.cells.push(clean(&text, kept));
            }
        }
        Ok(())
    }

    pub(crate) fn render(&self) -> String {
        let natural: Vec<usize> = self.columns.iter().map(Column::width).collect();
        let narrow = capped(&natural, self.options.max_cell_width);
        let fitting = self.fitting(&narrow);
        let widths = match self.options.width {
            Some(limit) => widened(&natural[..fitting], self.options.max_cell_width, limit),
            None => narrow,
        };
        let mut out = String::new();
        let line = |out: &mut String, cell: &dyn Fn(&Column) -> &str| {
            let mut text = String::new();
            for (column, width) in self.columns.iter().zip(&widths).take(fitting) {
                column.pad(&clean(cell(column), *width), *width, &mut text);
            }
            out.push_str(text.trim_end());
            out.push('\n');
        };
        line(&mut out, &|column| &column.name);
        line(&mut out, &|column| &column.kind);
        let rule: Vec<String> = widths.iter().take(fitting).map(|width| "─".repeat(*width)).collect();
        out.push_str(&rule.join("  "));
        out.push('\n');
        let shown = self.columns.first().map_or(0, |column| column.cells.len());
        for row in 0..shown {
            line(&mut out, &|column| &column.cells[row]);
        }
        self.notes(shown, fitting, &mut out);
        out
    }

    /// Number of columns that fit the width, at least one.
    fn fitting(&self, widths: &[usize]) -> usize {
        let Some(limit) = self.options.width else { return widths.len() };
        let mut used = 0;
        let fits = widths.iter().take_while(|width| {
            used += **width + if used == 0 { 0 } else { 2 };
            used <= limit
        });
        fits.count().max(1).min(widths.len())
    }

    fn notes(&self, shown: usize, fitting: usize, out: &mut String) {
        let more = self.rows.saturating_sub(shown as u64);
        let many = |count: u64, what: &str| format!("{} {what}{}", grouped(count), if count == 1 { "" } else { "s" });
        match (self.rows, more) {
            (0, _) => out.push_str("no rows\n"),
            (_, 0) => {}
            _ => out.push_str(&format!("… {}\n", many(more, "more row"))),
        }
        let hidden: Vec<&str> = self.columns[fitting..].iter().map(|column| column.name.as_str()).collect();
        if !hidden.is_empty() {
            let note = format!("… and {}", many(hidden.len() as u64, "more column"));
            let named = format!("{note} ({}): use --columns or --json", list_names(&hidden));
            // Keep to one line: list the names only if they fit.
            let fits = self.options.width.is_none_or(|limit| named.width() <= limit);
            out.push_str(&if fits { named } else { format!("{note}: use --columns or --json") });
            out.push('\n');
        }
    }
}

/// The widths, limited to `cap` each.
fn capped(widths: &[usize], cap: usize) -> Vec<usize> {
    widths.iter().map(|width| (*width).min(cap)).collect()
}

/// Widths that fill `limit` if the columns are wide enough: the widest columns are cut to the same width, but not to
/// less than `least`.
fn widened(natural: &[usize], least: usize, limit: usize) -> Vec<usize> {
    let gaps = 2 * natural.len().saturating_sub(1);
    let fits = |cap: usize| capped(natural, cap).iter().sum::<usize>() + gaps <= limit;
    let widest = natural.iter().copied().max().unwrap_or(0);
    let cap = (least..=widest.max(least)).rev().find(|cap| fits(*cap)).unwrap_or(least);
    capped(natural, cap)
}

impl Column {
    fn width(&self) -> usize {
        let cells = self.cells.iter().map(|cell| cell.width()).max().unwrap_or(0);
        cells.max(self.name.width()).max(self.kind.width())
    }

    fn pad(&self, cell: &str, width: usize, out: &mut String) {
        if !out.is_empty() {
            out.push_str("  ");
        }
        let space = " ".repeat(width.saturating_sub(cell.width()));
        if self.to_the_right {
            out.push_str(&space);
            out.push_str(cell);
        } else {
            out.push_str(cell);
            out.push_str(&space);
        }
    }
}

/// Cuts to `width` terminal columns and escapes control characters, so that stored text cannot control the terminal.
fn clean(text: &str, width: usize) -> String {
    let mut out = String::new();
    let mut used = 0;
    for c in text.chars() {
        // Direction marks are invisible and could make a row look like another one.
        let hidden = c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        let piece = if hidden { c.escape_default().to_string() } else { c.to_string() };
        let piece_width = if hidden { piece.len() } else { c.width().unwrap_or(0) };
        if used + piece_width > width {
            // Make room for the ellipsis, which takes one column; a character before it may take two.
            while used + 1 > width {
                let Some(last) = out.pop() else { break };
                used -= last.width().unwrap_or(0);
            }
            out.push('…');
            break;
        }
        out.push_str(&piece);
        used += piece_width;
    }
    out
}

/// A number with commas between groups of three digits.
fn grouped(count: u64) -> String {
    let digits = count.to_string();
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}
