//! A poll that is held until there is something new to say.

use std::time::Duration;

use chrono::TimeDelta;
use evenkeel_domain::Time;
use tokio::time::Instant;
use tonic::{Code, Status};

use crate::caller::Node;
use crate::carried::Carried;
use crate::desk::{Case, Lane, Verdict};
use crate::holds::{Waiting, Woken};
use crate::load::Aside;
use crate::manager::MaintenanceManager;
use crate::settings::{delta, period};
use crate::view::{Hit, Recall};

/// What a poll says of being held.
#[derive(Clone, Debug)]
pub struct Wish {
    /// For how many milliseconds at most.
    pub millis: u32,
    /// The tag of the decision that the node goes by.
    pub tag: u64,
    /// How many its connection carries, if the server counts them.
    pub carried: Option<Carried>,
}

/// How many times in a row what is found of a held poll may not be remembered, because something has just changed.
const UNKEPT: u8 = 5;

/// Polls that are held for long end together: all whose time would be over within the same beat. One by one each would
/// find nothing of what answers it in the processor's caches, and cost twice as much.
const BEAT: TimeDelta = TimeDelta::seconds(2);

/// How a held poll ended.
#[derive(Debug)]
pub enum Ended {
    /// This is to be answered.
    Answer(Hit),
    /// The same, but the server stops.
    Draining(Hit),
    /// Something is to be written first.
    News,
}

/// A poll that is held. There may be tens of thousands: it keeps little.
struct Held<'a> {
    manager: &'a MaintenanceManager,
    case: Case,
    /// What the node goes by.
    hit: Hit,
    waiting: Waiting,
    /// Since when.
    since: Time,
    /// When its time is over.
    end: Instant,
    /// When it was last looked at in the database.
    looked: Option<Instant>,
    /// How many times in a row what was found could not be remembered.
    unkept: u8,
    /// It is not in anybody's way.
    _aside: Aside,
}

/// Holds a poll whose answer the node goes by already, until there is another or its time is over. If it may not be held,
/// it ends at once with what it came with.
pub fn hold(
    manager: &MaintenanceManager,
    node: &Node,
    case: Case,
    held: Wish,
    hit: Hit,
) -> impl Future<Output = Result<Ended, Status>> {
    // What an async function is given it keeps twice, so it is put together outside of one.
    let mut begun = begin(manager, node, case, held, hit);
    async move {
        match &mut begun {
            Ok(held) => held.run().await,
            Err(hit) => Ok(Ended::Answer(hit.clone())),
        }
    }
}

fn begin<'a>(
    manager: &'a MaintenanceManager,
    node: &Node,
    case: Case,
    held: Wish,
    hit: Hit,
) -> Result<Held<'a>, Hit> {
    if hit.answer.tag != held.tag {
        return Err(hit);
    }
    let who = ((node.tenant, node.host), case.asked);
    let Some(waiting) = manager.holds.hold(who, &hit, held.carried.as_ref()) else {
        return Err(hit);
    };
    let longest = manager.settings.holds.longest;
    let time = Duration::from_millis(held.millis.into()).min(longest);
    // The next word of the node may be as far away as that.
    let now = manager.now();
    let interval = manager.load.interval(manager.settings.poll_interval);
    let due = now.checked_add_signed((delta(time) + delta(interval)) * 2);
    manager.contacts.heard(node.tenant, hit.instance, now, due);
    Ok(Held {
        manager,
        case: Case {
            lane: Lane::Held,
            ..case
        },
        hit,
        waiting,
        since: now,
        end: Instant::now() + until_beat(now, time),
        looked: None,
        unkept: 0,
        _aside: manager.load.aside(),
    })
}

/// How long a poll is held that may be held for a time: no longer, and until the last beat before that unless it would be
/// let go of more than a 32nd sooner.
fn until_beat(now: Time, time: Duration) -> Duration {
    let end = now.checked_add_signed(delta(time));
    let over = end.and_then(|end| {
        let over = end.timestamp_millis().rem_euclid(BEAT.num_milliseconds());
        Some(Duration::from_millis(u64::try_from(over).ok()?))
    });
    let over = over.filter(|over| *over <= time / 32);
    time.saturating_sub(over.unwrap_or_default())
}

impl Held<'_> {
    async fn run(&mut self) -> Result<Ended, Status> {
        loop {
            if self.stands()
                && let Some(ended) = self.wait().await
            {
                return ended;
            }
            if let Some(ended) = self.look().await? {
                return Ok(ended);
            }
        }
    }

    /// Whether the answer is still remembered, now that a change of what it depends on would be noticed.
    fn stands(&mut self) -> bool {
        let Some(hit) = self.recall() else {
            return false;
        };
        let depends = |hit: &Hit| (hit.instance, hit.ground, hit.answer.counted);
        let stands = self.is_same(&hit) && depends(&hit) == depends(&self.hit);
        if stands {
            self.hit = hit;
        }
        stands
    }

    /// Waits until it has ended, or is to be looked at again: it was woken, its answer may change by time alone, or its
    /// own time is over.
    async fn wait(&mut self) -> Option<Result<Ended, Status>> {
        let (now, until) = (Instant::now(), self.hit.until);
        let left = (until - self.manager.now()).to_std().unwrap_or_default();
        let over = self.end.saturating_duration_since(now);
        let soonest = over.min(left + Duration::from_millis(1));
        let woken = self.woken_before(now + soonest).await?;
        self.ended(woken).await
    }

    /// Looks at the node again. None if it is held on: the same is to be said, or nothing can be known just now.
    async fn look(&mut self) -> Result<Option<Ended>, Status> {
        if let Some(ended) = self.rest().await {
            return ended.map(Some);
        }
        self.looked = Some(Instant::now());
        let is_over = self.end <= Instant::now();
        if is_over && let Some(hit) = self.known().await {
            return Ok(Some(Ended::Answer(hit)));
        }
        if !is_over && self.manager.view.pass().is_none() {
            return Ok(None);
        }
        let mut look = Box::pin(self.manager.desk.look(self.case.clone()));
        let verdict = loop {
            let woken = tokio::select! {
                verdict = &mut look => break verdict,
                woken = self.waiting.woken() => woken,
            };
            // A change meanwhile is not lost: the answer is not remembered then.
            if let Some(ended) = self.ended(woken).await {
                return ended.map(Some);
            }
        };
        self.looked = Some(Instant::now());
        match verdict {
            Ok(Verdict::Quiet(hit)) if !is_over && self.is_same(&hit) && self.may_go_on(&hit) => {
                self.waiting.renew(&hit);
                self.hit = hit;
                Ok(None)
            }
            Ok(Verdict::Quiet(hit)) => Ok(Some(Ended::Answer(hit))),
            Ok(Verdict::News) => Ok(Some(Ended::News)),
            Err(refused) if !is_over && refused.code() == Code::Unavailable => Ok(None),
            Err(refused) => Err(refused),
        }
    }

    /// Whether its answer was remembered lately: else it would be looked at again and again.
    fn may_go_on(&mut self, hit: &Hit) -> bool {
        self.unkept = if hit.kept { 0 } else { self.unkept + 1 };
        self.unkept < UNKEPT
    }

    /// The answer, if it is remembered. What lets the node begin something is so only as it has been until now.
    async fn known(&self) -> Option<Hit> {
        let hit = self.recall()?;
        if !hit.answer.fresh {
            return Some(hit);
        }
        let fence = self.manager.view.fence(std::time::Instant::now());
        let is_up_to_date = Box::pin(fence).await;
        self.recall().filter(|_| is_up_to_date)
    }

    /// Lets some time pass since the last look, so that many changes in a row cost little.
    async fn rest(&mut self) -> Option<Result<Ended, Status>> {
        let rest = period(self.manager.settings.holds.rest);
        let rested = self.looked?.checked_add(rest);
        let until = rested.map_or(self.end, |rested| rested.min(self.end));
        loop {
            let woken = self.woken_before(until).await?;
            if let Some(ended) = self.ended(woken).await {
                return Some(ended);
            }
        }
    }

    /// What woke it before an instant; none if nothing did.
    async fn woken_before(&mut self, end: Instant) -> Option<Woken> {
        tokio::select! {
            woken = self.waiting.woken() => Some(woken),
            () = tokio::time::sleep_until(end) => None,
        }
    }

    /// What is answered if this ends it. What lets the node begin something is told only as it is now; where that cannot be
    /// known any more, the node goes by what it has.
    async fn ended(&self, woken: Woken) -> Option<Result<Ended, Status>> {
        let is_draining = match woken {
            Woken::Look => return None,
            Woken::Superseded => false,
            Woken::Drain => true,
        };
        let hit = if self.hit.answer.fresh {
            let known = self.known().await;
            known.filter(|hit| self.is_same(hit))
        } else {
            Some(self.hit.clone())
        };
        let load = &self.manager.load;
        let hit = hit.ok_or_else(|| load.again(load.spread()).status());
        let end = if is_draining {
            Ended::Draining
        } else {
            Ended::Answer
        };
        Some(hit.map(end))
    }

    fn recall(&self) -> Option<Hit> {
        let (case, now) = (&self.case, self.manager.now());
        match self.manager.view.recall(&case.who, &case.asked, now) {
            Recall::Hit(hit) => Some(hit),
            Recall::OtherWords { .. } | Recall::Unknown => None,
        }
    }

    fn is_same(&self, hit: &Hit) -> bool {
        hit.answer.tag == self.hit.answer.tag
    }
}

/// Whether it is answered or its connection was lost: from now on the node is due like one that is not held. Its next word
/// is newer. But if it has come back in the meantime, here or elsewhere, that word stands.
impl Drop for Held<'_> {
    fn drop(&mut self) {
        if !self.waiting.is_last() {
            return;
        }
        let manager = self.manager;
        let at = self.since + TimeDelta::milliseconds(1);
        let now = manager.now();
        let usual = now + manager.settings.silence();
        let due = manager.due(now).map_or(usual, |due| due.max(usual));
        let tenant = self.case.who.tenant();
        let contacts = &manager.contacts;
        contacts.heard(tenant, self.hit.instance, at, Some(due));
    }
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;
    use proptest::prelude::*;

    use super::*;

    /// The size of what a function makes of a poll.
    fn size<'a, F: Future>(
        _: impl FnOnce(&'a MaintenanceManager, &'a Node, Case, Wish, Hit) -> F,
    ) -> usize {
        size_of::<F>()
    }

    #[test]
    fn polls_that_are_held_for_long_end_together_and_no_later_than_they_may() {
        let noon = DateTime::UNIX_EPOCH + TimeDelta::hours(12);
        let hour = Duration::from_hours(1);
        for millis in [0, 1, 700, 1_999] {
            let now = noon + TimeDelta::milliseconds(millis);
            let held = until_beat(now, hour);
            assert_eq!(now + delta(held), noon + delta(hour), "{millis} ms early");
        }
        let late = noon + TimeDelta::milliseconds(2_000);
        assert_eq!(until_beat(late, hour), hour, "the next beat");
    }

    proptest! {
        #[test]
        fn none_is_held_longer_than_it_may_or_let_go_of_much_sooner(
            at in -4_000_000_i64..4_000_000_000_000,
            millis in 0_u64..10_000_000,
        ) {
            let (now, time) = (DateTime::UNIX_EPOCH + TimeDelta::milliseconds(at), Duration::from_millis(millis));
            let held = until_beat(now, time);
            prop_assert!(held <= time && time <= held + time / 32);
            let is_on_beat = (now + delta(held)).timestamp_millis() % BEAT.num_milliseconds() == 0;
            prop_assert!(is_on_beat || time < Duration::from_secs(64));
        }
    }

    #[test]
    fn tens_of_thousands_have_room() {
        let size = size(hold);
        assert!(size <= 700, "{size} bytes");
    }
}
