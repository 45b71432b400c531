//! What the modules know about a spec, a plan or a report.

use serde_json::Value;

use super::Engine;
use crate::journal::JournalEntry;
use crate::model::{Failure, FailureKind, ModuleParts};
use crate::modules::{self, AnyDraft, AnyModule, ReportText, RetryRule, SpecIdentity};

impl Engine {
    /// Fails if the machine's owner does not allow an update.
    pub fn check_allowed(&self, spec: &ModuleParts) -> Result<(), Failure> {
        self.addressed_modules(spec).try_for_each(|(module, part)| module.check_allowed(part))
    }

    /// What distinguishes specs whose targets have the same digest.
    pub fn identify(&self, spec: &ModuleParts) -> SpecIdentity {
        let mut identity = SpecIdentity::default();
        for (module, part) in self.addressed_modules(spec) {
            let SpecIdentity { change, attempt } = (module.kind().identify)(part);
            for (all, own) in [(&mut identity.change, change), (&mut identity.attempt, attempt)] {
                all.push_str(&own);
                all.push('\n');
            }
        }
        identity
    }

    /// When an attempt for a spec may be repeated that failed in this way before it changed
    /// anything.
    pub fn retry_rule(&self, spec: &ModuleParts, kind: FailureKind) -> RetryRule {
        let rules =
            self.addressed_modules(spec).map(|(module, _)| (module.kind().retry_rule)(kind));
        rules.max().unwrap_or(RetryRule::for_failure(kind))
    }

    /// Whether a change takes long to prepare, so that this is done ahead of its window.
    pub fn needs_preparation(&self, draft: &AnyDraft) -> bool {
        let mut steps = draft.steps.iter().filter_map(|step| self.module(step).ok());
        draft.plan.download_bytes > 0 || steps.any(|module| module.kind().applies_on_reboot)
    }

    /// Which other program a module is waiting for at this moment, for people; `None` if none waits.
    pub fn current_wait(&self) -> Option<String> {
        self.parts.modules.iter().find_map(|module| module.current_wait())
    }

    /// Describes what the modules report about an attempt, for people.
    pub fn describe(&self, entry: &JournalEntry) -> ReportText {
        modules::describe(self.kinds(), &entry.reports)
    }

    /// The modules that a spec has a part for, with that part.
    pub(super) fn addressed_modules<'a>(
        &'a self,
        spec: &'a ModuleParts,
    ) -> impl Iterator<Item = (&'a dyn AnyModule, &'a Value)> {
        let modules = self.parts.modules.iter();
        modules.filter_map(move |module| Some((&**module, spec.get(module.kind().name)?)))
    }
}
