//! Lines that cannot be stored, and how messages quote what a client sent.

/// Maximum number of refused lines that a response lists; the others are only counted.
pub const REFUSALS_KEPT_MAX: usize = 100;

/// Maximum length of a message in bytes; longer ones are cut.
pub(super) const MESSAGE_BYTES_MAX: usize = 1_000;

/// A line that cannot be stored, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Number of the line, from 1; of the record or sample in formats without lines.
    pub line: u64,
    /// The problem and how to solve it.
    pub message: String,
}

/// The number of lines that cannot be stored, and the first of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Refusals {
    /// Number of refused lines.
    pub count: u64,
    /// The first [`REFUSALS_KEPT_MAX`], in order.
    pub kept: Vec<Refused>,
    /// Number of refused lines whose tag is unknown.
    pub(crate) unknown: u64,
}

impl Refusals {
    /// Records a line. Lines must be given in ascending order; `message` is called only if the line is kept.
    pub fn note(&mut self, line: u64, message: impl FnOnce() -> String) {
        self.count += 1;
        if self.kept.len() < REFUSALS_KEPT_MAX {
            let mut message = message();
            if message.len() > MESSAGE_BYTES_MAX {
                message = format!("{}...", cut(&message, MESSAGE_BYTES_MAX));
            }
            self.kept.push(Refused { line, message });
        }
    }

    /// Merges two lists.
    pub(super) fn merge(mut self, other: Self) -> Self {
        self.count += other.count;
        self.unknown += other.unknown;
        self.kept.extend(other.kept);
        self.kept.sort_by_key(|refused| refused.line);
        self.kept.truncate(REFUSALS_KEPT_MAX);
        self
    }
}

/// The longest prefix of whole characters with at most `bytes_max` bytes.
pub(crate) fn cut(text: &str, bytes_max: usize) -> &str {
    let end = (0..=bytes_max.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or(0)]
}

/// Quotes a text for a message, and cuts it if it is long.
pub(crate) fn shown(text: &str) -> String {
    const BYTES_MAX: usize = 100;
    match text.len() {
        0..=BYTES_MAX => format!("{text:?}"),
        bytes => format!("{:?}... ({bytes} bytes)", cut(text, BYTES_MAX)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_cut_and_refusals_left_out_beyond_their_bounds() {
        let mut refused = Refusals::default();
        refused.note(1, || "x".repeat(MESSAGE_BYTES_MAX));
        refused.note(2, || "x".repeat(MESSAGE_BYTES_MAX + 1));
        let lengths: Vec<usize> = refused.kept.iter().map(|refused| refused.message.len()).collect();
        assert_eq!(lengths, [MESSAGE_BYTES_MAX, MESSAGE_BYTES_MAX + 3]);
        assert!(refused.kept[1].message.ends_with("x..."));
        for line in 3..=REFUSALS_KEPT_MAX as u64 + 1 {
            refused.note(line, || "a line".into());
        }
        assert_eq!((refused.kept.len() as u64, refused.count), (100, 101));
        let other = Refusals { count: 5, unknown: 2, kept: vec![Refused { line: 0, message: String::new() }] };
        let both = refused.merge(Refusals { unknown: 1, ..other.clone() }.merge(other));
        assert_eq!((both.count, both.unknown, both.kept.len()), (111, 3, 100));
        assert_eq!(both.kept.iter().take(3).map(|refused| refused.line).collect::<Vec<_>>(), [0, 0, 1]);
    }
}
