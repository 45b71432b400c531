//! A server that knows registries of operating systems, and what came from one.

use evenkeel_domain::id::OsId;
use evenkeel_domain::os::catalogue::{CycleOutcome, File, FileRole, Wish};
use evenkeel_domain::os::{OsKind, OsProvider, OsSpec, SecurityFeature, Sha256};
use evenkeel_domain::tenant::TenantId;
use evenkeel_inventory::{OsDefaults, Settings};
use evenkeel_kit::Clock;
use evenkeel_store::contents::{self, Digest};
use evenkeel_store::os_inside::{self, Inside, Kept, Made};
use evenkeel_store::os_reports::{self, Report, Row};
use evenkeel_store::{Store, Tx};
use serde_json::json;
use uuid::Uuid;

use super::House;

/// The settings of a server that knows the registries `release` and `lab`, and takes two profiles of the first.
pub fn with_registries() -> Settings {
    let texts = |texts: [&str; 2]| texts.map(str::to_owned).to_vec();
    Settings {
        os: OsDefaults {
            registries: texts(["lab", "release"]),
            wish: Wish {
                registry: Some("release".to_owned()),
                revision: Some("~0.8.11".to_owned()),
                enabled: Some(texts(["edge", "edge-rt"])),
                default_profile: Some("edge".to_owned()),
            },
        },
        ..Settings::default()
    }
}

/// What is installed in what [`House::synced`] makes.
pub fn packages(mark: &str) -> String {
    json!({"repo": [{"name": format!("{mark}-shell"), "version": "5.2"}]}).to_string()
}

/// The vulnerabilities of a kind in what [`House::synced`] makes.
pub fn cves(mark: &str, kind: &str) -> String {
    let affected = [format!("{mark}-shell")];
    json!([{"cve_id": format!("{mark}-{kind}"), "priority": "high", "affected_packages": affected}])
        .to_string()
}

/// A statement on an image that has this word in it.
pub fn statement(mark: &str) -> String {
    format!("{}:{mark}=", "cd".repeat(32))
}

impl House {
    /// An operating system that came from a registry, of the profile and with the lists that have this word in them.
    pub async fn synced(&self, project: TenantId, mark: &str) -> OsId {
        self.synced_with(project, mark, "1.0", &packages(mark))
            .await
    }

    /// The same, of this version and with this list of packages.
    pub async fn synced_with(
        &self,
        project: TenantId,
        mark: &str,
        version: &str,
        packages: &str,
    ) -> OsId {
        let tx = self.tenant(project).await;
        let now = self.clock.now();
        let open = cves(mark, "open");
        let mended = cves(mark, "mended");
        let made = Made {
            spec: spec(mark, version),
            inside: Inside {
                packages: Some(put(&tx, packages, self).await),
                existing_cves: Some(put(&tx, &open, self).await),
                fixed_cves: Some(put(&tx, &mended, self).await),
                refreshed_at: now,
                ..inside(mark)
            },
        };
        let kept = os_inside::keep(&tx, &made, now).await.expect("it is kept");
        let Kept::Made { os, .. } = kept else {
            panic!("it was there: {kept:?}");
        };
        tx.commit().await.expect("committed");
        os
    }

    /// A sync of a project went partly well: it found something of this operating system.
    pub async fn reported(&self, project: TenantId, mark: &str, os: OsId) {
        let tx = self.tenant(project).await;
        let now = self.clock.now();
        let gone = Row {
            repository: format!("edge/{mark}"),
            tag: "1.0".to_owned(),
            kind: "gone".to_owned(),
            field: None,
            message: format!("{mark} is gone"),
            os: Some(os),
            since: now,
        };
        let bad = Row {
            tag: "1.1".to_owned(),
            kind: "bad_field".to_owned(),
            field: Some("spec.type".to_owned()),
            message: format!("{mark} has no type"),
            os: None,
            ..gone.clone()
        };
        let report = Report {
            registry: "release".to_owned(),
            revision: "~0.8.11".to_owned(),
            outcome: CycleOutcome::Partly,
            message: format!("1 of 2 profiles of {mark} was not taken"),
            cycle: 7,
            started_at: now,
            ended_at: now,
            made: 1,
            refreshed: 2,
            same: 3,
            refused: 4,
            findings: vec![gone, bad],
        };
        os_reports::replace(&tx, &report).await.expect("written");
        tx.commit().await.expect("committed");
    }

    async fn tenant(&self, project: TenantId) -> Tx {
        let store: &Store = &self.store;
        store.tenant(project).await.expect("a transaction")
    }
}

/// Keeps a text: what it is known by.
async fn put(tx: &Tx, body: &str, house: &House) -> Digest {
    let mut digest = Digest::default();
    digest[..16].copy_from_slice(Uuid::new_v4().as_bytes());
    let now = house.clock.now();
    contents::put(tx, &digest, body, now).await.expect("kept");
    digest
}

fn spec(mark: &str, version: &str) -> OsSpec {
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
        fixed_cves_url: file("mended"),
        image_signatures: vec![statement(mark)],
    }
}

/// What is inside, without its lists.
fn inside(mark: &str) -> Inside {
    let file = File {
        role: FileRole::Image,
        path: format!("files/{mark}.img"),
        place: format!("web:https://{mark}/files/{mark}.img"),
        sha256: None,
        size: None,
    };
    let signature = json!({
        "payload": "cA==", "signature": "c2ln", "key": "cd".repeat(32), "manifest": "{}",
        "profile": format!("name: {mark}"),
    });
    Inside {
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
