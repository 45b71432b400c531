use std::cell::Cell;

use tempfile::TempDir;

use super::*;

/// A folder with a sysfs of partitions, each with the text of its `uevent`.
fn partitions(of: &[(&str, &str)]) -> TempDir {
    let root = tempfile::tempdir().expect("a folder");
    let class = root.path().join("sys/class/block");
    fs::create_dir_all(&class).expect("a folder");
    for (name, uevent) in of {
        fs::create_dir(class.join(name)).expect("a folder");
        fs::write(class.join(name).join("uevent"), uevent).expect("a file");
    }
    root
}

fn find(root: &TempDir, label: &str) -> Result<PathBuf, String> {
    Device::find(label, &root.path().join("sys")).map_err(|failure| {
        assert_eq!(failure.kind, FailureKind::Storage);
        failure.reason
    })
}

/// A file to stand for a device. Its bytes are 0xee.
fn slot(folder: &TempDir, bytes: usize) -> PathBuf {
    let path = folder.path().join("slot");
    fs::write(&path, vec![0xee; bytes]).expect("a file");
    path
}

/// What `bytes` leave behind where they are written from the beginning.
fn raw(bytes: &[u8]) -> Raw {
    Raw {
        sha256: Sha256::of(bytes),
        bytes: bytes.len() as u64,
    }
}

fn compare(path: &Path, raw: &Raw) -> Result<(), Failure> {
    read_back(path, raw, &CancellationToken::new())
}

#[test]
fn a_slot_is_found_by_the_name_of_its_partition() {
    let root = partitions(&[
        ("sda", "MAJOR=8\nDEVNAME=sda\nDEVTYPE=disk\n"),
        (
            "sda2",
            "DEVNAME=sda2\nDEVTYPE=partition\nPARTN=2\nPARTNAME=root-a\n",
        ),
        ("sda3", "DEVNAME=sda3\nPARTNAME=root-b"),
        (
            "sda4",
            "DEVNAME=sda4\nPARTNAME=root-b-old\nOTHERPARTNAME=root-b\n",
        ),
        ("cciss!c0d0p1", "DEVNAME=cciss/c0d0p1\nPARTNAME=esp\n"),
    ]);
    assert_eq!(find(&root, "root-a").unwrap(), root.path().join("dev/sda2"));
    assert_eq!(find(&root, "root-b").unwrap(), root.path().join("dev/sda3"));
    let esp = root.path().join("dev/cciss/c0d0p1");
    assert_eq!(find(&root, "esp").unwrap(), esp);
}

#[test]
fn a_name_that_no_partition_or_more_than_one_has_is_no_slot() {
    let root = partitions(&[
        ("sda2", "DEVNAME=sda2\nPARTNAME=root-a\n"),
        ("sdb2", "DEVNAME=sdb2\nPARTNAME=root-a\n"),
    ]);
    let why = find(&root, "root-a").unwrap_err();
    let both = why.contains("dev/sda2") && why.contains("dev/sdb2");
    assert!(both, "{why}");
    let why = find(&root, "root-b").unwrap_err();
    assert!(why.starts_with("no partition has the name root-b"), "{why}");
    let nowhere = tempfile::tempdir().unwrap();
    let why = find(&nowhere, "root-b").unwrap_err();
    assert!(why.contains("class/block"), "{why}");
}

#[test]
fn a_partition_that_was_unplugged_meanwhile_is_passed_over() {
    let root = partitions(&[("sda2", "DEVNAME=sda2\nPARTNAME=root-a\n")]);
    fs::create_dir(root.path().join("sys/class/block/sdb2")).unwrap();
    assert_eq!(find(&root, "root-a").unwrap(), root.path().join("dev/sda2"));
}

#[test]
fn a_device_with_a_name_that_leads_elsewhere_is_refused() {
    let names = ["", "DEVNAME=\n", "DEVNAME=../sda\n", "DEVNAME=/sda\n"];
    for name in names {
        let root = partitions(&[("sda2", &format!("PARTNAME=root-a\n{name}"))]);
        let why = find(&root, "root-a").unwrap_err();
        assert!(why.ends_with("has no name of a device"), "{why}");
    }
}

#[test]
fn what_is_no_device_is_not_opened() {
    let folder = tempfile::tempdir().unwrap();
    let nothing = folder.path().join("nothing");
    for path in [folder.path(), Path::new("/dev/null"), &nothing] {
        let failure = Device::open(path).unwrap_err();
        assert_eq!(failure.kind, FailureKind::Storage);
        let path = path.display().to_string();
        assert!(failure.reason.contains(&path), "{failure}");
    }
}

#[test]
fn the_last_block_is_filled_up_with_zeros_and_nothing_behind_it_is_touched() {
    let folder = tempfile::tempdir().unwrap();
    let path = slot(&folder, 4096);
    let device = Device::open(&path).unwrap();
    assert_eq!(device.bytes(), 4096);
    let mut chunk = Chunk::new();
    chunk.bytes().fill(7);
    device.write(0, &mut chunk, 700).unwrap();
    device.flush().unwrap();
    let found = fs::read(&path).unwrap();
    assert_eq!(found.len(), 4096);
    assert!(found[..700].iter().all(|byte| *byte == 7));
    assert!(found[700..1024].iter().all(|byte| *byte == 0));
    assert!(found[1024..].iter().all(|byte| *byte == 0xee));
}

#[test]
fn more_than_a_device_holds_is_not_written_and_its_length_stays() {
    let folder = tempfile::tempdir().unwrap();
    // No whole number of blocks: the padding must not make it longer.
    let path = slot(&folder, 1000);
    let device = Device::open(&path).unwrap();
    let mut chunk = Chunk::new();
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
fn what_was_written_is_read_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = slot(&folder, 2 * CHUNK + 4096);
    let content = fs::read(&path).unwrap();
    for bytes in [0, 1, 511, 512, CHUNK, CHUNK + 1, content.len()] {
        compare(&path, &raw(&content[..bytes])).unwrap();
    }
}

#[test]
fn another_byte_or_too_few_of_them_are_noticed() {
    let folder = tempfile::tempdir().unwrap();
    let path = slot(&folder, CHUNK + 1000);
    let written = raw(&fs::read(&path).unwrap());
    let mut content = fs::read(&path).unwrap();
    content[CHUNK + 999] ^= 1;
    fs::write(&path, &content).unwrap();
    let failure = compare(&path, &written).unwrap_err();
    assert_eq!(failure.kind, FailureKind::Verify);
    let why = failure.reason;
    assert!(why.contains("does not hold what was written"), "{why}");

    fs::write(&path, &content[..CHUNK]).unwrap();
    let failure = compare(&path, &written).unwrap_err();
    assert_eq!(failure.kind, FailureKind::Verify);
    let expected = format!("ends after {CHUNK} bytes");
    assert!(failure.reason.contains(&expected), "{failure}");

    fs::remove_file(&path).unwrap();
    let failure = compare(&path, &written).unwrap_err();
    assert_eq!(failure.kind, FailureKind::Storage);
}

#[test]
fn reading_back_ends_when_it_is_told_to() {
    let folder = tempfile::tempdir().unwrap();
    let path = slot(&folder, 512);
    let stop = CancellationToken::new();
    stop.cancel();
    let failure = read_back(&path, &raw(&[0xee; 512]), &stop).unwrap_err();
    assert_eq!(failure.kind, FailureKind::Interrupted);
}

#[test]
fn memory_is_aligned_wherever_it_comes_to_lie() {
    let mut chunks: Vec<_> = (0..8).map(|_| Chunk::new()).collect();
    for chunk in &mut chunks {
        assert_eq!(chunk.bytes().len(), CHUNK);
        assert_eq!(chunk.bytes().as_ptr().align_offset(ALIGN), 0);
    }
}

#[test]
fn a_busy_device_is_asked_for_again_for_ten_seconds() {
    let pauses = Cell::new(0);
    let pause = || pauses.set(pauses.get() + 1);
    let free_after = |busy: u32| {
        move |pauses: &Cell<u32>| {
            if pauses.get() < busy {
                Err(Errno::BUSY)
            } else {
                Ok(())
            }
        }
    };
    let soon = free_after(3);
    assert_eq!(patiently(|| soon(&pauses), pause), Ok(()));
    assert_eq!(pauses.get(), 3);

    pauses.set(0);
    let never = free_after(u32::MAX);
    assert_eq!(patiently(|| never(&pauses), pause), Err(Errno::BUSY));
    assert_eq!(PAUSE * pauses.get(), Duration::from_secs(10));

    pauses.set(0);
    let refused = || Err::<(), _>(Errno::ACCESS);
    assert_eq!(patiently(refused, pause), Err(Errno::ACCESS));
    assert_eq!(pauses.get(), 0);
}

#[test]
fn who_holds_a_device_is_told() {
    let mounts = "22 1 8:2 / / rw,relatime - ext4 /dev/sda2 rw\n\
                  23 22 8:3 / /mnt/old rw - ext4 /dev/sda3 rw\n\
                  24 22 8:3 /sub /srv ro - ext4 /dev/sda3 rw\n";
    assert_eq!(
        in_words("8:3", mounts, &["dm-0".to_owned()]),
        "it is mounted on /mnt/old, it is mounted on /srv, it is a part of dm-0"
    );
    let nobody = in_words("8:33", mounts, &[]);
    assert!(nobody.contains("udev"), "{nobody}");
}
