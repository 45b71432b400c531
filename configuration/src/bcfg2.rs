//! Reads and writes the literal `<Configuration>` of Bcfg2.
//!
//! This is the document that Bcfg2's server sends to a client and `bcfg2 -c FILE` stores, not the
//! repository of the server, of which [`groups`] reads two files. Everything that has no counterpart
//! is refused with its path, such as `Bundle[web]/Path[/etc/motd]/@mode`.
//!
//! | Bcfg2 | Entry |
//! | --- | --- |
//! | `Path` of type `file`, `directory`, `symlink`, `permissions`, `nonexistent` | `File` |
//! | `Service` of type `systemd` | `Unit`, enabled or disabled, without a unit file |
//! | `Package` of type `deb` | `Package` |
//! | `POSIXUser`, `POSIXGroup` | `User`, `UserGroup` |
//! | `Action` | `Action` |
//!
//! - A service with `restart="true"` restarts after a change of a file in its bundle. In Bcfg2,
//!   changes of the bundle's packages and users restart it as well.
//! - An `Independent` is a bundle whose services do not restart.
//! - `version="auto"` of a package means the newest version. It is read as `any`, because update
//!   policies decide on newer versions.
//! - A command without `shell="true"` is split into words as Bcfg2's client does.
//! - The text of a file is its content, with all white space.
//!
//! Written documents have only elements that Bcfg2's client reads. Unit files, drop-ins, package
//! sources and kernel settings become files with an action that loads them.

mod entries;
mod entry_reader;
mod entry_writer;
pub mod groups;
mod paths;
mod shell;
mod structure_reader;
mod structure_writer;
mod xml;
mod xml_output;

use crate::document::Document;
use crate::validation::{self, FieldError, ReadError};

/// Reads a literal `<Configuration>`, and checks the rules of documents.
///
/// # Errors
/// The text is not such a document, breaks a rule, or holds something that is not offered. Each
/// error has the path of the element; an error of the syntax has no path.
pub fn read(text: &str) -> Result<Document, ReadError> {
    let root = xml::parse(text).map_err(|error| ReadError::Invalid(vec![error]))?;
    let (document, origins) = structure_reader::read_configuration(root)?;
    let errors = validation::validate(&document);
    // The paths of a service are those of the files of its bundle, which have the same errors.
    let errors = errors.iter().filter(|error| !error.path.contains(".desired.filePaths["));
    let errors: Vec<_> = errors.map(|error| origins.locate(error, field_path)).collect();
    if errors.is_empty() { Ok(document) } else { Err(ReadError::Invalid(errors)) }
}

/// Path of a field of an element. `field` is its path in an entry, such as `desired.mode`.
fn field_path(origin: &str, field: &str) -> String {
    let field = field.strip_prefix("desired.").unwrap_or(field);
    if let Some(index) = field.strip_prefix("groups[").and_then(|rest| rest.strip_suffix(']')) {
        let position = index.parse::<usize>().unwrap_or_default() + 1;
        return format!("{origin}/MemberOf[{position}]");
    }
    let attribute = match field {
        "target" => "to",
        "comment" => "gecos",
        name @ ("name" | "mode" | "owner" | "group" | "version" | "command" | "uid" | "gid"
        | "home" | "shell") => name,
        _ => return origin.to_owned(),
    };
    format!("{origin}/@{attribute}")
}

/// Writes a document for `bcfg2 -f FILE`. Equal documents give equal text.
///
/// # Errors
/// Bcfg2 has no form for something in the document. The errors have the paths of the fields.
pub fn write(document: &Document) -> Result<String, Vec<FieldError>> {
    structure_writer::write_configuration(document)
}
