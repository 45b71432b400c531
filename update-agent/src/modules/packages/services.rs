//! Services of the running system: whether they came through an update, and restarts of those that run what was replaced.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

use super::apt::{MOST_NAMES, Tools};
use super::parse;
use super::rules::fits;
use crate::model::{Failure, FailureKind, tail};
use crate::runner::Command;

/// A service that is still starting is waited for so long, and looked at so often.
const PATIENCE: Duration = Duration::from_secs(30);
const PACE: Duration = Duration::from_secs(1);

/// How long one restart may take; then it goes on without being watched.
const RESTART: Duration = Duration::from_mins(2);

/// The agent itself. A package of the agent's own lets it stop as soon as its work is done: until then it is on its way.
const OWN: &str = "evenkeel-agent.service";

/// Services that are not restarted: the machine's users, its network, its containers, or the agent itself would go with
/// them.
const LEFT_ALONE: [&str; 20] = [
    "dbus*",
    "systemd-logind.service",
    "user@*",
    "session-*",
    "getty@*",
    "serial-getty@*",
    "console-getty.service",
    "container-getty@*",
    "display-manager.service",
    "gdm*",
    "lightdm*",
    "sddm*",
    "lxdm*",
    "xdm*",
    "slim.service",
    "greetd.service",
    "networking.service",
    "docker*",
    "containerd*",
    "evenkeel-agent*",
];

/// What systemd is asked of a unit.
const PROPERTIES: &str =
    "--property=Id,LoadState,ActiveState,Result,UnitFileState,TriggeredBy,Transient";

/// What systemd says of a unit.
type Unit = BTreeMap<String, String>;

/// How a service that was active is now.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Condition {
    /// As it should be, or rightly gone.
    Good,
    /// On its way.
    Coming,
    /// Not as it was.
    Lost(String),
}

/// What came of restarting services.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Restarted {
    /// Those that were.
    pub done: Vec<String>,
    /// What a person should know of the others.
    pub remarks: Vec<String>,
}

impl Tools {
    /// The services that are active.
    pub async fn active_services(&self) -> Result<BTreeSet<String>, Failure> {
        let command = Command::new("systemctl", self.limits().look).with([
            "list-units",
            "--type=service",
            "--state=active",
            "--plain",
            "--no-legend",
            "--no-pager",
            "--full",
        ]);
        let output = self.answer(&command, "systemctl list-units").await?;
        Ok(units(&output))
    }

    /// What is wrong with services that were active; those that are still starting are waited for.
    pub async fn lost_services(&self, before: &BTreeSet<String>) -> Result<Vec<String>, Failure> {
        let until = Instant::now() + PATIENCE;
        loop {
            let active = self.active_services().await?;
            let missing = before.difference(&active).map(String::as_str);
            let missing: Vec<&str> = missing.filter(|name| *name != OWN).collect();
            let mut lost = Vec::new();
            let mut is_coming = false;
            for (name, condition) in self.conditions(&missing).await? {
                match condition {
                    Condition::Good => {}
                    Condition::Coming if Instant::now() < until => is_coming = true,
                    Condition::Coming => lost.push(format!("{name} (does not come up)")),
                    Condition::Lost(how) => lost.push(format!("{name} ({how})")),
                }
            }
            if !is_coming {
                return Ok(lost);
            }
            tokio::time::sleep(PACE).await;
        }
    }

    async fn conditions(&self, names: &[&str]) -> Result<Vec<(String, Condition)>, Failure> {
        let mut conditions = Vec::new();
        for some in names.chunks(MOST_NAMES) {
            let command = Command::new("systemctl", self.limits().look)
                .with(["show", PROPERTIES, "--"])
                .with(some.iter().copied());
            let output = self.answer(&command, "systemctl show").await?;
            let units = shown(&output);
            let known = some.iter().zip(&units);
            conditions.extend(known.map(|(name, unit)| ((*name).to_owned(), condition(unit))));
        }
        Ok(conditions)
    }

    /// Restarts services that run what was replaced, but for those that must be left alone.
    pub async fn restart_services(&self, names: &[String]) -> Restarted {
        let (left, wanted): (Vec<&String>, Vec<&String>) =
            names.iter().partition(|name| is_left_alone(name));
        let mut restarted = Restarted::default();
        for name in wanted {
            match self.restart(name).await {
                Ok(()) => restarted.done.push(name.clone()),
                Err(failure) => {
                    let remark = format!("{name} could not be restarted: {}", failure.reason);
                    restarted.remarks.push(remark);
                }
            }
        }
        if !left.is_empty() {
            let left: Vec<_> = left.into_iter().map(String::as_str).collect();
            restarted.remarks.push(format!(
                "these services still run what was replaced and are not restarted by the agent: {}",
                left.join(", ")
            ));
        }
        restarted
    }

    async fn restart(&self, name: &str) -> Result<(), Failure> {
        let command = Command::new("systemctl", RESTART)
            .with(["try-restart", "--no-ask-password", "--", name])
            .that_changes();
        let output = self.run(&command, FailureKind::Apply).await?;
        if output.succeeded() {
            return Ok(());
        }
        let words = parse::words(&output.words());
        let words = tail(words.trim(), Failure::MAX_REMARK);
        Err(Failure::new(
            FailureKind::Apply,
            format!("systemctl {}: {words}", output.ending()),
        ))
    }
}

fn is_left_alone(name: &str) -> bool {
    LEFT_ALONE.iter().any(|pattern| fits(pattern, name))
}

/// The names at the beginning of the lines of `systemctl list-units --plain --no-legend`.
fn units(text: &str) -> BTreeSet<String> {
    let names = text
        .lines()
        .filter_map(|line| line.split_whitespace().next());
    let services = names.filter(|name| name.strip_suffix(".service").is_some());
    services.map(str::to_owned).collect()
}

/// What `systemctl show` prints: `NAME=VALUE` lines, and an empty line between units.
fn shown(text: &str) -> Vec<Unit> {
    let paragraphs = text.split("\n\n").filter(|text| !text.trim().is_empty());
    let unit = |paragraph: &str| {
        let lines = paragraph.lines().filter_map(|line| line.split_once('='));
        lines
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect()
    };
    paragraphs.map(unit).collect()
}

/// How a unit that was active is. One that ended well by itself and is started again when it is needed is as it should be.
fn condition(unit: &Unit) -> Condition {
    let said = |name: &str| unit.get(name).map_or("", String::as_str);
    if said("LoadState") != "loaded" {
        return Condition::Good;
    }
    let state = said("ActiveState");
    match state {
        "active" | "reloading" | "refreshing" => Condition::Good,
        "activating" | "deactivating" => Condition::Coming,
        "inactive" if said("Result") == "success" => {
            let on_demand = !said("TriggeredBy").is_empty()
                || said("Transient") == "yes"
                || matches!(
                    said("UnitFileState"),
                    "static" | "indirect" | "generated" | "transient" | "alias" | ""
                );
            if on_demand {
                Condition::Good
            } else {
                Condition::Lost(state.to_owned())
            }
        }
        _ => Condition::Lost(state.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::modules::packages::apt::Limits;
    use crate::runner::{Output, RunError, Runner};

    #[test]
    fn active_services_are_read_from_the_list_of_units() {
        let text = "\
cron.service                  loaded active running Regular background program processing daemon
getty@tty1.service            loaded active running Getty on tty1
demo\\x2dunit.service          loaded active exited  demo
";
        let names: Vec<_> = units(text).into_iter().collect();
        assert_eq!(
            names,
            [
                "cron.service",
                "demo\\x2dunit.service",
                "getty@tty1.service"
            ]
        );
        assert!(units("").is_empty());
    }

    /// Of a machine on which nothing is active any more: everything is about to stop.
    struct Stopping;

    #[async_trait::async_trait]
    impl Runner for Stopping {
        async fn run(&self, command: &Command) -> Result<Output, RunError> {
            let about = command.arguments.iter().skip(3);
            let about =
                about.map(|name| format!("Id={name}\nLoadState=loaded\nActiveState=failed\n"));
            let stdout = if command.to_string().contains("list-units") {
                String::new()
            } else {
                about.collect::<Vec<_>>().join("\n")
            };
            Ok(Output {
                status: Some(0),
                stdout,
                stderr: String::new(),
            })
        }
    }

    #[tokio::test]
    async fn an_agent_that_its_own_package_stops_is_not_lost() {
        let minute = Duration::from_mins(1);
        let limits = Limits {
            look: minute,
            refresh: minute,
            download: minute,
            apply: minute,
            lock: minute,
        };
        let tools = Tools::new(Arc::new(Stopping), limits);
        let before = BTreeSet::from(["cron.service", OWN].map(str::to_owned));
        let lost = tools.lost_services(&before).await.unwrap();
        assert_eq!(lost, ["cron.service (failed)"]);
    }

    fn one(text: &str) -> Condition {
        let units = shown(text);
        assert_eq!(units.len(), 1);
        condition(&units[0])
    }

    #[test]
    fn a_service_is_lost_if_it_was_active_and_nobody_starts_it_again() {
        let lost = |state: &str| Condition::Lost(state.to_owned());
        for (words, expected) in [
            ("loaded active success enabled -", Condition::Good),
            ("loaded reloading success enabled -", Condition::Good),
            ("loaded activating success enabled -", Condition::Coming),
            ("loaded failed exit-code enabled -", lost("failed")),
            ("loaded failed exit-code static x.socket", lost("failed")),
            ("loaded inactive success enabled -", lost("inactive")),
            ("loaded inactive success disabled -", lost("inactive")),
            ("loaded inactive success enabled x.socket", Condition::Good),
            ("loaded inactive success static -", Condition::Good),
            ("loaded inactive timeout static -", lost("inactive")),
            ("not-found inactive success - -", Condition::Good),
            ("masked inactive success masked -", Condition::Good),
        ] {
            let words: Vec<_> = words
                .split(' ')
                .map(|word| word.trim_matches('-'))
                .collect();
            let [load, state, result, file, triggered] = words[..] else {
                panic!("{words:?}")
            };
            let text = format!(
                "Result={result}\nTriggeredBy={triggered}\nId=x.service\nLoadState={load}\nActiveState={state}\nUnitFileState={file}\nTransient=no\n"
            );
            assert_eq!(one(&text), expected, "{text}");
        }
    }

    #[test]
    fn units_are_shown_in_the_order_in_which_they_were_asked_for() {
        let units = shown("Id=a.service\nLoadState=loaded\n\nId=b.service\nLoadState=not-found\n");
        let names: Vec<_> = units.iter().map(|unit| unit["Id"].as_str()).collect();
        assert_eq!(names, ["a.service", "b.service"]);
    }

    #[test]
    fn what_the_machines_users_and_the_agent_hang_on_is_left_alone() {
        for name in [
            "dbus.service",
            "dbus-broker.service",
            "systemd-logind.service",
            "user@1000.service",
            "getty@tty1.service",
            "gdm3.service",
            "networking.service",
            "containerd.service",
            "evenkeel-agent.service",
        ] {
            assert!(is_left_alone(name), "{name}");
        }
        for name in ["ssh.service", "cron.service", "systemd-journald.service"] {
            assert!(!is_left_alone(name), "{name}");
        }
    }
}
