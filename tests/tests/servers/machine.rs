//! Simulated machines that use the agent's protocol.

use std::time::{Duration, Instant, SystemTime};

use evenkeel_kit::{Clock as _, SystemClock};
use evenkeel_proto::agent::agent_service_client::AgentServiceClient;
use evenkeel_proto::agent::begin_response::Answer;
use evenkeel_proto::agent::decision::Act;
use evenkeel_proto::agent::event::Kind;
use evenkeel_proto::agent::{
    Attempt, AvailablePackage, Began, BeginRequest, Downloaded, Downloading, Facts, Finished,
    Identity, PackageChange, PackageLists, PackageResult, PhaseSpan, Plan, PollRequest, RunReport,
};
use evenkeel_simulator::{connection, own};
use evenkeel_test_support::{certificate_request, node_key};
use sha2::{Digest, Sha256};
use tonic::transport::Channel;
use uuid::Uuid;

/// Maximum wait of a machine for its window.
const WINDOW_TIMEOUT: Duration = Duration::from_mins(1);

/// Packages that every machine has installed.
const PACKAGES: &str = concat!(
    r#"{"repo":[{"name":"apt","version":"2.6.1","architecture":"amd64"},"#,
    r#"{"name":"curl","version":"7.88.1-10+deb12u5","architecture":"amd64"}]}"#
);

/// A machine with our agent. Its connection shows its client certificate.
pub struct Machine {
    client: AgentServiceClient<Channel>,
    attempt: Uuid,
    reported: u32,
}

impl Machine {
    /// Enrolls a registered machine at a server with this address and CA.
    pub async fn join(southbound: &str, ca: &str, nth: u8, token: &str) -> Self {
        let channel = connection::connect_lazily(southbound, ca).expect("a connection");
        let (key, number) = (node_key(nth), u32::from(nth));
        let identity = Identity {
            uuid: uuid(number),
            serial_number: serial(number),
            host_name: format!("edge-{nth:02}.example.org"),
        };
        let request = own::enroll_request(token, identity, certificate_request(&key), None);
        let joined = AgentServiceClient::new(channel).enroll(request).await;
        let certificate = joined.expect("a machine joins").into_inner().certificate;
        let key_pem = key.serialize_pem();
        let pair = (certificate.as_slice(), key_pem.as_str());
        let channel = connection::connect_with_certificate(southbound, ca, pair);
        Self {
            client: AgentServiceClient::new(channel.expect("a connection")),
            attempt: Uuid::from_u128(u128::from(nth)),
            reported: 0,
        }
    }

    /// Sends facts and available updates. Returns the action.
    pub async fn poll(&mut self, is_current: bool) -> Option<Act> {
        let curl = AvailablePackage {
            name: "curl".to_owned(),
            architecture: "amd64".to_owned(),
            installed_version: "7.88.1-10+deb12u5".to_owned(),
            available_version: "7.88.1-10+deb12u8".to_owned(),
            suites: vec!["bookworm".to_owned(), "stable".to_owned()],
            origins: vec!["Debian".to_owned()],
        };
        let refreshed_at = Some(SystemTime::from(SystemClock.now()).into());
        let facts = Facts {
            agent_version: "0.1.0".to_owned(),
            architecture: "amd64".to_owned(),
            modules: vec!["packages".to_owned()],
            available: if is_current { Vec::new() } else { vec![curl] },
            packages_digest: Sha256::digest(PACKAGES).to_vec(),
            package_lists: Some(PackageLists { refreshed_at, ..PackageLists::default() }),
            ..Facts::default()
        };
        let request = PollRequest {
            facts: Some(facts),
            packages: PACKAGES.to_owned(),
            ..PollRequest::default()
        };
        let answer = self.client.poll(request).await.expect("a poll");
        answer.into_inner().decision?.act
    }

    /// Polls until the machine gets an update. Returns the digest of the target.
    pub async fn wait_for_window(&mut self) -> String {
        let begun = Instant::now();
        loop {
            if let Some(Act::Apply(apply)) = self.poll(false).await {
                return apply.target.expect("a target").digest;
            }
            assert!(begun.elapsed() < WINDOW_TIMEOUT, "the window does not open");
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// Applies the update and reports each step.
    pub async fn update(&mut self, target: &str) {
        let change = PackageChange {
            name: "curl".to_owned(),
            architecture: "amd64".to_owned(),
            before: "7.88.1-10+deb12u5".to_owned(),
            after: "7.88.1-10+deb12u8".to_owned(),
            ..PackageChange::default()
        };
        let plan = Plan { changes: vec![change], ..Plan::default() };
        let downloading = Kind::Downloading(Downloading { plan: Some(plan) });
        self.report_event(target, downloading, None).await;
        self.report_event(target, Kind::Downloaded(Downloaded {}), None).await;
        let attempt = Attempt { id: self.attempt.to_string(), last_sequence: self.reported };
        let request = PollRequest { attempt: Some(attempt), ..PollRequest::default() };
        self.client.poll(request).await.expect("a poll");
        let request = BeginRequest {
            attempt_id: self.attempt.to_string(),
            target_digest: target.to_owned(),
            last_sequence: self.reported,
        };
        let answer = self.client.begin(request).await.expect("an answer");
        let answer = answer.into_inner().answer;
        assert!(matches!(answer, Some(Answer::Granted(_))), "{answer:?}");
        self.report_event(target, Kind::Began(Began {}), None).await;
        let result = PackageResult {
            name: "curl".to_owned(),
            architecture: "amd64".to_owned(),
            version: "7.88.1-10+deb12u8".to_owned(),
            state: "installed".to_owned(),
        };
        let span =
            |phase: &str, millis, bytes| PhaseSpan { phase: phase.to_owned(), millis, bytes };
        let report = RunReport {
            phases: vec![span("download", 1_500, 315_000), span("apply", 4_000, 0)],
            preserved_conffiles: vec!["/etc/curlrc".to_owned()],
            ..RunReport::default()
        };
        let finished = Kind::Finished(Finished { results: vec![result], ..Finished::default() });
        self.report_event(target, finished, Some(report)).await;
        self.poll(true).await;
    }

    async fn report_event(&mut self, target: &str, kind: Kind, report: Option<RunReport>) {
        self.reported += 1;
        let mut message = own::report_request(self.attempt, target, self.reported, &[kind]);
        message.events[0].report = report;
        let answer = self.client.report(message).await.expect("an answer");
        assert_eq!(answer.into_inner().acknowledged, self.reported);
    }
}

pub fn uuid(nth: u32) -> String {
    format!("00000000-0000-4000-8000-{nth:012}")
}

/// The serial number of a machine.
pub fn serial(nth: u32) -> String {
    format!("SN{nth:06}")
}
