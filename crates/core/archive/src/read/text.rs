//! What the text filters of a chunk tell about conditions on texts.
//!
//! Every value that satisfies a condition contains certain runs of bytes. If a chunk's filter lacks one of these
//! runs, the chunk has no such value. That alone does not let a read skip the chunk: one of its rows may be the newer
//! state of a record whose older state, in another chunk, satisfies the condition.

use arrow_array::ArrayRef;
use arrow_array::cast::AsArray;
use chronotile_chunk::{Grams, TextFilter, fold};
use regex_syntax::hir::{Class, Hir, HirKind};

/// What a filter must contain if some value satisfies a condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TextRequirement {
    /// All of these runs.
    Runs(Grams),
    All(Vec<TextRequirement>),
    Any(Vec<TextRequirement>),
}

impl TextRequirement {
    /// For values that contain this text; `None` if the text is too short for a filter.
    pub(crate) fn of_text(text: &str) -> Option<Self> {
        Self::of_folded(&fold(text))
    }

    fn of_folded(folded: &[u8]) -> Option<Self> {
        let runs = Grams::of(folded);
        (!runs.is_empty()).then_some(Self::Runs(runs))
    }

    /// For values that equal one of these.
    pub(crate) fn of_values(values: &ArrayRef) -> Option<Self> {
        let values = values.as_string_opt::<i32>()?;
        Some(Self::Any(values.iter().flatten().map(Self::of_text).collect::<Option<_>>()?))
    }

    /// For values in which a regular expression matches.
    pub(crate) fn of_pattern(pattern: &Hir) -> Option<Self> {
        let mut walk = RequirementCollector { steps: STEPS_MAX, ..RequirementCollector::default() };
        walk.pattern(pattern);
        walk.finish()
    }

    pub(crate) fn may_hold(&self, filter: &TextFilter) -> bool {
        match self {
            Self::Runs(runs) => filter.may_hold(runs),
            Self::All(needs) => needs.iter().all(|need| need.may_hold(filter)),
            Self::Any(needs) => needs.iter().any(|need| need.may_hold(filter)),
        }
    }
}

/// Maximum number of parts of a pattern to visit, counting each repetition. Whatever follows is assumed to match
/// anything.
const STEPS_MAX: usize = 4_096;

/// Collects from left to right what every match must contain.
#[derive(Default)]
struct RequirementCollector {
    /// The folded text that every match has at the current position.
    run: Vec<u8>,
    needs: Vec<TextRequirement>,
    steps: usize,
}

impl RequirementCollector {
    fn pattern(&mut self, pattern: &Hir) {
        if self.steps == 0 {
            return self.anything();
        }
        self.steps -= 1;
        match pattern.kind() {
            // Parts that match no character leave their neighbours adjacent.
            HirKind::Empty | HirKind::Look(_) => {}
            HirKind::Literal(literal) => match std::str::from_utf8(&literal.0) {
                Ok(text) => self.run.extend_from_slice(&fold(text)),
                Err(_) => self.anything(),
            },
            HirKind::Class(class) => match one_letter(class) {
                Some(letter) => self.run.extend_from_slice(&letter),
                None => self.anything(),
            },
            HirKind::Capture(capture) => self.pattern(&capture.sub),
            HirKind::Concat(parts) => parts.iter().for_each(|part| self.pattern(part)),
            HirKind::Alternation(parts) => self.alternatives(parts),
            HirKind::Repetition(repetition) => {
                for _ in 0..repetition.min {
                    if self.steps == 0 {
                        break;
                    }
                    self.pattern(&repetition.sub);
                }
                // More repetitions may follow those that are certain, so what comes next need not be adjacent.
                if repetition.max != Some(repetition.min) {
                    self.anything();
                }
            }
        }
    }

    fn alternatives(&mut self, parts: &[Hir]) {
        self.anything();
        let mut needs = Vec::with_capacity(parts.len());
        for part in parts {
            // Each alternative begins with an empty run: the text before it was ended above, so runs across its border
            // are not required.
            let mut walk = RequirementCollector { steps: self.steps, ..RequirementCollector::default() };
            walk.pattern(part);
            self.steps = walk.steps;
            needs.push(walk.finish());
        }
        // If one alternative needs nothing, the alternation needs nothing.
        if let Some(needs) = needs.into_iter().collect() {
            self.needs.push(TextRequirement::Any(needs));
        }
    }

    /// Ends the run: what follows may have any length.
    fn anything(&mut self) {
        self.needs.extend(TextRequirement::of_folded(&self.run));
        self.run.clear();
    }

    fn finish(mut self) -> Option<TextRequirement> {
        self.anything();
        match self.needs.len() {
            0 | 1 => self.needs.pop(),
            _ => Some(TextRequirement::All(self.needs)),
        }
    }
}

/// The letter of a class whose letters are all equal after folding, such as `(?i)k`.
fn one_letter(class: &Class) -> Option<Vec<u8>> {
    // No letter has more variants that fold to it.
    const VARIANTS_MAX: usize = 3;
    let letters: Vec<char> = match class {
        Class::Unicode(class) => {
            class.iter().flat_map(|range| range.start()..=range.end()).take(VARIANTS_MAX + 1).collect()
        }
        Class::Bytes(class) => {
            let bytes = class.iter().flat_map(|range| range.start()..=range.end());
            bytes
                .take(VARIANTS_MAX + 1)
                .map(|byte| byte.is_ascii().then_some(char::from(byte)))
                .collect::<Option<_>>()?
        }
    };
    let mut folded = letters.iter().map(|letter| fold(letter.encode_utf8(&mut [0; 4])).into_owned());
    let first = folded.next()?;
    (letters.len() <= VARIANTS_MAX && folded.all(|other| other == first)).then_some(first)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a test may unwrap
mod tests {
    use super::*;

    fn need(pattern: &str) -> Option<TextRequirement> {
        TextRequirement::of_pattern(&regex_syntax::parse(pattern).unwrap())
    }

    fn text(text: &str) -> TextRequirement {
        TextRequirement::of_text(text).unwrap()
    }

    #[test]
    fn a_pattern_needs_what_stands_in_every_match() {
        for (pattern, wanted) in [
            ("error", Some(text("error"))),
            ("(?i)Session KEY", Some(text("session key"))),
            (r"^user=\bann\b$", Some(text("user=ann"))),
            ("(failed) (login){2}", Some(text("failed loginlogin"))),
            ("(?i)größe", None),
            ("gr(ö|oe)ße", None),
            (r"from \d+\.\d+ port", Some(TextRequirement::All(vec![text("from "), text(" port")]))),
            ("denied|refused", Some(TextRequirement::Any(vec![text("denied"), text("refused")]))),
            ("denied|no", None),
            ("x(denied|refused)+ab", Some(TextRequirement::Any(vec![text("denied"), text("refused")]))),
            ("(error)?s", None),
            ("(error)*s", None),
            ("(error)+s", Some(text("error"))),
            ("[Ee]rror", Some(text("error"))),
            ("[ef]rror", Some(text("rror"))),
            // Letters of which the first are one once folded, and others are not.
            ("[kKx]eyed", Some(text("eyed"))),
            ("(?-u:[kK])eyed", Some(text("keyed"))),
            ("(?-u:[kKx])eyed", Some(text("eyed"))),
            ("[kK\u{212a}]eyed", Some(text("keyed"))),
            ("[kK\u{212a}\u{212b}]eyed", Some(text("eyed"))),
            ("err", None),
            ("", None),
            ("a.c", None),
        ] {
            assert_eq!(need(pattern), wanted, "{pattern}");
        }
    }

    #[test]
    fn a_pattern_of_many_repetitions_is_walked_in_bounded_time() {
        let deep = "(((((abcd){99}){99}){99}){99}){99}";
        assert!(need(deep).is_some());
    }

    #[test]
    fn one_short_value_of_several_tells_nothing() {
        let values = |values: &[&str]| {
            TextRequirement::of_values(
                &(std::sync::Arc::new(arrow_array::StringArray::from(values.to_vec())) as ArrayRef),
            )
        };
        assert_eq!(values(&["denied", "no"]), None);
        assert_eq!(values(&["denied", "refused"]), Some(TextRequirement::Any(vec![text("denied"), text("refused")])));
        assert_eq!(values(&[]), Some(TextRequirement::Any(vec![])));
    }
}
