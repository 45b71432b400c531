//! A fake server without a network.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use chrono::{DateTime, Utc};
use evenkeel_kit::Secret;
use evenkeel_update_agent::facts::Facts;
use evenkeel_update_agent::grants::OfflineGrant;
use evenkeel_update_agent::journal::JournalEntry;
use evenkeel_update_agent::link::{
    Applicant, Enrollment, LinkError, PollAnswer, PollQuery, ServerLink, StartPermit,
};
use evenkeel_update_agent::model::{Action, AttemptEvent, Decision, EventKind, UpdateTarget};
use sha2::{Digest, Sha256};
use tokio::sync::Notify;
use uuid::Uuid;

use super::image_node::change_spec;

/// Whether the server can be reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Presence {
    #[default]
    Reachable,
    /// Reachable until the next poll is answered.
    ReachableOnce,
    Unreachable,
    /// Reachable, but it rejects the node's credential.
    Denying,
}

/// The decisions of the server, the data that it received, and its faults.
#[derive(Debug, Default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is an independent fault that can be combined with the others"
)]
pub struct FakeServer {
    pub target: Option<UpdateTarget>,
    pub window_open: bool,
    pub reported_events: BTreeMap<Uuid, Vec<AttemptEvent>>,
    /// The number of received events, including repeated ones.
    pub received_events: usize,
    pub facts: Option<Facts>,
    /// How often facts arrived.
    pub fact_messages: u32,
    /// The package list that the node sent.
    pub packages: Option<String>,
    /// How often a package list arrived.
    pub package_lists: u32,
    /// Whether the server can be reached.
    pub presence: Presence,
    /// The offline grant that the server gives.
    pub grant: Option<OfflineGrant>,
    /// The server's clock.
    pub server_time: Option<DateTime<Utc>>,
    /// This many polls get no answer.
    pub unanswered_polls: u32,
    /// The answers of this many reports are lost after the events were stored.
    pub lost_answers: u32,
    /// For this many reports the server stores only the first event, and acknowledges only that.
    pub forgotten_reports: u32,
    /// Start requests are refused, whatever the decision is.
    pub refuse_start: bool,
    /// With the first refusal the server also decides that the node must wait: another node has
    /// taken the last slot.
    pub waits_after_refusal: bool,
    /// Offers a target again that an attempt has finished.
    pub forgetful: bool,
    /// An operator orders a retry of the image as soon as the node has reported a revert.
    pub orders_retry: bool,
    /// The new credential in the answer to the next poll.
    pub renewal: Option<String>,
    /// The credentials that the link received.
    pub renewed: Vec<String>,
    pub polls: u32,
    /// The reason of each poll why the node does not start.
    pub waiting_reasons: Vec<String>,
    pub start_requests: u32,
    /// The deadline in a start permit.
    pub start_deadline: Option<DateTime<Utc>>,
    /// Maximum duration of a long poll; zero for a server without long polls.
    pub max_hold: Duration,
    /// Nodes reconnect spread over this time after a lost connection.
    pub reconnect_spread: Duration,
    /// The server ends long polls this much earlier than it may.
    pub early_release: Duration,
    /// The server never answers a long poll: the connection is lost without a notice.
    pub is_deaf: bool,
    /// The server never answers a poll that reports why the node waits: the connection is lost
    /// without a notice.
    pub ignores_waiting_nodes: bool,
    /// The server answers at once instead of holding polls.
    pub declines_long_polls: bool,
    /// The server is overloaded; nodes retry after this time.
    pub busy: Option<Duration>,
    /// Maximum hold of each poll.
    pub max_holds: Vec<Duration>,
    /// The time of each poll, since the first one.
    pub poll_times: Vec<Duration>,
    first_poll: Option<tokio::time::Instant>,
    /// Wakes the long polls.
    pub changed: Arc<Notify>,
}

impl FakeServer {
    pub fn only_attempt(&self) -> &[AttemptEvent] {
        assert_eq!(self.reported_events.len(), 1, "{:?}", self.reported_events);
        self.reported_events.values().next().unwrap()
    }

    /// The names of the events of the only attempt.
    pub fn story(&self) -> String {
        let names = self.only_attempt().iter().map(|event| event.kind.name());
        names.collect::<Vec<_>>().join(", ")
    }

    fn check_reachable(&self) -> Result<(), LinkError> {
        if let Some(again) = self.busy {
            let why = "overloaded".into();
            return Err(LinkError::Busy { retry_after: again, message: why });
        }
        match self.presence {
            Presence::Reachable | Presence::ReachableOnce => Ok(()),
            Presence::Unreachable => Err(LinkError::Unavailable("no server is there".into())),
            Presence::Denying => Err(LinkError::Denied("the credential is not valid".into())),
        }
    }

    /// As the real server: true if the facts have a digest whose list is not stored.
    fn wants_packages(&self) -> bool {
        let reported = self.facts.as_ref().and_then(|facts| facts.packages_digest);
        let has = self.packages.as_ref();
        reported.is_some() && reported != has.map(|text| Sha256::digest(text).into())
    }

    /// As the real server: equal decisions have equal tags. Zero without long polls.
    fn decision_tag(&self, attempt: Option<Uuid>) -> u64 {
        if self.max_hold.is_zero() {
            return 0;
        }
        let mut hasher = DefaultHasher::new();
        format!("{:?} {:?}", self.decide(attempt), self.grant).hash(&mut hasher);
        hasher.finish().max(1)
    }

    fn record_poll(&mut self, query: &PollQuery<'_>) -> Result<(), LinkError> {
        self.polls += 1;
        self.max_holds.push(query.max_hold);
        let now = tokio::time::Instant::now();
        let first = *self.first_poll.get_or_insert(now);
        self.poll_times.push(now - first);
        self.check_reachable()?;
        self.waiting_reasons.push(query.waiting_reason.to_owned());
        if self.unanswered_polls > 0 {
            self.unanswered_polls -= 1;
            return Err(LinkError::Unavailable("no server is there".into()));
        }
        if query.send_facts {
            self.facts = Some(query.facts.clone());
            self.fact_messages += 1;
        }
        if let Some(packages) = query.packages {
            self.packages = Some(packages.to_owned());
            self.package_lists += 1;
        }
        Ok(())
    }

    /// Whether there is nothing new for a long poll.
    fn is_unchanged(&self, query: &PollQuery<'_>) -> Result<bool, LinkError> {
        if self.is_deaf {
            return Ok(true);
        }
        self.check_reachable()?;
        let tag = self.decision_tag(query.attempt.map(|(id, _)| id));
        Ok(!self.declines_long_polls && tag != 0 && tag == query.decision_tag)
    }

    fn build_answer(&mut self, query: &PollQuery<'_>) -> PollAnswer {
        let attempt = query.attempt.map(|(id, _)| id);
        let (act, tag) = (self.decide(attempt), self.decision_tag(attempt));
        if self.presence == Presence::ReachableOnce {
            self.presence = Presence::Unreachable;
        }
        PollAnswer {
            want_facts: self.facts.as_ref() != Some(query.facts),
            want_packages: self.wants_packages(),
            server_time: self.server_time,
            next_poll: Duration::from_mins(1),
            decision: Decision {
                action: act,
                reason: "as set by the test".into(),
                next_change: None,
                offline_grant: self.grant.clone(),
            },
            credential: self.renewal.take().map(Secret::new),
            decision_tag: tag,
            max_hold: self.max_hold,
            reconnect_spread: self.reconnect_spread,
        }
    }

    /// Orders a retry of the failed image.
    fn order_retry(&mut self) {
        if let Some(target) = &mut self.target {
            change_spec(target, |spec| spec.allow_retry = true);
        }
        self.forgetful = true;
    }

    fn decide(&self, attempt: Option<Uuid>) -> Action {
        let events_of = |id| self.reported_events.get(&id).map_or(&[][..], Vec::as_slice);
        let open = attempt.map(events_of);
        let has_begun =
            |events: &[AttemptEvent]| events.iter().any(|event| event.kind == EventKind::Began);
        let has_ended =
            |events: &Vec<AttemptEvent>| events.last().is_some_and(|e| e.kind.is_terminal());
        match (&self.target, open) {
            (_, Some(events)) if has_begun(events) => Action::Continue,
            (None, Some(_)) => Action::Cancel { cause: "withdrawn".into() },
            (None, None) => Action::Idle,
            (Some(_), None) if !self.forgetful && self.reported_events.values().any(has_ended) => {
                Action::Idle
            }
            (Some(target), _) if self.window_open => {
                Action::Apply { target: target.clone(), start_deadline: None }
            }
            (Some(_), Some(_)) => Action::Continue,
            (Some(target), None) => Action::Fetch(target.clone()),
        }
    }
}

#[derive(Clone, Debug, Default)]
pub struct FakeLink(pub Arc<Mutex<FakeServer>>);

impl FakeLink {
    /// Holds a poll until its time has elapsed, the answer changes or the server becomes unreachable.
    async fn hold_poll(&self, query: &PollQuery<'_>) -> Result<(), LinkError> {
        let early = self.0.lock().unwrap().early_release;
        let end = tokio::time::Instant::now() + query.max_hold.saturating_sub(early);
        loop {
            let changed = Arc::clone(&self.0.lock().unwrap().changed);
            let changed = changed.notified();
            let is_deaf = {
                let server = self.0.lock().unwrap();
                if !server.is_unchanged(query)? {
                    return Ok(());
                }
                server.is_deaf
            };
            tokio::select! {
                () = changed => {}
                () = tokio::time::sleep_until(end), if !is_deaf => return Ok(()),
            }
        }
    }

    /// Changes the server and wakes the long polls.
    pub fn change(&self, change: impl FnOnce(&mut FakeServer)) {
        let mut server = self.0.lock().unwrap();
        change(&mut server);
        server.changed.notify_waiters();
    }
}

#[async_trait::async_trait]
impl ServerLink for FakeLink {
    async fn enroll(&self, _applicant: &Applicant) -> Result<Enrollment, LinkError> {
        Err(LinkError::Refused("no enrolment in this test".into()))
    }

    async fn poll(&self, query: PollQuery<'_>) -> Result<PollAnswer, LinkError> {
        self.0.lock().unwrap().record_poll(&query)?;
        let is_ignored =
            self.0.lock().unwrap().ignores_waiting_nodes && !query.waiting_reason.is_empty();
        if is_ignored {
            std::future::pending::<()>().await;
        }
        if !query.max_hold.is_zero() {
            self.hold_poll(&query).await?;
        }
        Ok(self.0.lock().unwrap().build_answer(&query))
    }

    async fn request_start(&self, entry: &JournalEntry) -> Result<StartPermit, LinkError> {
        let mut server = self.0.lock().unwrap();
        server.start_requests += 1;
        server.check_reachable()?;
        assert!(entry.unsent().is_empty(), "earlier events are reported first");
        Ok(if server.window_open && !server.refuse_start {
            StartPermit::Granted { start_deadline: server.start_deadline }
        } else {
            server.window_open &= !server.waits_after_refusal;
            StartPermit::Refused { reason: "the window is closed".into() }
        })
    }

    async fn report(&self, entry: &JournalEntry) -> Result<u32, LinkError> {
        let mut server = self.0.lock().unwrap();
        server.check_reachable()?;
        server.received_events += entry.unsent().len();
        let forget = server.forgotten_reports > 0;
        server.forgotten_reports = server.forgotten_reports.saturating_sub(1);
        let events = server.reported_events.entry(entry.attempt).or_default();
        if forget {
            events.truncate(1);
        }
        for event in entry.unsent() {
            let next = u32::try_from(events.len()).unwrap() + 1;
            assert!(event.sequence <= next || forget, "a gap before {event:?}");
            if event.sequence == next && !forget {
                events.push(event.clone());
            } else if let Some(existing) = events.get(event.sequence as usize - 1) {
                // Interruptions are sent only in the report of the last event.
                let interruptions = existing.interruptions.clone();
                let repeated = AttemptEvent { interruptions, ..event.clone() };
                assert_eq!(existing, &repeated, "a repeated event is the same event");
            }
        }
        let stored = u32::try_from(events.len()).unwrap();
        let went_back =
            matches!(events.last().map(|last| &last.kind), Some(EventKind::Reverted { .. }));
        if went_back && server.orders_retry {
            server.order_retry();
        }
        if server.lost_answers > 0 {
            server.lost_answers -= 1;
            return Err(LinkError::Unavailable("the answer was lost".into()));
        }
        Ok(stored)
    }

    fn set_credential(&self, credential: &Secret) -> Result<(), LinkError> {
        let mut server = self.0.lock().unwrap();
        server.renewed.push(credential.reveal().to_owned());
        Ok(())
    }
}
