//! The way forward after a power cut or a kill.
//!
//! What helps was measured by replaying every write of an update: `dpkg --install` of the kept files, then
//! `dpkg --configure -a`. apt comes last, when dpkg's database is sound again: before, it cannot tell what is there.

use std::{fs, io, slice};

use super::apt::{failure, storage};
use super::note::Baseline;
use super::plan::enumerate;
use super::{Deb, Packages, Step, aptlog, parse};
use crate::durable::FileError;
use crate::model::{Failure, FailureKind, tail};
use crate::place::Place;
use crate::runner::Output;

/// Where dpkg notes each change of a package's state before it writes all of them anew. It reads them together with its
/// database and enters them when it next changes something; apt refuses to work while there are any.
const NOTES: &str = "/var/lib/dpkg/updates";

/// Two rounds: a package that must be configured before another is unpacked is ready in the second.
const ROUNDS: usize = 2;

impl Packages {
    /// Takes a step of which nobody knows how far it came.
    pub(super) async fn repair(&self, step: &Step) -> Result<(), Failure> {
        let steps = slice::from_ref(step);
        let start = aptlog::length(&self.place);
        let mut log = String::new();
        {
            // apt and dpkg that outlived the agent may still be at work: they get the time that they would have had.
            let _lock = self.lock(self.tools.limits().apply).await?;
            for _ in 0..ROUNDS {
                if self.is_sound(steps).await? {
                    break;
                }
                tracing::warn!("packages were left half done, finishing them from the kept files");
                self.finish(step, &mut log).await?;
            }
            if notes_are_left(&self.place)? {
                keep(&mut log, &self.tools.configure().await?);
            }
        }
        // What was wrong before is not known here, and does not matter: it is looked at again when all is done.
        let before = Baseline {
            audit: self.tools.audit().await?,
            log: start,
            ..Baseline::default()
        };
        let installed = self.installed().await?;
        let Some(problem) = self.packages_problem(steps, &installed, &before).await? else {
            return Ok(());
        };
        if !self.is_sound(steps).await? {
            return Err(Failure::with_log(
                FailureKind::Apply,
                format!("after an interruption {}", problem.reason),
                &format!("{}\n{log}", problem.log),
            ));
        }
        self.check_files(step.debs())?;
        let output = self.run_transaction(step).await?;
        if output.succeeded() {
            return Ok(());
        }
        keep(&mut log, &output);
        let failed = failure(FailureKind::Apply, "apt-get install", &output);
        let failed = Failure::with_log(failed.kind, failed.reason, &log);
        Err(aptlog::with_log(failed, &aptlog::since(&self.place, start)))
    }

    /// Lets dpkg enter what an interrupted one noted, if there is any.
    pub(super) async fn enter_notes(&self) -> Result<(), Failure> {
        if !notes_are_left(&self.place)? {
            return Ok(());
        }
        tracing::warn!("an interrupted dpkg left notes in {NOTES}, letting it enter them");
        let _lock = self.lock(self.tools.limits().lock).await?;
        // What it cannot configure is not what is asked for here, and is found later.
        self.tools.configure().await.map(drop)
    }

    /// One round of unpacking, configuring and removing. Only with dpkg's front-end lock held.
    async fn finish(&self, step: &Step, log: &mut String) -> Result<(), Failure> {
        let debs = step.debs();
        self.check_files(debs)?;
        if !debs.is_empty() {
            keep(log, &self.tools.unpack_files(debs).await?);
        }
        keep(log, &self.tools.configure().await?);
        let left = self.left_to_remove(step).await?;
        if !left.is_empty() {
            let left: Vec<&str> = left.iter().map(String::as_str).collect();
            keep(log, &self.tools.remove(&left).await?);
        }
        Ok(())
    }

    fn check_files(&self, debs: &[Deb]) -> Result<(), Failure> {
        let missing = self.archives.missing(debs).map_err(super::storage)?;
        if missing.is_empty() {
            return Ok(());
        }
        let names = enumerate(missing.iter().map(|deb| deb.name.clone()));
        let reason = format!("an interrupted update cannot be finished, files are gone: {names}");
        Err(Failure::new(FailureKind::Interrupted, reason))
    }
}

/// Whether a dpkg was interrupted before it had written its database anew (dpkg's source, `lib/dpkg/dbmodify.c`: notes have
/// numbers for names, and `tmp.i` is one that was being written). A dpkg that ended leaves nothing there.
pub(super) fn notes_are_left(place: &Place) -> Result<bool, Failure> {
    let folder = place.inside(NOTES);
    match fs::read_dir(&folder) {
        Ok(mut notes) => Ok(notes.next().is_some()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(storage(FileError::while_doing("list", &folder)(error))),
    }
}

fn keep(log: &mut String, output: &Output) {
    log.push_str(&parse::words(&output.words()));
    // Each part of the log may be long; only the end is ever told.
    *log = tail(log, Failure::MAX_LOG).to_owned();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_lies_among_the_notes_of_dpkg_was_left_by_an_interrupted_one() {
        for name in ["tmp.i", "0012"] {
            let root = tempfile::tempdir().unwrap();
            let place = Place::new(root.path(), None);
            assert!(!notes_are_left(&place).unwrap());
            let folder = place.inside(NOTES);
            fs::create_dir_all(&folder).unwrap();
            assert!(!notes_are_left(&place).unwrap());
            fs::write(folder.join(name), "").unwrap();
            assert!(notes_are_left(&place).unwrap());
        }
    }
}
