//! What is written down of the slots, and in which form.

use std::fmt;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::model::Sha256;

/// The form of the file. A file of another form is not read.
///
/// The record is read by older agents than the one that wrote it, whenever an image on trial is left, or an older one is
/// wanted. So the form changes only if an older agent must not go by the record as it understands it: with a new state,
/// or a field without which another means something else. Everything else is added to this form, as a field that may be
/// left out: an older agent reads past it, and with the next step that it writes the field is gone.
const FORMAT: u32 = 1;

/// So many bad images are remembered; the oldest are forgotten first.
const MOST_BAD: usize = 256;

/// So many undecided images are remembered; the oldest are forgotten first.
const MOST_DOUBTED: usize = 16;

/// The most bytes that are remembered of why an image is bad.
const MOST_WHY: usize = 512;

/// One of the two places where a system can lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Slot {
    /// The first.
    A,
    /// The second.
    B,
}

impl Slot {
    /// Both.
    pub const ALL: [Self; 2] = [Self::A, Self::B];

    /// The other one.
    #[must_use]
    pub fn other(self) -> Self {
        match self {
            Self::A => Self::B,
            Self::B => Self::A,
        }
    }

    /// The label of its partition.
    pub fn label(self) -> &'static str {
        match self {
            Self::A => "root-a",
            Self::B => "root-b",
        }
    }
}

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.label())
    }
}

/// The bytes of an unpacked image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Raw {
    /// Of all of them.
    pub sha256: Sha256,
    /// How many there are.
    pub bytes: u64,
}

/// An image in a slot.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct What {
    /// Of its file as it was fetched. All zeros if the agent does not know where the image came from.
    pub file: Sha256,
    /// The line of releases that it is one of.
    pub profile_name: String,
    /// Its version in that line.
    pub image_id: String,
    /// What was written into the slot; none before all of it is there.
    #[serde(default)]
    pub raw: Option<Raw>,
}

/// What becomes of a slot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SlotState {
    /// Nobody knows what lies there.
    #[default]
    Empty,
    /// It is being written: whatever lies there may be torn.
    Writing(What),
    /// A whole image that was not tried yet. It has no boot entry.
    Written(What),
    /// It may be booted at the next reset, and may not have been yet.
    Armed {
        /// The image.
        what: What,
        /// The boot in which it was armed.
        boot_id: String,
    },
    /// It was booted and has not proved itself yet.
    Trial {
        /// The image.
        what: What,
        /// The last boots in which it came up, oldest first.
        boots: Vec<String>,
        /// Whether it was found healthy. Then only its boot entry is missing.
        passed: bool,
        /// Why it was left without a word against it, if it was in the last of these boots.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        doubt: Option<Doubt>,
    },
    /// It proved itself.
    Good(What),
    /// It failed.
    Bad {
        /// The image.
        what: What,
        /// For a person.
        why: String,
        /// The last lines of its log.
        log: String,
    },
}

impl SlotState {
    /// The image that lies or is to lie there, as far as the agent knows.
    pub fn what(&self) -> Option<&What> {
        match self {
            Self::Empty => None,
            Self::Writing(what) | Self::Written(what) | Self::Good(what) => Some(what),
            Self::Armed { what, .. } | Self::Trial { what, .. } | Self::Bad { what, .. } => {
                Some(what)
            }
        }
    }

    /// Its name in one word, for `status` and for the server.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Empty => "empty",
            Self::Writing(_) => "writing",
            Self::Written(_) => "written",
            Self::Armed { .. } => "armed",
            Self::Trial { .. } => "trial",
            Self::Good(_) => "good",
            Self::Bad { .. } => "bad",
        }
    }

    /// What a slot in this state does or holds, to be put behind its name.
    pub fn words(&self) -> &'static str {
        match self {
            Self::Empty => "is not known to hold an image",
            Self::Writing(_) => "is being written",
            Self::Written(_) => "holds an image that was not tried",
            Self::Armed { .. } => "is armed for the next boot",
            Self::Trial { .. } => "is on trial",
            Self::Good(_) => "holds a good image",
            Self::Bad { .. } => "holds an image that failed",
        }
    }
}

/// Why it could not be decided whether an image does.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Doubt {
    /// For a person.
    pub why: String,
    /// The last lines of its log.
    pub log: String,
}

/// An image that was tried and left, and of which nobody can say that it does not do.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Undecided {
    /// Of its file.
    pub file: Sha256,
    /// How many of its trials ended so.
    pub times: u8,
    /// The last time. Only of the image that was left last the log is kept.
    pub doubt: Doubt,
}

/// An image that failed on this node.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct BadImage {
    /// Of its file.
    pub file: Sha256,
    /// Its version in its line.
    pub image_id: String,
    /// For a person.
    pub why: String,
    /// When that was noted, by the node's own clock.
    pub at: DateTime<Utc>,
}

/// All that is written down of the slots.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Slots {
    /// Slot a.
    pub a: SlotState,
    /// Slot b.
    pub b: SlotState,
    /// The slot that a failed trial falls back to. It is [`SlotState::Good`], and never written. That there is none is
    /// written as well: a record that does not speak of it is not read.
    #[serde(deserialize_with = "Option::deserialize")]
    pub last_good: Option<Slot>,
    /// Images that are not tried again by themselves, in the order in which they failed.
    pub bad: Vec<BadImage>,
    /// Images that were left undecided and neither failed nor proved themselves since, the last one last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub undecided: Vec<Undecided>,
    /// The number of the last boot entry that was made.
    pub sequence: u32,
}

impl Slots {
    /// What becomes of a slot.
    pub fn state(&self, slot: Slot) -> &SlotState {
        match slot {
            Slot::A => &self.a,
            Slot::B => &self.b,
        }
    }

    /// What is remembered of an image that failed here.
    pub fn known_bad(&self, file: &Sha256) -> Option<&BadImage> {
        self.bad.iter().find(|bad| bad.file == *file)
    }

    /// What is remembered of an image that was left undecided.
    pub fn undecided(&self, file: &Sha256) -> Option<&Undecided> {
        self.undecided
            .iter()
            .find(|undecided| undecided.file == *file)
    }

    pub(super) fn set(&mut self, slot: Slot, state: SlotState) {
        match slot {
            Slot::A => self.a = state,
            Slot::B => self.b = state,
        }
    }

    /// Remembers that an image failed, in the place of what was remembered of it.
    pub(super) fn brand(&mut self, what: &What, why: &str, at: DateTime<Utc>) {
        self.forget_bad(&what.file);
        let excess = (self.bad.len() + 1).saturating_sub(MOST_BAD);
        self.bad.drain(..excess);
        self.bad.push(BadImage {
            file: what.file,
            image_id: what.image_id.clone(),
            why: why[..why.floor_char_boundary(MOST_WHY)].to_owned(),
            at,
        });
    }

    /// Counts that an image was left undecided.
    pub(super) fn doubt(&mut self, file: &Sha256, doubt: &Doubt) {
        let before = self.undecided(file).map_or(0, |before| before.times);
        self.undecided.retain(|undecided| undecided.file != *file);
        let excess = (self.undecided.len() + 1).saturating_sub(MOST_DOUBTED);
        self.undecided.drain(..excess);
        for older in &mut self.undecided {
            older.doubt.log.clear();
        }
        self.undecided.push(Undecided {
            file: *file,
            times: before.saturating_add(1),
            doubt: doubt.clone(),
        });
    }

    /// Whether the image was remembered as bad, or as undecided. It is not any more.
    pub(super) fn forget_bad(&mut self, file: &Sha256) -> bool {
        let before = self.bad.len() + self.undecided.len();
        self.bad.retain(|bad| bad.file != *file);
        self.undecided.retain(|undecided| undecided.file != *file);
        self.bad.len() + self.undecided.len() < before
    }
}

/// What is in the file.
#[derive(Serialize, Deserialize)]
struct Page<S> {
    format: u32,
    slots: S,
}

/// The form of any file, also of one that a newer agent wrote.
#[derive(Deserialize)]
struct Form {
    format: u32,
}

/// The record as the bytes of its file.
pub(super) fn write(slots: &Slots) -> Result<Vec<u8>, serde_json::Error> {
    serde_json::to_vec(&Page {
        format: FORMAT,
        slots,
    })
}

/// The record from the bytes of its file, or what is wrong with them.
pub(super) fn read(content: &[u8]) -> Result<Slots, String> {
    let nonsense = |error: serde_json::Error| error.to_string();
    // The form first: of another one nothing else is understood.
    let Form { format } = serde_json::from_slice(content).map_err(nonsense)?;
    if format != FORMAT {
        return Err(format!(
            "it has the form {format}, and this agent knows {FORMAT}: another version of the agent wrote it"
        ));
    }
    let page: Page<Slots> = serde_json::from_slice(content).map_err(nonsense)?;
    let slots = page.slots;
    // The whole safety of the last good slot hangs on this, so it is not taken from a file that somebody edited.
    match slots.last_good {
        Some(slot) if !matches!(slots.state(slot), SlotState::Good(_)) => Err(format!(
            "it calls the slot {slot} the last good one, which {}",
            slots.state(slot).words()
        )),
        _ => Ok(slots),
    }
}
