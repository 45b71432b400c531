//! Checks whether other programs update the machine.

use super::{CheckOutcome, DoctorFinding};
use crate::facts::{self, ForeignChange};
use crate::module_registry::ModuleRegistry;
use crate::other_updaters::OtherUpdater;
use crate::text;

const CHECK: &str = "other updaters";

pub async fn check_other_updaters(registry: &ModuleRegistry<'_>) -> Vec<DoctorFinding> {
    let updaters = registry.other_updaters();
    let mut findings = vec![describe_updaters(&updaters.find().await, updaters.is_take_over())];
    if updaters.is_take_over() {
        let work = updaters.find_unfinished_work().await;
        findings.extend(work.into_iter().map(|work| DoctorFinding::warning(CHECK, work, "")));
    }
    findings.extend(facts::read_foreign_change(registry.paths).as_ref().map(describe_change));
    findings
}

/// Shows which packages others changed last.
fn describe_change(change: &ForeignChange) -> DoctorFinding {
    let count =
        text::pluralize(usize::try_from(change.count).unwrap_or(usize::MAX), "package", "packages");
    let time = change.at.map_or_else(String::new, |at| format!(" at {}", at.to_rfc3339()));
    let result = format!("{count} changed{time}: {}", change.packages.join(", "));
    DoctorFinding { check: "by others", outcome: CheckOutcome::Note, result, advice: String::new() }
}

fn describe_updaters(found: &[OtherUpdater], is_take_over: bool) -> DoctorFinding {
    if found.is_empty() {
        let result = if is_take_over {
            "are disabled while the agent is installed"
        } else {
            "no other program updates this machine"
        };
        return DoctorFinding::passed(CHECK, result);
    }
    let lines: Vec<_> = found.iter().map(ToString::to_string).collect();
    let mut advice = vec![
        "they do not wait for windows; the agent waits while they hold apt's locks, and reports what they change"
            .to_owned(),
    ];
    let disabled = found.iter().filter(|updater| updater.advice.is_empty());
    let disabled: Vec<_> = disabled.map(|updater| updater.name).collect();
    if !disabled.is_empty() {
        let names = disabled.join(", ");
        advice.push(if is_take_over {
            format!("the agent disables {names} at its start; if it did not, its log has the error")
        } else {
            format!(
                "`mode = \"take_over\"` in [other_updaters] of the configuration disables {names}"
            )
        });
    }
    advice.extend(
        found
            .iter()
            .filter(|updater| !updater.advice.is_empty())
            .map(|updater| format!("{}: {}", updater.name, updater.advice)),
    );
    DoctorFinding::warning(CHECK, lines.join("\n"), advice.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn updater(name: &'static str, advice: &'static str) -> OtherUpdater {
        OtherUpdater { name, effect: "updates things".to_owned(), advice }
    }

    #[test]
    fn each_program_is_named_with_the_way_to_disable_it() {
        let found = [updater("apt-daily", ""), updater("snapd", "hold it")];
        let finding = describe_updaters(&found, false);
        assert_eq!(finding.outcome, CheckOutcome::Warning);
        assert_eq!(finding.result, "apt-daily updates things\nsnapd updates things");
        assert!(finding.advice.contains("take_over"), "{}", finding.advice);
        assert!(
            finding.advice.ends_with("disables apt-daily\nsnapd: hold it"),
            "{}",
            finding.advice
        );
        let finding = describe_updaters(&found, true);
        assert!(finding.advice.contains("at its start"), "{}", finding.advice);
        for is_take_over in [false, true] {
            assert_eq!(describe_updaters(&[], is_take_over).outcome, CheckOutcome::Passed);
        }
    }

    #[test]
    fn a_change_by_others_is_a_note() {
        let change = ForeignChange {
            at: chrono::DateTime::from_timestamp(1_800_000_000, 0),
            count: 1,
            packages: vec!["curl:amd64 1.0 -> 1.1".to_owned()],
        };
        let finding = describe_change(&change);
        assert_eq!(finding.outcome, CheckOutcome::Note);
        assert_eq!(
            finding.result,
            "1 package changed at 2027-01-15T08:00:00+00:00: curl:amd64 1.0 -> 1.1"
        );
    }
}
