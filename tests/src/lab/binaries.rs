//! The programs of this workspace, built as cargo builds them for its tests.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use super::machine::{command, succeed};
use crate::house::tree;

/// Where the programs are.
#[derive(Clone, Debug)]
pub struct Binaries {
    /// `evenkeeld`.
    pub server: PathBuf,
    /// `evenkeel`.
    pub cli: PathBuf,
    /// `evenkeel-agent`.
    pub agent: PathBuf,
    /// `evenkeel-agent` that can be told to halt at a step of its journal.
    pub halting_agent: PathBuf,
}

impl Binaries {
    /// Builds what is not there or not current.
    pub fn get() -> &'static Self {
        static BINARIES: OnceLock<Binaries> = OnceLock::new();
        BINARIES.get_or_init(build)
    }
}

/// Both builds end in the same folder, so the agent that can halt is made first and moved aside.
fn build() -> Binaries {
    let target = target_folder();
    let aside = target.join("lab");
    fs::create_dir_all(&aside).expect("a folder for the agent that can halt");
    let features = ["--features", "evenkeel-update-agent/halt-points"];
    // With a test among the targets, dependencies are built as `cargo test` builds them: once.
    let with_agent = ["--bin", "evenkeel-agent", "--test", "house"];
    cargo(&[&with_agent[..], &features].concat());
    let halting_agent = aside.join("evenkeel-agent-halting");
    let beside = aside.join(format!("evenkeel-agent-halting.{}", std::process::id()));
    fs::copy(target.join("debug/evenkeel-agent"), &beside).expect("a copy of the agent");
    fs::rename(&beside, &halting_agent).expect("a copy of the agent in its place");
    cargo(&["--bins", "--test", "house"]);
    Binaries {
        server: target.join("debug/evenkeeld"),
        cli: target.join("debug/evenkeel"),
        agent: target.join("debug/evenkeel-agent"),
        halting_agent,
    }
}

fn cargo(arguments: &[&str]) {
    let build = ["build", "--workspace", "--locked", "--quiet"];
    succeed(
        command(env!("CARGO"))
            .args(build)
            .args(arguments)
            .current_dir(tree::root()),
    );
}

/// This program lies in `<target>/debug/deps`.
fn target_folder() -> PathBuf {
    let program = std::env::current_exe().expect("the path of this program");
    let folder = program.ancestors().nth(3).map(Path::to_owned);
    folder.expect("a folder above the test's own")
}
