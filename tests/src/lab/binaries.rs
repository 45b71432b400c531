//! Programs of this workspace, built as cargo builds them for its tests.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use super::machine::{command, succeed};
use crate::architecture::tree;

/// Folder of the programs, if they are built already.
const FOLDER_VARIABLE: &str = "EVENKEEL_TEST_PROGRAMS";

/// Paths of the programs.
#[derive(Clone, Debug)]
pub struct Binaries {
    /// `evenkeeld`.
    pub server: PathBuf,
    /// `evenkeel`.
    pub cli: PathBuf,
    /// `evenkeel-agent`.
    pub agent: PathBuf,
    /// `evenkeel-agent` with halt points: it can stop at a step of its journal.
    pub halting_agent: PathBuf,
}

impl Binaries {
    /// Finds the programs, or builds those that are missing or out of date.
    #[expect(clippy::disallowed_methods, reason = "a switch of these tests")]
    pub fn get() -> &'static Self {
        static BINARIES: OnceLock<Binaries> = OnceLock::new();
        BINARIES.get_or_init(|| {
            let built = std::env::var_os(FOLDER_VARIABLE).map(PathBuf::from);
            Self::in_folder(&built.unwrap_or_else(build))
        })
    }

    fn in_folder(folder: &Path) -> Self {
        Self {
            server: folder.join("evenkeeld"),
            cli: folder.join("evenkeel"),
            agent: folder.join("evenkeel-agent"),
            halting_agent: folder.join("evenkeel-agent-halting"),
        }
    }
}

fn build() -> PathBuf {
    let script = tree::root().join("deploy/dev/test-programs");
    let folder = succeed(command(script).arg("build").env("CARGO", env!("CARGO")));
    PathBuf::from(folder.trim_end())
}
