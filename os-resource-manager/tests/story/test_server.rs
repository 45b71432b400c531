//! A test server: an OS resource manager with its own database and an in-memory registry.

use std::ops::Deref;
use std::sync::Arc;

use evenkeel_domain::filter::Resource;
use evenkeel_domain::id::OsId;
use evenkeel_domain::os::OsProfile;
use evenkeel_domain::os::catalogue::CatalogSelection;
use evenkeel_domain::tenant::TenantId;
use evenkeel_kit::{Clock, Secret, SystemClock, TestClock};
use evenkeel_os_resource_manager::{OsResourceManager, RegistrySettings, Settings};
use evenkeel_registry::testing::{TestRegistry, short_limits};
use evenkeel_registry::{Manifest, SignaturePolicy};
use evenkeel_store::listing::{self, Listing};
use evenkeel_store::os_catalogue::{self, CycleState};
use evenkeel_store::os_reports::{self, SyncReport};
use evenkeel_store::{Store, os_profiles, os_settings};

/// Prefix of the profiles' repositories.
pub const PROFILE_PREFIX: &str = "os-profile/";

/// Name of the registry in the settings.
pub const REGISTRY_NAME: &str = "release";

/// Maximum number of passes until a cycle has ended.
const MAX_PASSES: usize = 10;

pub struct TestServer {
    pub registry: TestRegistry,
    pub settings: Settings,
    pub manager: OsResourceManager,
    pub tenant: TenantId,
    base: evenkeel_test_support::TestServer,
}

impl Deref for TestServer {
    type Target = evenkeel_test_support::TestServer;

    fn deref(&self) -> &Self::Target {
        &self.base
    }
}

impl TestServer {
    /// A server with an open registry, and a project with this selection.
    pub async fn new(revision: &str, enabled: &[&str]) -> Self {
        let server = Self::with_registry(TestRegistry::start(), |_| {}).await;
        server.select_profiles(revision, enabled).await;
        server
    }

    /// A server with this registry; `configure` changes its settings. The project selects nothing yet.
    pub async fn with_registry(
        registry: TestRegistry,
        configure: impl FnOnce(&mut RegistrySettings),
    ) -> Self {
        let mut registry_settings = RegistrySettings {
            plain_http: true,
            prefix: PROFILE_PREFIX.to_owned(),
            files_url: Some(registry.file_url("/")),
            proxy: Some(Secret::new("none")),
            trust: SignaturePolicy::Off,
            limits: short_limits(),
            ..RegistrySettings::new(format!("http://{}/", registry.host()))
        };
        configure(&mut registry_settings);
        let settings = Settings {
            at_start: false,
            registries: [(REGISTRY_NAME.to_owned(), registry_settings)].into(),
            ..Settings::default()
        };
        let base = evenkeel_test_support::TestServer::new(SystemClock.now()).await;
        let manager =
            OsResourceManager::new(base.store.clone(), base.shared_clock(), settings.clone());
        Self {
            registry,
            settings,
            manager: manager.expect("good settings"),
            tenant: base.create_project("default").await,
            base,
        }
    }

    /// Another replica. It has its own connection pool, like another process, and shares everything else.
    pub async fn replica(&self) -> OsResourceManager {
        self.replica_with_clock(self.clock.clone()).await
    }

    /// The same with its own clock.
    pub async fn replica_with_clock(&self, clock: TestClock) -> OsResourceManager {
        let store = self.connect().await;
        let manager = OsResourceManager::new(store, Arc::new(clock), self.settings.clone());
        manager.expect("good settings")
    }

    /// Sets the selection of the project.
    pub async fn select_profiles(&self, revision: &str, enabled: &[&str]) {
        select_profiles(&self.store, self.tenant, revision, enabled).await;
    }

    /// Publishes a revision of a profile with this image version.
    pub fn publish(&self, profile: &str, tag: &str, image: &str) -> Manifest {
        self.publish_text(profile, tag, &profile_yaml(profile, image, ""))
    }

    /// Publishes any text as a revision of a profile.
    pub fn publish_text(&self, profile: &str, tag: &str, text: &str) -> Manifest {
        let (repository, file) = (format!("{PROFILE_PREFIX}{profile}"), format!("{profile}.yaml"));
        self.registry.put_profile(&repository, tag, &file, text)
    }

    /// Requests a cycle. Returns its number.
    pub async fn request_cycle(&self) -> i64 {
        let tx = self.store.fleet().await.expect("a transaction");
        let number = os_catalogue::request(&tx, REGISTRY_NAME).await.expect("a request");
        tx.commit().await.expect("committed");
        number
    }

    pub async fn cycle_state(&self) -> CycleState {
        let tx = self.store.fleet().await.expect("a transaction");
        let state = os_catalogue::state(&tx, REGISTRY_NAME).await.expect("a state");
        state.expect("a cycle was requested")
    }

    /// Syncs the registry. Returns the report of the project.
    pub async fn sync(&self) -> SyncReport {
        self.sync_with(&self.manager).await
    }

    /// The same with another replica.
    pub async fn sync_with(&self, manager: &OsResourceManager) -> SyncReport {
        let number = self.request_cycle().await;
        for _ in 0..MAX_PASSES {
            manager.run_pass().await.expect("a pass");
            if self.cycle_state().await.done >= number {
                return self.report().await.expect("a report");
            }
        }
        panic!("no cycle: {:?}", self.cycle_state().await);
    }

    /// The last report of the project.
    pub async fn report(&self) -> Option<SyncReport> {
        let tx = self.store.tenant(self.tenant).await.expect("a transaction");
        os_reports::find(&tx).await.expect("a report")
    }

    /// The OS profiles of the project, sorted by profile name and image version.
    pub async fn list_systems(&self) -> Vec<OsProfile> {
        list_systems(&self.store, self.tenant).await
    }

    /// The OS profiles of the project, each as `profile image`.
    pub async fn os_names(&self) -> Vec<String> {
        let profiles = self.list_systems().await;
        let name = |os: &OsProfile| format!("{} {}", os.spec.profile_name, os.spec.image_id);
        profiles.iter().map(name).collect()
    }

    /// A report as text, independent of the registry's address.
    pub fn report_text(&self, report: &SyncReport) -> String {
        report_text(report).replace(&self.registry.host(), "registry")
    }
}

pub fn report_text(report: &SyncReport) -> String {
    let mut text = format!(
        "{}: {} created, {} updated, {} unchanged, {} refused",
        report.outcome, report.created, report.updated, report.unchanged, report.refused
    );
    if !report.message.is_empty() {
        text = format!("{text}: {}", report.message);
    }
    for row in &report.findings {
        let field = row.field.as_deref().unwrap_or("-");
        let os = row.os.map_or_else(|| "-".to_owned(), |os| os.to_string());
        let (repository, tag) = (&row.repository, &row.tag);
        let line = format!("\n{repository}:{tag} {} {field} {os}\n  {}", row.kind, row.message);
        text.push_str(&line);
    }
    text
}

/// The kinds of the findings of a report, each with its tag.
pub fn finding_kinds(report: &SyncReport) -> Vec<(&str, &str)> {
    let rows = report.findings.iter();
    rows.map(|row| (row.tag.as_str(), row.kind.as_str())).collect()
}

/// A profile document with this image version, and `more` lines below `spec`.
pub fn profile_yaml(profile: &str, image: &str, more: &str) -> String {
    let digest = evenkeel_registry::Digest::compute(image.as_bytes()).hex();
    format!(
        "appVersion: apps/v1\nspec:\n  name: {profile} {image}\n  type: OS_TYPE_IMMUTABLE\n  \
         provider: OS_PROVIDER_KIND_INFRA\n  architecture: x86_64\n  profileName: {profile}\n  \
         osImageUrl: images/{profile}-{image}.raw\n  osImageVersion: \"{image}\"\n  osImageSha256: {digest}\n  \
         securityFeature: SECURITY_FEATURE_NONE\n{more}"
    )
}

/// Sets the selection of a project.
pub async fn select_profiles(store: &Store, tenant: TenantId, revision: &str, enabled: &[&str]) {
    let selection = CatalogSelection {
        registry: Some(REGISTRY_NAME.to_owned()),
        revision: Some(revision.to_owned()),
        enabled: Some(enabled.iter().copied().map(str::to_owned).collect()),
        default_profile: None,
    };
    let tx = store.tenant(tenant).await.expect("a transaction");
    let selection = selection.validated().expect("a selection");
    os_settings::set(&tx, &selection).await.expect("settings");
    tx.commit().await.expect("committed");
}

/// The OS profiles of a project, sorted by profile name and image version.
pub async fn list_systems(store: &Store, tenant: TenantId) -> Vec<OsProfile> {
    let tx = store.tenant(tenant).await.expect("a transaction");
    let all = Listing { resource: Resource::Os, filter: None, within: None, order: Vec::new() };
    let chosen = listing::page(&tx, &all, &listing::PageStart::Offset(0), 10_000).await;
    let ids = chosen.expect("a list").ids.into_iter();
    let ids: Vec<OsId> = ids.map(OsId::from_bits).collect();
    let profiles = os_profiles::find_many(&tx, &ids).await;
    let mut profiles = profiles.expect("operating systems");
    let sort_key = |os: &OsProfile| (os.spec.profile_name.clone(), os.spec.image_id.clone());
    profiles.sort_by_key(sort_key);
    profiles
}
