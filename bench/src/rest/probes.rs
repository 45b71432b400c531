//! The kinds of requests that are measured, each with its target.

use evenkeel_store::testing::fill::{host_name, instance_name, run_name};
use serde_json::json;

use super::client::Asked;
use super::fleet::Fleet;

/// A kind of requests.
#[derive(Debug)]
pub struct Probe {
    /// What is asked for.
    pub what: &'static str,
    /// What 99 of 100 may take at most, in milliseconds.
    pub target_ms: Option<f64>,
    /// The request with a number, which no other one of this kind has; none if there is nothing left to ask for.
    pub ask: fn(&Fleet, u32) -> Option<Asked>,
    /// Whether each answer is a host that was made.
    pub makes_hosts: bool,
}

/// One thing by its id.
const ONE: Option<f64> = Some(2.0);
/// The first page of a list, with its exact total.
const FIRST: Option<f64> = Some(30.0);
/// A page far back in a list.
const FAR: Option<f64> = Some(50.0);
/// What a filter finds that compares whole values.
const EXACT: Option<f64> = Some(10.0);
/// What a filter finds that looks for a part of a text.
const PART: Option<f64> = Some(150.0);

const HOSTS: &str = "/compute/hosts";
const INSTANCES: &str = "/compute/instances";
const RUNS: &str = "/os-update-runs";

/// Requests that change nothing.
pub const READS: &[Probe] = &[
    probe("get a host", ONE, |fleet, n| {
        Some(Asked::get(format!("{HOSTS}/{}", fleet.host(n))))
    }),
    probe("first page of 100 hosts", FIRST, |_, _| Some(page(HOSTS))),
    probe("page of 100 hosts, far back", FAR, |fleet, _| {
        Some(page(HOSTS).with("offset", fleet.far()))
    }),
    probe("hosts by id", EXACT, |fleet, n| {
        Some(found(HOSTS, format!("resourceId=\"{}\"", fleet.host(n))))
    }),
    probe("hosts by name", EXACT, |fleet, n| {
        let name = host_name(fleet.place(n));
        Some(found(HOSTS, format!("name == \"{name}\"")))
    }),
    probe("hosts at a site", EXACT, |fleet, n| {
        let filter = format!("site.resourceId=\"{}\"", fleet.site(n));
        Some(found(HOSTS, filter))
    }),
    probe("hosts by part of their name", PART, |fleet, n| {
        let name = host_name(fleet.place(n));
        Some(found(HOSTS, format!("name=\"{}\"", end(&name))))
    }),
    probe("number of hosts (page of 1)", None, |_, _| {
        Some(Asked::get(HOSTS).with("pageSize", 1))
    }),
    probe("get an instance", ONE, |fleet, n| {
        Some(Asked::get(format!("{INSTANCES}/{}", fleet.instance(n))))
    }),
    probe("first page of 100 instances", FIRST, |_, _| {
        Some(page(INSTANCES))
    }),
    probe("page of 100 instances, far back", FAR, |fleet, _| {
        Some(page(INSTANCES).with("offset", fleet.far()))
    }),
    probe("instances by id", EXACT, |fleet, n| {
        let filter = format!("resourceId=\"{}\"", fleet.instance(n));
        Some(found(INSTANCES, filter))
    }),
    probe("instances by name", EXACT, |fleet, n| {
        let name = instance_name(fleet.place(n));
        Some(found(INSTANCES, format!("name == \"{name}\"")))
    }),
    probe("instance of a host", EXACT, |fleet, n| {
        let filter = format!("host.resourceId=\"{}\"", fleet.host(n));
        Some(found(INSTANCES, filter))
    }),
    probe("instances at a site", EXACT, |fleet, n| {
        let filter = format!("host.site.resourceId=\"{}\"", fleet.site(n));
        Some(found(INSTANCES, filter))
    }),
    probe("instances by part of their name", PART, |fleet, n| {
        let name = instance_name(fleet.place(n));
        Some(found(INSTANCES, format!("name=\"{}\"", end(&name))))
    }),
    probe("number of instances (page of 1)", None, |_, _| {
        Some(Asked::get(INSTANCES).with("pageSize", 1))
    }),
    probe("get a run", ONE, |fleet, n| {
        Some(Asked::get(format!("{RUNS}/{}", fleet.run(n))))
    }),
    probe("first page of 100 runs", FIRST, |_, _| Some(page(RUNS))),
    probe("first page of 100 runs, newest", FIRST, |_, _| {
        Some(page(RUNS).with("orderBy", NEWEST))
    }),
    probe("page of 100 runs, far back", FAR, |fleet, _| {
        Some(page(RUNS).with("offset", fleet.far()))
    }),
    probe("runs by id", EXACT, |fleet, n| {
        Some(found(RUNS, format!("resourceId=\"{}\"", fleet.run(n))))
    }),
    probe("runs of an instance, newest", EXACT, |fleet, n| {
        let filter = format!("instance.resourceId=\"{}\"", fleet.instance(n));
        Some(found(RUNS, filter).with("orderBy", NEWEST))
    }),
    probe("runs at a site", EXACT, |fleet, n| {
        let filter = format!("instance.host.site.resourceId=\"{}\"", fleet.site(n));
        Some(found(RUNS, filter))
    }),
    probe("runs by part of their name", PART, |fleet, n| {
        let name = run_name(fleet.place_of_run(n));
        Some(found(RUNS, format!("name=\"{}\"", end(&name))))
    }),
    probe("number of runs (page of 1)", None, |_, _| {
        Some(Asked::get(RUNS).with("pageSize", 1))
    }),
];

/// Requests that change something. Instances are made on the hosts that were made before.
pub const WRITES: &[Probe] = &[
    Probe {
        makes_hosts: true,
        ..probe("register a host", None, |_, n| {
            let uuid = format!("10000000-0000-4000-8000-{n:012x}");
            let body = json!({"name": format!("new-{n}"), "uuid": uuid});
            Some(Asked::post(format!("{HOSTS}/register"), body))
        })
    },
    probe("patch a host", None, |fleet, n| {
        let body = json!({"name": format!("renamed-{n}")});
        Some(Asked::patch(format!("{HOSTS}/{}", fleet.host(n)), body))
    }),
    probe("make an instance", None, |fleet, n| {
        let body = json!({"hostID": fleet.made(n)?, "osID": fleet.os()});
        Some(Asked::post(INSTANCES, body))
    }),
    probe("patch an instance", None, |fleet, n| {
        let body = json!({"name": format!("renamed-{n}")});
        let path = format!("{INSTANCES}/{}", fleet.instance(n));
        Some(Asked::patch(path, body))
    }),
];

const NEWEST: &str = "startTime desc";

const fn probe(
    what: &'static str,
    target_ms: Option<f64>,
    ask: fn(&Fleet, u32) -> Option<Asked>,
) -> Probe {
    Probe {
        what,
        target_ms,
        ask,
        makes_hosts: false,
    }
}

fn page(list: &str) -> Asked {
    Asked::get(list).with("pageSize", 100)
}

/// A page of what a filter finds.
fn found(list: &str, filter: String) -> Asked {
    page(list).with("filter", filter)
}

/// The last digits of a name, which a few others have as well.
fn end(name: &str) -> &str {
    name.get(name.len().saturating_sub(4)..).unwrap_or(name)
}
