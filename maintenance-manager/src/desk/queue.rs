//! Who waits to be looked at.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::sync::oneshot;
use tonic::Status;

use super::{Case, Inner, Lane, Verdict};

/// How often those who are held go first: they would wait for ever for polls that never end.
const THEIR_TURN: u64 = 4;

/// What a batch finds of a poll; none if it needs what a batch does not read.
pub type Found = Result<Option<Verdict>, Status>;

/// A ticket, and where the answer comes.
pub type Place = (u64, oneshot::Receiver<Found>);

/// Somebody who waits.
#[derive(Debug)]
pub struct Waiting {
    ticket: u64,
    pub case: Case,
    answer: oneshot::Sender<Found>,
}

impl Waiting {
    /// Answers, if somebody still waits.
    pub fn answer(self, found: Found) {
        // Who hung up needs no answer.
        let _ = self.answer.send(found);
    }
}

/// Those who wait, and how many are at work for them.
#[derive(Debug, Default)]
pub struct Queue {
    polls: VecDeque<Waiting>,
    held: VecDeque<Waiting>,
    tickets: u64,
    turns: u64,
    taken: usize,
}

impl Queue {
    /// Lets somebody wait.
    pub fn push(&mut self, case: Case) -> Place {
        let lane = match case.lane {
            Lane::Poll => &mut self.polls,
            Lane::Held => &mut self.held,
        };
        self.tickets += 1;
        let (answer, receiver) = oneshot::channel();
        lane.push_back(Waiting {
            ticket: self.tickets,
            case,
            answer,
        });
        (self.tickets, receiver)
    }

    /// Lets a poll go that has waited for too long. False if it does not wait any more.
    pub fn leave(&mut self, ticket: u64) -> bool {
        let place = self
            .polls
            .iter()
            .position(|waiting| waiting.ticket == ticket);
        place.is_some_and(|place| self.polls.remove(place).is_some())
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.polls.len() + self.held.len()
    }

    /// Takes a seat, if one is free.
    pub fn sit_down(&mut self, seats: usize) -> bool {
        let is_free = self.taken == 0 || self.taken < seats;
        if is_free {
            self.taken += 1;
        }
        is_free
    }

    /// The next ones of one project; empty if nobody waits.
    fn take(&mut self, most: usize) -> Vec<Waiting> {
        self.turns = self.turns.wrapping_add(1);
        let lanes = if self.turns.is_multiple_of(THEIR_TURN) {
            [&mut self.held, &mut self.polls]
        } else {
            [&mut self.polls, &mut self.held]
        };
        let mut batch = Vec::new();
        for lane in lanes {
            gather(lane, &mut batch, most.max(1));
        }
        batch
    }
}

/// Moves those to a batch who are of its project, or of that of the first one. The others keep their places.
fn gather(lane: &mut VecDeque<Waiting>, batch: &mut Vec<Waiting>, most: usize) {
    let mut others = VecDeque::new();
    while batch.len() < most
        && let Some(waiting) = lane.pop_front()
    {
        if waiting.answer.is_closed() {
            continue;
        }
        let tenant = waiting.case.who.tenant();
        let is_one_of_them = batch
            .first()
            .is_none_or(|first: &Waiting| first.case.who.tenant() == tenant);
        if is_one_of_them {
            batch.push(waiting);
        } else {
            others.push_back(waiting);
        }
    }
    if !others.is_empty() {
        others.append(lane);
        *lane = others;
    }
}

/// A seat at a desk, which is given back whatever happens.
#[derive(Debug)]
pub struct Seat {
    desk: Arc<Inner>,
    is_given_back: bool,
}

impl Seat {
    /// The seat that somebody has just taken.
    pub fn taken(desk: Arc<Inner>) -> Self {
        Self {
            desk,
            is_given_back: false,
        }
    }

    /// The desk that it is at.
    pub fn desk(&self) -> &Arc<Inner> {
        &self.desk
    }

    /// The next batch. With none left, the seat is given back at that very moment: whoever comes then finds it free.
    pub fn next(&mut self) -> Option<Vec<Waiting>> {
        let mut queue = self.desk.queue();
        let batch = queue.take(self.desk.settings.desk.batch);
        if batch.is_empty() {
            queue.taken = queue.taken.saturating_sub(1);
            self.is_given_back = true;
        }
        self.desk.meters.waiting.set(queue.len());
        drop(queue);
        (!batch.is_empty()).then_some(batch)
    }
}

impl Drop for Seat {
    /// The work was broken off: nobody may be left waiting for it.
    fn drop(&mut self) {
        if self.is_given_back {
            return;
        }
        let mut queue = self.desk.queue();
        queue.taken = queue.taken.saturating_sub(1);
        let left = (
            std::mem::take(&mut queue.polls),
            std::mem::take(&mut queue.held),
        );
        drop(queue);
        drop(left);
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_domain::id::HostId;
    use evenkeel_domain::tenant::TenantId;
    use uuid::Uuid;

    use super::*;
    use crate::desk::{OwnWords, Words};
    use crate::view::{View, ViewSettings, Who};

    fn case(project: u128, host: u32, lane: Lane) -> Case {
        let view = View::new(ViewSettings::default());
        let tenant = TenantId::new(Uuid::from_u128(project));
        Case {
            who: Who::Host(tenant, HostId::nth(host)),
            asked: view.asked_own(&[], None, ""),
            words: Words::Own(OwnWords {
                digest: Vec::new(),
                attempt: None,
                waits: String::new(),
            }),
            lane,
        }
    }

    fn hosts(batch: &[Waiting]) -> Vec<Who> {
        batch.iter().map(|waiting| waiting.case.who).collect()
    }

    fn of(project: u128, hosts: &[u32]) -> Vec<Who> {
        let tenant = TenantId::new(Uuid::from_u128(project));
        let host = |n: &u32| Who::Host(tenant, HostId::nth(*n));
        hosts.iter().map(host).collect()
    }

    #[test]
    fn a_batch_is_of_one_project_and_the_others_keep_their_places() {
        let mut queue = Queue::default();
        let mut places = Vec::new();
        for (project, host) in [(1, 1), (2, 2), (1, 3), (2, 4), (1, 5), (1, 6)] {
            places.push(queue.push(case(project, host, Lane::Poll)));
        }
        assert_eq!(hosts(&queue.take(3)), of(1, &[1, 3, 5]));
        assert_eq!(hosts(&queue.take(3)), of(2, &[2, 4]));
        assert_eq!(hosts(&queue.take(3)), of(1, &[6]));
        assert!(queue.take(3).is_empty());
    }

    #[test]
    fn those_who_are_held_go_behind_the_polls_and_first_now_and_then() {
        let mut queue = Queue::default();
        let mut places = Vec::new();
        for host in 1..=4 {
            places.push(queue.push(case(1, host, Lane::Poll)));
        }
        places.push(queue.push(case(1, 9, Lane::Held)));
        for host in 1..=3 {
            assert_eq!(hosts(&queue.take(1)), of(1, &[host]));
        }
        assert_eq!(hosts(&queue.take(1)), of(1, &[9]));
        assert_eq!(hosts(&queue.take(1)), of(1, &[4]));
    }

    #[test]
    fn who_hung_up_or_has_left_is_not_looked_at() {
        let mut queue = Queue::default();
        drop(queue.push(case(1, 1, Lane::Poll)));
        let (ticket, _impatient) = queue.push(case(1, 2, Lane::Poll));
        let patient = queue.push(case(1, 3, Lane::Poll));
        assert!(queue.leave(ticket));
        assert!(!queue.leave(ticket));
        assert_eq!(hosts(&queue.take(100)), of(1, &[3]));
        drop(patient);
    }
}
