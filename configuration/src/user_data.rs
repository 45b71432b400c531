//! Renders a document as user-data, which a new machine applies at its first boot.
//!
//! Only documents of purpose `provision` are rendered, and only entries `File` and `Unit`. Nothing
//! is added to them. An entry that a format cannot express exactly is refused.
//!
//! | | script, cloud-init | Ignition |
//! | --- | --- | --- |
//! | files, directories, symbolic links | yes | yes, with modes up to 0777 |
//! | content `inline`, `base64` | yes | yes |
//! | content `uri` | no | yes |
//! | content `secretRef`, `absent`, `permissions`, `prune` | no | no |
//! | units that start at boot | enabled, restarted | enabled |
//! | units that do not start at boot | disabled, stopped | disabled |
//! | units with `command: stop` that start at boot | enabled, stopped | no |
//! | templates of units | files only | files only |
//!
//! A text with a placeholder ([`PLACEHOLDERS`]) is readable in the user-data, so that the creator
//! of the machine can replace the placeholder with a value. In the URL of a file of Ignition, the
//! placeholder is percent-encoded (`%3C%3CBOOTSTRAP_TOKEN%3E%3E`), because Ignition refuses `<`.
//!
//! The script is for bash and the core utilities of GNU. It runs once: it creates a marker
//! ([`MARKER_PATH`]) when everything has succeeded. The user-data of cloud-init is an archive whose
//! only part is this script.

mod cloud_init;
mod ignition;
mod plan;
mod script;
mod unit_syntax;

use std::fmt;
use std::str::FromStr;

use crate::document::{Document, Purpose};
use crate::validation::{self, FieldError};

/// Maximum number of bytes of user-data. Clouds refuse more.
pub const MAX_USER_DATA_BYTES: usize = 16_384;

/// Texts that the creator of a machine replaces with a value of this machine.
pub const PLACEHOLDERS: [&str; 2] = ["<<BOOTSTRAP_TOKEN>>", "<<MACHINE_NAME>>"];

/// File that exists on a machine after the script has succeeded.
pub const MARKER_PATH: &str = "/var/lib/evenkeel-provisioned";

/// A form of user-data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UserDataFormat {
    /// `#cloud-config-archive`.
    CloudInit,
    /// JSON of Ignition 3.3.0.
    Ignition,
    /// A script for bash.
    Script,
}

impl UserDataFormat {
    /// All formats.
    pub const ALL: [Self; 3] = [Self::CloudInit, Self::Ignition, Self::Script];

    /// The name in commands.
    pub fn name(self) -> &'static str {
        match self {
            Self::CloudInit => "cloud-init",
            Self::Ignition => "ignition",
            Self::Script => "script",
        }
    }
}

impl fmt::Display for UserDataFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for UserDataFormat {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let format = Self::ALL.into_iter().find(|format| format.name() == text);
        format.ok_or_else(|| {
            format!("\"{text}\" is not a format of user-data: write cloud-init, ignition or script")
        })
    }
}

/// Renders a document. The same document always gives the same text.
///
/// # Errors
/// The document is invalid or not of purpose `provision`, an entry cannot be rendered in the
/// format, or the user-data is larger than [`MAX_USER_DATA_BYTES`].
pub fn render(document: &Document, format: UserDataFormat) -> Result<String, Vec<FieldError>> {
    let errors = validation::validate(document);
    if !errors.is_empty() {
        return Err(errors);
    }
    if document.purpose != Purpose::Provision {
        let message = "only documents of purpose provision are rendered as user-data";
        return Err(vec![FieldError::new("purpose", message)]);
    }
    let plan = plan::plan(document, format)?;
    let text = match format {
        UserDataFormat::CloudInit => cloud_init::wrap(&script::render(&plan)),
        UserDataFormat::Ignition => ignition::render(&plan),
        UserDataFormat::Script => script::render(&plan),
    };
    if text.len() > MAX_USER_DATA_BYTES {
        let bytes = text.len();
        let message = format!(
            "the user-data has {bytes} bytes and the limit is {MAX_USER_DATA_BYTES}: keep what the \
             first boot needs, and move the rest to a document of purpose reconcile"
        );
        return Err(vec![FieldError::new("", message)]);
    }
    Ok(text)
}

/// Whether a text has one of the [`PLACEHOLDERS`].
pub fn contains_placeholder(text: &str) -> bool {
    PLACEHOLDERS.iter().any(|placeholder| text.contains(placeholder))
}
