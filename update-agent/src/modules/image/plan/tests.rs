use chrono::DateTime;

use super::super::slots::{BadImage, BootEntry, RawImage, SlotImage, VersionFloor};
use super::*;

fn image_spec() -> ImageSpec {
    ImageSpec::sample("1.1")
}

fn slot_image(image_id: &str) -> SlotImage {
    SlotImage {
        file: Sha256::hash(image_id.as_bytes()),
        profile_name: "demo".into(),
        image_id: image_id.into(),
        raw: Some(RawImage { sha256: Sha256::hash(b"raw"), bytes: 40 }),
    }
}

fn good(image_id: &str) -> SlotState {
    SlotState::Good(slot_image(image_id))
}

fn bad_image(image_id: &str) -> BadImage {
    BadImage {
        file: Sha256::hash(image_id.as_bytes()),
        image_id: image_id.into(),
        reason: "it hung".into(),
        at: DateTime::UNIX_EPOCH,
    }
}

/// A node that runs 1.0 from slot A; slot B has room for 100 bytes, and the file has 30.
fn node() -> ImageObservation {
    ImageObservation {
        slots: Slots {
            a: good("1.0"),
            b: SlotState::Empty,
            last_good: Some(Slot::A),
            bad: Vec::new(),
            undecided: Vec::new(),
            version_floors: Vec::new(),
            sequence: 7,
        },
        boot: BootObservation {
            booted: Some(Slot::A),
            boot_id: "boot-1".into(),
            image: Some(("demo".into(), "1.0".into())),
            a: BootEntry::Plain,
            b: BootEntry::Absent,
            foreign: Vec::new(),
        },
        architecture: "x86_64".into(),
        trust_failure: None,
        write_failure: None,
        faults: Vec::new(),
        size: Some(30),
        slot_capacity: Some(Ok(100)),
    }
}

/// The result of planning in one line.
fn plan_summary(spec: &ImageSpec, observation: &ImageObservation) -> String {
    match plan_image(spec, observation) {
        Ok(draft) => match draft.steps.as_slice() {
            [] => "nothing to do".to_owned(),
            [step] => format!("{} {}", step.slot.label(), draft.plan.download_bytes),
            more => panic!("{more:?}"),
        },
        Err(failure) => format!("{:?}: {}", failure.kind, failure.reason),
    }
}

/// How a case differs from the default node and spec, and the expected result.
type PlanCase = (fn(&mut ImageObservation, &mut ImageSpec), &'static str);

const PLAN_CASES: &[PlanCase] = &[
    (|_, _| {}, "root-b 30"),
    // The other slot runs.
    (
        |node, _| {
            (node.slots.a, node.slots.b) = (SlotState::Empty, good("1.0"));
            node.slots.last_good = Some(Slot::B);
            node.boot.booted = Some(Slot::B);
            (node.boot.a, node.boot.b) = (BootEntry::Absent, BootEntry::Plain);
        },
        "root-a 30",
    ),
    // It runs already, by its file, or by its own name if the record was lost.
    (|node, _| node.slots.a = good("1.1"), "nothing to do"),
    (
        |node, spec| {
            let unknown = SlotImage { file: Sha256::from(UNKNOWN_DIGEST), ..slot_image("1.1") };
            node.slots.a = SlotState::Good(unknown);
            spec.image_id = "1.0".into();
        },
        "nothing to do",
    ),
    // The same version from another file is another image.
    (
        |node, _| {
            let other = SlotImage { file: Sha256::hash(b"rebuilt"), ..slot_image("1.1") };
            node.slots.a = SlotState::Good(other);
        },
        "root-b 30",
    ),
    // It is in its slot already: its size is not needed.
    (
        |node, _| {
            node.slots.b = SlotState::Written(slot_image("1.1"));
            node.size = None;
            node.slot_capacity = Some(Err(Failure::new(FailureKind::Storage, "no room")));
        },
        "root-b 0",
    ),
    (
        |node, _| {
            node.slots.b = SlotState::Armed { image: slot_image("1.1"), boot_id: "boot-1".into() };
        },
        "root-b 0",
    ),
    // An incomplete image or another one does not count.
    (
        |node, _| {
            let half = SlotImage { raw: None, ..slot_image("1.1") };
            node.slots.b = SlotState::Written(half);
        },
        "root-b 30",
    ),
    (|node, _| node.slots.b = good("0.9"), "root-b 30"),
    // Debian's name of the architecture is accepted like the kernel's.
    (|_, spec| spec.architecture = "amd64".into(), "root-b 30"),
    (
        |_, spec| spec.architecture = "aarch64".into(),
        "Unsupported: the image is made for aarch64, but this machine is x86_64; give the node a \
         policy with another profile",
    ),
    // An image without an architecture fits any machine.
    (|_, spec| spec.architecture.clear(), "root-b 30"),
    // Without a digest the file cannot be verified,
    (
        |_, spec| spec.sha256 = Sha256::from(UNKNOWN_DIGEST),
        "Unsupported: the catalogue has no SHA-256 of the image's file; add it to the operating \
         system at the server",
    ),
    // but no file is needed if the image runs already by its own name.
    (
        |node, spec| {
            let unknown = SlotImage { file: Sha256::from(UNKNOWN_DIGEST), ..slot_image("1.0") };
            node.slots.a = SlotState::Good(unknown);
            spec.image_id = "1.0".into();
            spec.sha256 = Sha256::from(UNKNOWN_DIGEST);
        },
        "nothing to do",
    ),
    (
        |node, _| {
            node.trust_failure = Some(Failure::new(FailureKind::Signature, "it is not signed"));
        },
        "Signature: it is not signed",
    ),
    // This machine could not write it after the download.
    (
        |node, _| {
            node.write_failure = Some(Failure::new(FailureKind::Unsupported, "no zstd"));
        },
        "Unsupported: no zstd",
    ),
    // A failed image is not tried again until a retry is ordered.
    (
        |node, _| node.slots.bad.push(bad_image("1.1")),
        "Verify: the image 1.1 failed here at 1970-01-01T00:00:00Z and is not tried again \
         automatically: it hung; order a retry at the server, or forget the failure with \
         `evenkeel-agent image forget DIGEST`",
    ),
    (
        |node, spec| {
            node.slots.bad.push(bad_image("1.1"));
            spec.allow_retry = true;
        },
        "root-b 30",
    ),
    (|node, _| node.slots.bad.push(bad_image("1.0.5")), "root-b 30"),
    // There must be an image to return to.
    (
        |node, _| node.boot.booted = None,
        "Plan: it is not known which slot runs, so no slot is written; start the machine through one of the agent's boot \
         entries",
    ),
    (
        |node, _| {
            node.slots.a = SlotState::Trial {
                image: slot_image("1.0"),
                boots: Vec::new(),
                passed: false,
                undecided_end: None,
            };
        },
        "Plan: the image in root-a is on trial: no other image is tried until the trial ends",
    ),
    (
        |node, _| node.slots.last_good = Some(Slot::B),
        "Plan: the slot root-a runs and holds a good image, so the other slot is not written; start the machine from \
         a slot that is known to be good",
    ),
    (
        |node, _| node.boot.a = BootEntry::Counted { left: 1, done: 2 },
        "Plan: the slot root-a runs and has no boot entry without a counter, so a failed trial could not fall back to it; \
         create that entry again",
    ),
    (
        |node, _| node.faults = vec!["the ESP is read-only".into(), "no panic=".into()],
        "Apply: an image cannot be tried safely on this machine: the ESP is read-only; no panic=",
    ),
    // Sizes.
    (|node, _| node.size = None, "root-b 0"),
    (
        |node, _| node.size = Some(101),
        "Storage: the image has 101 bytes and its slot has room for 100",
    ),
    (|node, _| node.size = Some(100), "root-b 100"),
    (
        |node, _| {
            node.slot_capacity = Some(Err(Failure::new(FailureKind::Storage, "the ESP is full")));
        },
        "Storage: the ESP is full",
    ),
    (|_, spec| spec.rules.max_bytes = 29, "Plan: the image has 30 bytes and the policy allows 29"),
    (|_, spec| spec.rules.max_bytes = 30, "root-b 30"),
];

#[test]
fn the_plan_follows_from_the_observation() {
    for (number, (change, expected)) in PLAN_CASES.iter().enumerate() {
        let (mut node, mut spec) = (node(), image_spec());
        change(&mut node, &mut spec);
        let expected = expected.replace("DIGEST", &spec.sha256.to_string());
        assert_eq!(plan_summary(&spec, &node), expected, "row {number}");
    }
}

#[test]
fn no_image_below_the_version_floor_of_its_profile_is_accepted() {
    let floor = |profile: &str, version: &str| VersionFloor {
        profile_name: profile.into(),
        image_id: version.into(),
    };
    // The node runs 1.0, and 1.4 and 1.3 of another profile proved themselves before.
    let mut slots = node().slots;
    slots.version_floors = vec![floor("demo", "1.4"), floor("other", "1.3")];
    let refused = |slots: &Slots, version: &str| {
        let refused = check_version(&ImageSpec::sample(version), slots).err();
        refused.map(|failure| (failure.kind, failure.reason.contains("`downgrades = true`")))
    };
    let limit = Some((FailureKind::Limits, true));
    for (version, expected) in [
        ("1.3.9", limit),
        ("1.0", limit),
        ("1.4", None),
        ("1.4.0", None),
        ("1.10", None),
        ("latest", limit),
    ] {
        assert_eq!(refused(&slots, version), expected, "{version}");
    }
    let other = ImageSpec { profile_name: "other".into(), ..ImageSpec::sample("1.3") };
    check_version(&other, &slots).unwrap();
    // The record of an agent without floors: the image that runs is the floor.
    slots.version_floors.clear();
    assert_eq!(refused(&slots, "0.9"), limit);
    assert_eq!(refused(&slots, "1.0"), None);
    // Versions without an order have no floor.
    slots.a = good("build-a");
    assert_eq!(refused(&slots, "0.9"), None);
    slots.last_good = None;
    assert_eq!(refused(&slots, "0.9"), None);
}

#[test]
fn the_download_limit_is_the_smaller_of_policy_limit_and_slot_capacity() {
    for (max_bytes, slot_capacity, expected) in [
        (0, None, 0),
        (29, None, 29),
        (0, Some(100), 100),
        (99, Some(100), 99),
        (101, Some(100), 100),
    ] {
        let mut step = ImageStep { slot: Slot::B, spec: image_spec(), slot_capacity };
        step.spec.rules.max_bytes = max_bytes;
        let bounded = step.size_limited_spec();
        assert_eq!(bounded.rules.max_bytes, expected, "{max_bytes} {slot_capacity:?}");
        assert_eq!(step.spec.rules.max_bytes, max_bytes);
    }
    let draft = plan_image(&image_spec(), &node()).unwrap();
    assert_eq!(draft.steps[0].slot_capacity, Some(100));
}

#[test]
fn a_plan_contains_the_image_before_and_after_and_the_reboot() {
    let draft = plan_image(&image_spec(), &node()).unwrap();
    assert!(draft.plan.reboot_expected);
    let image = draft.report.change.clone().unwrap();
    assert_eq!(image.profile_name, "demo");
    assert_eq!((image.before.as_str(), image.after.as_str()), ("1.0", "1.1"));
    assert_eq!(draft.report.booted.as_deref(), Some(&*image.before).filter(|id| !id.is_empty()));
    let step = &draft.steps[0];
    let written = serde_json::to_value(step).unwrap();
    let read: ImageStep = serde_json::from_value(written).unwrap();
    assert_eq!(read, *step);
}
