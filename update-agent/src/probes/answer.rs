//! The output of a probe.

use std::str::FromStr;

use regex::Regex;
use serde::Serialize;

/// Maximum length of the output of a probe in bytes. A longer output is an error: its end could name
/// groups, and half of a text is a wrong fact.
pub const MAX_PROBE_OUTPUT_BYTES: usize = 64 << 10;

/// Beginning of a line that names a group.
const GROUP_PREFIX: &str = "group:";

/// The groups that probes may report.
#[derive(Clone, Debug)]
pub struct GroupAllowList(Regex);

impl GroupAllowList {
    /// Whether the regular expression matches the whole name.
    fn allows(&self, group: &str) -> bool {
        self.0.is_match(group)
    }
}

impl FromStr for GroupAllowList {
    type Err = regex::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        // On its own, so that parentheses of the expression cannot close the group below.
        Regex::new(text)?;
        Regex::new(&format!("^(?:{text})$")).map(Self)
    }
}

/// What a probe reports.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ProbeAnswer {
    /// Names of groups, each once, in the order of the output.
    pub groups: Vec<String>,
    /// All other lines.
    pub text: String,
}

/// Parses the output of a probe, in which the runner has replaced invalid UTF-8 by U+FFFD. Returns
/// the answer, and what was ignored or changed, for people.
///
/// A line `group:NAME` names a group: lower case, at the beginning of the line. The name ends at the
/// first white space, and white space before it is skipped. Such a line is not part of the text, even
/// if the group is not allowed. A line without a name is text.
pub fn parse_output(output: &str, allowed: &GroupAllowList) -> (ProbeAnswer, Vec<String>) {
    let mut answer = ProbeAnswer::default();
    let mut warnings = Vec::new();
    if output.contains(char::REPLACEMENT_CHARACTER) {
        warnings.push("the output contains U+FFFD, which replaces invalid UTF-8".to_owned());
    }
    let mut text = Vec::new();
    let mut refused = Vec::new();
    let mut has_unnamed_group = false;
    for line in output.split('\n') {
        let Some(rest) = line.strip_prefix(GROUP_PREFIX) else {
            text.push(line);
            continue;
        };
        let Some(group) = rest.split_whitespace().next() else {
            has_unnamed_group = true;
            text.push(line);
            continue;
        };
        // The runner may have replaced other bytes, so that the name is not the one that was meant.
        let is_allowed = allowed.allows(group) && !group.contains(char::REPLACEMENT_CHARACTER);
        let names = if is_allowed { &mut answer.groups } else { &mut refused };
        if !names.iter().any(|name| name == group) {
            names.push(group.to_owned());
        }
    }
    if has_unnamed_group {
        warnings.push("a line `group:` names no group; it is text".to_owned());
    }
    warnings.extend(refused.iter().map(|group| {
        let has_replacement = group.contains(char::REPLACEMENT_CHARACTER);
        let reason = if has_replacement { "contains U+FFFD" } else { "is not allowed" };
        format!("the group {group:?} {reason}")
    }));
    answer.text = text.join("\n");
    (answer, warnings)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn allow(regex: &str) -> GroupAllowList {
        regex.parse().unwrap()
    }

    fn parse(output: &str) -> (Vec<String>, String, Vec<String>) {
        let (answer, warnings) = parse_output(output, &allow(".*"));
        (answer.groups, answer.text, warnings)
    }

    #[test]
    fn lines_of_groups_are_not_part_of_the_text() {
        let cases: [(&str, &[&str], &str); 14] = [
            ("", &[], ""),
            ("hello\n", &[], "hello\n"),
            ("hello", &[], "hello"),
            ("group:a\n", &["a"], ""),
            ("group:a", &["a"], ""),
            ("one\ngroup:a\n\ntwo\ngroup:b\n", &["a", "b"], "one\n\ntwo\n"),
            ("group: \t a\n", &["a"], ""),
            ("group:a b\n", &["a"], ""),
            ("group:a:b\n", &["a:b"], ""),
            ("group:b\ngroup:a\ngroup:b\n", &["b", "a"], ""),
            ("group:a\r\nhello\r\n", &["a"], "hello\r\n"),
            (" group:a\n", &[], " group:a\n"),
            ("Group:a\nGROUP:a\n", &[], "Group:a\nGROUP:a\n"),
            ("groups:a\ngroup :a\ngroup\n", &[], "groups:a\ngroup :a\ngroup\n"),
        ];
        for (output, groups, text) in cases {
            assert_eq!(
                parse(output),
                (groups.iter().map(ToString::to_string).collect(), text.to_owned(), vec![]),
                "{output:?}"
            );
        }
    }

    #[test]
    fn a_line_without_a_name_is_text() {
        for output in ["group:\n", "group: \t\n", "group:\r\n", "group:\u{a0}\n"] {
            let (groups, text, warnings) = parse(output);
            assert_eq!((groups, text.as_str()), (vec![], output));
            assert_eq!(warnings, ["a line `group:` names no group; it is text"]);
        }
        // A name on the next line is not the name of the group.
        assert_eq!(parse("group:\nweb\n").0, Vec::<String>::new());
    }

    #[test]
    fn groups_that_are_not_allowed_are_dropped_with_one_warning_each() {
        let output = "group:web\ngroup:admin\ngroup:db\ngroup:admin\nhello\n";
        let (answer, warnings) = parse_output(output, &allow("web|db"));
        assert_eq!(
            answer,
            ProbeAnswer { groups: vec!["web".into(), "db".into()], text: "hello\n".into() }
        );
        assert_eq!(warnings, ["the group \"admin\" is not allowed"]);
    }

    #[test]
    fn the_allow_list_matches_the_whole_name() {
        let cases = [
            ("web", "web", true),
            ("web", "webserver", false),
            ("web", "myweb", false),
            ("web", "Web", false),
            ("web|db", "webdb", false),
            ("web|db", "db", true),
            ("web|webserver", "webserver", true),
            ("web-.*", "web-1", true),
            ("(?i)web", "WEB", true),
            ("^web$", "web", true),
            ("", "web", false),
        ];
        for (regex, group, is_allowed) in cases {
            assert_eq!(allow(regex).allows(group), is_allowed, "{regex} {group}");
        }
    }

    #[test]
    fn an_invalid_regular_expression_is_an_error() {
        // The last two are valid inside of a group only, or only without one.
        for regex in ["[", "(", "*", "a)|(?:b", "(?x)web # all servers"] {
            regex.parse::<GroupAllowList>().unwrap_err();
        }
    }

    #[test]
    fn replaced_bytes_are_reported_and_are_in_no_group() {
        let (groups, text, warnings) = parse("group:w\u{fffd}b\nhell\u{fffd}\n");
        assert_eq!((groups, text.as_str()), (vec![], "hell\u{fffd}\n"));
        let expected = [
            "the output contains U+FFFD, which replaces invalid UTF-8",
            "the group \"w\u{fffd}b\" contains U+FFFD",
        ];
        assert_eq!(warnings, expected);
    }

    proptest! {
        /// The rule as Bcfg2 has it: a regular expression for each line. Python also counts U+001C to
        /// U+001F as white space, but Bcfg2 cannot send them, because they are not allowed in XML.
        #[test]
        fn lines_are_parsed_as_in_bcfg2(parts in prop::collection::vec(
            prop_oneof![
                Just("group:"), Just("group"), Just(":"), Just(" "), Just("\t"), Just("\r"),
                Just("\n"), Just("web"), Just("db"), Just("\u{a0}"), Just("ä"), Just("\0"),
            ],
            0..40,
        )) {
            let output = parts.concat();
            let rule = Regex::new(r"^group:\s*(\S+)").unwrap();
            let mut groups = Vec::new();
            let mut text = Vec::new();
            for line in output.split('\n') {
                match rule.captures(line) {
                    Some(found) if groups.contains(&found[1].to_owned()) => {}
                    Some(found) => groups.push(found[1].to_owned()),
                    None => text.push(line),
                }
            }
            let (answer, _) = parse_output(&output, &allow(".*"));
            prop_assert_eq!(answer, ProbeAnswer { groups, text: text.join("\n") });
        }
    }
}
