//! Machines.

use uuid::Uuid;

use crate::Time;
use crate::id::{HostId, SiteId};
use crate::invalid::Invalid;
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
        let distrusted = |state| matches!(state, HostState::Untrusted | HostState::Deleted);
        !distrusted(self.desired) && !distrusted(self.current)
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
}

impl Registration {
    /// The longest name that can be given at registration.
    pub const MAX_NAME: usize = 20;

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
        };
        if registration.uuid.is_none() && registration.serial.is_none() {
            return Err(Invalid::new(
                "uuid",
                "give the machine's uuid, its serialNumber, or both",
            ));
        }
        Ok(registration)
    }

    /// Where the host should stand.
    #[must_use]
    pub const fn desired(&self) -> HostState {
        if self.auto_onboard {
            HostState::Onboarded
        } else {
            HostState::Registered
        }
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
