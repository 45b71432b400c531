//! `evenkeel-agent restore-updaters`.

use std::io::Write;
use std::process::ExitCode;

use super::{build_runtime, load_config};
use crate::cli::RestoreUpdatersArgs;
use crate::module_registry::ModuleRegistry;

/// Enables the update programs again that the agent disabled. Works while the agent runs: it
/// disables them only at its start.
pub fn restore_updaters(
    arguments: &RestoreUpdatersArgs,
    out: &mut impl Write,
) -> anyhow::Result<ExitCode> {
    let (config, paths) = load_config(&arguments.paths)?;
    if !paths.other_updaters().exists() {
        return Ok(ExitCode::SUCCESS);
    }
    let registry = ModuleRegistry::new(&config, &paths);
    build_runtime()?.block_on(registry.other_updaters().restore())?;
    writeln!(out, "the update programs that the agent had disabled are enabled again")?;
    Ok(ExitCode::SUCCESS)
}
