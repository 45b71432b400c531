//! What a project takes of a registry of operating systems, and how it asks for it and is told.

use axum::http::StatusCode;
use chrono::TimeDelta;
use evenkeel_domain::os::catalogue::{CycleOutcome, CycleStep, Wish};
use evenkeel_inventory::{OsDefaults, Settings};
use evenkeel_kit::Clock;
use evenkeel_store::os_catalogue::{self, Claim, Ended, Progress};
use evenkeel_store::testing::fresh_database;
use evenkeel_store::{Store, StoreOptions};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::house::{House, Who, with_registries};

const SETTINGS: &str = "os-catalogue/settings";
const SYNC: &str = "os-catalogue/sync";
const REPORT: &str = "os-catalogue/report";

const LEASE: TimeDelta = TimeDelta::minutes(1);

impl House {
    /// Somebody begins the cycle that is wanted.
    async fn claimed(&self) -> Claim {
        let tx = self.store.fleet().await.expect("a transaction");
        let claim = os_catalogue::claim(&tx, "release", Uuid::from_u128(7), LEASE).await;
        let claim = claim.expect("asked").expect("a cycle is wanted");
        tx.commit().await.expect("committed");
        claim
    }

    /// The cycle has come so far.
    async fn beats(&self, claim: &Claim, progress: Progress) {
        let tx = self.store.fleet().await.expect("a transaction");
        let is_held = os_catalogue::beat(&tx, claim, &progress, LEASE).await;
        assert!(is_held.expect("written"));
        tx.commit().await.expect("committed");
    }

    /// The cycle ends.
    async fn ends(&self, claim: &Claim, ended: Ended) {
        let tx = self.store.fleet().await.expect("a transaction");
        let is_held = os_catalogue::finish(&tx, claim, &ended).await;
        assert!(is_held.expect("written"));
        tx.commit().await.expect("committed");
    }

    /// A change of what is taken: what holds then.
    async fn takes(&self, what: &str, body: Value) -> Value {
        let told = self.ok(&format!("{what} {SETTINGS}"), Some(body)).await;
        assert_eq!(self.ok(&format!("GET {SETTINGS}"), None).await, told);
        told["effective"].clone()
    }
}

#[tokio::test]
async fn a_project_takes_what_the_server_has_where_it_says_nothing() {
    let house = House::with(with_registries()).await;
    let usual = json!({
        "registry": "release", "revision": "~0.8.11", "enabledProfiles": ["edge", "edge-rt"],
        "defaultProfile": "edge",
    });
    let told = house.ok(&format!("GET {SETTINGS}"), None).await;
    let nothing = json!({
        "registry": null, "revision": null, "enabledProfiles": null, "defaultProfile": null,
        "effective": usual, "defaultOsID": "", "registries": ["lab", "release"],
    });
    assert_eq!(told, nothing);

    let frozen = house.takes("PUT", json!({"revision": "0.8.12"})).await;
    assert_eq!(frozen["revision"], "0.8.12");
    assert_eq!(frozen["enabledProfiles"], usual["enabledProfiles"]);
    // The server's default is none of those that the project takes, so it has none.
    let fewer = json!({"enabledProfiles": ["edge-rt"]});
    let fewer = house.takes("PATCH", fewer).await;
    assert_eq!(
        (&fewer["revision"], &fewer["defaultProfile"]),
        (&json!("0.8.12"), &json!(""))
    );
    let other = json!({"registry": "lab", "defaultProfile": "edge-rt"});
    let other = house.takes("PATCH", other).await;
    assert_eq!(
        other,
        json!({
            "registry": "lab", "revision": "0.8.12", "enabledProfiles": ["edge-rt"],
            "defaultProfile": "edge-rt",
        })
    );
    let masked = format!("PATCH {SETTINGS}?fieldMask=revision");
    let masked = house.ok(&masked, Some(json!({"registry": "lab"}))).await;
    assert_eq!(masked["revision"], Value::Null);
    // What was read is written back.
    let back = house
        .ok(&format!("PUT {SETTINGS}"), Some(masked.clone()))
        .await;
    assert_eq!(back, masked);
    let none = json!({"registry": null, "enabledProfiles": null, "defaultProfile": ""});
    let none = house.takes("PATCH", none).await;
    assert_eq!(
        (&none["registry"], &none["defaultProfile"]),
        (&usual["registry"], &json!(""))
    );
    assert_eq!(house.takes("PUT", json!({})).await, usual);
}

#[tokio::test]
async fn what_cannot_be_taken_is_refused_with_its_field() {
    let house = House::with(with_registries()).await;
    let kept = json!({"revision": "~0.8.12"});
    let kept = house.ok(&format!("PUT {SETTINGS}"), Some(kept)).await;
    for (body, field) in [
        (json!({"registry": "elsewhere"}), "registry"),
        (json!({"registry": ""}), "registry"),
        (json!({"registry": 5}), "registry"),
        (json!({"revision": "^0.8"}), "revision"),
        (json!({"revision": ""}), "revision"),
        (
            json!({"enabledProfiles": ["edge", "edge"]}),
            "enabledProfiles",
        ),
        (json!({"enabledProfiles": ["Edge"]}), "enabledProfiles"),
        (json!({"enabledProfiles": [""]}), "enabledProfiles"),
        (
            json!({"enabledProfiles": vec!["edge"; 201]}),
            "enabledProfiles",
        ),
        (json!({"enabledProfiles": "edge"}), "enabledProfiles"),
        (json!({"defaultProfile": "ubuntu"}), "defaultProfile"),
        (
            json!({"enabledProfiles": ["edge-rt"], "defaultProfile": "edge"}),
            "defaultProfile",
        ),
        (json!({"colour": "red"}), "colour"),
    ] {
        for method in ["PUT", "PATCH"] {
            let what = format!("{method} {SETTINGS}");
            let (status, problem) = house.ours(&what, Some(body.clone())).await;
            assert_eq!(status, StatusCode::BAD_REQUEST, "{what} {body}: {problem}");
            assert_eq!(problem["code"], "InvalidArgument", "{what}: {problem}");
            let told = problem["field"].as_str().unwrap_or_default();
            assert_eq!(told.split('[').next(), Some(field), "{what}: {problem}");
        }
    }
    let elsewhere = Some(json!({"registry": "elsewhere"}));
    let (_, problem) = house.ours(&format!("PUT {SETTINGS}"), elsewhere).await;
    assert_eq!(
        problem["message"],
        "registry: the server knows only lab, release"
    );
    assert_eq!(house.ok(&format!("GET {SETTINGS}"), None).await, kept);
}

#[tokio::test]
async fn the_default_operating_system_is_the_newest_of_the_default_profile() {
    let house = House::with(with_registries()).await;
    let now = async || house.ok(&format!("GET {SETTINGS}"), None).await["defaultOsID"].clone();
    let made = async |version: &str| {
        let list = json!({"repo": version}).to_string();
        let os = house.synced_with(house.ours, "edge", version, &list).await;
        os.to_string()
    };
    assert_eq!(now().await, "");
    let old = made("1.9").await;
    assert_eq!(now().await, old);
    let new = made("1.10").await;
    made("1.2").await;
    assert_eq!(now().await, new);
    let none = json!({"defaultProfile": ""});
    house.takes("PATCH", none).await;
    assert_eq!(now().await, "");
}

#[tokio::test]
async fn a_sync_is_asked_for_and_followed_to_its_end() {
    let house = House::with(with_registries()).await;
    let get = async || house.ok(&format!("GET {SYNC}"), None).await;
    let post = async || house.ok(&format!("POST {SYNC}"), None).await;
    let nothing = get().await;
    assert_eq!(nothing["registry"], "release");
    assert_eq!(
        (&nothing["request"], &nothing["outcome"]),
        (&json!("0"), &Value::Null)
    );

    let asked = post().await;
    assert_eq!(
        (&asked["request"], &asked["done"]),
        (&json!("1"), &json!("0"))
    );
    // Whoever asks before it begins is met by it as well.
    assert_eq!(post().await, asked);
    assert_eq!(get().await, asked);

    let claim = house.claimed().await;
    let progress = Progress {
        step: CycleStep::Fetching,
        finished: 3,
        total: 7,
    };
    house.beats(&claim, progress).await;
    let running = get().await;
    assert_eq!(
        [
            &running["step"],
            &running["finished"],
            &running["total"],
            &running["done"]
        ],
        [&json!("fetching"), &json!(3), &json!(7), &json!("0")]
    );
    assert!(running["startedAt"].is_string());
    // What has begun may have looked already.
    assert_eq!(post().await["request"], "2");

    let later = house.clock.now() + TimeDelta::hours(1);
    let ended = Ended {
        outcome: CycleOutcome::Partly,
        message: "walrus".to_owned(),
        not_before: Some(later),
    };
    house.ends(&claim, ended).await;
    let ended = get().await;
    assert_eq!(
        [&ended["request"], &ended["done"], &ended["step"]],
        [&json!("2"), &json!("1"), &json!("idle")]
    );
    assert_eq!(
        [&ended["outcome"], &ended["goodAt"], &ended["notBefore"]],
        [
            &json!("partly"),
            &Value::Null,
            &json!("2026-03-01T13:00:00Z")
        ]
    );
    // What was said of it may be about another project.
    assert!(!ended.to_string().contains("walrus"), "{ended}");
    let (status, theirs) = house
        .ask(
            Who::Foreigner,
            &format!("GET /v1/projects/theirs/{SYNC}"),
            None,
        )
        .await;
    assert_eq!((status, theirs), (StatusCode::OK, ended));
}

#[tokio::test]
async fn who_takes_nothing_cannot_ask_for_it() {
    let known = with_registries().os;
    let no_revision = OsDefaults {
        wish: Wish {
            revision: None,
            ..known.wish.clone()
        },
        ..known.clone()
    };
    let unknown = OsDefaults {
        registries: Vec::new(),
        ..known
    };
    let nothing = "the project takes no operating systems: it has no registry, or no revision";
    for (os, registry, why) in [
        (OsDefaults::default(), "", nothing),
        (no_revision, "release", nothing),
        (unknown, "release", "the server knows no registry"),
    ] {
        let house = House::with(Settings {
            os,
            ..Settings::default()
        })
        .await;
        let (status, problem) = house.ours(&format!("POST {SYNC}"), None).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{problem}");
        assert_eq!(
            (&problem["code"], &problem["message"]),
            (&json!("FailedPrecondition"), &json!(why))
        );
        let told = house.ok(&format!("GET {SYNC}"), None).await;
        assert_eq!(
            (&told["registry"], &told["request"]),
            (&json!(registry), &json!("0"))
        );
    }
}

#[tokio::test]
async fn the_report_says_what_was_found_until_something_else_is_wanted() {
    let house = House::with(with_registries()).await;
    let get = async || house.ok(&format!("GET {REPORT}"), None).await;
    let nothing = get().await;
    assert_eq!(
        (&nothing["outcome"], &nothing["findings"]),
        (&Value::Null, &json!([]))
    );
    let os = house.synced(house.ours, "walrus").await;
    house.reported(house.ours, "walrus", os).await;
    let since = "2026-03-01T12:00:00Z";
    let wanted = json!({
        "registry": "release", "revision": "~0.8.11", "outcome": "partly",
        "message": "1 of 2 profiles of walrus was not taken", "request": "7",
        "startedAt": since, "endedAt": since, "made": 1, "refreshed": 2, "same": 3, "refused": 4,
        "findings": [
            {
                "repository": "edge/walrus", "tag": "1.0", "kind": "gone", "field": "",
                "message": "walrus is gone", "osID": os.to_string(), "since": since,
            },
            {
                "repository": "edge/walrus", "tag": "1.1", "kind": "bad_field", "field": "spec.type",
                "message": "walrus has no type", "osID": "", "since": since,
            },
        ],
    });
    assert_eq!(get().await, wanted);
    house.takes("PATCH", json!({"revision": "~0.8.12"})).await;
    assert_eq!(get().await, nothing);
}

/// Two people change two settings at the same time.
#[tokio::test]
async fn no_change_of_what_is_taken_is_lost() {
    let house = House::with(with_registries()).await;
    for n in 0..10 {
        let one = json!({"revision": format!("~0.9.{n}")});
        let other = json!({"enabledProfiles": [format!("edge-{n}")]});
        let what = format!("PATCH {SETTINGS}");
        tokio::join!(
            house.ok(&what, Some(one.clone())),
            house.ok(&what, Some(other.clone())),
        );
        let told = house.ok(&format!("GET {SETTINGS}"), None).await;
        assert_eq!(told["revision"], one["revision"]);
        assert_eq!(told["enabledProfiles"], other["enabledProfiles"]);
    }
}

/// A registry is the fleet's, what a project wants is its own, and nobody holds a connection while waiting for another.
#[tokio::test]
async fn a_server_with_a_single_connection_asks_and_answers() {
    let options = StoreOptions {
        max_connections: 1,
        ..StoreOptions::default()
    };
    let store = Store::connect(&fresh_database().await, options).await;
    let house = House::on(store.expect("connected"), with_registries()).await;
    house.takes("PUT", json!({"revision": "0.8.12"})).await;
    house.takes("PATCH", json!({"registry": "lab"})).await;
    for (what, request) in [("POST", "1"), ("GET", "1"), ("POST", "1")] {
        let told = house.ok(&format!("{what} {SYNC}"), None).await;
        assert_eq!(
            (&told["registry"], &told["request"]),
            (&json!("lab"), &json!(request))
        );
    }
    house.ok(&format!("GET {REPORT}"), None).await;
}
