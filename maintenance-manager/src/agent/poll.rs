//! A poll: says what is known about the node and asks what to do.

use std::time::{Duration, Instant};

use evenkeel_domain::Time;
use evenkeel_domain::decide::Protocol;
use evenkeel_domain::id::{HostId, scatter};
use evenkeel_domain::run::{Happening, RunEvent};
use evenkeel_proto::agent::{Facts, PollRequest, PollResponse};
use evenkeel_store::nodes::Machine;
use evenkeel_store::runs::Subject;
use evenkeel_store::{StoreError, versions};
use tonic::Status;

use crate::agent::held::{self, Ended, Wish};
use crate::agent::quiet::{self, Wants};
use crate::agent::wire::timestamp;
use crate::agent::{ages, begin, facts, packages, report, waiting};
use crate::caller::Node;
use crate::carried::Carried;
use crate::desk::{Case, Door, Lane, OwnWords, Verdict, Words};
use crate::load::CallKind;
use crate::manager::MaintenanceManager;
use crate::progress::{Scene, Turn};
use crate::settings::delta;
use crate::status;
use crate::view::{Answer, Hit, OwnAnswer, Said, Who};

/// The least time after which a node comes back that was sent away because the process stops, and the least spread.
const COME_BACK: Duration = Duration::from_secs(1);
const LEAST_SPREAD: Duration = Duration::from_secs(2);

/// What a node says with a poll, read.
pub struct Told {
    facts: Option<Box<Facts>>,
    packages: String,
    words: OwnWords,
    /// Whether and how it lets itself be held.
    wish: Wish,
    /// When it came.
    since: Instant,
}

/// Reads a poll that came at an instant, on a connection that carries others.
pub fn read(
    request: PollRequest,
    carried: Option<Carried>,
    since: Instant,
) -> Result<Box<Told>, Status> {
    let attempt = request.attempt.as_ref();
    let attempt = attempt.map(|attempt| begin::attempt(&attempt.id));
    Ok(Box::new(Told {
        words: OwnWords {
            attempt: attempt.transpose()?,
            waits: waiting::said(&request.waiting),
            digest: request.facts_digest,
        },
        facts: request.facts.map(Box::new),
        packages: request.packages,
        wish: Wish {
            millis: request.may_hold_millis,
            tag: request.decision_tag,
            carried,
        },
        since,
    }))
}

/// Answers a poll.
pub async fn poll(
    manager: &MaintenanceManager,
    node: &Node,
    told: Box<Told>,
) -> Result<PollResponse, Status> {
    let told = if told.facts.is_none() && told.packages.is_empty() {
        match quietly(manager, node, told).await? {
            Ok(answer) => return Ok(answer),
            Err(told) => told,
        }
    } else {
        told
    };
    manager.desk.polls(Door::Own).news.increment(1);
    let answer = manager
        .in_turn(CallKind::Quiet, |turn| with_news(turn, node, *told))
        .await?;
    respond(manager, node, &answer, None)
}

/// Almost all polls: nothing is locked and nothing is written. Gives it back if something is to be written after all.
async fn quietly(
    manager: &MaintenanceManager,
    node: &Node,
    told: Box<Told>,
) -> Result<Result<PollResponse, Box<Told>>, Status> {
    let words = &told.words;
    let view = &manager.view;
    let case = Case {
        who: Who::Host(node.tenant, node.host),
        asked: view.asked_own(&words.digest, words.attempt, &words.waits),
        words: Words::Own(words.clone()),
        lane: Lane::Poll,
    };
    // Only for one that lets itself be held it is worth a copy.
    let held = (told.wish.millis > 0).then(|| case.clone());
    let hit = match manager.desk.ask(case, told.since).await? {
        Verdict::Quiet(hit) => hit,
        Verdict::News => return Ok(Err(told)),
    };
    let now = manager.now();
    let contacts = &manager.contacts;
    contacts.heard(node.tenant, hit.instance, now, manager.due(now));
    let held = held.filter(|_| may_be_held(manager, node, &told.wish, &hit));
    let Some(case) = held else {
        return respond(manager, node, &hit.answer, None).map(Ok);
    };
    let wish = Wish {
        carried: told.wish.carried.clone(),
        ..told.wish
    };
    let begun = Instant::now();
    let ended = held::hold(manager, node, case, wish, hit).await?;
    if begun.elapsed() >= manager.settings.holds.rest {
        manager.desk.polls(Door::Own).held.increment(1);
    }
    match ended {
        Ended::Answer(hit) => respond(manager, node, &hit.answer, None).map(Ok),
        Ended::Draining(hit) => {
            let spread = manager.load.spread().max(LEAST_SPREAD);
            let pause = drawn(node.host, manager.now(), COME_BACK, spread);
            respond(manager, node, &hit.answer, Some(pause)).map(Ok)
        }
        Ended::News => Ok(Err(told)),
    }
}

/// Whether a node need not be answered now: it goes by what it would be told, and nothing is asked of it or given to it.
fn may_be_held(manager: &MaintenanceManager, node: &Node, wish: &Wish, hit: &Hit) -> bool {
    let Said::Own(answer) = &hit.answer.said else {
        return false;
    };
    wish.millis > 0
        && wish.tag == hit.answer.tag
        && !answer.want_facts
        && !answer.want_packages
        && !is_to_be_renewed(manager, node, manager.now())
}

/// The answer on the wire. Its times are those of this moment.
fn respond(
    manager: &MaintenanceManager,
    node: &Node,
    answer: &Answer,
    pause: Option<u32>,
) -> Result<PollResponse, Status> {
    let Said::Own(own) = &answer.said else {
        return Err(Status::internal("this is the answer to another question"));
    };
    let now = manager.now();
    let next = || next_poll(manager, node.host, own, now);
    Ok(PollResponse {
        want_facts: own.want_facts,
        want_packages: own.want_packages,
        next_poll_millis: pause.unwrap_or_else(next),
        now: Some(timestamp(now)),
        credential: renewed(manager, node, now)?,
        decision: Some(own.decision.clone()),
        decision_tag: answer.tag,
        hold_millis: pause.map_or_else(|| hold(manager, node.host, now), |_| 0),
        spread_millis: millis(manager.load.spread()),
    })
}

/// News is written before the answer.
async fn with_news(turn: Turn<'_>, node: &Node, told: Told) -> Result<Answer, Status> {
    let machine = (node.tenant, Machine::Host(node.host));
    let scene = Scene::open(turn, machine, false).await;
    let mut scene = scene.map_err(status::store)?;
    report::trusted(&scene.host, &scene.world)?;
    let words = told.words;
    let has_facts = told.facts.is_some();
    let takes_over = has_facts && scene.node.protocol == Protocol::Eim;
    if let Some(said) = told.facts {
        let (node, now) = (&mut scene.node, scene.now);
        let versions = ages::told(&said);
        facts::take(node, *said, words.digest.clone(), now).map_err(status::invalid)?;
        // The world was read before it was told: this very answer would send the node back to an image that failed.
        let failed = &node.bad_images;
        scene.world.known.bad_images.clone_from(failed);
        let seen = versions::see(&scene.tx, &versions, now).await;
        seen.map_err(status::store)?;
        facts::booted(&mut scene).await.map_err(status::store)?;
    } else {
        let decision = scene.world.decide(scene.now);
        let noted = ages::note(&scene.tx, &scene.node, &decision, scene.now).await;
        noted.map_err(status::store)?;
    }
    packages::take(&mut scene, &told.packages).await?;
    scene.node.waiting.clone_from(&words.waits);
    scene.world.known.speaks = scene.node.protocol.clone();
    scene.world.known.provisioned = true;
    if takes_over {
        scene.node.delivered.last_word = Some(scene.now);
    }
    call_off(&mut scene).await.map_err(status::store)?;
    if let Some(limit) = quiet::forgotten(&scene.world, words.attempt, scene.now) {
        scene.time_out(limit).await.map_err(status::store)?;
    }
    let decision = scene.world.decide(scene.now);
    let settled = ages::settled(&scene.tx, &scene.node, &decision, scene.now).await;
    let settled = settled.map_err(status::store)?;
    let (said, kept) = (scene.node.said_packages(), scene.node.packages_digest);
    let wants = Wants {
        facts: !has_facts && quiet::are_unknown(&scene.node.facts_digest, &words),
        packages: packages::are_wanted(said, kept),
    };
    let answer = quiet::answer(&scene.world, &words, wants, (decision, &settled.versions));
    scene.commit().await.map_err(status::store)?;
    Ok(answer)
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

/// When to poll again, in milliseconds.
fn next_poll(manager: &MaintenanceManager, host: HostId, answer: &OwnAnswer, now: Time) -> u32 {
    let interval = manager.load.interval(manager.settings.poll_interval);
    let is_pressed = manager.load.pressure() >= 1.0;
    next(interval, host, answer.next, is_pressed, now)
}

/// When to poll again: within a tenth of the interval, so that nodes that started together come apart; sooner if the
/// answer changes by time alone before that. That happens to many nodes at the same instant, so under pressure they come
/// apart behind it as well.
fn next(
    interval: Duration,
    host: HostId,
    change: Option<Time>,
    is_pressed: bool,
    now: Time,
) -> u32 {
    let interval = i64::try_from(interval.as_millis())
        .unwrap_or(i64::MAX)
        .clamp(100, 86_400_000);
    let tenth = (interval / 10).max(1);
    let noise = noise(host, now);
    let usual = interval - tenth + noise % (2 * tenth);
    let late = if is_pressed { noise % tenth } else { 0 };
    let due = change.map_or(usual, |change| {
        (change - now).num_milliseconds().saturating_add(1 + late)
    });
    u32::try_from(usual.min(due).max(100)).unwrap_or(u32::MAX)
}

/// How long the next poll may let itself be held: within a tenth, so that nodes that were woken together come apart.
fn hold(manager: &MaintenanceManager, host: HostId, now: Time) -> u32 {
    let settings = &manager.settings.holds;
    if settings.most == 0 {
        return 0;
    }
    let tenth = settings.longest / 10;
    let least = settings.longest.saturating_sub(tenth);
    drawn(host, now, least, settings.longest)
}

/// A number that is another one for each node, and for each answer.
fn noise(host: HostId, now: Time) -> i64 {
    i64::from(scatter(host.bits() ^ now.timestamp_subsec_nanos()))
}

/// A time between two, in milliseconds.
fn drawn(host: HostId, now: Time, least: Duration, most: Duration) -> u32 {
    let (least, most) = (millis(least), millis(most));
    let span = i64::from(most.saturating_sub(least)) + 1;
    least.saturating_add(u32::try_from(noise(host, now) % span).unwrap_or(0))
}

fn millis(time: Duration) -> u32 {
    u32::try_from(time.as_millis()).unwrap_or(u32::MAX)
}

/// Whether two thirds of the life of the present credential are over.
fn is_to_be_renewed(manager: &MaintenanceManager, node: &Node, now: Time) -> bool {
    let lifetime = delta(manager.settings.credential_lifetime);
    node.credential_expires - now <= lifetime / 3
}

/// A new credential, when it is time for one.
fn renewed(manager: &MaintenanceManager, node: &Node, now: Time) -> Result<String, Status> {
    if !is_to_be_renewed(manager, node, now) {
        return Ok(String::new());
    }
    let lifetime = delta(manager.settings.credential_lifetime);
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

    use super::*;

    const INTERVAL: Duration = Duration::from_secs(20);

    #[test]
    fn nodes_that_started_together_come_apart() {
        let now = DateTime::UNIX_EPOCH;
        let of = |n| next(INTERVAL, HostId::nth(n), None, false, now);
        let all: std::collections::BTreeSet<u32> = (0..100).map(of).collect();
        assert!(all.len() > 90, "{} of 100 differ", all.len());
        assert!(all.iter().all(|millis| (18_000..22_000).contains(millis)));
    }

    #[test]
    fn a_node_comes_back_when_its_window_opens() {
        let now = DateTime::UNIX_EPOCH;
        let soon = Some(now + TimeDelta::seconds(3));
        assert_eq!(next(INTERVAL, HostId::nth(1), soon, false, now), 3_001);
    }

    #[test]
    fn nodes_with_one_window_come_apart_when_there_are_too_many() {
        let now = DateTime::UNIX_EPOCH;
        let soon = Some(now + TimeDelta::seconds(3));
        let of = |n| next(INTERVAL, HostId::nth(n), soon, true, now);
        let all: std::collections::BTreeSet<u32> = (0..100).map(of).collect();
        assert!(all.len() > 90, "{} of 100 differ", all.len());
        assert!(all.iter().all(|millis| (3_001..5_001).contains(millis)));
    }

    #[test]
    fn a_time_is_drawn_between_two_and_may_be_either() {
        let now = DateTime::UNIX_EPOCH;
        let of = |n| {
            let (least, most) = (Duration::from_millis(5), Duration::from_millis(7));
            drawn(HostId::nth(n), now, least, most)
        };
        let all: std::collections::BTreeSet<u32> = (0..100).map(of).collect();
        assert_eq!(all, [5, 6, 7].into());
        let one = Duration::from_secs(1);
        assert_eq!(drawn(HostId::nth(1), now, one, one), 1_000);
    }
}
