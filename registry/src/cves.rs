//! Published documents about the vulnerabilities that an image has or no longer has.

mod installed;
mod lenient;
mod list_builder;
mod osv;
mod oval;
mod ranges;
mod streams;

use std::fmt;
use std::io::BufReader;

use serde::de::{Deserialize, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

pub use self::installed::InstalledPackages;
use self::streams::MultiStreamReader;
use crate::finding::{Finding, FindingKind};
use crate::foreign::foreign_format;
use crate::packages::strict_json;

/// Largest document as transferred, in bytes.
pub const MAX_DOCUMENT_BYTES: usize = 64 * 1024 * 1024;

/// Largest document after decompression, in bytes. It is read as a stream.
pub const MAX_UNPACKED_BYTES: u64 = 1024 * 1024 * 1024;

/// Largest JSON list that is produced, in bytes.
pub const MAX_JSON_BYTES: usize = 8 * 1024 * 1024;

/// A list of vulnerabilities.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CveList {
    /// JSON array of `{cve_id, priority, affected_packages}`.
    pub json: String,
    /// Whether entries are missing, because the list is too long or part of the document was
    /// skipped.
    pub is_truncated: bool,
}

/// Reads a CVE document and converts it to a list in EIM's format.
///
/// A list in EIM's format is not changed, except that a byte order mark is removed, unless it is
/// too long. OSV documents (a record, a list, or `vulns`) and OVAL documents (also compressed with
/// bzip2) are converted and sorted by ID. If `installed` is given, vulnerabilities that affect only
/// other packages are left out, and those of OSV also if the installed versions are not affected or
/// the record is for another distribution. Entries that name no package stay, and so do those whose
/// packages cannot be judged: source packages without an installed package of the same name.
///
/// # Errors
/// The document has none of these formats, or it is too large.
pub fn read_cves(body: &[u8], installed: Option<&InstalledPackages>) -> Result<CveList, Finding> {
    read_bounded(body, installed, MAX_UNPACKED_BYTES)
}

fn read_bounded(
    body: &[u8],
    installed: Option<&InstalledPackages>,
    unpacked: u64,
) -> Result<CveList, Finding> {
    if body.len() > MAX_DOCUMENT_BYTES {
        return Err(too_large(MAX_DOCUMENT_BYTES as u64));
    }
    if body.starts_with(b"BZh") {
        return oval::read(BufReader::new(MultiStreamReader::new(body)), installed, unpacked);
    }
    let text =
        str::from_utf8(body).map_err(|error| invalid(format!("it is not UTF-8: {error}")))?;
    // Some editors write a byte order mark at the start of a text.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    match text.trim_start().chars().next() {
        None => Err(invalid("it is empty")),
        Some('[') => match detect_format(text)? {
            ListFormat::Eim => read_eim_list(text),
            ListFormat::Osv => osv::read_list(text, installed),
        },
        Some('{') => osv::read_object(text, installed),
        Some('<') => oval::read(text.as_bytes(), installed, unpacked).map_err(|finding| {
            if foreign_format(text).is_some() { invalid_format(text, "") } else { finding }
        }),
        Some(_) => Err(invalid_format(text, "it is neither JSON nor XML")),
    }
}

/// The finding for a document in another format, which names the format if it is known.
fn invalid_format(text: &str, otherwise: &str) -> Finding {
    match foreign_format(text) {
        Some(format) => invalid(format!("it is {format}; EIM's list, OSV and OVAL are understood")),
        None => invalid(otherwise),
    }
}

fn invalid(why: impl fmt::Display) -> Finding {
    let message = format!("the CVE document cannot be used: {why}");
    Finding::new(FindingKind::Cves, message)
}

fn too_large(limit: u64) -> Finding {
    let message = format!("the CVE document is larger than {limit} bytes");
    Finding::new(FindingKind::TooLarge, message)
}

/// Format of the entries of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ListFormat {
    Eim,
    Osv,
}

/// Detects the format by the first entry. The others are checked when they are read.
fn detect_format(text: &str) -> Result<ListFormat, Finding> {
    serde_json::from_str::<ListFormat>(text).map_err(invalid)
}

impl<'de> Deserialize<'de> for ListFormat {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(ListFormatVisitor)
    }
}

struct ListFormatVisitor;

impl<'de> Visitor<'de> for ListFormatVisitor {
    type Value = ListFormat;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of vulnerabilities")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut entries: A) -> Result<ListFormat, A::Error> {
        let format = entries.next_element::<EntryFormat>()?;
        while entries.next_element::<IgnoredAny>()?.is_some() {}
        Ok(format.map_or(ListFormat::Eim, |format| format.0))
    }
}

struct EntryFormat(ListFormat);

impl<'de> Deserialize<'de> for EntryFormat {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(EntryFormatVisitor)
    }
}

struct EntryFormatVisitor;

impl<'de> Visitor<'de> for EntryFormatVisitor {
    type Value = EntryFormat;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a vulnerability")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<EntryFormat, A::Error> {
        let mut format = None;
        while let Some(key) = fields.next_key::<String>()? {
            if key == "cve_id" {
                if format == Some(ListFormat::Eim) {
                    return Err(A::Error::duplicate_field("cve_id"));
                }
                let id: String = fields.next_value()?;
                if id.is_empty() || id.contains(char::is_control) {
                    return Err(A::Error::custom("a cve_id is empty or has control characters"));
                }
                format = Some(ListFormat::Eim);
                continue;
            }
            fields.next_value::<IgnoredAny>()?;
            if key == "id" && format.is_none() {
                format = Some(ListFormat::Osv);
            }
        }
        let unknown = || A::Error::custom("a vulnerability has neither cve_id nor id");
        format.map(EntryFormat).ok_or_else(unknown)
    }
}

/// Checks a list in EIM's format. If it is too long, only its first entries are returned.
fn read_eim_list(text: &str) -> Result<CveList, Finding> {
    let own: EimList = serde_json::from_str(text).map_err(invalid)?;
    strict_json::check_json(text).map_err(invalid)?;
    if text.len() <= MAX_JSON_BYTES {
        let json = text.to_owned();
        return Ok(CveList { json, is_truncated: false });
    }
    Ok(CveList { json: own.json + "]", is_truncated: own.is_truncated })
}

/// A list without its closing bracket.
struct EimList {
    json: String,
    is_truncated: bool,
}

impl<'de> Deserialize<'de> for EimList {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(EimListVisitor)
    }
}

struct EimListVisitor;

impl<'de> Visitor<'de> for EimListVisitor {
    type Value = EimList;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of vulnerabilities")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut entries: A) -> Result<EimList, A::Error> {
        let (mut json, mut is_truncated) = ("[".to_owned(), false);
        let mut number = 0_usize;
        while let Some(entry) = entries.next_element::<&'de RawValue>()? {
            number += 1;
            match serde_json::from_str(entry.get()) {
                Ok(EntryFormat(ListFormat::Eim)) => {}
                Ok(EntryFormat(ListFormat::Osv)) => {
                    return Err(A::Error::custom(format!("entry {number} has no cve_id")));
                }
                Err(error) => {
                    return Err(A::Error::custom(format!("entry {number}: {error}")));
                }
            }
            is_truncated |= json.len() + entry.get().len() + 2 > MAX_JSON_BYTES;
            if !is_truncated {
                json.push_str(if number == 1 { "" } else { "," });
                json.push_str(entry.get());
            }
        }
        Ok(EimList { json, is_truncated })
    }
}

/// Finds a CVE ID inside another name, such as `CVE-2024-3094` in `UBUNTU-CVE-2024-3094` or at the
/// start of a title.
fn find_cve_id(text: &str) -> Option<&str> {
    let (_, rest) = text.split_once("CVE-")?;
    let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '-');
    let number = rest.get(..end.unwrap_or(rest.len()))?;
    let (year, serial) = number.split_once('-')?;
    let are_digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let start = text.len() - rest.len() - "CVE-".len();
    (are_digits(year) && are_digits(serial))
        .then(|| text.get(start..start + "CVE-".len() + number.len()))
        .flatten()
}

#[cfg(test)]
mod tests;
