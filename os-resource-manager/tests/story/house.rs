//! An OS resource manager on a database of its own beside a small registry, with the verbs of the stories.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_domain::filter::Resource;
use evenkeel_domain::id::OsId;
use evenkeel_domain::os::OsProfile;
use evenkeel_domain::os::catalogue::Wish;
use evenkeel_domain::tenant::{ProjectName, TenantId};
use evenkeel_kit::Secret;
use evenkeel_kit::clock::{Clock, SystemClock, TestClock};
use evenkeel_os_resource_manager::{OsResourceManager, RegistrySettings, Settings};
use evenkeel_registry::testing::{SmallRegistry, hasty};
use evenkeel_registry::{Manifest, Trust};
use evenkeel_store::listing::{self, Listing};
use evenkeel_store::os_catalogue::{self, CycleState};
use evenkeel_store::os_reports::{self, Report};
use evenkeel_store::testing::fresh_database;
use evenkeel_store::{Store, StoreOptions, os_profiles, os_settings, projects};

/// What stands before the name of a profile.
pub const PREFIX: &str = "os-profile/";

/// By what projects know the registry.
pub const NAME: &str = "release";

/// How often a pass is made at most until a cycle has ended.
const PASSES: usize = 10;

pub struct House {
    pub small: SmallRegistry,
    pub store: Store,
    pub url: String,
    pub clock: Arc<TestClock>,
    pub settings: Settings,
    pub manager: OsResourceManager,
    pub tenant: TenantId,
}

impl House {
    /// One beside a registry that is open to all, with a project that takes what is said.
    pub async fn new(revision: &str, enabled: &[&str]) -> Self {
        let house = Self::beside(SmallRegistry::start(), |_| {}).await;
        house.wants(revision, enabled).await;
        house
    }

    /// One beside a registry that is entered as the story says. Its project takes nothing yet.
    pub async fn beside(small: SmallRegistry, enter: impl FnOnce(&mut RegistrySettings)) -> Self {
        let mut registry = RegistrySettings {
            plain_http: true,
            prefix: PREFIX.to_owned(),
            files_url: Some(small.file_url("/")),
            proxy: Some(Secret::new("none")),
            trust: Trust::Off,
            limits: hasty(),
            ..RegistrySettings::at(format!("http://{}/", small.host()))
        };
        enter(&mut registry);
        let settings = Settings {
            at_start: false,
            registries: [(NAME.to_owned(), registry)].into(),
            ..Settings::default()
        };
        let url = fresh_database().await;
        let store = connect(&url).await;
        let clock = Arc::new(TestClock::new(SystemClock.now()));
        let manager = manager(&store, &clock, &settings);
        let tenant = project(&store, "default").await;
        Self {
            small,
            store,
            url,
            clock,
            settings,
            manager,
            tenant,
        }
    }

    /// Another replica: another process would have another pool of connections, and share everything else.
    pub async fn replica(&self) -> OsResourceManager {
        manager(&connect(&self.url).await, &self.clock, &self.settings)
    }

    /// The project takes these profiles from now on.
    pub async fn wants(&self, revision: &str, enabled: &[&str]) {
        wants(&self.store, self.tenant, revision, enabled).await;
    }

    /// Publishes a revision of a profile with an image of this version.
    pub fn publish(&self, profile: &str, tag: &str, image: &str) -> Manifest {
        self.publish_text(profile, tag, &yaml(profile, image, ""))
    }

    /// Publishes any text as a revision of a profile.
    pub fn publish_text(&self, profile: &str, tag: &str, text: &str) -> Manifest {
        let (repository, file) = (format!("{PREFIX}{profile}"), format!("{profile}.yaml"));
        self.small.put_profile(&repository, tag, &file, text)
    }

    /// Wishes for a cycle, and gives its number.
    pub async fn request(&self) -> i64 {
        let tx = self.store.fleet().await.expect("a transaction");
        let number = os_catalogue::request(&tx, NAME).await.expect("a wish");
        tx.commit().await.expect("committed");
        number
    }

    /// Where the cycles stand.
    pub async fn state(&self) -> CycleState {
        let tx = self.store.fleet().await.expect("a transaction");
        let state = os_catalogue::state(&tx, NAME).await.expect("a state");
        state.expect("somebody wished for a cycle")
    }

    /// Asks the registry, and says how that went for the project.
    pub async fn sync(&self) -> Report {
        let wanted = self.request().await;
        for _ in 0..PASSES {
            self.manager.pass().await.expect("a pass");
            if self.state().await.done >= wanted {
                return self.report().await.expect("a report");
            }
        }
        panic!("no cycle: {:?}", self.state().await);
    }

    /// How the last sync of the project went.
    pub async fn report(&self) -> Option<Report> {
        let tx = self.store.tenant(self.tenant).await.expect("a transaction");
        os_reports::find(&tx).await.expect("a report")
    }

    /// The operating systems of the project, by profile and image.
    pub async fn systems(&self) -> Vec<OsProfile> {
        systems(&self.store, self.tenant).await
    }

    /// What the operating systems of the project are: each as `profile image`.
    pub async fn names(&self) -> Vec<String> {
        let systems = self.systems().await;
        let name = |os: &OsProfile| format!("{} {}", os.spec.profile_name, os.spec.image_id);
        systems.iter().map(name).collect()
    }

    /// A report as a text that is the same wherever the registry listens.
    pub fn told(&self, report: &Report) -> String {
        told(report).replace(&self.small.host(), "registry")
    }
}

/// A report as a text.
pub fn told(report: &Report) -> String {
    let mut text = format!(
        "{}: {} made, {} refreshed, {} same, {} refused",
        report.outcome, report.made, report.refreshed, report.same, report.refused
    );
    if !report.message.is_empty() {
        text = format!("{text}: {}", report.message);
    }
    for row in &report.findings {
        let field = row.field.as_deref().unwrap_or("-");
        let os = row.os.map_or_else(|| "-".to_owned(), |os| os.to_string());
        let (repository, tag) = (&row.repository, &row.tag);
        let line = format!(
            "\n{repository}:{tag} {} {field} {os}\n  {}",
            row.kind, row.message
        );
        text.push_str(&line);
    }
    text
}

/// The kinds of what a report tells, each with its tag.
pub fn kinds(report: &Report) -> Vec<(&str, &str)> {
    let rows = report.findings.iter();
    rows.map(|row| (row.tag.as_str(), row.kind.as_str()))
        .collect()
}

/// A profile whose image has this version, with more lines below `spec`.
pub fn yaml(profile: &str, image: &str, more: &str) -> String {
    let digest = evenkeel_registry::Digest::of(image.as_bytes()).hex();
    format!(
        "appVersion: apps/v1\nspec:\n  name: {profile} {image}\n  type: OS_TYPE_IMMUTABLE\n  \
         provider: OS_PROVIDER_KIND_INFRA\n  architecture: x86_64\n  profileName: {profile}\n  \
         osImageUrl: images/{profile}-{image}.raw\n  osImageVersion: \"{image}\"\n  osImageSha256: {digest}\n  \
         securityFeature: SECURITY_FEATURE_NONE\n{more}"
    )
}

/// A project takes these profiles from now on.
pub async fn wants(store: &Store, tenant: TenantId, revision: &str, enabled: &[&str]) {
    let wish = Wish {
        registry: Some(NAME.to_owned()),
        revision: Some(revision.to_owned()),
        enabled: Some(enabled.iter().copied().map(str::to_owned).collect()),
        default_profile: None,
    };
    let tx = store.tenant(tenant).await.expect("a transaction");
    let wish = wish.checked().expect("a wish");
    os_settings::set(&tx, &wish).await.expect("settings");
    tx.commit().await.expect("committed");
}

/// The operating systems of a project, by profile and image.
pub async fn systems(store: &Store, tenant: TenantId) -> Vec<OsProfile> {
    let tx = store.tenant(tenant).await.expect("a transaction");
    let all = Listing {
        resource: Resource::Os,
        filter: None,
        within: None,
        order: Vec::new(),
    };
    let chosen = listing::page(&tx, &all, &listing::From::Offset(0), 10_000).await;
    let ids = chosen.expect("a list").ids.into_iter();
    let ids: Vec<OsId> = ids.map(OsId::from_bits).collect();
    let found = os_profiles::find_many(&tx, &ids).await;
    let mut found = found.expect("operating systems");
    let place = |os: &OsProfile| (os.spec.profile_name.clone(), os.spec.image_id.clone());
    found.sort_by_key(place);
    found
}

/// Another project.
pub async fn project(store: &Store, name: &str) -> TenantId {
    let tx = store.fleet().await.expect("a transaction");
    let name = ProjectName::parse("name", name).expect("a name");
    let project = projects::create(&tx, &name, "", SystemClock.now()).await;
    tx.commit().await.expect("committed");
    project.expect("a project").id
}

async fn connect(url: &str) -> Store {
    let options = StoreOptions {
        max_connections: 10,
        acquire_timeout: Duration::from_secs(30),
        lock_timeout: Duration::from_secs(20),
        statement_timeout: Duration::from_secs(30),
    };
    Store::connect(url, options).await.expect("the database")
}

fn manager(store: &Store, clock: &Arc<TestClock>, settings: &Settings) -> OsResourceManager {
    let clock = Arc::clone(clock) as Arc<dyn Clock>;
    OsResourceManager::new(store.clone(), clock, settings.clone()).expect("good settings")
}
