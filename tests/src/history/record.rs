//! What servers recorded, as REST shows it.

use std::sync::Arc;

use evenkeel_simulator::clock::Time;
use serde_json::Value;
use tokio::task::JoinSet;
use uuid::Uuid;

use super::desk::Desk;

/// A run.
#[derive(Clone, Debug, Default)]
pub struct Run {
    /// Its id.
    pub id: String,
    /// On which instance.
    pub instance: String,
    /// The agent's own name of it.
    pub attempt: Option<Uuid>,
    /// Where it stands.
    pub state: String,
    /// The versions of an image that ran before, that was wanted and that ran in the end, the last one empty if that is
    /// not known; none if it was for packages.
    pub image: Option<(String, String, String)>,
    /// Everything that happened, in order.
    pub events: Vec<Entry>,
}

/// An entry of its history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// What happened.
    pub event: String,
    /// The state that it led to.
    pub state: String,
    /// The agent's own number of it.
    pub sequence: Option<u32>,
    /// When the server stored it.
    pub at: Time,
}

/// How many ask at the same time.
const READERS: usize = 8;

/// The states in which a run is over.
const ENDS: &[&str] = &["succeeded", "failed", "reverted", "cancelled", "abandoned"];

impl Run {
    /// When it was opened.
    pub fn opened(&self) -> Option<Time> {
        self.events.first().map(|entry| entry.at)
    }

    /// When it was over for the first time.
    pub fn over(&self) -> Option<Time> {
        let ended = self
            .events
            .iter()
            .find(|entry| ENDS.contains(&entry.state.as_str()));
        ended.map(|entry| entry.at)
    }

    /// Whether it is over.
    pub fn is_over(&self) -> bool {
        ENDS.contains(&self.state.as_str())
    }

    /// The run of an answer.
    ///
    /// # Panics
    /// The answer has not the shape of one.
    pub fn of(value: &Value) -> Self {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let entry = |value: &Value| Entry {
            event: text(&value["event"]),
            state: text(&value["state"]),
            sequence: value["sequence"]
                .as_u64()
                .and_then(|number| u32::try_from(number).ok()),
            at: text(&value["time"]).parse().expect("a time"),
        };
        let image = |image: &Value| {
            (
                text(&image["before"]),
                text(&image["wanted"]),
                text(&image["booted"]),
            )
        };
        Self {
            id: text(&value["resourceId"]),
            instance: text(&value["instance"]["resourceId"]),
            attempt: text(&value["attempt"]).parse().ok(),
            state: text(&value["state"]),
            image: Some(&value["image"]).filter(|it| it.is_object()).map(image),
            events: value["events"]
                .as_array()
                .into_iter()
                .flatten()
                .map(entry)
                .collect(),
        }
    }
}

/// Every run that there is.
///
/// # Panics
/// The server does not answer.
pub async fn read_runs(desk: &Desk) -> Vec<Run> {
    let mut ids = Vec::new();
    loop {
        let page = desk
            .get(&format!(
                "/os-update-runs?pageSize=100&offset={}",
                ids.len()
            ))
            .await;
        let runs = page["osUpdateRuns"].as_array().cloned().unwrap_or_default();
        if runs.is_empty() {
            break;
        }
        ids.extend(
            runs.iter()
                .map(|run| run["resourceId"].as_str().unwrap_or_default().to_owned()),
        );
    }
    let mut tasks = JoinSet::new();
    let ids: Arc<[String]> = ids.into();
    for reader in 0..READERS {
        let (desk, ids) = (desk.clone(), Arc::clone(&ids));
        tasks.spawn(async move {
            let mut runs = Vec::new();
            for (at, id) in ids.iter().enumerate().skip(reader).step_by(READERS) {
                let run = desk.get(&format!("/os-update-runs/{id}")).await;
                runs.push((at, Run::of(&run)));
            }
            runs
        });
    }
    let mut runs = tasks.join_all().await.concat();
    runs.sort_by_key(|(at, _)| *at);
    runs.into_iter().map(|(_, run)| run).collect()
}
