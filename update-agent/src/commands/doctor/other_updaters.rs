//! Checks whether other programs update the machine.

use super::DoctorFinding;
use crate::module_registry::ModuleRegistry;
use crate::other_updaters::OtherUpdater;

const CHECK: &str = "other updaters";

pub async fn check_other_updaters(registry: &ModuleRegistry<'_>) -> DoctorFinding {
    let updaters = registry.other_updaters();
    describe_updaters(&updaters.find().await, updaters.is_take_over())
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
    use crate::commands::doctor::CheckOutcome;

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
}
