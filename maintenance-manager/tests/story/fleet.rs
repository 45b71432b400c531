//! More verbs of the stories: nodes of the ancestor's, images, and what people want of all of them.

use std::sync::Arc;

use chrono::TimeDelta;
use evenkeel_domain::assignment::Scope;
use evenkeel_domain::condition::ConditionKind;
use evenkeel_domain::host::Registration;
use evenkeel_domain::id::{HostId, InstanceId, OsId, PolicyId};
use evenkeel_domain::instance::{InstanceKind, NewInstance};
use evenkeel_domain::order::{Order, OrderKind};
use evenkeel_domain::os::{OsKind, OsProvider, OsRelease, OsSpec, SecurityFeature, Sha256};
use evenkeel_domain::pause::{Pause, PauseScope};
use evenkeel_domain::policy::{PolicySpec, Wish};
use evenkeel_domain::text::Name;
use evenkeel_kit::clock::Clock;
use evenkeel_maintenance_manager::{MaintenanceManager, Settings, SilenceWatch};
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

use crate::house::{House, TestNode, with};

/// A node of the ancestor's, as the test plays it.
pub struct OldNode {
    pub host: HostId,
    pub instance: InstanceId,
    pub guid: String,
}

impl OldNode {
    /// The same, for the verbs that only look at what is known here.
    pub fn as_node(&self) -> TestNode {
        TestNode {
            host: self.host,
            instance: self.instance,
            credential: String::new(),
        }
    }
}

/// A sample that says nothing more than this.
pub fn sample(kind: StatusType) -> UpdateStatus {
    UpdateStatus {
        status_type: kind.into(),
        ..UpdateStatus::default()
    }
}

/// A sample with the image that the node says it has.
pub fn naming(kind: StatusType, profile: &str, image: &str) -> UpdateStatus {
    UpdateStatus {
        profile_name: profile.into(),
        os_image_id: image.into(),
        ..sample(kind)
    }
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
pub fn file_of(profile: &str, version: &str) -> String {
    let digest = sha2::Sha256::digest(format!("{profile} {version}"));
    let digits = digest.iter().map(|byte| format!("{byte:02x}"));
    digits.collect::<Vec<_>>().concat()
}

impl House {
    pub async fn tx(&self) -> Tx {
        self.store.tenant(self.tenant).await.expect("a transaction")
    }

    /// A node of packages, made as the ancestor's are: over REST.
    pub async fn old_node(&self, n: u8) -> OldNode {
        let release = OsRelease {
            id: "ubuntu".into(),
            version_id: "24.04".into(),
            ..OsRelease::default()
        };
        let spec = OsSpec::of_release(&release, "amd64").expect("a profile");
        let tx = self.tx().await;
        let os = os_profiles::ensure(&tx, &spec, self.clock.now()).await;
        let os = os.expect("an os").id;
        tx.commit().await.expect("committed");
        self.old_node_on(n, os).await
    }

    pub async fn old_node_on(&self, n: u8, os: OsId) -> OldNode {
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
        OldNode {
            host,
            instance,
            guid,
        }
    }

    /// An image of the profile `edge` in the catalogue.
    pub async fn catalogue(&self, version: &str) -> OsId {
        self.catalogue_of("edge", version).await
    }

    pub async fn catalogue_of(&self, profile: &str, version: &str) -> OsId {
        let spec = OsSpec {
            name: format!("{profile} {version}"),
            kind: OsKind::Immutable,
            provider: OsProvider::Infra,
            architecture: "x86_64".into(),
            profile_name: profile.into(),
            image_id: version.into(),
            image_url: format!("files/{profile}-{version}.raw.gz"),
            sha256: Sha256::parse("sha256", &file_of(profile, version)).expect("a digest"),
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
        let made = os_profiles::create(&tx, &spec, self.clock.now()).await;
        tx.commit().await.expect("committed");
        made.expect("an image").id
    }

    /// A policy that names an image.
    pub async fn image_policy(&self, os: OsId) -> PolicyId {
        self.make(Wish::target(Some(os), "", &[], "").expect("a wish"))
            .await
    }

    pub async fn make(&self, wish: Wish) -> PolicyId {
        let spec = PolicySpec::parse("policy", "", wish).expect("a policy");
        let tx = self.tx().await;
        let policy = policies::create(&tx, &spec, self.clock.now()).await;
        tx.commit().await.expect("committed");
        policy.expect("a policy").id
    }

    pub async fn assign_to(&self, instance: InstanceId, policy: PolicyId) {
        self.assign(Scope::Instance(instance), policy, None, None)
            .await;
    }

    /// What a node of the ancestor's says, and what it is answered.
    pub async fn say(&self, old: &OldNode, status: UpdateStatus) -> PlatformUpdateStatusResponse {
        let answer = self.say_at(&self.manager, &old.guid, status).await;
        answer.expect("an answer")
    }

    pub async fn say_at(
        &self,
        manager: &MaintenanceManager,
        guid: &str,
        status: UpdateStatus,
    ) -> Result<PlatformUpdateStatusResponse, Status> {
        let request = PlatformUpdateStatusRequest {
            host_guid: guid.to_owned(),
            update_status: Some(status),
        };
        let request = with(&self.old_token(), request);
        manager.caught_up().await;
        let answer = manager.platform_update_status(request).await;
        answer.map(tonic::Response::into_inner)
    }

    /// The token of all nodes of the ancestor's in the project.
    pub fn old_token(&self) -> String {
        let role = evenkeel_auth::Role::Node(self.tenant.uuid());
        let hour = TimeDelta::hours(1);
        let issued = self
            .authority
            .issue_operator("agent", &[role], hour, self.clock.now());
        issued.expect("a token").token.reveal().to_owned()
    }

    pub async fn beat(&self, guid: &str) -> Result<(), Status> {
        let request = UpdateInstanceStateStatusByHostGuidRequest {
            host_guid: guid.to_owned(),
            ..UpdateInstanceStateStatusByHostGuidRequest::default()
        };
        let request = with(&self.old_token(), request);
        let manager = &self.manager;
        self.caught_up().await;
        manager
            .update_instance_state_status_by_host_guid(request)
            .await
            .map(drop)
    }

    pub async fn pause(&self, scope: PauseScope) {
        let pause = Pause {
            scope,
            reason: "look first".into(),
            by: "alice".into(),
            at: self.clock.now(),
        };
        let tx = self.tx().await;
        pauses::set(&tx, &pause).await.expect("paused");
        tx.commit().await.expect("committed");
    }

    pub async fn resume(&self, scope: PauseScope) {
        let tx = self.tx().await;
        pauses::clear(&tx, scope).await.expect("resumed");
        tx.commit().await.expect("committed");
    }

    /// An order that counts for an hour.
    pub async fn order(&self, instance: InstanceId, kind: OrderKind) {
        let now = self.clock.now();
        let order = Order {
            kind,
            at: now,
            until: now + TimeDelta::hours(1),
            reason: "a customer asked".into(),
            by: "alice".into(),
        };
        let tx = self.tx().await;
        let ordered = orders::set(&tx, &[instance], &order).await;
        ordered.expect("ordered");
        tx.commit().await.expect("committed");
    }

    /// Nothing is heard of a node for some minutes; then the watch makes its pass.
    pub async fn silent_for(&self, instance: InstanceId, minutes: i64) -> usize {
        let tx = self.store.fleet().await.expect("a transaction");
        let heard = Contact {
            tenant: self.tenant,
            instance,
            at: self.clock.now(),
            due: None,
        };
        contacts::heard(&tx, vec![heard]).await.expect("noted");
        tx.commit().await.expect("committed");
        self.pass(minutes);
        let clock = Arc::clone(&self.clock) as Arc<dyn Clock>;
        let watch = SilenceWatch::new(self.store.clone(), clock, &Settings::default());
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
        let known = self.state(instance).await.conditions;
        known.iter().map(|condition| condition.kind).collect()
    }

    /// How many slots of a scope are in use.
    pub async fn slots(&self, scope: Scope) -> u32 {
        let tx = self.tx().await;
        let found = evenkeel_store::assignments::find(&tx, scope, self.clock.now()).await;
        found.expect("assigned").held
    }
}
