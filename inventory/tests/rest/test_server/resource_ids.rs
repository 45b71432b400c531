//! The resources of a project, and their ids in paths.

/// The ids of one resource of each kind.
#[derive(Clone, Debug)]
pub struct ResourceIds {
    pub region: String,
    pub site: String,
    pub host: String,
    pub os: String,
    pub policy: String,
    pub instance: String,
    pub schedule: String,
    pub repeated: String,
    pub token: String,
    pub run: String,
    pub provider: String,
    pub config: String,
    pub account: String,
    pub notification_target: String,
    /// The newest change of the project after the others were created.
    pub change: String,
}

impl ResourceIds {
    /// A path of the document with the ids of these resources.
    pub fn fill(&self, path: &str, project: &str) -> String {
        let id = [
            ("/compute/hosts/", &self.host),
            ("/compute/instances/", &self.instance),
            ("/compute/os/", &self.os),
            ("/os-update-policies/", &self.policy),
            ("/os-update-runs/", &self.run),
            ("/schedules/single/", &self.schedule),
            ("/schedules/repeated/", &self.repeated),
            ("/regions/", &self.region),
            ("/sites/", &self.site),
            // The same site has a policy assigned and is paused.
            ("/assignments/", &self.site),
            ("/pauses/", &self.site),
            ("/join-tokens/", &self.token),
            ("/providers/", &self.provider),
            ("/customConfigs/", &self.config),
            ("/localAccounts/", &self.account),
            ("/notification-targets/", &self.notification_target),
        ]
        .into_iter()
        .find_map(|(part, id)| path.contains(part).then_some(id.as_str()));
        let filled = path.replace("{projectName}", project).replace("{tokenId}", UNKNOWN_TOKEN);
        let filled = filled.replace("{changeId}", &self.change).replace("{userName}", "nobody");
        let filled = match id {
            None => filled,
            Some(id) => ID_PLACEHOLDERS
                .iter()
                .fold(filled, |path, placeholder| path.replace(placeholder, id)),
        };
        assert!(
            !filled.contains('{'),
            "add the id for {path} to `ResourceIds::fill`, and create the resource in `seed_resources`"
        );
        filled
    }
}

/// Id of a token of an operator that does not exist.
const UNKNOWN_TOKEN: &str = "3f2504e0-4f89-41d3-9a0c-0305e82c3301";

/// Placeholders of ids in the paths of the document.
pub const ID_PLACEHOLDERS: [&str; 3] = ["{resourceId}", "{target}", "{scope}"];

/// Whether a path of the document contains the id of a resource of a project.
pub fn has_id_placeholder(path: &str) -> bool {
    ID_PLACEHOLDERS.iter().any(|placeholder| path.contains(placeholder))
}

/// The legacy form of a path in a project.
pub fn legacy_path(path: &str) -> String {
    let below = path.strip_prefix("/v1/projects/");
    let (_, rest) = below.and_then(|below| below.split_once('/')).expect("a path below a project");
    let rest = rest.strip_prefix("compute/").unwrap_or(rest);
    let renamed = [
        ("hosts/summary", "hosts_summary"),
        ("os", "operating_systems"),
        ("os-update-policies", "os_update_policy"),
        ("os-update-runs", "os_update_run"),
    ]
    .into_iter()
    .find_map(|(name, legacy)| {
        let more = rest.strip_prefix(name)?;
        (more.is_empty() || more.starts_with(['/', '?'])).then(|| format!("{legacy}{more}"))
    });
    let rest = renamed.unwrap_or_else(|| rest.to_owned());
    format!("/edge-infra.orchestrator.apis/v2/{rest}")
}
