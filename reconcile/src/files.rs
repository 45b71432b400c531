//! Files of the machine: check, plan, write, remove and restore.
//!
//! A [`FileSpec`] is one path and its desired state. `File` entries become specs; other components
//! write their files (units, kernel settings, sources) through specs as well. The steps of a run:
//!
//! 1. [`check`] compares the entries with the machine and changes nothing.
//! 2. [`plan`] lists what has to change. The caller writes the [`FilePlan`] to its journal. It has
//!    digests, except of secrets, and no contents.
//! 3. [`FileChanger::apply`] saves the old states and writes all files. [`FileChanger::remove`]
//!    does the same for removals, as a later step.
//! 4. [`FileChanger::revert`] restores the old states, or [`FileChanger::discard_saved`] removes
//!    them.
//!
//! Each step can be killed at any point and repeated.
//!
//! # Rules
//!
//! - Links in the folder of a path are followed only if nobody but root could have made them, such
//!   as `/lib` and `/var/run`; see `files/folder.rs`. A link at the path itself is never followed.
//! - Missing parent directories without an entry get mode 0755 and belong to root.
//! - A FIFO, a socket or a device is never replaced or removed, because it could not be restored.
//!   A directory is replaced by something else only if it is empty.
//! - A file with several hard links is replaced by a new file, and the other names keep the old
//!   one. An entry of the type `permissions` does not change such a file in a directory that other
//!   users may write to.
//! - If a file system is full or fails, all its files stay as they were. Other file systems get
//!   their files.
//! - A file is not replaced or removed if its old content cannot be saved: it is larger than 1 GiB,
//!   or larger than 64 MiB and a user may have written it, or needs more than half of the free
//!   space of the state directory.
//! - A temporary file of an earlier run that cannot be removed is reported and stays.
//! - `prune` removes the direct children of the directory that neither are managed nor contain
//!   something that is. In `/etc/systemd/system` it keeps links, the folders that enable units, and
//!   the files of the agent's unit.
//! - Extended attributes, access control lists and times are not managed and not restored.

mod accounts;
mod calls;
mod changer;
mod check;
mod content;
mod digest;
mod error;
mod file_systems;
mod folder;
mod inspect;
mod lines;
mod plan;
mod saved;
mod spec;
mod state;
mod temporary;
#[cfg(test)]
pub(crate) mod tests;
mod write;

pub use accounts::AccountNames;
pub(crate) use accounts::{AccountDatabase, GroupTable, UserRecord, UserTable};
pub use calls::{FaultPoint, NoFaults};
pub use changer::FileChanger;
pub use check::check;
pub(crate) use check::{CreatedAccounts, check_file};
pub use content::{ContentError, ContentSource, DesiredContent, EmptyContentSource};
pub use digest::ContentDigest;
pub use error::FileError;
pub use folder::RootFolder;
pub(crate) use folder::{FolderError, OwnFile, read_target, split_parent};
pub use inspect::FileContext;
pub(crate) use lines::{LineReader, read_limited};
pub(crate) use plan::plan_stale_removals;
pub use plan::{
    FilePlan, FileSet, PlannedFile, PlannedObject, RefusedFile, Removal, RemovalSet,
    TEMPORARY_PREFIX, plan,
};
pub use spec::{FileObject, FileSpec, ManagedPaths};
pub(crate) use state::PathKind;
pub use write::{ChangeReport, KeptFile};
