//! Evaluates a single poll that needs more data than a batch loads: the age of package versions.

use evenkeel_store::decisions::{self, ReadMode};
use evenkeel_store::{StoreError, nodes};
use tonic::Status;

use super::worker::BatchEvaluation;
use super::{
    BatchResult, PollBatcher, PollBatcherInner, PollContext, PollPayload, Priority, batch_aborted,
};
use crate::evaluate::{self, Evaluation};
use crate::status;

impl PollBatcher {
    /// Evaluates a poll alone and caches the answer. For each priority and project
    /// about as many polls as there are workers are evaluated at a time.
    pub(super) async fn evaluate_single(
        &self,
        context: &PollContext,
    ) -> Result<BatchResult, Status> {
        let inner = &self.0;
        let queue = match context.priority {
            Priority::Poll => &inner.single_polls,
            Priority::LongPoll => &inner.single_long_polls,
        };
        let permit = queue.acquire(context.node.tenant()).await;
        let _permit = permit.ok_or_else(|| inner.overloaded(context.payload.protocol()))?;
        // A commit from here on may be missed below; a later pass applies it.
        let as_of = inner.cache.last_pass();
        let evaluated = async {
            inner.evaluate_with_version_ages(context).await.map_err(status::from_store_error)
        };
        let evaluated = status::with_database_timeout(evaluated).await?;
        let first = evaluated.evaluations.into_iter().next().ok_or_else(batch_aborted)?;
        inner.cache_result(context, first, as_of, evaluated.at)?.ok_or_else(batch_aborted)
    }

    /// Evaluates a poll alone, without caching the answer. `None` if the batch returned no result.
    pub async fn evaluate_uncached(
        &self,
        context: &PollContext,
    ) -> Result<Option<Evaluation>, StoreError> {
        let inner = &self.0;
        let mut evaluated = inner.evaluate_batch(context.node.tenant(), &[context]).await?;
        if matches!(evaluated.evaluations[..], [(Evaluation::NeedsSingleRead, _)]) {
            evaluated = inner.evaluate_with_version_ages(context).await?;
        }
        let first = evaluated.evaluations.into_iter().next();
        Ok(first.map(|(evaluation, _)| evaluation))
    }
}

impl PollBatcherInner {
    /// Evaluates a poll like a batch does, with the age of package versions.
    async fn evaluate_with_version_ages(
        &self,
        context: &PollContext,
    ) -> Result<BatchEvaluation, StoreError> {
        let tx = self.store.tenant(context.node.tenant()).await?;
        let at = self.clock.now();
        let (host, node) = nodes::find_with_host(&tx, context.node.machine()).await?;
        let (limits, reading) = (&self.planning_limits, ReadMode::Preview(at));
        let input = decisions::load_decision_input(&tx, &host, &node, limits, reading).await?;
        let evaluation = match &context.payload {
            PollPayload::Own(payload) => {
                evaluate::agent::own_poll_with_version_ages(
                    &tx,
                    (&host, &node),
                    &input,
                    payload,
                    at,
                )
                .await?
            }
            // The age of versions does not matter to EIM's agents.
            PollPayload::Eim { .. } => Evaluation::NeedsWrite,
        };
        drop(tx);
        Ok(BatchEvaluation { at, evaluations: vec![(evaluation, Some(input.chain))] })
    }
}
