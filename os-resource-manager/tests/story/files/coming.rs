//! How a file comes: once, whole, and from where it broke off.

use std::fs;

use evenkeel_registry::Limits;
use evenkeel_registry::testing::{Fault, Way};
use evenkeel_store::{Store, StoreOptions};
use futures_util::future::join_all;

use super::*;

/// What the registry is asked for a blob.
const BLOBS: &str = "/v2/os-profile/edge/files/blobs/";

/// Waits until something of a content lies in the cache.
async fn something_came(site: &Site, content: &[u8]) -> u64 {
    let part = part_of(site, content);
    let came = async {
        loop {
            match fs::metadata(&part) {
                Ok(file) if file.len() > 0 => return file.len(),
                _ => tokio::task::yield_now().await,
            }
        }
    };
    let came = tokio::time::timeout(Duration::from_mins(1), came).await;
    came.expect("something comes")
}

#[tokio::test]
async fn a_file_comes_once_however_many_ask_for_it() {
    let site = Site::new().await;
    let edge = content(21);
    site.offer(site.house.tenant, "1.0", &edge).await;
    let files = site.open();
    let path = by_digest(&edge);
    let answers = join_all((0..20).map(|_| site.ask(&files, &path, &[]))).await;
    for got in answers {
        assert!(
            got.status == StatusCode::OK && got.body == edge,
            "{}",
            got.text()
        );
    }
    assert_eq!(site.house.small.count("GET /v2/"), 1);
}

#[tokio::test]
async fn what_is_not_what_its_digest_says_is_never_served() {
    let site = Site::new().await;
    let edge = content(22);
    site.offer(site.house.tenant, "1.0", &edge).await;
    let files = site.open();
    let path = by_digest(&edge);
    site.house.small.fail(Fault::always(BLOBS, Way::Corrupt));
    for _ in 0..3 {
        let got = site.ask(&files, &path, &[]).await;
        assert_eq!(got.status, StatusCode::BAD_GATEWAY);
        assert!(
            got.text().contains("not what the profile says"),
            "{}",
            got.text()
        );
    }
    assert_eq!(site.house.small.count("GET /v2/"), 1, "it is left alone");
    assert!(site.lies_in("sha256").is_empty() && site.lies_in("partial").is_empty());

    site.house.small.mend();
    site.house.clock.advance(TimeDelta::minutes(10));
    let got = site.ask(&files, &path, &[]).await;
    assert!(
        got.status == StatusCode::OK && got.body == edge,
        "{}",
        got.text()
    );
}

#[tokio::test]
async fn what_is_longer_or_shorter_than_it_should_be_is_never_served() {
    let site = Site::new().await;
    let edge = content(23);
    let blob = site.house.small.put_blob(FILES, edge.clone());
    let (tenant, digest) = (site.house.tenant, Digest::of(&edge));
    for (version, size) in [("1.0", LENGTH as u64 - 1), ("2.0", LENGTH as u64 + 1)] {
        site.name(tenant, version, &digest, (&place_of(&blob), Some(size)))
            .await;
    }
    let files = site.open();
    let got = site.ask(&files, &by_digest(&edge), &[]).await;
    assert_eq!(got.status, StatusCode::BAD_GATEWAY, "{}", got.text());
    assert!(site.lies_in("sha256").is_empty());
}

#[tokio::test]
async fn a_file_that_one_place_does_not_give_comes_from_another() {
    let site = Site::new().await;
    let edge = content(24);
    let digest = Digest::of(&edge);
    let web = format!("web:{}", site.house.small.file_url("/edge.raw"));
    site.house.small.put_file("/edge.raw", edge.clone());
    let (tenant, length) = (site.house.tenant, Some(LENGTH as u64));
    let nowhere = format!("blob:{FILES}@{}", Digest::of(b"nowhere"));
    site.name(tenant, "1.0", &digest, (&nowhere, length)).await;
    site.name(tenant, "2.0", &digest, ("nonsense", length))
        .await;
    site.name(tenant, "3.0", &digest, (&web, length)).await;
    let got = site.ask(&site.open(), &by_digest(&edge), &[]).await;
    assert!(
        got.status == StatusCode::OK && got.body == edge,
        "{}",
        got.text()
    );
}

#[tokio::test]
async fn a_registry_that_stops_in_the_middle_is_asked_for_the_rest_later() {
    let site = Site::new().await;
    let edge = content(25);
    let place = format!("web:{}", site.house.small.file_url("/edge.raw"));
    site.house.small.put_file("/edge.raw", edge.clone());
    let (tenant, digest) = (site.house.tenant, Digest::of(&edge));
    let length = Some(LENGTH as u64);
    site.name(tenant, "1.0", &digest, (&place, length)).await;
    let files = site.open();
    let path = by_digest(&edge);
    site.house
        .small
        .fail(Fault::times("/edge.raw", 4, Way::Stall));

    let got = site.ask(&files, &path, &[]).await;
    assert!(got.is_for_later(), "{} {}", got.status, got.text());
    // Four times half of what was missing.
    let there = site.lies_in("partial");
    assert_eq!(there, [(digest.hex(), LENGTH as u64 - LENGTH as u64 / 16)]);
    assert!(site.lies_in("sha256").is_empty());

    let got = site.ask(&files, &path, &[]).await;
    assert!(
        got.status == StatusCode::OK && got.body == edge,
        "{}",
        got.text()
    );
    assert_eq!(site.house.small.count("GET /edge.raw"), 5);
}

#[tokio::test]
async fn a_registry_that_is_away_or_busy_is_told_and_nothing_is_kept_of_it() {
    let site = Site::new().await;
    let edge = content(26);
    site.offer(site.house.tenant, "1.0", &edge).await;
    let files = site.open();
    let path = by_digest(&edge);
    for way in [Way::Status(503), Way::Status(404), Way::Html, Way::Silent] {
        site.house.small.fail(Fault::always(BLOBS, way.clone()));
        let got = site.ask(&files, &path, &[]).await;
        let is_told = got.is_for_later() || got.status == StatusCode::BAD_GATEWAY;
        assert!(is_told, "{way:?}: {}", got.status);
        assert!(site.lies_in("sha256").is_empty());
        site.house.small.mend();
        site.house.clock.advance(TimeDelta::minutes(10));
    }
    let got = site.ask(&files, &path, &[]).await;
    assert!(got.status == StatusCode::OK && got.body == edge);
}

#[tokio::test]
async fn who_does_not_wait_so_long_is_told_to_come_again_and_the_file_goes_on_coming() {
    let patient = House::beside(SmallRegistry::start(), |registry| {
        registry.limits = Limits::default();
    });
    let mut site = Site::beside(patient.await).await;
    site.settings.wait = Duration::from_millis(50);
    let edge = content(27);
    site.offer(site.house.tenant, "1.0", &edge).await;
    let files = site.open();
    let path = by_digest(&edge);
    site.house.small.fail(Fault::times(BLOBS, 1, Way::Stall));
    let got = site.ask(&files, &path, &[]).await;
    assert!(got.is_for_later(), "{} {}", got.status, got.text());
    assert!(got.text().contains("being fetched"), "{}", got.text());
    assert!(something_came(&site, &edge).await < LENGTH as u64);
    assert_eq!(site.house.small.count("GET /v2/"), 1, "it is the same one");
}

/// A process that fetches and is killed in the middle: nothing of it runs any more, and it had no chance to say goodbye.
fn killed_in_the_middle(site: &Site, url: &str, path: &str, edge: &[u8]) -> u64 {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let came = runtime.block_on(async {
        let store = Store::connect(url, StoreOptions::default()).await;
        let sources = Sources::open(&site.house.settings.registries).expect("registries");
        let files = Files::open(
            store.expect("the database"),
            Arc::clone(&site.authority),
            Arc::clone(&site.house.clock) as Arc<dyn Clock>,
            site.settings.clone(),
            Arc::new(sources),
        );
        let files = files.expect("a folder of files");
        tokio::select! {
            got = site.ask(&files, path, &[]) => panic!("it came: {}", got.status),
            came = something_came(site, edge) => came,
        }
    });
    runtime.shutdown_timeout(Duration::from_secs(10));
    came
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_killed_while_a_file_comes_leaves_nothing_but_what_is_carried_on() {
    let patient = House::beside(SmallRegistry::start(), |registry| {
        registry.limits = Limits::default();
    });
    let site = Site::beside(patient.await).await;
    let edge = content(28);
    site.offer(site.house.tenant, "1.0", &edge).await;
    let path = by_digest(&edge);
    site.house.small.fail(Fault::always(BLOBS, Way::Stall));
    let mut before = 0;
    for _ in 0..3 {
        let (url, site, path, edge) = (&site.house.url, &site, &path, &edge);
        let came = std::thread::scope(|scope| {
            let process = scope.spawn(|| killed_in_the_middle(site, url, path, edge));
            process.join().expect("a process")
        });
        assert!(came >= before, "what was there is not thrown away");
        before = came;
        assert!(site.lies_in("sha256").is_empty());
    }
    site.house.small.mend();
    let got = site.ask(&site.open(), &path, &[]).await;
    assert!(
        got.status == StatusCode::OK && got.body == edge,
        "{}",
        got.text()
    );
    assert!(site.lies_in("partial").is_empty());
}

#[tokio::test]
async fn whatever_a_killed_process_left_the_file_comes_whole() {
    let site = Site::new().await;
    let edge = content(29);
    site.offer(site.house.tenant, "1.0", &edge).await;
    let path = by_digest(&edge);
    let digest = Digest::of(&edge).hex();
    let kept = site
        .settings
        .dir
        .join("sha256")
        .join(&digest[..2])
        .join(&digest);
    let spoilt: Vec<u8> = edge.iter().map(|byte| byte ^ 1).collect();
    let mut left: Vec<Vec<u8>> = Vec::new();
    for length in [0, 1, LENGTH / 2, LENGTH - 1, LENGTH] {
        left.extend([edge[..length].to_vec(), spoilt[..length].to_vec()]);
    }
    left.push([edge.as_slice(), b"more"].concat());
    for (nth, left) in left.iter().enumerate() {
        for is_part in [true, false] {
            fs::remove_dir_all(&site.settings.dir).ok();
            drop(site.open());
            let place = if is_part {
                part_of(&site, &edge)
            } else {
                kept.clone()
            };
            fs::create_dir_all(place.parent().expect("a folder")).expect("a folder");
            fs::write(place, left).expect("a file");
            let files = site.open();
            let got = site.ask(&files, &path, &[]).await;
            let is_whole = got.status == StatusCode::OK && got.body == edge;
            assert!(
                is_whole,
                "{nth} {is_part}: {} {}",
                got.status,
                got.text().len()
            );
            assert_eq!(site.lies_in("sha256"), [(digest.clone(), LENGTH as u64)]);
            assert!(site.lies_in("partial").is_empty());
        }
    }
}
