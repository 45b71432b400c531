//! Messages of the tests, and accessors for answers.

use evenkeel_domain::id::PolicyId;
use evenkeel_proto::agent::decision::Act;
use evenkeel_proto::agent::event::Kind;
use evenkeel_proto::agent::*;
use evenkeel_test_support::{certificate_request, node_key};
use tonic::Request;
use uuid::Uuid;

pub fn with_credential<T>(credential: &str, message: T) -> Request<T> {
    let mut request = Request::new(message);
    let header = format!("Bearer {credential}").parse().expect("a header");
    request.metadata_mut().insert("authorization", header);
    request
}

pub fn begin_request(attempt: u128, digest: &str, last_sequence: u32) -> BeginRequest {
    BeginRequest {
        attempt_id: Uuid::from_u128(attempt).to_string(),
        target_digest: digest.to_owned(),
        last_sequence,
    }
}

pub fn report_request(attempt: u128, policy: PolicyId, events: &[(u32, Kind)]) -> ReportRequest {
    let event = |(sequence, kind): &(u32, Kind)| Event {
        sequence: *sequence,
        boot_id: "boot-1".into(),
        node_time: None,
        kind: Some(kind.clone()),
        report: None,
    };
    ReportRequest {
        attempt_id: Uuid::from_u128(attempt).to_string(),
        target_digest: policy.to_string(),
        events: events.iter().map(event).collect(),
    }
}

/// The enrolment request of a new machine with packages. Equal numbers are equal keys.
pub fn enroll_request(token: &str, machine: u128, key: u8) -> EnrollRequest {
    EnrollRequest {
        join_token: token.to_owned(),
        identity: Some(Identity {
            uuid: Uuid::from_u128(machine).to_string(),
            serial_number: String::new(),
            host_name: "edge-01".into(),
        }),
        os_release: Some(bookworm()),
        architecture: "amd64".into(),
        agent_version: "0.1.0".into(),
        booted_image: None,
        certificate_request: certificate_request(&node_key(key)),
        decryption_certificate_request: Vec::new(),
    }
}

pub fn bookworm() -> OsRelease {
    OsRelease {
        id: "debian".into(),
        version_id: "12".into(),
        pretty_name: "Debian GNU/Linux 12 (bookworm)".into(),
        version_codename: "bookworm".into(),
    }
}

pub fn facts() -> Facts {
    Facts {
        agent_version: "0.1.0".into(),
        os_release: Some(bookworm()),
        architecture: "amd64".into(),
        boot_id: "boot-1".into(),
        modules: vec!["packages".into()],
        ..Facts::default()
    }
}

pub fn downloading() -> Kind {
    let change = PackageChange {
        name: "demo-hello".into(),
        architecture: "all".into(),
        before: "1.0".into(),
        after: "1.1".into(),
        ..PackageChange::default()
    };
    Kind::Downloading(Downloading {
        plan: Some(Plan { changes: vec![change], download_bytes: 1_024, ..Plan::default() }),
    })
}

pub fn downloaded() -> Kind {
    Kind::Downloaded(Downloaded {})
}

pub fn began() -> Kind {
    Kind::Began(Began {})
}

pub fn finished() -> Kind {
    let result = PackageResult {
        name: "demo-hello".into(),
        architecture: "all".into(),
        version: "1.1".into(),
        state: "installed".into(),
    };
    Kind::Finished(Finished { results: vec![result], ..Finished::default() })
}

/// The name of the act in an answer.
pub fn act(answer: &PollResponse) -> &'static str {
    match answer.decision.as_ref().and_then(|decision| decision.act.as_ref()) {
        None | Some(Act::Idle(_)) => "idle",
        Some(Act::Fetch(_)) => "fetch",
        Some(Act::Apply(_)) => "apply",
        Some(Act::Continue(_)) => "continue",
        Some(Act::Cancel(_)) => "cancel",
    }
}

pub fn reason(answer: &PollResponse) -> &str {
    answer.decision.as_ref().map_or("", |decision| &decision.reason)
}
