//! Names for messages: suggestions for an unknown name, and lists that say when they are truncated.

/// Maximum number of names that a message lists.
const LISTED_MAX: usize = 20;
/// Number of leading characters of a name that are compared.
const COMPARED_CHARS: usize = 64;
/// Maximum number of known names for which the edit distance is computed. If there are more, the names with the longest common
/// prefix and suffix are chosen: a few milliseconds for a hundred thousand names.
const COMPARED_NAMES: usize = 5_000;

/// The end of a message such as "no column 'mag'": the nearest names, if any, and the known names, as in
/// `; did you mean magpsf? It has candid, jd, magpsf`. Empty if no name is known.
#[must_use]
pub fn name_hint<S: AsRef<str>>(name: &str, known: &[S]) -> String {
    let near = nearest(name, known);
    let list = list_names(known);
    match (near.as_slice(), list.as_str()) {
        ([], "") => String::new(),
        ([], list) => format!("; it has {list}"),
        (near, list) => format!("; did you mean {}? It has {list}", near.join(" or ")),
    }
}

/// The names, separated by commas. Of more than 20 names, the first 20, `...` and the total number.
#[must_use]
pub fn list_names<S: AsRef<str>>(known: &[S]) -> String {
    let shown: Vec<&str> = known.iter().take(LISTED_MAX).map(AsRef::as_ref).collect();
    match known.len() > LISTED_MAX {
        true => format!("{}, ... ({} in all)", shown.join(", "), known.len()),
        false => shown.join(", "),
    }
}

/// Up to three known names similar to `name`, in the order of `known`: those at the smallest distance.
///
/// A known name is similar if it has the same letters in another case, differs by few letters (one if `name` has up to four, two
/// if up to seven, else three), begins with `name`, or contains a word that begins with it: `mag` is similar to `magpsf`, `psfMag`
/// and `psf_mag`, but not to `offimage`. Prefixes count in both directions.
#[must_use]
pub fn nearest<'a, S: AsRef<str>>(name: &str, known: &'a [S]) -> Vec<&'a str> {
    let wanted = Folded::new(name);
    if wanted.letters.is_empty() {
        return Vec::new();
    }
    let mut near: Vec<(usize, &str)> = likely(&wanted.letters, known)
        .into_iter()
        .filter_map(|known| Some((distance(&wanted, &Folded::new(known))?, known)))
        .collect();
    near.sort_by_key(|&(distance, _)| distance);
    let Some(&(least, _)) = near.first() else { return Vec::new() };
    near.into_iter().take_while(|&(distance, _)| distance == least).take(3).map(|(_, name)| name).collect()
}

/// The candidates to compare, in the order of `known`.
fn likely<'a, S: AsRef<str>>(wanted: &[char], known: &'a [S]) -> Vec<&'a str> {
    if known.len() <= COMPARED_NAMES {
        return known.iter().map(AsRef::as_ref).collect();
    }
    let ends = |known: &S| shared_ends(wanted, &Folded::new(known.as_ref()).letters);
    let mut ranked: Vec<(usize, usize)> = known.iter().map(ends).zip(0..).collect();
    // The selection is unstable: `place` decides between equal keys, so that equal input gives equal names.
    ranked.select_nth_unstable_by_key(COMPARED_NAMES, |&(ends, place)| (std::cmp::Reverse(ends), place));
    ranked.truncate(COMPARED_NAMES);
    ranked.sort_unstable_by_key(|&(_, place)| place);
    ranked.into_iter().map(|(_, place)| known[place].as_ref()).collect()
}

/// Total length of the common prefix and the common suffix of two names.
fn shared_ends(a: &[char], b: &[char]) -> usize {
    let shared = |(a, b): &(&char, &char)| a == b;
    let start = a.iter().zip(b).take_while(shared).count();
    // The suffix may only take letters that the prefix has left, so that no letter counts twice.
    let rest = (a.len().min(b.len())) - start;
    start + a.iter().rev().zip(b.iter().rev()).take(rest).take_while(shared).count()
}

/// The letters and digits of a name in lower case, and the positions where words begin.
struct Folded {
    letters: Vec<char>,
    words: Vec<usize>,
}

impl Folded {
    fn new(name: &str) -> Self {
        let (mut letters, mut words) = (Vec::new(), Vec::new());
        let mut before = '_';
        for c in name.chars() {
            if letters.len() >= COMPARED_CHARS {
                break;
            }
            if c.is_alphanumeric() {
                if !before.is_alphanumeric() || (c.is_uppercase() && !before.is_uppercase()) {
                    words.push(letters.len());
                }
                letters.extend(c.to_lowercase());
            }
            before = c;
        }
        // The lower case of one letter may be several letters, so the last one may exceed the limit.
        letters.truncate(COMPARED_CHARS);
        Self { letters, words }
    }
}

/// Distance of two names, smaller for a more likely match; `None` if they are not similar.
fn distance(wanted: &Folded, known: &Folded) -> Option<usize> {
    let (a, b) = (wanted.letters.len(), known.letters.len());
    if b == 0 {
        return None;
    }
    let edits_max = match a {
        0..=4 => 1,
        5..=7 => 2,
        _ => 3,
    };
    let edits = edits(&wanted.letters, &known.letters);
    // One edit turns any name of one letter into any other, which does not make them similar.
    if edits <= edits_max && edits < a.max(b) {
        // Distances of edits are at most 6, so edits come before prefixes, which begin at 8.
        return Some(edits * 2);
    }
    let (part, whole) = if a < b { (wanted, known) } else { (known, wanted) };
    let rest = a.abs_diff(b);
    let part = &part.letters;
    if part.len() >= 2 && whole.letters.starts_with(part) {
        return Some(8 + rest);
    }
    let begins_word = part.len() >= 3 && whole.words.iter().any(|&word| whole.letters[word..].starts_with(part));
    begins_word.then_some(COMPARED_CHARS + rest)
}

/// Edit distance with insertions, deletions, replacements and swaps of neighbours (optimal string alignment).
fn edits(a: &[char], b: &[char]) -> usize {
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i; b.len() + 1];
        for j in 1..=b.len() {
            let replaced = last[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            row[j] = replaced.min(last[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                row[j] = row[j].min(before[j - 2] + 1);
            }
        }
        before = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ZTF: [&str; 8] = ["candid", "objectId", "jd", "ra", "dec", "magpsf", "sigmapsf", "fid"];

    #[test]
    fn the_nearest_name_is_named() {
        assert_eq!(nearest("mag", &ZTF), ["magpsf"]);
        assert_eq!(nearest("objectid", &ZTF), ["objectId"]);
        assert_eq!(nearest("object_id", &ZTF), ["objectId"]);
        assert_eq!(nearest("cnadid", &ZTF), ["candid"]);
        assert_eq!(nearest("sigma", &ZTF), ["sigmapsf"]);
        assert_eq!(nearest("psf", &ZTF), [""; 0]);
        assert_eq!(nearest("airmass", &ZTF), [""; 0]);
        assert_eq!(nearest("x", &["y", "z"]), [""; 0]);
        assert_eq!(nearest("", &ZTF), [""; 0]);
    }

    #[test]
    fn edits_come_before_beginnings_and_these_before_parts() {
        for (wanted, known, apart) in [
            ("abc", "abd", Some(2)),
            ("candid", "cnadid", Some(2)),
            ("ab", "cd", None),
            ("mag", "magpsf", Some(8 + 3)),
            ("magpsf", "mag", Some(8 + 3)),
            ("ma", "magpsf", Some(8 + 4)),
            ("m", "magpsf", None),
            ("psf", "mag_psf", Some(COMPARED_CHARS + 3)),
            ("magPsf", "psf", Some(COMPARED_CHARS + 3)),
            ("PSF", "magPSFerr", Some(COMPARED_CHARS + 6)),
            ("psf", "magpsf", None),
            ("magpsf", "psf", None),
            ("sf", "mag_sf", None),
            ("abc", "", None),
        ] {
            assert_eq!(distance(&Folded::new(wanted), &Folded::new(known)), apart, "{wanted} and {known}");
        }
    }

    #[test]
    fn a_short_name_is_near_where_a_word_begins_with_it_and_not_inside_words() {
        assert_eq!(nearest("mag", &["offimage", "magpsf"]), ["magpsf"]);
        assert_eq!(nearest("mag", &["offimage", "psf_mag", "diaMagErr"]), ["psf_mag"]);
        assert_eq!(nearest("mag", &["offimage", "diaMagErr"]), ["diaMagErr"]);
        assert_eq!(nearest("temperature", &["boiler.temperature", "boilertemperature"]), ["boiler.temperature"]);
        assert_eq!(nearest("mag", &["offimage", "magnet"]), ["magnet"]);
        assert_eq!(nearest("mag", &["offimage"]), [""; 0]);
        assert_eq!(nearest("err", &["ferry", "terror"]), [""; 0]);
    }

    #[test]
    fn the_nearest_of_very_many_names_is_found() {
        let nights: Vec<String> = (0..100_000).map(|night| format!("night-{night:05}-{}", night * 7 % 1_000)).collect();
        for (wanted, found) in [
            ("night-99999-993", "night-99999-993"),
            ("nihgt-99998-986", "night-99998-986"),
            ("night_77777-439x", "night-77777-439"),
            ("nt-99997-979", "night-99997-979"),
        ] {
            assert_eq!(nearest(wanted, &nights).first().copied(), Some(found), "{wanted}");
        }
        assert_eq!(nearest("tomorrow", &nights), [""; 0]);
    }

    #[test]
    fn to_swap_two_letters_is_one_edit_wherever_they_are() {
        let letters: Vec<char> = ('a'..='l').collect();
        for place in 0..letters.len() - 1 {
            let mut swapped = letters.clone();
            swapped.swap(place, place + 1);
            assert_eq!(edits(&letters, &swapped), 1, "{place}");
            // The swapped letters are no longer neighbours, so this is two replacements.
            swapped[place] = 'x';
            assert_eq!(edits(&letters, &swapped), 2, "{place}");
        }
    }

    #[test]
    fn shared_ends_do_not_overlap() {
        for (a, b, shared) in
            [("abcd", "abxcd", 4), ("aaa", "aaaa", 3), ("abc", "xyz", 0), ("", "abc", 0), ("ab", "ba", 0)]
        {
            assert_eq!(shared_ends(&Folded::new(a).letters, &Folded::new(b).letters), shared, "{a} and {b}");
        }
    }

    #[test]
    fn a_list_is_whole_or_says_that_it_is_not() {
        let many: Vec<String> = (0..21).map(|i| format!("c{i}")).collect();
        assert!(list_names(&many).ends_with("c19, ... (21 in all)"), "{}", list_names(&many));
        assert!(list_names(&many[..20]).ends_with("c18, c19"));
        assert_eq!(name_hint("mag", &["jd", "magpsf"]), "; did you mean magpsf? It has jd, magpsf");
        assert_eq!(name_hint("flux", &["jd"]), "; it has jd");
        assert_eq!(name_hint("flux", &[""; 0]), "");
    }

    proptest! {
        #[test]
        fn a_name_with_one_letter_changed_is_found(name in "[a-z]{4,20}", place in 0usize..20, letter in "[A-Z]") {
            let place = place % name.len();
            let changed = format!("{}{letter}{}", &name[..place], &name[place + 1..]);
            let known = [name.as_str(), "0123456789012345678901234567890"];
            prop_assert_eq!(nearest(&changed, &known), [name.as_str()]);
        }

        #[test]
        fn any_text_is_compared_without_a_panic(name in ".{0,80}", known in proptest::collection::vec(".{0,80}", 0..5)) {
            prop_assert!(nearest(&name, &known).len() <= 3);
        }
    }
}
