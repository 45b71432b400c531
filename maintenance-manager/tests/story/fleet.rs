//! Methods of the test server for EIM nodes, images, policies and orders.

use chrono::TimeDelta;
use evenkeel_domain::assignment::Scope;
use evenkeel_domain::condition::ConditionKind;
use evenkeel_domain::host::Registration;
use evenkeel_domain::id::{HostId, InstanceId, OsId, PolicyId};
use evenkeel_domain::instance::{InstanceKind, NewInstance};
use evenkeel_domain::order::{Order, OrderKind};
use evenkeel_domain::os::{OsKind, OsProvider, OsRelease, OsSpec, SecurityFeature, Sha256};
use evenkeel_domain::pause::{Pause, PauseScope};
use evenkeel_domain::policy::{DesiredUpdate, PolicySpec};
use evenkeel_domain::text::Name;
use evenkeel_kit::clock::Clock;
use evenkeel_maintenance_manager::{MaintenanceManager, Settings, SilentNodeWatch};
use evenkeel_proto::hostmgr::UpdateInstanceStateStatusByHostGuidRequest;
use evenkeel_proto::hostmgr::hostmgr_server::Hostmgr;
use evenkeel_proto::maintmgr::maintmgr_service_server::MaintmgrService;
use evenkeel_proto::maintmgr::update_status::StatusType;
use evenkeel_proto::maintmgr::{
    PlatformUpdateStatusRequest, PlatformUpdateStatusResponse, UpdateStatus,
};
use evenkeel_store::contacts::Contact;
use evenkeel_store::{
    Tx, contacts, hosts, instances, nodes, orders, os_profiles, pauses, policies,
};
use sha2::Digest as _;
use tonic::Status;
use uuid::Uuid;

use crate::test_server::{TestNode, TestServer, with_credential};

/// An EIM node, played by the test.
pub struct EimTestNode {
    pub host: HostId,
    pub instance: InstanceId,
    pub guid: String,
}

impl EimTestNode {
    /// The same node, for methods that only read stored data.
    pub fn as_node(&self) -> TestNode {
        TestNode { host: self.host, instance: self.instance, credential: String::new() }
    }
}

/// A sample with a status and nothing else.
pub fn sample(kind: StatusType) -> UpdateStatus {
    UpdateStatus { status_type: kind.into(), ..UpdateStatus::default() }
}

/// A sample with the image that the node reports.
pub fn sample_with_image(kind: StatusType, profile: &str, image: &str) -> UpdateStatus {
    UpdateStatus { profile_name: profile.into(), os_image_id: image.into(), ..sample(kind) }
}

/// The window in an answer, in Unix seconds.
pub fn window(answer: &PlatformUpdateStatusResponse) -> Option<(u64, u64)> {
    let schedule = answer.update_schedule.as_ref().expect("always present");
    let single = schedule.single_schedule.as_ref();
    single.map(|single| (single.start_seconds, single.end_seconds))
}

/// The version of the image in an answer; empty if there is none.
pub fn image(answer: &PlatformUpdateStatusResponse) -> &str {
    let source = answer.os_profile_update_source.as_ref();
    &source.expect("always present").os_image_id
}

/// The digest of the file of an image.
pub fn file_digest(profile: &str, version: &str) -> String {
    let digest = sha2::Sha256::digest(format!("{profile} {version}"));
    let digits = digest.iter().map(|byte| format!("{byte:02x}"));
    digits.collect::<Vec<_>>().concat()
}

impl TestServer {
    pub async fn tx(&self) -> Tx {
        self.store.tenant(self.tenant).await.expect("a transaction")
    }

    /// A node with packages, registered over REST as EIM's nodes are.
    pub async fn eim_node(&self, n: u8) -> EimTestNode {
        let release =
            OsRelease { id: "ubuntu".into(), version_id: "24.04".into(), ..OsRelease::default() };
        let spec = OsSpec::from_release(&release, "amd64").expect("a profile");
        let tx = self.tx().await;
        let os = os_profiles::find_or_create(&tx, &spec, self.clock.now()).await;
        let os = os.expect("an os").id;
        tx.commit().await.expect("committed");
        self.eim_node_with_os(n, os).await
    }

    pub async fn eim_node_with_os(&self, n: u8, os: OsId) -> EimTestNode {
        let guid = Uuid::from_u128(0xA1B2_0000 + u128::from(n)).to_string();
        let now = self.clock.now();
        let tx = self.tx().await;
        let registration = Registration::parse("edge-01", &guid, "", true).expect("a host");
        let host = hosts::register(&tx, &registration, now).await;
        let host = host.expect("a host").id;
        let new = NewInstance {
            host,
            os,
            name: Name::default(),
            kind: InstanceKind::Metal,
            security_feature: SecurityFeature::None,
            policy: None,
            local_account: None,
            custom_configs: Vec::new(),
        };
        let instance = instances::create(&tx, &new, now).await;
        let instance = instance.expect("an instance").id;
        tx.commit().await.expect("committed");
        EimTestNode { host, instance, guid }
    }

    /// Adds an image of the profile `edge` to the catalogue.
    pub async fn add_image(&self, version: &str) -> OsId {
        self.add_image_of_profile("edge", version).await
    }

    pub async fn add_image_of_profile(&self, profile: &str, version: &str) -> OsId {
        let spec = OsSpec {
            name: format!("{profile} {version}"),
            kind: OsKind::Immutable,
            provider: OsProvider::Infra,
            architecture: "x86_64".into(),
            profile_name: profile.into(),
            image_id: version.into(),
            image_url: format!("files/{profile}-{version}.raw.gz"),
            sha256: Sha256::parse("sha256", &file_digest(profile, version)).expect("a digest"),
            image_signatures: Vec::new(),
            security_feature: SecurityFeature::None,
            description: String::new(),
            metadata: String::new(),
            repo_url: String::new(),
            tls_ca_cert: String::new(),
            installed_packages_url: String::new(),
            existing_cves_url: String::new(),
            fixed_cves_url: String::new(),
        };
        let tx = self.tx().await;
        let image = os_profiles::create(&tx, &spec, self.clock.now()).await;
        tx.commit().await.expect("committed");
        image.expect("an image").id
    }

    /// A policy that names an image.
    pub async fn image_policy(&self, os: OsId) -> PolicyId {
        self.create_policy_for(
            DesiredUpdate::parse_target(Some(os), "", &[], "").expect("a desired update"),
        )
        .await
    }

    pub async fn create_policy_for(&self, desired: DesiredUpdate) -> PolicyId {
        let spec = PolicySpec::parse("policy", "", desired).expect("a policy");
        let tx = self.tx().await;
        let policy = policies::create(&tx, &spec, self.clock.now()).await;
        tx.commit().await.expect("committed");
        policy.expect("a policy").id
    }

    pub async fn assign_to(&self, instance: InstanceId, policy: PolicyId) {
        self.assign(Scope::Instance(instance), policy, None, None).await;
    }

    /// Sends a status of an EIM node and returns the answer.
    pub async fn send_status(
        &self,
        eim: &EimTestNode,
        status: UpdateStatus,
    ) -> PlatformUpdateStatusResponse {
        let answer = self.send_status_to(&self.manager, &eim.guid, status).await;
        answer.expect("an answer")
    }

    pub async fn send_status_to(
        &self,
        manager: &MaintenanceManager,
        guid: &str,
        status: UpdateStatus,
    ) -> Result<PlatformUpdateStatusResponse, Status> {
        let request =
            PlatformUpdateStatusRequest { host_guid: guid.to_owned(), update_status: Some(status) };
        let request = with_credential(&self.eim_token(), request);
        manager.wait_until_caught_up().await;
        let answer = manager.platform_update_status(request).await;
        answer.map(tonic::Response::into_inner)
    }

    /// The token of all EIM nodes of the project.
    pub fn eim_token(&self) -> String {
        self.token("agent", &[evenkeel_auth::Role::Node(self.tenant.uuid())])
    }

    /// A token of ours for EIM's agents on a host.
    pub fn host_token(&self, host: HostId) -> String {
        self.token(&host.to_string(), &[evenkeel_auth::Role::Node(self.tenant.uuid())])
    }

    pub async fn send_heartbeat(&self, guid: &str) -> Result<(), Status> {
        let request = UpdateInstanceStateStatusByHostGuidRequest {
            host_guid: guid.to_owned(),
            ..UpdateInstanceStateStatusByHostGuidRequest::default()
        };
        let request = with_credential(&self.eim_token(), request);
        let manager = &self.manager;
        self.read_changes().await;
        manager.update_instance_state_status_by_host_guid(request).await.map(drop)
    }

    pub async fn pause(&self, scope: PauseScope) {
        let pause =
            Pause { scope, reason: "look first".into(), by: "alice".into(), at: self.clock.now() };
        let tx = self.tx().await;
        pauses::set(&tx, &pause).await.expect("paused");
        tx.commit().await.expect("committed");
    }

    pub async fn resume(&self, scope: PauseScope) {
        let tx = self.tx().await;
        pauses::clear(&tx, scope).await.expect("resumed");
        tx.commit().await.expect("committed");
    }

    /// Creates an order that is valid for an hour.
    pub async fn order(&self, instance: InstanceId, kind: OrderKind) {
        let now = self.clock.now();
        let order = Order {
            kind,
            at: now,
            until: now + TimeDelta::hours(1),
            reason: "requested by a customer".into(),
            by: "alice".into(),
        };
        let tx = self.tx().await;
        let ordered = orders::set(&tx, &[instance], &order).await;
        ordered.expect("ordered");
        tx.commit().await.expect("committed");
    }

    /// Lets a node be silent for some minutes, then runs a pass of the watch.
    pub async fn silent_for(&self, instance: InstanceId, minutes: i64) -> usize {
        let tx = self.store.fleet().await.expect("a transaction");
        let heard = Contact { tenant: self.tenant, instance, at: self.clock.now(), due: None };
        contacts::record_contacts(&tx, vec![heard], heard.at).await.expect("noted");
        tx.commit().await.expect("committed");
        self.advance_minutes(minutes);
        let watch =
            SilentNodeWatch::new(self.store.clone(), self.shared_clock(), &Settings::default());
        watch.pass().await.expect("a pass")
    }

    pub async fn host_status(&self, host: HostId) -> String {
        let tx = self.tx().await;
        hosts::find(&tx, host).await.expect("a host").status.text
    }

    pub async fn state(&self, instance: InstanceId) -> nodes::NodeState {
        let tx = self.tx().await;
        nodes::find(&tx, instance).await.expect("a state")
    }

    pub async fn conditions(&self, instance: InstanceId) -> Vec<ConditionKind> {
        let conditions = self.state(instance).await.conditions;
        conditions.iter().filter_map(|condition| condition.kind.known()).collect()
    }

    /// How many slots of a scope are in use.
    pub async fn used_slots(&self, scope: Scope) -> u32 {
        let tx = self.tx().await;
        let assignment = evenkeel_store::assignments::find(&tx, scope, self.clock.now()).await;
        assignment.expect("assigned").held_slots
    }
}
