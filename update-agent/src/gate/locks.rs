//! The locks of others: programs that ask logind not to let the system go down.

use std::time::Duration;

use serde::Deserialize;

use crate::hooks::in_one_line;
use crate::inhibitor;
use crate::runner::{Command, Runner};

/// logind answers at once, or not at all.
const DEADLINE: Duration = Duration::from_secs(10);

/// What logind says of its locks: a list with one element, the list of the locks.
#[derive(Deserialize)]
struct Answer {
    data: Vec<Vec<Lock>>,
}

/// What it keeps away, whose it is, why, how, and for which user and process.
type Lock = (String, String, String, String, u32, u32);

/// Whether nobody keeps the system from going down, which a change may end with; else who does. Without logind there are
/// no such locks.
pub async fn look(runner: &dyn Runner) -> Result<(), String> {
    let command = Command::new("busctl", DEADLINE).with([
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
            tracing::debug!(said = output.words(), "logind does not tell its locks");
            return Ok(());
        }
        Err(error) => {
            tracing::debug!(%error, "logind cannot be asked for its locks");
            return Ok(());
        }
    };
    let answer: Answer = match serde_json::from_str(&output.stdout) {
        Ok(answer) => answer,
        Err(error) => {
            tracing::warn!(%error, "logind's locks are not understood");
            return Ok(());
        }
    };
    let mut locks = answer.data.iter().flatten();
    match locks.find(|lock| is_in_the_way(lock)) {
        Some((_, who, why, ..)) => Err(format!(
            "{} does not let the system go down: {}",
            in_one_line(who),
            in_one_line(why)
        )),
        None => Ok(()),
    }
}

/// A lock of the other kind, `delay`, is waited for by logind itself.
fn is_in_the_way((what, who, _, how, ..): &Lock) -> bool {
    how == "block" && who != inhibitor::WHO && what.split(':').any(|what| what == "shutdown")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hooks::fake::Fake;

    const OTHERS: &str = r#"{"type":"a(ssssuu)","data":[[["sleep","NetworkManager","NetworkManager needs to turn off networks","delay",0,312],["shutdown","Unattended Upgrades Shutdown","Stop ongoing upgrades","delay",0,400],["handle-lid-switch:sleep","gdm","a greeter","block",0,401],["shutdown:sleep:idle","evenkeel-agent","packages are changed","block",0,500]"#;

    async fn asked(answer: &str) -> Result<(), String> {
        look(&Fake::default().says("busctl", 0, answer)).await
    }

    #[tokio::test]
    async fn a_lock_against_shutting_down_is_honoured() {
        let answer = format!(
            "{OTHERS},[\"sleep:shutdown\",\"backup\",\"writing\\nto tape\",\"block\",0,7]]]}}\n"
        );
        assert_eq!(
            asked(&answer).await.unwrap_err(),
            "backup does not let the system go down: writing to tape"
        );
    }

    #[tokio::test]
    async fn locks_that_delay_or_keep_off_something_else_and_our_own_are_passed_over() {
        asked(&format!("{OTHERS}]]}}")).await.unwrap();
        asked(r#"{"type":"a(ssssuu)","data":[[]]}"#).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_system_without_logind_has_no_locks() {
        look(&Fake::default()).await.unwrap();
        let silent = Fake::default().says("busctl", 1, "Failed to connect");
        look(&silent).await.unwrap();
        look(&Fake::default().hangs("busctl")).await.unwrap();
        asked("Oops").await.unwrap();
    }
}
