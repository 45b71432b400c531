//! From a registry into projects: what is taken, what is not, and what is told.

use std::time::Duration;

use evenkeel_domain::os::catalogue::CycleOutcome;
use evenkeel_registry::testing::{Entry, Fault, Manners, SmallRegistry, Way};
use evenkeel_store::os_inside;

use crate::house::{House, NAME, PREFIX, kinds, project, systems, told, wants, yaml};

#[tokio::test]
async fn a_project_gets_what_it_wants_and_then_the_patches_of_it() {
    let house = House::new("~0.3.1", &["edge", "edge-rt"]).await;
    for (tag, image) in [("0.3.0", "3.0.0"), ("0.3.1", "3.0.1"), ("main", "3.0.9")] {
        house.publish("edge", tag, image);
    }
    house.publish("edge-rt", "0.3.1", "3.0.1");
    house.publish("other", "0.3.1", "3.0.1");
    let first = house.sync().await;
    assert_eq!(
        house.told(&first),
        "good: 2 made, 0 refreshed, 0 same, 0 refused"
    );
    assert_eq!(
        (first.registry.as_str(), first.revision.as_str()),
        (NAME, "~0.3.1")
    );
    assert_eq!(house.names().await, ["edge 3.0.1", "edge-rt 3.0.1"]);

    // A patch is taken, a minor release is not.
    house.publish("edge", "0.3.2", "3.0.2");
    house.publish("edge", "0.4.0", "4.0.0");
    house.small.forget_requests();
    let second = house.sync().await;
    assert_eq!(
        told(&second),
        "good: 1 made, 0 refreshed, 2 same, 0 refused"
    );
    assert!(second.cycle > first.cycle);
    assert_eq!(
        house.names().await,
        ["edge 3.0.1", "edge 3.0.2", "edge-rt 3.0.1"]
    );
    // What is known is not fetched again.
    let blobs = house.small.requests().into_iter();
    assert_eq!(blobs.filter(|line| line.contains("/blobs/")).count(), 1);
}

#[tokio::test]
async fn an_operating_system_says_what_its_profile_says() {
    let house = House::new("0.3.1", &["edge"]).await;
    let manifest = house.publish("edge", "0.3.1", "3.0.1");
    house.sync().await;
    let systems = house.systems().await;
    let os = &systems[0];
    assert_eq!(os.spec.name, "edge 3.0.1");
    assert_eq!(os.spec.image_url, "images/edge-3.0.1.raw");
    let tx = house
        .store
        .tenant(house.tenant)
        .await
        .expect("a transaction");
    let inside = os_inside::find_many(&tx, &[os.id]).await.expect("insides");
    let inside = &inside[&os.id];
    assert_eq!(inside.repository, format!("{PREFIX}edge"));
    assert_eq!(
        (inside.registry.as_str(), inside.revision.as_str()),
        (NAME, "0.3.1")
    );
    assert_eq!(&inside.artifact, manifest.digest.bytes());
}

#[tokio::test]
async fn a_tag_that_moved_is_told_and_its_image_stays_what_it_was() {
    let house = House::new("~0.3", &["edge"]).await;
    house.publish("edge", "0.3.1", "3.0.1");
    house.publish("edge", "0.3.2", "3.0.2");
    house.sync().await;
    // The same image, described in other words, and somebody vouches for it by now.
    let signature = format!("{}:MEUCIQ+/aQ==", "1".repeat(64));
    let more = format!("  description: better\n  osImageSignatures:\n    - {signature}\n");
    let text = yaml("edge", "3.0.1", &more);
    house.publish_text("edge", "0.3.1", &text);
    let moved = house.sync().await;
    assert_eq!(
        (moved.refreshed, moved.same, moved.outcome),
        (1, 1, CycleOutcome::Good)
    );
    assert_eq!(kinds(&moved), [("0.3.1", "tag_moved")]);
    assert!(moved.findings[0].os.is_some());
    let spec = &house.systems().await[0].spec;
    assert_eq!(spec.description, "better");
    assert_eq!(spec.image_signatures, [signature]);
    // The same version of the image with another content: nodes that run it must be able to rely on it.
    let text = yaml("edge", "3.0.2", "").replace("edge-3.0.2.raw", "other.raw");
    house.publish_text("edge", "0.3.2", &text);
    let other = house.sync().await;
    assert_eq!((other.refused, other.outcome), (1, CycleOutcome::Partly));
    let expected = [
        ("0.3.1", "tag_moved"),
        ("0.3.2", "tag_moved"),
        ("0.3.2", "same_image_other_digest"),
    ];
    assert_eq!(kinds(&other), expected);
    assert_eq!(
        house.systems().await[1].spec.image_url,
        "images/edge-3.0.2.raw"
    );
    // What was found before is told since then.
    assert_eq!(other.findings[0].since, moved.findings[0].since);
}

#[tokio::test]
async fn a_tag_that_is_gone_is_told_and_its_operating_system_stays() {
    let house = House::new("~0.3", &["edge"]).await;
    house.publish("edge", "0.3.1", "3.0.1");
    house.publish("edge", "0.3.2", "3.0.2");
    house.sync().await;
    let before = house.systems().await;
    house.small.remove_tag(&format!("{PREFIX}edge"), "0.3.1");
    let report = house.sync().await;
    assert_eq!(kinds(&report), [("0.3.1", "gone")]);
    assert_eq!(report.findings[0].os, Some(before[0].id));
    assert_eq!((report.same, report.outcome), (1, CycleOutcome::Good));
    assert_eq!(house.systems().await, before);
    // Whoever comes later neither gets it nor hears of it.
    let other = project(&house.store, "other").await;
    wants(&house.store, other, "~0.3", &["edge"]).await;
    house.manager.pass().await.expect("a pass");
    let tx = house.store.tenant(other).await.expect("a transaction");
    let found = evenkeel_store::os_reports::find(&tx).await;
    let found = found.expect("a report").expect("it was written");
    assert_eq!((kinds(&found), found.outcome), (vec![], CycleOutcome::Good));
    assert_eq!(systems(&house.store, other).await.len(), 1);
    // It comes back.
    house.publish("edge", "0.3.1", "3.0.1");
    let report = house.sync().await;
    assert_eq!(
        told(&report),
        "good: 0 made, 0 refreshed, 2 same, 0 refused"
    );
}

#[tokio::test]
async fn of_a_thousand_tags_only_those_are_read_that_are_wanted() {
    let small = SmallRegistry::with(Manners {
        page: 150,
        ..Manners::default()
    });
    let house = House::beside(small, |_| {}).await;
    house.wants("~0.3.990", &["edge"]).await;
    for number in 0..1_000 {
        house.publish(
            "edge",
            &format!("0.3.{number:04}"),
            &format!("3.0.{number}"),
        );
    }
    let report = house.sync().await;
    assert_eq!(
        told(&report),
        "good: 10 made, 0 refreshed, 0 same, 0 refused"
    );
    let asked = |what: &str| house.small.count(&format!("GET /v2/{PREFIX}edge/{what}"));
    assert_eq!(asked("tags/list"), 7);
    assert_eq!(asked("manifests/0."), 10);
    assert_eq!(asked("blobs/"), 10);
}

#[tokio::test]
async fn two_hundred_profiles_come_at_once() {
    let names: Vec<String> = (0..200).map(|number| format!("edge-{number:03}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let house = House::new("0.3.1", &names).await;
    for name in &names {
        house.publish(name, "0.3.1", "3.0.1");
    }
    let report = house.sync().await;
    assert_eq!(
        told(&report),
        "good: 200 made, 0 refreshed, 0 same, 0 refused"
    );
    assert_eq!(house.systems().await.len(), 200);
    let report = house.sync().await;
    assert_eq!(
        told(&report),
        "good: 0 made, 0 refreshed, 200 same, 0 refused"
    );
}

#[tokio::test]
async fn a_registry_that_demands_a_token_or_a_password_is_entered_with_what_the_files_say() {
    let folder = tempfile::tempdir().expect("a folder");
    let password = folder.path().join("password");
    let basic = Entry::Basic("fleet".to_owned(), "open sesame".to_owned());
    for entry in [Entry::tokens("fleet", "open sesame"), basic] {
        std::fs::write(&password, "wrong\n").expect("a file");
        let small = SmallRegistry::with(Manners {
            entry,
            ..Manners::default()
        });
        let house = House::beside(small, |registry| {
            registry.username = Some("fleet".to_owned());
            registry.password_file = Some(password.clone());
        })
        .await;
        house.wants("0.3.1", &["edge"]).await;
        house.publish("edge", "0.3.1", "3.0.1");
        let refused = house.sync().await;
        assert_eq!(refused.outcome, CycleOutcome::Failed, "{refused:?}");
        assert!(
            refused.message.contains("does not let us in"),
            "{refused:?}"
        );
        // The file is read anew each time.
        std::fs::write(&password, "open sesame\n").expect("a file");
        let report = house.sync().await;
        assert_eq!(
            told(&report),
            "good: 1 made, 0 refreshed, 0 same, 0 refused"
        );
    }
}

#[tokio::test]
async fn what_is_there_stays_while_the_registry_cannot_be_asked() {
    let house = House::new("~0.3", &["edge"]).await;
    house.publish("edge", "0.3.1", "3.0.1");
    house.sync().await;
    house.publish("edge", "0.3.2", "3.0.2");
    for way in [Way::Status(503), Way::Silent, Way::Stall] {
        house.small.fail(Fault::always("/v2/", way.clone()));
        let report = house.sync().await;
        assert_ne!(report.outcome, CycleOutcome::Good, "{way:?}");
        let is_said = !report.message.is_empty() || !report.findings.is_empty();
        assert!(is_said, "{way:?}: {report:?}");
        assert_eq!(house.names().await, ["edge 3.0.1"], "{way:?}");
        assert!(
            kinds(&report).iter().all(|(_, kind)| *kind != "gone"),
            "{way:?}"
        );
        house.small.mend();
    }
    let report = house.sync().await;
    assert_eq!(
        told(&report),
        "good: 1 made, 0 refreshed, 1 same, 0 refused"
    );
}

#[tokio::test]
async fn an_operating_system_for_which_no_name_is_free_is_told() {
    let house = House::new("0.3.1", &["edge", "good"]).await;
    house.publish("edge", "0.3.1", "3.0.1");
    house.publish("good", "0.3.1", "3.0.1");
    let text = yaml("taken", "3.0.1", "");
    let taken = evenkeel_registry::profile("taken.yaml", text.as_bytes());
    let taken = taken.expect("a profile").spec;
    let tx = house
        .store
        .tenant(house.tenant)
        .await
        .expect("a transaction");
    for (number, name) in ["edge 3.0.1", "edge 3.0.1 (edge 3.0.1)"]
        .into_iter()
        .enumerate()
    {
        let spec = evenkeel_domain::os::OsSpec {
            name: name.to_owned(),
            image_id: number.to_string(),
            ..taken.clone()
        };
        let now = chrono::DateTime::UNIX_EPOCH;
        let made = evenkeel_store::os_profiles::create(&tx, &spec, now).await;
        made.expect("an operating system");
    }
    tx.commit().await.expect("committed");
    let report = house.sync().await;
    assert_eq!(kinds(&report), [("0.3.1", "name_taken")]);
    assert_eq!((report.made, report.refused), (1, 1));
    assert_eq!(report.outcome, CycleOutcome::Partly);
}

#[tokio::test]
async fn a_registry_may_be_slow_and_may_ask_to_be_left_alone() {
    let house = House::new("~0.3", &["edge"]).await;
    house.publish("edge", "0.3.1", "3.0.1");
    house.small.fail(Fault::always("/v2/", Way::Slow));
    let report = house.sync().await;
    assert_eq!(
        told(&report),
        "good: 1 made, 0 refreshed, 0 same, 0 refused"
    );
    house.small.mend();
    let busy = |status, after: &str| Way::Busy {
        status,
        retry_after: after.to_owned(),
        date: None,
    };
    for status in [429, 503] {
        house
            .small
            .fail(Fault::times("/tags/", 2, busy(status, "0")));
        let report = house.sync().await;
        assert_eq!(
            told(&report),
            "good: 0 made, 0 refreshed, 1 same, 0 refused"
        );
        house.small.mend();
    }
    // Whoever asks for half an hour is left alone for that long.
    house.small.fail(Fault::always("/v2/", busy(429, "1800")));
    let report = house.sync().await;
    assert_eq!(report.outcome, CycleOutcome::Failed);
    let again = house.state().await.not_before.expect("a time");
    let ended = house.state().await.ended_at.expect("a time");
    let wait = (again - ended).to_std().expect("later");
    assert!((1_700..1_900).contains(&wait.as_secs()), "{wait:?}");
    house.small.mend();
    house.small.forget_requests();
    house.request().await;
    house.manager.pass().await.expect("a pass");
    assert!(house.small.requests().is_empty());
    assert!(wait > Duration::ZERO);
}

#[tokio::test]
async fn what_was_altered_on_the_way_is_not_taken_and_the_rest_is() {
    let house = House::new("0.3.1", &["corrupt", "edge", "wrong"]).await;
    house.publish("edge", "0.3.1", "3.0.1");
    let corrupt = house.publish("corrupt", "0.3.1", "3.0.1");
    let way = Fault::always(
        &format!("corrupt/blobs/{}", corrupt.layers[0].blob.digest),
        Way::Corrupt,
    );
    house.small.fail(way);
    let wrong = house.publish("wrong", "0.3.1", "3.0.1");
    let other = yaml("wrong", "3.0.2", "");
    let repository = format!("{PREFIX}wrong");
    house
        .small
        .put_as(&repository, &wrong.layers[0].blob.digest, other);
    let report = house.sync().await;
    assert_eq!(
        (report.made, report.refused, report.outcome),
        (1, 2, CycleOutcome::Partly)
    );
    let found = [("0.3.1", "wrong_digest"), ("0.3.1", "wrong_digest")];
    assert_eq!(kinds(&report), found);
    // It is looked at again, although the tag leads where it led.
    house.small.mend();
    let report = house.sync().await;
    assert_eq!((report.made, report.same, report.refused), (1, 1, 1));
}

/// Lines below `spec` that name a list of packages and one of vulnerabilities.
const BESIDE: &str =
    "  osPackageManifestURL: lists/packages.json\n  osExistingCvesURL: lists/cves.json\n";

#[tokio::test]
async fn what_lies_beside_a_profile_comes_along_and_follows() {
    let house = House::new("0.3.1", &["edge"]).await;
    house.publish_text("edge", "0.3.1", &yaml("edge", "3.0.1", BESIDE));
    let packages = r#"{"repo": [ {"name": "bash", "version": "5.2 "} ]}"#;
    let cves =
        r#"[ {"cve_id": "CVE-2026-0001", "priority": "high", "affected_packages": ["bash"]} ]"#;
    house.small.put_file("/lists/packages.json", packages);
    house.small.put_file("/lists/cves.json", cves);
    let report = house.sync().await;
    assert_eq!(
        told(&report),
        "good: 1 made, 0 refreshed, 0 same, 0 refused"
    );
    assert_eq!(
        beside(&house).await,
        [Some(packages.to_owned()), Some(cves.to_owned())]
    );
    let again = house.sync().await;
    assert_eq!(told(&again), "good: 0 made, 0 refreshed, 1 same, 0 refused");

    // A later list takes its place; what is no list does not.
    house.small.put_file("/lists/cves.json", "[]");
    let report = house.sync().await;
    assert_eq!(
        told(&report),
        "good: 0 made, 1 refreshed, 0 same, 0 refused"
    );
    house
        .small
        .put_file("/lists/cves.json", "<html>Sign in</html>");
    let report = house.sync().await;
    assert_eq!((report.same, report.outcome), (1, CycleOutcome::Partly));
    assert_eq!(kinds(&report), [("0.3.1", "cves")]);
    let field = report.findings[0].field.as_deref();
    assert_eq!(field, Some("spec.osExistingCvesURL"));
    assert_eq!(sides(&house).await, 2);
    assert_eq!(
        beside(&house).await,
        [Some(packages.to_owned()), Some("[]".to_owned())]
    );
}

/// How many documents are known.
async fn sides(house: &House) -> usize {
    let tx = house.store.fleet().await.expect("a transaction");
    let sides = evenkeel_store::os_catalogue::sides(&tx, NAME).await;
    sides.expect("documents").len()
}

#[tokio::test]
async fn documents_that_no_tag_leads_to_any_more_are_forgotten() {
    let house = House::new("~0.3", &["edge"]).await;
    house.small.put_file(
        "/lists/packages.json",
        r#"{"repo": [{"name": "bash", "version": "5.2"}]}"#,
    );
    house.small.put_file("/lists/cves.json", "[]");
    let text = yaml("edge", "3.0.1", BESIDE);
    house.publish_text("edge", "0.3.1", &text);
    house.sync().await;
    assert_eq!(sides(&house).await, 2);
    // Another list of packages, so that what is known of vulnerabilities is cut down to that one.
    house.small.put_file(
        "/lists/packages.json",
        r#"{"repo": [{"name": "zsh", "version": "5.9"}]}"#,
    );
    house.sync().await;
    assert_eq!(sides(&house).await, 2);
    let shown = beside(&house).await;
    house.small.remove_tag(&format!("{PREFIX}edge"), "0.3.1");
    house.sync().await;
    assert_eq!(sides(&house).await, 0);
    // Who has the operating system keeps what is inside it.
    assert!(shown[0].as_deref().is_some_and(|list| list.contains("zsh")));
    assert_eq!(beside(&house).await, shown);
}

/// The lists of the only operating system.
async fn beside(house: &House) -> [Option<String>; 2] {
    let systems = house.systems().await;
    let [os] = &systems[..] else {
        panic!("{systems:?}");
    };
    let tx = house
        .store
        .tenant(house.tenant)
        .await
        .expect("a transaction");
    let mut shown = os_inside::shown(&tx, &[os.id], 1_000_000)
        .await
        .expect("lists");
    let shown = shown.remove(&os.id).expect("it came from the registry");
    [shown.packages, shown.existing_cves]
}

#[tokio::test]
async fn what_cannot_be_wanted_here_is_told() {
    let house = House::new("0.3.1", &["edge"]).await;
    let tx = house
        .store
        .tenant(house.tenant)
        .await
        .expect("a transaction");
    let wish = evenkeel_domain::os::catalogue::Wish {
        registry: Some("nowhere".to_owned()),
        revision: Some("0.3.1".to_owned()),
        ..Default::default()
    };
    evenkeel_store::os_settings::set(&tx, &wish)
        .await
        .expect("settings");
    tx.commit().await.expect("committed");
    house.manager.pass().await.expect("a pass");
    let report = house.report().await.expect("a report");
    let why = "failed: 0 made, 0 refreshed, 0 same, 0 refused: the server knows no registry called nowhere";
    assert_eq!(told(&report), why);
}
