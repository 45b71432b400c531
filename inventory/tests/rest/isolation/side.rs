//! One of two projects. All of its names have a word in them that the other project never uses.

use axum::http::StatusCode;
use evenkeel_domain::hardware::{Address, Hardware, Nic, Storage};
use evenkeel_domain::id::HostId;
use evenkeel_domain::tenant::TenantId;
use evenkeel_kit::Clock;
use evenkeel_store::hardware;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::house::{
    House, KEY, Things, Who, id_of, names_a_thing, nightly, os_body, read, text_of,
};
use crate::statuses::{operations, query};

/// How many things of each kind a project has.
const EACH: usize = 3;

/// A project, and somebody who may write in it.
pub struct Side {
    pub name: &'static str,
    pub tenant: TenantId,
    /// The word that is in all names.
    pub mark: &'static str,
    pub token: String,
    pub things: Vec<Things>,
    /// A host on which nothing runs.
    pub spare: String,
}

impl Side {
    /// Furnishes the project of the writer, or that of the foreigner.
    pub async fn settle(house: &House, who: Who) -> Self {
        let (name, tenant, mark) = match who {
            Who::Foreigner => ("theirs", house.theirs, "penguin"),
            _ => ("ours", house.ours, "walrus"),
        };
        let mut side = Self {
            name,
            tenant,
            mark,
            token: house.token(who).expect("a token"),
            things: Vec::new(),
            spare: String::new(),
        };
        for n in 0..EACH {
            let things = side.furnish(house, n).await;
            side.things.push(things);
        }
        let serial = format!("{}SPARE", mark.to_uppercase());
        let spare = json!({"name": format!("{mark}-spare"), "serialNumber": serial});
        side.spare = side.make(house, "compute/hosts/register", spare).await;
        let settings = json!({"retentionDays": 7});
        side.ok(house, "PUT settings", settings).await;
        let takes = json!({"enabledProfiles": [mark], "defaultProfile": mark});
        side.ok(house, "PUT os-catalogue/settings", takes).await;
        let os = house.synced(tenant, mark).await;
        house.reported(tenant, mark, os).await;
        side
    }

    /// Asks in the project; it must work.
    async fn ok(&self, house: &House, what: &str, body: Value) -> Value {
        let (method, path) = what.split_once(' ').expect("a method and a path");
        let what = format!("{method} /v1/projects/{}/{path}", self.name);
        let token = Some(self.token.as_str());
        let answer = house.ask_with(token, None, &what, Some(body));
        let (status, answer) = read(answer.await).await;
        assert_eq!(status, StatusCode::OK, "{what}: {answer}");
        answer
    }

    /// Makes something: its id.
    async fn make(&self, house: &House, list: &str, body: Value) -> String {
        id_of(&self.ok(house, &format!("POST {list}"), body).await)
    }

    /// One thing of each kind, all of them linked.
    async fn furnish(&self, house: &House, n: usize) -> Things {
        let mark = self.mark;
        let [region, site] = self.place(house, n).await;
        let [provider, config, account] = self.first_day(house, n).await;
        let host = self.machine(house, n, &site).await;
        let os = os_body(&format!("{mark} os {n}"));
        let os = self.make(house, "compute/os", os).await;
        let policy = json!({
            "name": format!("{mark}-policy-{n}"), "description": mark, "updatePolicy": "UPDATE_POLICY_TARGET",
            "updatePackages": format!("{mark}-package"),
        });
        let policy = self.make(house, "os-update-policies", policy).await;
        let instance = json!({
            "hostID": host, "osID": os, "osUpdatePolicyID": policy, "name": format!("on-{mark}-{n}"),
            "localAccountID": account, "customConfigID": [config],
        });
        let instance = self.make(house, "compute/instances", instance).await;
        let schedule = json!({
            "name": format!("{mark}-tonight-{n}"), "scheduleStatus": "SCHEDULE_STATUS_OS_UPDATE",
            "targetHostId": host, "startSeconds": house.seconds(3_600), "endSeconds": house.seconds(7_200),
        });
        let schedule = self.make(house, "schedules/single", schedule).await;
        let mut repeated = nightly(&site);
        repeated["name"] = json!(format!("{mark}-night-{n}"));
        let repeated = self.make(house, "schedules/repeated", repeated).await;
        let token = json!({"name": format!("{mark}-token-{n}")});
        let token = self.make(house, "join-tokens", token).await;
        let host_name = format!("{mark}-{n}");
        let run = house
            .run_in(self.tenant, &host_name, &instance, &policy)
            .await
            .to_string();
        let things = Things {
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
        };
        self.want(house, &things).await;
        things
    }

    /// A region, in the one before if there is one, and a site in it.
    async fn place(&self, house: &House, n: usize) -> [String; 2] {
        let mark = self.mark;
        let above = self.things.last().map_or("", |above| above.region.as_str());
        let labels = json!([{"key": format!("{mark}-key"), "value": format!("{mark}-{n}")}]);
        let region =
            json!({"name": format!("{mark}-region-{n}"), "parentId": above, "metadata": labels});
        let region = self.make(house, "regions", region).await;
        let site =
            json!({"name": format!("{mark}-site-{n}"), "regionId": region, "metadata": labels});
        let site = self.make(house, "sites", site).await;
        [region, site]
    }

    /// What the first start of a machine takes.
    async fn first_day(&self, house: &House, n: usize) -> [String; 3] {
        let mark = self.mark;
        let provider = json!({
            "providerKind": "PROVIDER_KIND_BAREMETAL", "name": format!("{mark}-provider-{n}"),
            "apiEndpoint": format!("https://{mark}/api"), "config": mark,
        });
        let config = json!({"name": format!("{mark}-config-{n}"), "config": format!("#{mark}")});
        let key = format!("{KEY} {mark}@edge");
        let account = json!({"username": format!("{mark}-{n}"), "sshKey": key});
        [
            self.make(house, "providers", provider).await,
            self.make(house, "customConfigs", config).await,
            self.make(house, "localAccounts", account).await,
        ]
    }

    /// A host that has said what it is made of.
    async fn machine(&self, house: &House, n: usize, site: &str) -> String {
        let (mark, number) = (self.mark, u8::try_from(n).expect("a small number"));
        let uuid = Uuid::from_u128(self.tenant.uuid().as_u128() ^ u128::from(number + 1));
        let host = json!({
            "name": format!("{mark}-{n}"), "uuid": uuid, "autoOnboard": true, "siteId": site,
            "serialNumber": format!("{}{n:04}", mark.to_uppercase()),
        });
        let host = self.make(house, "compute/hosts/register", host).await;
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
        let tx = house.store.tenant(self.tenant).await;
        let tx = tx.expect("a transaction");
        let id: HostId = host.parse().expect("an id");
        hardware::keep(&tx, id, made_of, &[number; 32], house.clock.now())
            .await
            .expect("kept");
        tx.commit().await.expect("committed");
        host
    }

    /// What people can want of things.
    async fn want(&self, house: &House, things: &Things) {
        let reason = json!({"reason": self.mark});
        let policy = json!({"osUpdatePolicyId": things.policy});
        let order = json!({"kind": "now", "reason": self.mark});
        let at_site = format!("PUT assignments/{}", things.site);
        self.ok(house, &at_site, policy.clone()).await;
        self.ok(house, "PUT assignments/project", policy).await;
        self.ok(house, &format!("PUT pauses/{}", things.site), reason)
            .await;
        let of_instance = format!("PUT compute/instances/{}/order", things.instance);
        self.ok(house, &of_instance, order).await;
    }

    /// All that its own people are told of it, as text.
    pub async fn told(&self, house: &House) -> String {
        let mut told = String::new();
        for (method, path, operation) in operations() {
            if method != "GET" || !path.contains("{projectName}") {
                continue;
            }
            let each = if names_a_thing(&path) { EACH } else { 1 };
            for things in self.things.iter().take(each) {
                let path = things.fill(&path, self.name);
                let what = format!("GET {path}{}", query(&operation));
                let token = Some(self.token.as_str());
                let answer = house.ask_with(token, None, &what, None);
                let (status, text) = text_of(answer.await).await;
                assert_eq!(status, StatusCode::OK, "{what}: {text}");
                told.push_str(&text);
            }
        }
        told
    }
}
