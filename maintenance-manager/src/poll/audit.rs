//! Evaluates a sample of the cached answers again and counts those that differ from the database.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use evenkeel_kit::Lifecycle;
use tonic::Code;

use super::PollAnswers;
use crate::evaluate::{Answer, Evaluation};
use crate::poll::batch::PollContext;
use crate::poll::cache::{CachedAnswer, Lookup, NodeKey};

impl PollAnswers {
    /// Audits one in `audit_every` answers. If every answer is audited, the poll waits for the
    /// audit.
    pub(super) async fn sample_audit(
        self: &Arc<Self>,
        context: &PollContext,
        current: &CachedAnswer,
    ) {
        let sample_interval = u64::from(self.audit_every);
        if sample_interval == 0
            || !self.hits.fetch_add(1, Ordering::Relaxed).is_multiple_of(sample_interval)
        {
            return;
        }
        let audit = audit(Arc::clone(self), context.clone(), Arc::clone(&current.answer));
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
async fn audit(answers: Arc<PollAnswers>, context: PollContext, cached: Arc<Answer>) {
    let Ok(Some(evaluation)) = answers.batcher.evaluate_uncached(&context).await else {
        return;
    };
    match &evaluation {
        Evaluation::Unchanged { answer, .. } if **answer == *cached => return,
        // The database was not available, so nothing was compared.
        Evaluation::Refused(status) if status.code() == Code::Unavailable => return,
        _ => {}
    }
    if !answers.cache.fence(Instant::now()).await {
        return;
    }
    let now = answers.clock.now();
    let Lookup::Hit(current) = answers.cache.lookup(&context.node, &context.cache_key, now) else {
        return;
    };
    if !Arc::ptr_eq(&current.answer, &cached) {
        return;
    }
    answers.mismatches.fetch_add(1, Ordering::Relaxed);
    answers.metrics.mismatches.increment(1);
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
