//! Registries of operating systems: reading, verifying, publishing and copying what they hold.
//!
//! A registry is any OCI registry, or a folder in OCI image layout. Both implement [`Registry`].
//! All input is bounded in size and time, and content that has a digest is checked against it.
//!
//! | module | content |
//! | --- | --- |
//! | [`address`] | address of a registry and access to it |
//! | [`source`] | interface and data model of all registries |
//! | [`oci`] | registries in the network, and files outside of them |
//! | [`layout`] | folders as registries |
//! | [`mod@profile`], [`mod@packages`], [`mod@cves`] | the documents of an operating system |
//! | [`trust`] | signatures |
//! | [`publish`], [`mod@copy`], [`bundle`] | publishing, copying and bundling operating systems |
//!
//! # Limitations of some registries
//!
//! - The files of a profile are in the repository `<profile>/files`. Docker Hub does not allow such
//!   a repository, because its names have at most two parts. Profiles can still be read from there:
//!   the denied access to the files is recorded as a finding, and the files are fetched from their
//!   own addresses. Profiles with files cannot be published or copied to Docker Hub.
//! - A registry may redirect an upload to another host (`Location`). The upload then carries no
//!   credentials, because they are for the registry alone. The address itself must authorise it.

#![warn(missing_docs)]

pub mod address;
pub mod bundle;
pub mod copy;
pub mod cves;
pub mod error;
pub mod finding;
mod foreign;
pub mod layout;
pub mod limits;
pub mod oci;
pub mod packages;
pub mod profile;
pub mod publish;
pub mod source;
#[cfg(feature = "testing")]
pub mod testing;
pub mod trust;

pub use address::{Access, Address, Credentials, Proxy, open};
pub use bundle::{pack, unpack};
pub use copy::{CopyError, CopyOptions, CopySummary, ProgressReporter, Upstream, copy};
pub use cves::{CveList, InstalledPackages, read_cves};
pub use error::{ErrorClass, RegistryError, RegistryResult};
pub use evenkeel_domain::os::revision::RevisionSelector;
pub use evenkeel_fetch::{Digest, Hasher};
pub use finding::{Finding, FindingKind};
pub use limits::Limits;
pub use oci::web::{FetchResult, WebClient};
pub use packages::read_packages;
pub use profile::{Profile, read_profile};
pub use publish::Release;
pub use source::{
    Blob, BlobStream, Layer, Manifest, ManifestRef, Origin, Registry, Repository, Tag,
    TagAssignment,
};
pub use trust::{KeySet, Signature, SignaturePolicy, SigningKey, Verdict};
