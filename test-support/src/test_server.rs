//! What every service in a test process needs: a database, a clock and keys.

use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use evenkeel_auth::{Authority, CertificateAuthority, Keys, Role, Settings};
use evenkeel_domain::tenant::{ProjectName, TenantId};
use evenkeel_kit::{Clock, TestClock};
use evenkeel_store::testing::{fresh_database, with_database_clock};
use evenkeel_store::{Store, StoreOptions, projects};
use tempfile::TempDir;

/// A private database with the current schema, a clock that a test moves, and new keys. A test adds
/// the service that it is about.
#[derive(Clone, Debug)]
pub struct TestServer {
    pub store: Store,
    /// URL of the database.
    pub url: String,
    pub clock: TestClock,
    pub authority: Arc<Authority>,
    /// Issues the certificates of nodes.
    pub ca: Arc<CertificateAuthority>,
    _keys: Arc<TempDir>,
}

impl TestServer {
    /// A server whose clock shows `now`, as does the clock of its database.
    pub async fn new(now: DateTime<Utc>) -> Self {
        Self::with_options(now, store_options()).await
    }

    /// The same with these options for the connections to the database.
    pub async fn with_options(now: DateTime<Utc>, options: StoreOptions) -> Self {
        let url = fresh_database().await;
        let keys = tempfile::tempdir().expect("a folder");
        let authority = Authority::new(Keys::open(keys.path()).expect("keys"), Settings::default());
        let ca = CertificateAuthority::open(&keys.path().join("ca"), now).expect("an authority");
        let clock = TestClock::new(now);
        Self {
            store: connect(&url, options, &clock).await,
            url,
            clock,
            authority: Arc::new(authority),
            ca: Arc::new(ca),
            _keys: Arc::new(keys),
        }
    }

    /// Another pool of connections to the same database, as another process has it.
    pub async fn connect(&self) -> Store {
        self.connect_with(store_options()).await
    }

    /// The same with these options.
    pub async fn connect_with(&self, options: StoreOptions) -> Store {
        connect(&self.url, options, &self.clock).await
    }

    /// The clock as the services take it.
    pub fn shared_clock(&self) -> Arc<dyn Clock> {
        Arc::new(self.clock.clone())
    }

    pub fn now(&self) -> DateTime<Utc> {
        self.clock.now()
    }

    pub async fn create_project(&self, name: &str) -> TenantId {
        let tx = self.store.fleet().await.expect("a transaction");
        let name = ProjectName::parse("name", name).expect("a name");
        let project = projects::create(&tx, &name, "", self.now()).await.expect("a project");
        tx.commit().await.expect("committed");
        project.id
    }

    /// A token for one hour from now: the credential of a node if its role is that of a node.
    pub fn token(&self, subject: &str, roles: &[Role]) -> String {
        let hour = TimeDelta::hours(1);
        let issued = match roles {
            [Role::Node(project)] => self.authority.issue_node(*project, subject, hour, self.now()),
            _ => self.authority.issue_operator(subject, roles, hour, self.now()),
        };
        issued.expect("a token").token.reveal().to_owned()
    }
}

async fn connect(url: &str, options: StoreOptions, clock: &TestClock) -> Store {
    let store = Store::connect(url, options).await.expect("the database");
    with_database_clock(&store, Arc::new(clock.clone()))
}

/// On a busy machine, nothing may fail because it waits a little.
fn store_options() -> StoreOptions {
    StoreOptions {
        max_connections: 10,
        acquire_timeout: Duration::from_secs(30),
        lock_timeout: Duration::from_secs(20),
        statement_timeout: Duration::from_secs(30),
        ..StoreOptions::default()
    }
}
