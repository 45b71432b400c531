//! Registries of operating systems: what is published, whether it can be trusted, and how it is moved.
//!
//! A registry is any OCI registry, or a folder in OCI image layout; both are asked through [`Registry`]. Everything
//! that comes from outside is bounded in size and time, and what has a digest is checked against it.
//!
//! | module | what it is about |
//! | --- | --- |
//! | [`address`] | where a registry is and how it is entered |
//! | [`source`] | what all registries can be asked, and what they have |
//! | [`oci`] | a registry in the network, and files beside it |
//! | [`layout`] | a folder that is a registry |
//! | [`mod@profile`], [`mod@packages`], [`mod@cves`] | the documents of an operating system |
//! | [`trust`] | signatures |
//! | [`publish`], [`mod@copy`], [`bundle`] | moving operating systems from one place to another |
//!
//! # What not every registry can do
//!
//! - The files of a profile lie in the repository `<profile>/files`. Docker Hub has no such repositories, for its names
//!   have two parts at most. Profiles can be read there all the same: that it lets nobody in at their files is told, but
//!   taken as if there were none, and they are looked for beside the registry. But what has files cannot be published or
//!   copied to it.
//! - A registry may begin an upload at another host (`Location`). What is uploaded goes there, but without credentials:
//!   they are for the registry alone. So that host must know from the address itself that the upload may come in.

pub mod address;
pub mod bundle;
pub mod copy;
pub mod cves;
pub mod digest;
pub mod error;
pub mod finding;
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
pub use copy::{Copied, MoveError, Selection, Tell, Upstream, copy};
pub use cves::{Cves, cves};
pub use digest::{Digest, Hasher};
pub use error::{Class, Got, RegistryError};
pub use evenkeel_domain::os::revision::Wanted;
pub use finding::{Finding, FindingKind};
pub use limits::Limits;
pub use oci::web::{Fetched, Web};
pub use packages::packages;
pub use profile::{Profile, profile};
pub use publish::Release;
pub use source::{At, Blob, Body, Layer, Manifest, Origin, Registry, Repository, Tag, Tagged};
pub use trust::{KeySet, Signature, SigningKey, Trust, Verdict};
