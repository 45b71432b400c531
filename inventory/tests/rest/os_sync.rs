//! The catalogue selection of a project, and how it requests and follows a sync.

use axum::http::StatusCode;
use chrono::TimeDelta;
use evenkeel_domain::os::catalogue::{CatalogSelection, CycleOutcome, CycleStep};
use evenkeel_inventory::{OsDefaults, Settings};
use evenkeel_kit::Clock;
use evenkeel_store::StoreOptions;
use evenkeel_store::os_catalogue::{self, CycleClaim, CycleResult, Progress};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::test_server::{Caller, TestServer, with_registries};

const SETTINGS: &str = "os-catalogue/settings";
const SYNC: &str = "os-catalogue/sync";
const REPORT: &str = "os-catalogue/report";

const LEASE: TimeDelta = TimeDelta::minutes(1);

impl TestServer {
    /// Claims the requested cycle, as a worker does.
    async fn claim_cycle(&self) -> CycleClaim {
        let tx = self.store.fleet().await.expect("a transaction");
        let claim = os_catalogue::claim(&tx, "release", Uuid::from_u128(7), LEASE).await;
        let claim = claim.expect("an answer").expect("a requested cycle");
        tx.commit().await.expect("committed");
        claim
    }

    async fn report_progress(&self, claim: &CycleClaim, progress: Progress) {
        let tx = self.store.fleet().await.expect("a transaction");
        let is_held = os_catalogue::report_progress(&tx, claim, &progress, LEASE).await;
        assert!(is_held.expect("written"));
        tx.commit().await.expect("committed");
    }

    /// Ends the cycle.
    async fn finish_cycle(&self, claim: &CycleClaim, ended: CycleResult) {
        let tx = self.store.fleet().await.expect("a transaction");
        let is_held = os_catalogue::finish(&tx, claim, &ended).await;
        assert!(is_held.expect("written"));
        tx.commit().await.expect("committed");
    }

    /// Changes the selection and returns the effective one.
    async fn change_selection(&self, what: &str, body: Value) -> Value {
        let settings = self.expect_ok(&format!("{what} {SETTINGS}"), Some(body)).await;
        assert_eq!(self.get(SETTINGS).await, settings);
        settings["effective"].clone()
    }
}

#[tokio::test]
async fn a_project_uses_the_defaults_of_the_server_for_unset_values() {
    let server = TestServer::with_settings(with_registries()).await;
    let defaults = json!({
        "registry": "release", "revision": "~0.8.11", "enabledProfiles": ["edge", "edge-rt"],
        "defaultProfile": "edge",
    });
    let settings = server.get(SETTINGS).await;
    let expected = json!({
        "registry": null, "revision": null, "enabledProfiles": null, "defaultProfile": null,
        "effective": defaults, "defaultOsID": "", "registries": ["lab", "release"],
    });
    assert_eq!(settings, expected);

    let frozen = server.change_selection("PUT", json!({"revision": "0.8.12"})).await;
    assert_eq!(frozen["revision"], "0.8.12");
    assert_eq!(frozen["enabledProfiles"], defaults["enabledProfiles"]);
    // The project does not select the server's default profile, so it has no default.
    let fewer = json!({"enabledProfiles": ["edge-rt"]});
    let fewer = server.change_selection("PATCH", fewer).await;
    assert_eq!((&fewer["revision"], &fewer["defaultProfile"]), (&json!("0.8.12"), &json!("")));
    let other = json!({"registry": "lab", "defaultProfile": "edge-rt"});
    let other = server.change_selection("PATCH", other).await;
    assert_eq!(
        other,
        json!({
            "registry": "lab", "revision": "0.8.12", "enabledProfiles": ["edge-rt"],
            "defaultProfile": "edge-rt",
        })
    );
    let masked = format!("PATCH {SETTINGS}?fieldMask=revision");
    let masked = server.expect_ok(&masked, Some(json!({"registry": "lab"}))).await;
    assert_eq!(masked["revision"], Value::Null);
    // A client may write back what it read.
    let replaced = server.put(SETTINGS, masked.clone()).await;
    assert_eq!(replaced, masked);
    let none = json!({"registry": null, "enabledProfiles": null, "defaultProfile": ""});
    let none = server.change_selection("PATCH", none).await;
    assert_eq!((&none["registry"], &none["defaultProfile"]), (&defaults["registry"], &json!("")));
    assert_eq!(server.change_selection("PUT", json!({})).await, defaults);
}

#[tokio::test]
async fn an_invalid_selection_is_rejected_with_its_field() {
    let server = TestServer::with_settings(with_registries()).await;
    let valid = json!({"revision": "~0.8.12"});
    let stored = server.put(SETTINGS, valid).await;
    for (body, field) in [
        (json!({"registry": "elsewhere"}), "registry"),
        (json!({"registry": ""}), "registry"),
        (json!({"registry": 5}), "registry"),
        (json!({"revision": "^0.8"}), "revision"),
        (json!({"revision": ""}), "revision"),
        (json!({"enabledProfiles": ["edge", "edge"]}), "enabledProfiles"),
        (json!({"enabledProfiles": ["Edge"]}), "enabledProfiles"),
        (json!({"enabledProfiles": [""]}), "enabledProfiles"),
        (json!({"enabledProfiles": vec!["edge"; 201]}), "enabledProfiles"),
        (json!({"enabledProfiles": "edge"}), "enabledProfiles"),
        (json!({"defaultProfile": "ubuntu"}), "defaultProfile"),
        (json!({"enabledProfiles": ["edge-rt"], "defaultProfile": "edge"}), "defaultProfile"),
        (json!({"colour": "red"}), "colour"),
    ] {
        for method in ["PUT", "PATCH"] {
            let what = format!("{method} {SETTINGS}");
            let problem = server
                .expect_problem(&what, Some(body.clone()), 400, json!({"code": "InvalidArgument"}))
                .await;
            let reported_field = problem["field"].as_str().unwrap_or_default();
            assert_eq!(reported_field.split('[').next(), Some(field), "{what}: {problem}");
        }
    }
    let elsewhere = Some(json!({"registry": "elsewhere"}));
    let expected = json!({"message": "registry: the server knows only lab, release"});
    server.expect_problem(&format!("PUT {SETTINGS}"), elsewhere, 400, expected).await;
    assert_eq!(server.get(SETTINGS).await, stored);
}

#[tokio::test]
async fn the_default_operating_system_is_the_newest_of_the_default_profile() {
    let server = TestServer::with_settings(with_registries()).await;
    let now = async || server.get(SETTINGS).await["defaultOsID"].clone();
    let sync_version = async |version: &str| {
        let list = json!({"repo": version}).to_string();
        let os = server.create_synced_os_with(server.ours, "edge", version, &list).await;
        os.to_string()
    };
    assert_eq!(now().await, "");
    let old = sync_version("1.9").await;
    assert_eq!(now().await, old);
    let new = sync_version("1.10").await;
    sync_version("1.2").await;
    assert_eq!(now().await, new);
    let none = json!({"defaultProfile": ""});
    server.change_selection("PATCH", none).await;
    assert_eq!(now().await, "");
}

#[tokio::test]
async fn a_sync_is_requested_and_followed_to_its_end() {
    let server = TestServer::with_settings(with_registries()).await;
    let get = async || server.get(SYNC).await;
    let post = async || server.expect_ok(&format!("POST {SYNC}"), None).await;
    let initial = get().await;
    assert_eq!(initial["registry"], "release");
    assert_eq!((&initial["request"], &initial["outcome"]), (&json!("0"), &Value::Null));

    let requested = post().await;
    assert_eq!((&requested["request"], &requested["done"]), (&json!("1"), &json!("0")));
    // A second request before the cycle begins is served by the same cycle.
    assert_eq!(post().await, requested);
    assert_eq!(get().await, requested);

    let claim = server.claim_cycle().await;
    let progress = Progress { step: CycleStep::Fetching, finished: 3, total: 7 };
    server.report_progress(&claim, progress).await;
    let running = get().await;
    assert_eq!(
        [&running["step"], &running["finished"], &running["total"], &running["done"]],
        [&json!("fetching"), &json!(3), &json!(7), &json!("0")]
    );
    assert!(running["startedAt"].is_string());
    // A running cycle may have read the registry already, so a request needs another cycle.
    assert_eq!(post().await["request"], "2");

    let later = server.clock.now() + TimeDelta::hours(1);
    let ended = CycleResult {
        outcome: CycleOutcome::Partial,
        message: "walrus".to_owned(),
        not_before: Some(later),
    };
    server.finish_cycle(&claim, ended).await;
    let ended = get().await;
    assert_eq!(
        [&ended["request"], &ended["done"], &ended["step"]],
        [&json!("2"), &json!("1"), &json!("idle")]
    );
    assert_eq!(
        [&ended["outcome"], &ended["lastSuccessAt"], &ended["notBefore"]],
        [&json!("partial"), &Value::Null, &json!("2026-03-01T13:00:00Z")]
    );
    // The message may be about another project, so it is not shown.
    assert!(!ended.to_string().contains("walrus"), "{ended}");
    let (status, theirs) = server
        .client_of(Caller::Foreigner)
        .request(&format!("GET /v1/projects/theirs/{SYNC}"), None)
        .await;
    assert_eq!((status, theirs), (StatusCode::OK, ended));
}

#[tokio::test]
async fn a_project_without_a_selection_cannot_request_a_sync() {
    let defaults = with_registries().os_defaults;
    let no_revision = OsDefaults {
        selection: CatalogSelection { revision: None, ..defaults.selection.clone() },
        ..defaults.clone()
    };
    let unknown = OsDefaults { registries: Vec::new(), ..defaults };
    let no_selection = "the project takes no operating systems: it has no registry, or no revision";
    for (os, registry, why) in [
        (OsDefaults::default(), "", no_selection),
        (no_revision, "release", no_selection),
        (unknown, "release", "the server knows no registry"),
    ] {
        let server =
            TestServer::with_settings(Settings { os_defaults: os, ..Settings::default() }).await;
        let problem = server.expect_problem(&format!("POST {SYNC}"), None, 400, json!({})).await;
        assert_eq!(
            (&problem["code"], &problem["message"]),
            (&json!("FailedPrecondition"), &json!(why))
        );
        let sync = server.get(SYNC).await;
        assert_eq!((&sync["registry"], &sync["request"]), (&json!(registry), &json!("0")));
    }
}

#[tokio::test]
async fn the_report_shows_the_findings_until_the_selection_changes() {
    let server = TestServer::with_settings(with_registries()).await;
    let get = async || server.get(REPORT).await;
    let initial = get().await;
    assert_eq!((&initial["outcome"], &initial["findings"]), (&Value::Null, &json!([])));
    let os = server.create_synced_os(server.ours, "walrus").await;
    server.store_sync_report(server.ours, "walrus", os).await;
    let since = "2026-03-01T12:00:00Z";
    let expected = json!({
        "registry": "release", "revision": "~0.8.11", "outcome": "partial",
        "message": "1 of 2 profiles of walrus was not taken", "request": "7",
        "startedAt": since, "endedAt": since, "created": 1, "refreshed": 2, "unchanged": 3, "refused": 4,
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
    assert_eq!(get().await, expected);
    server.change_selection("PATCH", json!({"revision": "~0.8.12"})).await;
    assert_eq!(get().await, initial);
}

/// Two requests change two fields at the same time.
#[tokio::test]
async fn no_change_of_the_selection_is_lost() {
    let server = TestServer::with_settings(with_registries()).await;
    for n in 0..10 {
        let one = json!({"revision": format!("~0.9.{n}")});
        let other = json!({"enabledProfiles": [format!("edge-{n}")]});
        let what = format!("PATCH {SETTINGS}");
        tokio::join!(
            server.expect_ok(&what, Some(one.clone())),
            server.expect_ok(&what, Some(other.clone())),
        );
        let settings = server.get(SETTINGS).await;
        assert_eq!(settings["revision"], one["revision"]);
        assert_eq!(settings["enabledProfiles"], other["enabledProfiles"]);
    }
}

/// Registries belong to the fleet and selections to a project. A request must not hold one
/// connection while it waits for another.
#[tokio::test]
async fn a_server_with_a_single_connection_answers_every_request() {
    let options = StoreOptions { max_connections: 1, ..StoreOptions::default() };
    let server = TestServer::with_options(options, with_registries()).await;
    server.change_selection("PUT", json!({"revision": "0.8.12"})).await;
    server.change_selection("PATCH", json!({"registry": "lab"})).await;
    for (what, request) in [("POST", "1"), ("GET", "1"), ("POST", "1")] {
        let sync = server.expect_ok(&format!("{what} {SYNC}"), None).await;
        assert_eq!((&sync["registry"], &sync["request"]), (&json!("lab"), &json!(request)));
    }
    server.get(REPORT).await;
}
