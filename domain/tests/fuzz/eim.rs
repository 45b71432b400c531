//! Samples of the ancestor's agents, and both dialects of their details.

use chrono::{DateTime, TimeDelta};
use evenkeel_domain::Time;
use evenkeel_domain::decide::{NodeFacts, Protocol};
use evenkeel_domain::eim::{
    Before, Delivered, Detail, MAX_DETAIL, Proof, Sample, SampleKind, Seen, evidence,
};
use evenkeel_domain::id::{OsId, PolicyId, RunId};
use evenkeel_domain::os::{Image, OsKind, Sha256};
use evenkeel_domain::run::{AttemptId, OpenRun, Patience, RunEvent, RunState};
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
fn no_detail_does_harm() {
    fuzz("detail", |rng| {
        let mut raw = text(rng, DETAILS, LETTERS);
        if rng.random_ratio(1, 200) {
            raw = format!(r#"{{"update_log":[{}]}}"#, vec![raw; 20_000].join(","));
        }
        check_detail(&raw);
    });
}

#[test]
fn no_bytes_of_a_detail_do_harm() {
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
    let detail = Detail::read(raw);
    assert!(detail.text.len() <= MAX_DETAIL);
    assert!(detail.packages.len() <= 10_000);
    if !detail.is_cut {
        assert_eq!(detail.text, raw.replace('\0', "\u{fffd}"), "kept verbatim");
    }
    let failure = detail.failure();
    assert!(!failure.reason.is_empty() && failure.reason.len() <= 4_096);
    let mut texts = vec![detail.text.as_str(), failure.reason.as_str()];
    for package in &detail.packages {
        assert!(!package.name.is_empty() && package.name.len() <= 256);
        texts.push(&package.name);
        texts.extend(package.wanted.as_deref());
    }
    assert!(
        texts.iter().all(|text| !text.contains('\0')),
        "Postgres takes no zero byte"
    );
}

#[test]
fn no_samples_end_a_run_twice() {
    fuzz("evidence", |rng| {
        let mut node = Node::any(rng);
        for _ in 0..rng.random_range(1..30) {
            let sample = node.any_sample(rng);
            let is_first = node.seen.is_none();
            node.hear(&sample);
            // A call is repeated when its answer was lost.
            if !is_first && rng.random_ratio(1, 4) {
                let runs = node.ended;
                let was_doubted = node.seen.as_ref().is_some_and(|seen| seen.doubt.is_some());
                let proof = node.hear(&sample);
                assert!(was_doubted || proof.events.is_empty(), "{sample:?}");
                assert!(was_doubted || runs == node.ended);
            }
            node.pass(rng);
        }
    });
}

/// A node, and what a server knows about it.
struct Node {
    known: NodeFacts,
    images: Vec<Image>,
    delivered: Delivered,
    seen: Option<Seen>,
    open: Option<OpenRun>,
    ended: usize,
    now: Time,
}

impl Node {
    fn any(rng: &mut StdRng) -> Self {
        let images: Vec<_> = (1..4).map(image).collect();
        let kinds = [OsKind::Mutable, OsKind::Immutable];
        let mut node = Self {
            known: NodeFacts {
                trusted: true,
                provisioned: true,
                os_kind: *kinds.choose(rng).expect("kinds"),
                running: images[0].clone(),
                speaks: Protocol::Eim,
                last_end: None,
                bad_images: Vec::new(),
            },
            images,
            delivered: Delivered::default(),
            seen: None,
            open: None,
            ended: 0,
            now: DateTime::UNIX_EPOCH + TimeDelta::days(20_000),
        };
        node.pass(rng);
        node
    }

    fn any_sample(&self, rng: &mut StdRng) -> Sample {
        let repeated = self.seen.as_ref().map(|seen| seen.kind);
        let kind = SampleKind::ALL.choose(rng).copied().expect("kinds");
        let images = ["", "3.0.1", "3.0.2", "9.9", "\0"];
        Sample {
            kind: repeated.filter(|_| rng.random_ratio(1, 3)).unwrap_or(kind),
            detail: match rng.random_range(0..3) {
                0 => String::new(),
                1 => DETAILS.choose(rng).copied().unwrap_or_default().to_owned(),
                _ => text(rng, DETAILS, LETTERS),
            },
            profile_name: text(rng, &["edge", "", "desktop"], "\0"),
            os_image_id: text(rng, &images, ".0123456789"),
        }
    }

    /// Time goes on, or back, and other things happen meanwhile.
    fn pass(&mut self, rng: &mut StdRng) {
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

    fn hear(&mut self, sample: &Sample) -> Proof {
        let before = Before {
            seen: self.seen.as_ref(),
            delivered: &self.delivered,
            open: self.open.as_ref(),
            known: &self.known,
            images: &self.images,
        };
        let proof = evidence(&before, sample, self.now);
        self.check(sample, &proof);
        for happening in &proof.events {
            let state = self.open.as_ref().map(|run| &run.state);
            let event = &happening.event;
            let next = RunState::on(state, event, self.now, &Patience::default());
            let next = next.expect("what is proved fits the run");
            assert_ne!(state, Some(&next), "what is proved is news");
            self.ended += usize::from(next.is_final());
            self.open = (!next.is_final()).then(|| run(next, self.now));
        }
        self.seen.clone_from(&proof.seen);
        if let Some(image) = &proof.image {
            self.known.running = image.clone();
        }
        proof
    }

    fn check(&self, sample: &Sample, proof: &Proof) {
        let ends = |event: &RunEvent| {
            !matches!(
                event,
                RunEvent::Downloading | RunEvent::Downloaded | RunEvent::Began
            )
        };
        let ended = proof.events.iter().filter(|one| ends(&one.event)).count();
        assert!(proof.events.len() <= 2);
        // One end for the run that is open, and one for an update that was never seen going on.
        assert!(ended <= 1 || proof.events[0].event == RunEvent::Superseded && self.open.is_some());
        assert!(
            self.seen.is_some() || proof.events.is_empty(),
            "the first is a baseline"
        );
        let was_updated = self
            .seen
            .as_ref()
            .is_none_or(|seen| seen.kind == SampleKind::Updated);
        if sample.kind == SampleKind::Updated && !was_updated {
            let last = proof.events.last().map(|one| &one.event);
            assert_eq!(last, Some(&RunEvent::Finished), "an end is never swallowed");
        }
        if proof.image.is_some() {
            assert_eq!(self.known.os_kind, OsKind::Immutable);
            let image = proof.image.as_ref().map(|image| image.image_id.as_str());
            let names_none = sample.os_image_id.is_empty() && sample.profile_name.is_empty();
            assert!(names_none || image == Some(&*sample.os_image_id));
        }
        for (kind, text) in &proof.conditions {
            assert!(proof.judges(*kind) && text.len() < 2_000 && !text.contains('\0'));
        }
        let json = serde_json::to_string(&proof.seen).expect("it can be kept");
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
        attempt: rng
            .random_ratio(1, 5)
            .then(|| AttemptId(Uuid::from_u128(1))),
        ..run(state, since)
    }
}
