//! Variables of the firmware that the boot loader sets and reads, as the [Boot Loader Interface] describes them.
//!
//! In efivarfs a variable is a file: four bytes of attributes, then the value. A text is UTF-16, little-endian, and
//! ends with a zero.
//!
//! [Boot Loader Interface]: https://systemd.io/BOOT_LOADER_INTERFACE/

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::PathBuf;

/// The vendor of all variables of the interface.
const VENDOR: &str = "4a67b082-0a4c-41cf-b6c7-440b29bb8c4f";

/// A longer variable is none of the interface.
const MOST_BYTES: u64 = 64 << 10;

/// The bytes of the attributes.
const ATTRIBUTES: usize = 4;

/// The variables.
#[derive(Clone, Debug)]
pub struct Efi {
    folder: PathBuf,
}

impl Efi {
    /// The variables in a folder, on a system `/sys/firmware/efi/efivars`.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self {
            folder: folder.into(),
        }
    }

    /// Whether there may be variables that cannot be seen: the folder is there and empty, as it is until it is mounted.
    pub fn is_hidden(&self) -> bool {
        fs::read_dir(&self.folder).is_ok_and(|mut files| files.next().is_none())
    }

    /// A variable that is a text; `None` if it is not set. Fails if it is broken or cannot be read.
    pub fn text(&self, name: &str) -> Result<Option<String>, String> {
        let Some(value) = self.value(name)? else {
            return Ok(None);
        };
        let (units, rest) = value.as_chunks::<2>();
        let units: Vec<u16> = units
            .iter()
            .map(|unit| u16::from_le_bytes(*unit))
            .take_while(|unit| *unit != 0)
            .collect();
        let text = String::from_utf16(&units).ok();
        match text.filter(|_| rest.is_empty()) {
            Some(text) => Ok((!text.is_empty()).then_some(text)),
            None => Err(broken(name, "it is no text")),
        }
    }

    /// A variable that is a number of 64 bits; `None` if it is not set. Fails if it is broken or cannot be read.
    pub fn number(&self, name: &str) -> Result<Option<u64>, String> {
        let Some(value) = self.value(name)? else {
            return Ok(None);
        };
        match <[u8; 8]>::try_from(value.as_slice()) {
            Ok(value) => Ok(Some(u64::from_le_bytes(value))),
            Err(_) => Err(broken(name, "it has not the eight bytes of a number")),
        }
    }

    fn value(&self, name: &str) -> Result<Option<Vec<u8>>, String> {
        let path = self.folder.join(format!("{name}-{VENDOR}"));
        let unreadable = |error: io::Error| broken(name, &error.to_string());
        let file = match File::open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file.map_err(unreadable)?,
        };
        let mut bytes = Vec::new();
        file.take(MOST_BYTES + 1)
            .read_to_end(&mut bytes)
            .map_err(unreadable)?;
        if bytes.len() as u64 > MOST_BYTES {
            return Err(broken(name, "it is too long"));
        }
        match bytes.get(ATTRIBUTES..) {
            Some(value) => Ok(Some(value.to_vec())),
            None => Err(broken(name, "it is too short")),
        }
    }
}

fn broken(name: &str, why: &str) -> String {
    format!("the firmware's variable {name} cannot be read: {why}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder with one variable of which these are all bytes.
    fn with(name: &str, bytes: &[u8]) -> (tempfile::TempDir, Efi) {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(format!("{name}-{VENDOR}")), bytes).unwrap();
        let efi = Efi::new(folder.path());
        (folder, efi)
    }

    #[test]
    fn texts_and_numbers_are_read_as_the_loader_writes_them() {
        let (_folder, efi) = with("LoaderInfo", b"\x06\0\0\0s\0d\0\xe9\0\0\0");
        assert_eq!(efi.text("LoaderInfo").unwrap().as_deref(), Some("sdé"));
        let (_folder, efi) = with("LoaderFeatures", b"\x06\0\0\0\x10\x01\0\0\0\0\0\0");
        assert_eq!(efi.number("LoaderFeatures").unwrap(), Some(0x110));
    }

    #[test]
    fn what_is_not_set_or_empty_is_nothing() {
        let (_folder, efi) = with("LoaderEntryDefault", b"\x07\0\0\0\0\0");
        assert_eq!(efi.text("LoaderEntryDefault").unwrap(), None);
        assert_eq!(efi.text("LoaderEntryOneShot").unwrap(), None);
        assert_eq!(efi.number("LoaderFeatures").unwrap(), None);
        let nowhere = Efi::new("/nowhere/at/all");
        assert_eq!(nowhere.text("LoaderInfo").unwrap(), None);
    }

    #[test]
    fn broken_variables_are_told_by_name() {
        let cases: [(&[u8], &str); 5] = [
            (b"", "it is too short"),
            (b"\x06\0\0", "it is too short"),
            (b"\x06\0\0\0s\0d", "it is no text"),
            // Half of a pair of surrogates.
            (b"\x06\0\0\0\x00\xd8\0\0", "it is no text"),
            (&vec![0; (64 << 10) + 1], "it is too long"),
        ];
        for (bytes, why) in cases {
            let (_folder, efi) = with("LoaderInfo", bytes);
            let wanted = format!("the firmware's variable LoaderInfo cannot be read: {why}");
            assert_eq!(efi.text("LoaderInfo").unwrap_err(), wanted);
        }
        let (_folder, efi) = with("LoaderFeatures", b"\x06\0\0\0\x10");
        let error = efi.number("LoaderFeatures").unwrap_err();
        assert!(error.ends_with("it has not the eight bytes of a number"));
    }
}
