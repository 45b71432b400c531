//! `evenkeel assignment`: which policy applies where, and its rollout limits.

use std::str::FromStr;

use clap::{ArgGroup, Args, Subcommand};
use evenkeel_api::assignment::{
    AssignmentResource, AssignmentResumption, AssignmentResumptionInput,
};
use evenkeel_api::host::HostResource;
use evenkeel_api::instance::InstanceResource;
use evenkeel_api::policy::OsUpdatePolicy;
use evenkeel_api::region::RegionResource;
use evenkeel_api::site::SiteResource;

use super::instance;
use super::names::{Names, list_with_names};
use crate::Failure;
use crate::client::Client;
use crate::listing::LimitOptions;
use crate::output::Printer;
use crate::page::{Cell, DetailPage, Tone, cells};
use crate::requests::{self, PatchBody};
use crate::resource::{Resource, ResourceKind};
use crate::time::format_time;

/// Manage assignments: which policy applies where, and its rollout limits.
#[derive(Debug, Subcommand)]
pub enum AssignmentCommand {
    /// List assignments.
    List(LimitOptions),
    /// Show the assignment of a target.
    Get {
        /// Target, as for `set`.
        target: String,
    },
    /// Assign a policy to a target, or change the limits of an assignment.
    ///
    /// Options that are not given keep their values. Another policy resets the failure count.
    Set(SetAssignment),
    /// Resume an assignment that stopped after failures, and reset its failure count.
    Resume {
        /// Target, as for `set`.
        target: String,
        /// Reason, stored with the assignment.
        #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
        reason: String,
    },
    /// Remove the assignment of a target.
    Clear {
        /// Target, as for `set`.
        target: String,
    },
}

/// Assign a policy to a target, or change the limits of an assignment.
#[derive(Debug, Args)]
#[command(
    override_usage = "evenkeel assignment set [OPTIONS] <TARGET> [POLICY]",
    group = ArgGroup::new("what").required(true).multiple(true)
        .args(["policy", "max_concurrent", "stop_after_failures", "no_limits"]),
)]
pub struct SetAssignment {
    /// Target: an ID of an instance, host, site or region, a kind and a name such as `site:berlin`,
    /// or `project`.
    target: String,
    /// ID or name of the policy [default: the assigned one].
    policy: Option<String>,
    /// Maximum number of nodes that update at the same time, or `none` for no limit.
    #[arg(long, value_name = "N|none")]
    max_concurrent: Option<LimitArg>,
    /// Number of failed updates after which no further one starts, or `none` for no limit.
    #[arg(long, value_name = "N|none")]
    stop_after_failures: Option<LimitArg>,
    /// Remove all limits.
    #[arg(long, conflicts_with_all = ["max_concurrent", "stop_after_failures"])]
    no_limits: bool,
}

/// A limit, or `none`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LimitArg(Option<u32>);

impl FromStr for LimitArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "none" {
            return Ok(Self(None));
        }
        let number = text.parse().ok().filter(|number| *number > 0);
        match number {
            Some(_) => Ok(Self(number)),
            None => Err(format!(
                "`{text}` is neither a positive number nor `none`; `evenkeel pause` stops all updates"
            )),
        }
    }
}

impl SetAssignment {
    /// The fields to change.
    async fn build_patch(&self, client: &Client) -> Result<PatchBody, Failure> {
        let policy = self.policy.as_deref();
        let policy = requests::resolve_optional_id::<OsUpdatePolicy>(client, policy).await?;
        let none = self.no_limits.then_some(LimitArg(None));
        let value = |limit: Option<LimitArg>| limit.or(none).map(|LimitArg(limit)| limit);
        let mut change = PatchBody::default();
        change
            .set("osUpdatePolicyId", policy)
            .set("maxConcurrent", value(self.max_concurrent))
            .set("stopAfterFailures", value(self.stop_after_failures));
        Ok(change)
    }
}

impl AssignmentCommand {
    pub async fn run(self, client: &Client, printer: &mut Printer<'_>) -> Result<(), Failure> {
        match self {
            Self::List(limit) => {
                list_with_names(limit, referenced_ids, build_row, client, printer).await
            }
            Self::Get { target } => {
                let target = resolve_assignment_target(client, &target).await?;
                let found = client.get(&AssignmentResource::address(&target)).await;
                print_assignment(found, &target, client, printer).await
            }
            Self::Set(set) => {
                let target = resolve_assignment_target(client, &set.target).await?;
                let body = set.build_patch(client).await?;
                let address = AssignmentResource::address(&target);
                let done = client.patch(&address, &body).await;
                print_assignment(done, &target, client, printer).await
            }
            Self::Resume { target, reason } => {
                let target = resolve_assignment_target(client, &target).await?;
                let address = format!("{}/resume", AssignmentResource::address(&target));
                let body = AssignmentResumptionInput { reason };
                let done = client.replace(&address, &body).await;
                print_assignment(done, &target, client, printer).await
            }
            Self::Clear { target } => {
                let target = resolve_assignment_target(client, &target).await?;
                let done = client.delete(&AssignmentResource::address(&target)).await;
                done.map_err(|error| explain_not_assigned(error, &target))?;
                if !printer.is_human_readable() {
                    let noun = AssignmentResource::KIND.singular;
                    return printer.print_result(noun, &target, "cleared");
                }
                let names = Names::fetch(client, &[target.as_str()]).await?;
                printer.print_line(&format!("assignment {} cleared", names.label(&target)))
            }
        }
    }
}

/// Resolves a target to the last path segment of its assignment.
async fn resolve_assignment_target(client: &Client, text: &str) -> Result<String, Failure> {
    let is_id =
        [InstanceResource::is_id, HostResource::is_id, SiteResource::is_id, RegionResource::is_id];
    if text == "project" || is_id.iter().any(|is_id| is_id(text)) {
        return Ok(text.to_owned());
    }
    match text.split_once(':') {
        Some(("instance", name)) => instance::resolve_instance_id(client, name).await,
        Some(("host", name)) => requests::resolve_id::<HostResource>(client, name).await,
        Some(("site", name)) => requests::resolve_id::<SiteResource>(client, name).await,
        Some(("region", name)) => requests::resolve_id::<RegionResource>(client, name).await,
        _ => Err(Failure::usage_with(
            format!("`{text}` is not an ID and does not name a kind of target"),
            format!(
                "give an ID, or a kind and a name: `instance:{text}`, `host:{text}`, `site:{text}` or `region:{text}`; \
                 `project` is the whole project"
            ),
        )),
    }
}

/// Explains a 404 response: the target has no assignment of its own.
fn explain_not_assigned(error: Failure, target: &str) -> Failure {
    if error.is_not_found() {
        Failure::usage_with(
            format!("no policy is assigned directly to {target}"),
            "`evenkeel assignment list` lists the assignments; a policy may also be inherited from a site, a region or the project",
        )
    } else {
        error
    }
}

/// Prints the assignment in a response.
async fn print_assignment(
    response: Result<AssignmentResource, Failure>,
    target: &str,
    client: &Client,
    printer: &mut Printer<'_>,
) -> Result<(), Failure> {
    let assignment = response.map_err(|error| explain_not_assigned(error, target))?;
    let ids = referenced_ids(&assignment);
    let names = Names::fetch_if_shown(client, &ids, printer).await?;
    printer.print_page(&assignment, &assignment.target, &build_page(&assignment, &names))
}

fn referenced_ids(assignment: &AssignmentResource) -> Vec<&str> {
    vec![&assignment.target, &assignment.os_update_policy_id]
}

/// Row of an assignment with the names of its target and its policy.
fn build_row(assignment: &AssignmentResource, names: &Names) -> Vec<Cell> {
    cells![
        names.label(&assignment.target),
        names.label(&assignment.os_update_policy_id),
        format_usage(assignment.slots_in_use, assignment.max_concurrent),
        failures_cell(assignment.failures, assignment.stop_after_failures),
        format_time(assignment.since),
    ]
}

fn build_page(assignment: &AssignmentResource, names: &Names) -> DetailPage {
    let mut page = DetailPage::default();
    for (title, cell) in AssignmentResource::header(false).iter().zip(build_row(assignment, names))
    {
        page.field(&title.to_lowercase(), cell);
    }
    if let Some(resumption) = &assignment.resumption {
        page.field("resumed", format_resumption(resumption));
    }
    page
}

fn format_resumption(resumption: &AssignmentResumption) -> String {
    let why = if resumption.reason.is_empty() {
        String::new()
    } else {
        format!(": {}", resumption.reason)
    };
    format!("by {} at {}{why}", resumption.by, format_time(resumption.at))
}

/// Number of updating nodes, and its limit.
pub fn format_usage(slots: u32, limit: Option<u32>) -> String {
    limit.map_or_else(|| slots.to_string(), |limit| format!("{slots} of {limit}"))
}

/// Number of failed updates, and the limit after which the assignment stops.
pub fn failures_cell(failures: u32, limit: Option<u32>) -> Cell {
    match limit {
        None => Cell::from(failures.to_string()),
        Some(limit) if failures >= limit => {
            Cell::toned(format!("{failures} of {limit}: stopped"), Tone::Bad)
        }
        Some(limit) => Cell::from(format!("{failures} of {limit}")),
    }
}

impl Resource for AssignmentResource {
    const KIND: ResourceKind = ResourceKind {
        id_prefix: "",
        name_field: None,
        has_age: false,
        key_titles: &["TARGET"],
        titles: &["POLICY", "UPDATING", "FAILURES", "SINCE"],
        ..ResourceKind::new("TARGET", "assignment", "assignments")
    };

    fn key(&self) -> [&str; 2] {
        [&self.target, &self.target]
    }

    fn columns(&self) -> Vec<Cell> {
        build_row(self, &Names::default()).split_off(1)
    }

    fn page(&self) -> DetailPage {
        build_page(self, &Names::default())
    }
}
