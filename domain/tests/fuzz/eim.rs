//! Samples of EIM's agents, and both JSON formats of their details.

use chrono::{DateTime, TimeDelta};
use evenkeel_domain::Time;
use evenkeel_domain::decide::{AgentProtocol, NodeFacts};
use evenkeel_domain::eim::{
    DeliveryState, Detail, LastSample, MAX_DETAIL_BYTES, PriorState, Proof, Sample, SampleDetail,
    SampleKind, evaluate_sample,
};
use evenkeel_domain::id::{OsId, PolicyId, RunId};
use evenkeel_domain::os::{Image, OsKind, Sha256};
use evenkeel_domain::run::{AttemptId, OpenRun, RunEvent, RunState, RunTimeouts};
use rand::Rng;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use uuid::Uuid;

use crate::driver::{fuzz, text};

const DETAILS: &[&str] = &[
    "",
    "cannot download: no route to host",
    r#"{"update_log":[{"update_type":"application","package_name":"curl","update_time":"2026-01-01T00:00:00Z",
        "action":"upgrade","status":"installed","version":"8.5.0-2ubuntu10.6","failure_reason":"nofailure"},
        {"package_name":"jq","status":"failed","failure_reason":"download","failure_log":"404"}]}"#,
    r#"{"UpdateLog":[{"StatusDetail.Status":"SUCCESS","Version":"24.04"}]}"#,
    r#"{"UpdateLog":[{"StatusDetail.Status":"FAIL","FailureReason":"updatetool"}]}"#,
    r#"{"update_log":[]}"#,
];

const LETTERS: &str = "{}[]\",:\\u0001eE+-.truefalsn ";

#[test]
fn any_detail_is_parsed_within_bounds() {
    fuzz("detail", |rng| {
        let mut raw = text(rng, DETAILS, LETTERS);
        if rng.random_ratio(1, 200) {
            raw = format!(r#"{{"update_log":[{}]}}"#, vec![raw; 20_000].join(","));
        }
        check_detail(&raw);
    });
}

#[test]
fn any_bytes_of_a_detail_are_parsed_within_bounds() {
    fuzz("detail in bytes", |rng| {
        let mut bytes = text(rng, DETAILS, LETTERS).into_bytes();
        for _ in 0..rng.random_range(1..20) {
            let at = rng.random_range(0..=bytes.len());
            if rng.random() && at < bytes.len() {
                bytes[at] = rng.random();
            } else {
                bytes.insert(at, rng.random());
            }
        }
        check_detail(&String::from_utf8_lossy(&bytes));
    });
}

fn check_detail(raw: &str) {
    let detail = Detail::parse(raw);
    assert!(detail.text.len() <= MAX_DETAIL_BYTES);
    assert!(detail.packages.len() <= 10_000);
    if !detail.is_cut {
        assert_eq!(detail.text, raw.replace('\0', "\u{fffd}"), "stored verbatim");
    }
    let failure = detail.failure();
    assert!(!failure.reason.is_empty() && failure.reason.len() <= 4_096);
    let mut texts = vec![detail.text.as_str(), failure.reason.as_str()];
    for package in &detail.packages {
        assert!(!package.name.is_empty() && package.name.len() <= 256);
        texts.push(&package.name);
        texts.extend(package.desired.as_deref());
    }
    assert!(texts.iter().all(|text| !text.contains('\0')), "Postgres stores no zero byte");
}

#[test]
fn no_samples_end_a_run_twice() {
    fuzz("evidence", |rng| {
        let mut node = Node::random(rng);
        for _ in 0..rng.random_range(1..30) {
            let sample = node.any_sample(rng);
            let is_first = node.last_sample.is_none();
            node.receive(&sample);
            // An agent repeats a call whose answer was lost.
            if !is_first && rng.random_ratio(1, 4) {
                let runs = node.ended_runs;
                let was_doubted = node
                    .last_sample
                    .as_ref()
                    .is_some_and(|last| last.unconfirmed_failure.is_some());
                let proof = node.receive(&sample);
                assert!(was_doubted || proof.events.is_empty(), "{sample:?}");
                assert!(was_doubted || runs == node.ended_runs);
            }
            node.advance(rng);
        }
    });
}

/// A node and its state on the server.
struct Node {
    facts: NodeFacts,
    images: Vec<Image>,
    delivered: DeliveryState,
    last_sample: Option<LastSample>,
    open: Option<OpenRun>,
    ended_runs: usize,
    now: Time,
}

impl Node {
    fn random(rng: &mut StdRng) -> Self {
        let images: Vec<_> = (1..4).map(image).collect();
        let kinds = [OsKind::Mutable, OsKind::Immutable];
        let mut node = Self {
            facts: NodeFacts {
                trusted: true,
                provisioned: true,
                os_kind: *kinds.choose(rng).expect("kinds"),
                running: images[0].clone(),
                protocol: AgentProtocol::Eim,
                last_run: None,
                bad_images: Vec::new(),
            },
            images,
            delivered: DeliveryState::default(),
            last_sample: None,
            open: None,
            ended_runs: 0,
            now: DateTime::UNIX_EPOCH + TimeDelta::days(20_000),
        };
        node.advance(rng);
        node
    }

    fn any_sample(&self, rng: &mut StdRng) -> Sample {
        let repeated = self.last_sample.as_ref().map(|last| last.kind);
        let kind = SampleKind::ALL.choose(rng).copied().expect("kinds");
        let images = ["", "3.0.1", "3.0.2", "9.9", "\0"];
        Sample {
            kind: repeated.filter(|_| rng.random_ratio(1, 3)).unwrap_or(kind),
            detail: match rng.random_range(0..3) {
                0 => SampleDetail::default(),
                1 => DETAILS.choose(rng).copied().unwrap_or_default().into(),
                _ => text(rng, DETAILS, LETTERS).into(),
            },
            profile_name: text(rng, &["edge", "", "desktop"], "\0"),
            os_image_id: text(rng, &images, ".0123456789"),
        }
    }

    /// Moves the time forward or back, and changes other state.
    fn advance(&mut self, rng: &mut StdRng) {
        self.now += TimeDelta::seconds(rng.random_range(-300..4_000));
        let hours = |n| TimeDelta::hours(n);
        match rng.random_range(0..8) {
            0 => self.delivered.single = Some((self.now - hours(1), self.now + hours(1))),
            1 => self.delivered.single = None,
            2 => {
                self.delivered.policy = Some(PolicyId::nth(1));
                self.delivered.image = self.images.choose(rng).cloned();
            }
            3 => self.open = Some(any_run(rng, self.now)),
            4 => self.open = None,
            _ => {}
        }
    }

    fn receive(&mut self, sample: &Sample) -> Proof {
        let before = PriorState {
            last_sample: self.last_sample.as_ref(),
            delivered: &self.delivered,
            open_run: self.open.as_ref(),
            facts: &self.facts,
            images: &self.images,
        };
        let proof = evaluate_sample(&before, sample, self.now);
        self.check(sample, &proof);
        for record in &proof.events {
            let state = self.open.as_ref().map(|run| &run.state);
            let event = &record.event;
            let next = RunState::apply_event(state, event, self.now, &RunTimeouts::default());
            let next = next.expect("the event fits the state of the run");
            assert_ne!(state, Some(&next), "the event changes the run");
            self.ended_runs += usize::from(next.is_final());
            self.open = (!next.is_final()).then(|| run(next, self.now));
        }
        self.last_sample.clone_from(&proof.last_sample);
        if let Some(image) = &proof.image {
            self.facts.running = image.clone();
        }
        proof
    }

    fn check(&self, sample: &Sample, proof: &Proof) {
        let ends = |event: &RunEvent| {
            !matches!(event, RunEvent::Downloading | RunEvent::Downloaded | RunEvent::Began)
        };
        let ended = proof.events.iter().filter(|one| ends(&one.event)).count();
        assert!(proof.events.len() <= 2);
        // One end for the open run, and one for an update whose start was missed.
        assert!(ended <= 1 || proof.events[0].event == RunEvent::Superseded && self.open.is_some());
        assert!(self.last_sample.is_some() || proof.events.is_empty(), "the first is a baseline");
        let was_updated =
            self.last_sample.as_ref().is_none_or(|last| last.kind == SampleKind::Updated);
        if sample.kind == SampleKind::Updated && !was_updated {
            let last = proof.events.last().map(|one| &one.event);
            assert_eq!(last, Some(&RunEvent::Finished), "an end is never lost");
        }
        if proof.image.is_some() {
            assert_eq!(self.facts.os_kind, OsKind::Immutable);
            let image = proof.image.as_ref().map(|image| image.image_id.as_str());
            let names_none = sample.os_image_id.is_empty() && sample.profile_name.is_empty();
            assert!(names_none || image == Some(&*sample.os_image_id));
        }
        for (kind, text) in &proof.conditions {
            assert!(proof.checks_condition(*kind) && text.len() < 2_000 && !text.contains('\0'));
        }
        let json = serde_json::to_string(&proof.last_sample).expect("the sample is serialized");
        assert!(json.len() < 2_000 && !json.contains("\\u0000"));
    }
}

fn image(n: u32) -> Image {
    Image {
        os: OsId::nth(n),
        name: format!("Edge 3.0.{n}"),
        profile_name: "edge".to_owned(),
        image_id: format!("3.0.{n}"),
        url: "edge.raw.gz".to_owned(),
        sha256: Sha256::NONE,
        architecture: "x86_64".to_owned(),
        signatures: vec!["a signature".to_owned(); n as usize],
    }
}

fn run(state: RunState, now: Time) -> OpenRun {
    OpenRun {
        id: RunId::nth(1),
        attempt: None,
        target: None,
        state,
        started_at: now,
        may_begin_until: None,
    }
}

fn any_run(rng: &mut StdRng, since: Time) -> OpenRun {
    let states = [
        RunState::Downloading { since },
        RunState::Staged { since },
        RunState::Applying { since },
        RunState::Rebooting { since },
        RunState::Verifying { since },
        RunState::Reverting { since },
    ];
    let state = states.choose(rng).cloned().expect("states");
    OpenRun {
        attempt: rng.random_ratio(1, 5).then(|| AttemptId(Uuid::from_u128(1))),
        ..run(state, since)
    }
}
