//! Services of the running system: whether they survived an update, and restarts of those that use replaced files.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

use super::apt::{MAX_NAMES_PER_COMMAND, PackageTools};
use super::dpkg::DPKG_INFO_FOLDER;
use super::parse::{self, DpkgPackage};
use crate::facts::{AGENT_UNIT, MANAGER_UNIT};
use crate::model::{Failure, FailureKind, tail};
use crate::os;
use crate::paths::AgentPaths;
use crate::runner::Command;

/// How long to wait for services that are still starting, and how often to check them.
const STARTUP_TIMEOUT: Duration = Duration::from_secs(30);
const STARTUP_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Maximum wait for a restart. After that it continues unobserved.
const RESTART_TIMEOUT: Duration = Duration::from_mins(2);

/// Properties of a unit that are queried from systemd.
const PROPERTIES: &str =
    "--property=Id,LoadState,ActiveState,Result,UnitFileState,TriggeredBy,Transient";

/// Properties of a unit by name.
pub(super) type UnitProperties = BTreeMap<String, String>;

/// Condition of a service that was active before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ServiceCondition {
    /// Running, or stopped for a good reason.
    Healthy,
    /// Starting or stopping.
    Starting,
    /// Not running, with its state.
    Lost(String),
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RestartResult {
    pub restarted: Vec<String>,
    /// Remarks about the other services, for a person.
    pub remarks: Vec<String>,
}

impl PackageTools {
    /// Lists the active services.
    pub async fn active_services(&self) -> Result<BTreeSet<String>, Failure> {
        let command = Command::new("systemctl", self.timeouts().query).with_arguments([
            "list-units",
            "--type=service",
            "--state=active",
            "--plain",
            "--no-legend",
            "--no-pager",
            "--full",
        ]);
        let output = self.run_for_stdout(&command, "systemctl list-units").await?;
        Ok(parse_units(&output))
    }

    /// Describes the services that were active and are not any more. Waits for services that are still starting.
    pub async fn find_lost_services(
        &self,
        before: &BTreeSet<String>,
    ) -> Result<Vec<String>, Failure> {
        let until = Instant::now() + STARTUP_TIMEOUT;
        loop {
            let active = self.active_services().await?;
            let missing = before.difference(&active).map(String::as_str);
            // An update of the agent's package stops the agent when its work is done; it then counts as starting.
            let missing: Vec<&str> = missing.filter(|name| *name != AGENT_UNIT).collect();
            let mut lost = Vec::new();
            let mut is_coming = false;
            for (name, condition) in self.service_conditions(&missing).await? {
                match condition {
                    ServiceCondition::Healthy => {}
                    ServiceCondition::Starting if Instant::now() < until => is_coming = true,
                    ServiceCondition::Starting => lost.push(format!("{name} (does not start)")),
                    ServiceCondition::Lost(how) => lost.push(format!("{name} ({how})")),
                }
            }
            if !is_coming {
                return Ok(lost);
            }
            tokio::time::sleep(STARTUP_CHECK_INTERVAL).await;
        }
    }

    async fn service_conditions(
        &self,
        names: &[&str],
    ) -> Result<Vec<(String, ServiceCondition)>, Failure> {
        let mut conditions = Vec::new();
        for some in names.chunks(MAX_NAMES_PER_COMMAND) {
            let command = Command::new("systemctl", self.timeouts().query)
                .with_arguments(["show", PROPERTIES, "--"])
                .with_arguments(some.iter().copied());
            let output = self.run_for_stdout(&command, "systemctl show").await?;
            let units = parse_properties(&output);
            let pairs = some.iter().zip(&units);
            conditions.extend(pairs.map(|(name, unit)| ((*name).to_owned(), unit_condition(unit))));
        }
        Ok(conditions)
    }

    /// Restarts services that use replaced files, except those that must not be restarted. The service manager itself is
    /// re-executed first, which keeps the services running.
    pub async fn restart_services(&self, paths: &AgentPaths, names: &[String]) -> RestartResult {
        let (managers, services): (Vec<&String>, Vec<&String>) =
            names.iter().partition(|name| *name == MANAGER_UNIT);
        let excluded = self.find_excluded_services(paths, &services).await;
        let (left, restartable): (Vec<&String>, Vec<&String>) =
            services.into_iter().partition(|name| excluded.contains(*name));
        let mut restarted = RestartResult::default();
        for name in managers.into_iter().chain(restartable) {
            match self.restart_service(name).await {
                Ok(()) => restarted.restarted.push(name.clone()),
                Err(failure) => {
                    let remark = format!("{name} could not be restarted: {}", failure.reason);
                    restarted.remarks.push(remark);
                }
            }
        }
        if !left.is_empty() {
            let left: Vec<_> = left.into_iter().map(String::as_str).collect();
            restarted.remarks.push(format!(
                "these services still use replaced files and are not restarted by the agent: {}",
                left.join(", ")
            ));
        }
        restarted
    }

    async fn restart_service(&self, name: &str) -> Result<(), Failure> {
        let command = Command::new("systemctl", RESTART_TIMEOUT);
        let command = match name {
            MANAGER_UNIT => command.with_arguments(["daemon-reexec"]),
            _ => command.with_arguments(["try-restart", "--no-ask-password", "--", name]),
        };
        let output =
            self.run(&command.for_change().with_optional_record(), FailureKind::Apply).await?;
        if output.succeeded() {
            return Ok(());
        }
        let text = parse::clean_output(&output.combined_output());
        let text = tail(text.trim(), Failure::MAX_REMARK);
        Err(Failure::new(
            FailureKind::Apply,
            format!("systemctl {}: {text}", output.describe_status()),
        ))
    }
}

/// Parses the unit names of `systemctl list-units --plain --no-legend`.
pub(super) fn parse_units(text: &str) -> BTreeSet<String> {
    let names = text.lines().filter_map(|line| line.split_whitespace().next());
    let services = names.filter(|name| is_service(name));
    services.map(str::to_owned).collect()
}

/// The services of a package, by dpkg's list of its files. systemd makes a service of each init script.
pub(super) fn find_units(paths: &AgentPaths, package: &DpkgPackage) -> BTreeSet<String> {
    let folder = paths.inside(DPKG_INFO_FOLDER);
    let names = [package.name.clone(), format!("{}:{}", package.name, package.architecture)];
    let lists = names.iter().map(|name| os::read_lossy(&folder.join(format!("{name}.list"))));
    let services = lists.filter_map(Result::ok).flat_map(|list| {
        let services = list.lines().filter_map(|path| match path.strip_prefix("/etc/init.d/") {
            Some(script) => Some(format!("{script}.service")),
            None => path.rsplit('/').next().filter(|name| is_service(name)).map(str::to_owned),
        });
        services.collect::<Vec<_>>()
    });
    services.collect()
}

fn is_service(name: &str) -> bool {
    name.strip_suffix(".service").is_some()
}

/// Whether a service is one of the units, or an instance of a template among them.
pub(super) fn is_unit_of(service: &str, units: &BTreeSet<String>) -> bool {
    let template = service.split_once('@').map(|(name, _)| format!("{name}@.service"));
    units.contains(service) || template.is_some_and(|template| units.contains(&template))
}

/// Parses the output of `systemctl show`: `NAME=VALUE` lines, with an empty line between units.
pub(super) fn parse_properties(text: &str) -> Vec<UnitProperties> {
    let paragraphs = text.split("\n\n").filter(|text| !text.trim().is_empty());
    let unit = |paragraph: &str| {
        let lines = paragraph.lines().filter_map(|line| line.split_once('='));
        lines.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
    };
    paragraphs.map(unit).collect()
}

/// The condition of a unit that was active. A unit that ended successfully and is started on demand is healthy.
pub(super) fn unit_condition(unit: &UnitProperties) -> ServiceCondition {
    let property = |name: &str| unit.get(name).map_or("", String::as_str);
    if property("LoadState") != "loaded" {
        return ServiceCondition::Healthy;
    }
    let state = property("ActiveState");
    match state {
        "active" | "reloading" | "refreshing" => ServiceCondition::Healthy,
        "activating" | "deactivating" => ServiceCondition::Starting,
        "inactive" if property("Result") == "success" => {
            let on_demand = !property("TriggeredBy").is_empty()
                || property("Transient") == "yes"
                || matches!(
                    property("UnitFileState"),
                    "static" | "indirect" | "generated" | "transient" | "alias" | ""
                );
            if on_demand {
                ServiceCondition::Healthy
            } else {
                ServiceCondition::Lost(state.to_owned())
            }
        }
        _ => ServiceCondition::Lost(state.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::modules::packages::apt::PackageToolTimeouts;
    use crate::runner::{Output, RunError, Runner};

    #[test]
    fn active_services_are_read() {
        let text = "\
cron.service                  loaded active running Regular background program processing daemon
getty@tty1.service            loaded active running Getty on tty1
demo\\x2dunit.service          loaded active exited  demo
";
        let names: Vec<_> = parse_units(text).into_iter().collect();
        assert_eq!(names, ["cron.service", "demo\\x2dunit.service", "getty@tty1.service"]);
        assert!(parse_units("").is_empty());
    }

    /// A machine that is shutting down: nothing is active any more.
    struct StoppingSystem;

    #[async_trait::async_trait]
    impl Runner for StoppingSystem {
        async fn run(&self, command: &Command) -> Result<Output, RunError> {
            let about = command.arguments.iter().skip(3);
            let about =
                about.map(|name| format!("Id={name}\nLoadState=loaded\nActiveState=failed\n"));
            let stdout = if command.to_string().contains("list-units") {
                String::new()
            } else {
                about.collect::<Vec<_>>().join("\n")
            };
            Ok(Output { status: Some(0), stdout, stderr: String::new() })
        }
    }

    fn timeouts() -> PackageToolTimeouts {
        let minute = Duration::from_mins(1);
        PackageToolTimeouts {
            query: minute,
            refresh: minute,
            download: minute,
            apply: minute,
            lock: minute,
        }
    }

    #[tokio::test]
    async fn an_agent_stopped_by_its_own_package_is_not_lost() {
        let tools = PackageTools::new(Arc::new(StoppingSystem), timeouts());
        let before = BTreeSet::from(["cron.service", AGENT_UNIT].map(str::to_owned));
        let lost = tools.find_lost_services(&before).await.unwrap();
        assert_eq!(lost, ["cron.service (failed)"]);
    }

    fn condition_of(text: &str) -> ServiceCondition {
        let units = parse_properties(text);
        assert_eq!(units.len(), 1);
        unit_condition(&units[0])
    }

    #[test]
    fn a_service_is_lost_if_it_was_active_and_is_not_started_again() {
        let lost = |state: &str| ServiceCondition::Lost(state.to_owned());
        for (fields, expected) in [
            ("loaded active success enabled -", ServiceCondition::Healthy),
            ("loaded reloading success enabled -", ServiceCondition::Healthy),
            ("loaded activating success enabled -", ServiceCondition::Starting),
            ("loaded failed exit-code enabled -", lost("failed")),
            ("loaded failed exit-code static x.socket", lost("failed")),
            ("loaded inactive success enabled -", lost("inactive")),
            ("loaded inactive success disabled -", lost("inactive")),
            ("loaded inactive success enabled x.socket", ServiceCondition::Healthy),
            ("loaded inactive success static -", ServiceCondition::Healthy),
            ("loaded inactive timeout static -", lost("inactive")),
            ("not-found inactive success - -", ServiceCondition::Healthy),
            ("masked inactive success masked -", ServiceCondition::Healthy),
        ] {
            let fields: Vec<_> = fields.split(' ').map(|field| field.trim_matches('-')).collect();
            let [load, state, result, file, triggered] = fields[..] else { panic!("{fields:?}") };
            let text = format!(
                "Result={result}\nTriggeredBy={triggered}\nId=x.service\nLoadState={load}\nActiveState={state}\nUnitFileState={file}\nTransient=no\n"
            );
            assert_eq!(condition_of(&text), expected, "{text}");
        }
    }

    #[test]
    fn units_are_read_in_the_requested_order() {
        let units = parse_properties(
            "Id=a.service\nLoadState=loaded\n\nId=b.service\nLoadState=not-found\n",
        );
        let names: Vec<_> = units.iter().map(|unit| unit["Id"].as_str()).collect();
        assert_eq!(names, ["a.service", "b.service"]);
    }

    /// Records the calls of systemctl.
    #[derive(Default)]
    struct RecordingSystem(Mutex<Vec<String>>);

    #[async_trait::async_trait]
    impl Runner for RecordingSystem {
        async fn run(&self, command: &Command) -> Result<Output, RunError> {
            self.0.lock().unwrap().push(command.to_string());
            Ok(Output { status: Some(0), ..Output::default() })
        }
    }

    #[tokio::test]
    async fn the_service_manager_is_re_executed_and_never_restarted() {
        let root = tempfile::tempdir().unwrap();
        let paths = AgentPaths::new(root.path(), None);
        let system = Arc::new(RecordingSystem::default());
        let tools = PackageTools::new(Arc::clone(&system) as Arc<dyn Runner>, timeouts());
        let stale = ["NetworkManager.service", "cron.service", MANAGER_UNIT].map(str::to_owned);
        let result = tools.restart_services(&paths, &stale).await;
        assert_eq!(
            *system.0.lock().unwrap(),
            ["systemctl daemon-reexec", "systemctl try-restart --no-ask-password -- cron.service"]
        );
        assert_eq!(result.restarted, [MANAGER_UNIT, "cron.service"]);
        assert_eq!(result.remarks.len(), 1);
        assert!(result.remarks[0].ends_with("by the agent: NetworkManager.service"));
    }
}
