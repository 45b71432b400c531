//! What is installed in an image: the list of packages that is published with it.

pub(crate) mod kept;

use std::{fmt, mem};

use serde::de::{Deserialize, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::finding::{Finding, FindingKind};

/// The largest list, in bytes.
pub const MAX_BYTES: usize = 16 * 1024 * 1024;

/// The longest list.
pub const MAX_PACKAGES: usize = 100_000;

/// What is put on a node besides its image, so that it is no part of the operating system although lists of installed
/// packages may name it (design 002, E8): our agent, and what the southbound reference names of the ancestor's.
pub const AGENTS: &[&str] = &[
    "evenkeel-agent",
    // Section 2: heartbeats and hardware.
    "hardware-discovery-agent",
    // Section 3.7, step 3: what the update agent has installed beside itself.
    "in-band-manageability",
    // Sections 2 and 3.1.
    "node-agent",
    // Sections 3.1 and 3.7, step 2.
    "platform-update-agent",
];

/// The list of packages of an image as the ancestor writes it, `{"repo":[{"name":…,"version":…}]}`. One in that form
/// stays as it is, byte for byte, but for a byte order mark before it; the lists of Debian and Ubuntu, one package and its
/// version a line, are brought to it, without the [`AGENTS`].
///
/// # Errors
/// It is neither, or too large.
pub fn packages(body: &[u8]) -> Result<String, Finding> {
    if body.len() > MAX_BYTES {
        let message = format!("the list of packages is larger than {MAX_BYTES} bytes");
        return Err(Finding::new(FindingKind::TooLarge, message));
    }
    let text = str::from_utf8(body).map_err(|error| bad(format!("it is not UTF-8: {error}")))?;
    // Some editors put a byte order mark before a text. It is no part of it.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    match text.trim_start().chars().next() {
        None => Err(bad("it is empty")),
        Some('<') => Err(bad("it is a web page")),
        Some('{') => {
            let list: List = serde_json::from_str(text).map_err(bad)?;
            if matches!(list.repo, Count(0)) {
                return Err(bad("it has no packages"));
            }
            kept::check(text).map_err(bad)?;
            Ok(text.to_owned())
        }
        Some(_) => of_lines(text),
    }
}

fn bad(why: impl fmt::Display) -> Finding {
    Finding::new(
        FindingKind::Packages,
        format!("the list of packages cannot be used: {why}"),
    )
}

#[derive(serde::Deserialize)]
struct List {
    repo: Count,
}

/// How many packages there are. They are looked at one by one and not kept.
struct Count(usize);

/// A package with a name and a version; what else is said of it is not looked at.
struct Package;

impl<'de> Deserialize<'de> for Package {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(OnePackage)
    }
}

struct OnePackage;

impl<'de> Visitor<'de> for OnePackage {
    type Value = Package;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a package")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Package, A::Error> {
        let (mut name, mut version) = (false, false);
        while let Some(key) = fields.next_key::<String>()? {
            let (seen, field) = match key.as_str() {
                "name" => (&mut name, "name"),
                "version" => (&mut version, "version"),
                _ => {
                    fields.next_value::<IgnoredAny>()?;
                    continue;
                }
            };
            if mem::replace(seen, true) {
                return Err(A::Error::duplicate_field(field));
            }
            let text: String = fields.next_value()?;
            if text.is_empty() || text.contains(char::is_control) {
                return Err(A::Error::custom(format!(
                    "the {field} of a package is no text"
                )));
            }
        }
        match (name, version) {
            (true, true) => Ok(Package),
            (false, _) => Err(A::Error::missing_field("name")),
            (true, false) => Err(A::Error::missing_field("version")),
        }
    }
}

impl<'de> Deserialize<'de> for Count {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(Counter)
    }
}

struct Counter;

impl<'de> Visitor<'de> for Counter {
    type Value = Count;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of packages")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut packages: A) -> Result<Count, A::Error> {
        let mut count = 0;
        while let Some(Package) = packages.next_element()? {
            count += 1;
            if count > MAX_PACKAGES {
                return Err(A::Error::custom(format!(
                    "more than {MAX_PACKAGES} packages"
                )));
            }
        }
        Ok(Count(count))
    }
}

/// Reads `name[:architecture]` and a version a line, as `dpkg-query --show` writes them.
fn of_lines(text: &str) -> Result<String, Finding> {
    let mut json = String::with_capacity(text.len().saturating_mul(2).min(MAX_BYTES));
    let mut count = 0_usize;
    let mut last: Option<(&str, &str)> = None;
    for (at, line) in text.lines().enumerate() {
        let mut words = line.split_whitespace();
        let package = match (words.next(), words.next(), words.next()) {
            (None, ..) => continue,
            // Cloud images name their snaps too; dpkg knows nothing of them.
            (Some(name), ..) if name.starts_with("snap:") => continue,
            (Some(name), Some(version), None) => read_package(name, version),
            _ => None,
        };
        let Some(package) = package else {
            return Err(bad(format!(
                "line {} is no package and its version",
                at + 1
            )));
        };
        // One package for two architectures is one package of a list that knows none.
        if AGENTS.contains(&package.0) || last == Some(package) {
            continue;
        }
        json.push_str(if count == 0 {
            r#"{"repo":[{"name":""#
        } else {
            r#",{"name":""#
        });
        for part in [package.0, r#"","version":""#, package.1, r#""}"#] {
            json.push_str(part);
        }
        last = Some(package);
        count += 1;
        if count > MAX_PACKAGES {
            return Err(bad(format!("more than {MAX_PACKAGES} packages")));
        }
    }
    if count == 0 {
        return Err(bad("it has no packages"));
    }
    json.push_str("]}");
    Ok(json)
}

/// A package without its architecture, if both texts are what Debian allows. So neither needs an escape in JSON.
fn read_package<'a>(name: &'a str, version: &'a str) -> Option<(&'a str, &'a str)> {
    let (name, architecture) = name.split_once(':').unwrap_or((name, "all"));
    let is_made_of = |text: &str, besides: &[u8]| {
        text.bytes()
            .next()
            .is_some_and(|b| b.is_ascii_alphanumeric())
            && text.len() <= 256
            && text
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || besides.contains(&b))
    };
    let is_package = is_made_of(name, b"+-._")
        && is_made_of(architecture, b"-")
        && is_made_of(version, b"+-.~:_");
    is_package.then_some((name, version))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_dpkg_says_is_what_the_list_says(
            said in prop::collection::vec(("[a-z][a-z0-9+.-]{1,12}", "[0-9]:[0-9a-z.+~-]{1,12}"), 1..20),
        ) {
            let said: Vec<_> = said.into_iter().filter(|(name, _)| !AGENTS.contains(&name.as_str())).collect();
            prop_assume!(!said.is_empty());
            let lines: Vec<_> = said.iter().map(|(name, version)| format!("{name}:amd64\t{version}")).collect();
            let lines = lines.join("\n");
            let list = packages(lines.as_bytes()).unwrap();
            let json: serde_json::Value = serde_json::from_str(&list).unwrap();
            let text = |one: &serde_json::Value, key: &str| one[key].as_str().unwrap_or_default().to_owned();
            let read = json["repo"].as_array().unwrap().iter();
            let read: Vec<_> = read.map(|one| (text(one, "name"), text(one, "version"))).collect();
            let mut once = said.clone();
            once.dedup();
            prop_assert_eq!(read, once);
            // A list that is in the form already stays as it is.
            prop_assert_eq!(packages(list.as_bytes()).unwrap(), list);
        }
    }

    #[test]
    fn the_ancestors_list_stays_as_it_is() {
        let list = "{ \"repo\": [\n  {\"name\": \"a b\",\t\"version\": \"1 \", \"arch\": null} ], \"more\": {} }\n";
        assert_eq!(packages(list.as_bytes()).unwrap(), list);
    }

    #[test]
    fn a_byte_order_mark_is_no_part_of_a_list() {
        let list = "{\"repo\":[{\"name\":\"adduser\",\"version\":\"1\"}]}";
        let marked = format!("\u{feff}{list}");
        assert_eq!(packages(marked.as_bytes()).unwrap(), list);
        assert_eq!(packages("\u{feff}adduser\t1\n".as_bytes()).unwrap(), list);
        let page = packages("\u{feff}<html></html>".as_bytes()).unwrap_err();
        assert!(page.message.contains("web page"), "{page}");
        let nothing = packages("\u{feff}".as_bytes()).unwrap_err();
        assert!(nothing.message.contains("empty"), "{nothing}");
    }

    #[test]
    fn a_list_that_later_readers_refuse_is_refused() {
        let deep = format!("{}{}", "[".repeat(200), "]".repeat(200));
        for (value, why) in [
            (deep.as_str(), "recursion limit"),
            (r#""\ud800""#, "hex escape"),
            ("1e999", "out of range"),
            (r#"{"\u0000":1}"#, "zero byte"),
        ] {
            let of_package = format!(r#"{{"repo":[{{"name":"a","version":"1","more":{value}}}]}}"#);
            let of_list = format!(r#"{{"repo":[{{"name":"a","version":"1"}}],"more":{value}}}"#);
            for list in [of_package, of_list] {
                let finding = packages(list.as_bytes()).expect_err(&list);
                assert_eq!(finding.kind, FindingKind::Packages);
                assert!(finding.message.contains(why), "{list}: {finding}");
            }
        }
    }

    #[test]
    fn only_what_is_known_to_be_put_on_nodes_is_left_out() {
        let agents: Vec<_> = AGENTS.iter().map(|name| format!("{name}\t1\n")).collect();
        // Distributions have these, or might.
        let own = "caddy\t2\nmqtt\t1\nreporting-agent\t1\ntpm-provision\t1\ntrtl\t1\n";
        let list = packages((agents.concat() + own).as_bytes()).unwrap();
        assert_eq!(list, packages(own.as_bytes()).unwrap());
        assert_eq!(list.matches("\"name\":").count(), 5, "{list}");
    }

    #[test]
    fn lines_of_dpkg_become_a_list() {
        let lines = "adduser\t3.118ubuntu5\nlibc6:amd64\t2.35-0ubuntu3.9\r\nlibc6:i386\t2.35-0ubuntu3.9\n\n\
                     node-agent\t1.5.2\nsnap:lxd\t5.0/stable/ubuntu-22.04\t24322\nzlib1g  1:1.2.11~dfsg-2+b1\n";
        assert_eq!(
            packages(lines.as_bytes()).unwrap(),
            r#"{"repo":[{"name":"adduser","version":"3.118ubuntu5"},{"name":"libc6","version":"2.35-0ubuntu3.9"},{"name":"zlib1g","version":"1:1.2.11~dfsg-2+b1"}]}"#
        );
    }

    #[test]
    fn what_is_no_list_is_refused_with_a_reason() {
        for (body, why) in [
            ("", "it is empty"),
            ("  <!DOCTYPE html><html></html>", "web page"),
            ("{\"repo\":[]}", "no packages"),
            ("{\"repos\":[]}", "missing field `repo`"),
            ("{\"repo\":[{\"name\":\"a\"}]}", "missing field `version`"),
            (
                "{\"repo\":[{\"name\":\"\",\"version\":\"1\"}]}",
                "the name of a package",
            ),
            (
                "{\"repo\":[{\"name\":\"a\\u0000\",\"version\":\"1\"}]}",
                "the name of a package",
            ),
            (
                "{\"repo\":[{\"name\":\"a\",\"version\":1}]}",
                "invalid type",
            ),
            (
                "{\"repo\":[{\"name\":\"a\",\"name\":\"b\",\"version\":\"1\"}]}",
                "duplicate",
            ),
            (
                "{\"repo\":[{\"name\":\"a\",\"version\":\"1\"}]} x",
                "trailing",
            ),
            ("[]", "line 1"),
            ("{\"repo\":[[\"a\",\"1\"]]}", "invalid type"),
            ("adduser\t1\nwhat is this", "line 2"),
            ("adduser", "line 1"),
            ("add\"user\t1", "line 1"),
            ("node-agent\t1\n", "no packages"),
        ] {
            let finding = packages(body.as_bytes()).expect_err(body);
            assert_eq!(finding.kind, FindingKind::Packages);
            assert!(finding.message.contains(why), "{body}: {finding}");
        }
        assert!(packages(b"\xff\xfe").unwrap_err().message.contains("UTF-8"));
    }

    #[test]
    fn a_list_has_a_largest_size() {
        let large = vec![b' '; MAX_BYTES + 1];
        assert_eq!(packages(&large).unwrap_err().kind, FindingKind::TooLarge);
        let package = "{\"name\":\"a\",\"version\":\"1\"},";
        let long = format!("{{\"repo\":[{}", package.repeat(MAX_PACKAGES + 1));
        let finding = packages(long.as_bytes()).unwrap_err();
        assert!(finding.message.contains("more than"), "{finding}");
        let lines = "adduser\t1\nzlib1g\t1\n".repeat(MAX_PACKAGES);
        let finding = packages(lines.as_bytes()).unwrap_err();
        assert!(finding.message.contains("more than"), "{finding}");
    }
}
