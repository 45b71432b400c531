//! Rewrites EIM's two families of paths to one canonical form before routing.
//!
//! The project form names the project in the path, the legacy form by its UUID in a header. Some
//! resources have a second name in both forms.

use axum::Router;
use axum::extract::Request;
use axum::http::Uri;
use axum::http::uri::PathAndQuery;
use tower::ServiceExt;

const PROJECT_PREFIX: &str = "/v1/projects/";
const LEGACY_PREFIX: &str = "/edge-infra.orchestrator.apis/v2/";

/// Marks a request in the legacy form: its project is in the header, not in the path.
#[derive(Clone, Copy, Debug)]
pub struct LegacyPath;

/// Other names of resources within a project; longer names come first.
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

/// Names of resources in the legacy form. They are tried before [`ALIASES`].
const LEGACY_NAMES: &[(&str, &str)] = &[
    ("hosts", "compute/hosts"),
    ("hosts_summary", "compute/hosts/summary"),
    ("instances", "compute/instances"),
    ("operating_systems", "compute/os"),
];

/// Rewrites the paths of requests to the canonical form before the router sees them.
pub fn with_canonical_paths(router: Router) -> Router {
    Router::new().fallback_service(router.map_request(rewrite_request))
}

fn rewrite_request(mut request: Request) -> Request {
    let Some((path, legacy)) = canonical_path(request.uri().path()) else {
        return request;
    };
    let text = match request.uri().query() {
        None => path,
        Some(query) => format!("{path}?{query}"),
    };
    // A URI built from parts of a URI is always valid. If not, the original path gets a 404.
    if let Ok(path_and_query) = text.parse::<PathAndQuery>() {
        let mut parts = request.uri().clone().into_parts();
        parts.path_and_query = Some(path_and_query);
        if let Ok(uri) = Uri::from_parts(parts) {
            *request.uri_mut() = uri;
            if legacy {
                request.extensions_mut().insert(LegacyPath);
            }
        }
    }
    request
}

/// Canonical form of a path, and whether the path was in the legacy form. None if the path is
/// canonical.
fn canonical_path(path: &str) -> Option<(String, bool)> {
    let trimmed = path.trim_end_matches('/');
    if let Some(rest) = trimmed.strip_prefix(LEGACY_PREFIX) {
        let resource_path = replace_prefix(LEGACY_NAMES, rest).or_else(|| replace_alias(rest));
        return Some((
            format!("{PROJECT_PREFIX}-/{}", resource_path.unwrap_or_else(|| rest.to_owned())),
            true,
        ));
    }
    let aliased = trimmed.strip_prefix(PROJECT_PREFIX).and_then(|rest| {
        let (project, rest) = rest.split_once('/')?;
        let rest = replace_alias(rest)?;
        Some(format!("{PROJECT_PREFIX}{project}/{rest}"))
    });
    match aliased {
        Some(path) => Some((path, false)),
        None if trimmed == path || trimmed.is_empty() => None,
        None => Some((trimmed.to_owned(), false)),
    }
}

/// The path with an alias replaced by the canonical name. None if it contains no alias.
fn replace_alias(path: &str) -> Option<String> {
    telemetry_profiles_path(path)
        .or_else(|| replace_prefix(ALIASES, path))
        .or_else(|| nested_site_path(path))
}

/// Telemetry profiles are also available below a group. The group is ignored: there are no
/// profiles.
fn telemetry_profiles_path(path: &str) -> Option<String> {
    let (group, of_group) = path.strip_prefix("telemetry/")?.split_once('/')?;
    let (_id, rest) = of_group.split_once('/')?;
    match (group, rest) {
        ("loggroups", "logprofiles") => Some("telemetry/profiles/logs".to_owned()),
        ("metricgroups", "metricprofiles") => Some("telemetry/profiles/metrics".to_owned()),
        _ => None,
    }
}

/// Sites are also available below a region. The region is ignored there: clients send its id, a
/// star, any text or nothing.
fn nested_site_path(path: &str) -> Option<String> {
    let (_region, rest) = path.strip_prefix("regions/")?.split_once('/')?;
    let more = rest.strip_prefix("sites")?;
    (more.is_empty() || more.starts_with('/')).then(|| rest.to_owned())
}

/// Replaces the first name with which the path begins.
fn replace_prefix(names: &[(&str, &str)], path: &str) -> Option<String> {
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
            let result = match canonical_path(path) {
                None => "stays".to_owned(),
                Some((path, false)) => path,
                Some((path, true)) => format!("{path} (legacy)"),
            };
            format!("{path}\n  {result}")
        });
        insta::assert_snapshot!(table.join("\n"));
    }
}
