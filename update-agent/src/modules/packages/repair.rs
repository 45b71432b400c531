//! Finishes a package update after a power cut or a kill.
//!
//! The sequence was found by replaying every disk write of an update: `dpkg --install` of the retained files, then
//! `dpkg --configure -a`. apt runs last, when dpkg's database is consistent again: before, it cannot read the state.

use std::{fs, io, slice};

use super::apt::storage_failure;
use super::baseline::PackageBaseline;
use super::plan::join_names;
use super::{Deb, PackageStep, PackagesModule, apt_log, parse};
use crate::durable::FileError;
use crate::model::{Failure, FailureKind, tail};
use crate::paths::AgentPaths;
use crate::runner::Output;

/// Folder in which dpkg records each change of a package's state before it rewrites its database. dpkg reads the folder
/// together with the database and merges it at its next change; apt refuses to run while it is not empty.
const DPKG_UPDATES_FOLDER: &str = "/var/lib/dpkg/updates";

/// Two rounds: a package that must be configured before another one is unpacked is ready in the second.
const MAX_REPAIR_ROUNDS: usize = 2;

impl PackagesModule {
    /// Repeats a step after an interruption at an unknown point.
    pub(super) async fn repair(&self, step: &PackageStep) -> Result<(), Failure> {
        let steps = slice::from_ref(step);
        let start = apt_log::log_length(&self.paths);
        let mut log = String::new();
        {
            // apt or dpkg may have outlived the agent and still be running: wait as long as they may take.
            let _lock = self.lock_dpkg(self.tools.timeouts().apply).await?;
            for _ in 0..MAX_REPAIR_ROUNDS {
                if self.is_consistent(steps).await? {
                    break;
                }
                tracing::warn!("packages are half done; finishing them from the retained files");
                self.finish_step(step, &mut log).await?;
            }
            if has_dpkg_updates(&self.paths)? {
                append_log(&mut log, &self.tools.configure_all().await?);
            }
        }
        // Older problems are not known here and do not matter: the final verification checks again.
        let before = PackageBaseline {
            audit: self.tools.audit().await?,
            log_length: start,
            ..PackageBaseline::default()
        };
        let installed = self.list_installed().await?;
        let Some(problem) = self.find_package_problem(steps, &installed, &before).await? else {
            return Ok(());
        };
        if !self.is_consistent(steps).await? {
            return Err(Failure::with_log(
                FailureKind::Apply,
                format!("after an interruption {}", problem.reason),
                &format!("{}\n{log}", problem.log),
            ));
        }
        self.check_files(step.debs())?;
        let Err(failed) = self.install_part(step, start).await else { return Ok(()) };
        let log = format!("{log}\n{}", failed.log);
        Err(Failure::with_log(failed.kind, failed.reason, log.trim_start()))
    }

    /// Lets dpkg merge the records of an interrupted run, if there are any.
    pub(super) async fn apply_dpkg_updates(&self) -> Result<(), Failure> {
        if !has_dpkg_updates(&self.paths)? {
            return Ok(());
        }
        tracing::warn!(
            "an interrupted dpkg left records in {DPKG_UPDATES_FOLDER}; letting dpkg merge them"
        );
        let _lock = self.lock_dpkg(self.tools.timeouts().lock).await?;
        // A failure to configure a package does not matter here; it is found later.
        self.tools.configure_all().await.map(drop)
    }

    /// One round of unpacking, configuring and removing. The caller must hold dpkg's front-end lock.
    async fn finish_step(&self, step: &PackageStep, log: &mut String) -> Result<(), Failure> {
        let debs = step.debs();
        self.check_files(debs)?;
        if !debs.is_empty() {
            append_log(log, &self.tools.install_with_dpkg(debs).await?);
        }
        append_log(log, &self.tools.configure_all().await?);
        let left = self.remaining_removals(step).await?;
        if !left.is_empty() {
            let left: Vec<&str> = left.iter().map(String::as_str).collect();
            append_log(log, &self.tools.remove_packages(&left).await?);
        }
        Ok(())
    }

    fn check_files(&self, debs: &[Deb]) -> Result<(), Failure> {
        let missing = self.archives.missing_files(debs).map_err(super::storage_failure)?;
        if missing.is_empty() {
            return Ok(());
        }
        let names = join_names(missing.iter().map(|deb| deb.name.clone()));
        let reason =
            format!("cannot finish an interrupted update, because files are missing: {names}");
        Err(Failure::new(FailureKind::Interrupted, reason))
    }
}

/// Whether a dpkg was interrupted before it had rewritten its database (dpkg's source, `lib/dpkg/dbmodify.c`: records have
/// numeric names, and `tmp.i` is an incomplete one). A dpkg that ended normally leaves no file there.
pub(super) fn has_dpkg_updates(paths: &AgentPaths) -> Result<bool, Failure> {
    let folder = paths.inside(DPKG_UPDATES_FOLDER);
    match fs::read_dir(&folder) {
        Ok(mut notes) => Ok(notes.next().is_some()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(storage_failure(FileError::while_doing("list", &folder)(error))),
    }
}

fn append_log(log: &mut String, output: &Output) {
    log.push_str(&parse::clean_output(&output.combined_output()));
    // Each part of the log may be long; only the end is reported.
    *log = tail(log, Failure::MAX_LOG).to_owned();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_file_in_dpkgs_updates_folder_means_an_interruption() {
        for name in ["tmp.i", "0012"] {
            let root = tempfile::tempdir().unwrap();
            let paths = AgentPaths::new(root.path(), None);
            assert!(!has_dpkg_updates(&paths).unwrap());
            let folder = paths.inside(DPKG_UPDATES_FOLDER);
            fs::create_dir_all(&folder).unwrap();
            assert!(!has_dpkg_updates(&paths).unwrap());
            fs::write(folder.join(name), "").unwrap();
            assert!(has_dpkg_updates(&paths).unwrap());
        }
    }
}
