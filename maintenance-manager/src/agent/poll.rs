//! A poll: says what is known about the node and asks what to do.

use std::time::Duration;

use evenkeel_domain::Time;
use evenkeel_domain::decide::Decision;
use evenkeel_domain::host::Host;
use evenkeel_domain::id::{HostId, scatter};
use evenkeel_proto::agent::{PollRequest, PollResponse};
use evenkeel_store::nodes::NodeState;
use evenkeel_store::{StoreError, decisions, nodes};
use tonic::Status;

use crate::agent::wire::{self, timestamp};
use crate::agent::{facts, report};
use crate::caller::Node;
use crate::manager::MaintenanceManager;
use crate::progress::Scene;
use crate::settings::delta;
use crate::status;

/// Answers a poll.
pub async fn poll(
    manager: &MaintenanceManager,
    node: &Node,
    request: PollRequest,
) -> Result<PollResponse, Status> {
    let (known, decision) = match request.facts {
        Some(said) => with_news(manager, node, said).await?,
        None => without_news(manager, node).await?,
    };
    let now = manager.now();
    Ok(PollResponse {
        want_facts: known.facts_digest.is_empty() || known.facts_digest != request.facts_digest,
        next_poll_millis: next_poll(manager.settings.poll_interval, node.host, &decision, now),
        now: Some(timestamp(now)),
        credential: renewed(manager, node, now)?,
        decision: Some(wire::decision(decision)),
    })
}

/// News is written before the answer.
async fn with_news(
    manager: &MaintenanceManager,
    node: &Node,
    said: evenkeel_proto::agent::Facts,
) -> Result<(NodeState, Decision), Status> {
    let scene = Scene::open(manager, node.tenant, node.host, false).await;
    let mut scene = scene.map_err(status::store)?;
    report::trusted(&scene.host)?;
    facts::take(&mut scene.node, said).map_err(status::invalid)?;
    scene.node.provisioned = true;
    let horizon = manager.settings.horizon();
    let world = decisions::world(&scene.tx, &scene.host, &scene.node, &horizon, scene.now).await;
    let decision = world.map_err(status::store)?.decide(scene.now);
    let known = scene.node.clone();
    scene.commit().await.map_err(status::store)?;
    Ok((known, decision))
}

async fn without_news(
    manager: &MaintenanceManager,
    node: &Node,
) -> Result<(NodeState, Decision), Status> {
    let (host, known, decision) = read(manager, node).await.map_err(status::store)?;
    report::trusted(&host)?;
    manager
        .contacts
        .heard(node.tenant, known.instance, manager.now());
    Ok((known, decision))
}

async fn read(
    manager: &MaintenanceManager,
    node: &Node,
) -> Result<(Host, NodeState, Decision), StoreError> {
    let now = manager.now();
    let (tx, host) = manager.for_host(node.tenant, node.host).await?;
    let known = nodes::find_by_host(&tx, host.id).await?;
    let world = decisions::world(&tx, &host, &known, &manager.settings.horizon(), now).await?;
    Ok((host, known, world.decide(now)))
}

/// When to poll again: within a tenth of the interval, so that nodes that started together come apart; sooner if the
/// answer changes by time alone before that.
fn next_poll(interval: Duration, host: HostId, decision: &Decision, now: Time) -> u32 {
    let interval = i64::try_from(interval.as_millis())
        .unwrap_or(i64::MAX)
        .clamp(100, 86_400_000);
    let tenth = (interval / 10).max(1);
    let noise = i64::from(scatter(host.bits() ^ now.timestamp_subsec_nanos()));
    let usual = interval - tenth + noise % (2 * tenth);
    let due = decision
        .next
        .map_or(usual, |next| (next - now).num_milliseconds() + 1);
    u32::try_from(usual.min(due).max(100)).unwrap_or(u32::MAX)
}

/// A new credential, when two thirds of the present one's life are over.
fn renewed(manager: &MaintenanceManager, node: &Node, now: Time) -> Result<String, Status> {
    let lifetime = delta(manager.settings.credential_lifetime);
    if node.credential_expires - now > lifetime / 3 {
        return Ok(String::new());
    }
    let host = node.host.to_string();
    let issued = manager
        .authority
        .issue_node(node.tenant.uuid(), &host, lifetime, now);
    let issued = issued.map_err(|_| Status::internal("the credential could not be made"))?;
    Ok(issued.token.reveal().to_owned())
}

#[cfg(test)]
mod tests {
    use chrono::{DateTime, TimeDelta};
    use evenkeel_domain::decide::{Act, Reason};

    use super::*;

    fn idle(next: Option<Time>) -> Decision {
        Decision {
            act: Act::Idle,
            because: Reason::NoWindow,
            next,
        }
    }

    #[test]
    fn nodes_that_started_together_come_apart() {
        let now = DateTime::UNIX_EPOCH;
        let interval = Duration::from_secs(20);
        let of = |n| next_poll(interval, HostId::nth(n), &idle(None), now);
        let all: std::collections::BTreeSet<u32> = (0..100).map(of).collect();
        assert!(all.len() > 90, "{} of 100 differ", all.len());
        assert!(all.iter().all(|millis| (18_000..22_000).contains(millis)));
    }

    #[test]
    fn a_node_comes_back_when_its_window_opens() {
        let now = DateTime::UNIX_EPOCH;
        let soon = idle(Some(now + TimeDelta::seconds(3)));
        assert_eq!(
            next_poll(Duration::from_secs(20), HostId::nth(1), &soon, now),
            3_001
        );
    }
}
