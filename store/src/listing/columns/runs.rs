//! Update runs.

use super::{Column, Link, ResourceTable, project_table};

pub const RUN: ResourceTable = ResourceTable {
    tally: Some("run"),
    references: &[
        Column::reference(
            "os_update_run_resource_applied_policy",
            "(@.policy_id::bigint & 4294967295)",
        ),
        Column::reference(
            "os_update_run_resource_instance",
            "(@.instance_id::bigint & 4294967295)",
        ),
    ],
    ..project_table("update_runs @", COLUMNS, LINKS)
};

const COLUMNS: &[Column] = &[
    Column::ID,
    Column::new("name", "@.name").folded("@.name_folded"),
    Column::new("description", "@.description").long(),
    Column::new("status", STATUS),
    Column::new("status_indicator", INDICATION),
    Column::new("status_timestamp", "@.state_since"),
    Column::new("start_time", "@.started_at"),
    Column::new("end_time", "@.ended_at").nullable(),
    Column::new("state", "@.state"),
    Column::new("reason", REASON).long(),
    Column::uuid("attempt", "@.attempt"),
    Column::new("log", "@.log").long(),
    Column::new("created_at", "@.started_at"),
    Column::new("updated_at", "@.state_since"),
];

const LINKS: &[Link] = &[
    // The policy may have been deleted.
    Link::new("applied_policy", "#.id = @.policy_id"),
    Link::keyed("instance", "#.id = @.instance_id", "@.instance_id"),
];

/// The text that `StoredState::status` returns for the state.
const STATUS: &str = "CASE @.state WHEN 'downloading' THEN 'Downloading artifacts' \
    WHEN 'staged' THEN 'Download complete' WHEN 'succeeded' THEN 'Update completed' \
    WHEN 'cancelled' THEN 'Update cancelled' WHEN 'failed' THEN 'Update failed' \
    WHEN 'reverted' THEN 'Update failed' WHEN 'abandoned' THEN 'Update failed' \
    WHEN 'applying' THEN 'Updating' WHEN 'rebooting' THEN 'Updating' \
    WHEN 'verifying' THEN 'Updating' WHEN 'reverting' THEN 'Updating' ELSE @.state END";

/// The indication that `StoredState::status` returns for the state.
const INDICATION: &str = "CASE WHEN @.state IN ('downloading', 'staged', 'succeeded', 'cancelled') THEN 'idle' \
    WHEN @.state IN ('failed', 'reverted', 'abandoned') THEN 'error' \
    WHEN @.state IN ('applying', 'rebooting', 'verifying', 'reverting') THEN 'in_progress' \
    ELSE 'unspecified' END";

/// The reason of the end, as the REST API renders it.
const REASON: &str = "CASE WHEN @.state IN ('failed', 'reverted') THEN @.failure_kind || ': ' || @.failure \
    WHEN @.state IN ('cancelled', 'abandoned') THEN @.cause \
    WHEN @.state = 'succeeded' AND NOT @.changed AND @.report->'held_back_counts' IS NOT NULL \
    THEN 'newer versions are held back' \
    WHEN @.state = 'succeeded' AND NOT @.changed THEN 'nothing to do' ELSE coalesce(@.cause, '') END";

#[cfg(test)]
mod tests {
    use chrono::DateTime;
    use evenkeel_domain::run::{AbandonCause, CancelCause, Failure, FailureKind, RunState};

    use super::*;

    /// The text that follows a state in the SQL of a column.
    fn mapped_text<'a>(sql: &'a str, state: &str) -> &'a str {
        let at = sql.find(&format!("'{state}'")).expect("the state");
        let rest = sql[at..].split_once("THEN '").expect("a text").1;
        rest.split_once('\'').expect("its end").0
    }

    #[test]
    fn status_texts_match_the_domain() {
        let (since, at) = (DateTime::UNIX_EPOCH, DateTime::UNIX_EPOCH);
        let failure = || Failure { kind: FailureKind::ALL[0], reason: String::new() };
        let cause = CancelCause::ALL[0];
        let states = [
            RunState::Downloading { since },
            RunState::Staged { since },
            RunState::Applying { since },
            RunState::Rebooting { since },
            RunState::Verifying { since },
            RunState::Reverting { since },
            RunState::Succeeded { at, changed: true },
            RunState::Failed { at, failure: failure() },
            RunState::Reverted { at, failure: failure() },
            RunState::Cancelled { at, cause },
            RunState::Abandoned { at, cause: AbandonCause::TimedOut },
        ];
        for state in states {
            let (text, indication) = state.status();
            assert_eq!(mapped_text(STATUS, state.name()), text);
            assert_eq!(mapped_text(INDICATION, state.name()), indication.name());
        }
    }
}
