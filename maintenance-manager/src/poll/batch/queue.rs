//! The queue of polls to evaluate.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::sync::oneshot;
use tonic::Status;

use super::{BatchResult, PollBatcherInner, PollContext, Priority};

/// Every how many batches long polls go first. Otherwise they could wait forever under constant
/// load.
const LONG_POLLS_FIRST_EVERY: u64 = 4;

/// The result of an evaluation; `None` if it needs data that a batch does not load.
pub type EvaluationResult = Result<Option<BatchResult>, Status>;

/// A ticket number and the receiver of the result.
pub type QueueTicket = (u64, oneshot::Receiver<EvaluationResult>);

#[derive(Debug)]
pub struct QueuedPoll {
    ticket: u64,
    pub context: PollContext,
    answer: oneshot::Sender<EvaluationResult>,
}

impl QueuedPoll {
    /// Sends the result, if the caller still waits.
    pub fn answer(self, result: EvaluationResult) {
        // The caller may have disconnected.
        let _ = self.answer.send(result);
    }
}

/// The queued polls, and the number of busy workers.
#[derive(Debug, Default)]
pub struct PollQueue {
    polls: VecDeque<QueuedPoll>,
    long_polls: VecDeque<QueuedPoll>,
    last_ticket: u64,
    batches: u64,
    busy_workers: usize,
}

impl PollQueue {
    pub fn push(&mut self, context: PollContext) -> QueueTicket {
        let queue = match context.priority {
            Priority::Poll => &mut self.polls,
            Priority::LongPoll => &mut self.long_polls,
        };
        self.last_ticket += 1;
        let (answer, receiver) = oneshot::channel();
        queue.push_back(QueuedPoll { ticket: self.last_ticket, context, answer });
        (self.last_ticket, receiver)
    }

    /// Removes a poll that has waited too long. Returns false if a worker has already taken it.
    pub fn remove(&mut self, ticket: u64) -> bool {
        // Polls are queued in the order of their tickets, and batches keep this order.
        let position = self.polls.binary_search_by_key(&ticket, |queued| queued.ticket);
        position.is_ok_and(|position| self.polls.remove(position).is_some())
    }

    /// The number of queued polls.
    pub fn len(&self) -> usize {
        self.polls.len() + self.long_polls.len()
    }

    /// Claims a worker slot, if one is free.
    pub fn claim_worker(&mut self, max_workers: usize) -> bool {
        let is_free = self.busy_workers == 0 || self.busy_workers < max_workers;
        if is_free {
            self.busy_workers += 1;
        }
        is_free
    }

    /// Takes the next polls of one project; empty if the queue is empty.
    fn take_batch(&mut self, max: usize) -> Vec<QueuedPoll> {
        self.batches = self.batches.wrapping_add(1);
        let queues = if self.batches.is_multiple_of(LONG_POLLS_FIRST_EVERY) {
            [&mut self.long_polls, &mut self.polls]
        } else {
            [&mut self.polls, &mut self.long_polls]
        };
        let mut batch = Vec::new();
        for queue in queues {
            fill_batch(queue, &mut batch, max.max(1));
        }
        batch
    }
}

/// Moves polls of one project into the batch: the project of the batch, or of the first poll. The
/// other polls keep their order.
fn fill_batch(queue: &mut VecDeque<QueuedPoll>, batch: &mut Vec<QueuedPoll>, max: usize) {
    let mut others = VecDeque::new();
    while batch.len() < max
        && let Some(queued) = queue.pop_front()
    {
        if queued.answer.is_closed() {
            continue;
        }
        let tenant = queued.context.node.tenant();
        let is_one_of_them =
            batch.first().is_none_or(|first: &QueuedPoll| first.context.node.tenant() == tenant);
        if is_one_of_them {
            batch.push(queued);
        } else {
            others.push_back(queued);
        }
    }
    if !others.is_empty() {
        others.append(queue);
        *queue = others;
    }
}

/// A worker slot. It is released when the worker ends, also on a panic.
#[derive(Debug)]
pub struct Worker {
    batcher: Arc<PollBatcherInner>,
    is_released: bool,
}

impl Worker {
    /// The slot that was just claimed.
    pub fn new(batcher: Arc<PollBatcherInner>) -> Self {
        Self { batcher, is_released: false }
    }

    pub fn batcher(&self) -> &Arc<PollBatcherInner> {
        &self.batcher
    }

    /// Takes the next batch. Releases the slot under the same lock if the queue is empty, so that
    /// the next poll finds it free.
    pub fn next_batch(&mut self) -> Option<Vec<QueuedPoll>> {
        let mut queue = self.batcher.queue();
        let batch = queue.take_batch(self.batcher.settings.max_size);
        if batch.is_empty() {
            queue.busy_workers = queue.busy_workers.saturating_sub(1);
            self.is_released = true;
        }
        self.batcher.metrics.waiting.set(queue.len());
        drop(queue);
        (!batch.is_empty()).then_some(batch)
    }
}

impl Drop for Worker {
    /// After a panic: releases the slot, and drops the queued polls so that none waits forever.
    fn drop(&mut self) {
        if self.is_released {
            return;
        }
        let mut queue = self.batcher.queue();
        queue.busy_workers = queue.busy_workers.saturating_sub(1);
        let left = (std::mem::take(&mut queue.polls), std::mem::take(&mut queue.long_polls));
        drop(queue);
        drop(left);
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_auth::KeyFingerprint;
    use evenkeel_domain::id::HostId;
    use evenkeel_domain::tenant::TenantId;
    use uuid::Uuid;

    use super::*;
    use crate::poll::batch::{OwnPayload, PollPayload};
    use crate::poll::cache::{AnswerCache, AnswerCacheSettings, NodeKey};

    fn context(project: u128, host: u32, priority: Priority) -> PollContext {
        let cache = AnswerCache::new(AnswerCacheSettings::default());
        let tenant = TenantId::new(Uuid::from_u128(project));
        let key = KeyFingerprint::from_public_key(b"key");
        PollContext {
            node: NodeKey::Host(tenant, HostId::nth(host)),
            cache_key: cache.key_for_own_poll(&key, &[], None, ""),
            payload: PollPayload::Own(OwnPayload {
                key,
                facts_digest: Vec::new(),
                attempt: None,
                waiting_for: String::new(),
            }),
            priority,
        }
    }

    fn batch_nodes(batch: &[QueuedPoll]) -> Vec<NodeKey> {
        batch.iter().map(|queued| queued.context.node).collect()
    }

    fn nodes(project: u128, hosts: &[u32]) -> Vec<NodeKey> {
        let tenant = TenantId::new(Uuid::from_u128(project));
        let host = |n: &u32| NodeKey::Host(tenant, HostId::nth(*n));
        hosts.iter().map(host).collect()
    }

    #[test]
    fn a_batch_holds_one_project_and_the_others_keep_their_order() {
        let mut queue = PollQueue::default();
        let mut tickets = Vec::new();
        for (project, host) in [(1, 1), (2, 2), (1, 3), (2, 4), (1, 5), (1, 6)] {
            tickets.push(queue.push(context(project, host, Priority::Poll)));
        }
        assert_eq!(batch_nodes(&queue.take_batch(3)), nodes(1, &[1, 3, 5]));
        let (ticket, _) = &tickets[3];
        assert!(queue.remove(*ticket), "a poll is found after others were taken");
        assert_eq!(batch_nodes(&queue.take_batch(3)), nodes(2, &[2]));
        assert_eq!(batch_nodes(&queue.take_batch(3)), nodes(1, &[6]));
        assert!(queue.take_batch(3).is_empty());
    }

    #[test]
    fn long_polls_queue_behind_polls_but_regularly_go_first() {
        let mut queue = PollQueue::default();
        let mut tickets = Vec::new();
        for host in 1..=4 {
            tickets.push(queue.push(context(1, host, Priority::Poll)));
        }
        tickets.push(queue.push(context(1, 9, Priority::LongPoll)));
        for host in 1..=3 {
            assert_eq!(batch_nodes(&queue.take_batch(1)), nodes(1, &[host]));
        }
        assert_eq!(batch_nodes(&queue.take_batch(1)), nodes(1, &[9]));
        assert_eq!(batch_nodes(&queue.take_batch(1)), nodes(1, &[4]));
    }

    #[test]
    fn a_closed_or_removed_poll_is_not_evaluated() {
        let mut queue = PollQueue::default();
        drop(queue.push(context(1, 1, Priority::Poll)));
        let (ticket, _receiver) = queue.push(context(1, 2, Priority::Poll));
        let remaining = queue.push(context(1, 3, Priority::Poll));
        assert!(queue.remove(ticket));
        assert!(!queue.remove(ticket));
        assert_eq!(batch_nodes(&queue.take_batch(100)), nodes(1, &[3]));
        drop(remaining);
    }
}
