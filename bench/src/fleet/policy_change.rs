//! A change of policy that affects every own node, and the time until each node has it.

use std::time::Duration;

use anyhow::Context;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::driver_pool::DriverPool;
use crate::bench_harness::BenchHarness;
use crate::histogram::Histogram;
use crate::report::print_status;
use crate::rest::client::{RequestSpec, RestClient};

/// Path of the project's policy assignment.
const PROJECT_ASSIGNMENT_PATH: &str = "/assignments/project";

/// How long it takes until all nodes that received a change have a long poll again.
const LONG_POLL_REOPEN_TIME: Duration = Duration::from_secs(12);

#[derive(Clone, Debug)]
pub struct PolicyChangeResult {
    /// Time from the operator's request until a node had its new decision.
    pub latencies: Histogram,
    /// Number of nodes that did not receive a new decision.
    pub missed: u64,
}

/// Removes the policy from all nodes, and then assigns another one. `own` is the number of own
/// nodes; each change is waited for until `timeout`.
pub async fn measure(
    harness: &BenchHarness,
    drivers: &mut DriverPool,
    own: u64,
    timeout: Duration,
) -> anyhow::Result<PolicyChangeResult> {
    let client = RestClient::open_session(harness)?;
    let body = json!({"name": "another", "updatePolicy": "UPDATE_POLICY_LATEST"});
    let (_, created) = client.send(&RequestSpec::post("/os-update-policies", body)).await?;
    let created: Value = serde_json::from_slice(&created)?;
    let policy = created["resourceId"].as_str().context("the policy has no id")?;
    let changes = [
        ("removing the policy", RequestSpec::delete(PROJECT_ASSIGNMENT_PATH)),
        (
            "assigning another policy",
            RequestSpec::put(PROJECT_ASSIGNMENT_PATH, json!({"osUpdatePolicyId": policy})),
        ),
    ];
    let mut all = PolicyChangeResult { latencies: Histogram::default(), missed: 0 };
    for (what, spec) in changes {
        print_status(&format!("change: {what}"));
        drivers.watch_decisions().await?;
        client.send(&spec).await?;
        let end = Instant::now() + timeout;
        while drivers.decision_latencies().count() < own && Instant::now() < end {
            drivers.collect_for(Duration::from_millis(250)).await?;
        }
        all.missed += own.saturating_sub(drivers.decision_latencies().count());
        all.latencies.merge(drivers.decision_latencies());
        // Late decisions belong to this change. The next one concerns all nodes again.
        drivers.collect_for(LONG_POLL_REOPEN_TIME).await?;
    }
    Ok(all)
}
