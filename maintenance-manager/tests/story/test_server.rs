//! A maintenance manager on a database of its own, with methods for the tests.

use std::ops::Deref;
use std::sync::Arc;

use chrono::{DateTime, TimeDelta, Utc};
use evenkeel_auth::JoinToken;
use evenkeel_domain::assignment::{Scope, UpdateLimits};
use evenkeel_domain::filter::{self, Resource};
use evenkeel_domain::id::{HostId, InstanceId, PolicyId, RunId};
use evenkeel_domain::join_token::JoinTokenSpec;
use evenkeel_domain::policy::{DesiredUpdate, PolicySpec};
use evenkeel_domain::run::UpdateRun;
use evenkeel_domain::schedule::{ScheduleStatus, ScheduleTarget, SingleSpec};
use evenkeel_domain::tenant::TenantId;
use evenkeel_domain::text::Name;
use evenkeel_kit::Clock;
use evenkeel_maintenance_manager::{MaintenanceManager, RunReaper, Settings};
use evenkeel_proto::agent::agent_service_server::AgentService;
use evenkeel_proto::agent::begin_response::Answer;
use evenkeel_proto::agent::event::Kind;
use evenkeel_proto::agent::*;
use evenkeel_proto::maintmgr::maintmgr_service_server::MaintmgrService;
use evenkeel_proto::maintmgr::update_status::StatusType;
use evenkeel_proto::maintmgr::{
    PlatformUpdateStatusRequest, PlatformUpdateStatusResponse, UpdateStatus,
};
use evenkeel_store::listing::{self, Listing};
use evenkeel_store::{assignments, instances, join_tokens, nodes, policies, runs, schedules};
use tonic::{Request, Status};
use uuid::Uuid;

pub use crate::messages::*;
use crate::replicas::{Replicas, with_credentials, with_full_audit};

pub const NOON: DateTime<Utc> = DateTime::from_timestamp_nanos(1_800_000_000_000_000_000);

pub struct TestServer {
    pub manager: MaintenanceManager,
    pub tenant: TenantId,
    pub replicas: Arc<Replicas>,
    base: evenkeel_test_support::TestServer,
}

impl Deref for TestServer {
    type Target = evenkeel_test_support::TestServer;

    fn deref(&self) -> &Self::Target {
        &self.base
    }
}

/// A node with our own agent, played by the test.
pub struct TestNode {
    pub host: HostId,
    pub instance: InstanceId,
    pub credential: String,
}

impl TestNode {
    /// The node of an enrolled machine.
    pub fn from_enrolment(answer: EnrollResponse) -> Self {
        Self {
            host: answer.host_id.parse().expect("a host"),
            instance: answer.instance_id.parse().expect("an instance"),
            credential: answer.credential,
        }
    }
}

impl TestServer {
    pub async fn new() -> Self {
        Self::with_settings(Settings::default()).await
    }

    /// A server with a node, and with a policy for these packages that is assigned to the node.
    pub async fn with_policy(packages: &str) -> (Self, TestNode, PolicyId) {
        let server = Self::new().await;
        let node = server.node().await;
        let policy = server.policy(&node, packages).await;
        (server, node, policy)
    }

    pub async fn with_settings(settings: Settings) -> Self {
        let server = Self::without_log_follower(settings).await;
        server.follow(&server.manager).await;
        server
    }

    /// A server whose manager does not follow the change log, so it caches nothing.
    pub async fn without_log_follower(settings: Settings) -> Self {
        let base = evenkeel_test_support::TestServer::new(NOON).await;
        let manager = MaintenanceManager::new(
            base.store.clone(),
            base.shared_clock(),
            Arc::clone(&base.authority),
            Arc::clone(&base.ca),
            with_full_audit(with_credentials(settings)),
        );
        let manager = manager.expect("valid settings");
        let tenant = base.create_project("default").await;
        Self { manager, tenant, replicas: Arc::default(), base }
    }

    /// The same server with a project of its own. The clock is shared and set back.
    pub async fn in_new_project(&self, name: &str) -> Self {
        self.clock.set(NOON);
        Self {
            manager: self.manager.clone(),
            tenant: self.create_project(name).await,
            replicas: Arc::clone(&self.replicas),
            base: self.base.clone(),
        }
    }

    pub async fn join_token(&self, one_time: bool, may_create_hosts: bool) -> String {
        self.create_join_token(one_time, may_create_hosts, false).await
    }

    async fn create_join_token(
        &self,
        one_time: bool,
        may_create_hosts: bool,
        may_replace_eim_agents: bool,
    ) -> String {
        let token = JoinToken::generate(None).expect("randomness");
        let spec = JoinTokenSpec {
            name: Name::default(),
            expires_at: self.clock.now() + TimeDelta::hours(1),
            one_time,
            may_create_hosts,
            may_replace_eim_agents,
        };
        let tx = self.tx().await;
        let digest = *token.secret_hash().as_bytes();
        join_tokens::create(&tx, &spec, digest, self.clock.now()).await.expect("a token");
        tx.commit().await.expect("committed");
        token.text().reveal().to_owned()
    }

    pub async fn enroll(
        &self,
        token: &str,
        machine: u128,
        key: u8,
    ) -> Result<EnrollResponse, Status> {
        self.send_enroll_request(enroll_request(token, machine, key)).await
    }

    /// Sends an enrolment request.
    pub async fn send_enroll_request(
        &self,
        request: EnrollRequest,
    ) -> Result<EnrollResponse, Status> {
        self.read_changes().await;
        self.manager.enroll(Request::new(request)).await.map(tonic::Response::into_inner)
    }

    /// A node that has enrolled and reported its facts.
    pub async fn node(&self) -> TestNode {
        self.nth_node(1).await
    }

    pub async fn nth_node(&self, machine: u8) -> TestNode {
        let token = self.join_token(false, true).await;
        let answer = self.enroll(&token, machine.into(), machine).await;
        let node = TestNode::from_enrolment(answer.expect("enrolled"));
        self.report_facts(&node, facts()).await;
        node
    }

    /// Installs our own agent on an EIM node.
    pub async fn take_over(&self, eim: &crate::fleet::EimTestNode) -> TestNode {
        let machine = Uuid::parse_str(&eim.guid).expect("a UUID").as_u128();
        let token = self.create_join_token(false, true, true).await;
        let answer = self.enroll(&token, machine, 1).await;
        TestNode::from_enrolment(answer.expect("enrolled"))
    }

    /// Creates a policy and assigns it to one node.
    pub async fn policy(&self, node: &TestNode, packages: &str) -> PolicyId {
        let policy = self.create_policy(packages).await;
        let scope = Scope::Instance(node.instance);
        self.assign(scope, policy, None, None).await;
        policy
    }

    /// A node with a downloaded first attempt, whose window is open from minute 10 to minute 20.
    pub async fn node_with_staged_attempt(&self) -> (TestNode, PolicyId) {
        let node = self.node().await;
        let policy = self.policy(&node, "demo-hello=1.1").await;
        self.window(node.host, 10, 20).await;
        let events = [(1, downloading()), (2, downloaded())];
        self.report(&node, 1, policy, &events).await;
        (node, policy)
    }

    pub async fn assign(
        &self,
        scope: Scope,
        policy: PolicyId,
        at_once: Option<u32>,
        failures: Option<u32>,
    ) {
        let limits = UpdateLimits::parse(at_once, failures).expect("limits");
        let tx = self.tx().await;
        assignments::set(&tx, scope, policy, limits, self.clock.now()).await.expect("assigned");
        tx.commit().await.expect("committed");
    }

    /// Creates a policy without an assignment.
    pub async fn create_policy(&self, packages: &str) -> PolicyId {
        let tx = self.tx().await;
        let desired = match packages {
            "" => DesiredUpdate::Latest,
            packages => {
                DesiredUpdate::parse_target(None, packages, &[], "").expect("a desired update")
            }
        };
        let spec = PolicySpec::parse("policy", "", desired).expect("a policy");
        let policy = policies::create(&tx, &spec, self.clock.now()).await.expect("a policy");
        tx.commit().await.expect("committed");
        policy.id
    }

    pub async fn withdraw(&self, node: &TestNode) {
        let tx = self.tx().await;
        assignments::clear(&tx, Scope::Instance(node.instance)).await.expect("taken back");
        tx.commit().await.expect("committed");
    }

    /// Creates a window that opens and closes this number of minutes from now.
    pub async fn window(&self, host: HostId, opens: i64, closes: i64) {
        let now = self.clock.now();
        let spec = SingleSpec {
            name: Name::default(),
            status: ScheduleStatus::OsUpdate,
            start: now + TimeDelta::minutes(opens),
            end: Some(now + TimeDelta::minutes(closes)),
            target: Some(ScheduleTarget::Host(host)),
        };
        let tx = self.tx().await;
        schedules::create(&tx, &spec, now).await.expect("scheduled");
        tx.commit().await.expect("committed");
    }

    pub fn advance_minutes(&self, minutes: i64) {
        self.clock.advance(TimeDelta::minutes(minutes));
    }

    /// A poll of a node without changes.
    pub async fn poll(&self, node: &TestNode) -> PollResponse {
        let request = PollRequest {
            facts_digest: self.node_state(node).await.facts_digest,
            ..PollRequest::default()
        };
        self.send_poll(node, request).await
    }

    /// A poll of a node that has an attempt.
    pub async fn poll_with_attempt(&self, node: &TestNode, attempt: u128) -> PollResponse {
        let request = PollRequest {
            facts_digest: self.node_state(node).await.facts_digest,
            attempt: Some(Attempt { id: Uuid::from_u128(attempt).to_string(), last_sequence: 2 }),
            ..PollRequest::default()
        };
        self.send_poll(node, request).await
    }

    pub async fn report_facts(&self, node: &TestNode, facts: Facts) -> PollResponse {
        let request = PollRequest { facts: Some(facts), ..PollRequest::default() };
        self.send_poll(node, request).await
    }

    pub async fn send_poll(&self, node: &TestNode, request: PollRequest) -> PollResponse {
        self.read_changes().await;
        let answer = self.manager.poll(with_credential(&node.credential, request)).await;
        answer.expect("an answer").into_inner()
    }

    pub async fn begin(
        &self,
        node: &TestNode,
        attempt: u128,
        policy: PolicyId,
        last: u32,
    ) -> Answer {
        self.begin_for(node, attempt, &policy.to_string(), last).await
    }

    /// Requests the start of the first attempt of a node at a certain replica.
    pub async fn begin_on(
        &self,
        manager: &MaintenanceManager,
        node: &TestNode,
        policy: PolicyId,
    ) -> Answer {
        let request = begin_request(1, &policy.to_string(), 2);
        manager.wait_until_caught_up().await;
        let answer = manager.begin(with_credential(&node.credential, request)).await;
        let answer = answer.expect("an answer").into_inner();
        answer.answer.expect("yes or no")
    }

    pub async fn begin_for(
        &self,
        node: &TestNode,
        attempt: u128,
        digest: &str,
        last: u32,
    ) -> Answer {
        let request = begin_request(attempt, digest, last);
        self.read_changes().await;
        let answer = self.manager.begin(with_credential(&node.credential, request)).await;
        let answer = answer.expect("an answer").into_inner();
        answer.answer.expect("yes or no")
    }

    pub async fn report(
        &self,
        node: &TestNode,
        attempt: u128,
        policy: PolicyId,
        events: &[(u32, Kind)],
    ) -> ReportResponse {
        self.report_for(node, attempt, &policy.to_string(), events).await
    }

    pub async fn report_for(
        &self,
        node: &TestNode,
        attempt: u128,
        digest: &str,
        events: &[(u32, Kind)],
    ) -> ReportResponse {
        let request = ReportRequest {
            target_digest: digest.to_owned(),
            ..report_request(attempt, PolicyId::nth(1), events)
        };
        self.read_changes().await;
        let answer = self.manager.report(with_credential(&node.credential, request)).await;
        answer.expect("an answer").into_inner()
    }

    pub async fn runs(&self, node: &TestNode) -> Vec<UpdateRun> {
        let tx = self.tx().await;
        let mine = format!("instance.resourceId == '{}'", node.instance);
        let mine = Listing {
            resource: Resource::Run,
            filter: Some(filter::parse_filter(Resource::Run, &mine).expect("a filter")),
            within: None,
            order: filter::parse_order(Resource::Run, "startTime desc").expect("an order"),
        };
        let chosen = listing::page(&tx, &mine, &listing::PageStart::Offset(0), 10_000).await;
        let ids = chosen.expect("a list").ids;
        let keys: Vec<_> = ids.iter().copied().map(RunId::from_bits).collect();
        let loaded = runs::find_many(&tx, &keys).await.expect("runs");
        listing::in_order(&ids, loaded, |run| run.id.bits())
    }

    /// The history of the only run, as `event->state`.
    pub async fn run_history(&self, node: &TestNode) -> String {
        let all = self.runs(node).await;
        assert_eq!(all.len(), 1, "{all:?}");
        self.history(all[0].id).await
    }

    pub async fn history(&self, run: RunId) -> String {
        let tx = self.tx().await;
        let events = runs::events(&tx, run).await.expect("a history");
        let transitions: Vec<_> =
            events.iter().map(|e| format!("{}->{}", e.event, e.state)).collect();
        transitions.join(" ")
    }

    pub async fn update_status(&self, node: &TestNode) -> String {
        let tx = self.tx().await;
        let instance = instances::find(&tx, node.instance).await.expect("an instance");
        instance.summary.update_status.text
    }

    pub async fn node_state(&self, node: &TestNode) -> nodes::NodeState {
        let tx = self.tx().await;
        nodes::find(&tx, node.instance).await.expect("a state")
    }

    /// Runs a pass of the reaper, in which the search for runs that no agent reports is due.
    pub async fn reap_runs(&self) -> usize {
        self.execute_sql("DELETE FROM task_passes").await;
        let reaper = RunReaper::new(self.store.clone(), self.shared_clock(), &Settings::default());
        reaper.pass().await.expect("a pass")
    }

    /// Sends a sample of an EIM agent and returns the answer.
    pub async fn send_sample(
        &self,
        guid: &str,
        kind: StatusType,
        detail: &str,
    ) -> Result<PlatformUpdateStatusResponse, Status> {
        let token = self.eim_token();
        let request = PlatformUpdateStatusRequest {
            host_guid: guid.to_owned(),
            update_status: Some(UpdateStatus {
                status_type: kind.into(),
                status_detail: detail.to_owned(),
                ..UpdateStatus::default()
            }),
        };
        self.read_changes().await;
        let answer = self.manager.platform_update_status(with_credential(&token, request)).await;
        answer.map(tonic::Response::into_inner)
    }
}
