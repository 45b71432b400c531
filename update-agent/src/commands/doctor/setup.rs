//! What enrolment and the machine's owner set up, and what the agent keeps.

use super::Finding;
use crate::commands::workshop::Workshop;
use crate::durable;
use crate::identity::Marks;
use crate::journal::FileJournal;
use crate::node::{self, Node, NodeError};
use crate::owner::FILE as LIMITS;

const ENROL: &str = "run `evenkeel-agent enroll --server URL --token-file FILE`";

/// Looks at the files of the agent and of the machine's owner.
pub fn look(workshop: &Workshop<'_>) -> Vec<Finding> {
    let mut findings = vec![configuration(workshop), limits(workshop), state(workshop)];
    findings.extend(journals(workshop));
    findings.extend(enrolment(workshop));
    findings
}

fn configuration(workshop: &Workshop<'_>) -> Finding {
    match workshop.config.proxy() {
        Ok(None) => Finding::good("configuration", "understood"),
        Ok(Some(proxy)) => Finding::good(
            "configuration",
            format!("understood; the server is reached through {proxy}"),
        ),
        Err(error) => Finding::bad("configuration", error.to_string(), "mend `proxy`"),
    }
}

fn limits(workshop: &Workshop<'_>) -> Finding {
    match workshop.owner.limits() {
        Ok(limits) => {
            let told = limits.to_string();
            let none = || "the machine's owner sets none".to_owned();
            Finding::good(
                "limits",
                Some(told).filter(|t| !t.is_empty()).unwrap_or_else(none),
            )
        }
        Err(error) => Finding::bad(
            "limits",
            error.to_string(),
            format!(
                "mend {LIMITS}, which root alone may write to; until then nothing that it could limit is done"
            ),
        ),
    }
}

/// Whether the agent can write down what it does. Tried, because file systems become read-only while they are used.
fn state(workshop: &Workshop<'_>) -> Finding {
    let state = workshop.place.state();
    let shown = state.display();
    if !state.is_dir() {
        return Finding::bad("state", format!("{shown} is not there"), ENROL);
    }
    let probe = state.join("doctor");
    match durable::replace(&probe, b"", 0o600).and_then(|()| durable::remove(&probe)) {
        Ok(()) => Finding::good("state", format!("{shown} can be written to")),
        Err(error) => Finding::bad(
            "state",
            evenkeel_kit::chain(&error).to_string(),
            "run this as root; if you do, look at the disk and how it is mounted",
        ),
    }
}

/// Journals that could not be understood. Each says itself what to do about it.
fn journals(workshop: &Workshop<'_>) -> Vec<Finding> {
    let asides = FileJournal::set_asides(&workshop.place.journal());
    let findings = asides.into_iter();
    findings
        .map(|aside| Finding::doubtful("journal", aside, ""))
        .collect()
}

fn enrolment(workshop: &Workshop<'_>) -> Vec<Finding> {
    let place = workshop.place;
    let node = match Node::load(place) {
        Ok(node) => node,
        Err(error) => {
            let text = match &error {
                NodeError::NotEnrolled => "this machine is not enrolled".to_owned(),
                other => evenkeel_kit::chain(other).to_string(),
            };
            return vec![Finding::bad("enrolment", text, ENROL)];
        }
    };
    let known = format!("{} of the project {}", node.host_id, node.project);
    let identity = match node.stranger(&Marks::of(place)) {
        None => Finding::good("identity", "this is the machine that enrolled"),
        Some(stranger) => Finding::bad("identity", stranger, ""),
    };
    let credential = match node::load_credential(place) {
        Ok(_) => Finding::good("enrolment", known),
        Err(_) => Finding::bad("enrolment", "the node's credential cannot be read", ENROL),
    };
    vec![credential, identity]
}
