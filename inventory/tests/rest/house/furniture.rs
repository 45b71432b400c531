//! The things of a project, and how paths name them.

/// The ids of one thing of each kind.
#[derive(Clone, Debug)]
pub struct Things {
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
}

impl Things {
    /// A path of the document with the ids of these things.
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
            // One site is assigned a policy and paused.
            ("/assignments/", &self.site),
            ("/pauses/", &self.site),
            ("/join-tokens/", &self.token),
            ("/providers/", &self.provider),
            ("/customConfigs/", &self.config),
            ("/localAccounts/", &self.account),
        ]
        .into_iter()
        .find_map(|(part, id)| path.contains(part).then_some(id.as_str()));
        let filled = path.replace("{projectName}", project);
        let filled = match id {
            None => filled,
            Some(id) => NAMED
                .iter()
                .fold(filled, |path, named| path.replace(named, id)),
        };
        assert!(
            !filled.contains('{'),
            "say in `Things::fill` what is meant in {path}, and furnish it"
        );
        filled
    }
}

/// What stands for an id in the paths of the document.
pub const NAMED: [&str; 3] = ["{resourceId}", "{target}", "{scope}"];

/// Whether a path of the document names a thing of a project.
pub fn names_a_thing(path: &str) -> bool {
    NAMED.iter().any(|named| path.contains(named))
}

/// A path below a project as the legacy form has it.
pub fn legacy(path: &str) -> String {
    let below = path.strip_prefix("/v1/projects/");
    let (_, rest) = below
        .and_then(|below| below.split_once('/'))
        .expect("a path below a project");
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
