//! A server with registries of operating systems, and an operating system from a registry.

use evenkeel_domain::id::OsId;
use evenkeel_domain::os::catalogue::{CatalogFile, CatalogSelection, CycleOutcome, FileRole};
use evenkeel_domain::os::{OsKind, OsProvider, OsSpec, SecurityFeature, Sha256};
use evenkeel_domain::tenant::TenantId;
use evenkeel_inventory::{OsDefaults, Settings};
use evenkeel_kit::Clock;
use evenkeel_store::contents::{self, ContentDigest};
use evenkeel_store::os_details::{self, ImportOutcome, ImportedOs, OsDetails};
use evenkeel_store::os_reports::{self, SyncFinding, SyncReport};
use evenkeel_store::{Store, Tx};
use serde_json::json;
use uuid::Uuid;

use super::TestServer;

/// Settings of a server with the registries `release` and `lab` that selects two profiles of
/// `release`.
pub fn with_registries() -> Settings {
    let texts = |texts: [&str; 2]| texts.map(str::to_owned).to_vec();
    Settings {
        os_defaults: OsDefaults {
            registries: texts(["lab", "release"]),
            selection: CatalogSelection {
                registry: Some("release".to_owned()),
                revision: Some("~0.8.11".to_owned()),
                enabled: Some(texts(["edge", "edge-rt"])),
                default_profile: Some("edge".to_owned()),
            },
        },
        ..Settings::default()
    }
}

/// The package list of an operating system of [`TestServer::create_synced_os`].
pub fn package_list(mark: &str) -> String {
    json!({"repo": [{"name": format!("{mark}-shell"), "version": "5.2"}]}).to_string()
}

/// A list of vulnerabilities of an operating system of [`TestServer::create_synced_os`].
pub fn cve_list(mark: &str, kind: &str) -> String {
    let affected = [format!("{mark}-shell")];
    json!([{"cve_id": format!("{mark}-{kind}"), "priority": "high", "affected_packages": affected}])
        .to_string()
}

/// An image signature that contains `mark`.
pub fn image_signature(mark: &str) -> String {
    format!("{}:{mark}=", "cd".repeat(32))
}

impl TestServer {
    /// Creates an operating system as a sync does. `mark` is its profile and is part of its lists.
    pub async fn create_synced_os(&self, project: TenantId, mark: &str) -> OsId {
        self.create_synced_os_with(project, mark, "1.0", &package_list(mark)).await
    }

    /// The same with this version and this package list.
    pub async fn create_synced_os_with(
        &self,
        project: TenantId,
        mark: &str,
        version: &str,
        packages: &str,
    ) -> OsId {
        let tx = self.begin(project).await;
        let now = self.clock.now();
        let open = cve_list(mark, "open");
        let fixed = cve_list(mark, "fixed");
        let new_os = ImportedOs {
            spec: os_spec(mark, version),
            details: OsDetails {
                packages: Some(store_content(&tx, packages, self).await),
                existing_cves: Some(store_content(&tx, &open, self).await),
                fixed_cves: Some(store_content(&tx, &fixed, self).await),
                refreshed_at: now,
                ..os_details(mark)
            },
        };
        let outcome = os_details::import(&tx, &new_os, now).await.expect("it is stored");
        let ImportOutcome::Created { os, .. } = outcome else {
            panic!("it existed already: {outcome:?}");
        };
        tx.commit().await.expect("committed");
        os
    }

    /// Stores the report of a partly successful sync with a finding about this operating system.
    pub async fn store_sync_report(&self, project: TenantId, mark: &str, os: OsId) {
        let tx = self.begin(project).await;
        let now = self.clock.now();
        let missing = SyncFinding {
            repository: format!("edge/{mark}"),
            tag: "1.0".to_owned(),
            kind: "gone".to_owned(),
            field: None,
            message: format!("{mark} is gone"),
            os: Some(os),
            since: now,
        };
        let bad = SyncFinding {
            tag: "1.1".to_owned(),
            kind: "bad_field".to_owned(),
            field: Some("spec.type".to_owned()),
            message: format!("{mark} has no type"),
            os: None,
            ..missing.clone()
        };
        let report = SyncReport {
            registry: "release".to_owned(),
            revision: "~0.8.11".to_owned(),
            outcome: CycleOutcome::Partial,
            message: format!("1 of 2 profiles of {mark} was not taken"),
            cycle: 7,
            started_at: now,
            ended_at: now,
            created: 1,
            updated: 2,
            unchanged: 3,
            refused: 4,
            findings: vec![missing, bad],
        };
        os_reports::replace(&tx, &report).await.expect("written");
        tx.commit().await.expect("committed");
    }

    async fn begin(&self, project: TenantId) -> Tx {
        let store: &Store = &self.store;
        store.tenant(project).await.expect("a transaction")
    }
}

/// Stores a text and returns its digest.
async fn store_content(tx: &Tx, body: &str, server: &TestServer) -> ContentDigest {
    let mut digest = ContentDigest::default();
    digest[..16].copy_from_slice(Uuid::new_v4().as_bytes());
    let now = server.clock.now();
    contents::insert_if_missing(tx, &digest, body, now).await.expect("stored");
    digest
}

fn os_spec(mark: &str, version: &str) -> OsSpec {
    let file = |kind: &str| format!("files/{mark}-{version}.{kind}");
    OsSpec {
        name: format!("{mark} {version}"),
        kind: OsKind::Immutable,
        provider: OsProvider::Infra,
        architecture: "x86_64".to_owned(),
        profile_name: mark.to_owned(),
        image_id: version.to_owned(),
        image_url: file("img"),
        sha256: Sha256::parse("sha256", &"ab".repeat(32)).expect("a digest"),
        security_feature: SecurityFeature::None,
        description: String::new(),
        metadata: String::new(),
        repo_url: String::new(),
        tls_ca_cert: String::new(),
        installed_packages_url: file("packages"),
        existing_cves_url: file("open"),
        fixed_cves_url: file("fixed"),
        image_signatures: vec![image_signature(mark)],
    }
}

/// The details of an operating system without its lists.
fn os_details(mark: &str) -> OsDetails {
    let file = CatalogFile {
        role: FileRole::Image,
        path: format!("files/{mark}.img"),
        source: format!("web:https://{mark}/files/{mark}.img"),
        sha256: None,
        size: None,
    };
    let signature = json!({
        "payload": "cA==", "signature": "c2ln", "key": "cd".repeat(32), "manifest": "{}",
        "profile": format!("name: {mark}"),
    });
    OsDetails {
        registry: "release".to_owned(),
        repository: format!("edge/{mark}"),
        revision: "0.8.11".to_owned(),
        artifact: [0xef; 32],
        platform_bundle: json!({"artifact": mark}).to_string(),
        signature: Some(signature),
        files: vec![file],
        packages: None,
        existing_cves: None,
        fixed_cves: None,
        refreshed_at: super::noon(),
    }
}
