//! Rules of packages and their sources.

use std::collections::BTreeMap;

use super::{ErrorList, child_path, excerpt, short};
use crate::document::{PackageSourceState, PackageState};

/// Longest name of a package; dpkg has no limit.
const MAX_PACKAGE_NAME_BYTES: usize = 128;

const MAX_VERSION_BYTES: usize = 256;

const MAX_SOURCE_ID_BYTES: usize = 64;

const MAX_SOURCE_BYTES: usize = 64 << 10;

const REQUIRED_SOURCE_FIELDS: [&str; 3] = ["types", "uris", "suites"];

const KEY_HEADER: &str = "-----BEGIN PGP PUBLIC KEY BLOCK-----";
const KEY_FOOTER: &str = "-----END PGP PUBLIC KEY BLOCK-----";

/// Name as in Debian Policy 5.6.1, and optionally `:architecture`.
pub(super) fn check_name(path: &str, text: &str, errors: &mut ErrorList) {
    let (name, architecture) = text.split_once(':').unwrap_or((text, "any"));
    let is_lower = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let is_name = (2..=MAX_PACKAGE_NAME_BYTES).contains(&name.len())
        && name.bytes().all(|b| is_lower(b) || b"+-.".contains(&b))
        && name.bytes().next().is_some_and(is_lower);
    let is_architecture = !architecture.is_empty()
        && architecture.bytes().all(|b| is_lower(b) || b == b'-')
        && !architecture.starts_with('-');
    if !is_name || !is_architecture {
        errors.add(
            path,
            format!(
                "{} is not the name of a package; accepted are at least two of a-z, 0-9, \"+\", \
                 \"-\" and \".\", such as libssl3, and optionally an architecture: libssl3:amd64",
                excerpt(text)
            ),
        );
    }
}

pub(super) fn check_desired_version(path: &str, version: &str, errors: &mut ErrorList) {
    let is_word = matches!(version, PackageState::ANY | PackageState::ABSENT);
    if !is_word && !is_version(version) {
        errors.add(
            &child_path(path, "version"),
            format!(
                "{} is not a version; accepted are any, absent, and a version of Debian, such as \
                 1:2.3-4",
                excerpt(version)
            ),
        );
    }
}

/// A version as in deb-version(7): `[epoch:]upstream[-revision]`.
fn is_version(text: &str) -> bool {
    let (epoch, rest) = text.split_once(':').unwrap_or(("0", text));
    let (upstream, revision) = rest.rsplit_once('-').unwrap_or((rest, "0"));
    let is_common = |b: u8| b.is_ascii_alphanumeric() || b"+.~".contains(&b);
    text.len() <= MAX_VERSION_BYTES
        && !epoch.is_empty()
        && epoch.bytes().all(|b| b.is_ascii_digit())
        && epoch.parse::<i32>().is_ok()
        && upstream.bytes().next().is_some_and(|b| b.is_ascii_digit())
        && upstream.bytes().all(|b| is_common(b) || b"-:".contains(&b))
        && !revision.is_empty()
        && revision.bytes().all(is_common)
}

/// A source has a file of this name in `/etc/apt/sources.list.d`.
pub(super) fn check_source_id(path: &str, id: &str, errors: &mut ErrorList) {
    let is_good = (1..=MAX_SOURCE_ID_BYTES).contains(&id.len())
        && id.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
        && id.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric());
    if !is_good {
        errors.add(
            path,
            format!(
                "{} is not the id of a source; accepted are at most {MAX_SOURCE_ID_BYTES} letters, \
                 digits, \"-\", \"_\" and \".\", with a letter or digit first",
                excerpt(id)
            ),
        );
    }
}

pub(super) fn check_source(path: &str, state: &PackageSourceState, errors: &mut ErrorList) {
    if let Err(message) = check_stanza(&state.source) {
        errors.add(&child_path(path, "source"), message);
    }
    if let Some(key) = &state.key {
        let key = key.trim();
        let is_text =
            key.bytes().all(|b| b == b' ' || b.is_ascii_graphic() || b"\t\r\n".contains(&b));
        if !key.starts_with(KEY_HEADER) || !key.ends_with(KEY_FOOTER) || !is_text {
            let message = format!("is not an armoured OpenPGP key; it begins with {KEY_HEADER}");
            errors.add(&child_path(path, "key"), message);
        }
    }
}

/// Checks that a source is one stanza of deb822(5) without `Signed-By`. The agent checks the
/// meaning of the fields.
fn check_stanza(source: &str) -> Result<(), String> {
    if source.len() > MAX_SOURCE_BYTES {
        return Err(format!("is longer than {MAX_SOURCE_BYTES} bytes"));
    }
    if source.chars().any(|c| c.is_control() && c != '\n' && c != '\t') {
        return Err("has a control character; remove it".to_owned());
    }
    let fields = parse_stanza(source)?;
    if fields.contains_key("signed-by") {
        return Err(
            "has the field Signed-By; write the key in the field \"key\" instead".to_owned()
        );
    }
    for field in REQUIRED_SOURCE_FIELDS {
        if fields.get(field).is_none_or(|value| value.trim().is_empty()) {
            return Err(format!(
                "has no {field}; write a stanza with Types, URIs, Suites and Components"
            ));
        }
    }
    Ok(())
}

/// The fields of a stanza by their names in lower case.
fn parse_stanza(source: &str) -> Result<BTreeMap<String, String>, String> {
    let mut fields: BTreeMap<String, String> = BTreeMap::new();
    let mut last = None;
    for line in source.trim().lines().filter(|line| !line.starts_with('#')) {
        if line.trim().is_empty() {
            return Err("has an empty line; write each stanza as a source of its own".to_owned());
        }
        if line.starts_with([' ', '\t']) {
            let field = last.as_ref().and_then(|name| fields.get_mut(name));
            field.ok_or("begins in the middle of a field")?.push_str(line);
            continue;
        }
        let not_a_field = || {
            format!("the line {} is not a field; write deb822, such as Types: deb", excerpt(line))
        };
        let (name, value) = line.split_once(':').ok_or_else(not_a_field)?;
        if name.is_empty() || name.bytes().any(|b| !b.is_ascii_alphanumeric() && b != b'-') {
            return Err(not_a_field());
        }
        let name = name.to_ascii_lowercase();
        if fields.insert(name.clone(), value.to_owned()).is_some() {
            return Err(format!("has the field {} twice", short(&name)));
        }
        last = Some(name);
    }
    Ok(fields)
}
