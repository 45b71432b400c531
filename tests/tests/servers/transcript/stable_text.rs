//! Replaces the parts of a text that differ each time.

use std::collections::HashMap;
use std::fmt::Write as _;

/// Prefixes of IDs, before the dash.
const ID_PREFIXES: [&str; 13] = [
    "region",
    "site",
    "host",
    "inst",
    "os",
    "osupdatepolicy",
    "osupdaterun",
    "singlesche",
    "repeatedsche",
    "jointoken",
    "provider",
    "customconfig",
    "localaccount",
];

/// Replaces IDs and times; columns keep their width.
pub fn stabilize(text: &str) -> String {
    let mut ids: HashMap<String, usize> = HashMap::new();
    let mut counts: HashMap<&str, usize> = HashMap::new();
    let mut steady = String::new();
    let mut rest = text;
    while let Some(letter) = rest.chars().next() {
        let is_inside = steady.ends_with(|before: char| before.is_ascii_alphanumeric());
        let id = ID_PREFIXES.iter().find_map(|kind| {
            let id = rest.get(..kind.len() + 9)?;
            let digits = id.strip_prefix(kind)?.strip_prefix('-')?;
            let is_id = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
            (is_id && !is_inside).then_some((*kind, id))
        });
        if let Some((kind, id)) = id {
            let nth = *ids.entry(id.to_owned()).or_insert_with(|| {
                let count = counts.entry(kind).or_default();
                *count += 1;
                *count
            });
            write!(steady, "{kind}-{nth:08x}").expect("a string accepts everything");
            rest = &rest[id.len()..];
        } else if starts_with_shape(rest, "dddd-dd-ddTdd:dd:ddZ") {
            steady.push_str("YYYY-MM-DDThh:mm:ssZ");
            rest = &rest[20..];
        } else if starts_with_shape(rest, "dddddddd-dddddd ")
            || starts_with_shape(rest, "dddddddd-dddddd\n")
        {
            steady.push_str("YYYYMMDD-hhmmss");
            rest = &rest[15..];
        } else if rest.starts_with("closes in ") {
            steady.push_str("closes in a while");
            rest = &rest[rest.find('\n').unwrap_or(rest.len())..];
        } else {
            steady.push(letter);
            rest = &rest[letter.len_utf8()..];
        }
    }
    steady.lines().map(hide_age).collect()
}

/// Replaces an age at the end of a line.
fn hide_age(line: &str) -> String {
    let is_number =
        |text: &str| !text.is_empty() && text.bytes().all(|digit| digit.is_ascii_digit());
    match line.rsplit_once("  ") {
        Some((before, age)) if age.strip_suffix(['s', 'm']).is_some_and(is_number) => {
            format!("{before}  0s\n")
        }
        _ => format!("{line}\n"),
    }
}

/// Whether a text begins with a shape, in which `d` is any digit and other characters are literal.
fn starts_with_shape(text: &str, shape: &str) -> bool {
    let mut letters = text.chars();
    shape.chars().all(|expected| {
        letters.next().is_some_and(|actual| match expected {
            'd' => actual.is_ascii_digit(),
            other => actual == other,
        })
    })
}

#[test]
fn variable_parts_are_replaced() {
    let text = "host-0a1b2c3d  2026-03-01T12:00:00Z\nhost-00000007  x update 20260301-120000\nhost-0a1b2c3d closes in 59m\nhosts  12s\n";
    let expected = "host-00000001  YYYY-MM-DDThh:mm:ssZ\nhost-00000002  x update YYYYMMDD-hhmmss\nhost-00000001 closes in a while\nhosts  0s\n";
    assert_eq!(stabilize(text), expected);
}
