//! Checks of the configuration, the enrolment, the owner's limits and the state directory.

use super::DoctorFinding;
use crate::durable;
use crate::identity::MachineMarks;
use crate::journal::FileJournal;
use crate::module_registry::ModuleRegistry;
use crate::node::{self, Node, NodeError};
use crate::owner::LIMITS_FILE as LIMITS;

const ENROL_ADVICE: &str = "run `evenkeel-agent enroll --server URL --token-file FILE`";

/// Checks the files of the agent and of the machine's owner.
pub fn check_setup(registry: &ModuleRegistry<'_>) -> Vec<DoctorFinding> {
    let mut findings =
        vec![check_configuration(registry), check_limits(registry), check_state(registry)];
    findings.extend(check_journals(registry));
    findings.extend(check_enrolment(registry));
    findings
}

fn check_configuration(registry: &ModuleRegistry<'_>) -> DoctorFinding {
    match registry.config.checked_proxy() {
        Ok(None) => DoctorFinding::passed("configuration", "is valid"),
        Ok(Some(proxy)) => DoctorFinding::passed(
            "configuration",
            format!("is valid; the proxy {proxy} is used to reach the server"),
        ),
        Err(error) => {
            DoctorFinding::failed("configuration", error.to_string(), "fix `proxy` and `no_proxy`")
        }
    }
}

fn check_limits(registry: &ModuleRegistry<'_>) -> DoctorFinding {
    match registry.owner.limits() {
        Ok(limits) => {
            let summary = limits.to_string();
            let none = || "the machine's owner sets no limits".to_owned();
            DoctorFinding::passed(
                "limits",
                Some(summary).filter(|t| !t.is_empty()).unwrap_or_else(none),
            )
        }
        Err(error) => DoctorFinding::failed(
            "limits",
            error.to_string(),
            format!("fix {LIMITS}, which only root may write to; until then no update starts"),
        ),
    }
}

/// Checks that the agent can write its state. The check writes a file, because a file system can
/// become read-only at any time.
fn check_state(registry: &ModuleRegistry<'_>) -> DoctorFinding {
    let state = registry.paths.state();
    let path = state.display();
    if !state.is_dir() {
        return DoctorFinding::failed("state", format!("{path} does not exist"), ENROL_ADVICE);
    }
    let probe = state.join("doctor");
    match durable::replace_file(&probe, b"", 0o600).and_then(|()| durable::remove_file(&probe)) {
        Ok(()) => DoctorFinding::passed("state", format!("{path} is writable")),
        Err(error) => DoctorFinding::failed(
            "state",
            evenkeel_kit::chain(&error).to_string(),
            "run this command as root; if it already is, check the disk and its mount options",
        ),
    }
}

/// Journals that could not be read. Each message contains its own advice.
fn check_journals(registry: &ModuleRegistry<'_>) -> Vec<DoctorFinding> {
    let quarantined = FileJournal::quarantined_files(&registry.paths.journal());
    let findings = quarantined.into_iter();
    findings.map(|message| DoctorFinding::warning("journal", message, "")).collect()
}

fn check_enrolment(registry: &ModuleRegistry<'_>) -> Vec<DoctorFinding> {
    let paths = registry.paths;
    let node = match Node::load(paths) {
        Ok(node) => node,
        Err(error) => {
            let text = match &error {
                NodeError::NotEnrolled => "this machine is not enrolled".to_owned(),
                other => evenkeel_kit::chain(other).to_string(),
            };
            return vec![DoctorFinding::failed("enrolment", text, ENROL_ADVICE)];
        }
    };
    let identity_text = format!("{} in the project {}", node.host_id, node.project);
    let identity = match node.identity_mismatch(&MachineMarks::detect(paths)) {
        None => DoctorFinding::passed("identity", "this machine is the one that enrolled"),
        Some(mismatch) => DoctorFinding::failed("identity", mismatch, ""),
    };
    let enrolment = match check_certificates(registry) {
        Ok(()) => DoctorFinding::passed("enrolment", identity_text),
        // The error contains the advice: the server refuses another key.
        Err(error @ NodeError::MissingKey { .. }) => {
            DoctorFinding::failed("enrolment", error.to_string(), "")
        }
        Err(error) => {
            let text = evenkeel_kit::chain(&error).to_string();
            DoctorFinding::failed("enrolment", text, ENROL_ADVICE)
        }
    };
    vec![enrolment, identity]
}

/// Whether the node has a certificate that fits its key, or else a bearer token.
pub fn check_certificates(registry: &ModuleRegistry<'_>) -> Result<(), NodeError> {
    let has_certificate = registry.certificates()?.has_client();
    let has_credential = node::load_credential(registry.paths)?.is_some();
    if has_certificate || has_credential { Ok(()) } else { Err(NodeError::NoCertificate) }
}
