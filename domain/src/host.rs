//! Hosts: the machines of the fleet.

mod serial_number;

pub use serial_number::SerialNumber;

use uuid::Uuid;

use crate::Time;
use crate::id::{HostId, ProviderId, SiteId};
use crate::invalid::Invalid;
use crate::location::Metadata;
use crate::status::Status;
use crate::text::Name;

named! {
    /// Desired or current state of a host.
    HostState {
        /// No state was set yet.
        Unspecified = "unspecified",
        /// Registered by UUID or serial number; the machine has not connected yet.
        Registered = "registered",
        /// The machine may report.
        Onboarded = "onboarded",
        /// Reports of the machine are rejected.
        Untrusted = "untrusted",
        /// To be removed.
        Deleted = "deleted",
    }
}

impl HostState {
    /// Whether a host in this current state may get this desired state.
    #[must_use]
    pub const fn may_become(self, desired: Self) -> bool {
        use HostState as S;
        match self {
            S::Unspecified => true,
            // EIM has no such transition. A machine can be lost before it connects.
            S::Registered => !matches!(desired, S::Unspecified),
            S::Onboarded => matches!(desired, S::Onboarded | S::Untrusted | S::Deleted),
            S::Untrusted => matches!(desired, S::Untrusted | S::Deleted),
            S::Deleted => matches!(desired, S::Deleted),
        }
    }

    /// Whether reports of a host in this state are accepted.
    #[must_use]
    pub const fn is_trusted(self) -> bool {
        !matches!(self, Self::Untrusted | Self::Deleted)
    }
}

/// A machine of the fleet.
#[derive(Clone, Debug, PartialEq)]
pub struct Host {
    pub id: HostId,
    /// May be empty; not unique.
    pub name: Name,
    /// The machine's UUID, unique in its project.
    pub uuid: Option<Uuid>,
    /// The UUID as its client wrote it; empty if there is none.
    pub uuid_text: String,
    /// Serial number of the vendor.
    pub serial: Option<SerialNumber>,
    /// Host name as the machine reports it; empty until it has connected.
    pub hostname: String,
    pub site: Option<SiteId>,
    pub desired: HostState,
    pub current: HostState,
    /// Whether only a newer release knows one of the states. That state reads as unspecified, and updates wait.
    pub has_unknown_state: bool,
    pub provider: Option<ProviderId>,
    pub metadata: Metadata,
    /// Size of the user volume in gigabytes, as registered.
    pub user_lvm_size: u32,
    /// Why the host was invalidated.
    pub note: String,
    /// `SubjectPublicKeyInfo` (DER, RFC 5280 section 4.1) of the key that it enrolled with; empty if it never enrolled.
    pub public_key: Vec<u8>,
    pub status: Status,
    pub created_at: Time,
    pub updated_at: Time,
}

impl Host {
    /// Whether reports of this host are accepted.
    #[must_use]
    pub fn is_trusted(&self) -> bool {
        self.desired.is_trusted() && self.current.is_trusted()
    }

    /// Its name, or its id if it has no name.
    #[must_use]
    pub fn display_name(&self) -> String {
        match self.name.as_str() {
            "" => self.id.to_string(),
            name => name.to_owned(),
        }
    }
}

/// Registration of a machine that has not connected yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registration {
    /// May be empty.
    pub name: Name,
    /// Identifies the machine when it connects.
    pub uuid: Option<Uuid>,
    /// The UUID as its client wrote it; empty if there is none.
    pub uuid_text: String,
    /// Identifies the machine when it connects.
    pub serial: Option<SerialNumber>,
    /// State of the host until its machine connects.
    pub current: HostState,
    /// Whether the machine is onboarded as soon as it connects; stored as the desired state of the host.
    pub auto_onboard: bool,
    /// Size of the user volume in gigabytes.
    pub user_lvm_size: u32,
}

impl Registration {
    /// Maximum length of a name at registration, in bytes.
    pub const MAX_NAME_BYTES: usize = 20;

    /// Maximum size of the user volume, in gigabytes.
    pub const MAX_LVM_SIZE_GB: u32 = i32::MAX.cast_unsigned();

    /// Parses a registration.
    ///
    /// # Errors
    /// The name, UUID or serial number is invalid, or both UUID and serial number are missing.
    pub fn parse(
        name: &str,
        uuid: &str,
        serial: &str,
        auto_onboard: bool,
    ) -> Result<Self, Invalid> {
        let registration = Self {
            name: Name::parse_up_to("name", name, Self::MAX_NAME_BYTES)?,
            uuid: parse_uuid("uuid", uuid)?,
            uuid_text: uuid.to_owned(),
            serial: SerialNumber::parse("serialNumber", serial)?,
            current: HostState::Registered,
            auto_onboard,
            user_lvm_size: 0,
        };
        if registration.uuid.is_none() && registration.serial.is_none() {
            return Err(Invalid::new("uuid", "give the machine's uuid, its serialNumber, or both"));
        }
        Ok(registration)
    }

    /// A host that is created directly, without a registration: it is to be onboarded, and may have neither UUID nor
    /// serial number yet. As in EIM, it has no state before its machine connects.
    ///
    /// # Errors
    /// The name or UUID is invalid.
    pub fn without_registration(name: &str, uuid: &str) -> Result<Self, Invalid> {
        Ok(Self {
            name: Name::parse("name", name)?,
            uuid: parse_uuid("uuid", uuid)?,
            uuid_text: uuid.to_owned(),
            serial: None,
            current: HostState::Unspecified,
            auto_onboard: true,
            user_lvm_size: 0,
        })
    }

    /// Sets the size of the user volume, in gigabytes.
    ///
    /// # Errors
    /// The size is larger than [`Registration::MAX_LVM_SIZE_GB`].
    pub fn with_user_lvm_size(self, user_lvm_size: u32) -> Result<Self, Invalid> {
        if user_lvm_size > Self::MAX_LVM_SIZE_GB {
            let why = format!("more than {} GB", Self::MAX_LVM_SIZE_GB);
            return Err(Invalid::new("userLvmSize", why));
        }
        Ok(Self { user_lvm_size, ..self })
    }

    #[must_use]
    pub const fn desired(&self) -> HostState {
        Self::desired_if(self.auto_onboard)
    }

    /// Desired state of a host, depending on whether it is onboarded as soon as it connects.
    #[must_use]
    pub const fn desired_if(auto_onboard: bool) -> HostState {
        if auto_onboard { HostState::Onboarded } else { HostState::Registered }
    }
}

/// Why a host was invalidated: one line of at most 512 characters; may be empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InvalidationNote(String);

impl InvalidationNote {
    /// Maximum length in characters.
    pub const MAX_CHARS: usize = 512;

    /// Parses a note.
    ///
    /// # Errors
    /// The text is longer than [`InvalidationNote::MAX_CHARS`] characters or has control characters.
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        if text.chars().count() > Self::MAX_CHARS {
            let why = format!("longer than {} characters", Self::MAX_CHARS);
            return Err(Invalid::new("note", why));
        }
        if text.chars().any(char::is_control) {
            return Err(Invalid::new("note", "control characters are not allowed"));
        }
        Ok(Self(text.to_owned()))
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Parses a UUID in the hyphenated form of RFC 9562, in upper or lower case; `None` for the empty text.
///
/// # Errors
/// The text is not a UUID in this form.
pub fn parse_uuid(field: &'static str, text: &str) -> Result<Option<Uuid>, Invalid> {
    if text.is_empty() {
        return Ok(None);
    }
    let bad = || Invalid::new(field, "not a UUID such as 01234567-89ab-cdef-0123-456789abcdef");
    if text.len() != 36 {
        return Err(bad());
    }
    Uuid::try_parse(text).map(Some).map_err(|_| bad())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_registration_needs_a_uuid_or_a_serial_number() {
        let error = Registration::parse("edge", "", "", true).expect_err("neither");
        assert_eq!(error.field, "uuid");
        let registration =
            Registration::parse("", "", "ABC12", false).expect("by its serial number");
        assert_eq!(registration.desired(), HostState::Registered);
    }

    #[test]
    fn the_current_state_limits_the_desired_states() {
        use HostState as S;
        let table: [(S, &[S]); 5] = [
            (S::Unspecified, S::ALL),
            (S::Registered, &[S::Registered, S::Onboarded, S::Untrusted, S::Deleted]),
            (S::Onboarded, &[S::Onboarded, S::Untrusted, S::Deleted]),
            (S::Untrusted, &[S::Untrusted, S::Deleted]),
            (S::Deleted, &[S::Deleted]),
        ];
        assert_eq!(table.map(|(current, _)| current), S::ALL);
        for (current, allowed) in table {
            for desired in S::ALL {
                let may = current.may_become(*desired);
                assert_eq!(may, allowed.contains(desired), "{current} to {desired}");
            }
        }
    }

    #[test]
    fn a_host_can_be_created_by_its_name_alone() {
        let created = Registration::without_registration("a name of more than twenty", "")
            .expect("a machine");
        assert_eq!(
            (created.desired(), created.current),
            (HostState::Onboarded, HostState::Unspecified)
        );
        assert_eq!(Registration::without_registration("a;b", "").expect_err("a;b").field, "name");
        assert_eq!(Registration::without_registration("a", "b").expect_err("b").field, "uuid");
    }

    #[test]
    fn a_volume_size_is_limited() {
        let sized = |size| {
            Registration::without_registration("edge", "")
                .expect("a machine")
                .with_user_lvm_size(size)
        };
        assert_eq!(sized(60).expect("a size").user_lvm_size, 60);
        assert!(sized(Registration::MAX_LVM_SIZE_GB).is_ok());
        let error = sized(Registration::MAX_LVM_SIZE_GB + 1).expect_err("too large");
        assert_eq!(error.field, "userLvmSize");
    }

    #[test]
    fn a_note_is_one_line() {
        for good in ["", "gestohlen – früher", &"ä".repeat(512)] {
            assert_eq!(InvalidationNote::parse(good).expect(good).as_str(), good);
        }
        for bad in ["two\nlines", "\0", &"a".repeat(513)] {
            assert!(InvalidationNote::parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_uuid_is_read_in_either_case() {
        let upper = parse_uuid("uuid", "01234567-89AB-CDEF-0123-456789ABCDEF").expect("a UUID");
        let lower = parse_uuid("uuid", "01234567-89ab-cdef-0123-456789abcdef").expect("a UUID");
        assert_eq!(upper, lower);
        for bad in ["0123456789abcdef0123456789abcdef", "x", "{01234567-89ab-cdef-0123-456789abcd}"]
        {
            assert!(parse_uuid("uuid", bad).is_err(), "{bad}");
        }
    }
}
