//! Runs that the servers recorded, as the REST API returns them.

use std::sync::Arc;

use evenkeel_simulator::clock::Time;
use serde_json::Value;
use tokio::task::JoinSet;
use uuid::Uuid;

use super::operator_client::OperatorClient;

#[derive(Clone, Debug, Default)]
pub struct Run {
    pub id: String,
    /// ID of the instance.
    pub instance: String,
    /// The agent's ID of the run.
    pub attempt: Option<Uuid>,
    /// Current state.
    pub state: String,
    /// Image versions: the one before, the target, and the one that was booted in the end (empty if unknown). `None`
    /// for a run with packages.
    pub image: Option<(String, String, String)>,
    /// Events in order.
    pub events: Vec<RunEntry>,
}

/// An event of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunEntry {
    /// Name of the event.
    pub event: String,
    /// State after the event.
    pub state: String,
    /// Sequence number that the agent gave it; `None` for an event of the server.
    pub sequence: Option<u32>,
    /// Time at which the server stored it.
    pub at: Time,
}

/// Number of concurrent readers.
const CONCURRENT_READERS: usize = 8;

/// States in which a run has ended.
const END_STATES: &[&str] = &["succeeded", "failed", "reverted", "cancelled", "abandoned"];

impl Run {
    /// Time of the first event.
    pub fn opened_at(&self) -> Option<Time> {
        self.events.first().map(|entry| entry.at)
    }

    /// Time at which the run reached an end state first.
    pub fn ended_at(&self) -> Option<Time> {
        let ended = self.events.iter().find(|entry| END_STATES.contains(&entry.state.as_str()));
        ended.map(|entry| entry.at)
    }

    pub fn has_ended(&self) -> bool {
        END_STATES.contains(&self.state.as_str())
    }

    /// Parses a run from a REST answer.
    ///
    /// # Panics
    /// An event has no time.
    pub fn from_json(value: &Value) -> Self {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let entry = |value: &Value| RunEntry {
            event: text(&value["event"]),
            state: text(&value["state"]),
            sequence: value["sequence"].as_u64().and_then(|number| u32::try_from(number).ok()),
            at: text(&value["time"]).parse().expect("a time"),
        };
        let image = |image: &Value| {
            (text(&image["before"]), text(&image["desired"]), text(&image["booted"]))
        };
        Self {
            id: text(&value["resourceId"]),
            instance: text(&value["instance"]["resourceId"]),
            attempt: text(&value["attempt"]).parse().ok(),
            state: text(&value["state"]),
            image: Some(&value["image"]).filter(|it| it.is_object()).map(image),
            events: value["events"].as_array().into_iter().flatten().map(entry).collect(),
        }
    }
}

/// Reads all runs.
///
/// # Panics
/// No server answers in time.
pub async fn read_runs(client: &OperatorClient) -> Vec<Run> {
    let mut ids = Vec::new();
    loop {
        let page = client.get(&format!("os-update-runs?pageSize=100&offset={}", ids.len())).await;
        let runs = page["osUpdateRuns"].as_array().cloned().unwrap_or_default();
        if runs.is_empty() {
            break;
        }
        ids.extend(
            runs.iter().map(|run| run["resourceId"].as_str().unwrap_or_default().to_owned()),
        );
    }
    let mut tasks = JoinSet::new();
    let ids: Arc<[String]> = ids.into();
    for reader in 0..CONCURRENT_READERS {
        let (client, ids) = (client.clone(), Arc::clone(&ids));
        tasks.spawn(async move {
            let mut runs = Vec::new();
            for (at, id) in ids.iter().enumerate().skip(reader).step_by(CONCURRENT_READERS) {
                let run = client.get(&format!("os-update-runs/{id}")).await;
                runs.push((at, Run::from_json(&run)));
            }
            runs
        });
    }
    let mut runs = tasks.join_all().await.concat();
    runs.sort_by_key(|(at, _)| *at);
    runs.into_iter().map(|(_, run)| run).collect()
}
