use std::fs;
use std::path::PathBuf;

use chrono::DateTime;

use super::*;

const ROOMY_LIMITS: CacheLimits = CacheLimits { max_bytes: 1_000, min_free_bytes: 0 };

fn no_digests() -> HashSet<Digest> {
    HashSet::new()
}

fn time_at(seconds: i64) -> Time {
    DateTime::from_timestamp(1_780_000_000 + seconds, 0).expect("a time")
}

/// Stores a content, if there is space for it.
fn store_content(cache: &FileCache, content: &[u8]) -> Result<Digest, ReserveResult> {
    let digest = Digest::compute(content);
    let size = content.len() as u64;
    let (mut file, written) = cache.open_part(&digest).expect("a part");
    let result = cache.reserve(&digest, size, &no_digests()).expect("a disk");
    if result != ReserveResult::Reserved {
        cache.discard(&digest).expect("a disk");
        return Err(result);
    }
    file.append(content).expect("a disk");
    written.store(size, Ordering::Relaxed);
    cache.commit(&digest, size).expect("a disk");
    Ok(digest)
}

fn has_file(cache: &FileCache, digest: &Digest) -> bool {
    cache.presence(digest) != FilePresence::Absent
}

fn file_path(folder: &Path, digest: &Digest) -> PathBuf {
    let digits = digest.hex();
    folder.join("sha256").join(&digits[..2]).join(&digits)
}

#[test]
fn the_least_recently_used_file_is_evicted_and_open_files_stay() {
    let dir = tempfile::tempdir().expect("a folder");
    let cache = FileCache::open(dir.path(), ROOMY_LIMITS).expect("a cache");
    let all: Vec<Digest> =
        (0..4_u8).map(|n| store_content(&cache, &[n; 250]).expect("space")).collect();
    let reading = cache.open_file(&all[0], time_at(0)).expect("a disk").expect("it is cached");
    drop(cache.open_file(&all[1], time_at(1)).expect("a disk").expect("it is cached"));

    let new = store_content(&cache, &[9; 300]).expect("space");

    assert!(!has_file(&cache, &all[2]) && !has_file(&cache, &all[3]));
    assert!(has_file(&cache, &all[0]) && has_file(&cache, &all[1]) && has_file(&cache, &new));
    assert!(!file_path(dir.path(), &all[2]).exists());
    assert_eq!(store_content(&cache, &[8; 900]), Err(ReserveResult::Full), "one is open");
    assert!(has_file(&cache, &all[1]) && has_file(&cache, &new), "nothing was evicted in vain");
    drop(reading);
    assert!(store_content(&cache, &[8; 900]).is_ok());
    assert!(!has_file(&cache, &all[0]) && !has_file(&cache, &new));
}

#[test]
fn a_file_larger_than_the_cache_gets_no_space() {
    let dir = tempfile::tempdir().expect("a folder");
    let cache = FileCache::open(dir.path(), ROOMY_LIMITS).expect("a cache");
    let small = store_content(&cache, b"small").expect("space");
    assert_eq!(store_content(&cache, &[0; 1_001]), Err(ReserveResult::TooLarge));
    assert!(has_file(&cache, &small));
}

#[test]
fn the_disk_is_not_filled_up() {
    let dir = tempfile::tempdir().expect("a folder");
    let greedy = CacheLimits { max_bytes: 1_000, min_free_bytes: u64::MAX };
    let cache = FileCache::open(dir.path(), greedy).expect("a cache");
    assert_eq!(store_content(&cache, b"one"), Err(ReserveResult::Full));
    let parts = fs::read_dir(dir.path().join("partial")).expect("a folder");
    assert_eq!(parts.count(), 0);
}

#[test]
fn a_protected_file_is_not_evicted() {
    let dir = tempfile::tempdir().expect("a folder");
    let cache = FileCache::open(dir.path(), ROOMY_LIMITS).expect("a cache");
    let first = store_content(&cache, &[1; 600]).expect("space");
    let digest = Digest::compute(b"other");
    cache.open_part(&digest).expect("a part");
    let spared = HashSet::from([first]);
    let reserved = cache.reserve(&digest, 600, &spared).expect("a disk");
    assert_eq!(reserved, ReserveResult::Full);
    assert!(has_file(&cache, &first));
    let reserved = cache.reserve(&digest, 600, &no_digests()).expect("a disk");
    assert_eq!(reserved, ReserveResult::Reserved);
    assert!(!has_file(&cache, &first));
}

#[test]
fn an_idle_part_is_evicted_first_and_can_be_resumed_until_then() {
    let dir = tempfile::tempdir().expect("a folder");
    let digest = Digest::compute(b"begun");
    {
        let cache = FileCache::open(dir.path(), ROOMY_LIMITS).expect("a cache");
        let (mut file, _) = cache.open_part(&digest).expect("a part");
        assert!(cache.open_part(&digest).is_err(), "a part has one writer");
        file.append(&[7; 500]).expect("a disk");
        // The process is killed here.
    }
    let cache = FileCache::open(dir.path(), ROOMY_LIMITS).expect("a cache");
    let complete = store_content(&cache, &[1; 500]).expect("space");
    let (file, written) = cache.open_part(&digest).expect("a part");
    assert_eq!(written.load(Ordering::Relaxed), 500);
    assert_eq!(file.length(), 500);
    assert_eq!(store_content(&cache, &[2; 501]), Err(ReserveResult::Full), "it is being written");
    cache.release(&digest);
    store_content(&cache, &[2; 500]).expect("space");
    assert!(has_file(&cache, &complete));
    let part = dir.path().join("partial").join(digest.hex());
    assert!(!part.exists());
}

#[test]
fn a_file_of_an_earlier_process_is_read_only_after_verification() {
    let dir = tempfile::tempdir().expect("a folder");
    let (good, spoilt) = {
        let cache = FileCache::open(dir.path(), ROOMY_LIMITS).expect("a cache");
        let good = store_content(&cache, b"good").expect("space");
        (good, store_content(&cache, b"spoilt").expect("space"))
    };
    fs::write(file_path(dir.path(), &spoilt), b"SPOILT").expect("a disk");
    fs::write(dir.path().join("sha256/notes.txt"), b"mine").expect("a disk");

    let cache = FileCache::open(dir.path(), ROOMY_LIMITS).expect("a cache");
    assert_eq!(cache.presence(&good), FilePresence::Unverified);
    assert!(cache.open_file(&good, time_at(0)).expect("a disk").is_none());
    assert!(cache.verify(&good).expect("a disk"));
    assert!(cache.open_file(&good, time_at(0)).expect("a disk").is_some());
    assert!(!cache.verify(&spoilt).expect("a disk"));
    assert_eq!(cache.presence(&spoilt), FilePresence::Absent);
    assert!(!file_path(dir.path(), &spoilt).exists());
    assert!(dir.path().join("sha256/notes.txt").exists());
}

#[test]
fn a_removed_or_truncated_file_is_absent() {
    let dir = tempfile::tempdir().expect("a folder");
    let cache = FileCache::open(dir.path(), ROOMY_LIMITS).expect("a cache");
    let removed = store_content(&cache, b"removed").expect("space");
    let cut = store_content(&cache, b"cut short").expect("space");
    fs::remove_file(file_path(dir.path(), &removed)).expect("a disk");
    fs::write(file_path(dir.path(), &cut), b"cut").expect("a disk");
    for digest in [removed, cut] {
        assert!(cache.open_file(&digest, time_at(0)).expect("a disk").is_none());
        assert!(!has_file(&cache, &digest));
    }
}

#[test]
fn the_order_of_use_and_a_smaller_limit_apply_after_a_restart() {
    let dir = tempfile::tempdir().expect("a folder");
    let [first, second, third] = {
        let cache = FileCache::open(dir.path(), ROOMY_LIMITS).expect("a cache");
        let all = [1_u8, 2, 3].map(|n| store_content(&cache, &[n; 300]).expect("space"));
        for (seconds, digest) in [(1, all[1]), (2, all[0]), (3, all[2])] {
            drop(cache.open_file(&digest, time_at(seconds)).expect("a disk"));
        }
        all
    };
    let tighter = CacheLimits { max_bytes: 600, min_free_bytes: 0 };
    let cache = FileCache::open(dir.path(), tighter).expect("a cache");
    assert!(has_file(&cache, &first) && has_file(&cache, &third));
    assert!(!has_file(&cache, &second) && !file_path(dir.path(), &second).exists());
}

#[test]
fn a_folder_belongs_to_one_process() {
    let dir = tempfile::tempdir().expect("a folder");
    let cache = FileCache::open(dir.path(), ROOMY_LIMITS).expect("a cache");
    let error = FileCache::open(dir.path(), ROOMY_LIMITS).expect_err("it is locked");
    assert_eq!(error.kind(), io::ErrorKind::ResourceBusy);
    drop(cache);
    assert!(FileCache::open(dir.path(), ROOMY_LIMITS).is_ok());
}
