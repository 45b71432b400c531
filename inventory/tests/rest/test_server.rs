//! A server with two projects, and tokens for callers of each role.

mod catalogue;
mod resource_ids;

use std::ops::Deref;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, Response, StatusCode};
use chrono::{DateTime, TimeDelta, Utc};
use evenkeel_auth::{Authority, Role};
use evenkeel_domain::decide::{Target, TargetKind};
use evenkeel_domain::id::{InstanceId, RunId};
use evenkeel_domain::package::{ObservedPackage, PackageChange, PackageResult};
use evenkeel_domain::policy::{ImageRules, PackageRules};
use evenkeel_domain::run::{
    AttemptId, Evidence, HeldBackCount, HeldBackPackage, Origin, PhaseSpan, RunEvent,
    RunEventRecord, RunReport, RunTimeouts,
};
use evenkeel_domain::tenant::TenantId;
use evenkeel_inventory::{
    Inventory, PasswordCheck, PasswordChecker, ReservedNames, Settings, router,
};
use evenkeel_kit::Clock;
use evenkeel_store::runs::{RunOpening, Subject, advance};
use evenkeel_store::{Store, StoreOptions, policies};
use evenkeel_test_support::RestClient;
use http_body_util::BodyExt;
use serde::Serialize;
use serde_json::{Value, json};
use tower::ServiceExt;
use uuid::Uuid;

pub use evenkeel_test_support::resource_id;

pub use catalogue::{cve_list, image_signature, package_list, with_registries};
pub use resource_ids::{ID_PLACEHOLDERS, ResourceIds, has_id_placeholder, legacy_path};

/// A server with the projects `ours` and `theirs`.
pub struct TestServer {
    pub router: Router,
    pub ours: TenantId,
    pub theirs: TenantId,
    base: evenkeel_test_support::TestServer,
}

impl Deref for TestServer {
    type Target = evenkeel_test_support::TestServer;

    fn deref(&self) -> &Self::Target {
        &self.base
    }
}

/// The sender of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caller {
    /// Has no token.
    Anonymous,
    /// Has a valid token without roles.
    Guest,
    /// May read `ours`.
    Reader,
    /// May write in `ours`.
    Writer,
    /// May read and approve in `ours`.
    Approver,
    /// Administrator of `ours`.
    Manager,
    /// May write in `theirs`.
    Foreigner,
    /// A node of `ours`.
    Node,
    /// May do everything.
    Administrator,
}

impl TestServer {
    pub async fn new() -> Self {
        Self::with_settings(Settings::default()).await
    }

    /// A server with one resource of each kind in `ours`.
    pub async fn with_resources() -> (Self, ResourceIds) {
        let server = Self::new().await;
        let resources = server.seed_resources().await;
        (server, resources)
    }

    pub async fn with_settings(settings: Settings) -> Self {
        let options = StoreOptions { max_connections: 10, ..StoreOptions::default() };
        Self::with_options(options, settings).await
    }

    pub async fn with_options(options: StoreOptions, settings: Settings) -> Self {
        let base = evenkeel_test_support::TestServer::with_options(noon(), options).await;
        let router = build_router(&base, base.store.clone(), settings);
        let ours = base.create_project("ours").await;
        let theirs = base.create_project("theirs").await;
        Self { router, ours, theirs, base }
    }

    /// Lets the router use another store.
    pub fn use_store(&mut self, store: Store, settings: Settings) {
        self.router = build_router(&self.base, store, settings);
    }

    /// Lets the router use another clock than its database.
    pub fn use_clock(&mut self, clock: Arc<dyn Clock>) {
        let store = self.base.store.clone();
        self.router =
            router(Inventory { clock, ..inventory(&self.base, store, Settings::default()) });
    }

    /// Lets the router use another authority.
    pub fn use_authority(&mut self, authority: Arc<Authority>) {
        self.base.authority = authority;
        self.use_store(self.base.store.clone(), Settings::default());
    }

    pub fn token(&self, caller: Caller) -> Option<String> {
        let (ours, theirs) = (self.ours.uuid(), self.theirs.uuid());
        let roles: &[Role] = match caller {
            Caller::Anonymous => return None,
            Caller::Guest => &[],
            Caller::Reader => &[Role::Read(ours)],
            Caller::Writer => &[Role::Write(ours)],
            Caller::Approver => &[Role::Approve(ours)],
            Caller::Manager => &[Role::Manage(ours)],
            Caller::Foreigner => &[Role::Write(theirs)],
            Caller::Node => &[Role::Node(ours)],
            Caller::Administrator => &[Role::Administrator],
        };
        Some(self.base.token(&format!("{caller:?}").to_lowercase(), roles))
    }

    /// Sends any request and returns the response.
    pub async fn send(&self, request: Request<Body>) -> Response<Body> {
        self.router.clone().oneshot(request).await.expect("a router never fails")
    }

    /// A session in `ours` with any token. `project` is the UUID in the header `ActiveProjectID`,
    /// for the legacy form.
    pub fn client(&self, token: Option<&str>, project: Option<&str>) -> RestClient {
        let client = RestClient::with_router(&self.router, "ours");
        let client = token.into_iter().fold(client, RestClient::with_token);
        project.into_iter().fold(client, |client, id| client.with_header("activeprojectid", id))
    }

    /// A session of a caller in `ours`.
    pub fn client_of(&self, caller: Caller) -> RestClient {
        self.client(self.token(caller).as_deref(), None)
    }

    /// Sends a request of the writer; `what` is the method and the path.
    pub async fn request(&self, what: &str, body: Option<Value>) -> (StatusCode, Value) {
        self.client_of(Caller::Writer).request(what, body).await
    }

    /// Sends a request of the writer that must succeed.
    pub async fn expect_ok(&self, what: &str, body: Option<Value>) -> Value {
        self.client_of(Caller::Writer).expect_ok(what, body).await
    }

    /// Sends a request of the writer that must be refused with these members in the problem.
    pub async fn expect_problem(
        &self,
        what: &str,
        body: Option<Value>,
        status: u16,
        expected: Value,
    ) -> Value {
        self.client_of(Caller::Writer).expect_problem(what, body, status, expected).await
    }

    pub async fn get(&self, path: &str) -> Value {
        self.client_of(Caller::Writer).get(path).await
    }

    pub async fn post(&self, path: &str, body: impl Serialize) -> Value {
        self.client_of(Caller::Writer).post(path, body).await
    }

    pub async fn put(&self, path: &str, body: impl Serialize) -> Value {
        self.client_of(Caller::Writer).put(path, body).await
    }

    pub async fn patch(&self, path: &str, body: impl Serialize) -> Value {
        self.client_of(Caller::Writer).patch(path, body).await
    }

    pub async fn delete(&self, path: &str) {
        self.client_of(Caller::Writer).delete(path).await;
    }

    /// A Unix time relative to now.
    pub fn seconds(&self, from_now: i64) -> i64 {
        self.clock.now().timestamp() + from_now
    }

    /// Creates one resource of each kind in `ours`.
    pub async fn seed_resources(&self) -> ResourceIds {
        let region = json!({"name": "south", "metadata": [{"key": "country", "value": "de"}]});
        let region = resource_id(&self.post("regions", region).await);
        let site = json!({"name": "ulm", "regionId": region, "siteLat": 483_000_000, "siteLng": 99_000_000});
        let site = resource_id(&self.post("sites", site).await);
        let host = json!({
            "name": "edge-01", "uuid": UUID, "serialNumber": "ABC12345", "autoOnboard": true, "siteId": site,
        });
        let host = resource_id(&self.post("compute/hosts/register", host).await);
        let os = resource_id(&self.post("compute/os", os_body("Debian 12")).await);
        let policy = json!({
            "name": "security", "updatePolicy": "UPDATE_POLICY_TARGET", "updatePackages": "curl\njq=1.7",
        });
        let policy = resource_id(&self.post("os-update-policies", policy).await);
        let instance =
            json!({"hostID": host, "osID": os, "osUpdatePolicyID": policy, "name": "on-edge-01"});
        let instance = resource_id(&self.post("compute/instances", instance).await);
        let schedule = json!({
            "name": "tonight", "scheduleStatus": "SCHEDULE_STATUS_OS_UPDATE", "targetHostId": host,
            "startSeconds": self.seconds(3_600), "endSeconds": self.seconds(7_200),
        });
        let schedule = resource_id(&self.post("schedules/single", schedule).await);
        let repeated = Some(nightly(&site));
        let repeated = resource_id(&self.expect_ok("POST schedules/repeated", repeated).await);
        let token = Some(json!({"name": "racks"}));
        let token = resource_id(&self.expect_ok("POST join-tokens", token).await);
        let target = self.post("notification-targets", notification_target("chat")).await;
        let [provider, config, account] = self.seed_provisioning().await;
        let run = self.create_run(&instance, &policy).await.to_string();
        ResourceIds {
            region,
            site,
            host,
            os,
            policy,
            instance,
            schedule,
            repeated,
            token,
            run,
            provider,
            config,
            account,
            notification_target: resource_id(&target),
            change: self.newest_change().await,
        }
    }

    /// The id of the newest change in `ours`.
    pub async fn newest_change(&self) -> String {
        let page = self.get("changes?pageSize=1").await;
        page["changes"][0]["changeId"].as_str().expect("a change").to_owned()
    }

    /// Creates the resources for provisioning; no instance uses them yet.
    async fn seed_provisioning(&self) -> [String; 3] {
        let provider = json!({
            "providerKind": "PROVIDER_KIND_BAREMETAL", "name": "vendor", "apiEndpoint": "https://vendor/api",
        });
        let config = json!({"name": "motd", "config": "#cloud-config"});
        let account = json!({"username": "operator", "sshKey": SSH_KEY});
        [
            resource_id(&self.post("providers", provider).await),
            resource_id(&self.post("customConfigs", config).await),
            resource_id(&self.post("localAccounts", account).await),
        ]
    }

    /// Creates an assignment, a pause and an order, and changes the settings.
    pub async fn seed_update_controls(&self, resources: &ResourceIds) {
        let assignment = json!({"osUpdatePolicyId": resources.policy, "maxConcurrent": 2});
        let order = json!({"kind": "now", "reason": "a hole"});
        for (what, body) in [
            (format!("PUT assignments/{}", resources.site), assignment),
            (format!("PUT pauses/{}", resources.site), json!({"reason": "moving"})),
            (format!("PUT compute/instances/{}/order", resources.instance), order),
            ("PUT settings".to_owned(), json!({"retentionDays": 7})),
        ] {
            self.expect_ok(&what, Some(body)).await;
        }
    }

    /// A finished run of an instance that updated one package.
    pub async fn create_run(&self, instance: &str, policy: &str) -> RunId {
        self.create_run_in(self.ours, "edge-01", instance, policy).await
    }

    /// A finished run in any project, of an instance on the host with this name.
    pub async fn create_run_in(
        &self,
        project: TenantId,
        host: &str,
        instance: &str,
        policy: &str,
    ) -> RunId {
        let tx = self.store.tenant(project).await.expect("a transaction");
        let policy = policies::find(&tx, policy.parse().expect("an id")).await.expect("the policy");
        let target = Target {
            policy: policy.id,
            kind: TargetKind::Packages {
                exactly: None,
                sources: Vec::new(),
                kernel_command: String::new(),
                rules: PackageRules::default(),
                allow_downgrades: false,
            },
            image_rules: ImageRules::default(),
        };
        let opening = RunOpening {
            instance: instance.parse::<InstanceId>().expect("an id"),
            name: format!("{host} update"),
            description: "OS update for Debian 12".to_owned(),
            attempt: Some(AttemptId(Uuid::from_u128(7))),
            origin: Origin { target: Some(target), policy: Some(policy), order: None },
            follows: None,
            assignment: None,
        };
        let (began, finished) = curl_upgrade_events();
        let timeouts = RunTimeouts::default();
        let now = self.clock.now();
        let new = Subject::New(Box::new(opening));
        let run = advance(&tx, new, &began, &timeouts, now).await.expect("it opens");
        let later = now + TimeDelta::seconds(5);
        advance(&tx, Subject::Run(run.id), &finished, &timeouts, later).await.expect("it ends");
        tx.commit().await.expect("committed");
        run.id
    }
}

/// The start of a run with its plan, and its end with the result.
fn curl_upgrade_events() -> (RunEventRecord, RunEventRecord) {
    let plan = PackageChange {
        name: "curl".to_owned(),
        architecture: "amd64".to_owned(),
        before: Some("8.4".to_owned()),
        desired: Some("8.5".to_owned()),
        suites: vec!["bookworm-security".to_owned()],
        ..PackageChange::default()
    };
    let began = Evidence { plan: Some(vec![plan]), ..Evidence::default() };
    let result = PackageResult {
        name: "curl".to_owned(),
        architecture: "amd64".to_owned(),
        observed: ObservedPackage {
            version: Some("8.5".to_owned()),
            state: "installed".to_owned(),
        },
    };
    let finished =
        Evidence { results: vec![result], report: Some(run_report()), ..Evidence::default() };
    (
        run_event_record(1, RunEvent::Downloading, began),
        run_event_record(2, RunEvent::Finished, finished),
    )
}

/// A schedule for every night at a site.
pub fn nightly(site: &str) -> Value {
    json!({
        "name": "every night", "scheduleStatus": "SCHEDULE_STATUS_OS_UPDATE", "durationSeconds": 7_200,
        "cronMinutes": "0", "cronHours": "2", "cronDayMonth": "*", "cronMonth": "*", "cronDayWeek": "*",
        "timeZone": "Europe/Berlin", "targetSiteId": site,
    })
}

pub const UUID: &str = "01234567-89ab-cdef-0123-456789abcdef";

/// A valid SSH key.
pub const SSH_KEY: &str =
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ0nGkPCXr4cVvoPZ0zZ9CqDk3Pqk1LQmV0h8eCDfX5T";

pub fn os_body(name: &str) -> Value {
    json!({"name": name, "osType": "OS_TYPE_MUTABLE", "profileName": name, "sha256": "0".repeat(64)})
}

pub fn noon() -> DateTime<Utc> {
    "2026-03-01T12:00:00Z".parse().expect("a time")
}

/// The report of a run that kept a file which a person had changed.
fn run_report() -> RunReport {
    let span = |phase: &str, millis, bytes| PhaseSpan { phase: phase.to_owned(), millis, bytes };
    RunReport {
        phases: vec![span("download", 1_500, 2_048), span("apply", 3_000, 0)],
        preserved_conffiles: vec!["/etc/curlrc".to_owned()],
        reboot_required: true,
        reboot_reasons: vec!["linux-image-amd64 requires it".to_owned()],
        kernel_before: "6.1.0-40-amd64".to_owned(),
        kernel_after: "6.1.0-40-amd64".to_owned(),
        held_back: vec![HeldBackPackage {
            name: "tzdata".to_owned(),
            architecture: "all".to_owned(),
            installed: "2025a".to_owned(),
            available: "2025b".to_owned(),
            cause: "hold".to_owned(),
        }],
        held_back_counts: vec![HeldBackCount { cause: "hold".to_owned(), packages: 1 }],
        ..RunReport::default()
    }
}

fn run_event_record(sequence: u32, event: RunEvent, evidence: Evidence) -> RunEventRecord {
    RunEventRecord {
        sequence: Some(sequence),
        node_time: Some(noon()),
        evidence,
        ..RunEventRecord::from_event(event)
    }
}

fn build_router(
    base: &evenkeel_test_support::TestServer,
    store: Store,
    settings: Settings,
) -> Router {
    router(inventory(base, store, settings))
}

fn inventory(
    base: &evenkeel_test_support::TestServer,
    store: Store,
    settings: Settings,
) -> Inventory {
    Inventory {
        store,
        clock: base.shared_clock(),
        authority: Arc::clone(&base.authority),
        ca_digest: Some("ab".repeat(32)),
        reserved_names: ReservedNames::new(|name| name == "file-user"),
        password_checker: PasswordChecker::new(|attempt| {
            let check = match attempt.password.reveal() {
                "open sesame!" => PasswordCheck::Correct,
                "too often" => {
                    PasswordCheck::TooManyAttempts(std::time::Duration::from_millis(7_500))
                }
                _ => PasswordCheck::Wrong,
            };
            Box::pin(async move { check })
        }),
        settings,
    }
}

pub async fn read_json(response: Response<Body>) -> (StatusCode, Value) {
    let (status, text) = read_text(response).await;
    let json = serde_json::from_str(&text);
    (status, json.unwrap_or_else(|_| json!(text)))
}

pub async fn read_text(response: Response<Body>) -> (StatusCode, String) {
    let status = response.status();
    let bytes = response.into_body().collect().await.expect("a body").to_bytes();
    (status, String::from_utf8_lossy(&bytes).into_owned())
}

/// Body of a new notification target.
pub fn notification_target(name: &str) -> Value {
    json!({"name": name, "url": "https://hooks.example/evenkeel", "events": ["run-failed"]})
}
