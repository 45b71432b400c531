use std::fs;
use std::io::Write as _;
use std::path::PathBuf;

use chrono::DateTime;

use super::*;

const ROOMY: Bounds = Bounds {
    most: 1_000,
    keep_free: 0,
};

fn none() -> HashSet<Digest> {
    HashSet::new()
}

fn at(seconds: i64) -> Time {
    DateTime::from_timestamp(1_780_000_000 + seconds, 0).expect("a time")
}

/// Lets a content come, if there is room for it.
fn put(cache: &Cache, content: &[u8]) -> Result<Digest, NoSpace> {
    let digest = Digest::of(content);
    let size = content.len() as u64;
    let (mut file, written) = cache.part(&digest).expect("a part");
    if let Err(no) = cache.reserve(&digest, size, &none()).expect("a disk") {
        cache.discard(&digest).expect("a disk");
        return Err(no);
    }
    file.write_all(content).expect("a disk");
    written.store(size, Ordering::Relaxed);
    cache.keep(&digest, size).expect("a disk");
    Ok(digest)
}

fn holds(cache: &Cache, digest: &Digest) -> bool {
    cache.has(digest) != There::No
}

fn path_of(folder: &Path, digest: &Digest) -> PathBuf {
    let digits = digest.hex();
    folder.join("sha256").join(&digits[..2]).join(&digits)
}

#[test]
fn what_was_used_longest_ago_makes_room_and_what_is_read_stays() {
    let place = tempfile::tempdir().expect("a folder");
    let cache = Cache::open(place.path(), ROOMY).expect("a cache");
    let all: Vec<Digest> = (0..4_u8)
        .map(|n| put(&cache, &[n; 250]).expect("room"))
        .collect();
    let reading = cache
        .read(&all[0], at(0))
        .expect("a disk")
        .expect("it is there");
    drop(
        cache
            .read(&all[1], at(1))
            .expect("a disk")
            .expect("it is there"),
    );

    let new = put(&cache, &[9; 300]).expect("room");

    assert!(!holds(&cache, &all[2]) && !holds(&cache, &all[3]));
    assert!(holds(&cache, &all[0]) && holds(&cache, &all[1]) && holds(&cache, &new));
    assert!(!path_of(place.path(), &all[2]).exists());
    assert_eq!(put(&cache, &[8; 900]), Err(NoSpace::Full), "one is read");
    assert!(
        holds(&cache, &all[1]) && holds(&cache, &new),
        "nobody went for nothing"
    );
    drop(reading);
    assert!(put(&cache, &[8; 900]).is_ok());
    assert!(!holds(&cache, &all[0]) && !holds(&cache, &new));
}

#[test]
fn what_is_larger_than_everything_gets_no_room() {
    let place = tempfile::tempdir().expect("a folder");
    let cache = Cache::open(place.path(), ROOMY).expect("a cache");
    let small = put(&cache, b"small").expect("room");
    assert_eq!(put(&cache, &[0; 1_001]), Err(NoSpace::TooLarge));
    assert!(holds(&cache, &small));
}

#[test]
fn the_disk_is_not_filled() {
    let place = tempfile::tempdir().expect("a folder");
    let greedy = Bounds {
        most: 1_000,
        keep_free: u64::MAX,
    };
    let cache = Cache::open(place.path(), greedy).expect("a cache");
    assert_eq!(put(&cache, b"one"), Err(NoSpace::Full));
    let parts = fs::read_dir(place.path().join("partial")).expect("a folder");
    assert_eq!(parts.count(), 0);
}

#[test]
fn what_is_spared_does_not_go() {
    let place = tempfile::tempdir().expect("a folder");
    let cache = Cache::open(place.path(), ROOMY).expect("a cache");
    let first = put(&cache, &[1; 600]).expect("room");
    let digest = Digest::of(b"other");
    cache.part(&digest).expect("a part");
    let spared = HashSet::from([first]);
    let reserved = cache.reserve(&digest, 600, &spared).expect("a disk");
    assert_eq!(reserved, Err(NoSpace::Full));
    assert!(holds(&cache, &first));
    let reserved = cache.reserve(&digest, 600, &none()).expect("a disk");
    assert_eq!(reserved, Ok(()));
    assert!(!holds(&cache, &first));
}

#[test]
fn a_part_that_nobody_fills_is_the_first_to_go_and_is_carried_on_until_then() {
    let place = tempfile::tempdir().expect("a folder");
    let digest = Digest::of(b"begun");
    {
        let cache = Cache::open(place.path(), ROOMY).expect("a cache");
        let (mut file, _) = cache.part(&digest).expect("a part");
        assert!(cache.part(&digest).is_err(), "one fills it at a time");
        file.write_all(&[7; 500]).expect("a disk");
        // Killed here.
    }
    let cache = Cache::open(place.path(), ROOMY).expect("a cache");
    let whole = put(&cache, &[1; 500]).expect("room");
    let (file, written) = cache.part(&digest).expect("a part");
    assert_eq!(written.load(Ordering::Relaxed), 500);
    assert_eq!(file.metadata().expect("a file").len(), 500);
    assert_eq!(put(&cache, &[2; 501]), Err(NoSpace::Full), "it is filled");
    cache.leave(&digest);
    put(&cache, &[2; 500]).expect("room");
    assert!(holds(&cache, &whole));
    let part = place.path().join("partial").join(digest.hex());
    assert!(!part.exists());
}

#[test]
fn what_another_process_left_is_read_only_after_it_was_looked_at() {
    let place = tempfile::tempdir().expect("a folder");
    let (good, spoilt) = {
        let cache = Cache::open(place.path(), ROOMY).expect("a cache");
        let good = put(&cache, b"good").expect("room");
        (good, put(&cache, b"spoilt").expect("room"))
    };
    fs::write(path_of(place.path(), &spoilt), b"SPOILT").expect("a disk");
    fs::write(place.path().join("sha256/notes.txt"), b"mine").expect("a disk");

    let cache = Cache::open(place.path(), ROOMY).expect("a cache");
    assert_eq!(cache.has(&good), There::Unverified);
    assert!(cache.read(&good, at(0)).expect("a disk").is_none());
    assert!(cache.verify(&good).expect("a disk"));
    assert!(cache.read(&good, at(0)).expect("a disk").is_some());
    assert!(!cache.verify(&spoilt).expect("a disk"));
    assert_eq!(cache.has(&spoilt), There::No);
    assert!(!path_of(place.path(), &spoilt).exists());
    assert!(place.path().join("sha256/notes.txt").exists());
}

#[test]
fn a_file_that_somebody_removed_or_cut_is_not_there() {
    let place = tempfile::tempdir().expect("a folder");
    let cache = Cache::open(place.path(), ROOMY).expect("a cache");
    let removed = put(&cache, b"removed").expect("room");
    let cut = put(&cache, b"cut short").expect("room");
    fs::remove_file(path_of(place.path(), &removed)).expect("a disk");
    fs::write(path_of(place.path(), &cut), b"cut").expect("a disk");
    for digest in [removed, cut] {
        assert!(cache.read(&digest, at(0)).expect("a disk").is_none());
        assert!(!holds(&cache, &digest));
    }
}

#[test]
fn the_order_of_use_outlives_the_process_and_a_smaller_bound_is_kept_at_once() {
    let place = tempfile::tempdir().expect("a folder");
    let [first, second, third] = {
        let cache = Cache::open(place.path(), ROOMY).expect("a cache");
        let all = [1_u8, 2, 3].map(|n| put(&cache, &[n; 300]).expect("room"));
        for (seconds, digest) in [(1, all[1]), (2, all[0]), (3, all[2])] {
            drop(cache.read(&digest, at(seconds)).expect("a disk"));
        }
        all
    };
    let tighter = Bounds {
        most: 600,
        keep_free: 0,
    };
    let cache = Cache::open(place.path(), tighter).expect("a cache");
    assert!(holds(&cache, &first) && holds(&cache, &third));
    assert!(!holds(&cache, &second) && !path_of(place.path(), &second).exists());
}

#[test]
fn a_folder_belongs_to_one_process() {
    let place = tempfile::tempdir().expect("a folder");
    let cache = Cache::open(place.path(), ROOMY).expect("a cache");
    let error = Cache::open(place.path(), ROOMY).expect_err("it is taken");
    assert_eq!(error.kind(), io::ErrorKind::ResourceBusy);
    drop(cache);
    assert!(Cache::open(place.path(), ROOMY).is_ok());
}
