//! A poll: says what is known about the node and asks what to do.

use std::time::Duration;

use evenkeel_domain::Time;
use evenkeel_domain::decide::Decision;
use evenkeel_domain::host::Host;
use evenkeel_domain::id::{HostId, scatter};
use evenkeel_domain::run::AttemptId;
use evenkeel_proto::agent::{Facts, PollRequest, PollResponse};
use evenkeel_store::decisions::{self, World};
use evenkeel_store::nodes::NodeState;
use evenkeel_store::{StoreError, nodes};
use tonic::Status;

use crate::agent::wire::{self, timestamp};
use crate::agent::{begin, facts, report};
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
    let attempt = request.attempt.map(|attempt| begin::attempt(&attempt.id));
    let attempt = attempt.transpose()?;
    let digest = request.facts_digest.clone();
    let answer = match request.facts {
        Some(said) => with_news(manager, node, said, digest, attempt).await?,
        None => without_news(manager, node, attempt).await?,
    };
    let now = manager.now();
    let next_poll_millis = next_poll(
        manager.settings.poll_interval,
        node.host,
        &answer.decision,
        now,
    );
    let decision = if answer.is_lost {
        wire::forget()
    } else {
        wire::decision(answer.decision)
    };
    let known = answer.known.facts_digest;
    Ok(PollResponse {
        want_facts: !answer.has_news && (known.is_empty() || known != request.facts_digest),
        next_poll_millis,
        now: Some(timestamp(now)),
        credential: renewed(manager, node, now)?,
        decision: Some(decision),
    })
}

/// What a poll found.
struct Found {
    known: NodeState,
    decision: Decision,
    /// The attempt that is open on the node is over or unknown here.
    is_lost: bool,
    has_news: bool,
}

/// News is written before the answer.
async fn with_news(
    manager: &MaintenanceManager,
    node: &Node,
    said: Facts,
    digest: Vec<u8>,
    attempt: Option<AttemptId>,
) -> Result<Found, Status> {
    let scene = Scene::open(manager, node.tenant, node.host, false).await;
    let mut scene = scene.map_err(status::store)?;
    report::trusted(&scene.host)?;
    facts::take(&mut scene.node, said, digest).map_err(status::invalid)?;
    scene.world.known.speaks = scene.node.protocol.clone();
    scene.world.known.provisioned = true;
    let found = Found {
        decision: scene.world.decide(scene.now),
        is_lost: is_lost(&scene.world, attempt),
        known: scene.node.clone(),
        has_news: true,
    };
    scene.commit().await.map_err(status::store)?;
    Ok(found)
}

async fn without_news(
    manager: &MaintenanceManager,
    node: &Node,
    attempt: Option<AttemptId>,
) -> Result<Found, Status> {
    let now = manager.now();
    let (host, known, world) = read(manager, node, now).await.map_err(status::store)?;
    report::trusted(&host)?;
    manager.contacts.heard(node.tenant, known.instance, now);
    Ok(Found {
        decision: world.decide(now),
        is_lost: is_lost(&world, attempt),
        known,
        has_news: false,
    })
}

async fn read(
    manager: &MaintenanceManager,
    node: &Node,
    now: Time,
) -> Result<(Host, NodeState, World), StoreError> {
    let (tx, host) = manager.for_host(node.tenant, node.host).await?;
    let known = nodes::find_by_host(&tx, host.id).await?;
    let world = decisions::world(&tx, &host, &known, &manager.settings.horizon(), now).await?;
    Ok((host, known, world))
}

/// Whether the node holds on to an attempt that has no open run: it was called off, given up or removed here. The agent
/// tells everything before it polls, so nothing of it is still under way.
fn is_lost(world: &World, attempt: Option<AttemptId>) -> bool {
    let open = world.run.as_ref().and_then(|run| run.attempt);
    attempt.is_some() && attempt != open
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
