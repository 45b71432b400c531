//! Programs of this workspace, built as cargo builds them for its tests.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use super::machine::{command, succeed};
use crate::architecture::tree;

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
    /// Builds the programs that are missing or out of date.
    pub fn get() -> &'static Self {
        static BINARIES: OnceLock<Binaries> = OnceLock::new();
        BINARIES.get_or_init(build)
    }
}

/// Both builds of the agent end in the same folder, so the agent with halt points is built first and copied.
fn build() -> Binaries {
    let target = target_folder();
    let lab_folder = target.join("lab");
    fs::create_dir_all(&lab_folder).expect("a folder for the agent with halt points");
    let features = ["--features", "evenkeel-update-agent/halt-points"];
    // With a test among the targets cargo unifies features as `cargo test` does, so dependencies are built once.
    let with_agent = ["--bin", "evenkeel-agent", "--test", "architecture"];
    cargo(&[&with_agent[..], &features].concat());
    let halting_agent = lab_folder.join("evenkeel-agent-halting");
    let temporary = lab_folder.join(format!("evenkeel-agent-halting.{}", std::process::id()));
    fs::copy(target.join("debug/evenkeel-agent"), &temporary).expect("a copy of the agent");
    fs::rename(&temporary, &halting_agent).expect("a renamed copy of the agent");
    cargo(&["--bins", "--test", "architecture"]);
    Binaries {
        server: target.join("debug/evenkeeld"),
        cli: target.join("debug/evenkeel"),
        agent: target.join("debug/evenkeel-agent"),
        halting_agent,
    }
}

fn cargo(arguments: &[&str]) {
    let build = ["build", "--workspace", "--locked", "--quiet"];
    succeed(command(env!("CARGO")).args(build).args(arguments).current_dir(tree::root()));
}

/// The target folder. This program is in `<target>/debug/deps`.
fn target_folder() -> PathBuf {
    let program = std::env::current_exe().expect("the path of this program");
    let folder = program.ancestors().nth(3).map(Path::to_owned);
    folder.expect("a folder above the test's own")
}
