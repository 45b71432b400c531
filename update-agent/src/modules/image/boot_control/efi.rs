//! EFI variables that the boot loader sets and reads, as the [Boot Loader Interface] describes
//! them.
//!
//! In efivarfs each variable is a file: four bytes of attributes, then the value. A text is UTF-16,
//! little-endian, with a terminating zero.
//!
//! [Boot Loader Interface]: https://systemd.io/BOOT_LOADER_INTERFACE/

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::PathBuf;

/// Vendor GUID of all variables of the interface.
const LOADER_VENDOR_GUID: &str = "4a67b082-0a4c-41cf-b6c7-440b29bb8c4f";

/// Size limit of a variable's file, in bytes. The interface has no longer variables.
const MAX_VARIABLE_BYTES: u64 = 64 << 10;

/// Size of the attributes.
const ATTRIBUTE_BYTES: usize = 4;

/// The EFI variables of a system.
#[derive(Clone, Debug)]
pub struct EfiVariables {
    folder: PathBuf,
}

impl EfiVariables {
    /// The variables in a folder; on a real system `/sys/firmware/efi/efivars`.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into() }
    }

    /// Whether efivarfs may not be mounted yet: its folder exists and is empty.
    pub fn may_be_unmounted(&self) -> bool {
        fs::read_dir(&self.folder).is_ok_and(|mut files| files.next().is_none())
    }

    /// Reads a text variable; `None` if it is not set or empty. Fails if it is invalid or cannot be
    /// read.
    pub fn read_text(&self, name: &str) -> Result<Option<String>, String> {
        let Some(value) = self.read_value(name)? else {
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
            None => Err(unreadable_variable(name, "it is not a text")),
        }
    }

    /// Reads a 64-bit number variable; `None` if it is not set. Fails if it is invalid or cannot be
    /// read.
    pub fn read_number(&self, name: &str) -> Result<Option<u64>, String> {
        let Some(value) = self.read_value(name)? else {
            return Ok(None);
        };
        match <[u8; 8]>::try_from(value.as_slice()) {
            Ok(value) => Ok(Some(u64::from_le_bytes(value))),
            Err(_) => Err(unreadable_variable(name, "it is not an eight-byte number")),
        }
    }

    fn read_value(&self, name: &str) -> Result<Option<Vec<u8>>, String> {
        let path = self.folder.join(format!("{name}-{LOADER_VENDOR_GUID}"));
        let unreadable = |error: io::Error| unreadable_variable(name, &error.to_string());
        let file = match File::open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file.map_err(unreadable)?,
        };
        let mut bytes = Vec::new();
        file.take(MAX_VARIABLE_BYTES + 1).read_to_end(&mut bytes).map_err(unreadable)?;
        if bytes.len() as u64 > MAX_VARIABLE_BYTES {
            return Err(unreadable_variable(name, "it is too long"));
        }
        match bytes.get(ATTRIBUTE_BYTES..) {
            Some(value) => Ok(Some(value.to_vec())),
            None => Err(unreadable_variable(name, "it is too short")),
        }
    }
}

fn unreadable_variable(name: &str, why: &str) -> String {
    format!("the firmware's variable {name} cannot be read: {why}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder with one variable whose file has these bytes.
    fn with_variable(name: &str, bytes: &[u8]) -> (tempfile::TempDir, EfiVariables) {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(format!("{name}-{LOADER_VENDOR_GUID}")), bytes).unwrap();
        let efi = EfiVariables::new(folder.path());
        (folder, efi)
    }

    #[test]
    fn texts_and_numbers_are_read_as_the_loader_writes_them() {
        let (_folder, efi) = with_variable("LoaderInfo", b"\x06\0\0\0s\0d\0\xe9\0\0\0");
        assert_eq!(efi.read_text("LoaderInfo").unwrap().as_deref(), Some("sdé"));
        let (_folder, efi) = with_variable("LoaderFeatures", b"\x06\0\0\0\x10\x01\0\0\0\0\0\0");
        assert_eq!(efi.read_number("LoaderFeatures").unwrap(), Some(0x110));
    }

    #[test]
    fn unset_and_empty_variables_are_none() {
        let (_folder, efi) = with_variable("LoaderEntryDefault", b"\x07\0\0\0\0\0");
        assert_eq!(efi.read_text("LoaderEntryDefault").unwrap(), None);
        assert_eq!(efi.read_text("LoaderEntryOneShot").unwrap(), None);
        assert_eq!(efi.read_number("LoaderFeatures").unwrap(), None);
        let nowhere = EfiVariables::new("/nowhere/at/all");
        assert_eq!(nowhere.read_text("LoaderInfo").unwrap(), None);
    }

    #[test]
    fn an_unreadable_variable_is_reported_with_its_name() {
        let cases: [(&[u8], &str); 5] = [
            (b"", "it is too short"),
            (b"\x06\0\0", "it is too short"),
            (b"\x06\0\0\0s\0d", "it is not a text"),
            // Half of a pair of surrogates.
            (b"\x06\0\0\0\x00\xd8\0\0", "it is not a text"),
            (&vec![0; (64 << 10) + 1], "it is too long"),
        ];
        for (bytes, why) in cases {
            let (_folder, efi) = with_variable("LoaderInfo", bytes);
            let expected = format!("the firmware's variable LoaderInfo cannot be read: {why}");
            assert_eq!(efi.read_text("LoaderInfo").unwrap_err(), expected);
        }
        let (_folder, efi) = with_variable("LoaderFeatures", b"\x06\0\0\0\x10");
        let error = efi.read_number("LoaderFeatures").unwrap_err();
        assert!(error.ends_with("it is not an eight-byte number"));
    }
}
