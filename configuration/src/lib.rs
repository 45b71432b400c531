//! The desired configuration of a node.
//!
//! A document lists entries in bundles. An entry is a component, a name and the desired state, for
//! example `File`, `/etc/motd` and its content. The crate reads documents in three formats, checks
//! them, and computes their revision. Only [`source`] reads files. All readers of texts return
//! [`ReadError`].
//!
//! | Module | Contents |
//! | --- | --- |
//! | [`document`] | the types of a document |
//! | [`native`] | reads documents in YAML and JSON |
//! | [`bcfg2`] | reads and writes the literal `<Configuration>` of Bcfg2, and resolves its groups |
//! | [`gardener`] | reads `OperatingSystemConfig` of Gardener |
//! | [`format`](mod@format) | finds the format of a document, and reads it |
//! | [`source`] | reads the text of a document from a file or from standard input |
//! | [`limits`] | limits of all formats |
//! | [`validation`] | the rules of a document, with the path of each field that breaks one |
//! | [`revision`] | canonical JSON and its digest |
//! | `schema` | JSON Schema of documents (feature `schema`) |
//! | [`user_data`] | renders a document for cloud-init, Ignition or as a script |
//! | [`binding`] | binds the profiles of a node to one document |
//! | [`difference`] | the entries in which two documents differ |

pub mod bcfg2;
pub mod binding;
mod conversions;
pub mod difference;
pub mod document;
pub mod format;
pub mod gardener;
pub mod limits;
pub mod native;
mod origins;
pub mod revision;
#[cfg(feature = "schema")]
pub mod schema;
mod shell;
pub mod source;
mod states;
pub mod user_data;
pub mod validation;
mod yaml;

pub use document::{Bundle, Component, Document, Entry};
pub use validation::{FieldError, ReadError};
