//! Which vulnerabilities an image has, or has no more: the documents that are published about them.

mod osv;
mod oval;
mod sorted;
mod streams;

use std::collections::HashSet;
use std::fmt;
use std::io::BufReader;

use serde::de::{Deserialize, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use self::streams::Streams;
use crate::finding::{Finding, FindingKind};
use crate::packages::kept;

/// The largest document as it travels, in bytes.
pub const MAX_BYTES: usize = 64 * 1024 * 1024;

/// The largest document when it is unpacked, in bytes. It is read as a stream and never kept.
pub const MAX_UNPACKED: u64 = 1024 * 1024 * 1024;

/// The longest list that is made, in bytes.
pub const MAX_JSON: usize = 8 * 1024 * 1024;

/// What is known about vulnerabilities.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cves {
    /// A JSON array of `{cve_id, priority, affected_packages}` as text.
    pub json: String,
    /// Whether some are missing: there are more than have room, or than could be read.
    pub cut: bool,
}

/// The list of vulnerabilities as the ancestor writes it. One in that form stays as it is, byte for byte, if it has room,
/// but for a byte order mark before it. Documents of OSV (one, a list, or `vulns`) and of OVAL (also packed by bzip2) are
/// brought to it, sorted by id. If it is known which packages the image has, what concerns only others is left out; what
/// names no package at all stays, and so does what names only the sources that packages are built from.
///
/// # Errors
/// It is none of these, or too large.
#[expect(
    clippy::implicit_hasher,
    reason = "nobody hashes names of packages in another way"
)]
pub fn cves(body: &[u8], of: Option<&HashSet<String>>) -> Result<Cves, Finding> {
    read(body, of, MAX_UNPACKED)
}

fn read(body: &[u8], of: Option<&HashSet<String>>, unpacked: u64) -> Result<Cves, Finding> {
    if body.len() > MAX_BYTES {
        return Err(too_large(MAX_BYTES as u64));
    }
    if body.starts_with(b"BZh") {
        return oval::read(BufReader::new(Streams::new(body)), of, unpacked);
    }
    let text = str::from_utf8(body).map_err(|error| bad(format!("it is not UTF-8: {error}")))?;
    // Some editors put a byte order mark before a text. It is no part of it.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    match text.trim_start().chars().next() {
        None => Err(bad("it is empty")),
        Some('[') => match form(text)? {
            Form::Ancestors => own(text),
            Form::Osv => osv::list(text, of),
        },
        Some('{') => osv::object(text, of),
        Some('<') => oval::read(text.as_bytes(), of, unpacked),
        Some(_) => Err(bad("it is neither JSON nor XML")),
    }
}

fn bad(why: impl fmt::Display) -> Finding {
    let message = format!("the document about vulnerabilities cannot be used: {why}");
    Finding::new(FindingKind::Cves, message)
}

fn too_large(limit: u64) -> Finding {
    let message = format!("the document about vulnerabilities is larger than {limit} bytes");
    Finding::new(FindingKind::TooLarge, message)
}

/// What the entries of a list are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Ancestors,
    Osv,
}

/// Looks at the first entry of a list only; the others are looked at when they are read.
fn form(text: &str) -> Result<Form, Finding> {
    serde_json::from_str::<Form>(text).map_err(bad)
}

impl<'de> Deserialize<'de> for Form {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(FormVisitor)
    }
}

struct FormVisitor;

impl<'de> Visitor<'de> for FormVisitor {
    type Value = Form;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of vulnerabilities")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut entries: A) -> Result<Form, A::Error> {
        let form = entries.next_element::<OneForm>()?;
        while entries.next_element::<IgnoredAny>()?.is_some() {}
        Ok(form.map_or(Form::Ancestors, |form| form.0))
    }
}

struct OneForm(Form);

impl<'de> Deserialize<'de> for OneForm {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(OneFormVisitor)
    }
}

struct OneFormVisitor;

impl<'de> Visitor<'de> for OneFormVisitor {
    type Value = OneForm;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a vulnerability")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<OneForm, A::Error> {
        let mut form = None;
        while let Some(key) = fields.next_key::<String>()? {
            if key == "cve_id" {
                if form == Some(Form::Ancestors) {
                    return Err(A::Error::duplicate_field("cve_id"));
                }
                let id: String = fields.next_value()?;
                if id.is_empty() || id.contains(char::is_control) {
                    return Err(A::Error::custom("a cve_id is no text"));
                }
                form = Some(Form::Ancestors);
                continue;
            }
            fields.next_value::<IgnoredAny>()?;
            if key == "id" && form.is_none() {
                form = Some(Form::Osv);
            }
        }
        let unknown = || A::Error::custom("a vulnerability has neither cve_id nor id");
        form.map(OneForm).ok_or_else(unknown)
    }
}

/// Checks the ancestor's own list. If it has no room, the entries that stand first are kept.
fn own(text: &str) -> Result<Cves, Finding> {
    let own: Own = serde_json::from_str(text).map_err(bad)?;
    kept::check(text).map_err(bad)?;
    if text.len() <= MAX_JSON {
        let json = text.to_owned();
        return Ok(Cves { json, cut: false });
    }
    Ok(Cves {
        json: own.json + "]",
        cut: own.cut,
    })
}

/// A list without its end.
struct Own {
    json: String,
    cut: bool,
}

impl<'de> Deserialize<'de> for Own {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(OwnVisitor)
    }
}

struct OwnVisitor;

impl<'de> Visitor<'de> for OwnVisitor {
    type Value = Own;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of vulnerabilities")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut entries: A) -> Result<Own, A::Error> {
        let (mut json, mut cut) = ("[".to_owned(), false);
        let mut number = 0_usize;
        while let Some(entry) = entries.next_element::<&'de RawValue>()? {
            number += 1;
            match serde_json::from_str(entry.get()) {
                Ok(OneForm(Form::Ancestors)) => {}
                Ok(OneForm(Form::Osv)) => {
                    return Err(A::Error::custom(format!("entry {number} has no cve_id")));
                }
                Err(error) => {
                    return Err(A::Error::custom(format!("entry {number}: {error}")));
                }
            }
            cut |= json.len() + entry.get().len() + 2 > MAX_JSON;
            if !cut {
                json.push_str(if number == 1 { "" } else { "," });
                json.push_str(entry.get());
            }
        }
        Ok(Own { json, cut })
    }
}

/// The id of a vulnerability within the name that somebody else gave it, as `CVE-2024-3094` in `UBUNTU-CVE-2024-3094`
/// or at the beginning of a title.
fn cve_in(text: &str) -> Option<&str> {
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
