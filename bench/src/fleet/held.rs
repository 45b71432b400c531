//! An operator's change that concerns every node, and how long it takes until each one has it.

use std::time::Duration;

use anyhow::Context;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::drivers::Drivers;
use super::histogram::Histogram;
use crate::report::remark;
use crate::rest::client::{Asked, Client};
use crate::station::Station;

/// The policy of the project.
const ASSIGNMENT: &str = "/assignments/project";

/// How long it takes at most until all of those that heard of a change are held again.
const AGAIN: Duration = Duration::from_secs(12);

/// What came of changes.
#[derive(Clone, Debug)]
pub struct Changed {
    /// How long after the operator's request each node had its new decision.
    pub latencies: Histogram,
    /// How many nodes had none in the end.
    pub missed: u64,
}

/// Takes the policy from all nodes, and then gives them another one. `own` is how many of ours there are; each is waited
/// for as long as `patience`.
pub async fn change(
    station: &Station,
    drivers: &mut Drivers,
    own: u64,
    patience: Duration,
) -> anyhow::Result<Changed> {
    let client = Client::of(station)?;
    let body = json!({"name": "another", "updatePolicy": "UPDATE_POLICY_LATEST"});
    let (_, made) = client
        .ask(&Asked::post("/os-update-policies", body))
        .await?;
    let made: Value = serde_json::from_slice(&made)?;
    let policy = made["resourceId"].as_str().context("a policy's id")?;
    let changes = [
        ("take its policy from", Asked::delete(ASSIGNMENT)),
        (
            "give another policy to",
            Asked::put(ASSIGNMENT, json!({"osUpdatePolicyId": policy})),
        ),
    ];
    let mut all = Changed {
        latencies: Histogram::default(),
        missed: 0,
    };
    for (what, asked) in changes {
        remark(&format!("change: {what} the project"));
        drivers.watch().await?;
        client.ask(&asked).await?;
        let end = Instant::now() + patience;
        while drivers.changed().count() < own && Instant::now() < end {
            drivers.listen(Duration::from_millis(250)).await?;
        }
        all.missed += own.saturating_sub(drivers.changed().count());
        all.latencies.merge(drivers.changed());
        // What comes late belongs to this change and not to the next one, which all of them wait for again.
        drivers.listen(AGAIN).await?;
    }
    Ok(all)
}
