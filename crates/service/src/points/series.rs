//! Names of series that are identified by labels.

use chronotile_historian::NAME_BYTES_MAX;

use super::refusals::shown;

/// Refuses a series whose name with labels and `more` further bytes is too long for a tag.
pub(crate) fn check_series(name: &str, more: usize, labels: &[(&str, &str)]) -> Result<(), String> {
    let escapes = |value: &str| value.bytes().filter(|byte| matches!(byte, b'"' | b'\\')).count();
    // A label takes four bytes besides its text: the opening brace or a comma, the equals sign and two quotes. The
    // closing brace is counted below.
    let label_bytes: usize = labels.iter().map(|(label, value)| label.len() + value.len() + escapes(value) + 4).sum();
    let bytes = name.len() + more + label_bytes + usize::from(!labels.is_empty());
    if bytes > NAME_BYTES_MAX {
        let name = shown(name);
        return Err(format!(
            "the name of series {name} with its labels has {bytes} bytes, more than the {NAME_BYTES_MAX} of a tag name"
        ));
    }
    Ok(())
}

/// The tag name of a series with labels: `name{label="value",...}`, labels sorted by name.
pub(crate) fn series_name(name: &str, labels: &mut [(&str, &str)]) -> String {
    let mut out = name.to_owned();
    if labels.is_empty() {
        return out;
    }
    // A client may give labels in any order; sorted, they name the same tag.
    labels.sort_unstable();
    let mut open = '{';
    for (label, value) in labels.iter() {
        out.push(open);
        open = ',';
        out.push_str(label);
        out.push_str("=\"");
        for c in value.chars() {
            if matches!(c, '"' | '\\') {
                out.push('\\');
            }
            out.push(c);
        }
        out.push('"');
    }
    out.push('}');
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_name_has_at_most_so_many_bytes_with_all_that_belongs_to_it() {
        for more in [0, 1, 100] {
            let name = "n".repeat(NAME_BYTES_MAX - more);
            assert!(check_series(&name, more, &[]).is_ok());
            assert!(check_series(&name, more + 1, &[]).is_err());
            // One quote is escaped: {la="v\""} has ten bytes.
            let labels = [("la", "v\"")];
            assert!(check_series(&name[10..], more, &labels).is_ok());
            assert!(check_series(&name[9..], more, &labels).is_err());
            assert!(check_series(&name[5..], more, &[("", "")]).is_ok());
            assert!(check_series(&name[4..], more, &[("", "")]).is_err());
        }
    }

    #[test]
    fn labels_make_the_same_name_in_any_order() {
        assert_eq!(series_name("up", &mut []), "up");
        let name = r#"up{host="a\"b",job="x"}"#;
        assert_eq!(series_name("up", &mut [("job", "x"), ("host", "a\"b")]), name);
        assert_eq!(series_name("up", &mut [("host", "a\"b"), ("job", "x")]), name);
    }

    proptest! {
        #[test]
        fn a_series_is_refused_by_the_bytes_of_its_name(name in "[a-zé]{1,40}", labels in proptest::collection::vec(("[a-z]{0,60}", "[\"\\\\a]{0,99}"), 0..6)) {
            let mut labels: Vec<(&str, &str)> = labels.iter().map(|(label, value)| (&**label, &**value)).collect();
            let fits = check_series(&name, 0, &labels).is_ok();
            prop_assert_eq!(fits, series_name(&name, &mut labels).len() <= NAME_BYTES_MAX);
        }
    }
}
