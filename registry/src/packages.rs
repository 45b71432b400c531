//! Package lists, which are published with an image.

pub(crate) mod strict_json;

use std::{fmt, mem};

use serde::de::{Deserialize, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::finding::{Finding, FindingKind};
use crate::foreign::foreign_format;

/// Largest list, in bytes.
pub const MAX_LIST_BYTES: usize = 16 * 1024 * 1024;

/// Maximum number of packages in a list.
pub const MAX_PACKAGES: usize = 100_000;

/// Packages that are installed on a node in addition to its image: our agent and the agents of EIM.
/// They are not part of the operating system, although lists of installed packages may contain
/// them.
pub const AGENT_PACKAGES: &[&str] = &[
    "evenkeel-agent",
    // Reports heartbeats and hardware.
    "hardware-discovery-agent",
    // Installed by EIM's update agent.
    "in-band-manageability",
    "node-agent",
    "platform-update-agent",
];

/// Reads a package list and converts it to EIM's format, `{"repo":[{"name":…,"version":…}]}`.
///
/// A list in EIM's format is not changed, except that a byte order mark is removed. The lists of
/// Debian and Ubuntu, one package and its version per line, are converted, without the
/// [`AGENT_PACKAGES`].
///
/// # Errors
/// The list has none of these formats, or it is too large.
pub fn read_packages(body: &[u8]) -> Result<String, Finding> {
    if body.len() > MAX_LIST_BYTES {
        let message = format!("the package list is larger than {MAX_LIST_BYTES} bytes");
        return Err(Finding::new(FindingKind::TooLarge, message));
    }
    let text =
        str::from_utf8(body).map_err(|error| invalid_list(format!("it is not UTF-8: {error}")))?;
    // Some editors write a byte order mark at the start of a text.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    match text.trim_start().chars().next() {
        None => Err(invalid_list("it is empty")),
        Some('<') => Err(invalid_format(text).unwrap_or_else(|| invalid_list("it is a web page"))),
        Some('{') => {
            let list = serde_json::from_str::<PackageList>(text);
            let list =
                list.map_err(|error| invalid_format(text).unwrap_or_else(|| invalid_list(error)))?;
            if matches!(list.repo, PackageCount(0)) {
                return Err(invalid_list("it has no packages"));
            }
            strict_json::check_json(text).map_err(invalid_list)?;
            Ok(text.to_owned())
        }
        Some(_) => match invalid_format(text) {
            Some(finding) => Err(finding),
            None => convert_dpkg_lines(text),
        },
    }
}

/// The finding for a list in the format of another tool.
fn invalid_format(text: &str) -> Option<Finding> {
    let format = foreign_format(text)?;
    let why =
        format!("it is {format}; EIM's list and lines with names and versions are understood");
    Some(invalid_list(why))
}

fn invalid_list(why: impl fmt::Display) -> Finding {
    Finding::new(FindingKind::Packages, format!("the package list cannot be used: {why}"))
}

#[derive(serde::Deserialize)]
struct PackageList {
    repo: PackageCount,
}

/// Number of packages. They are checked one by one and not stored.
struct PackageCount(usize);

/// A package with a name and a version. Other fields are ignored.
struct PackageEntry;

impl<'de> Deserialize<'de> for PackageEntry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(PackageEntryVisitor)
    }
}

struct PackageEntryVisitor;

impl<'de> Visitor<'de> for PackageEntryVisitor {
    type Value = PackageEntry;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a package")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<PackageEntry, A::Error> {
        let (mut name, mut version) = (false, false);
        while let Some(key) = fields.next_key::<String>()? {
            let (is_present, field) = match key.as_str() {
                "name" => (&mut name, "name"),
                "version" => (&mut version, "version"),
                _ => {
                    fields.next_value::<IgnoredAny>()?;
                    continue;
                }
            };
            if mem::replace(is_present, true) {
                return Err(A::Error::duplicate_field(field));
            }
            let text: String = fields.next_value()?;
            if text.is_empty() || text.contains(char::is_control) {
                return Err(A::Error::custom(format!(
                    "the {field} of a package is empty or has control characters"
                )));
            }
        }
        match (name, version) {
            (true, true) => Ok(PackageEntry),
            (false, _) => Err(A::Error::missing_field("name")),
            (true, false) => Err(A::Error::missing_field("version")),
        }
    }
}

impl<'de> Deserialize<'de> for PackageCount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(PackageCountVisitor)
    }
}

struct PackageCountVisitor;

impl<'de> Visitor<'de> for PackageCountVisitor {
    type Value = PackageCount;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of packages")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut packages: A) -> Result<PackageCount, A::Error> {
        let mut count = 0;
        while let Some(PackageEntry) = packages.next_element()? {
            count += 1;
            if count > MAX_PACKAGES {
                return Err(A::Error::custom(format!("more than {MAX_PACKAGES} packages")));
            }
        }
        Ok(PackageCount(count))
    }
}

/// Converts lines with `name[:architecture]` and a version, as `dpkg-query --show` prints them.
fn convert_dpkg_lines(text: &str) -> Result<String, Finding> {
    let mut json = String::with_capacity(text.len().saturating_mul(2).min(MAX_LIST_BYTES));
    let mut count = 0_usize;
    let mut last: Option<(&str, &str)> = None;
    for (at, line) in text.lines().enumerate() {
        let mut columns = line.split_whitespace();
        let package = match (columns.next(), columns.next(), columns.next()) {
            (None, ..) => continue,
            // Lists of cloud images also have the snaps, which dpkg does not know.
            (Some(name), ..) if name.starts_with("snap:") => continue,
            (Some(name), Some(version), None) => parse_package(name, version),
            _ => None,
        };
        let Some(package) = package else {
            return Err(invalid_list(format!(
                "line {} is not a package name and a version",
                at + 1
            )));
        };
        // The list has no architectures, so a package for two of them is listed once.
        if AGENT_PACKAGES.contains(&package.0) || last == Some(package) {
            continue;
        }
        json.push_str(if count == 0 { r#"{"repo":[{"name":""# } else { r#",{"name":""# });
        for part in [package.0, r#"","version":""#, package.1, r#""}"#] {
            json.push_str(part);
        }
        last = Some(package);
        count += 1;
        if count > MAX_PACKAGES {
            return Err(invalid_list(format!("more than {MAX_PACKAGES} packages")));
        }
    }
    if count == 0 {
        return Err(invalid_list("it has no packages"));
    }
    json.push_str("]}");
    Ok(json)
}

/// Name without architecture, and version, if both are valid for Debian. Neither needs escaping in
/// JSON.
fn parse_package<'a>(name: &'a str, version: &'a str) -> Option<(&'a str, &'a str)> {
    let (name, architecture) = name.split_once(':').unwrap_or((name, "all"));
    let is_made_of = |text: &str, besides: &[u8]| {
        text.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric())
            && text.len() <= 256
            && text.bytes().all(|b| b.is_ascii_alphanumeric() || besides.contains(&b))
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
        fn lines_of_dpkg_and_the_list_agree(
            packages_in in prop::collection::vec(("[a-z][a-z0-9+.-]{1,12}", "[0-9]:[0-9a-z.+~-]{1,12}"), 1..20),
        ) {
            let packages_in: Vec<_> = packages_in.into_iter().filter(|(name, _)| !AGENT_PACKAGES.contains(&name.as_str())).collect();
            prop_assume!(!packages_in.is_empty());
            let lines: Vec<_> = packages_in.iter().map(|(name, version)| format!("{name}:amd64\t{version}")).collect();
            let lines = lines.join("\n");
            let list = read_packages(lines.as_bytes()).unwrap();
            let json: serde_json::Value = serde_json::from_str(&list).unwrap();
            let text = |one: &serde_json::Value, key: &str| one[key].as_str().unwrap_or_default().to_owned();
            let read = json["repo"].as_array().unwrap().iter();
            let read: Vec<_> = read.map(|one| (text(one, "name"), text(one, "version"))).collect();
            let mut once = packages_in.clone();
            once.dedup();
            prop_assert_eq!(read, once);
            // A list in EIM's format is not changed.
            prop_assert_eq!(read_packages(list.as_bytes()).unwrap(), list);
        }
    }

    #[test]
    fn the_formats_of_other_tools_are_named() {
        for (body, format) in [
            (r#"{"bomFormat":"CycloneDX","components":[]}"#, "a CycloneDX document"),
            (r#"{"spdxVersion":"SPDX-2.3","packages":[]}"#, "an SPDX document"),
            ("SPDXVersion: SPDX-2.3\nPackageName: curl", "an SPDX document"),
            ("<bom xmlns=\"http://cyclonedx.org/schema/bom/1.5\"/>", "a CycloneDX document"),
            (r#"{"SchemaVersion":2,"ArtifactName":"x"}"#, "a report of trivy"),
        ] {
            let finding = read_packages(body.as_bytes()).expect_err(body);
            let expected = format!("the package list cannot be used: it is {format}; ");
            assert!(finding.message.starts_with(&expected), "{body}: {finding}");
        }
    }

    #[test]
    fn an_eim_list_is_not_changed() {
        let list = "{ \"repo\": [\n  {\"name\": \"a b\",\t\"version\": \"1 \", \"arch\": null} ], \"more\": {} }\n";
        assert_eq!(read_packages(list.as_bytes()).unwrap(), list);
    }

    #[test]
    fn a_byte_order_mark_is_no_part_of_a_list() {
        let list = "{\"repo\":[{\"name\":\"adduser\",\"version\":\"1\"}]}";
        let marked = format!("\u{feff}{list}");
        assert_eq!(read_packages(marked.as_bytes()).unwrap(), list);
        assert_eq!(read_packages("\u{feff}adduser\t1\n".as_bytes()).unwrap(), list);
        let page = read_packages("\u{feff}<html></html>".as_bytes()).unwrap_err();
        assert!(page.message.contains("web page"), "{page}");
        let nothing = read_packages("\u{feff}".as_bytes()).unwrap_err();
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
                let finding = read_packages(list.as_bytes()).expect_err(&list);
                assert_eq!(finding.kind, FindingKind::Packages);
                assert!(finding.message.contains(why), "{list}: {finding}");
            }
        }
    }

    #[test]
    fn only_agent_packages_are_left_out() {
        let agents: Vec<_> = AGENT_PACKAGES.iter().map(|name| format!("{name}\t1\n")).collect();
        // Packages of distributions with similar names.
        let own = "caddy\t2\nmqtt\t1\nreporting-agent\t1\ntpm-provision\t1\ntrtl\t1\n";
        let list = read_packages((agents.concat() + own).as_bytes()).unwrap();
        assert_eq!(list, read_packages(own.as_bytes()).unwrap());
        assert_eq!(list.matches("\"name\":").count(), 5, "{list}");
    }

    #[test]
    fn lines_of_dpkg_become_a_list() {
        let lines = "adduser\t3.118ubuntu5\nlibc6:amd64\t2.35-0ubuntu3.9\r\nlibc6:i386\t2.35-0ubuntu3.9\n\n\
                     node-agent\t1.5.2\nsnap:lxd\t5.0/stable/ubuntu-22.04\t24322\nzlib1g  1:1.2.11~dfsg-2+b1\n";
        assert_eq!(
            read_packages(lines.as_bytes()).unwrap(),
            r#"{"repo":[{"name":"adduser","version":"3.118ubuntu5"},{"name":"libc6","version":"2.35-0ubuntu3.9"},{"name":"zlib1g","version":"1:1.2.11~dfsg-2+b1"}]}"#
        );
    }

    #[test]
    fn an_invalid_list_is_refused_with_a_reason() {
        for (body, why) in [
            ("", "it is empty"),
            ("  <!DOCTYPE html><html></html>", "web page"),
            ("{\"repo\":[]}", "no packages"),
            ("{\"repos\":[]}", "missing field `repo`"),
            ("{\"repo\":[{\"name\":\"a\"}]}", "missing field `version`"),
            ("{\"repo\":[{\"name\":\"\",\"version\":\"1\"}]}", "the name of a package"),
            ("{\"repo\":[{\"name\":\"a\\u0000\",\"version\":\"1\"}]}", "the name of a package"),
            ("{\"repo\":[{\"name\":\"a\",\"version\":1}]}", "invalid type"),
            ("{\"repo\":[{\"name\":\"a\",\"name\":\"b\",\"version\":\"1\"}]}", "duplicate"),
            ("{\"repo\":[{\"name\":\"a\",\"version\":\"1\"}]} x", "trailing"),
            ("[]", "line 1"),
            ("{\"repo\":[[\"a\",\"1\"]]}", "invalid type"),
            ("adduser\t1\nwhat is this", "line 2"),
            ("adduser", "line 1"),
            ("add\"user\t1", "line 1"),
            ("node-agent\t1\n", "no packages"),
        ] {
            let finding = read_packages(body.as_bytes()).expect_err(body);
            assert_eq!(finding.kind, FindingKind::Packages);
            assert!(finding.message.contains(why), "{body}: {finding}");
        }
        assert!(read_packages(b"\xff\xfe").unwrap_err().message.contains("UTF-8"));
    }

    #[test]
    fn a_list_has_a_largest_size() {
        let large = vec![b' '; MAX_LIST_BYTES + 1];
        assert_eq!(read_packages(&large).unwrap_err().kind, FindingKind::TooLarge);
        let package = "{\"name\":\"a\",\"version\":\"1\"},";
        let long = format!("{{\"repo\":[{}", package.repeat(MAX_PACKAGES + 1));
        let finding = read_packages(long.as_bytes()).unwrap_err();
        assert!(finding.message.contains("more than"), "{finding}");
        let lines = "adduser\t1\nzlib1g\t1\n".repeat(MAX_PACKAGES);
        let finding = read_packages(lines.as_bytes()).unwrap_err();
        assert!(finding.message.contains("more than"), "{finding}");
    }
}
