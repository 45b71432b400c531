//! The ancestor's two families of paths, brought to one form before routing.
//!
//! The project form names the project in the path, the legacy form by its UUID in a header. Some resources have a second
//! name in either.

use axum::Router;
use axum::extract::Request;
use axum::http::Uri;
use axum::http::uri::PathAndQuery;
use tower::ServiceExt;

const PROJECT: &str = "/v1/projects/";
const LEGACY: &str = "/edge-infra.orchestrator.apis/v2/";

/// Marks a request of the legacy form: its project is in the header, not in the path.
#[derive(Clone, Copy, Debug)]
pub struct Legacy;

/// Other names of resources within a project, longest first.
const ALIASES: &[(&str, &str)] = &[
    ("compute/operating_systems", "compute/os"),
    ("compute/hosts_summary", "compute/hosts/summary"),
    ("compute/schedules/repeated", "schedules/repeated"),
    ("compute/schedules/single", "schedules/single"),
    ("os_update_policy", "os-update-policies"),
    ("os_update_run", "os-update-runs"),
    ("schedules/repeated", "schedules/repeated"),
    ("schedules/single", "schedules/single"),
    ("schedules", "compute/schedules"),
    ("telemetry/loggroups", "telemetry/groups/logs"),
    ("telemetry/metricgroups", "telemetry/groups/metrics"),
    ("workloads", "compute/workloads"),
];

/// Names of resources in the legacy form, which come before [`ALIASES`].
const LEGACY_NAMES: &[(&str, &str)] = &[
    ("hosts", "compute/hosts"),
    ("hosts_summary", "compute/hosts/summary"),
    ("instances", "compute/instances"),
    ("operating_systems", "compute/os"),
];

/// Brings requests to one form before the router sees them.
pub fn one_form(router: Router) -> Router {
    Router::new().fallback_service(router.map_request(rewritten))
}

fn rewritten(mut request: Request) -> Request {
    let Some((path, legacy)) = canonical(request.uri().path()) else {
        return request;
    };
    let text = match request.uri().query() {
        None => path,
        Some(query) => format!("{path}?{query}"),
    };
    // What a URI was made of makes a URI again; if not, the path as it came is answered with 404.
    if let Ok(path_and_query) = text.parse::<PathAndQuery>() {
        let mut parts = request.uri().clone().into_parts();
        parts.path_and_query = Some(path_and_query);
        if let Ok(uri) = Uri::from_parts(parts) {
            *request.uri_mut() = uri;
            if legacy {
                request.extensions_mut().insert(Legacy);
            }
        }
    }
    request
}

/// The one form of a path and whether it was of the legacy form; none if the path has it already.
fn canonical(path: &str) -> Option<(String, bool)> {
    let trimmed = path.trim_end_matches('/');
    if let Some(rest) = trimmed.strip_prefix(LEGACY) {
        let named = replaced(LEGACY_NAMES, rest).or_else(|| renamed(rest));
        return Some((
            format!("{PROJECT}-/{}", named.unwrap_or_else(|| rest.to_owned())),
            true,
        ));
    }
    let aliased = trimmed.strip_prefix(PROJECT).and_then(|rest| {
        let (project, rest) = rest.split_once('/')?;
        let rest = renamed(rest)?;
        Some(format!("{PROJECT}{project}/{rest}"))
    });
    match aliased {
        Some(path) => Some((path, false)),
        None if trimmed == path || trimmed.is_empty() => None,
        None => Some((trimmed.to_owned(), false)),
    }
}

/// The path with the one name of what it names by another; none if it has it already.
fn renamed(path: &str) -> Option<String> {
    profiles(path)
        .or_else(|| replaced(ALIASES, path))
        .or_else(|| sites(path))
}

/// Telemetry profiles are also found below a group. Which one is nobody's business: there are none.
fn profiles(path: &str) -> Option<String> {
    let (group, of_group) = path.strip_prefix("telemetry/")?.split_once('/')?;
    let (_id, rest) = of_group.split_once('/')?;
    match (group, rest) {
        ("loggroups", "logprofiles") => Some("telemetry/profiles/logs".to_owned()),
        ("metricgroups", "metricprofiles") => Some("telemetry/profiles/metrics".to_owned()),
        _ => None,
    }
}

/// Sites are also found below a region. Which one is nobody's business there: clients send its id, a star, any word or
/// nothing at all.
fn sites(path: &str) -> Option<String> {
    let (_region, rest) = path.strip_prefix("regions/")?.split_once('/')?;
    let more = rest.strip_prefix("sites")?;
    (more.is_empty() || more.starts_with('/')).then(|| rest.to_owned())
}

/// The path with the first name that it begins with replaced.
fn replaced(names: &[(&str, &str)], path: &str) -> Option<String> {
    names.iter().find_map(|(name, new)| {
        let rest = path.strip_prefix(name)?;
        (rest.is_empty() || rest.starts_with('/')).then(|| format!("{new}{rest}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_comes_to_one() {
        let table = [
            "/v1/projects/demo/compute/hosts",
            "/v1/projects/demo/compute/hosts/",
            "/v1/projects/demo/compute/operating_systems/os-00000001",
            "/v1/projects/demo/os_update_policy",
            "/v1/projects/demo/os_update_run/osupdaterun-00000001",
            "/v1/projects/demo/schedules",
            "/v1/projects/demo/schedules/single",
            "/v1/projects/demo/schedules/singular",
            "/v1/projects/demo/compute/schedules/single/singlesche-00000001",
            "/v1/projects/demo/compute/schedules/repeated",
            "/v1/projects/demo/schedules/repeated/repeatedsche-00000001",
            "/v1/projects/demo/regions/region-00000001",
            "/v1/projects/demo/regions/region-00000001/sites",
            "/v1/projects/demo/regions/*/sites/site-00000001",
            "/v1/projects/demo/regions//sites",
            "/v1/projects/demo/regions/region-00000001/sitesandmore",
            "/v1/projects/demo/compute/hosts/summary",
            "/v1/projects/demo/compute/hosts_summary",
            "/v1/projects/demo/workloads",
            "/v1/projects/demo/workload_members",
            "/v1/projects/demo/telemetry/loggroups",
            "/v1/projects/demo/telemetry/metricgroups",
            "/v1/projects/demo/telemetry/loggroups/telemetrygroup-00000001/logprofiles",
            "/v1/projects/demo/telemetry/metricgroups/telemetrygroup-00000001/metricprofiles",
            "/v1/projects/demo/telemetry/profiles/metrics",
            "/edge-infra.orchestrator.apis/v2/regions/region/sites",
            "/edge-infra.orchestrator.apis/v2/hosts/register",
            "/edge-infra.orchestrator.apis/v2/hosts/host-00000001/onboard",
            "/edge-infra.orchestrator.apis/v2/hosts_summary",
            "/edge-infra.orchestrator.apis/v2/instances/inst-00000001/invalidate",
            "/edge-infra.orchestrator.apis/v2/os_update_run",
            "/edge-infra.orchestrator.apis/v2/providers",
            "/edge-infra.orchestrator.apis/v2/customConfigs/customconfig-00000001",
            "/edge-infra.orchestrator.apis/v2/localAccounts",
            "/edge-infra.orchestrator.apis/v2/locations",
            "/edge-infra.orchestrator.apis/v2/workloads",
            "/edge-infra.orchestrator.apis/v2/telemetry/loggroups",
            "/edge-infra.orchestrator.apis/v2/instances/inst-00000001/",
            "/edge-infra.orchestrator.apis/v2/operating_systems",
            "/edge-infra.orchestrator.apis/v2/os_update_policy",
            "/edge-infra.orchestrator.apis/v2/schedules",
            "/edge-infra.orchestrator.apis/v2/schedules/single",
            "/edge-infra.orchestrator.apis/v2/hostsandmore",
            "/",
        ]
        .map(|path| {
            let shown = match canonical(path) {
                None => "stays".to_owned(),
                Some((path, false)) => path,
                Some((path, true)) => format!("{path} (legacy)"),
            };
            format!("{path}\n  {shown}")
        });
        insta::assert_snapshot!(table.join("\n"));
    }
}
