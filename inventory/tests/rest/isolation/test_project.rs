//! One of two projects. All of its names contain a mark that the other project never uses.

use axum::http::StatusCode;
use evenkeel_domain::hardware::{Address, Hardware, Nic, Storage};
use evenkeel_domain::id::HostId;
use evenkeel_domain::tenant::TenantId;
use evenkeel_kit::Clock;
use evenkeel_store::hardware;
use evenkeel_test_support::RestClient;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::statuses::{operations, required_query};
use crate::test_server::{
    Caller, ResourceIds, SSH_KEY, TestServer, has_id_placeholder, nightly, notification_target,
    os_body, resource_id,
};

/// Number of resources of each kind in a project.
const RESOURCES_PER_KIND: usize = 3;

/// A project, and the token of a caller that may write in it.
pub struct TestProject {
    pub name: &'static str,
    pub tenant: TenantId,
    /// The mark that is in all names.
    pub mark: &'static str,
    pub token: String,
    pub resources: Vec<ResourceIds>,
    /// A host without an instance.
    pub spare: String,
}

impl TestProject {
    /// Seeds the project of the writer, or that of the foreigner.
    pub async fn set_up(server: &TestServer, caller: Caller) -> Self {
        let (name, tenant, mark) = match caller {
            Caller::Foreigner => ("theirs", server.theirs, "penguin"),
            _ => ("ours", server.ours, "walrus"),
        };
        let mut project = Self {
            name,
            tenant,
            mark,
            token: server.token(caller).expect("a token"),
            resources: Vec::new(),
            spare: String::new(),
        };
        for n in 0..RESOURCES_PER_KIND {
            let resources = project.seed_resources(server, n).await;
            project.resources.push(resources);
        }
        let serial = format!("{}SPARE", mark.to_uppercase());
        let spare = json!({"name": format!("{mark}-spare"), "serialNumber": serial});
        project.spare = project.create(server, "compute/hosts/register", spare).await;
        let settings = json!({"retentionDays": 7});
        project.expect_ok(server, "PUT settings", settings).await;
        let takes = json!({"enabledProfiles": [mark], "defaultProfile": mark});
        project.expect_ok(server, "PUT os-catalogue/settings", takes).await;
        let os = server.create_synced_os(tenant, mark).await;
        server.store_sync_report(tenant, mark, os).await;
        project
    }

    /// A session in the project.
    pub fn client(&self, server: &TestServer) -> RestClient {
        RestClient::with_router(&server.router, self.name).with_token(&self.token)
    }

    /// Sends a request in the project; it must succeed.
    async fn expect_ok(&self, server: &TestServer, what: &str, body: Value) -> Value {
        self.client(server).expect_ok(what, Some(body)).await
    }

    /// Creates a resource and returns its id.
    async fn create(&self, server: &TestServer, list: &str, body: Value) -> String {
        resource_id(&self.expect_ok(server, &format!("POST {list}"), body).await)
    }

    /// Creates one resource of each kind; they refer to each other.
    async fn seed_resources(&self, server: &TestServer, n: usize) -> ResourceIds {
        let mark = self.mark;
        let [region, site] = self.create_location(server, n).await;
        let [provider, config, account] = self.create_provisioning(server, n).await;
        let host = self.create_host(server, n, &site).await;
        let os = os_body(&format!("{mark} os {n}"));
        let os = self.create(server, "compute/os", os).await;
        let policy = json!({
            "name": format!("{mark}-policy-{n}"), "description": mark, "updatePolicy": "UPDATE_POLICY_TARGET",
            "updatePackages": format!("{mark}-package"),
        });
        let policy = self.create(server, "os-update-policies", policy).await;
        let instance = json!({
            "hostID": host, "osID": os, "osUpdatePolicyID": policy, "name": format!("on-{mark}-{n}"),
            "localAccountID": account, "customConfigID": [config],
        });
        let instance = self.create(server, "compute/instances", instance).await;
        let schedule = json!({
            "name": format!("{mark}-tonight-{n}"), "scheduleStatus": "SCHEDULE_STATUS_OS_UPDATE",
            "targetHostId": host, "startSeconds": server.seconds(3_600), "endSeconds": server.seconds(7_200),
        });
        let schedule = self.create(server, "schedules/single", schedule).await;
        let mut repeated = nightly(&site);
        repeated["name"] = json!(format!("{mark}-night-{n}"));
        let repeated = self.create(server, "schedules/repeated", repeated).await;
        let token = json!({"name": format!("{mark}-token-{n}")});
        let token = self.create(server, "join-tokens", token).await;
        let target = notification_target(&format!("{mark}-chat-{n}"));
        let notification_target = self.create(server, "notification-targets", target).await;
        let host_name = format!("{mark}-{n}");
        let run =
            server.create_run_in(self.tenant, &host_name, &instance, &policy).await.to_string();
        let changes = self.client(server).get("changes?pageSize=1").await;
        let change = changes["changes"][0]["changeId"].as_str().expect("a change").to_owned();
        let resources = ResourceIds {
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
            notification_target,
            change,
        };
        self.seed_update_controls(server, &resources).await;
        resources
    }

    /// Creates a region, below the previous one if there is one, and a site in it.
    async fn create_location(&self, server: &TestServer, n: usize) -> [String; 2] {
        let mark = self.mark;
        let above = self.resources.last().map_or("", |above| above.region.as_str());
        let labels = json!([{"key": format!("{mark}-key"), "value": format!("{mark}-{n}")}]);
        let region =
            json!({"name": format!("{mark}-region-{n}"), "parentId": above, "metadata": labels});
        let region = self.create(server, "regions", region).await;
        let site =
            json!({"name": format!("{mark}-site-{n}"), "regionId": region, "metadata": labels});
        let site = self.create(server, "sites", site).await;
        [region, site]
    }

    /// Creates the resources for provisioning.
    async fn create_provisioning(&self, server: &TestServer, n: usize) -> [String; 3] {
        let mark = self.mark;
        let provider = json!({
            "providerKind": "PROVIDER_KIND_BAREMETAL", "name": format!("{mark}-provider-{n}"),
            "apiEndpoint": format!("https://{mark}/api"), "config": mark,
        });
        let config = json!({"name": format!("{mark}-config-{n}"), "config": format!("#{mark}")});
        let key = format!("{SSH_KEY} {mark}@edge");
        let account = json!({"username": format!("{mark}-{n}"), "sshKey": key});
        [
            self.create(server, "providers", provider).await,
            self.create(server, "customConfigs", config).await,
            self.create(server, "localAccounts", account).await,
        ]
    }

    /// Creates a host with known hardware.
    async fn create_host(&self, server: &TestServer, n: usize, site: &str) -> String {
        let (mark, number) = (self.mark, u8::try_from(n).expect("a small number"));
        let uuid = Uuid::from_u128(self.tenant.uuid().as_u128() ^ u128::from(number + 1));
        let host = json!({
            "name": format!("{mark}-{n}"), "uuid": uuid, "autoOnboard": true, "siteId": site,
            "serialNumber": format!("{}{n:04}", mark.to_uppercase()),
        });
        let host = self.create(server, "compute/hosts/register", host).await;
        let made_of = Hardware {
            cpu_model: format!("{mark} inside"),
            storages: vec![Storage {
                wwid: format!("{mark}-disk-{n}"),
                device_name: "sda".to_owned(),
                ..Storage::default()
            }],
            nics: vec![Nic {
                device_name: format!("{mark}{n}"),
                ipaddresses: vec![Address {
                    address: format!("10.0.{n}.1/24"),
                    ..Address::default()
                }],
                ..Nic::default()
            }],
            ..Hardware::default()
        };
        let tx = server.store.tenant(self.tenant).await;
        let tx = tx.expect("a transaction");
        let id: HostId = host.parse().expect("an id");
        hardware::store_if_changed(&tx, id, made_of, &[number; 32], server.clock.now())
            .await
            .expect("stored");
        tx.commit().await.expect("committed");
        host
    }

    /// Creates assignments, a pause and an order.
    async fn seed_update_controls(&self, server: &TestServer, resources: &ResourceIds) {
        let reason = json!({"reason": self.mark});
        let policy = json!({"osUpdatePolicyId": resources.policy});
        let order = json!({"kind": "now", "reason": self.mark});
        let at_site = format!("PUT assignments/{}", resources.site);
        self.expect_ok(server, &at_site, policy.clone()).await;
        self.expect_ok(server, "PUT assignments/project", policy).await;
        self.expect_ok(server, &format!("PUT pauses/{}", resources.site), reason).await;
        let of_instance = format!("PUT compute/instances/{}/order", resources.instance);
        self.expect_ok(server, &of_instance, order).await;
    }

    /// Everything that a member of the project can read, as text.
    pub async fn read_all(&self, server: &TestServer) -> String {
        let mut all = String::new();
        for (method, path, operation) in operations() {
            if method != "GET" || !path.contains("{projectName}") {
                continue;
            }
            let each = if has_id_placeholder(&path) { RESOURCES_PER_KIND } else { 1 };
            for resources in self.resources.iter().take(each) {
                let path = resources.fill(&path, self.name);
                let what = format!("GET {path}{}", required_query(&operation));
                let answer = self.client(server).call(&what, None).await;
                assert_eq!(answer.status, StatusCode::OK, "{what}: {}", answer.text);
                all.push_str(&answer.text);
            }
        }
        all
    }
}
