//! The machine itself: room on its disks, what it waits for, and the service that the agent is.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::Finding;
use crate::commands::text;
use crate::commands::workshop::Workshop;
use crate::runner::Command;
use crate::status;

/// The service manager answers at once or not at all.
const PATIENCE: Duration = Duration::from_secs(20);

/// What an update writes to.
const WRITTEN: [&str; 4] = ["/", "/usr", "/var", "/boot"];

const UNIT: &str = "evenkeel-agent.service";

/// Looks at the machine.
pub async fn look(workshop: &Workshop<'_>) -> Vec<Finding> {
    let mut findings = vec![disk(workshop), waiting(workshop)];
    // Another root's services are not those of the service manager that runs.
    if workshop.has_systemd() {
        findings.push(service(workshop).await);
    }
    findings
}

fn disk(workshop: &Workshop<'_>) -> Finding {
    let least = workshop.config.gate.min_free;
    let place = workshop.place;
    let folders: Vec<(String, PathBuf)> = if workshop.has_packages() {
        let inside = |folder: &&str| ((*folder).to_owned(), place.inside(folder));
        WRITTEN.iter().map(inside).collect()
    } else {
        // What runs is an image, which nothing writes to.
        let state = place.state();
        vec![(state.display().to_string(), state.to_owned())]
    };
    let full = folders.iter().filter_map(|(name, folder)| {
        let free = free(folder)?;
        (free < least).then(|| format!("{name} has {} free", text::bytes(free)))
    });
    let full: Vec<_> = full.collect();
    if full.is_empty() {
        return Finding::good("disk", "enough is free");
    }
    let wanted = text::bytes(least);
    Finding::bad(
        "disk",
        full.join(", "),
        format!(
            "make room: updates begin with {wanted} beside what they need (`gate.min_free`); `apt-get clean` may help"
        ),
    )
}

/// Bytes that root can still write; `None` if the folder is not there.
fn free(folder: &Path) -> Option<u64> {
    let about = rustix::fs::statvfs(folder).ok()?;
    Some(about.f_bavail.saturating_mul(about.f_frsize))
}

fn waiting(workshop: &Workshop<'_>) -> Finding {
    let last = status::read(&workshop.place.status()).unwrap_or_default();
    if !last.waiting.is_empty() {
        return Finding::doubtful(
            "waiting",
            last.waiting,
            "what is prepared begins after that",
        );
    }
    match workshop.owner.may_begin() {
        Ok(()) => Finding::good("waiting", "nothing keeps an update from beginning"),
        Err(why) => Finding::doubtful("waiting", why, "an update would begin after that"),
    }
}

async fn service(workshop: &Workshop<'_>) -> Finding {
    let command = Command::new("systemctl", PATIENCE).with([
        "show",
        "--property=LoadState,ActiveState,UnitFileState,WatchdogUSec",
        UNIT,
    ]);
    match workshop.runner.run(&command).await {
        Ok(output) if output.succeeded() => of_unit(&output.stdout),
        Ok(output) => Finding::doubtful("service", output.words(), "is systemd running?"),
        Err(error) => Finding::doubtful("service", error.to_string(), "is systemd running?"),
    }
}

/// Reads what `systemctl show` prints.
fn of_unit(shown: &str) -> Finding {
    let value = |name: &str| {
        let mut lines = shown.lines();
        let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
        value.unwrap_or_default()
    };
    let start = format!("`systemctl enable --now {UNIT}`");
    match (value("LoadState"), value("ActiveState")) {
        ("loaded", "active") if value("UnitFileState") != "enabled" => Finding::doubtful(
            "service",
            "runs, and will not after the next boot",
            format!("systemctl enable {UNIT}"),
        ),
        ("loaded", "active") if matches!(value("WatchdogUSec"), "" | "0" | "infinity") => {
            Finding::doubtful(
                "service",
                "runs, and nobody notices if it hangs",
                "set WatchdogSec= in the unit",
            )
        }
        ("loaded", "active") => Finding::good("service", "runs, watched by systemd"),
        ("loaded", state) => Finding::bad(
            "service",
            format!("{UNIT} is {state}"),
            format!("{start}, then `systemctl status {UNIT}`"),
        ),
        _ => Finding::bad(
            "service",
            format!("there is no unit {UNIT}"),
            format!("install the package of the agent, then {start}"),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::doctor::Outcome;

    #[test]
    fn the_unit_must_be_there_run_and_come_up_again() {
        let shown = |load: &str, active: &str, file: &str, watchdog: &str| {
            let text = format!(
                "LoadState={load}\nActiveState={active}\nUnitFileState={file}\nWatchdogUSec={watchdog}\n"
            );
            of_unit(&text).outcome
        };
        assert_eq!(shown("loaded", "active", "enabled", "10min"), Outcome::Good);
        assert_eq!(shown("loaded", "active", "enabled", "0"), Outcome::Doubtful);
        assert_eq!(
            shown("loaded", "active", "disabled", "10min"),
            Outcome::Doubtful
        );
        assert_eq!(shown("loaded", "failed", "enabled", "10min"), Outcome::Bad);
        assert_eq!(shown("not-found", "inactive", "", "0"), Outcome::Bad);
        assert_eq!(of_unit("").outcome, Outcome::Bad);
    }

    #[test]
    fn a_folder_that_is_not_there_is_not_full() {
        assert_eq!(free(Path::new("/no/such/folder")), None);
        assert!(free(Path::new("/")).is_some());
    }
}
