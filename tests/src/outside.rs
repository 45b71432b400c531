//! A server outside, for nodes that a test sets up itself: those that are thrown away, put on a disk, or booted.

use std::time::Duration;

use serde_json::{Value, json};

use crate::history::machine_time;
use crate::lab::{Fleet, Member, Node, until};

/// What enrolment leaves on a node: who it is to the server.
pub const IDENTITY: &str = "/var/lib/evenkeel-agent/node.json";

/// Where the nodes of a fleet find its server.
pub fn url(fleet: &Fleet) -> String {
    format!("https://{}", fleet.server.address("southbound"))
}

/// A token with which any number of nodes may join.
pub fn token(fleet: &Fleet) -> String {
    let made = fleet.rest.post("/join-tokens", &json!({}));
    made["token"].as_str().expect("a token").to_owned()
}

/// A site whose window is open from now on, for a day. Returns its id.
pub fn open_site(fleet: &Fleet) -> String {
    let site = fleet.rest.post("/sites", &json!({ "name": "open" }));
    let site = site["resourceId"].as_str().expect("an id").to_owned();
    let start = machine_time().timestamp() + 5;
    fleet.rest.post(
        "/schedules/single",
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

/// Puts a node into a site.
pub fn move_to(member: &Member<'_>, site: &str) {
    let path = format!("/compute/hosts/{}", member.host);
    let body = json!({ "siteId": site });
    member.fleet.rest.patch(&path, &body);
}

/// A node that has joined by itself, with what that left in [`IDENTITY`].
///
/// # Panics
/// It left something else.
pub fn adopt<'a>(fleet: &'a Fleet, node: Node, identity: &str) -> Member<'a> {
    let identity: Value = serde_json::from_str(identity).expect("JSON");
    let id = |name: &str| identity[name].as_str().expect("an id").to_owned();
    Member {
        fleet,
        node,
        host: id("host_id"),
        instance: id("instance_id"),
    }
}
