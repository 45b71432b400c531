//! Checks a plan against the current limits of the machine's owner, which may have changed since the plan was made.

use super::protected::{find_protected, removal_refusal};
use super::{PackageStep, PackagesModule};
use crate::model::Failure;

impl PackagesModule {
    /// Why the owner does not allow the changes of a plan now; `None` if the owner allows them.
    pub(super) async fn limits_refusal(
        &self,
        steps: &[PackageStep],
    ) -> Result<Option<String>, Failure> {
        let limits = match self.owner.limits() {
            Ok(limits) => limits,
            Err(error) => return Ok(Some(error.to_string())),
        };
        let has_downgrades =
            |step: &PackageStep| matches!(step, PackageStep::Install { downgrades: true, .. });
        if !limits.downgrades && steps.iter().any(has_downgrades) {
            let why = "the change contains downgrades, which the machine's owner does not allow";
            return Ok(Some(why.to_owned()));
        }
        let items = || steps.iter().flat_map(PackageStep::items);
        if let Some(new) = items().find(|item| item.change.before.is_none())
            && !limits.new_packages
        {
            let why = "the machine's owner does not allow new packages, but";
            return Ok(Some(format!("{why} {} would be installed", new.package)));
        }
        let removals = || items().filter(|item| item.change.after.is_none());
        if let Some(removal) = removals().next()
            && !limits.removals
        {
            let why = "the machine's owner does not allow removals, but";
            return Ok(Some(format!("{why} {} would be removed", removal.package)));
        }
        if removals().next().is_none() {
            return Ok(None);
        }
        let protected = find_protected(&self.paths, &self.tools.list_packages().await?);
        let refusal =
            removals().find_map(|removal| removal_refusal(&removal.package, &limits, &protected));
        Ok(refusal.map(|why| format!("the change would remove {why}")))
    }
}
