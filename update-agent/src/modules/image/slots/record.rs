//! The content and the format of the record of the slots.

use std::cmp::Ordering;
use std::fmt;

use chrono::{DateTime, Utc};
use evenkeel_domain::os::compare_versions;
use serde::{Deserialize, Serialize};

use crate::model::Sha256;

/// Version of the file format. A file of another version is refused.
///
/// An older agent reads the record of a newer one whenever the node falls back from a trial or
/// installs an older image. So the version changes only if an older agent would misinterpret the
/// record: with a new state, or with a new field that changes the meaning of another one.
/// Everything else is added to this version as an optional field: an older agent ignores it, and
/// drops it with the next step that it writes.
const FORMAT_VERSION: u32 = 1;

/// Number of bad images to remember; the oldest ones are dropped first.
const MAX_BAD_IMAGES: usize = 256;

/// Number of undecided images to remember; the oldest ones are dropped first.
const MAX_UNDECIDED_IMAGES: usize = 16;

/// Maximum size of the stored reason of a bad image, in bytes.
const MAX_REASON_BYTES: usize = 512;

/// One of the two slots for an operating system image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Slot {
    /// The first slot.
    A,
    /// The second slot.
    B,
}

impl Slot {
    /// Both slots.
    pub const ALL: [Self; 2] = [Self::A, Self::B];

    #[must_use]
    pub fn other(self) -> Self {
        match self {
            Self::A => Self::B,
            Self::B => Self::A,
        }
    }

    /// Label of its partition.
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

/// Digest and size of an unpacked image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RawImage {
    /// SHA-256 of all bytes.
    pub sha256: Sha256,
    /// Number of bytes.
    pub bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SlotImage {
    /// SHA-256 of the image file as it was downloaded. All zeros if the agent does not know the
    /// file.
    pub file: Sha256,
    /// Name of the OS profile.
    pub profile_name: String,
    /// Version of the image in the profile.
    pub image_id: String,
    /// Digest and size of the unpacked image; `None` until it is written completely.
    #[serde(default)]
    pub raw: Option<RawImage>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SlotState {
    /// The content is not known.
    #[default]
    Empty,
    /// An image is being written; the content may be incomplete.
    Writing(SlotImage),
    /// A complete image that was not tried yet. The slot has no boot entry.
    Written(SlotImage),
    /// The next reset may boot the slot for the first time.
    Armed {
        image: SlotImage,
        /// ID of the boot in which it was armed.
        boot_id: String,
    },
    /// It was booted and has not proved itself yet.
    Trial {
        image: SlotImage,
        /// IDs of the latest boots of the slot, oldest first.
        boots: Vec<String>,
        /// Whether it was found healthy. Then only the blessing is missing.
        passed: bool,
        /// How the trial ended undecided in the last of these boots, if it did.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        undecided_end: Option<TrialEnd>,
    },
    /// The image proved itself.
    Good(SlotImage),
    /// The image failed.
    Bad {
        image: SlotImage,
        /// Reason, for display.
        reason: String,
        /// Last lines of the log.
        log: String,
    },
}

impl SlotState {
    /// The image in the slot or to be written into it, as far as the agent knows.
    pub fn image(&self) -> Option<&SlotImage> {
        match self {
            Self::Empty => None,
            Self::Writing(image) | Self::Written(image) | Self::Good(image) => Some(image),
            Self::Armed { image, .. } | Self::Trial { image, .. } | Self::Bad { image, .. } => {
                Some(image)
            }
        }
    }

    /// Name of the state in one word, for `status` and for the server.
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

    /// Describes a slot in this state; follows the name of the slot in a sentence.
    pub fn description(&self) -> &'static str {
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

/// How a trial ended undecided.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TrialEnd {
    /// Reason, for display.
    pub reason: String,
    /// Last lines of the log.
    pub log: String,
}

/// An image whose latest trial ended undecided.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct UndecidedImage {
    /// SHA-256 of the image file.
    pub file: Sha256,
    /// Number of its trials that ended undecided.
    pub times: u8,
    /// End of the latest one. Only the latest undecided image keeps its log.
    pub latest_end: TrialEnd,
}

/// An image that failed on this node.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct BadImage {
    /// SHA-256 of the image file.
    pub file: Sha256,
    /// Version of the image in its profile.
    pub image_id: String,
    /// Reason, for display.
    pub reason: String,
    /// When the failure was recorded, by the clock of the node.
    pub at: DateTime<Utc>,
}

/// The newest version of a profile that proved itself on this node.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct VersionFloor {
    pub profile_name: String,
    /// Version of the image, which can be compared with others.
    pub image_id: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Slots {
    pub a: SlotState,
    pub b: SlotState,
    /// The slot to which a failed trial falls back. It is [`SlotState::Good`] and is never written.
    /// The field is mandatory, even if it is null: a record without it is refused.
    #[serde(deserialize_with = "Option::deserialize")]
    pub last_good: Option<Slot>,
    /// Images that are not tried again without an explicit retry, in the order in which they
    /// failed.
    pub bad: Vec<BadImage>,
    /// Images with undecided trials that have neither failed nor proved themselves since, latest
    /// last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub undecided: Vec<UndecidedImage>,
    /// One floor for each profile of which an image proved itself. Only a commit changes it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub version_floors: Vec<VersionFloor>,
    /// Sequence number of the latest boot entry.
    pub sequence: u32,
}

impl Slots {
    pub fn state(&self, slot: Slot) -> &SlotState {
        match slot {
            Slot::A => &self.a,
            Slot::B => &self.b,
        }
    }

    /// Finds an image that failed here.
    pub fn find_bad(&self, file: &Sha256) -> Option<&BadImage> {
        self.bad.iter().find(|bad| bad.file == *file)
    }

    /// Finds an image with undecided trials.
    pub fn find_undecided(&self, file: &Sha256) -> Option<&UndecidedImage> {
        self.undecided.iter().find(|undecided| undecided.file == *file)
    }

    /// The version of a profile below which no image is installed; `None` if there is none. The
    /// image to which a failed trial falls back counts as well: the record of an older agent has no
    /// floors.
    pub fn version_floor(&self, profile_name: &str) -> Option<&str> {
        let fallback = self.last_good.and_then(|slot| self.state(slot).image());
        let fallback = fallback.map(|image| (&image.profile_name, &image.image_id));
        let floors = self.version_floors.iter().map(|floor| (&floor.profile_name, &floor.image_id));
        floors
            .chain(fallback)
            .filter(|(profile, version)| *profile == profile_name && is_comparable(version))
            .map(|(_, version)| version.as_str())
            .reduce(|floor, version| if is_newer(version, floor) { version } else { floor })
    }

    /// Records that an image proved itself. A version that cannot be compared is no floor.
    pub(super) fn raise_version_floor(&mut self, image: &SlotImage) {
        let SlotImage { profile_name, image_id, .. } = image;
        if !is_comparable(image_id) {
            return;
        }
        match self.version_floors.iter_mut().find(|floor| floor.profile_name == *profile_name) {
            Some(floor) if is_newer(image_id, &floor.image_id) => {
                floor.image_id.clone_from(image_id);
            }
            Some(_) => {}
            None => self.version_floors.push(VersionFloor {
                profile_name: profile_name.clone(),
                image_id: image_id.clone(),
            }),
        }
    }

    pub(super) fn set_state(&mut self, slot: Slot, state: SlotState) {
        match slot {
            Slot::A => self.a = state,
            Slot::B => self.b = state,
        }
    }

    /// Remembers that an image failed. Replaces an earlier failure of the same image.
    pub(super) fn remember_bad(&mut self, image: &SlotImage, reason: &str, at: DateTime<Utc>) {
        self.forget_bad(&image.file);
        let excess = (self.bad.len() + 1).saturating_sub(MAX_BAD_IMAGES);
        self.bad.drain(..excess);
        self.bad.push(BadImage {
            file: image.file,
            image_id: image.image_id.clone(),
            reason: reason[..reason.floor_char_boundary(MAX_REASON_BYTES)].to_owned(),
            at,
        });
    }

    /// Counts an undecided trial of an image.
    pub(super) fn count_undecided(&mut self, file: &Sha256, end: &TrialEnd) {
        let before = self.find_undecided(file).map_or(0, |before| before.times);
        self.undecided.retain(|undecided| undecided.file != *file);
        let excess = (self.undecided.len() + 1).saturating_sub(MAX_UNDECIDED_IMAGES);
        self.undecided.drain(..excess);
        for older in &mut self.undecided {
            older.latest_end.log.clear();
        }
        self.undecided.push(UndecidedImage {
            file: *file,
            times: before.saturating_add(1),
            latest_end: end.clone(),
        });
    }

    /// Forgets that the image was bad or undecided. Returns whether it was.
    pub(super) fn forget_bad(&mut self, file: &Sha256) -> bool {
        let before = self.bad.len() + self.undecided.len();
        self.bad.retain(|bad| bad.file != *file);
        self.undecided.retain(|undecided| undecided.file != *file);
        self.bad.len() + self.undecided.len() < before
    }
}

fn is_comparable(version: &str) -> bool {
    compare_versions(version, version).is_some()
}

fn is_newer(version: &str, than: &str) -> bool {
    compare_versions(version, than) == Some(Ordering::Greater)
}

/// Content of the file.
#[derive(Serialize, Deserialize)]
struct SlotsDocument<S> {
    format: u32,
    slots: S,
}

/// The part of the file that every version of the format has.
#[derive(Deserialize)]
struct SlotsHeader {
    format: u32,
}

/// Encodes the record for its file.
pub(super) fn encode_slots(slots: &Slots) -> Result<Vec<u8>, serde_json::Error> {
    serde_json::to_vec(&SlotsDocument { format: FORMAT_VERSION, slots })
}

/// Parses the record from the bytes of its file. The error says what is wrong.
pub(super) fn parse_slots(content: &[u8]) -> Result<Slots, String> {
    let parse_error = |error: serde_json::Error| error.to_string();
    // The version is checked first, because the rest of another version has another meaning.
    let SlotsHeader { format } = serde_json::from_slice(content).map_err(parse_error)?;
    if format != FORMAT_VERSION {
        return Err(format!(
            "it has format version {format}, but this agent supports version {FORMAT_VERSION}: another version of the agent wrote it"
        ));
    }
    let document: SlotsDocument<Slots> = serde_json::from_slice(content).map_err(parse_error)?;
    let slots = document.slots;
    // Falling back depends on this invariant, so it is checked even if the file was edited by hand.
    match slots.last_good {
        Some(slot) if !matches!(slots.state(slot), SlotState::Good(_)) => Err(format!(
            "it names the slot {slot} as the last good one, but that slot {}",
            slots.state(slot).description()
        )),
        _ => Ok(slots),
    }
}
