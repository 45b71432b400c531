//! A poll: says what is known about the node and asks what to do.

use std::time::Duration;

use evenkeel_domain::Time;
use evenkeel_domain::decide::{Decision, Protocol};
use evenkeel_domain::host::Host;
use evenkeel_domain::id::{HostId, RunId, scatter};
use evenkeel_domain::package::FoundVersion;
use evenkeel_domain::run::{AttemptId, Happening, RunEvent};
use evenkeel_proto::agent::{PollRequest, PollResponse};
use evenkeel_store::decisions::{self, Reading, World};
use evenkeel_store::nodes::{self, Machine, NodeState};
use evenkeel_store::runs::Subject;
use evenkeel_store::{StoreError, Tx, versions};
use tonic::Status;

use crate::agent::wire::{self, timestamp};
use crate::agent::{ages, begin, facts, packages, report, waiting};
use crate::caller::Node;
use crate::manager::MaintenanceManager;
use crate::progress::Scene;
use crate::settings::delta;
use crate::{derived, status};

/// Answers a poll.
pub async fn poll(
    manager: &MaintenanceManager,
    node: &Node,
    request: PollRequest,
) -> Result<PollResponse, Status> {
    let attempt = request.attempt.as_ref();
    let attempt = attempt.map(|attempt| begin::attempt(&attempt.id));
    let attempt = attempt.transpose()?;
    let digest = request.facts_digest.clone();
    let has_news = request.facts.is_some() || !request.packages.is_empty();
    let quiet = if has_news {
        None
    } else {
        let waits = waiting::said(&request.waiting);
        without_news(manager, node, attempt, &waits).await?
    };
    let answer = match quiet {
        Some(answer) => answer,
        None => with_news(manager, node, request, attempt).await?,
    };
    let now = manager.now();
    let next_poll_millis = next_poll(
        manager.settings.poll_interval,
        node.host,
        &answer.decision,
        now,
    );
    let known = &answer.known.facts_digest;
    let want_facts = !answer.has_facts && (known.is_empty() || *known != digest);
    let decision = if answer.is_lost {
        wire::forget()
    } else if want_facts {
        wire::facts_first(answer.open)
    } else {
        wire::decision(answer.decision, &answer.settled)
    };
    Ok(PollResponse {
        want_facts,
        want_packages: packages::are_wanted(&answer.known),
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
    /// The versions that are old enough for what it is to do, if that matters.
    settled: Vec<FoundVersion>,
    /// The run that is open here.
    open: Option<RunId>,
    /// The attempt that is open on the node is over or unknown here.
    is_lost: bool,
    has_facts: bool,
}

/// News is written before the answer.
async fn with_news(
    manager: &MaintenanceManager,
    node: &Node,
    request: PollRequest,
    attempt: Option<AttemptId>,
) -> Result<Found, Status> {
    let machine = Machine::Host(node.host);
    let scene = Scene::open(manager, node.tenant, machine, false).await;
    let mut scene = scene.map_err(status::store)?;
    report::trusted(&scene.host, &scene.world)?;
    let has_facts = request.facts.is_some();
    let takes_over = has_facts && scene.node.protocol == Protocol::Eim;
    if let Some(said) = request.facts {
        let (node, now) = (&mut scene.node, scene.now);
        let told = ages::told(&said);
        facts::take(node, said, request.facts_digest, now).map_err(status::invalid)?;
        let seen = versions::see(&scene.tx, &told, now).await;
        seen.map_err(status::store)?;
        facts::booted(&mut scene).await.map_err(status::store)?;
    } else {
        let decision = scene.world.decide(scene.now);
        let noted = ages::note(&scene.tx, &scene.node, &decision, scene.now).await;
        noted.map_err(status::store)?;
    }
    packages::take(&mut scene, &request.packages).await?;
    scene.node.waiting = waiting::said(&request.waiting);
    scene.world.known.speaks = scene.node.protocol.clone();
    scene.world.known.provisioned = true;
    if takes_over {
        scene.node.delivered.last_word = Some(scene.now);
    }
    call_off(&mut scene).await.map_err(status::store)?;
    if let Some(limit) = forgotten(&scene.world, attempt, scene.now) {
        scene.time_out(limit).await.map_err(status::store)?;
    }
    let decision = scene.world.decide(scene.now);
    let settled = ages::settled(&scene.tx, &scene.node, &decision, scene.now).await;
    let found = Found {
        settled: settled.map_err(status::store)?,
        decision,
        open: scene.world.run.as_ref().map(|run| run.id),
        is_lost: is_lost(&scene.world, attempt),
        known: scene.node.clone(),
        has_facts,
    };
    scene.commit().await.map_err(status::store)?;
    Ok(found)
}

/// Almost all polls: nothing is locked and nothing is written. None if something is to be written after all.
async fn without_news(
    manager: &MaintenanceManager,
    node: &Node,
    attempt: Option<AttemptId>,
    waits: &str,
) -> Result<Option<Found>, Status> {
    let now = manager.now();
    let tx = manager.store.tenant(node.tenant).await;
    let tx = tx.map_err(status::store)?;
    let read = read(manager, &tx, node, now).await;
    let (host, known, world) = read.map_err(status::store)?;
    let decision = world.decide(now);
    let settled = ages::settled(&tx, &known, &decision, now).await;
    let settled = settled.map_err(status::store)?;
    let is_unheard = ages::is_unheard(&tx, &known, &decision, now).await;
    let is_unheard = is_unheard.map_err(status::store)?;
    drop(tx);
    report::trusted(&host, &world)?;
    let has_forgotten = forgotten(&world, attempt, now).is_some();
    if has_forgotten
        || known.waiting != waits
        || is_unheard
        || world.outlived(now).is_some()
        || host.status.text != status::RUNNING
        || derived::is_outdated(&known, &world, now)
    {
        return Ok(None);
    }
    manager.contacts.heard(node.tenant, known.instance, now);
    Ok(Some(Found {
        decision,
        settled,
        open: world.run.as_ref().map(|run| run.id),
        is_lost: is_lost(&world, attempt),
        known,
        has_facts: false,
    }))
}

async fn read(
    manager: &MaintenanceManager,
    tx: &Tx,
    node: &Node,
    now: Time,
) -> Result<(Host, NodeState, World), StoreError> {
    let (host, known) = nodes::read(tx, Machine::Host(node.host)).await?;
    let horizon = manager.settings.horizon();
    let world = decisions::world(tx, &host, &known, &horizon, Reading::Look(now)).await?;
    Ok((host, known, world))
}

/// When the node, which holds no attempt, has forgotten the one that keeps a slot or whose change it began; none if it has
/// not. What it knew is lost with its journal, so nothing more will be heard of it.
fn forgotten(world: &World, attempt: Option<AttemptId>, now: Time) -> Option<Time> {
    let run = world.run.as_ref().filter(|_| attempt.is_none())?;
    run.forgotten_at().filter(|limit| *limit <= now)
}

/// Our agent speaks where one of the ancestor's did. What that one has only fetched it is not going to begin, unless its
/// window is open; what it has begun it tells the end of ([`crate::eim`]).
async fn call_off(scene: &mut Scene<'_>) -> Result<(), StoreError> {
    let Some((run, cause)) = scene.world.outlived(scene.now) else {
        return Ok(());
    };
    let withdrawn = Happening::of(RunEvent::Cancelled(cause));
    scene.bring(Subject::Run(run), &withdrawn).await?;
    scene.look_again().await
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
            grant: None,
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
