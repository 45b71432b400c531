//! Helpers for tests that set up nodes themselves: nodes that are thrown away, put on a disk, or booted.

use std::time::Duration;

use serde_json::{Value, json};

use crate::history::machine_time;
use crate::lab::{Fleet, Member, Node, until};

/// File with the identity of a node, which enrolment creates.
pub const IDENTITY_PATH: &str = "/var/lib/evenkeel-agent/node.json";

/// URL of a fleet's server for nodes.
pub fn server_url(fleet: &Fleet) -> String {
    format!("https://{}", fleet.server.address("southbound"))
}

/// Creates a join token for any number of nodes.
pub fn join_token(fleet: &Fleet) -> String {
    let created = fleet.rest.post("join-tokens", &json!({}));
    created["token"].as_str().expect("a token").to_owned()
}

/// Creates a site with a window of a day and waits until the window is open. Returns the ID of the site.
pub fn open_site(fleet: &Fleet) -> String {
    let site = fleet.rest.post("sites", &json!({ "name": "open" }));
    let site = site["resourceId"].as_str().expect("an id").to_owned();
    let start = machine_time().timestamp() + 5;
    fleet.rest.post(
        "schedules/single",
        &json!({
            "name": "open",
            "scheduleStatus": "SCHEDULE_STATUS_OS_UPDATE",
            "startSeconds": start,
            "endSeconds": start + 86_400,
            "targetSiteId": site,
        }),
    );
    until("the window opens", Duration::from_secs(30), || {
        (machine_time().timestamp() > start).then_some(())
    });
    site
}

pub fn move_to_site(member: &Member<'_>, site: &str) {
    let path = format!("compute/hosts/{}", member.host);
    let body = json!({ "siteId": site });
    member.fleet.rest.patch(&path, &body);
}

/// Makes a member of a node that has joined on its own, from the content of its [`IDENTITY_PATH`].
///
/// # Panics
/// The content is not an identity.
pub fn member_from_identity<'a>(fleet: &'a Fleet, node: Node, identity: &str) -> Member<'a> {
    let identity: Value = serde_json::from_str(identity).expect("JSON");
    let id = |name: &str| identity[name].as_str().expect("an id").to_owned();
    Member { fleet, node, host: id("host_id"), instance: id("instance_id") }
}
