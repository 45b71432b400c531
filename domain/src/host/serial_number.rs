//! Serial numbers of machines.

use crate::invalid::Invalid;
use crate::text;

/// A serial number, as the vendor of a machine wrote it. Never a placeholder that many machines have.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SerialNumber(String);

/// What vendors write where no serial number is, as lower-case letters and digits.
const PLACEHOLDERS: &[&str] = &[
    "chassisserialnumber",
    "default",
    "defaultstring",
    "empty",
    "invalid",
    "na",
    "none",
    "noserialnumber",
    "notapplicable",
    "notavailable",
    "notset",
    "notspecified",
    "null",
    "oem",
    "serial",
    "serialnumber",
    "systemserialnumber",
    "tobefilledbyoem",
    "undefined",
    "unknown",
];

impl SerialNumber {
    /// Maximum length of a serial number that a machine reports, in bytes.
    pub const MAX_REPORTED_BYTES: usize = 128;

    /// Parses the serial number by which a user registers a machine: 5 to 20 letters and digits, as in EIM. `None` for
    /// the empty text.
    ///
    /// # Errors
    /// The text is too short, too long or has other characters, or it is a placeholder.
    pub fn parse(field: &'static str, text: &str) -> Result<Option<Self>, Invalid> {
        if text.is_empty() {
            return Ok(None);
        }
        let good =
            (5..=20).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_alphanumeric());
        if !good {
            return Err(Invalid::new(field, "a serial number has 5 to 20 letters and digits"));
        }
        if is_placeholder(text) {
            let why =
                "this is a placeholder that many machines have; register the machine by its uuid";
            return Err(Invalid::new(field, why));
        }
        Ok(Some(Self(text.to_owned())))
    }

    /// The serial number that a machine reports. Its vendor may have used any characters. `None` if there is none, or a
    /// placeholder.
    #[must_use]
    pub fn from_report(text: &str) -> Option<Self> {
        let printable: String = text.chars().filter(|c| !c.is_control()).collect();
        let serial = printable.trim();
        let is_serial = !serial.is_empty() && !is_placeholder(serial);
        is_serial.then(|| Self(text::cut(serial, Self::MAX_REPORTED_BYTES)))
    }

    /// A stored serial number; `None` for the empty text.
    #[must_use]
    pub fn from_stored(text: &str) -> Option<Self> {
        (!text.is_empty()).then(|| Self(text.to_owned()))
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

fn is_placeholder(text: &str) -> bool {
    const COUNTED: &str = "01234567890123456789";
    let letters: String = text.chars().filter(char::is_ascii_alphanumeric).collect();
    let letters = letters.to_ascii_lowercase();
    let mut bytes = letters.bytes();
    let first = bytes.next();
    let is_one_letter = bytes.all(|byte| Some(byte) == first);
    let is_count = letters.len() >= 4 && COUNTED.contains(&letters);
    is_one_letter || is_count || PLACEHOLDERS.contains(&letters.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reported(text: &str) -> Option<String> {
        SerialNumber::from_report(text).map(|serial| serial.as_str().to_owned())
    }

    #[test]
    fn a_placeholder_is_no_serial_number() {
        for text in [
            "",
            " ",
            "\0\0",
            "To be filled by O.E.M.",
            "To Be Filled By O.E.M",
            "INVALID",
            "Unknown",
            "XXXXXXXX",
            "00000000",
            "0",
            "123456789",
            "1234567890",
            "0123456789",
            "N/A",
            "None",
            "Not Specified",
            "Default string",
            "System Serial Number",
            "........",
            "-",
        ] {
            assert_eq!(reported(text), None, "{text:?}");
        }
        for text in ["INVALID", "XXXXXXXX", "00000000", "123456789", "Unknown"] {
            let refused = SerialNumber::parse("serialNumber", text).expect_err(text);
            assert_eq!(refused.field, "serialNumber");
        }
    }

    #[test]
    fn a_reported_serial_number_is_kept_as_the_vendor_wrote_it() {
        for text in [
            "VMware-56 4d 8f 1c 90 aa bb cc-dd ee ff 00 11 22 33 44",
            "CN-0X3D66-74261",
            "A1B2C3",
            "0000000A",
            "12345679",
            "Kühn/7",
            "S1",
        ] {
            assert_eq!(reported(text).as_deref(), Some(text));
            assert_eq!(SerialNumber::from_stored(text).map(|serial| serial.0), reported(text));
        }
        assert_eq!(reported(" A1\0B2 \n").as_deref(), Some("A1B2"));
        assert!(reported(&"7a".repeat(500)).is_some_and(|serial| serial.len() <= 128));
    }

    #[test]
    fn a_registration_takes_letters_and_digits() {
        let parse = |text| SerialNumber::parse("serialNumber", text);
        assert_eq!(parse(""), Ok(None));
        assert_eq!(parse("ABC12"), Ok(SerialNumber::from_stored("ABC12")));
        for bad in ["ABCD", "ABC 12", "CN-0X3D66", &"a1".repeat(11)] {
            assert_eq!(parse(bad).expect_err(bad).field, "serialNumber");
        }
    }
}
