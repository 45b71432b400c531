//! Inhibitor locks of logind, with which other programs block a shutdown.

use std::io;
use std::ops::RangeInclusive;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use serde::Deserialize;

use crate::durable;
use crate::hooks::to_one_line;
use crate::inhibitor;
use crate::os;
use crate::other_updaters::{UnitFileState, read_unit_file_state};
use crate::paths::AgentPaths;
use crate::runner::{Command, RunError, Runner};

/// Time limit for `busctl`. logind answers at once or not at all.
const LOGIND_TIMEOUT: Duration = Duration::from_secs(10);

/// Programs get locks only if these units are installed.
const LOGIND_UNITS: [&str; 2] = ["systemd-logind.service", "dbus.socket"];

/// User IDs of ordinary users (login.defs(5), systemd-homed.service(8)). Those below belong to the system.
const ORDINARY_USERS: RangeInclusive<u32> = 1_000..=60_513;

/// User IDs from here on are assigned by directories of users. Those in between belong to the system, such as the
/// dynamic users of services and `nobody`.
const FIRST_DIRECTORY_USER: u32 = 65_536;

/// Answer of logind: a list with one element, the list of locks.
#[derive(Deserialize)]
struct InhibitorList {
    data: Vec<Vec<InhibitorEntry>>,
}

/// Inhibited actions, owner, reason, mode, user and process.
type InhibitorEntry = (String, String, String, String, u32, u32);

/// A lock of another program that blocks a shutdown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShutdownLock {
    /// The owner and the reason, for people.
    pub reason: String,
    /// Whether the lock delays a change only up to a limit: an ordinary user holds it, for example with a program of a
    /// desktop, or it is unknown whether there is a lock.
    pub is_limited: bool,
}

/// Checks a lock before the start of a change. Limited locks delay changes for `max_delay` at most, from the first check that
/// finds one until a check finds none; otherwise one forgotten program would stop all updates. This time is stored: the
/// window of a change may be shorter than the limit, and the next window may have another plan. The error is the reason of
/// the lock.
pub fn check_start_lock(
    paths: &AgentPaths,
    lock: Option<ShutdownLock>,
    now: DateTime<Utc>,
    max_delay: Duration,
) -> Result<(), String> {
    let stored = read_delay_start(paths);
    let Some(lock) = lock else {
        if stored.is_some() {
            store_delay_start(paths, None);
        }
        return Ok(());
    };
    if !lock.is_limited {
        return Err(lock.reason);
    }
    // A delay that began in the future means that the clock was turned back.
    let since = stored.filter(|since| *since <= now).unwrap_or(now);
    if stored != Some(since) {
        store_delay_start(paths, Some(since));
    }
    let max_delay = TimeDelta::from_std(max_delay).unwrap_or(TimeDelta::MAX);
    if now.signed_duration_since(since) < max_delay {
        return Err(lock.reason);
    }
    tracing::warn!(lock = lock.reason, "a lock has delayed the update up to the limit");
    Ok(())
}

/// Since when limited locks delay changes; `None` if there are none.
fn read_delay_start(paths: &AgentPaths) -> Option<DateTime<Utc>> {
    let content = durable::read_file(&paths.user_lock()).ok()??;
    let text = String::from_utf8(content).ok()?;
    let since = DateTime::parse_from_rfc3339(text.trim()).ok()?;
    Some(since.with_timezone(&Utc))
}

/// Stores since when limited locks delay changes. A failure is logged: then the delay only lasts longer.
fn store_delay_start(paths: &AgentPaths, since: Option<DateTime<Utc>>) {
    let file = paths.user_lock();
    let stored = match since {
        Some(since) => durable::replace_file(&file, since.to_rfc3339().as_bytes(), 0o600),
        None => durable::remove_file(&file),
    };
    if let Err(error) = stored {
        tracing::warn!(error = %evenkeel_kit::chain(&error), "cannot store how long a lock delays changes");
    }
}

/// A lock of another program that blocks a shutdown, because a change may need a reboot. Locks of the system come first.
/// Without logind there are no such locks; a logind that does not answer may have one.
pub async fn find_shutdown_lock(paths: &AgentPaths, runner: &dyn Runner) -> Option<ShutdownLock> {
    let command = Command::new("busctl", LOGIND_TIMEOUT).with_arguments([
        "--json=short",
        "call",
        "org.freedesktop.login1",
        "/org/freedesktop/login1",
        "org.freedesktop.login1.Manager",
        "ListInhibitors",
    ]);
    let output = match runner.run(&command).await {
        Ok(output) if output.succeeded() => output,
        Ok(output) if has_logind(paths) => {
            tracing::warn!(output = output.combined_output(), "logind does not list its locks");
            return Some(unknown_lock());
        }
        Ok(output) => {
            tracing::debug!(output = output.combined_output(), "there is no logind");
            return None;
        }
        Err(RunError::Start { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            tracing::debug!("there is no busctl, and so no systemd");
            return None;
        }
        Err(error) => {
            tracing::warn!(%error, "cannot list the locks of logind");
            return Some(unknown_lock());
        }
    };
    let answer: InhibitorList = match serde_json::from_str(&output.stdout) {
        Ok(answer) => answer,
        Err(error) => {
            tracing::warn!(%error, "cannot parse the locks of logind");
            return Some(unknown_lock());
        }
    };
    let locks = answer.data.iter().flatten().filter(|lock| blocks_shutdown(lock));
    let locks = locks.map(|(_, who, why, _, user, _)| ShutdownLock {
        reason: format!("{} blocks a shutdown: {}", to_one_line(who), to_one_line(why)),
        is_limited: is_ordinary_user(*user),
    });
    locks.min_by_key(|lock| lock.is_limited)
}

/// Whether programs can get locks on this system. If D-Bus fails, a program may have got one before.
fn has_logind(paths: &AgentPaths) -> bool {
    let is_usable = |unit: &str| {
        let state = read_unit_file_state(paths, unit);
        !matches!(state, UnitFileState::Missing | UnitFileState::Masked)
    };
    os::runs_systemd(paths) && LOGIND_UNITS.into_iter().all(is_usable)
}

fn is_ordinary_user(user: u32) -> bool {
    ORDINARY_USERS.contains(&user) || user >= FIRST_DIRECTORY_USER
}

/// Stands for the locks of a logind that does not list them. Its limit ends the delay if logind stays broken.
fn unknown_lock() -> ShutdownLock {
    let reason =
        "it is unknown whether a program blocks a shutdown, because logind does not answer";
    ShutdownLock { reason: reason.to_owned(), is_limited: true }
}

/// Whether a lock blocks a shutdown. logind itself waits for locks of the mode `delay`.
fn blocks_shutdown((what, who, _, how, ..): &InhibitorEntry) -> bool {
    how == "block" && who != inhibitor::LOCK_OWNER && what.split(':').any(|what| what == "shutdown")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hooks::fake::FakeRunner;

    const OTHER_LOCKS: &str = r#"{"type":"a(ssssuu)","data":[[["sleep","NetworkManager","NetworkManager needs to turn off networks","delay",0,312],["shutdown","Unattended Upgrades Shutdown","Stop ongoing upgrades","delay",0,400],["handle-lid-switch:sleep","gdm","a greeter","block",0,401],["shutdown:sleep:idle","evenkeel-agent","packages are changed","block",0,500]"#;

    /// The lock on a system without files, so without systemd.
    async fn find_lock_with(runner: FakeRunner) -> Option<ShutdownLock> {
        let root = tempfile::tempdir().unwrap();
        find_shutdown_lock(&AgentPaths::new(root.path(), None), &runner).await
    }

    async fn find_lock(answer: &str) -> Option<ShutdownLock> {
        find_lock_with(FakeRunner::default().returns("busctl", 0, answer)).await
    }

    fn test_lock(is_limited: bool) -> ShutdownLock {
        ShutdownLock { reason: "it burns a disc".to_owned(), is_limited }
    }

    #[tokio::test]
    async fn a_lock_against_shutting_down_is_honoured() {
        let answer = format!(
            "{OTHER_LOCKS},[\"sleep:shutdown\",\"backup\",\"writing\\nto tape\",\"block\",0,7]]]}}\n"
        );
        let reason = "backup blocks a shutdown: writing to tape".to_owned();
        assert_eq!(find_lock(&answer).await, Some(ShutdownLock { reason, is_limited: false }));
    }

    #[tokio::test]
    async fn a_lock_of_the_system_comes_before_a_lock_of_a_user() {
        let user = r#"["shutdown","brasero","burning","block",1000,8]"#;
        let answer = format!("{OTHER_LOCKS},{user}]]}}");
        assert!(find_lock(&answer).await.unwrap().is_limited);
        let system = r#"["shutdown","backup","writing","block",34,9]"#;
        let answer = format!("{OTHER_LOCKS},{user},{system}]]}}");
        let reason = "backup blocks a shutdown: writing".to_owned();
        assert_eq!(find_lock(&answer).await, Some(ShutdownLock { reason, is_limited: false }));
    }

    #[test]
    fn a_lock_of_a_user_delays_the_start_up_to_a_limit() {
        let root = tempfile::tempdir().unwrap();
        let paths = AgentPaths::new(root.path(), None);
        paths.prepare().unwrap();
        // Each check is like one of another agent and another attempt.
        let check = |is_limited: Option<bool>, minutes: i64| {
            let lock = is_limited.map(test_lock);
            let now = DateTime::UNIX_EPOCH + TimeDelta::minutes(minutes);
            check_start_lock(&paths, lock, now, Duration::from_mins(30)).is_ok()
        };
        assert!(!check(Some(true), 0));
        assert!(!check(Some(false), 10));
        assert!(!check(Some(true), 29));
        assert!(check(Some(true), 30));
        assert!(!check(Some(false), 30), "a lock of the system has no limit");
        assert!(check(Some(true), 24 * 60), "also for the plan of the next night");
        assert!(check(None, 31));
        assert!(!paths.user_lock().exists());
        assert!(!check(Some(true), 32), "the limit applies to each delay");
        assert!(!check(Some(true), -100), "the clock was turned back");
        assert!(check(Some(true), -70));
    }

    #[tokio::test]
    async fn delay_locks_other_locks_and_our_own_are_ignored() {
        assert_eq!(find_lock(&format!("{OTHER_LOCKS}]]}}")).await, None);
        assert_eq!(find_lock(r#"{"type":"a(ssssuu)","data":[[]]}"#).await, None);
    }

    #[tokio::test]
    async fn a_service_with_a_dynamic_user_is_no_ordinary_user() {
        for (user, is_limited) in [
            (0, false),
            (999, false),
            (1_000, true),
            (60_513, true),
            (61_184, false),
            (65_519, false),
            (65_534, false),
            (1_234_567, true),
        ] {
            let answer = format!(
                "{OTHER_LOCKS},[\"shutdown\",\"backup\",\"writing\",\"block\",{user},9]]]}}"
            );
            assert_eq!(find_lock(&answer).await.unwrap().is_limited, is_limited, "{user}");
        }
    }

    #[tokio::test]
    async fn a_system_without_logind_has_no_locks() {
        assert_eq!(find_lock_with(FakeRunner::default()).await, None);
        let silent = FakeRunner::default().returns("busctl", 1, "Failed to connect");
        assert_eq!(find_lock_with(silent).await, None);
    }

    /// Also with a non-zero status: D-Bus may have failed after a program got its lock.
    #[tokio::test]
    async fn an_installed_logind_that_cannot_be_called_may_have_a_lock() {
        let root = tempfile::tempdir().unwrap();
        let paths = AgentPaths::new(root.path(), None);
        let runner = FakeRunner::default().returns("busctl", 1, "Failed to connect");
        let units = paths.inside("/usr/lib/systemd/system");
        for folder in [&units, &paths.inside("/run/systemd/system")] {
            std::fs::create_dir_all(folder).unwrap();
        }
        std::fs::write(units.join("dbus.socket"), "[Socket]\n").unwrap();
        assert_eq!(find_shutdown_lock(&paths, &runner).await, None, "logind is not installed");

        let unit = units.join("systemd-logind.service");
        std::fs::write(&unit, "[Service]\n").unwrap();
        assert_eq!(find_shutdown_lock(&paths, &runner).await, Some(unknown_lock()));

        std::fs::remove_file(&unit).unwrap();
        std::os::unix::fs::symlink("/dev/null", &unit).unwrap();
        assert_eq!(find_shutdown_lock(&paths, &runner).await, None, "logind is masked");
    }

    #[tokio::test(start_paused = true)]
    async fn a_logind_that_does_not_answer_delays_a_change_up_to_the_limit() {
        let hanging = find_lock_with(FakeRunner::default().hangs("busctl")).await;
        assert_eq!(hanging, find_lock("Oops").await);
        let root = tempfile::tempdir().unwrap();
        let paths = AgentPaths::new(root.path(), None);
        paths.prepare().unwrap();
        let (start, max_delay) = (DateTime::UNIX_EPOCH, Duration::from_mins(30));
        let why = check_start_lock(&paths, hanging.clone(), start, max_delay).unwrap_err();
        assert!(why.contains("logind does not answer"), "{why}");
        let later = start + TimeDelta::minutes(30);
        assert!(check_start_lock(&paths, hanging, later, max_delay).is_ok());
    }
}

#[cfg(test)]
mod fuzz {
    use super::*;
    use crate::fuzz_driver::{fuzz, text};
    use crate::hooks::fake::FakeRunner;

    #[test]
    fn any_answer_of_logind_is_a_lock_or_none() {
        let samples = [
            r#"{"type":"a(ssssuu)","data":[[["sleep","NetworkManager","x","delay",0,312],
                ["shutdown:sleep","backup","writing\u001b[2J\nto tape","block",0,7]]]}"#,
            r#"{"type":"a(ssssuu)","data":[[]]}"#,
        ];
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let paths = AgentPaths::new("/nowhere", None);
        fuzz("inhibitors", |rng| {
            let answer = text(rng, &samples, "{}[]\",:\\u0001nblockshutdown 0123456789\u{1b}");
            let runner = FakeRunner::default().returns("busctl", 0, &answer);
            let lock = runtime.block_on(find_shutdown_lock(&paths, &runner));
            if let Some(ShutdownLock { reason, .. }) = lock {
                assert!(!reason.contains(char::is_control) && reason.len() < 1_000, "{reason:?}");
            }
        });
    }
}
