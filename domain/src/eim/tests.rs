//! A node as the ancestor's agents show it, and the server that listens to it.

mod defects;
mod delivery;
mod detail;
mod evidence;
mod images;
mod slots;
mod steady;
mod worlds;

use chrono::{DateTime, TimeDelta};

use super::*;
use crate::Time;
use crate::assignment::{Assigned, Brake, Limits, Scope};
use crate::condition::{self, Condition, ConditionKind};
use crate::decide::{LastEnd, NodeFacts, Protocol, Target, TargetKind, Wanted, decide};
use crate::id::{InstanceId, OsId, PolicyId, RunId, SingleScheduleId};
use crate::os::{Image, OsKind, Sha256};
use crate::policy::{ImageRules, PolicySpec, UpdatePolicy, Wish};
use crate::run::{Happening, OpenRun, Patience, RunEvent, RunState};
use crate::window::{Opener, Window, Windows};

const NOON: Time = DateTime::from_timestamp_nanos(1_800_000_000_000_000_000);

/// The time between two samples, as the ancestor ships it.
const TICK: TimeDelta = TimeDelta::seconds(20);

fn hours(count: i64) -> TimeDelta {
    TimeDelta::hours(count)
}

fn sample(kind: SampleKind) -> Sample {
    saying(kind, "")
}

fn saying(kind: SampleKind, detail: &str) -> Sample {
    Sample {
        kind,
        detail: detail.to_owned(),
        profile_name: String::new(),
        os_image_id: String::new(),
    }
}

fn naming(kind: SampleKind, profile: &str, image: &str) -> Sample {
    Sample {
        profile_name: profile.to_owned(),
        os_image_id: image.to_owned(),
        ..sample(kind)
    }
}

fn seen(kind: SampleKind) -> Seen {
    remembered(&sample(kind))
}

/// What is remembered of a first sample.
fn remembered(sample: &Sample) -> Seen {
    let (known, delivered) = (node(OsKind::Mutable), Delivered::default());
    let before = Before {
        seen: None,
        delivered: &delivered,
        open: None,
        known: &known,
        images: &[],
    };
    let proof = super::evidence(&before, sample, NOON);
    proof.seen.unwrap_or(Seen {
        kind: sample.kind,
        detail_digest: String::new(),
        image: String::new(),
        doubt: None,
    })
}

fn node(os_kind: OsKind) -> NodeFacts {
    NodeFacts {
        trusted: true,
        provisioned: true,
        os_kind,
        running: image(1, "3.0.1"),
        speaks: Protocol::Eim,
        last_end: None,
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

fn policy(n: u32, wish: Wish) -> UpdatePolicy {
    UpdatePolicy {
        id: PolicyId::nth(n),
        spec: PolicySpec::parse("policy", "", wish).expect("a policy"),
        created_at: NOON,
    }
}

fn assigned(policy: UpdatePolicy) -> Assigned {
    Assigned {
        scope: Scope::Instance(InstanceId::nth(1)),
        policy,
        image: None,
        limits: Limits::default(),
        brake: Brake::default(),
    }
}

fn span(from: i64, to: i64) -> (Time, Time) {
    (NOON + hours(from), NOON + hours(to))
}

fn window(from: i64, to: i64) -> Window {
    let (start, end) = span(from, to);
    Window {
        start,
        end,
        opener: Opener::Single(SingleScheduleId::nth(1)),
    }
}

fn wanted(policy: UpdatePolicy, windows: &[Window]) -> Wanted {
    let long_ago = NOON - hours(10_000);
    Wanted {
        policies: vec![assigned(policy)],
        windows: Windows::from_now_on(windows.iter().copied(), long_ago),
        repeated: vec![],
        fetch_ahead: hours(6),
        images: vec![],
        pauses: vec![],
        order: None,
    }
}

fn open(state: RunState) -> OpenRun {
    OpenRun {
        id: RunId::nth(1),
        attempt: None,
        target: None,
        state,
        started_at: NOON,
        may_begin_until: None,
    }
}

/// A server that hears the samples of one node, one each tick, as the maintenance manager does.
struct Story {
    known: NodeFacts,
    images: Vec<Image>,
    delivered: Delivered,
    seen: Option<Seen>,
    /// What each run was for, and where it stands; the last may be open.
    runs: Vec<(Option<Target>, RunState)>,
    /// What is known of the run that was opened last, as text.
    logs: Vec<String>,
    conditions: Vec<Condition>,
    shown: &'static str,
    now: Time,
    told: Vec<String>,
}

impl Story {
    fn of(known: NodeFacts) -> Self {
        Self {
            known,
            images: vec![],
            delivered: Delivered::default(),
            seen: None,
            runs: vec![],
            logs: vec![],
            conditions: vec![],
            shown: "",
            now: NOON,
            told: vec![],
        }
    }

    /// A node that is updated by packages and was at rest, in a window or outside of any.
    fn at_rest(in_window: bool) -> Self {
        let mut story = Self::of(node(OsKind::Mutable));
        if in_window {
            story.delivered.single = Some((NOON - hours(1), NOON + hours(1)));
        }
        story.hear(&sample(SampleKind::UpToDate));
        story
    }

    fn open(&self) -> Option<OpenRun> {
        let (target, state) = self.runs.last()?;
        (!state.is_final()).then(|| OpenRun {
            target: target.clone(),
            ..open(state.clone())
        })
    }

    fn before<'a>(&'a self, open: Option<&'a OpenRun>) -> Before<'a> {
        Before {
            seen: self.seen.as_ref(),
            delivered: &self.delivered,
            open,
            known: &self.known,
            images: &self.images,
        }
    }

    fn hear(&mut self, sample: &Sample) -> Proof {
        let open = self.open();
        let proof = super::evidence(&self.before(open.as_ref()), sample, self.now);
        for happening in &proof.events {
            self.bring(happening);
        }
        self.seen.clone_from(&proof.seen);
        if let Some((text, _)) = proof.shown {
            self.shown = text;
        }
        condition::replace(
            &mut self.conditions,
            |kind| proof.judges(kind),
            proof.conditions.clone(),
            self.now,
        );
        if let Some(image) = &proof.image {
            self.known.running = image.clone();
        }
        self.now += TICK;
        proof
    }

    fn bring(&mut self, happening: &Happening) {
        let event = &happening.event;
        let before = self.open();
        let state = before.as_ref().map(|run| &run.state);
        let next = RunState::on(state, event, self.now, &Patience::default());
        let next = next.expect("evidence fits the state");
        assert_ne!(state, Some(&next), "{} proves nothing new", event.name());
        self.told.push(format!("{}->{}", event.name(), next.name()));
        if state.is_none() {
            self.runs.push((self.target(), next));
            self.logs.push(String::new());
        } else if let Some(last) = self.runs.last_mut() {
            last.1 = next;
        }
        if let Some(log) = self.logs.last_mut() {
            log.push_str(&happening.evidence.log);
        }
    }

    fn target(&self) -> Option<Target> {
        Some(Target {
            policy: self.delivered.policy?,
            wish: TargetKind::Image(self.delivered.image.clone()?),
            image_rules: ImageRules::default(),
        })
    }

    fn hears(&mut self, samples: &[Sample]) -> String {
        self.told.clear();
        for sample in samples {
            self.hear(sample);
        }
        self.told.join(" ")
    }

    fn conditions(&self) -> Vec<ConditionKind> {
        self.conditions.iter().map(|one| one.kind).collect()
    }

    fn failure(&self, run: usize) -> &str {
        match &self.runs[run].1 {
            RunState::Failed { failure, .. } => &failure.reason,
            other => other.name(),
        }
    }
}

/// Plays samples of these kinds to a node that was at rest in a window.
fn proved_by(kinds: &[SampleKind]) -> String {
    let samples: Vec<_> = kinds.iter().map(|kind| sample(*kind)).collect();
    Story::at_rest(true).hears(&samples)
}
