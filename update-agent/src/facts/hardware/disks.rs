//! The disks of the machine.

use std::path::Path;

use super::system_files::{clean_text, list_names, read_bytes, read_number, read_text};

/// Maximum number of reported disks.
const MAX_DISKS: usize = 128;

/// The unit of sizes in sysfs, whatever the sectors of the disk are.
const SECTOR_BYTES: u64 = 512;

/// A disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Disk {
    /// Device name such as `sda`.
    pub name: String,
    pub model: String,
    pub vendor: String,
    pub serial: String,
    /// World-wide name.
    pub wwid: String,
    pub size_bytes: u64,
}

/// Reads the disks below a root, sorted by name. Left out are devices without hardware (loop, RAM,
/// device mapper, RAID), removable ones, those of size 0, hidden paths of a disk, and boot areas of
/// eMMC.
pub fn read_disks(root: &Path) -> Vec<Disk> {
    let folder = root.join("sys/block");
    let names = list_names(&folder).into_iter();
    names.filter_map(|name| read_disk(&folder, &name)).take(MAX_DISKS).collect()
}

fn read_disk(folder: &Path, name: &str) -> Option<Disk> {
    let block = folder.join(name);
    let device = block.join("device");
    let is_set = |file: &str| read_text(&block.join(file)) == "1";
    let is_boot_area = name.starts_with("mmcblk") && name.contains("boot");
    if is_boot_area || !device.is_dir() || is_set("removable") || is_set("hidden") {
        return None;
    }
    let sectors: u64 = read_number(&block.join("size"))?;
    let first = |files: [&Path; 2]| {
        let texts = files.map(read_text);
        texts.into_iter().find(|text| !text.is_empty()).unwrap_or_default()
    };
    (sectors > 0).then(|| Disk {
        // eMMC has a name in place of a model.
        model: first([&device.join("model"), &device.join("name")]),
        vendor: read_text(&device.join("vendor")),
        serial: Some(first([&device.join("serial"), &block.join("serial")]))
            .filter(|serial| !serial.is_empty())
            .unwrap_or_else(|| scsi_serial(&read_bytes(&device.join("vpd_pg80")))),
        wwid: first([&block.join("wwid"), &device.join("wwid")]),
        size_bytes: sectors.saturating_mul(SECTOR_BYTES),
        name: clean_text(name.as_bytes()),
    })
}

/// The serial number in the page 0x80 of a SCSI device: four bytes of header, of which the last two
/// are the length, then the text.
fn scsi_serial(page: &[u8]) -> String {
    let Some((&[_, _, high, low], text)) = page.split_first_chunk::<4>() else {
        return String::new();
    };
    let length = usize::from(u16::from_be_bytes([high, low]));
    clean_text(text.get(..length).unwrap_or(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_serial_number_of_a_scsi_disk_is_in_its_vital_product_data() {
        assert_eq!(scsi_serial(b"\x00\x80\x00\x08  S3Z9NBrest"), "S3Z9NB");
        assert_eq!(scsi_serial(b"\x00\x80\xff\xffS3Z9"), "S3Z9", "the length is wrong");
        for page in [b"".as_slice(), b"\x00\x80\x00", b"\x00\x80\x00\x00"] {
            assert_eq!(scsi_serial(page), "");
        }
    }
}
