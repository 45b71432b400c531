//! Inhibitor locks of logind, with which other programs block a shutdown.

use std::time::Duration;

use serde::Deserialize;

use crate::hooks::to_one_line;
use crate::inhibitor;
use crate::runner::{Command, Runner};

/// Time limit for `busctl`. logind answers at once or not at all.
const LOGIND_TIMEOUT: Duration = Duration::from_secs(10);

/// Answer of logind: a list with one element, the list of locks.
#[derive(Deserialize)]
struct InhibitorList {
    data: Vec<Vec<InhibitorEntry>>,
}

/// Inhibited actions, owner, reason, mode, user and process.
type InhibitorEntry = (String, String, String, String, u32, u32);

/// Fails with the owner and the reason if a program blocks a shutdown, because a change may need a
/// reboot. Without logind there are no such locks.
pub async fn check_logind_locks(runner: &dyn Runner) -> Result<(), String> {
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
        Ok(output) => {
            tracing::debug!(output = output.combined_output(), "logind does not list its locks");
            return Ok(());
        }
        Err(error) => {
            tracing::debug!(%error, "cannot list the locks of logind");
            return Ok(());
        }
    };
    let answer: InhibitorList = match serde_json::from_str(&output.stdout) {
        Ok(answer) => answer,
        Err(error) => {
            tracing::warn!(%error, "cannot parse the locks of logind");
            return Ok(());
        }
    };
    let mut locks = answer.data.iter().flatten();
    match locks.find(|lock| blocks_shutdown(lock)) {
        Some((_, who, why, ..)) => {
            Err(format!("{} blocks a shutdown: {}", to_one_line(who), to_one_line(why)))
        }
        None => Ok(()),
    }
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

    async fn check_answer(answer: &str) -> Result<(), String> {
        check_logind_locks(&FakeRunner::default().returns("busctl", 0, answer)).await
    }

    #[tokio::test]
    async fn a_lock_against_shutting_down_is_honoured() {
        let answer = format!(
            "{OTHER_LOCKS},[\"sleep:shutdown\",\"backup\",\"writing\\nto tape\",\"block\",0,7]]]}}\n"
        );
        assert_eq!(
            check_answer(&answer).await.unwrap_err(),
            "backup blocks a shutdown: writing to tape"
        );
    }

    #[tokio::test]
    async fn delay_locks_other_locks_and_our_own_are_ignored() {
        check_answer(&format!("{OTHER_LOCKS}]]}}")).await.unwrap();
        check_answer(r#"{"type":"a(ssssuu)","data":[[]]}"#).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_system_without_logind_has_no_locks() {
        check_logind_locks(&FakeRunner::default()).await.unwrap();
        let silent = FakeRunner::default().returns("busctl", 1, "Failed to connect");
        check_logind_locks(&silent).await.unwrap();
        check_logind_locks(&FakeRunner::default().hangs("busctl")).await.unwrap();
        check_answer("Oops").await.unwrap();
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
        fuzz("inhibitors", |rng| {
            let answer = text(rng, &samples, "{}[]\",:\\u0001nblockshutdown 0123456789\u{1b}");
            let runner = FakeRunner::default().returns("busctl", 0, &answer);
            if let Err(reason) = runtime.block_on(check_logind_locks(&runner)) {
                assert!(!reason.contains(char::is_control) && reason.len() < 1_000, "{reason:?}");
            }
        });
    }
}
