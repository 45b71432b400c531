//! The way forward after a power cut or a kill.
//!
//! What helps was measured by replaying every write of an update: `dpkg --install` of the kept files, then
//! `dpkg --configure -a`. apt comes last, when dpkg's database is sound again: before, it cannot tell what is there.

use super::apt::failure;
use super::{Deb, Packages, Step, parse};
use crate::model::{Failure, FailureKind, tail};
use crate::modules::Verdict;
use crate::runner::Output;

/// Two rounds: a package that must be configured before another is unpacked is ready in the second.
const ROUNDS: usize = 2;

impl Packages {
    /// Takes a step of which nobody knows how far it came.
    pub(super) async fn repair(&self, step: &Step, debs: &[Deb]) -> Result<(), Failure> {
        let mut log = String::new();
        {
            // apt and dpkg that outlived the agent may still be at work: they get the time that they would have had.
            let _lock = self.lock(self.tools.limits().apply).await?;
            for _ in 0..ROUNDS {
                if self.is_sound().await? {
                    break;
                }
                self.check_files(debs)?;
                tracing::warn!("packages were left half done, finishing them from the kept files");
                keep(&mut log, &self.tools.unpack_files(debs).await?);
                keep(&mut log, &self.tools.configure().await?);
            }
        }
        let Verdict { problem, .. } = self.look(std::slice::from_ref(step)).await?;
        let Some(problem) = problem else {
            return Ok(());
        };
        if !self.is_sound().await? {
            return Err(Failure::with_log(
                FailureKind::Apply,
                format!("after an interruption {}", problem.reason),
                &format!("{}\n{log}", problem.log),
            ));
        }
        self.check_files(debs)?;
        let output = self.tools.install_files(debs).await?;
        if output.succeeded() {
            return Ok(());
        }
        keep(&mut log, &output);
        let failed = failure(FailureKind::Apply, "apt-get install", &output);
        Err(Failure::with_log(failed.kind, failed.reason, &log))
    }

    /// Whether every package is either there or not.
    async fn is_sound(&self) -> Result<bool, Failure> {
        Ok(self.tools.audit().await?.is_empty())
    }

    fn check_files(&self, debs: &[Deb]) -> Result<(), Failure> {
        let missing = self.archives.missing(debs).map_err(super::storage)?;
        if missing.is_empty() {
            return Ok(());
        }
        let names = super::plan::enumerate(missing.iter().map(|deb| deb.name.clone()));
        let reason = format!("an interrupted update cannot be finished, files are gone: {names}");
        Err(Failure::new(FailureKind::Interrupted, reason))
    }
}

fn keep(log: &mut String, output: &Output) {
    log.push_str(&parse::words(&output.words()));
    // Each part of the log may be long; only the end is ever told.
    *log = tail(log, Failure::MAX_LOG).to_owned();
}
