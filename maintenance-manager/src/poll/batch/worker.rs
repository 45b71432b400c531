//! Evaluates polls of one project together.

use std::sync::Arc;
use std::time::Instant;

use evenkeel_domain::Time;
use evenkeel_domain::host::Host;
use evenkeel_domain::tenant::TenantId;
use evenkeel_kit::Lifecycle;
use evenkeel_store::decisions::{self, DecisionInput, DecisionSubject};
use evenkeel_store::nodes::{self, MachineKey, NodeBrief};
use evenkeel_store::{ScopeChain, StoreError, Tx};

use super::queue::{EvaluationResult, QueuedPoll, Worker};
use super::{BatchResult, PollBatcherInner, PollContext, PollPayload};
use crate::evaluate::{self, Evaluation};
use crate::poll::cache::{NewAnswer, Pass};
use crate::status;

/// Evaluates batches until the queue is empty.
pub async fn run_worker(mut worker: Worker) {
    while let Some(batch) = worker.next_batch() {
        // The batch runs in a task of its own, so that a panic ends only this batch.
        let answered = Lifecycle::detach(answer_batch(Arc::clone(worker.batcher()), batch)).await;
        if let Err(panic) = answered {
            tracing::error!(error = %panic, "a batch of polls was aborted");
        }
    }
}

/// Evaluates a batch, caches the answers and sends them.
async fn answer_batch(batcher: Arc<PollBatcherInner>, batch: Vec<QueuedPoll>) {
    let Some(tenant) = batch.first().map(|queued| queued.context.node.tenant()) else {
        return;
    };
    let started = Instant::now();
    // A commit from here on may be missed below; a later pass applies it.
    let as_of = batcher.cache.last_pass();
    let contexts: Vec<&PollContext> = batch.iter().map(|queued| &queued.context).collect();
    let evaluated =
        async { batcher.evaluate_batch(tenant, &contexts).await.map_err(status::from_store_error) };
    let evaluated = status::with_database_timeout(evaluated).await;
    record_batch(&batcher, batch.len(), started);
    match evaluated {
        Ok(evaluated) => {
            for (queued, evaluation) in batch.into_iter().zip(evaluated.evaluations) {
                let result = batcher.cache_result(&queued.context, evaluation, as_of, evaluated.at);
                queued.answer(result);
            }
        }
        Err(refused) => {
            for queued in batch {
                queued.answer(Err(refused.clone()));
            }
        }
    }
}

fn record_batch(batcher: &PollBatcherInner, length: usize, started: Instant) {
    let length = u32::try_from(length).unwrap_or(u32::MAX);
    batcher.load.record_database_turns(length);
    batcher.metrics.size.record(f64::from(length));
    batcher.metrics.seconds.record(started.elapsed().as_secs_f64());
}

/// The evaluations of a batch, in the order of its polls.
pub struct BatchEvaluation {
    pub at: Time,
    /// For each poll its evaluation, and what its node belongs to if the node exists.
    pub evaluations: Vec<(Evaluation, Option<ScopeChain>)>,
}

impl PollBatcherInner {
    /// Evaluates polls of a project in one transaction, without writes, locks or caching. A node
    /// that cannot be read does not fail the others.
    pub async fn evaluate_batch(
        &self,
        tenant: TenantId,
        contexts: &[&PollContext],
    ) -> Result<BatchEvaluation, StoreError> {
        let tx = self.store.tenant(tenant).await?;
        let at = self.clock.now();
        let machines: Vec<MachineKey> =
            contexts.iter().map(|context| context.node.machine()).collect();
        let mut nodes = Vec::with_capacity(machines.len());
        for (machine, brief) in machines.iter().zip(nodes::load_briefs(&tx, &machines).await?) {
            nodes.push(match brief {
                Ok(Some(node)) => Ok(node),
                Ok(None) => Err(explain_missing(&tx, *machine).await),
                Err(error) => Err(Evaluation::Refused(status::from_store_error(error))),
            });
        }
        let existing = nodes.iter().flatten();
        let subjects: Vec<DecisionSubject<'_>> =
            existing.map(|(host, node)| DecisionSubject::from_brief(host, node)).collect();
        let limits = &self.planning_limits;
        let inputs = decisions::load_decision_inputs(&tx, &subjects, limits, at).await?;
        drop(tx);
        let mut inputs = inputs.into_iter();
        let evaluations = contexts.iter().zip(nodes).map(|(context, node)| match node {
            Ok((host, node)) => evaluate_poll(context, (&host, &node), inputs.next(), at),
            Err(evaluation) => (evaluation, None),
        });
        Ok(BatchEvaluation { at, evaluations: evaluations.collect() })
    }

    /// Caches an answer and returns the result. `None` if the poll needs a single evaluation.
    pub(super) fn cache_result(
        &self,
        context: &PollContext,
        (evaluation, chain): (Evaluation, Option<ScopeChain>),
        as_of: Option<Pass>,
        now: Time,
    ) -> EvaluationResult {
        let (answer, valid_until, chain) = match (evaluation, chain) {
            (Evaluation::Unchanged { answer, valid_until }, Some(chain)) => {
                (*answer, valid_until, chain)
            }
            (Evaluation::Unchanged { .. } | Evaluation::NeedsWrite, _) => {
                return Ok(Some(BatchResult::NeedsWrite));
            }
            (Evaluation::NeedsSingleRead, _) => return Ok(None),
            (Evaluation::Refused(refused), _) => return Err(refused),
        };
        let new_answer = NewAnswer {
            node: context.node,
            host: chain.host,
            instance: chain.instance,
            site: chain.site,
            regions: chain.regions,
            cache_key: context.cache_key,
            answer,
            valid_until,
            as_of,
        };
        Ok(Some(BatchResult::Unchanged(self.cache.insert(new_answer, now))))
    }
}

/// Why a node is missing. A node that was just created needs a write.
async fn explain_missing(tx: &Tx, machine: MachineKey) -> Evaluation {
    match nodes::find_with_host(tx, machine).await {
        Ok(_) => Evaluation::NeedsWrite,
        Err(error) => Evaluation::Refused(status::from_store_error(error)),
    }
}

fn evaluate_poll(
    context: &PollContext,
    (host, node): (&Host, &NodeBrief),
    input: Option<Result<DecisionInput, StoreError>>,
    now: Time,
) -> (Evaluation, Option<ScopeChain>) {
    let input = match input {
        Some(Ok(input)) => input,
        Some(Err(error)) => return (Evaluation::Refused(status::from_store_error(error)), None),
        None => return (Evaluation::NeedsWrite, None),
    };
    let evaluation = match &context.payload {
        PollPayload::Own(payload) => evaluate::agent::own_poll(host, node, &input, payload, now),
        PollPayload::Eim { sample, available } => {
            evaluate::eim::sample((host, node), &input, (sample, available), now)
        }
    };
    (evaluation, Some(input.chain))
}
