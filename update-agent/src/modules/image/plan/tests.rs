use chrono::DateTime;

use super::super::slots::{BadImage, Entry, Raw, What};
use super::*;

fn wish() -> ImageWish {
    ImageWish::sample("1.1")
}

fn what(image_id: &str) -> What {
    What {
        file: Sha256::of(image_id.as_bytes()),
        profile_name: "demo".into(),
        image_id: image_id.into(),
        raw: Some(Raw {
            sha256: Sha256::of(b"raw"),
            bytes: 40,
        }),
    }
}

fn good(image_id: &str) -> SlotState {
    SlotState::Good(what(image_id))
}

fn bad(image_id: &str) -> BadImage {
    BadImage {
        file: Sha256::of(image_id.as_bytes()),
        image_id: image_id.into(),
        why: "it hung".into(),
        at: DateTime::UNIX_EPOCH,
    }
}

/// A node that runs 1.0 from the first slot; the second has room for 100 bytes, and the file has 30.
fn node() -> Observed {
    Observed {
        slots: Slots {
            a: good("1.0"),
            b: SlotState::Empty,
            last_good: Some(Slot::A),
            bad: Vec::new(),
            undecided: Vec::new(),
            sequence: 7,
        },
        seen: Seen {
            booted: Some(Slot::A),
            boot_id: "boot-1".into(),
            image: Some(("demo".into(), "1.0".into())),
            a: Entry::Plain,
            b: Entry::Absent,
            foreign: Vec::new(),
        },
        machine: "x86_64".into(),
        unsigned: None,
        refused: None,
        faults: Vec::new(),
        size: Some(30),
        room: Some(Ok(100)),
    }
}

/// What comes of it, in a line.
fn told(wish: &ImageWish, observed: &Observed) -> String {
    match plan(wish, observed) {
        Ok(draft) => match draft.steps.as_slice() {
            [] => "nothing to do".to_owned(),
            [step] => format!("{} {}", step.slot.label(), draft.download_bytes),
            more => panic!("{more:?}"),
        },
        Err(failure) => format!("{:?}: {}", failure.kind, failure.reason),
    }
}

/// A row: what is unlike the usual node or wish, and what comes of it.
type Row = (fn(&mut Observed, &mut ImageWish), &'static str);

const TABLE: &[Row] = &[
    (|_, _| {}, "root-b 30"),
    // The other slot runs.
    (
        |node, _| {
            (node.slots.a, node.slots.b) = (SlotState::Empty, good("1.0"));
            node.slots.last_good = Some(Slot::B);
            node.seen.booted = Some(Slot::B);
            (node.seen.a, node.seen.b) = (Entry::Absent, Entry::Plain);
        },
        "root-a 30",
    ),
    // It runs already, by its file, or by what it says of itself if the record was lost.
    (|node, _| node.slots.a = good("1.1"), "nothing to do"),
    (
        |node, wish| {
            let unknown = What {
                file: Sha256::from(UNKNOWN),
                ..what("1.1")
            };
            node.slots.a = SlotState::Good(unknown);
            wish.image_id = "1.0".into();
        },
        "nothing to do",
    ),
    // The same version from another file is another image.
    (
        |node, _| {
            let other = What {
                file: Sha256::of(b"rebuilt"),
                ..what("1.1")
            };
            node.slots.a = SlotState::Good(other);
        },
        "root-b 30",
    ),
    // It lies in its slot already: nothing is asked of its size.
    (
        |node, _| {
            node.slots.b = SlotState::Written(what("1.1"));
            node.size = None;
            node.room = Some(Err(Failure::new(FailureKind::Storage, "no room")));
        },
        "root-b 0",
    ),
    (
        |node, _| {
            node.slots.b = SlotState::Armed {
                what: what("1.1"),
                boot_id: "boot-1".into(),
            };
        },
        "root-b 0",
    ),
    // What lies there half, or is another one, does not count.
    (
        |node, _| {
            let half = What {
                raw: None,
                ..what("1.1")
            };
            node.slots.b = SlotState::Written(half);
        },
        "root-b 30",
    ),
    (|node, _| node.slots.b = good("0.9"), "root-b 30"),
    // Debian's name of the architecture is as good as the kernel's.
    (|_, wish| wish.architecture = "amd64".into(), "root-b 30"),
    (
        |_, wish| wish.architecture = "aarch64".into(),
        "Unsupported: the image is made for aarch64 and this machine is one of x86_64; give the node a policy with \
         another profile",
    ),
    // Of which nobody said for what it is made, it is for any.
    (|_, wish| wish.architecture.clear(), "root-b 30"),
    // Without a digest it is no file that anybody could tell from another,
    (
        |_, wish| wish.sha256 = Sha256::from(UNKNOWN),
        "Unsupported: the catalogue has no SHA-256 of the image's file, so that nobody could tell it from another; add \
         that to the operating system at the server",
    ),
    // and if it runs already by what it says of itself, none is needed.
    (
        |node, wish| {
            let unknown = What {
                file: Sha256::from(UNKNOWN),
                ..what("1.0")
            };
            node.slots.a = SlotState::Good(unknown);
            wish.image_id = "1.0".into();
            wish.sha256 = Sha256::from(UNKNOWN);
        },
        "nothing to do",
    ),
    (
        |node, _| {
            node.unsigned = Some(Failure::new(FailureKind::Signature, "nobody signed it"));
        },
        "Signature: nobody signed it",
    ),
    // It could not be written when it was fetched.
    (
        |node, _| {
            node.refused = Some(Failure::new(FailureKind::Unsupported, "no zstd"));
        },
        "Unsupported: no zstd",
    ),
    // What failed here stays out until a person orders it.
    (
        |node, _| node.slots.bad.push(bad("1.1")),
        "Verify: the image 1.1 failed here at 1970-01-01T00:00:00Z and is not tried again by itself: it hung; a person \
         may order it, or forget that with `evenkeel-agent image forget DIGEST`",
    ),
    (
        |node, wish| {
            node.slots.bad.push(bad("1.1"));
            wish.again = true;
        },
        "root-b 30",
    ),
    (|node, _| node.slots.bad.push(bad("1.0.5")), "root-b 30"),
    // There must be something to come back to.
    (
        |node, _| node.seen.booted = None,
        "Plan: it is not known which slot runs, so none is written; start the machine through one of the agent's boot \
         entries",
    ),
    (
        |node, _| {
            node.slots.a = SlotState::Trial {
                what: what("1.0"),
                boots: Vec::new(),
                passed: false,
                doubt: None,
            };
        },
        "Plan: what runs in root-a is on trial: until that is decided no other image is tried",
    ),
    (
        |node, _| node.slots.last_good = Some(Slot::B),
        "Plan: the slot root-a runs and holds a good image, so no other is written; start the machine from a slot that \
         the agent knows to be good",
    ),
    (
        |node, _| node.seen.a = Entry::Counted { left: 1, done: 2 },
        "Plan: the slot root-a runs and has no boot entry of its own without a counter, so there would be no way back; \
         make that entry again",
    ),
    (
        |node, _| node.faults = vec!["the ESP is read-only".into(), "no panic=".into()],
        "Apply: an image would not be tried safely here: the ESP is read-only; no panic=",
    ),
    // Room.
    (|node, _| node.size = None, "root-b 0"),
    (
        |node, _| node.size = Some(101),
        "Storage: the image has 101 bytes and its slot has room for 100",
    ),
    (|node, _| node.size = Some(100), "root-b 100"),
    (
        |node, _| node.room = Some(Err(Failure::new(FailureKind::Storage, "the ESP is full"))),
        "Storage: the ESP is full",
    ),
    (
        |_, wish| wish.rules.max_bytes = 29,
        "Plan: the image has 30 bytes and the policy allows 29",
    ),
    (|_, wish| wish.rules.max_bytes = 30, "root-b 30"),
];

#[test]
fn what_is_planned_follows_from_what_is_seen() {
    for (number, (unlike, expected)) in TABLE.iter().enumerate() {
        let (mut node, mut wish) = (node(), wish());
        unlike(&mut node, &mut wish);
        let expected = expected.replace("DIGEST", &wish.sha256.to_string());
        assert_eq!(told(&wish, &node), expected, "row {number}");
    }
}

#[test]
fn no_more_is_fetched_than_the_policy_allows_and_the_slot_holds() {
    for (most, room, expected) in [
        (0, None, 0),
        (29, None, 29),
        (0, Some(100), 100),
        (99, Some(100), 99),
        (101, Some(100), 100),
    ] {
        let mut step = Step {
            slot: Slot::B,
            wish: wish(),
            room,
        };
        step.wish.rules.max_bytes = most;
        let bounded = step.bounded();
        assert_eq!(bounded.rules.max_bytes, expected, "{most} {room:?}");
        assert_eq!(step.wish.rules.max_bytes, most);
    }
    let draft = plan(&wish(), &node()).unwrap();
    assert_eq!(draft.steps[0].room, Some(100));
}

#[test]
fn a_plan_tells_the_image_before_and_after_and_that_the_node_reboots() {
    let draft = plan(&wish(), &node()).unwrap();
    assert!(draft.reboot_expected);
    let image = draft.plan().image.unwrap();
    assert_eq!(image.profile_name, "demo");
    assert_eq!(
        (image.before.as_str(), image.wanted.as_str()),
        ("1.0", "1.1")
    );
    assert!(draft.changes.is_empty());
    let step = &draft.steps[0];
    let written = serde_json::to_value(step).unwrap();
    let read: Step = serde_json::from_value(written).unwrap();
    assert_eq!(read, *step);
}
