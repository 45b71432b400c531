//! Machines.

use uuid::Uuid;

use crate::Time;
use crate::id::{HostId, ProviderId, SiteId};
use crate::invalid::Invalid;
use crate::place::Metadata;
use crate::status::Status;
use crate::text::Name;

named! {
    /// Where a host stands, wanted or current (northbound section 1.3).
    HostState {
        /// Nothing was said yet.
        Unspecified = "unspecified",
        /// Known by its UUID or serial number; it has not spoken yet.
        Registered = "registered",
        /// It may speak for itself.
        Onboarded = "onboarded",
        /// It must not be believed any more.
        Untrusted = "untrusted",
        /// To be removed.
        Deleted = "deleted",
    }
}

impl HostState {
    /// Whether a host that stands here may be wanted to stand there (northbound section 1.3).
    #[must_use]
    pub const fn may_become(self, wanted: Self) -> bool {
        use HostState as S;
        match self {
            S::Unspecified => true,
            S::Registered => matches!(wanted, S::Registered | S::Onboarded | S::Deleted),
            S::Onboarded => matches!(wanted, S::Onboarded | S::Untrusted | S::Deleted),
            S::Untrusted => matches!(wanted, S::Untrusted | S::Deleted),
            S::Deleted => matches!(wanted, S::Deleted),
        }
    }

    /// Whether a host that stands here is believed.
    #[must_use]
    pub const fn is_trusted(self) -> bool {
        !matches!(self, Self::Untrusted | Self::Deleted)
    }
}

/// One machine of the fleet.
#[derive(Clone, Debug, PartialEq)]
pub struct Host {
    /// Its id.
    pub id: HostId,
    /// May be empty; not unique.
    pub name: Name,
    /// The machine's UUID, unique in its project.
    pub uuid: Option<Uuid>,
    /// The vendor's serial number.
    pub serial: Option<SerialNumber>,
    /// What the machine calls itself; empty until it has spoken.
    pub hostname: String,
    /// Where the machine is.
    pub site: Option<SiteId>,
    /// Where it should stand.
    pub desired: HostState,
    /// Where it stands.
    pub current: HostState,
    /// Who brought it.
    pub provider: Option<ProviderId>,
    /// Its labels.
    pub metadata: Metadata,
    /// The size of the users' volume in gigabytes, as it was registered.
    pub user_lvm_size: u32,
    /// Why it was invalidated.
    pub note: String,
    /// `SubjectPublicKeyInfo` (DER, RFC 5280 section 4.1) of the key it enrolled with; empty if it never enrolled.
    pub public_key: Vec<u8>,
    /// What it is doing.
    pub status: Status,
    /// When it was made.
    pub created_at: Time,
    /// When it was last changed.
    pub updated_at: Time,
}

impl Host {
    /// Whether anything that claims to be this host is believed.
    #[must_use]
    pub fn is_trusted(&self) -> bool {
        self.desired.is_trusted() && self.current.is_trusted()
    }

    /// What a person calls it: its name, else its id.
    #[must_use]
    pub fn title(&self) -> String {
        match self.name.as_str() {
            "" => self.id.to_string(),
            name => name.to_owned(),
        }
    }
}

/// A machine that will come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registration {
    /// May be empty.
    pub name: Name,
    /// By what it will be known.
    pub uuid: Option<Uuid>,
    /// By what it will be known.
    pub serial: Option<SerialNumber>,
    /// Whether it should be onboarded as soon as it comes; kept as its desired state.
    pub auto_onboard: bool,
    /// The size of the users' volume in gigabytes.
    pub user_lvm_size: u32,
}

impl Registration {
    /// The longest name that can be given at registration.
    pub const MAX_NAME: usize = 20;

    /// The largest size of the users' volume, in gigabytes.
    pub const MAX_LVM_SIZE: u32 = i32::MAX.cast_unsigned();

    /// Reads a registration.
    ///
    /// # Errors
    /// The name, UUID or serial number is not one, or neither UUID nor serial number is given.
    pub fn parse(
        name: &str,
        uuid: &str,
        serial: &str,
        auto_onboard: bool,
    ) -> Result<Self, Invalid> {
        let registration = Self {
            name: Name::parse_up_to("name", name, Self::MAX_NAME)?,
            uuid: parse_uuid("uuid", uuid)?,
            serial: SerialNumber::parse("serialNumber", serial)?,
            auto_onboard,
            user_lvm_size: 0,
        };
        if registration.uuid.is_none() && registration.serial.is_none() {
            return Err(Invalid::new(
                "uuid",
                "give the machine's uuid, its serialNumber, or both",
            ));
        }
        Ok(registration)
    }

    /// A machine that is made without being announced: it should be onboarded, and may be known by nothing yet.
    ///
    /// # Errors
    /// The name or UUID is not one.
    pub fn made(name: &str, uuid: &str) -> Result<Self, Invalid> {
        Ok(Self {
            name: Name::parse("name", name)?,
            uuid: parse_uuid("uuid", uuid)?,
            serial: None,
            auto_onboard: true,
            user_lvm_size: 0,
        })
    }

    /// The same machine with a users' volume of this size, in gigabytes.
    ///
    /// # Errors
    /// It is larger than [`Registration::MAX_LVM_SIZE`].
    pub fn with_user_lvm_size(self, user_lvm_size: u32) -> Result<Self, Invalid> {
        if user_lvm_size > Self::MAX_LVM_SIZE {
            let why = format!("more than {} GB", Self::MAX_LVM_SIZE);
            return Err(Invalid::new("userLvmSize", why));
        }
        Ok(Self {
            user_lvm_size,
            ..self
        })
    }

    /// Where the host should stand.
    #[must_use]
    pub const fn desired(&self) -> HostState {
        Self::desired_if(self.auto_onboard)
    }

    /// Where a host should stand that is to be onboarded as soon as it comes, or not.
    #[must_use]
    pub const fn desired_if(auto_onboard: bool) -> HostState {
        if auto_onboard {
            HostState::Onboarded
        } else {
            HostState::Registered
        }
    }
}

/// Why a host was invalidated: one line of at most 512 characters; may be empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Note(String);

impl Note {
    /// The most characters.
    pub const MAX: usize = 512;

    /// Reads a note.
    ///
    /// # Errors
    /// It is longer than [`Note::MAX`] characters or has control characters.
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        if text.chars().count() > Self::MAX {
            let why = format!("longer than {} characters", Self::MAX);
            return Err(Invalid::new("note", why));
        }
        if text.chars().any(char::is_control) {
            return Err(Invalid::new("note", "control characters are not allowed"));
        }
        Ok(Self(text.to_owned()))
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Reads a UUID in the hyphenated form of RFC 9562, in either case; none if the text is empty.
///
/// # Errors
/// The text is something else.
pub fn parse_uuid(field: &'static str, text: &str) -> Result<Option<Uuid>, Invalid> {
    if text.is_empty() {
        return Ok(None);
    }
    let bad = || {
        Invalid::new(
            field,
            "not a UUID such as 01234567-89ab-cdef-0123-456789abcdef",
        )
    };
    if text.len() != 36 {
        return Err(bad());
    }
    Uuid::try_parse(text).map(Some).map_err(|_| bad())
}

/// A serial number: 5 to 20 letters and digits.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SerialNumber(String);

impl SerialNumber {
    /// Reads a serial number; none if the text is empty.
    ///
    /// # Errors
    /// The text is too short, too long or has other characters.
    pub fn parse(field: &'static str, text: &str) -> Result<Option<Self>, Invalid> {
        if text.is_empty() {
            return Ok(None);
        }
        let good =
            (5..=20).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_alphanumeric());
        if good {
            Ok(Some(Self(text.to_owned())))
        } else {
            Err(Invalid::new(
                field,
                "a serial number has 5 to 20 letters and digits",
            ))
        }
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_registration_needs_something_to_be_known_by() {
        let error = Registration::parse("edge", "", "", true).expect_err("neither");
        assert_eq!(error.field, "uuid");
        let known = Registration::parse("", "", "ABC12", false).expect("by its serial number");
        assert_eq!(known.desired(), HostState::Registered);
    }

    #[test]
    fn where_a_host_stands_says_where_it_may_be_wanted() {
        use HostState as S;
        let table: [(S, &[S]); 5] = [
            (S::Unspecified, S::ALL),
            (S::Registered, &[S::Registered, S::Onboarded, S::Deleted]),
            (S::Onboarded, &[S::Onboarded, S::Untrusted, S::Deleted]),
            (S::Untrusted, &[S::Untrusted, S::Deleted]),
            (S::Deleted, &[S::Deleted]),
        ];
        assert_eq!(table.map(|(current, _)| current), S::ALL);
        for (current, allowed) in table {
            for wanted in S::ALL {
                let may = current.may_become(*wanted);
                assert_eq!(may, allowed.contains(wanted), "{current} to {wanted}");
            }
        }
    }

    #[test]
    fn a_machine_can_be_made_by_its_name_alone() {
        let made = Registration::made("a name of more than twenty", "").expect("a machine");
        assert_eq!(made.desired(), HostState::Onboarded);
        assert_eq!(
            Registration::made("a;b", "").expect_err("a;b").field,
            "name"
        );
        assert_eq!(Registration::made("a", "b").expect_err("b").field, "uuid");
    }

    #[test]
    fn a_volume_has_a_size_that_can_be_kept() {
        let sized = |size| {
            Registration::made("edge", "")
                .expect("a machine")
                .with_user_lvm_size(size)
        };
        assert_eq!(sized(60).expect("a size").user_lvm_size, 60);
        assert!(sized(Registration::MAX_LVM_SIZE).is_ok());
        let error = sized(Registration::MAX_LVM_SIZE + 1).expect_err("too large");
        assert_eq!(error.field, "userLvmSize");
    }

    #[test]
    fn a_note_is_one_line() {
        for good in ["", "gestohlen – früher", &"ä".repeat(512)] {
            assert_eq!(Note::parse(good).expect(good).as_str(), good);
        }
        for bad in ["two\nlines", "\0", &"a".repeat(513)] {
            assert!(Note::parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_uuid_is_read_in_either_case() {
        let upper = parse_uuid("uuid", "01234567-89AB-CDEF-0123-456789ABCDEF").expect("a UUID");
        let lower = parse_uuid("uuid", "01234567-89ab-cdef-0123-456789abcdef").expect("a UUID");
        assert_eq!(upper, lower);
        for bad in [
            "0123456789abcdef0123456789abcdef",
            "x",
            "{01234567-89ab-cdef-0123-456789abcd}",
        ] {
            assert!(parse_uuid("uuid", bad).is_err(), "{bad}");
        }
    }
}
