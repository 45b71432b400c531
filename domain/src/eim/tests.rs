//! A node as EIM's agents report it, and the server that receives its samples.

mod defects;
mod delivery;
mod detail;
mod evidence;
mod images;
mod invariants;
mod slots;
mod steady;
mod unreadable;

use chrono::{DateTime, TimeDelta};

use super::*;
use crate::Time;
use crate::assignment::{AssignedPolicy, LimitUsage, Scope, UpdateLimits};
use crate::condition::{self, Condition, ConditionKind};
use crate::decide::{AgentProtocol, LastRun, NodeFacts, Target, TargetKind, UpdateIntent, decide};
use crate::id::{InstanceId, OsId, PolicyId, RunId, SingleScheduleId};
use crate::os::{Image, OsKind, Sha256};
use crate::policy::{DesiredUpdate, ImageRules, PolicySpec, UpdatePolicy};
use crate::run::{OpenRun, RunEvent, RunEventRecord, RunState, RunTimeouts};
use crate::window::{Opener, Window, Windows};

const NOON: Time = DateTime::from_timestamp_nanos(1_800_000_000_000_000_000);

/// Interval between two samples, as EIM ships it.
const TICK: TimeDelta = TimeDelta::seconds(20);

fn hours(count: i64) -> TimeDelta {
    TimeDelta::hours(count)
}

fn sample(kind: SampleKind) -> Sample {
    sample_with_detail(kind, "")
}

fn sample_with_detail(kind: SampleKind, detail: &str) -> Sample {
    Sample { kind, detail: detail.into(), profile_name: String::new(), os_image_id: String::new() }
}

fn sample_of_image(kind: SampleKind, profile: &str, image: &str) -> Sample {
    Sample { profile_name: profile.to_owned(), os_image_id: image.to_owned(), ..sample(kind) }
}

fn last_sample(kind: SampleKind) -> LastSample {
    stored_sample(&sample(kind))
}

/// The stored summary of a first sample.
fn stored_sample(sample: &Sample) -> LastSample {
    let (facts, delivered) = (node(OsKind::Mutable), DeliveryState::default());
    let before = PriorState {
        last_sample: None,
        delivered: &delivered,
        open_run: None,
        facts: &facts,
        images: &[],
    };
    let proof = super::evaluate_sample(&before, sample, NOON);
    proof.last_sample.unwrap_or(LastSample {
        kind: sample.kind,
        detail_digest: String::new(),
        image: String::new(),
        unconfirmed_failure: None,
        skips_updates: false,
    })
}

fn node(os_kind: OsKind) -> NodeFacts {
    NodeFacts {
        trusted: true,
        provisioned: true,
        os_kind,
        running: image(1, "3.0.1"),
        protocol: AgentProtocol::Eim,
        last_run: None,
        bad_images: Vec::new(),
    }
}

fn image(n: u32, image_id: &str) -> Image {
    Image {
        os: OsId::nth(n),
        name: format!("Edge {image_id}"),
        profile_name: "edge".to_owned(),
        image_id: image_id.to_owned(),
        url: format!("edge/{image_id}.raw.gz"),
        sha256: Sha256::NONE,
        architecture: String::new(),
        signatures: Vec::new(),
    }
}

fn policy(n: u32, desired: DesiredUpdate) -> UpdatePolicy {
    UpdatePolicy {
        id: PolicyId::nth(n),
        spec: PolicySpec::parse("policy", "", desired).expect("a policy"),
        created_at: NOON,
    }
}

fn assigned(policy: UpdatePolicy) -> AssignedPolicy {
    AssignedPolicy {
        scope: Scope::Instance(InstanceId::nth(1)),
        policy,
        image: None,
        limits: UpdateLimits::default(),
        usage: LimitUsage::default(),
    }
}

fn span(from: i64, to: i64) -> (Time, Time) {
    (NOON + hours(from), NOON + hours(to))
}

fn window(from: i64, to: i64) -> Window {
    let (start, end) = span(from, to);
    Window { start, end, opener: Opener::Single(SingleScheduleId::nth(1)) }
}

fn desired_state(policy: UpdatePolicy, windows: &[Window]) -> UpdateIntent {
    let long_ago = NOON - hours(10_000);
    UpdateIntent {
        policies: vec![assigned(policy)],
        windows: Windows::from_now_on(windows.iter().copied(), long_ago),
        repeated_schedules: vec![],
        fetch_ahead: hours(6),
        images: vec![],
        pauses: vec![],
        order: None,
        unreadable: None,
    }
}

fn open_run(state: RunState) -> OpenRun {
    OpenRun {
        id: RunId::nth(1),
        attempt: None,
        target: None,
        state,
        started_at: NOON,
        may_begin_until: None,
    }
}

/// A server that receives the samples of one node, one each tick, as the maintenance manager does.
struct Story {
    facts: NodeFacts,
    images: Vec<Image>,
    delivered: DeliveryState,
    last_sample: Option<LastSample>,
    /// The target and the state of each run; the last one may be open.
    runs: Vec<(Option<Target>, RunState)>,
    /// The log of each run.
    logs: Vec<String>,
    conditions: Vec<Condition>,
    status: &'static str,
    now: Time,
    transitions: Vec<String>,
}

impl Story {
    fn new(facts: NodeFacts) -> Self {
        Self {
            facts,
            images: vec![],
            delivered: DeliveryState::default(),
            last_sample: None,
            runs: vec![],
            logs: vec![],
            conditions: vec![],
            status: "",
            now: NOON,
            transitions: vec![],
        }
    }

    /// A node that is updated by packages and was at rest, in a window or outside.
    fn at_rest(in_window: bool) -> Self {
        let mut story = Self::new(node(OsKind::Mutable));
        if in_window {
            story.delivered.single = Some((NOON - hours(1), NOON + hours(1)));
        }
        story.receive(&sample(SampleKind::UpToDate));
        story
    }

    fn open_run(&self) -> Option<OpenRun> {
        let (target, state) = self.runs.last()?;
        (!state.is_final()).then(|| OpenRun { target: target.clone(), ..open_run(state.clone()) })
    }

    fn prior_state<'a>(&'a self, open: Option<&'a OpenRun>) -> PriorState<'a> {
        PriorState {
            last_sample: self.last_sample.as_ref(),
            delivered: &self.delivered,
            open_run: open,
            facts: &self.facts,
            images: &self.images,
        }
    }

    fn receive(&mut self, sample: &Sample) -> Proof {
        let open = self.open_run();
        let proof = super::evaluate_sample(&self.prior_state(open.as_ref()), sample, self.now);
        for record in &proof.events {
            self.apply_event(record);
        }
        self.last_sample.clone_from(&proof.last_sample);
        if let Some((text, _)) = proof.status {
            self.status = text;
        }
        condition::replace(
            &mut self.conditions,
            |kind| proof.checks_condition(kind),
            proof.conditions.clone(),
            self.now,
        );
        if let Some(image) = &proof.image {
            self.facts.running = image.clone();
        }
        self.now += TICK;
        proof
    }

    fn apply_event(&mut self, record: &RunEventRecord) {
        let event = &record.event;
        let before = self.open_run();
        let state = before.as_ref().map(|run| &run.state);
        let next = RunState::apply_event(state, event, self.now, &RunTimeouts::default());
        let next = next.expect("evidence fits the state");
        assert_ne!(state, Some(&next), "{} proves nothing new", event.name());
        self.transitions.push(format!("{}->{}", event.name(), next.name()));
        if state.is_none() {
            self.runs.push((self.target(), next));
            self.logs.push(String::new());
        } else if let Some(last) = self.runs.last_mut() {
            last.1 = next;
        }
        if let Some(log) = self.logs.last_mut() {
            log.push_str(&record.evidence.log);
        }
    }

    fn target(&self) -> Option<Target> {
        Some(Target {
            policy: self.delivered.policy?,
            kind: TargetKind::Image(self.delivered.image.clone()?),
            image_rules: ImageRules::default(),
        })
    }

    fn receive_all(&mut self, samples: &[Sample]) -> String {
        self.transitions.clear();
        for sample in samples {
            self.receive(sample);
        }
        self.transitions.join(" ")
    }

    fn conditions(&self) -> Vec<ConditionKind> {
        self.conditions.iter().filter_map(|one| one.kind.known()).collect()
    }

    fn failure(&self, run: usize) -> &str {
        match &self.runs[run].1 {
            RunState::Failed { failure, .. } => &failure.reason,
            other => other.name(),
        }
    }
}

/// The transitions that samples of these kinds cause on a node that was at rest in a window.
fn transitions_of(kinds: &[SampleKind]) -> String {
    let samples: Vec<_> = kinds.iter().map(|kind| sample(*kind)).collect();
    Story::at_rest(true).receive_all(&samples)
}
