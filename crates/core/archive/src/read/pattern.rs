//! Conditions on texts: substrings, prefixes and regular expressions.

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, StringArray};
use memchr::memmem::Finder;
use regex::{Regex, RegexBuilder};
use regex_syntax::ast::Span;
use regex_syntax::hir::Hir;

/// Maximum size of a compiled expression in bytes: allows several hundred words, but no nested counted repetitions.
const PATTERN_BYTES_MAX: usize = 2 << 20;

/// A condition on texts. Null never satisfies it.
pub(crate) enum Pattern {
    Contains(Box<Finder<'static>>),
    Prefix(String),
    Matches(Box<Regex>),
}

impl Pattern {
    pub(crate) fn contains(part: &str) -> Self {
        Self::Contains(Box::new(Finder::new(part).into_owned()))
    }

    /// A regular expression, which may match anywhere in a text, with its syntax tree.
    ///
    /// # Errors
    /// What is wrong with the expression, and where.
    pub(crate) fn matches(expression: &str) -> Result<(Self, Hir), String> {
        let tree = regex_syntax::parse(expression).map_err(|error| match &error {
            regex_syntax::Error::Parse(error) => misread(expression, error.kind(), error.span()),
            regex_syntax::Error::Translate(error) => misread(expression, error.kind(), error.span()),
            other => format!("has an invalid regular expression: {other}"),
        })?;
        match RegexBuilder::new(expression).size_limit(PATTERN_BYTES_MAX).build() {
            Ok(regex) => Ok((Self::Matches(Box::new(regex)), tree)),
            Err(regex::Error::CompiledTooBig(_)) => Err(format!(
                "has a regular expression that is too large, {expression:?}: shorten it, above all counted repetitions such as x{{1000}}"
            )),
            Err(error) => Err(format!("has an invalid regular expression: {error}")),
        }
    }

    /// Clears `keep` for rows whose text does not satisfy the condition.
    pub(crate) fn filter(&self, column: &ArrayRef, keep: &mut [bool]) {
        let Some(texts) = column.as_string_opt::<i32>() else { return keep.fill(false) };
        match self {
            Self::Contains(finder) => keep_found(texts, finder, keep),
            Self::Prefix(prefix) => keep_where(texts, keep, |text| text.starts_with(prefix.as_str())),
            // Lines of files from Windows end in a carriage return, after which `$` alone would not match.
            Self::Matches(regex) => keep_where(texts, keep, |text| {
                regex.is_match(text) || text.strip_suffix('\r').is_some_and(|line| regex.is_match(line))
            }),
        }
    }
}

fn misread(expression: &str, problem: impl std::fmt::Display, span: &Span) -> String {
    let place = expression[..span.start.offset].chars().count() + 1;
    format!("has an invalid regular expression: {problem} at character {place} of {expression:?}")
}

fn keep_where(texts: &StringArray, keep: &mut [bool], holds: impl Fn(&str) -> bool) {
    for (row, keep) in keep.iter_mut().enumerate() {
        *keep = *keep && texts.is_valid(row) && holds(texts.value(row));
    }
}

/// Searches the contiguous buffer of all texts at once, so that rows without a match need no search of their own.
fn keep_found(texts: &StringArray, finder: &Finder<'_>, keep: &mut [bool]) {
    if finder.needle().is_empty() {
        return keep_where(texts, keep, |_| true);
    }
    // The bytes of a sliced array are those of its whole buffer: only its offsets tell where its own rows begin and
    // end.
    let (offsets, bytes) = (texts.value_offsets(), texts.value_data());
    let mut next = 0;
    while next < keep.len() {
        let start = offsets[next] as usize;
        let Some(found) = finder.find(&bytes[start..offsets[keep.len()] as usize]) else { break };
        // The match begins in the last row that starts at or before it.
        let row = next + offsets[next + 1..=keep.len()].partition_point(|end| *end as usize <= start + found);
        keep[next..row].fill(false);
        let ends_inside = start + found + finder.needle().len() <= offsets[row + 1] as usize;
        // A match that crosses into the next row does not count, and this row has no earlier one.
        keep[row] = keep[row] && texts.is_valid(row) && ends_inside;
        next = row + 1;
    }
    keep[next..].fill(false);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::sync::Arc;

    proptest! {
        #[test]
        fn rows_are_found_wherever_a_part_lies(
            texts in prop::collection::vec(prop::option::of("[abé]{0,6}"), 0..30), part in "[abé]{0,3}", cut in 0..30usize,
        ) {
            let all: ArrayRef = Arc::new(StringArray::from(texts.clone()));
            let cut = cut.min(texts.len());
            for (array, texts) in [(all.clone(), &texts[..]), (all.slice(cut, texts.len() - cut), &texts[cut..])] {
                let mut keep = vec![true; texts.len()];
                Pattern::contains(&part).filter(&array, &mut keep);
                let holds = |text: &Option<String>| text.as_ref().is_some_and(|text| text.contains(&part));
                prop_assert_eq!(keep, texts.iter().map(holds).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn a_carriage_return_at_the_end_is_passed_over() {
        let texts = ["a ssh2", "a ssh2\r", "a ssh2\r\r", "a ssh2 \r", "\r"];
        let found = |expression: &str| {
            let mut keep = vec![true; texts.len()];
            let column: ArrayRef = Arc::new(StringArray::from(texts.to_vec()));
            Pattern::matches(expression).map(|(pattern, _)| pattern.filter(&column, &mut keep)).unwrap();
            keep
        };
        assert_eq!(found("ssh2$"), [true, true, false, false, false]);
        assert_eq!(found("^$"), [false, false, false, false, true]);
        assert_eq!(found(r"\r$"), [false, true, true, true, true]);
    }

    #[test]
    fn what_is_wrong_with_an_expression_is_told_with_its_place() {
        let message = |expression: &str| Pattern::matches(expression).err().unwrap_or_default();
        assert!(message("é(a").contains("unclosed group at character 2 of \"é(a\""), "{}", message("é(a"));
        assert!(message("a**b[").contains("at character"), "{}", message("a**b["));
        assert!(message(r"\p{Nope}").contains("at character 1 of"), "{}", message(r"\p{Nope}"));
        assert!(message(r"(\w{100}){100}").contains("too large"), "{}", message(r"(\w{100}){100}"));
    }
}
