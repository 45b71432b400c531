use std::cell::Cell;

use tempfile::TempDir;

use super::*;

/// Creates a sysfs with partitions, each with the text of its `uevent`.
fn create_sysfs(partitions: &[(&str, &str)]) -> TempDir {
    let root = tempfile::tempdir().expect("a folder");
    let class = root.path().join("sys/class/block");
    fs::create_dir_all(&class).expect("a folder");
    for (name, uevent) in partitions {
        fs::create_dir(class.join(name)).expect("a folder");
        fs::write(class.join(name).join("uevent"), uevent).expect("a file");
    }
    root
}

fn find_any(root: &TempDir, label: &str, disk: Option<&Path>) -> Result<Option<PathBuf>, String> {
    SlotDevice::find(label, &root.path().join("sys"), disk).map_err(|failure| {
        assert_eq!(failure.kind, FailureKind::Storage);
        failure.reason
    })
}

/// Finds an existing partition on any disk.
fn find(root: &TempDir, label: &str) -> Result<PathBuf, String> {
    find_any(root, label, None).map(|path| path.expect("a partition"))
}

/// A file that replaces a device. Its bytes are 0xee.
fn slot_file(folder: &TempDir, bytes: usize) -> PathBuf {
    let path = folder.path().join("slot");
    fs::write(&path, vec![0xee; bytes]).expect("a file");
    path
}

fn raw_image(bytes: &[u8]) -> RawImage {
    RawImage { sha256: Sha256::hash(bytes), bytes: bytes.len() as u64 }
}

fn compare(path: &Path, raw: &RawImage) -> Result<(), Failure> {
    read_back(path, raw, &CancellationToken::new())
}

#[test]
fn a_slot_is_found_by_the_name_of_its_partition() {
    let root = create_sysfs(&[
        ("sda", "MAJOR=8\nDEVNAME=sda\nDEVTYPE=disk\n"),
        ("sda2", "DEVNAME=sda2\nDEVTYPE=partition\nPARTN=2\nPARTNAME=root-a\n"),
        ("sda3", "DEVNAME=sda3\nPARTNAME=root-b"),
        ("sda4", "DEVNAME=sda4\nPARTNAME=root-b-old\nOTHERPARTNAME=root-b\n"),
        ("cciss!c0d0p1", "DEVNAME=cciss/c0d0p1\nPARTNAME=esp\n"),
    ]);
    assert_eq!(find(&root, "root-a").unwrap(), root.path().join("dev/sda2"));
    assert_eq!(find(&root, "root-b").unwrap(), root.path().join("dev/sda3"));
    let esp = root.path().join("dev/cciss/c0d0p1");
    assert_eq!(find(&root, "esp").unwrap(), esp);
}

#[test]
fn an_ambiguous_partition_name_is_an_error_and_a_missing_one_is_not() {
    let root = create_sysfs(&[
        ("sda2", "DEVNAME=sda2\nPARTNAME=root-a\n"),
        ("sdb2", "DEVNAME=sdb2\nPARTNAME=root-a\n"),
    ]);
    let why = find(&root, "root-a").unwrap_err();
    let both = why.contains("dev/sda2") && why.contains("dev/sdb2");
    assert!(both, "{why}");
    assert_eq!(find_any(&root, "root-b", None), Ok(None));
    let nowhere = tempfile::tempdir().unwrap();
    assert_eq!(find_any(&nowhere, "root-b", None), Ok(None));
    let file = tempfile::tempdir().unwrap();
    fs::create_dir_all(file.path().join("sys/class")).unwrap();
    fs::write(file.path().join("sys/class/block"), "").unwrap();
    let why = find_any(&file, "root-b", None).unwrap_err();
    assert!(why.contains("class/block"), "{why}");
}

/// In sysfs `class/block` has links; the folder of a partition lies in the folder of its disk.
#[test]
fn a_slot_is_searched_on_one_disk() {
    let root = tempfile::tempdir().unwrap();
    let sys = root.path().join("sys");
    fs::create_dir_all(sys.join("class/block")).unwrap();
    for (disk, name, label) in
        [("sda", "sda2", "root-a"), ("sdb", "sdb2", "root-a"), ("sdb", "sdb3", "root-b")]
    {
        let folder = sys.join("devices").join(disk).join(name);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("uevent"), format!("DEVNAME={name}\nPARTN=2\nPARTNAME={label}\n"))
            .unwrap();
        std::os::unix::fs::symlink(&folder, sys.join("class/block").join(name)).unwrap();
    }
    let disk = |name: &str| disk_folder(&sys.join("class/block").join(name));
    let (sda, sdb) = (disk("sda2").unwrap(), disk("sdb3").unwrap());
    assert_ne!(sda, sdb);
    assert!(sda.ends_with("devices/sda"), "{}", sda.display());
    let on = |label: &str, disk: &Path| find_any(&root, label, Some(disk)).unwrap();
    assert_eq!(on("root-a", &sda), Some(root.path().join("dev/sda2")));
    assert_eq!(on("root-a", &sdb), Some(root.path().join("dev/sdb2")));
    assert_eq!(on("root-b", &sda), None, "a slot of another disk is not one of this system");
    find_any(&root, "root-a", None).unwrap_err();
}

#[test]
fn an_unplugged_partition_is_skipped() {
    let root = create_sysfs(&[("sda2", "DEVNAME=sda2\nPARTNAME=root-a\n")]);
    fs::create_dir(root.path().join("sys/class/block/sdb2")).unwrap();
    assert_eq!(find(&root, "root-a").unwrap(), root.path().join("dev/sda2"));
}

#[test]
fn a_device_name_outside_dev_is_refused() {
    let names = ["", "DEVNAME=\n", "DEVNAME=../sda\n", "DEVNAME=/sda\n"];
    for name in names {
        let root = create_sysfs(&[("sda2", &format!("PARTNAME=root-a\n{name}"))]);
        let why = find(&root, "root-a").unwrap_err();
        assert!(why.ends_with("has no valid device name"), "{why}");
    }
}

#[test]
fn a_path_that_is_not_a_device_is_not_opened() {
    let folder = tempfile::tempdir().unwrap();
    let nothing = folder.path().join("nothing");
    for path in [folder.path(), Path::new("/dev/null"), &nothing] {
        let failure = SlotDevice::open(path).unwrap_err();
        assert_eq!(failure.kind, FailureKind::Storage);
        let path = path.display().to_string();
        assert!(failure.reason.contains(&path), "{failure}");
    }
}

#[test]
fn the_last_block_is_padded_with_zeros_and_later_bytes_are_unchanged() {
    let folder = tempfile::tempdir().unwrap();
    let path = slot_file(&folder, 4096);
    let device = SlotDevice::open(&path).unwrap();
    assert_eq!(device.bytes(), 4096);
    let mut chunk = AlignedChunk::new();
    chunk.bytes().fill(7);
    device.write(0, &mut chunk, 700).unwrap();
    device.flush().unwrap();
    let content = fs::read(&path).unwrap();
    assert_eq!(content.len(), 4096);
    assert!(content[..700].iter().all(|byte| *byte == 7));
    assert!(content[700..1024].iter().all(|byte| *byte == 0));
    assert!(content[1024..].iter().all(|byte| *byte == 0xee));
}

#[test]
fn oversized_data_is_not_written_and_the_device_length_is_unchanged() {
    let folder = tempfile::tempdir().unwrap();
    // Not a multiple of the block size: the padding must not make the file longer.
    let path = slot_file(&folder, 1000);
    let device = SlotDevice::open(&path).unwrap();
    let mut chunk = AlignedChunk::new();
    let failure = device.write(0, &mut chunk, 1001).unwrap_err();
    assert_eq!(failure.kind, FailureKind::Storage);
    let why = failure.reason;
    assert!(why.starts_with("the image does not fit"), "{why}");
    assert!(fs::read(&path).unwrap().iter().all(|byte| *byte == 0xee));
    device.write(0, &mut chunk, 900).unwrap();
    assert_eq!(fs::read(&path).unwrap(), vec![0; 1000]);
    assert!(device.write(u64::MAX, &mut chunk, 1).is_err());
}

#[test]
fn written_bytes_are_read_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = slot_file(&folder, 2 * CHUNK_BYTES + 4096);
    let content = fs::read(&path).unwrap();
    for bytes in [0, 1, 511, 512, CHUNK_BYTES, CHUNK_BYTES + 1, content.len()] {
        compare(&path, &raw_image(&content[..bytes])).unwrap();
    }
}

#[test]
fn changed_or_missing_bytes_are_detected() {
    let folder = tempfile::tempdir().unwrap();
    let path = slot_file(&folder, CHUNK_BYTES + 1000);
    let written = raw_image(&fs::read(&path).unwrap());
    let mut content = fs::read(&path).unwrap();
    content[CHUNK_BYTES + 999] ^= 1;
    fs::write(&path, &content).unwrap();
    let failure = compare(&path, &written).unwrap_err();
    assert_eq!(failure.kind, FailureKind::Verify);
    let why = failure.reason;
    assert!(why.contains("does not hold what was written"), "{why}");

    fs::write(&path, &content[..CHUNK_BYTES]).unwrap();
    let failure = compare(&path, &written).unwrap_err();
    assert_eq!(failure.kind, FailureKind::Verify);
    let expected = format!("ends after {CHUNK_BYTES} bytes");
    assert!(failure.reason.contains(&expected), "{failure}");

    fs::remove_file(&path).unwrap();
    let failure = compare(&path, &written).unwrap_err();
    assert_eq!(failure.kind, FailureKind::Storage);
}

#[test]
fn reading_back_stops_on_request() {
    let folder = tempfile::tempdir().unwrap();
    let path = slot_file(&folder, 512);
    let stop = CancellationToken::new();
    stop.cancel();
    let failure = read_back(&path, &raw_image(&[0xee; 512]), &stop).unwrap_err();
    assert_eq!(failure.kind, FailureKind::Interrupted);
}

#[test]
fn chunk_memory_is_always_aligned() {
    let mut chunks: Vec<_> = (0..8).map(|_| AlignedChunk::new()).collect();
    for chunk in &mut chunks {
        assert_eq!(chunk.bytes().len(), CHUNK_BYTES);
        assert_eq!(chunk.bytes().as_ptr().align_offset(ALIGNMENT), 0);
    }
}

#[test]
fn opening_a_busy_device_is_retried_for_ten_seconds() {
    let pauses = Cell::new(0);
    let pause = || pauses.set(pauses.get() + 1);
    let free_after = |busy: u32| {
        move |pauses: &Cell<u32>| {
            if pauses.get() < busy { Err(Errno::BUSY) } else { Ok(()) }
        }
    };
    let soon = free_after(3);
    assert_eq!(retry_while_busy(|| soon(&pauses), pause), Ok(()));
    assert_eq!(pauses.get(), 3);

    pauses.set(0);
    let never = free_after(u32::MAX);
    assert_eq!(retry_while_busy(|| never(&pauses), pause), Err(Errno::BUSY));
    assert_eq!(OPEN_RETRY_INTERVAL * pauses.get(), Duration::from_secs(10));

    pauses.set(0);
    let refused = || Err::<(), _>(Errno::ACCESS);
    assert_eq!(retry_while_busy(refused, pause), Err(Errno::ACCESS));
    assert_eq!(pauses.get(), 0);
}

#[test]
fn the_holders_of_a_device_are_reported() {
    let mounts = "22 1 8:2 / / rw,relatime - ext4 /dev/sda2 rw\n\
                  23 22 8:3 / /mnt/old rw - ext4 /dev/sda3 rw\n\
                  24 22 8:3 /sub /srv ro - ext4 /dev/sda3 rw\n";
    assert_eq!(
        format_holders("8:3", mounts, &["dm-0".to_owned()]),
        "it is mounted on /mnt/old, it is mounted on /srv, it is a part of dm-0"
    );
    let unknown = format_holders("8:33", mounts, &[]);
    assert!(unknown.contains("udev"), "{unknown}");
}
