//! The gRPC service for EIM's agents: `maintmgr.v1`.

use std::time::Instant;

use chrono::TimeDelta;
use evenkeel_domain::assignment::Scope;
use evenkeel_domain::condition::{self, ConditionKind};
use evenkeel_domain::decide::AgentProtocol;
use evenkeel_domain::eim::{self, Answer, PriorState, Proof, Sample, SampleKind};
use evenkeel_domain::id::RunId;
use evenkeel_domain::os::Image;
use evenkeel_domain::run::{AbandonCause, OpenRun, RunEvent, RunEventRecord, RunState, UpdateRun};
use evenkeel_domain::status::Status as NodeStatus;
use evenkeel_kit::{OffloadShare, offload, offload_now};
use evenkeel_proto::maintmgr::maintmgr_service_server::MaintmgrService;
use evenkeel_proto::maintmgr::{
    PlatformUpdateStatusRequest, PlatformUpdateStatusResponse, UpdateStatus,
};
use evenkeel_store::nodes::MachineKey;
use evenkeel_store::runs::{self, Subject};
use evenkeel_store::{StoreError, limit_usage};
use tonic::{Request, Response, Status};

use crate::admission::concurrency::CallKind;
use crate::admission::daily_limits::LimitedAmount;
use crate::evaluate::AnswerPayload;
use crate::evaluate::eim::{self as evaluate, holds_slot, render_answer, run_to_cancel};
use crate::grpc::caller::{self, EimNode};
use crate::manager::MaintenanceManager;
use crate::node_transaction::{NewAttempt, NodeTransaction, WritePermit};
use crate::poll::batch::{BatchResult, PollContext, PollPayload, PollProtocol, Priority};
use crate::poll::cache::NodeKey;
use crate::status;
use crate::wire::eim as wire;

/// How old the last report of a replaced EIM agent must be to be updated. The agent reports every
/// few seconds, and each update writes the node.
const LAST_REPORT_REFRESH_INTERVAL: TimeDelta = TimeDelta::minutes(5);

#[tonic::async_trait]
impl MaintmgrService for MaintenanceManager {
    async fn platform_update_status(
        &self,
        request: Request<PlatformUpdateStatusRequest>,
    ) -> Result<Response<PlatformUpdateStatusResponse>, Status> {
        let since = Instant::now();
        let called = self.authenticate_eim_node(&request, &request.get_ref().host_guid);
        let (peer, called) = called.await;
        let update_status = request.into_inner().update_status;
        let (answer, eim_node) = match called {
            Ok(eim_node) => (
                Box::pin(self.handle_sample(&eim_node, update_status, since)).await,
                Some(eim_node),
            ),
            Err(refused) => (Err(refused), None),
        };
        self.show_daily_limits(&answer).await;
        if answer.is_ok() {
            self.poll_answers.counters(PollProtocol::Eim).ok.increment(1);
        } else {
            let outcome = status::outcome(&answer);
            metrics::counter!("evenkeel_eim_polls_total", "outcome" => outcome).increment(1);
        }
        self.note_eim_call((peer, eim_node.as_ref()), "PlatformUpdateStatus", &answer);
        answer.map(Response::new)
    }
}

impl MaintenanceManager {
    /// Answers a sample with what the node may do.
    async fn handle_sample(
        &self,
        eim_node: &EimNode,
        update_status: Option<UpdateStatus>,
        since: Instant,
    ) -> Result<PlatformUpdateStatusResponse, Status> {
        let update_status =
            update_status.ok_or_else(|| Status::invalid_argument("update_status: is required"))?;
        let sample = offload(OffloadShare::Nodes, message_bytes(&update_status), || {
            decode_sample(&update_status)
        })
        .await;
        if evaluate::may_be_unchanged(sample.kind) {
            let unchanged =
                self.try_without_write(eim_node, &update_status, &sample, since).await?;
            if let Some(answer) = unchanged {
                return Ok(answer);
            }
        }
        self.poll_answers.counters(PollProtocol::Eim).write.increment(1);
        // Progress and results of an update are reports and not queries.
        let is_report =
            !evaluate::may_be_unchanged(sample.kind) || sample.kind == SampleKind::Failed;
        let kind = if is_report { CallKind::Write } else { CallKind::EimQuery };
        let processed = self.node_writer.with_write_permit((eim_node.tenant, kind), |permit| {
            Self::process_sample(permit, eim_node, &update_status, &sample)
        });
        processed.await
    }

    /// Fast path for almost all samples: no locks, no writes. Returns `None` if a write is needed.
    async fn try_without_write(
        &self,
        eim_node: &EimNode,
        update_status: &UpdateStatus,
        sample: &Sample,
        since: Instant,
    ) -> Result<Option<PlatformUpdateStatusResponse>, Status> {
        let (tenant, uuid) = (eim_node.tenant, eim_node.uuid);
        let cache = &self.answer_cache;
        let bytes = message_bytes(update_status);
        let context = PollContext {
            node: NodeKey::Uuid(tenant, uuid),
            cache_key: offload(OffloadShare::Nodes, bytes, || {
                cache.key_for_eim_poll(uuid, update_status)
            })
            .await,
            payload: PollPayload::Eim {
                sample: sample.clone(),
                available: update_status.os_update_available.clone(),
            },
            priority: Priority::Poll,
        };
        let BatchResult::Unchanged(cached) = self.poll_answers.answer(context, since).await? else {
            return Ok(None);
        };
        caller::check_token_binding(eim_node, cached.host)?;
        let AnswerPayload::Eim(answer) = &cached.answer.payload else {
            return Ok(None);
        };
        self.contacts.record(tenant, cached.instance, self.now(), None);
        Ok(Some(answer.clone()))
    }

    /// Stores a sample and answers it. OK is answered only after the commit: the agent repeats a
    /// result until it gets OK.
    async fn process_sample(
        permit: WritePermit<'_>,
        eim_node: &EimNode,
        update_status: &UpdateStatus,
        sample: &Sample,
    ) -> Result<PlatformUpdateStatusResponse, Status> {
        // Sending a window permits the start: the agent starts in it without asking again.
        let machine = (eim_node.tenant, MachineKey::Uuid(eim_node.uuid));
        let node_tx = NodeTransaction::open(permit, machine, true).await;
        let mut node_tx = node_tx.map_err(status::from_store_error)?;
        caller::check_may_speak_for(eim_node, &node_tx.host)?;
        if !node_tx.input.facts.trusted {
            return Err(Status::unauthenticated("the instance was invalidated"));
        }
        let kind = node_tx.input.facts.os_kind;
        node_tx.charge(LimitedAmount::Bytes, message_bytes(update_status) as u64).await?;
        let opened_runs = count_opened_runs(&node_tx, sample);
        if 0 < opened_runs {
            // The agent repeats the sample, and keeps its schedules.
            node_tx.check_run_readable()?;
        }
        node_tx.charge(LimitedAmount::Runs, opened_runs).await?;
        // Our own agent has replaced this one, so it gets no window any more.
        if is_replaced(&node_tx) {
            Box::pin(process_replaced_agent_sample(node_tx, sample))
                .await
                .map_err(status::from_store_error)?;
            return Ok(wire::encode_answer(Answer::default(), kind));
        }
        apply_sample(&mut node_tx, sample).await.map_err(status::from_store_error)?;
        let reported = &update_status.os_update_available;
        offload_now(reported.len(), || record_available(&mut node_tx, reported));
        cancel_obsolete_run(&mut node_tx).await.map_err(status::from_store_error)?;
        let answer = Box::pin(commit_answer(node_tx)).await.map_err(status::from_store_error)?;
        Ok(wire::encode_answer(answer, kind))
    }
}

/// The bytes of the texts of a sample that may be long.
fn message_bytes(update_status: &UpdateStatus) -> usize {
    update_status.status_detail.len() + update_status.os_update_available.len()
}

/// Decodes a sample. Parses a long detail at once, and not while the node is locked.
fn decode_sample(update_status: &UpdateStatus) -> Sample {
    let sample = wire::decode_sample(update_status);
    if offload::MAX_INLINE_BYTES < message_bytes(update_status) {
        sample.detail.prepare();
    }
    sample
}

/// Records the available updates that follow from the sample, and shows whether their list is stored
/// completely.
fn record_available(node_tx: &mut NodeTransaction<'_>, reported: &str) {
    let input = &node_tx.input;
    let available = eim::available_update(&input.facts, &input.desired.images, reported);
    if let Some(available) = available {
        node_tx.node.os_update_available = available;
    }
    let conditions = &mut node_tx.node.conditions;
    eim::mark_cut_list(conditions, &node_tx.input.facts, reported, node_tx.now);
}

/// Applies the events that the sample proves to the runs of the node, and updates the node state.
async fn apply_sample(
    node_tx: &mut NodeTransaction<'_>,
    sample: &Sample,
) -> Result<(), StoreError> {
    node_tx.node.protocol = AgentProtocol::Eim;
    node_tx.input.facts.protocol = AgentProtocol::Eim;
    node_tx.input.facts.provisioned = true;
    let open = node_tx.input.run.as_ref().and_then(UpdateRun::as_open);
    let mut proof = evaluate_sample(node_tx, open.as_ref(), sample);
    let ended = open.is_some() || !proof.events.is_empty();
    let before = open.filter(|run| run.attempt.is_none()).map(|run| run.id);
    for record in &proof.events {
        apply_event(node_tx, record, before).await?;
    }
    if let Some(image) = proof.image.take() {
        record_installed_image(node_tx, image, &mut proof.conditions).await?;
    }
    let holds = std::mem::take(&mut proof.conditions);
    condition::replace(
        &mut node_tx.node.conditions,
        |kind| proof.checks_condition(kind),
        holds,
        node_tx.now,
    );
    if let Some((text, indication)) = proof.status {
        let new_status = NodeStatus::new(text, indication, node_tx.now);
        node_tx.node.update_status = new_status.with_time_of(Some(&node_tx.node.update_status));
    }
    if let Some(last_sample) = proof.last_sample {
        node_tx.node.last_sample = Some(last_sample);
    }
    // The end of a run frees its slot and may exceed the failure limit, so the input is loaded
    // again.
    if ended && node_tx.input.run.is_none() {
        node_tx.reload_input().await?;
    }
    Ok(())
}

/// Derives from a sample what happened to the open run of the node.
fn evaluate_sample(
    node_tx: &NodeTransaction<'_>,
    open: Option<&OpenRun>,
    sample: &Sample,
) -> Proof {
    let before = PriorState {
        last_sample: node_tx.node.last_sample.as_ref(),
        delivered: &node_tx.node.delivered,
        open_run: open,
        facts: &node_tx.input.facts,
        images: &node_tx.input.desired.images,
    };
    eim::evaluate_sample(&before, sample, node_tx.now)
}

/// Whether our own agent has replaced the EIM agent of the node.
fn is_replaced(node_tx: &NodeTransaction<'_>) -> bool {
    !node_tx.host.public_key.is_empty()
}

/// The number of runs that a sample can open.
fn count_opened_runs(node_tx: &NodeTransaction<'_>, sample: &Sample) -> u64 {
    let open = node_tx.input.run.as_ref().and_then(UpdateRun::as_open);
    // The samples of a replaced agent do not belong to a run of our own.
    let open = open.filter(|run| run.attempt.is_none() || !is_replaced(node_tx));
    let proof = evaluate_sample(node_tx, open.as_ref(), sample);
    // The first event belongs to the open run.
    u64::from(usize::from(open.is_some()) < proof.events.len())
}

/// Records the image that the node was updated to. The result is stored even if the image was
/// removed from the catalogue.
async fn record_installed_image(
    node_tx: &mut NodeTransaction<'_>,
    image: Image,
    conditions: &mut Vec<(ConditionKind, String)>,
) -> Result<(), StoreError> {
    match node_tx.find_image(image.os).await? {
        Some(image) => node_tx.set_running_image(image),
        None => conditions.push((
            ConditionKind::UnknownImage,
            format!(
                "it was updated to the image {:?}, which is no longer in the catalogue",
                image.image_id
            ),
        )),
    }
    Ok(())
}

/// Processes a sample of an agent that ours has replaced: stores the result of the run that it had
/// begun, and nothing else. The agent forgets a result once it is acknowledged, so the result is
/// stored independently of our own agent's runs.
async fn process_replaced_agent_sample(
    mut node_tx: NodeTransaction<'_>,
    sample: &Sample,
) -> Result<(), StoreError> {
    let open = node_tx.input.run.as_ref().and_then(UpdateRun::as_open);
    let open = open.filter(|run| run.attempt.is_none());
    let proof = evaluate_sample(&node_tx, open.as_ref(), sample);
    for record in &proof.events {
        let run = node_tx.input.run.as_ref();
        let run = match run.filter(|run| run.attempt.is_none()) {
            Some(run) => Some(run.id),
            None => find_timed_out_run(&node_tx, &record.event).await?,
        };
        if let Some(run) = run {
            node_tx.apply_event(Subject::Run(run), record).await?;
        } else if matches!(record.event, RunEvent::Finished | RunEvent::Failed(_)) {
            let beginning = new_sampled_attempt(&node_tx, None).await?;
            node_tx.record_finished_attempt(beginning, record).await?;
        }
    }
    if let Some(last_sample) = proof.last_sample {
        node_tx.node.last_sample = Some(last_sample);
    }
    let last_report = node_tx.node.delivered.last_heard_at;
    if open.is_some()
        && last_report.is_some_and(|last| last + LAST_REPORT_REFRESH_INTERVAL <= node_tx.now)
    {
        node_tx.node.delivered.last_heard_at = Some(node_tx.now);
    }
    node_tx.save().await
}

/// A new attempt that was begun by the last delivered schedule.
async fn new_sampled_attempt(
    node_tx: &NodeTransaction<'_>,
    follows: Option<(RunId, Scope)>,
) -> Result<NewAttempt, StoreError> {
    let origin = node_tx.origin_from_delivered(node_tx.node.delivered.clone()).await?;
    Ok(NewAttempt { attempt: None, origin, follows })
}

/// Applies an event of a sample, which names no attempt: to the open run, or to a run that timed
/// out, or to a new run that continues the permit of the run before it.
async fn apply_event(
    node_tx: &mut NodeTransaction<'_>,
    record: &RunEventRecord,
    before: Option<RunId>,
) -> Result<(), StoreError> {
    if let Some(open) = node_tx.input.run.as_ref().map(|run| run.id) {
        return node_tx.apply_event(Subject::Run(open), record).await.map(drop);
    }
    if let Some(silent) = find_timed_out_run(node_tx, &record.event).await? {
        return node_tx.apply_event(Subject::Run(silent), record).await.map(drop);
    }
    let applies = node_tx.input.applicable_policy().map(|assigned| assigned.scope);
    let beginning = new_sampled_attempt(node_tx, before.zip(applies)).await?;
    node_tx.begin_attempt(beginning, record, &[]).await.map(drop)
}

/// The run that timed out, if the event ends it.
async fn find_timed_out_run(
    node_tx: &NodeTransaction<'_>,
    event: &RunEvent,
) -> Result<Option<RunId>, StoreError> {
    // Once the node has reported that it is idle, the event belongs to another update.
    let last_sample = node_tx.node.last_sample.as_ref();
    let was_busy = last_sample.is_some_and(|last_sample| {
        matches!(
            last_sample.confirmed_kind(),
            SampleKind::Downloading | SampleKind::Downloaded | SampleKind::Started
        )
    });
    if !was_busy || !matches!(event, RunEvent::Finished | RunEvent::Failed(_)) {
        return Ok(None);
    }
    // Our own agent may have ended other runs since then.
    let last = runs::find_last_sampled(&node_tx.tx, node_tx.node.instance).await?;
    let is_silent = |run: &UpdateRun| {
        matches!(run.state, RunState::Abandoned { cause: AbandonCause::TimedOut, .. })
    };
    Ok(last.filter(is_silent).map(|run| run.id))
}

/// Cancels a downloaded run that is no longer desired, once the node has no window left to begin it
/// in. EIM's agents cannot be asked to cancel; they only stop receiving windows.
async fn cancel_obsolete_run(node_tx: &mut NodeTransaction<'_>) -> Result<(), StoreError> {
    let obsolete = run_to_cancel(&node_tx.input, &node_tx.node.delivered, node_tx.now);
    let Some((run, cause)) = obsolete else {
        return Ok(());
    };
    let cancelled = RunEventRecord::from_event(RunEvent::Cancelled(cause));
    node_tx.apply_event(Subject::Run(run), &cancelled).await?;
    node_tx.reload_input().await
}

/// Stores the answer and its slot.
async fn commit_answer(mut node_tx: NodeTransaction<'_>) -> Result<Answer, StoreError> {
    let render = |node_tx: &NodeTransaction<'_>| {
        render_answer(&node_tx.input, &node_tx.node.delivered, node_tx.now)
    };
    let mut answer = render(&node_tx);
    let is_holding_slot = holds_slot(&node_tx.input);
    if answer.slot.is_some() && !is_holding_slot {
        // Slots are counted only if the node would begin, so that other nodes do not wait for the
        // lock.
        node_tx.count_slots().await?;
        answer = render(&node_tx);
    }
    let (instance, now) = (node_tx.node.instance, node_tx.now);
    let is_new = node_tx.node.delivered != answer.delivered || node_tx.is_changed();
    match answer.slot {
        Some(slot) if is_new || !is_holding_slot => {
            limit_usage::take_slot(&node_tx.tx, slot.scope, instance, slot.until, now).await?;
        }
        Some(_) => {}
        // A node that is being changed keeps its slot until its run ends, even under another
        // assignment.
        None if node_tx.has_begun_change() => {}
        // The slot may belong to an earlier assignment.
        None if is_new || is_holding_slot => {
            limit_usage::release_slots(&node_tx.tx, instance).await?;
        }
        None => {}
    }
    node_tx.node.delivered = answer.delivered.clone();
    node_tx.commit().await?;
    Ok(answer)
}
