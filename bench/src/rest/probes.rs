//! The kinds of requests that are measured, with their targets.

use evenkeel_store::testing::fill::{host_name, instance_name, run_name};
use serde_json::json;

use super::client::RequestSpec;
use super::fleet::Fleet;

/// A kind of requests.
#[derive(Debug)]
pub struct Probe {
    /// Description of the request.
    pub what: &'static str,
    /// Target for the 99th percentile of the latency, in milliseconds.
    pub target_ms: Option<f64>,
    /// Creates the request with this number, which is unique within the kind; `None` if the fleet
    /// has no resource left for it.
    pub build_request: fn(&Fleet, u32) -> Option<RequestSpec>,
    /// Whether each answer is a created host.
    pub creates_hosts: bool,
}

/// One resource by its id.
const SINGLE_TARGET_MS: Option<f64> = Some(2.0);
/// First page of a list, with its exact total.
const FIRST_PAGE_TARGET_MS: Option<f64> = Some(30.0);
/// Page far back in a list.
const FAR_PAGE_TARGET_MS: Option<f64> = Some(50.0);
/// List with a filter that compares whole values.
const EXACT_FILTER_TARGET_MS: Option<f64> = Some(10.0);
/// List with a filter that searches for a substring.
const SUBSTRING_FILTER_TARGET_MS: Option<f64> = Some(150.0);

const HOSTS_PATH: &str = "/compute/hosts";
const INSTANCES_PATH: &str = "/compute/instances";
const RUNS_PATH: &str = "/os-update-runs";

/// Requests that change nothing.
pub const READS: &[Probe] = &[
    probe("get a host", SINGLE_TARGET_MS, |fleet, n| {
        Some(RequestSpec::get(format!("{HOSTS_PATH}/{}", fleet.host(n))))
    }),
    probe("first page of 100 hosts", FIRST_PAGE_TARGET_MS, |_, _| Some(first_page(HOSTS_PATH))),
    probe("page of 100 hosts, far back", FAR_PAGE_TARGET_MS, |fleet, _| {
        Some(first_page(HOSTS_PATH).with_query("offset", fleet.far_offset()))
    }),
    probe("hosts by id", EXACT_FILTER_TARGET_MS, |fleet, n| {
        Some(filtered_page(HOSTS_PATH, format!("resourceId=\"{}\"", fleet.host(n))))
    }),
    probe("hosts by name", EXACT_FILTER_TARGET_MS, |fleet, n| {
        let name = host_name(fleet.host_index(n));
        Some(filtered_page(HOSTS_PATH, format!("name == \"{name}\"")))
    }),
    probe("hosts at a site", EXACT_FILTER_TARGET_MS, |fleet, n| {
        let filter = format!("site.resourceId=\"{}\"", fleet.site(n));
        Some(filtered_page(HOSTS_PATH, filter))
    }),
    probe("hosts by part of their name", SUBSTRING_FILTER_TARGET_MS, |fleet, n| {
        let name = host_name(fleet.host_index(n));
        Some(filtered_page(HOSTS_PATH, format!("name=\"{}\"", name_suffix(&name))))
    }),
    probe("number of hosts (page of 1)", None, |_, _| {
        Some(RequestSpec::get(HOSTS_PATH).with_query("pageSize", 1))
    }),
    probe("get an instance", SINGLE_TARGET_MS, |fleet, n| {
        Some(RequestSpec::get(format!("{INSTANCES_PATH}/{}", fleet.instance(n))))
    }),
    probe("first page of 100 instances", FIRST_PAGE_TARGET_MS, |_, _| {
        Some(first_page(INSTANCES_PATH))
    }),
    probe("page of 100 instances, far back", FAR_PAGE_TARGET_MS, |fleet, _| {
        Some(first_page(INSTANCES_PATH).with_query("offset", fleet.far_offset()))
    }),
    probe("instances by id", EXACT_FILTER_TARGET_MS, |fleet, n| {
        let filter = format!("resourceId=\"{}\"", fleet.instance(n));
        Some(filtered_page(INSTANCES_PATH, filter))
    }),
    probe("instances by name", EXACT_FILTER_TARGET_MS, |fleet, n| {
        let name = instance_name(fleet.host_index(n));
        Some(filtered_page(INSTANCES_PATH, format!("name == \"{name}\"")))
    }),
    probe("instance of a host", EXACT_FILTER_TARGET_MS, |fleet, n| {
        let filter = format!("host.resourceId=\"{}\"", fleet.host(n));
        Some(filtered_page(INSTANCES_PATH, filter))
    }),
    probe("instances at a site", EXACT_FILTER_TARGET_MS, |fleet, n| {
        let filter = format!("host.site.resourceId=\"{}\"", fleet.site(n));
        Some(filtered_page(INSTANCES_PATH, filter))
    }),
    probe("instances by part of their name", SUBSTRING_FILTER_TARGET_MS, |fleet, n| {
        let name = instance_name(fleet.host_index(n));
        Some(filtered_page(INSTANCES_PATH, format!("name=\"{}\"", name_suffix(&name))))
    }),
    probe("number of instances (page of 1)", None, |_, _| {
        Some(RequestSpec::get(INSTANCES_PATH).with_query("pageSize", 1))
    }),
    probe("get a run", SINGLE_TARGET_MS, |fleet, n| {
        Some(RequestSpec::get(format!("{RUNS_PATH}/{}", fleet.run(n))))
    }),
    probe("first page of 100 runs", FIRST_PAGE_TARGET_MS, |_, _| Some(first_page(RUNS_PATH))),
    probe("first page of 100 runs, newest", FIRST_PAGE_TARGET_MS, |_, _| {
        Some(first_page(RUNS_PATH).with_query("orderBy", NEWEST_FIRST))
    }),
    probe("page of 100 runs, far back", FAR_PAGE_TARGET_MS, |fleet, _| {
        Some(first_page(RUNS_PATH).with_query("offset", fleet.far_offset()))
    }),
    probe("runs by id", EXACT_FILTER_TARGET_MS, |fleet, n| {
        Some(filtered_page(RUNS_PATH, format!("resourceId=\"{}\"", fleet.run(n))))
    }),
    probe("runs of an instance, newest", EXACT_FILTER_TARGET_MS, |fleet, n| {
        let filter = format!("instance.resourceId=\"{}\"", fleet.instance(n));
        Some(filtered_page(RUNS_PATH, filter).with_query("orderBy", NEWEST_FIRST))
    }),
    probe("runs at a site", EXACT_FILTER_TARGET_MS, |fleet, n| {
        let filter = format!("instance.host.site.resourceId=\"{}\"", fleet.site(n));
        Some(filtered_page(RUNS_PATH, filter))
    }),
    probe("runs by part of their name", SUBSTRING_FILTER_TARGET_MS, |fleet, n| {
        let name = run_name(fleet.run_index(n));
        Some(filtered_page(RUNS_PATH, format!("name=\"{}\"", name_suffix(&name))))
    }),
    probe("number of runs (page of 1)", None, |_, _| {
        Some(RequestSpec::get(RUNS_PATH).with_query("pageSize", 1))
    }),
];

/// Requests that change something. Instances are created on hosts that were created before.
pub const WRITES: &[Probe] = &[
    Probe {
        creates_hosts: true,
        ..probe("register a host", None, |_, n| {
            let uuid = format!("10000000-0000-4000-8000-{n:012x}");
            let body = json!({"name": format!("new-{n}"), "uuid": uuid});
            Some(RequestSpec::post(format!("{HOSTS_PATH}/register"), body))
        })
    },
    probe("patch a host", None, |fleet, n| {
        let body = json!({"name": format!("renamed-{n}")});
        Some(RequestSpec::patch(format!("{HOSTS_PATH}/{}", fleet.host(n)), body))
    }),
    probe("create an instance", None, |fleet, n| {
        let body = json!({"hostID": fleet.created_host(n)?, "osID": fleet.os()});
        Some(RequestSpec::post(INSTANCES_PATH, body))
    }),
    probe("patch an instance", None, |fleet, n| {
        let body = json!({"name": format!("renamed-{n}")});
        let path = format!("{INSTANCES_PATH}/{}", fleet.instance(n));
        Some(RequestSpec::patch(path, body))
    }),
];

const NEWEST_FIRST: &str = "startTime desc";

const fn probe(
    what: &'static str,
    target_ms: Option<f64>,
    build_request: fn(&Fleet, u32) -> Option<RequestSpec>,
) -> Probe {
    Probe { what, target_ms, build_request, creates_hosts: false }
}

fn first_page(list: &str) -> RequestSpec {
    RequestSpec::get(list).with_query("pageSize", 100)
}

/// First page of a filtered list.
fn filtered_page(list: &str, filter: String) -> RequestSpec {
    first_page(list).with_query("filter", filter)
}

/// The last 4 digits of a name, which a few other names have as well.
fn name_suffix(name: &str) -> &str {
    name.get(name.len().saturating_sub(4)..).unwrap_or(name)
}
