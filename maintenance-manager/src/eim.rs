//! The door for the ancestor's agents: `maintmgr.v1` (southbound section 1).

pub(crate) mod quiet;
mod wire;

use std::time::Instant;

use chrono::TimeDelta;
use evenkeel_domain::Time;
use evenkeel_domain::assignment::Scope;
use evenkeel_domain::condition::{self, ConditionKind};
use evenkeel_domain::decide::{Act, Protocol, Reason};
use evenkeel_domain::eim::{self, Answer, Asked, Before, Delivered, Proof, Sample, SampleKind};
use evenkeel_domain::id::RunId;
use evenkeel_domain::os::Image;
use evenkeel_domain::run::{
    AbandonCause, CancelCause, Happening, OpenRun, RunEvent, RunState, UpdateRun,
};
use evenkeel_domain::status::Status as Shown;
use evenkeel_proto::maintmgr::maintmgr_service_server::MaintmgrService;
use evenkeel_proto::maintmgr::{
    PlatformUpdateStatusRequest, PlatformUpdateStatusResponse, UpdateStatus,
};
use evenkeel_store::decisions::World;
use evenkeel_store::nodes::Machine;
use evenkeel_store::runs::{self, Subject};
use evenkeel_store::{StoreError, brake};
use tonic::{Request, Response, Status};

use crate::caller::{self, Ancestor};
use crate::desk::{Case, Door, Lane, Verdict, Words};
use crate::load::CallKind;
use crate::manager::MaintenanceManager;
use crate::progress::{Beginning, Scene, Turn};
use crate::status;
use crate::view::{Said, Who};

/// How old the last word of an agent that ours has replaced must be for another one to be noted: it speaks every few
/// seconds, and each note is a change of the node.
const HEARD_AGAIN: TimeDelta = TimeDelta::minutes(5);

#[tonic::async_trait]
impl MaintmgrService for MaintenanceManager {
    async fn platform_update_status(
        &self,
        request: Request<PlatformUpdateStatusRequest>,
    ) -> Result<Response<PlatformUpdateStatusResponse>, Status> {
        let since = Instant::now();
        let called = self.ancestor(&request, &request.get_ref().host_guid);
        let (peer, called) = called.await;
        let said = request.into_inner().update_status;
        let (answer, ancestor) = match called {
            Ok(ancestor) => (
                Box::pin(self.sampled(&ancestor, said, since)).await,
                Some(ancestor),
            ),
            Err(refused) => (Err(refused), None),
        };
        if answer.is_ok() {
            self.desk.polls(Door::Eim).ok.increment(1);
        } else {
            let outcome = status::outcome(&answer);
            metrics::counter!("evenkeel_eim_polls_total", "outcome" => outcome).increment(1);
        }
        self.note_ancestor((peer, ancestor.as_ref()), "PlatformUpdateStatus", &answer);
        answer.map(Response::new)
    }
}

impl MaintenanceManager {
    /// Answers a sample that came at an instant with what the node may do.
    async fn sampled(
        &self,
        ancestor: &Ancestor,
        said: Option<UpdateStatus>,
        since: Instant,
    ) -> Result<PlatformUpdateStatusResponse, Status> {
        let said = said.ok_or_else(|| Status::invalid_argument("update_status: is required"))?;
        let sample = wire::sample(&said);
        if quiet::may_be(sample.kind) {
            let quiet = self.quietly(ancestor, &said, &sample, since).await?;
            if let Some(answer) = quiet {
                return Ok(answer);
            }
        }
        self.desk.polls(Door::Eim).news.increment(1);
        // How an update goes on and ends is told, and not asked.
        let is_told = !quiet::may_be(sample.kind) || sample.kind == SampleKind::Failed;
        let kind = if is_told {
            CallKind::News
        } else {
            CallKind::Eim
        };
        let taken = self.in_turn(kind, |turn| Self::taken(turn, ancestor, &said, &sample));
        taken.await
    }

    /// Almost all samples: they say nothing new, so nothing is locked and nothing is written. None if something is.
    async fn quietly(
        &self,
        ancestor: &Ancestor,
        said: &UpdateStatus,
        sample: &Sample,
        since: Instant,
    ) -> Result<Option<PlatformUpdateStatusResponse>, Status> {
        let (tenant, uuid) = (ancestor.tenant, ancestor.uuid);
        let case = Case {
            who: Who::Uuid(tenant, uuid),
            asked: self.view.asked_eim(uuid, said),
            words: Words::Eim {
                sample: sample.clone(),
                available: said.os_update_available.clone(),
            },
            lane: Lane::Poll,
        };
        let Verdict::Quiet(hit) = self.desk.ask(case, since).await? else {
            return Ok(None);
        };
        caller::of_its_own(ancestor, hit.host)?;
        let Said::Eim(answer) = &hit.answer.said else {
            return Ok(None);
        };
        self.contacts.heard(tenant, hit.instance, self.now(), None);
        Ok(Some(answer.clone()))
    }

    /// Takes a sample and answers it. Nothing is answered OK that was not stored: the agent repeats an outcome until it is
    /// (M5 to M7).
    async fn taken(
        turn: Turn<'_>,
        ancestor: &Ancestor,
        said: &UpdateStatus,
        sample: &Sample,
    ) -> Result<PlatformUpdateStatusResponse, Status> {
        // A window that is delivered is leave: the agent starts by itself.
        let machine = (ancestor.tenant, Machine::Uuid(ancestor.uuid));
        let scene = Scene::open(turn, machine, true).await;
        let mut scene = scene.map_err(status::store)?;
        caller::of_host(ancestor, &scene.host)?;
        if !scene.world.known.trusted {
            return Err(Status::unauthenticated("the instance was invalidated"));
        }
        let kind = scene.world.known.os_kind;
        // Our own agent has taken over: this one gets no window any more.
        if !scene.host.public_key.is_empty() {
            Box::pin(outlive(scene, sample))
                .await
                .map_err(status::store)?;
            return Ok(wire::answer(Answer::default(), kind));
        }
        take(&mut scene, sample).await.map_err(status::store)?;
        if let Some(available) = available(&scene, &said.os_update_available) {
            scene.node.os_update_available = available;
        }
        call_off(&mut scene).await.map_err(status::store)?;
        let answer = Box::pin(conclude(scene)).await.map_err(status::store)?;
        Ok(wire::answer(answer, kind))
    }
}

/// What the sample says could be updated.
fn available(scene: &Scene<'_>, said: &str) -> Option<String> {
    let world = &scene.world;
    eim::available(&world.known, &world.wanted.images, said)
}

/// Brings what the sample proves to the node's runs, and keeps what is known now.
async fn take(scene: &mut Scene<'_>, sample: &Sample) -> Result<(), StoreError> {
    scene.node.protocol = Protocol::Eim;
    scene.world.known.speaks = Protocol::Eim;
    scene.world.known.provisioned = true;
    let open = scene.world.run.as_ref().and_then(UpdateRun::as_open);
    let mut proof = evidence(scene, open.as_ref(), sample);
    let ended = open.is_some() || !proof.events.is_empty();
    let before = open.filter(|run| run.attempt.is_none()).map(|run| run.id);
    for happening in &proof.events {
        bring(scene, happening, before).await?;
    }
    if let Some(image) = proof.image.take() {
        reached(scene, image, &mut proof.conditions).await?;
    }
    let holds = std::mem::take(&mut proof.conditions);
    condition::replace(
        &mut scene.node.conditions,
        |kind| proof.judges(kind),
        holds,
        scene.now,
    );
    if let Some((text, indication)) = proof.shown {
        let shown = Shown::new(text, indication, scene.now);
        scene.node.update_status = shown.since(Some(&scene.node.update_status));
    }
    if let Some(seen) = proof.seen {
        scene.node.seen = Some(seen);
    }
    // The end of a run lets its slot go, and may be one failure too many.
    if ended && scene.world.run.is_none() {
        scene.look_again().await?;
    }
    Ok(())
}

/// What a sample proves of the run that is open on the node.
fn evidence(scene: &Scene<'_>, open: Option<&OpenRun>, sample: &Sample) -> Proof {
    let before = Before {
        seen: scene.node.seen.as_ref(),
        delivered: &scene.node.delivered,
        open,
        known: &scene.world.known,
        images: &scene.world.wanted.images,
    };
    eim::evidence(&before, sample, scene.now)
}

/// The node was brought to an image. The outcome is kept also if somebody has taken the image from the catalogue.
async fn reached(
    scene: &mut Scene<'_>,
    image: Image,
    conditions: &mut Vec<(ConditionKind, String)>,
) -> Result<(), StoreError> {
    match scene.image(image.os).await? {
        Some(image) => scene.runs(image),
        None => conditions.push((
            ConditionKind::UnknownImage,
            format!(
                "it was brought to the image {:?}, which is not in the catalogue any more",
                image.image_id
            ),
        )),
    }
    Ok(())
}

/// Takes what an agent says whose place ours has taken: how that ended which it had begun, and no more. It forgets an
/// outcome that is answered, so the outcome is stored, beside whatever our own agent is doing.
async fn outlive(mut scene: Scene<'_>, sample: &Sample) -> Result<(), StoreError> {
    let open = scene.world.run.as_ref().and_then(UpdateRun::as_open);
    let open = open.filter(|run| run.attempt.is_none());
    let proof = evidence(&scene, open.as_ref(), sample);
    for happening in &proof.events {
        let run = scene.world.run.as_ref();
        let run = match run.filter(|run| run.attempt.is_none()) {
            Some(run) => Some(run.id),
            None => timed_out(&scene, &happening.event).await?,
        };
        if let Some(run) = run {
            scene.bring(Subject::Run(run), happening).await?;
        } else if matches!(happening.event, RunEvent::Finished | RunEvent::Failed(_)) {
            let beginning = sampled_attempt(&scene, None).await?;
            scene.record(beginning, happening).await?;
        }
    }
    if let Some(seen) = proof.seen {
        scene.node.seen = Some(seen);
    }
    let last_word = scene.node.delivered.last_word;
    if open.is_some() && last_word.is_some_and(|last| last + HEARD_AGAIN <= scene.now) {
        scene.node.delivered.last_word = Some(scene.now);
    }
    scene.keep().await
}

/// An attempt that was begun by what was told last.
async fn sampled_attempt(
    scene: &Scene<'_>,
    follows: Option<(RunId, Scope)>,
) -> Result<Beginning, StoreError> {
    let origin = scene.told(scene.node.delivered.clone()).await?;
    Ok(Beginning {
        attempt: None,
        origin,
        follows,
    })
}

/// A sampled event has no attempt of its own: it belongs to the open run, or to the one that was given up for lack of
/// news, or opens one, which then goes on with the leave of the one before it.
async fn bring(
    scene: &mut Scene<'_>,
    happening: &Happening,
    before: Option<RunId>,
) -> Result<(), StoreError> {
    if let Some(open) = scene.world.run.as_ref().map(|run| run.id) {
        return scene.bring(Subject::Run(open), happening).await.map(drop);
    }
    if let Some(silent) = timed_out(scene, &happening.event).await? {
        return scene.bring(Subject::Run(silent), happening).await.map(drop);
    }
    let applies = scene.world.applies().map(|assigned| assigned.scope);
    let beginning = sampled_attempt(scene, before.zip(applies)).await?;
    scene
        .begin_attempt(beginning, happening, &[])
        .await
        .map(drop)
}

/// The run that was given up for lack of news, if this is the news of its end.
async fn timed_out(scene: &Scene<'_>, event: &RunEvent) -> Result<Option<RunId>, StoreError> {
    // Once the node was seen at rest, what ends now is another update.
    let seen = scene.node.seen.as_ref();
    let was_busy = seen.is_some_and(|seen| {
        matches!(
            seen.said(),
            SampleKind::Downloading | SampleKind::Downloaded | SampleKind::Started
        )
    });
    if !was_busy || !matches!(event, RunEvent::Finished | RunEvent::Failed(_)) {
        return Ok(None);
    }
    // Another agent may have ended others since then.
    let last = runs::find_sampled(&scene.tx, scene.node.instance).await?;
    let is_silent = |run: &UpdateRun| {
        matches!(
            run.state,
            RunState::Abandoned {
                cause: AbandonCause::TimedOut,
                ..
            }
        )
    };
    Ok(last.filter(is_silent).map(|run| run.id))
}

/// Gives up what was only fetched and is not wanted any more, once the node has nothing left that it could begin by:
/// such an agent is not told to give up, it is told no window.
async fn call_off(scene: &mut Scene<'_>) -> Result<(), StoreError> {
    let given_up = given_up(&scene.world, &scene.node.delivered, scene.now);
    let Some((run, cause)) = given_up else {
        return Ok(());
    };
    let cancelled = Happening::of(RunEvent::Cancelled(cause));
    scene.bring(Subject::Run(run), &cancelled).await?;
    scene.look_again().await
}

/// What is to be given up, and why.
fn given_up(world: &World, delivered: &Delivered, now: Time) -> Option<(RunId, CancelCause)> {
    let Act::Cancel { run, cause } = world.decide(now).act else {
        return None;
    };
    let may_begin =
        delivered.single.is_some() || delivered.occurrence.is_some() || delivered.was_open(now);
    // What it was fetched for in vain, the node says itself.
    let is_left = may_begin || cause == CancelCause::WindowMissed;
    (!is_left).then_some((run, cause))
}

/// Renders what the node should do. Who was seen through in a window does not begin in it once more, so it needs no slot
/// and holds nobody up.
fn render(world: &World, before: &Delivered, now: Time) -> Answer {
    let open = world.run.as_ref().and_then(UpdateRun::as_open);
    let decision = world.decide(now);
    let asked = Asked {
        known: &world.known,
        wanted: &world.wanted,
        open: open.as_ref(),
        decision: &decision,
        before,
    };
    let mut answer = eim::answer(&asked, now);
    let is_settled = matches!(
        decision.because,
        Reason::UpToDate { .. } | Reason::FailedInWindow { .. }
    );
    if is_settled {
        answer.slot = None;
    }
    answer
}

/// Whether the node holds a slot of the assignment that applies to it.
fn holds_slot(world: &World) -> bool {
    world.applies().is_some_and(|assigned| assigned.brake.mine)
}

/// Keeps what is answered, together with the slot that goes with it.
async fn conclude(mut scene: Scene<'_>) -> Result<Answer, StoreError> {
    let render = |scene: &Scene<'_>| render(&scene.world, &scene.node.delivered, scene.now);
    let mut answer = render(&scene);
    let held = holds_slot(&scene.world);
    if answer.slot.is_some() && !held {
        // Counted where it is judged, and only by who would begin: the others need not wait for each other.
        scene.count().await?;
        answer = render(&scene);
    }
    let (instance, now) = (scene.node.instance, scene.now);
    let is_new = scene.node.delivered != answer.delivered || scene.has_news();
    match answer.slot {
        Some(slot) if is_new || !held => {
            brake::hold(&scene.tx, slot.scope, instance, slot.until, now).await?;
        }
        Some(_) => {}
        // What is being changed keeps its slot until its run ends, also if another assignment applies meanwhile.
        None if scene.is_being_changed() => {}
        // It may be one of an assignment that does not apply any more.
        None if is_new || held => brake::release(&scene.tx, instance).await?,
        None => {}
    }
    scene.node.delivered = answer.delivered.clone();
    scene.commit().await?;
    Ok(answer)
}
