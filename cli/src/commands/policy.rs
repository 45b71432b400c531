//! `evenkeel policy`: what should run.

pub mod rules;

use std::path::{Path, PathBuf};

use clap::{ArgGroup, Args, Subcommand};
use evenkeel_api::os::OperatingSystemResource;
use evenkeel_api::policy::{
    ImageRulesInput, OsUpdatePolicy, OsUpdatePolicyInput, PackageRulesInput, UpdatePolicyKind,
};
use serde::Deserialize;

use self::rules::{ImageRuleOptions, RuleOptions};
use super::read_yaml;
use crate::Failure;
use crate::client::Client;
use crate::pages::{self, ListOptions};
use crate::resource::{self, Resource};
use crate::view::{Cell, Page, Printer};

/// Update policies: what should run.
#[derive(Debug, Subcommand)]
pub enum PolicyCommand {
    /// List the policies.
    List(ListOptions),
    /// Show a policy.
    Get {
        /// Its id or name.
        policy: String,
    },
    /// Make a policy. A policy never changes; to change the wish, make another and assign that.
    Create(Box<CreatePolicy>),
    /// Delete a policy that is assigned to nothing.
    Delete {
        /// Its id or name.
        policy: String,
    },
}

/// Make a policy, from a file or from options.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("wish").required(true).multiple(true)
    .args(["file", "latest", "packages", "sources", "kernel_command", "target_os"]))]
pub struct CreatePolicy {
    /// What to call it.
    #[arg(required_unless_present = "file")]
    name: Option<String>,
    /// A policy as YAML, as the ancestor's command line takes it.
    #[arg(long, short, value_name = "FILE", conflicts_with_all = ["name", "latest", "packages", "sources", "kernel_command", "target_os", "description", "allow_downgrade", "offline_days",
        "suites", "exclude", "min_age_days", "allow_removals", "reboot", "restart_services", "download_rate",
        "image_download_rate", "image_max_size", "image_attempts"])]
    file: Option<PathBuf>,
    /// Whatever is newest: every package, or the newest image.
    #[arg(long, conflicts_with_all = ["packages", "sources", "kernel_command", "target_os"])]
    latest: bool,
    /// A package that should be there, in its newest version or in the one that is named. May be given again.
    #[arg(
        long = "package",
        value_name = "NAME[=VERSION]",
        conflicts_with = "target_os"
    )]
    packages: Vec<String>,
    /// A file with a further source of packages (a DEB822 stanza). May be given again.
    #[arg(long = "source", value_name = "FILE", conflicts_with = "target_os")]
    sources: Vec<PathBuf>,
    /// The command line that the kernel should have.
    #[arg(long)]
    kernel_command: Option<String>,
    /// The operating system whose image should run, by its id or name.
    #[arg(long, value_name = "OS")]
    target_os: Option<String>,
    /// For people.
    #[arg(long, default_value = "", hide_default_value = true)]
    description: String,
    /// Older packages or an older image may replace newer ones.
    #[arg(long)]
    allow_downgrade: bool,
    /// For how many days a node that cannot reach the server may go by leave that it was given ahead, 0 for never
    /// [default: 7].
    #[arg(long, value_name = "N")]
    offline_days: Option<u32>,
    #[command(flatten)]
    rules: RuleOptions,
    #[command(flatten)]
    image_rules: ImageRuleOptions,
}

impl PolicyCommand {
    pub async fn run(self, client: &Client, printer: &mut Printer<'_>) -> Result<(), Failure> {
        type Policy = OsUpdatePolicy;
        match self {
            Self::List(options) => pages::show::<Policy>(client, &options.query(), printer).await,
            Self::Get { policy } => printer.one(&resource::find::<Policy>(client, &policy).await?),
            Self::Create(create) => {
                let body = create.input(client).await?;
                let made: Policy = client.post(Policy::PATH, &body).await?;
                printer.one(&made)
            }
            Self::Delete { policy } => {
                let id = resource::delete::<Policy>(client, &policy).await?;
                printer.done(Policy::WORD, &id, "deleted")
            }
        }
    }
}

impl CreatePolicy {
    async fn input(self, client: &Client) -> Result<OsUpdatePolicyInput, Failure> {
        let spec = match &self.file {
            Some(path) => read_yaml::<PolicyFile>(path, "an update policy")?.spec,
            None => self.spec()?,
        };
        let target_os_id = match spec.target_os.as_str() {
            "" => None,
            os => Some(resource::id_of::<OperatingSystemResource>(client, os).await?),
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

    fn spec(self) -> Result<PolicySpec, Failure> {
        let sources: Result<_, _> = self.sources.iter().map(|path| read(path)).collect();
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

fn read(path: &Path) -> Result<String, Failure> {
    std::fs::read_to_string(path).map_err(|source| Failure::File {
        path: path.to_owned(),
        source,
    })
}

/// A policy as the ancestor's command line reads it.
#[derive(Debug, Deserialize)]
struct PolicyFile {
    spec: PolicySpec,
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
    const NOUN: &'static str = "policy";
    const WORD: &'static str = "policy";
    const MANY: &'static str = "policies";
    const PREFIX: &'static str = "osupdatepolicy";
    const PATH: &'static str = "os-update-policies";
    const KEYS: &'static [&'static str] = &["osUpdatePolicies"];
    const FREE: Option<&'static str> = Some(
        "take its assignments away first: `evenkeel assignment list` shows them, `evenkeel assignment clear TARGET` takes one away",
    );
    const HEADER: &'static [&'static str] = &["ID", "NAME", "WISH", "DESCRIPTION"];

    fn id(&self) -> &str {
        &self.resource_id
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn row(&self) -> Vec<Cell> {
        vec![
            self.resource_id.clone().into(),
            self.name.clone().into(),
            wish(self).into(),
            self.description.clone().into(),
        ]
    }

    fn page(&self) -> Page {
        let mut page = Page::default();
        page.field("id", self.resource_id.clone())
            .field("name", self.name.clone())
            .field("wish", wish(self))
            .field_if("kernel", &self.update_kernel_command)
            .field_if("description", &self.description)
            .field(
                "downgrades",
                if self.allow_downgrade {
                    "allowed"
                } else {
                    "not allowed"
                },
            )
            .field("offline", offline(self.offline_days))
            .created(self.timestamps.as_ref());
        let one = |text: &str| vec![Cell::from(text)];
        let mut rules = rules::words(&self.package_rules);
        rules.extend(rules::words_of_images(&self.image_rules));
        page.table(
            "Rules:",
            &["RULE"],
            rules.iter().map(|rule| one(rule)).collect(),
        )
        .table(
            "Packages:",
            &["PACKAGE"],
            self.update_packages.lines().map(one).collect(),
        )
        .table(
            "Sources:",
            &["SOURCE"],
            self.update_sources
                .iter()
                .map(|source| one(source.trim_end()))
                .collect(),
        );
        page
    }
}

/// How long a node that cannot ask may go by what it was told.
fn offline(days: u32) -> String {
    match days {
        0 => "never".to_owned(),
        1 => "for a day".to_owned(),
        days => format!("for {days} days"),
    }
}

/// What a policy wishes for, in a few words.
fn wish(policy: &OsUpdatePolicy) -> String {
    if policy.update_policy == UpdatePolicyKind::Latest {
        return "whatever is newest".to_owned();
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
