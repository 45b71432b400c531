//! A server with two projects, and people with tokens.

mod catalogue;
mod furniture;

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, Response, StatusCode};
use chrono::{DateTime, TimeDelta, Utc};
use evenkeel_auth::{Authority, Keys, Role, Settings as AuthSettings};
use evenkeel_domain::decide::{Target, TargetKind};
use evenkeel_domain::id::{InstanceId, RunId};
use evenkeel_domain::package::{FoundPackage, PackageChange, PackageResult};
use evenkeel_domain::policy::{ImageRules, PackageRules};
use evenkeel_domain::run::{
    Account, AttemptId, Evidence, Happening, Origin, Patience, PhaseSpan, RunEvent,
};
use evenkeel_domain::tenant::{ProjectName, TenantId};
use evenkeel_inventory::{Inventory, Settings, router};
use evenkeel_kit::{Clock, TestClock};
use evenkeel_store::runs::{Opening, Subject, advance};
use evenkeel_store::{Store, policies, projects};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tempfile::TempDir;
use tower::ServiceExt;
use uuid::Uuid;

pub use catalogue::{cves, packages, statement, with_registries};
pub use furniture::{NAMED, Things, legacy, names_a_thing};

/// A server with the projects `ours` and `theirs`.
pub struct House {
    pub router: Router,
    pub store: Store,
    pub clock: TestClock,
    pub authority: Arc<Authority>,
    pub ours: TenantId,
    pub theirs: TenantId,
    _keys: TempDir,
}

/// Who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// Nobody: no token.
    Nobody,
    /// Somebody who is vouched for, and may do nothing.
    Guest,
    /// Reads in `ours`.
    Reader,
    /// Writes in `ours`.
    Writer,
    /// Writes in `theirs`.
    Foreigner,
    /// A node of `ours`.
    Node,
    /// Everything.
    Administrator,
}

impl House {
    pub async fn new() -> Self {
        Self::with(Settings::default()).await
    }

    pub async fn with(settings: Settings) -> Self {
        Self::on(evenkeel_store::testing::fresh_store().await, settings).await
    }

    /// The same on a store of one's own, with nothing in it.
    pub async fn on(store: Store, settings: Settings) -> Self {
        let keys = tempfile::tempdir().expect("a folder");
        let clock = TestClock::new(noon());
        let signing = Keys::open(keys.path()).expect("a key");
        let authority = Arc::new(Authority::new(signing, AuthSettings::default()));
        let router = serve(&store, &clock, &authority, settings);
        let ours = project(&store, "ours").await;
        let theirs = project(&store, "theirs").await;
        Self {
            router,
            store,
            clock,
            authority,
            ours,
            theirs,
            _keys: keys,
        }
    }

    /// The same as a program with another store serves it.
    pub fn served_by(&self, store: &Store) -> Router {
        serve(store, &self.clock, &self.authority, Settings::default())
    }

    /// The token of somebody.
    pub fn token(&self, who: Who) -> Option<String> {
        let (ours, theirs) = (self.ours.uuid(), self.theirs.uuid());
        let roles: &[Role] = match who {
            Who::Nobody => return None,
            Who::Guest => &[],
            Who::Reader => &[Role::Read(ours)],
            Who::Writer => &[Role::Write(ours)],
            Who::Foreigner => &[Role::Write(theirs)],
            Who::Node => &[Role::Node(ours)],
            Who::Administrator => &[Role::Administrator],
        };
        let name = format!("{who:?}").to_lowercase();
        let issued =
            self.authority
                .issue_operator(&name, roles, TimeDelta::hours(1), self.clock.now());
        Some(issued.expect("a token").token.reveal().to_owned())
    }

    /// Sends a request and gives the whole answer.
    pub async fn send(&self, request: Request<Body>) -> Response<Body> {
        self.router
            .clone()
            .oneshot(request)
            .await
            .expect("a router never fails")
    }

    /// Asks as somebody, with or without a body.
    pub async fn ask(&self, who: Who, what: &str, body: Option<Value>) -> (StatusCode, Value) {
        let token = self.token(who);
        read(self.ask_with(token.as_deref(), None, what, body).await).await
    }

    /// Asks with a token or without one, perhaps with the UUID of a project in the head as the legacy form has it.
    pub async fn ask_with(
        &self,
        token: Option<&str>,
        project: Option<&str>,
        what: &str,
        body: Option<Value>,
    ) -> Response<Body> {
        let (method, path) = what.split_once(' ').expect("a method and a path");
        let mut request = Request::builder().method(method).uri(path);
        if let Some(token) = token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        if let Some(project) = project {
            request = request.header("ActiveProjectID", project);
        }
        let body = match body {
            None => Body::empty(),
            Some(body) => {
                request = request.header("content-type", "application/json");
                Body::from(body.to_string())
            }
        };
        self.send(request.body(body).expect("a request")).await
    }

    /// Asks as the writer of `ours` below its path; it must work.
    pub async fn ok(&self, what: &str, body: Option<Value>) -> Value {
        let (status, answer) = self.ours(what, body).await;
        assert_eq!(status, StatusCode::OK, "{what}: {answer}");
        answer
    }

    /// Asks as the writer of `ours` below its path.
    pub async fn ours(&self, what: &str, body: Option<Value>) -> (StatusCode, Value) {
        let (method, path) = what.split_once(' ').expect("a method and a path");
        self.ask(
            Who::Writer,
            &format!("{method} /v1/projects/ours/{path}"),
            body,
        )
        .await
    }

    /// Seconds from now, as the API takes them.
    pub fn seconds(&self, from_now: i64) -> i64 {
        self.clock.now().timestamp() + from_now
    }

    /// One thing of each kind in `ours`.
    pub async fn furnish(&self) -> Things {
        let region = json!({"name": "south", "metadata": [{"key": "country", "value": "de"}]});
        let region = id_of(&self.ok("POST regions", Some(region)).await);
        let site = json!({"name": "ulm", "regionId": region, "siteLat": 483_000_000, "siteLng": 99_000_000});
        let site = id_of(&self.ok("POST sites", Some(site)).await);
        let host = json!({
            "name": "edge-01", "uuid": UUID, "serialNumber": "ABC12345", "autoOnboard": true, "siteId": site,
        });
        let host = id_of(&self.ok("POST compute/hosts/register", Some(host)).await);
        let os = id_of(&self.ok("POST compute/os", Some(os_body("Debian 12"))).await);
        let policy = json!({
            "name": "security", "updatePolicy": "UPDATE_POLICY_TARGET", "updatePackages": "curl\njq=1.7",
        });
        let policy = id_of(&self.ok("POST os-update-policies", Some(policy)).await);
        let instance =
            json!({"hostID": host, "osID": os, "osUpdatePolicyID": policy, "name": "on-edge-01"});
        let instance = id_of(&self.ok("POST compute/instances", Some(instance)).await);
        let schedule = json!({
            "name": "tonight", "scheduleStatus": "SCHEDULE_STATUS_OS_UPDATE", "targetHostId": host,
            "startSeconds": self.seconds(3_600), "endSeconds": self.seconds(7_200),
        });
        let schedule = id_of(&self.ok("POST schedules/single", Some(schedule)).await);
        let repeated = Some(nightly(&site));
        let repeated = id_of(&self.ok("POST schedules/repeated", repeated).await);
        let token = Some(json!({"name": "racks"}));
        let token = id_of(&self.ok("POST join-tokens", token).await);
        let [provider, config, account] = self.first_day().await;
        let run = self.run_of(&instance, &policy).await.to_string();
        Things {
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
        }
    }

    /// What the first start of a machine takes; nothing was made with it yet.
    async fn first_day(&self) -> [String; 3] {
        let provider = json!({
            "providerKind": "PROVIDER_KIND_BAREMETAL", "name": "vendor", "apiEndpoint": "https://vendor/api",
        });
        let config = json!({"name": "motd", "config": "#cloud-config"});
        let account = json!({"username": "operator", "sshKey": KEY});
        [
            id_of(&self.ok("POST providers", Some(provider)).await),
            id_of(&self.ok("POST customConfigs", Some(config)).await),
            id_of(&self.ok("POST localAccounts", Some(account)).await),
        ]
    }

    /// What people can want of things, one of each kind.
    pub async fn want(&self, things: &Things) {
        let assignment = json!({"osUpdatePolicyId": things.policy, "maxConcurrent": 2});
        let order = json!({"kind": "now", "reason": "a hole"});
        for (what, body) in [
            (format!("PUT assignments/{}", things.site), assignment),
            (
                format!("PUT pauses/{}", things.site),
                json!({"reason": "moving"}),
            ),
            (
                format!("PUT compute/instances/{}/order", things.instance),
                order,
            ),
            ("PUT settings".to_owned(), json!({"retentionDays": 7})),
        ] {
            self.ok(&what, Some(body)).await;
        }
    }

    /// A run of an instance that changed one package.
    pub async fn run_of(&self, instance: &str, policy: &str) -> RunId {
        self.run_in(self.ours, "edge-01", instance, policy).await
    }

    /// A run in any project, of an instance on the host of this name.
    pub async fn run_in(
        &self,
        project: TenantId,
        host: &str,
        instance: &str,
        policy: &str,
    ) -> RunId {
        let tx = self.store.tenant(project).await.expect("a transaction");
        let policy = policies::find(&tx, policy.parse().expect("an id"))
            .await
            .expect("the policy");
        let target = Target {
            policy: policy.id,
            wish: TargetKind::Packages {
                exactly: None,
                sources: Vec::new(),
                kernel_command: String::new(),
                rules: PackageRules::default(),
                allow_downgrades: false,
            },
            image_rules: ImageRules::default(),
        };
        let opening = Opening {
            instance: instance.parse::<InstanceId>().expect("an id"),
            name: format!("{host} update"),
            description: "OS update for Debian 12".to_owned(),
            attempt: Some(AttemptId(Uuid::from_u128(7))),
            origin: Origin {
                target: Some(target),
                policy: Some(policy),
                order: None,
            },
            follows: None,
        };
        let (began, finished) = upgrade_of_curl();
        let patience = Patience::default();
        let now = self.clock.now();
        let new = Subject::New(Box::new(opening));
        let run = advance(&tx, new, &began, &patience, now)
            .await
            .expect("it opens");
        let later = now + TimeDelta::seconds(5);
        advance(&tx, Subject::Run(run.id), &finished, &patience, later)
            .await
            .expect("it ends");
        tx.commit().await.expect("committed");
        run.id
    }
}

/// Its beginning with the plan, and its end with what was found.
fn upgrade_of_curl() -> (Happening, Happening) {
    let plan = PackageChange {
        name: "curl".to_owned(),
        architecture: "amd64".to_owned(),
        before: Some("8.4".to_owned()),
        wanted: Some("8.5".to_owned()),
        found: None,
    };
    let began = Evidence {
        plan: Some(vec![plan]),
        ..Evidence::default()
    };
    let found = PackageResult {
        name: "curl".to_owned(),
        architecture: "amd64".to_owned(),
        found: FoundPackage {
            version: Some("8.5".to_owned()),
            state: "installed".to_owned(),
        },
    };
    let finished = Evidence {
        results: vec![found],
        account: Some(account()),
        ..Evidence::default()
    };
    (
        happening(1, RunEvent::Downloading, began),
        happening(2, RunEvent::Finished, finished),
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

/// A key that may log in.
pub const KEY: &str =
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ0nGkPCXr4cVvoPZ0zZ9CqDk3Pqk1LQmV0h8eCDfX5T";

pub fn os_body(name: &str) -> Value {
    json!({"name": name, "osType": "OS_TYPE_MUTABLE", "profileName": name, "sha256": "0".repeat(64)})
}

pub fn noon() -> DateTime<Utc> {
    "2026-03-01T12:00:00Z".parse().expect("a time")
}

/// How a run went that kept a file which a person had changed.
fn account() -> Account {
    let span = |phase: &str, millis, bytes| PhaseSpan {
        phase: phase.to_owned(),
        millis,
        bytes,
    };
    Account {
        phases: vec![span("download", 1_500, 2_048), span("apply", 3_000, 0)],
        kept_conffiles: vec!["/etc/curlrc".to_owned()],
        reboot_required: true,
        ..Account::default()
    }
}

fn happening(sequence: u32, event: RunEvent, evidence: Evidence) -> Happening {
    Happening {
        sequence: Some(sequence),
        node_time: Some(noon()),
        evidence,
        ..Happening::of(event)
    }
}

fn serve(
    store: &Store,
    clock: &TestClock,
    authority: &Arc<Authority>,
    settings: Settings,
) -> Router {
    router(Inventory {
        store: store.clone(),
        clock: Arc::new(clock.clone()),
        authority: Arc::clone(authority),
        ca_digest: Some("ab".repeat(32)),
        settings,
    })
}

async fn project(store: &Store, name: &str) -> TenantId {
    let tx = store.fleet().await.expect("a transaction");
    let name = ProjectName::parse("name", name).expect("a name");
    let project = projects::create(&tx, &name, "", noon())
        .await
        .expect("a project");
    tx.commit().await.expect("committed");
    project.id
}

/// The id of what an answer is about.
pub fn id_of(answer: &Value) -> String {
    answer["resourceId"].as_str().expect("an id").to_owned()
}

/// The status and the JSON of an answer.
pub async fn read(response: Response<Body>) -> (StatusCode, Value) {
    let (status, text) = text_of(response).await;
    let json = serde_json::from_str(&text);
    (status, json.unwrap_or_else(|_| json!(text)))
}

/// The status and the text of an answer.
pub async fn text_of(response: Response<Body>) -> (StatusCode, String) {
    let status = response.status();
    let bytes = response
        .into_body()
        .collect()
        .await
        .expect("a body")
        .to_bytes();
    (status, String::from_utf8_lossy(&bytes).into_owned())
}
