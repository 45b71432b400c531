//! `evenkeel policy`: the desired packages or image of nodes.

pub mod rules;

use std::path::{Path, PathBuf};

use clap::{ArgGroup, Args, Subcommand};
use evenkeel_api::os::OperatingSystemResource;
use evenkeel_api::policy::{
    ImageRulesInput, OsUpdatePolicy, OsUpdatePolicyInput, PackageRulesInput, UpdatePolicyKind,
};
use evenkeel_api::timestamps::Timestamps;
use serde::Deserialize;
use serde_json::Value;

use self::rules::{ImageRuleOptions, PackageRuleOptions};
use super::{parse_input, read_file, read_yaml};
use crate::Failure;
use crate::client::Client;
use crate::listing::ListOptions;
use crate::output::Printer;
use crate::page::{Cell, DetailPage, cells};
use crate::requests::{self, DuplicateOption, ResourceArg};
use crate::resource::{Resource, ResourceKind};

/// Manage update policies: the desired packages or image of nodes.
#[derive(Debug, Subcommand)]
pub enum PolicyCommand {
    /// List policies.
    List(ListOptions),
    /// Show a policy.
    Get(ResourceArg<OsUpdatePolicy>),
    /// Create a policy. Policies cannot be changed: create another one and assign it instead.
    Create(Box<CreatePolicy>),
    /// Delete a policy that is not assigned.
    Delete(ResourceArg<OsUpdatePolicy>),
}

/// Create a policy from a file or from options.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("desired").required(true).multiple(true)
    .args(["file", "latest", "packages", "sources", "kernel_command", "target_os"]))]
pub struct CreatePolicy {
    /// Name of the policy.
    #[arg(required_unless_present = "file")]
    name: Option<String>,
    /// File with an update policy, as `get -o yaml` or `get -o json` prints it, or in the format of
    /// EIM's command line: the fields below `spec`.
    #[arg(long, short, value_name = "FILE", conflicts_with_all = ["name", "latest", "packages", "sources", "kernel_command", "target_os", "description", "allow_downgrade", "offline_days",
        "suites", "exclude", "min_age_days", "allow_removals", "reboot", "restart_services", "download_rate", "unused_packages",
        "minimal_steps",
        "image_download_rate", "image_max_size", "image_attempts"])]
    file: Option<PathBuf>,
    /// Update to the latest versions: all packages, or the newest image.
    #[arg(long, conflicts_with_all = ["packages", "sources", "kernel_command", "target_os"])]
    latest: bool,
    /// Package to install, in its latest version or in the given one. Can be repeated.
    #[arg(long = "package", value_name = "NAME[=VERSION]", conflicts_with = "target_os")]
    packages: Vec<String>,
    /// File with an additional package source (deb822 stanza). Can be repeated.
    #[arg(long = "source", value_name = "FILE", conflicts_with = "target_os")]
    sources: Vec<PathBuf>,
    /// Kernel command line. Only agents of EIM set it.
    #[arg(long)]
    kernel_command: Option<String>,
    /// Operating system whose image to install (ID or name).
    #[arg(long, value_name = "OS")]
    target_os: Option<String>,
    /// Description.
    #[arg(long, default_value = "", hide_default_value = true)]
    description: String,
    /// Allow older packages or an older image to replace newer ones.
    #[arg(long)]
    allow_downgrade: bool,
    /// Number of days that a node may start updates with offline grants while the server is
    /// unreachable, 0 for never [default: 7].
    #[arg(long, value_name = "N")]
    offline_days: Option<u32>,
    #[command(flatten)]
    rules: PackageRuleOptions,
    #[command(flatten)]
    image_rules: ImageRuleOptions,
    #[command(flatten)]
    duplicates: DuplicateOption,
}

impl PolicyCommand {
    pub async fn run(self, client: &Client, printer: &mut Printer<'_>) -> Result<(), Failure> {
        type Policy = OsUpdatePolicy;
        match self {
            Self::List(options) => requests::list::<Policy>(options, client, printer).await,
            Self::Get(policy) => policy.print(client, printer).await,
            Self::Create(create) => {
                let duplicates = create.duplicates;
                let body = create.build_input(client).await?;
                duplicates.check::<Policy>(client, &body.name, None).await?;
                requests::create::<Policy>(&body, client, printer).await
            }
            Self::Delete(policy) => policy.delete(client, printer).await,
        }
    }
}

impl CreatePolicy {
    async fn build_input(self, client: &Client) -> Result<OsUpdatePolicyInput, Failure> {
        let spec = match &self.file {
            Some(path) => match read_policy(path)? {
                PolicyFile::Printed(input) => return Ok(*input),
                PolicyFile::Eim { spec } => *spec,
            },
            None => self.build_spec()?,
        };
        let target_os_id = match spec.target_os.as_str() {
            "" => None,
            os => Some(requests::resolve_id::<OperatingSystemResource>(client, os).await?),
        };
        Ok(OsUpdatePolicyInput {
            name: spec.name,
            description: spec.description,
            update_policy: spec.update_policy,
            update_packages: spec.update_packages,
            update_sources: spec.update_sources,
            update_kernel_command: spec.update_kernel_command,
            target_os_id,
            allow_downgrade: spec.allow_downgrade,
            offline_days: spec.offline_days,
            package_rules: spec.package_rules,
            image_rules: spec.image_rules,
        })
    }

    fn build_spec(self) -> Result<PolicySpec, Failure> {
        let sources: Result<_, _> = self.sources.iter().map(|path| read_file(path)).collect();
        Ok(PolicySpec {
            name: self.name.unwrap_or_default(),
            description: self.description,
            update_policy: if self.latest {
                UpdatePolicyKind::Latest
            } else {
                UpdatePolicyKind::Target
            },
            target_os: self.target_os.unwrap_or_default(),
            update_packages: self.packages.join("\n"),
            update_kernel_command: self.kernel_command.unwrap_or_default(),
            update_sources: sources?,
            allow_downgrade: self.allow_downgrade,
            offline_days: self.offline_days,
            package_rules: self.rules.input(),
            image_rules: self.image_rules.input(),
        })
    }
}

/// File with an update policy.
enum PolicyFile {
    /// As this program prints it.
    Printed(Box<OsUpdatePolicyInput>),
    /// In the format of EIM's command line.
    Eim { spec: Box<PolicySpec> },
}

fn read_policy(path: &Path) -> Result<PolicyFile, Failure> {
    const EXPECTED: &str = "an update policy";
    let file: Value = read_yaml(path, EXPECTED)?;
    if let Some(spec) = file.get("spec") {
        let spec = serde_json::from_value(spec.clone());
        return spec.map(|spec| PolicyFile::Eim { spec }).map_err(|error| Failure::Content {
            path: path.to_owned(),
            expected: EXPECTED,
            source: Box::new(error),
        });
    }
    // A printed policy has its operating system only as a whole resource.
    let os = file["targetOs"]["resourceId"].as_str().map(str::to_owned);
    let input: OsUpdatePolicyInput = parse_input(file, path, EXPECTED)?;
    let target_os_id = input.target_os_id.clone().filter(|id| !id.is_empty()).or(os);
    Ok(PolicyFile::Printed(Box::new(OsUpdatePolicyInput { target_os_id, ..input })))
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct PolicySpec {
    name: String,
    #[serde(default)]
    description: String,
    update_policy: UpdatePolicyKind,
    #[serde(default)]
    target_os: String,
    #[serde(default)]
    update_packages: String,
    #[serde(default)]
    update_kernel_command: String,
    #[serde(default)]
    update_sources: Vec<String>,
    #[serde(default)]
    allow_downgrade: bool,
    #[serde(default)]
    offline_days: Option<u32>,
    #[serde(default)]
    package_rules: Option<PackageRulesInput>,
    #[serde(default)]
    image_rules: Option<ImageRulesInput>,
}

impl Resource for OsUpdatePolicy {
    const KIND: ResourceKind = ResourceKind {
        id_prefix: "osupdatepolicy",
        path: "os-update-policies",
        list_key: "osUpdatePolicies",
        in_use_hint: Some(
            "remove its assignments first: `evenkeel assignment list` lists them, `evenkeel assignment clear TARGET` removes one",
        ),
        titles: &["DESIRED", "DESCRIPTION"],
        ..ResourceKind::new("POLICY", "policy", "policies")
    };

    fn key(&self) -> [&str; 2] {
        [&self.resource_id, &self.name]
    }

    fn timestamps(&self) -> Option<&Timestamps> {
        self.timestamps.as_ref()
    }

    fn columns(&self) -> Vec<Cell> {
        cells![describe_desired(self), &self.description]
    }

    fn add_details(&self, page: &mut DetailPage) {
        page.field("desired", describe_desired(self))
            .field_if("kernel", &self.update_kernel_command)
            .field_if("description", &self.description)
            .field("downgrades", if self.allow_downgrade { "allowed" } else { "not allowed" })
            .field("offline", format_offline_days(self.offline_days))
            .created(self.timestamps.as_ref());
        let one = |text: &str| cells![text];
        let mut rules = rules::describe_package_rules(&self.package_rules);
        rules.extend(rules::describe_image_rules(&self.image_rules));
        page.table("Rules:", &["RULE"], rules.iter().map(|rule| one(rule)))
            .table("Packages:", &["PACKAGE"], self.update_packages.lines().map(one))
            .table(
                "Sources:",
                &["SOURCE"],
                self.update_sources.iter().map(|source| one(source.trim_end())),
            );
    }
}

/// Formats how long nodes may start updates with offline grants.
fn format_offline_days(days: u32) -> String {
    match days {
        0 => "never".to_owned(),
        1 => "for 1 day".to_owned(),
        days => format!("for {days} days"),
    }
}

/// Summary of the desired update.
fn describe_desired(policy: &OsUpdatePolicy) -> String {
    if policy.update_policy == UpdatePolicyKind::Latest {
        return "latest".to_owned();
    }
    if let Some(os) = &policy.target_os {
        return format!("image {}", os.name);
    }
    let packages: Vec<_> = policy.update_packages.lines().collect();
    match packages.as_slice() {
        [] if policy.update_sources.is_empty() => "kernel command line".to_owned(),
        [] => "sources".to_owned(),
        [one] => (*one).to_owned(),
        [first, rest @ ..] => format!("{first} and {} more", rest.len()),
    }
}
