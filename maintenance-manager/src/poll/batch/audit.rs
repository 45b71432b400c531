//! Evaluates a sample of the cached answers again and counts those that differ from the database.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use evenkeel_kit::Lifecycle;
use evenkeel_store::StoreError;
use tonic::Code;

use super::{PollBatcher, PollBatcherInner, PollContext};
use crate::evaluate::{Answer, Evaluation};
use crate::poll::cache::{CachedAnswer, Lookup, NodeKey};

impl PollBatcher {
    /// Audits one in `audit_every` answers. If every answer is audited, the poll waits for the
    /// audit.
    pub(super) async fn sample_audit(&self, context: &PollContext, current: &CachedAnswer) {
        let sample_interval = u64::from(self.0.settings.answer_cache.audit_every);
        if sample_interval == 0
            || !self.0.hits.fetch_add(1, Ordering::Relaxed).is_multiple_of(sample_interval)
        {
            return;
        }
        let audit = audit(self.clone(), context.clone(), Arc::clone(&current.answer));
        if sample_interval == 1 {
            Box::pin(audit).await;
        } else {
            // The poll does not wait for the audit.
            Lifecycle::detach(audit);
        }
    }
}

/// Evaluates an answer again that was taken from the cache. The cache was wrong if the evaluation
/// differs and the cache still returns the same answer after all earlier commits were applied.
async fn audit(batcher: PollBatcher, context: PollContext, cached: Arc<Answer>) {
    let inner = &batcher.0;
    let Ok(Some(evaluation)) = inner.evaluate_one(&context).await else {
        return;
    };
    match &evaluation {
        Evaluation::Unchanged { answer, .. } if **answer == *cached => return,
        // The database was not available, so nothing was compared.
        Evaluation::Refused(status) if status.code() == Code::Unavailable => return,
        _ => {}
    }
    if !inner.cache.fence(Instant::now()).await {
        return;
    }
    let now = inner.clock.now();
    let Lookup::Hit(current) = inner.cache.lookup(&context.node, &context.cache_key, now) else {
        return;
    };
    if !Arc::ptr_eq(&current.answer, &cached) {
        return;
    }
    inner.mismatches.fetch_add(1, Ordering::Relaxed);
    inner.metrics.mismatches.increment(1);
    let (tenant, node) = match context.node {
        NodeKey::Host(tenant, host) => (tenant, host.to_string()),
        NodeKey::Uuid(tenant, uuid) => (tenant, uuid.to_string()),
    };
    tracing::error!(
        %tenant,
        node,
        cached = ?cached,
        evaluated = ?evaluation,
        "a cached answer differs from the database"
    );
}

impl PollBatcherInner {
    /// Evaluates a poll; `None` if the batch returned no result.
    async fn evaluate_one(&self, context: &PollContext) -> Result<Option<Evaluation>, StoreError> {
        let mut evaluated = self.evaluate_batch(context.node.tenant(), &[context]).await?;
        if matches!(evaluated.evaluations[..], [(Evaluation::NeedsSingleRead, _)]) {
            evaluated = self.evaluate_with_version_ages(context).await?;
        }
        let first = evaluated.evaluations.into_iter().next();
        Ok(first.map(|(evaluation, _)| evaluation))
    }
}
