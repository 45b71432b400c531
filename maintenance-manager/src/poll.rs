//! Answers polls that need no write: from memory ([`cache`]), from the database in batches
//! ([`batch`]), or as soon as the answer changes ([`long_poll`]).

mod audit;
pub mod batch;
pub mod cache;
pub mod long_poll;
mod poll_metrics;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use evenkeel_kit::clock::Clock;
use tonic::Status;

use crate::poll::batch::{BatchResult, PollBatcher, PollContext, PollProtocol, Priority};
use crate::poll::cache::{AnswerCache, Lookup};
use poll_metrics::{PollCounters, PollMetrics};

/// Answers polls from the cache, otherwise from the database through the batcher.
#[derive(Debug)]
pub struct PollAnswers {
    cache: AnswerCache,
    batcher: PollBatcher,
    clock: Arc<dyn Clock>,
    /// One in this many cached answers is audited; 0 audits none.
    audit_every: u32,
    metrics: PollMetrics,
    /// The number of polls answered from the cache.
    hits: AtomicU64,
    /// The number of audited answers that differ from the database.
    mismatches: AtomicU64,
}

impl PollAnswers {
    pub fn new(
        cache: AnswerCache,
        batcher: PollBatcher,
        clock: Arc<dyn Clock>,
        audit_every: u32,
    ) -> Self {
        Self {
            cache,
            batcher,
            clock,
            audit_every,
            metrics: PollMetrics::new(),
            hits: AtomicU64::new(0),
            mismatches: AtomicU64::new(0),
        }
    }

    /// Answers a poll from the cache, otherwise evaluates it. An answer that requires the fence is
    /// taken from the cache only if it was up to date when the call arrived.
    pub async fn answer(
        self: &Arc<Self>,
        context: PollContext,
        since: Instant,
    ) -> Result<BatchResult, Status> {
        // A long poll was counted when it arrived.
        let counters =
            (context.priority == Priority::Poll).then(|| self.counters(context.payload.protocol()));
        if let Some(cached_result) = self.lookup(&context, since).await {
            if let BatchResult::Unchanged(cached) = &cached_result {
                if let Some(counters) = counters {
                    counters.hit.increment(1);
                }
                self.sample_audit(&context, cached).await;
            }
            return Ok(cached_result);
        }
        let result = Box::pin(self.batcher.evaluate(context)).await;
        if let Some(counters) = counters {
            match &result {
                Ok(BatchResult::Unchanged(_)) => counters.miss.increment(1),
                // The caller counts it when it writes.
                Ok(BatchResult::NeedsWrite) => {}
                Err(_) => counters.refused.increment(1),
            }
        }
        result
    }

    pub fn counters(&self, protocol: PollProtocol) -> &PollCounters {
        self.metrics.counters(protocol)
    }

    /// The number of cached answers that differed from the database in an audit.
    pub fn mismatches(&self) -> u64 {
        self.mismatches.load(Ordering::Relaxed)
    }

    /// The cached result of a poll; `None` if it must be evaluated.
    async fn lookup(&self, context: &PollContext, since: Instant) -> Option<BatchResult> {
        let lookup = || {
            let now = self.clock.now();
            self.cache.lookup(&context.node, &context.cache_key, now)
        };
        let mut result = lookup();
        if matches!(&result, Lookup::Hit(cached) if cached.answer.requires_fence) {
            if !self.cache.fence(since).await {
                return None;
            }
            result = lookup();
        }
        match result {
            Lookup::Hit(cached) => Some(BatchResult::Unchanged(cached)),
            // A changed payload of EIM's agents, or a changed waiting reason of ours, must be
            // written.
            Lookup::OtherKey { waiting_changed } => {
                let needs_write =
                    waiting_changed || context.payload.protocol() == PollProtocol::Eim;
                needs_write.then_some(BatchResult::NeedsWrite)
            }
            Lookup::Miss => None,
        }
    }
}
