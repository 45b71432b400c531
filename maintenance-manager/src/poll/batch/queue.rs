//! The queue of polls to evaluate.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use evenkeel_domain::tenant::TenantId;
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
    polls: ProjectQueues,
    long_polls: ProjectQueues,
    last_ticket: u64,
    batches: u64,
    busy_workers: usize,
}

/// The polls of each project. The projects take turns, so that no project uses all workers while
/// polls of others wait.
#[derive(Debug, Default)]
struct ProjectQueues {
    /// The next project is the first. A project without polls leaves at its turn.
    turns: VecDeque<TenantId>,
    projects: HashMap<TenantId, VecDeque<QueuedPoll>>,
    len: usize,
}

impl PollQueue {
    pub fn push(&mut self, context: PollContext) -> QueueTicket {
        let queues = match context.priority {
            Priority::Poll => &mut self.polls,
            Priority::LongPoll => &mut self.long_polls,
        };
        self.last_ticket += 1;
        let (answer, receiver) = oneshot::channel();
        queues.push(QueuedPoll { ticket: self.last_ticket, context, answer });
        (self.last_ticket, receiver)
    }

    /// Removes a poll of a project that has waited too long. Returns false if a worker has already
    /// taken it.
    pub fn remove(&mut self, project: TenantId, ticket: u64) -> bool {
        self.polls.remove(project, ticket)
    }

    /// The number of queued polls.
    pub fn len(&self) -> usize {
        self.polls.len + self.long_polls.len
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
        let (first, second) = if self.batches.is_multiple_of(LONG_POLLS_FIRST_EVERY) {
            (&mut self.long_polls, &mut self.polls)
        } else {
            (&mut self.polls, &mut self.long_polls)
        };
        let max = max.max(1);
        let mut batch = first.take_next(max);
        if let Some(project) = batch.first().map(|queued| queued.context.node.tenant()) {
            second.fill_batch(project, &mut batch, max);
        } else {
            batch = second.take_next(max);
        }
        batch
    }
}

impl ProjectQueues {
    fn push(&mut self, queued: QueuedPoll) {
        let project = queued.context.node.tenant();
        let turns = &mut self.turns;
        let polls = self.projects.entry(project).or_insert_with(|| {
            turns.push_back(project);
            VecDeque::new()
        });
        polls.push_back(queued);
        self.len += 1;
    }

    fn remove(&mut self, project: TenantId, ticket: u64) -> bool {
        let Some(polls) = self.projects.get_mut(&project) else {
            return false;
        };
        // Polls are queued in the order of their tickets, and batches keep this order.
        let position = polls.binary_search_by_key(&ticket, |queued| queued.ticket);
        let is_removed = position.is_ok_and(|position| polls.remove(position).is_some());
        self.len -= usize::from(is_removed);
        is_removed
    }

    /// Takes polls of the project whose turn it is; empty if the queues are empty.
    fn take_next(&mut self, max: usize) -> Vec<QueuedPoll> {
        let mut batch = Vec::new();
        while batch.is_empty()
            && let Some(project) = self.turns.pop_front()
        {
            self.fill_batch(project, &mut batch, max);
            if self.projects.get(&project).is_some_and(VecDeque::is_empty) {
                self.projects.remove(&project);
            } else {
                self.turns.push_back(project);
            }
        }
        batch
    }

    /// Moves polls of a project into a batch, if their callers still wait.
    fn fill_batch(&mut self, project: TenantId, batch: &mut Vec<QueuedPoll>, max: usize) {
        let Some(polls) = self.projects.get_mut(&project) else {
            return;
        };
        while batch.len() < max
            && let Some(queued) = polls.pop_front()
        {
            self.len -= 1;
            if !queued.answer.is_closed() {
                batch.push(queued);
            }
        }
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
    use uuid::Uuid;

    use super::*;
    use crate::poll::batch::{OwnPayload, PollPayload};
    use crate::poll::cache::{AnswerCache, AnswerCacheSettings, NodeKey};

    fn project(number: u128) -> TenantId {
        TenantId::new(Uuid::from_u128(number))
    }

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
        assert!(queue.remove(project(2), *ticket), "a poll is found after others were taken");
        assert_eq!(batch_nodes(&queue.take_batch(3)), nodes(2, &[2]));
        assert_eq!(batch_nodes(&queue.take_batch(3)), nodes(1, &[6]));
        assert!(queue.take_batch(3).is_empty());
    }

    #[test]
    fn projects_take_turns_while_one_has_many_polls() {
        for priority in [Priority::Poll, Priority::LongPoll] {
            let mut queue = PollQueue::default();
            let mut tickets = Vec::new();
            for host in 1..=100 {
                tickets.push(queue.push(context(1, host, priority)));
            }
            for (project, host) in [(2, 101), (3, 102), (2, 103)] {
                tickets.push(queue.push(context(project, host, priority)));
            }
            assert_eq!(batch_nodes(&queue.take_batch(2)), nodes(1, &[1, 2]));
            assert_eq!(batch_nodes(&queue.take_batch(2)), nodes(2, &[101, 103]));
            assert_eq!(batch_nodes(&queue.take_batch(2)), nodes(3, &[102]));
            assert_eq!(batch_nodes(&queue.take_batch(2)), nodes(1, &[3, 4]));
            assert_eq!(batch_nodes(&queue.take_batch(2)), nodes(1, &[5, 6]));
            assert_eq!(queue.len(), 94);
            while !queue.take_batch(50).is_empty() {}
            assert_eq!(queue.len(), 0);
            let queues = [&queue.polls, &queue.long_polls];
            assert!(
                queues.iter().all(|queues| queues.projects.is_empty() && queues.turns.is_empty()),
                "projects without polls need no memory"
            );
        }
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
        assert!(queue.remove(project(1), ticket));
        assert!(!queue.remove(project(1), ticket));
        assert_eq!(batch_nodes(&queue.take_batch(100)), nodes(1, &[3]));
        drop(remaining);
    }
}
