//! Checks of the machine: free disk space, reasons to delay an update, and the agent's service.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::DoctorFinding;
use crate::facts::reboot;
use crate::module_registry::ModuleRegistry;
use crate::os;
use crate::runner::Command;
use crate::status;
use crate::text;

/// Time limit for `systemctl`. The service manager answers at once or not at all.
const SYSTEMCTL_TIMEOUT: Duration = Duration::from_secs(20);

const UNIT: &str = "evenkeel-agent.service";

pub async fn check_machine(registry: &ModuleRegistry<'_>) -> Vec<DoctorFinding> {
    let mut findings = vec![check_disk(registry), check_reboot(registry)];
    findings.extend(check_waiting(registry));
    // The running service manager does not manage the services of another root.
    if registry.has_systemd() {
        findings.push(check_service(registry).await);
    }
    findings
}

fn check_disk(registry: &ModuleRegistry<'_>) -> DoctorFinding {
    let least = registry.config.gate.min_free;
    let paths = registry.paths;
    let modules = registry.build_modules();
    let written = modules.iter().flat_map(|module| module.kind().written_paths);
    let mut folders: Vec<(String, PathBuf)> =
        written.map(|path| ((*path).to_owned(), paths.inside(path))).collect();
    if folders.is_empty() {
        // The root may never be written to.
        let state = paths.state();
        folders.push((state.display().to_string(), state.to_owned()));
    }
    let full = folders.iter().filter_map(|(name, folder)| {
        let free = free_bytes(folder)?;
        (free < least).then(|| format!("{name} has {} free", text::format_bytes(free)))
    });
    let full: Vec<_> = full.collect();
    if full.is_empty() {
        return DoctorFinding::passed("disk", "enough space is free");
    }
    let required = text::format_bytes(least);
    DoctorFinding::failed(
        "disk",
        full.join(", "),
        format!(
            "free some space: an update starts only with {required} free in addition to what it needs (`gate.min_free`); try `apt-get clean`"
        ),
    )
}

/// Bytes that are free for root; `None` if the folder does not exist.
fn free_bytes(folder: &Path) -> Option<u64> {
    let about = rustix::fs::statvfs(folder).ok()?;
    Some(about.f_bavail.saturating_mul(about.f_frsize))
}

/// None if the limits cannot be used: another check names this fault, which delays every update.
fn check_waiting(registry: &ModuleRegistry<'_>) -> Option<DoctorFinding> {
    registry.owner.limits().ok()?;
    let last = status::read_status(&registry.paths.status()).unwrap_or_default();
    if !last.waiting.is_empty() {
        return Some(DoctorFinding::warning(
            "waiting",
            last.waiting,
            "a prepared update starts after that",
        ));
    }
    Some(match registry.owner.may_begin() {
        Ok(()) => DoctorFinding::passed("waiting", "nothing delays an update"),
        Err(why) => DoctorFinding::warning("waiting", why, "an update would start after that"),
    })
}

fn check_reboot(registry: &ModuleRegistry<'_>) -> DoctorFinding {
    let reboot = reboot::read_reboot_status(registry.paths, &os::kernel_release());
    if !reboot.required {
        return DoctorFinding::passed("reboot", "is not required");
    }
    DoctorFinding::warning(
        "reboot",
        format!("is required: {}", reboot.reasons.join("; ")),
        "reboot the machine when its services can be interrupted",
    )
}

async fn check_service(registry: &ModuleRegistry<'_>) -> DoctorFinding {
    let command = Command::new("systemctl", SYSTEMCTL_TIMEOUT).with_arguments([
        "show",
        "--property=LoadState,ActiveState,UnitFileState,WatchdogUSec",
        UNIT,
    ]);
    match registry.runner.run(&command).await {
        Ok(output) if output.succeeded() => check_unit(&output.stdout),
        Ok(output) => {
            DoctorFinding::warning("service", output.combined_output(), "is systemd running?")
        }
        Err(error) => DoctorFinding::warning("service", error.to_string(), "is systemd running?"),
    }
}

/// Parses the output of `systemctl show`.
fn check_unit(properties: &str) -> DoctorFinding {
    let value = |name: &str| {
        let mut lines = properties.lines();
        let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
        value.unwrap_or_default()
    };
    let start = format!("`systemctl enable --now {UNIT}`");
    match (value("LoadState"), value("ActiveState")) {
        ("loaded", "active") if value("UnitFileState") != "enabled" => DoctorFinding::warning(
            "service",
            "is running, but not enabled: it will not start at the next boot",
            format!("run `systemctl enable {UNIT}`"),
        ),
        ("loaded", "active") if matches!(value("WatchdogUSec"), "" | "0" | "infinity") => {
            DoctorFinding::warning(
                "service",
                "is running without a watchdog: systemd does not notice if it hangs",
                "set WatchdogSec= in the unit",
            )
        }
        ("loaded", "active") => DoctorFinding::passed("service", "is running, with a watchdog"),
        ("loaded", state) => DoctorFinding::failed(
            "service",
            format!("{UNIT} is {state}"),
            format!("run {start}, then `systemctl status {UNIT}`"),
        ),
        _ => DoctorFinding::failed(
            "service",
            format!("the unit {UNIT} does not exist"),
            format!("install the package of the agent, then run {start}"),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::doctor::CheckOutcome;

    #[test]
    fn the_unit_must_exist_run_and_be_enabled() {
        let outcome_of = |load: &str, active: &str, file: &str, watchdog: &str| {
            let text = format!(
                "LoadState={load}\nActiveState={active}\nUnitFileState={file}\nWatchdogUSec={watchdog}\n"
            );
            check_unit(&text).outcome
        };
        assert_eq!(outcome_of("loaded", "active", "enabled", "10min"), CheckOutcome::Passed);
        assert_eq!(outcome_of("loaded", "active", "enabled", "0"), CheckOutcome::Warning);
        assert_eq!(outcome_of("loaded", "active", "disabled", "10min"), CheckOutcome::Warning);
        assert_eq!(outcome_of("loaded", "failed", "enabled", "10min"), CheckOutcome::Failed);
        assert_eq!(outcome_of("not-found", "inactive", "", "0"), CheckOutcome::Failed);
        assert_eq!(check_unit("").outcome, CheckOutcome::Failed);
    }

    #[test]
    fn a_missing_folder_is_not_full() {
        assert_eq!(free_bytes(Path::new("/no/such/folder")), None);
        assert!(free_bytes(Path::new("/")).is_some());
    }
}

#[cfg(test)]
mod fuzz {
    use super::*;
    use crate::commands::doctor::CheckOutcome;
    use crate::fuzz_driver::{fuzz, text};

    #[test]
    fn only_an_active_unit_passes() {
        let samples = [
            "LoadState=loaded\nActiveState=active\nUnitFileState=enabled\nWatchdogUSec=10min\n",
            "LoadState=not-found\nActiveState=inactive\nUnitFileState=\nWatchdogUSec=0\n",
        ];
        fuzz("systemctl show of the agent", |rng| {
            let properties = text(rng, &samples, "\n=\r\u{0} LoadStateActive");
            if check_unit(&properties).outcome != CheckOutcome::Failed {
                let has_line = |line: &str| properties.lines().any(|one| one == line);
                assert!(has_line("LoadState=loaded") && has_line("ActiveState=active"));
            }
        });
    }
}
