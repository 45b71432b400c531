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
use serde_json::{Map, Value};

use super::instance;
use super::names::Names;
use crate::Failure;
use crate::client::Client;
use crate::listing::{self, LimitOptions};
use crate::output::{Cell, DetailPage, Printer, Tone};
use crate::resource::{self, Resource};
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
    async fn build_patch(&self, client: &Client) -> Result<Map<String, Value>, Failure> {
        let mut change = Map::new();
        if let Some(policy) = &self.policy {
            let id = resource::resolve_id::<OsUpdatePolicy>(client, policy).await?;
            change.insert("osUpdatePolicyId".to_owned(), id.into());
        }
        let none = self.no_limits.then_some(LimitArg(None));
        for (name, limit) in [
            ("maxConcurrent", self.max_concurrent.or(none)),
            ("stopAfterFailures", self.stop_after_failures.or(none)),
        ] {
            if let Some(LimitArg(limit)) = limit {
                change.insert(name.to_owned(), limit.into());
            }
        }
        Ok(change)
    }
}

impl AssignmentCommand {
    pub async fn run(self, client: &Client, printer: &mut Printer<'_>) -> Result<(), Failure> {
        match self {
            Self::List(limit) => list_assignments(limit, client, printer).await,
            Self::Get { target } => {
                let target = resolve_assignment_target(client, &target).await?;
                let response = client.get(&AssignmentResource::address(&target)).await;
                let assignment: AssignmentResource =
                    response.map_err(|error| explain_not_assigned(error, &target))?;
                print_assignment(&assignment, client, printer).await
            }
            Self::Set(set) => {
                let target = resolve_assignment_target(client, &set.target).await?;
                let body = set.build_patch(client).await?;
                let address = AssignmentResource::address(&target);
                let done = client.patch(&address, &body).await;
                let done: AssignmentResource =
                    done.map_err(|error| explain_not_assigned(error, &target))?;
                print_assignment(&done, client, printer).await
            }
            Self::Resume { target, reason } => {
                let target = resolve_assignment_target(client, &target).await?;
                let address = format!("{}/resume", AssignmentResource::address(&target));
                let body = AssignmentResumptionInput { reason };
                let done = client.replace(&address, &body).await;
                let done: AssignmentResource =
                    done.map_err(|error| explain_not_assigned(error, &target))?;
                print_assignment(&done, client, printer).await
            }
            Self::Clear { target } => {
                let target = resolve_assignment_target(client, &target).await?;
                let done = client.delete(&AssignmentResource::address(&target)).await;
                done.map_err(|error| explain_not_assigned(error, &target))?;
                printer.print_result(AssignmentResource::SINGULAR, &target, "cleared")
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
        Some(("host", name)) => resource::resolve_id::<HostResource>(client, name).await,
        Some(("site", name)) => resource::resolve_id::<SiteResource>(client, name).await,
        Some(("region", name)) => resource::resolve_id::<RegionResource>(client, name).await,
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

async fn list_assignments(
    limit: LimitOptions,
    client: &Client,
    printer: &mut Printer<'_>,
) -> Result<(), Failure> {
    let all =
        listing::fetch_with_progress::<AssignmentResource>(client, &limit.query(), printer).await?;
    if all.is_empty() || !printer.is_human_readable() {
        return printer.print_list(&all);
    }
    let ids: Vec<_> = all.iter().flat_map(referenced_ids).collect();
    let names = Names::fetch(client, &ids).await?;
    let rows = all.iter().map(|assignment| build_row(assignment, &names));
    printer.print_rows(&all, &[], AssignmentResource::HEADER, rows.collect())
}

async fn print_assignment(
    assignment: &AssignmentResource,
    client: &Client,
    printer: &mut Printer<'_>,
) -> Result<(), Failure> {
    let names = if printer.is_human_readable() {
        Names::fetch(client, &referenced_ids(assignment)).await?
    } else {
        Names::default()
    };
    printer.print_page(assignment, &assignment.target, &build_page(assignment, &names))
}

fn referenced_ids(assignment: &AssignmentResource) -> [&str; 2] {
    [&assignment.target, &assignment.os_update_policy_id]
}

fn build_row(assignment: &AssignmentResource, names: &Names) -> Vec<Cell> {
    vec![
        names.label(&assignment.target).into(),
        names.label(&assignment.os_update_policy_id).into(),
        format_usage(assignment.slots_in_use, assignment.max_concurrent).into(),
        failures_cell(assignment.failures, assignment.stop_after_failures),
        format_time(assignment.since).into(),
    ]
}

fn build_page(assignment: &AssignmentResource, names: &Names) -> DetailPage {
    let mut page = DetailPage::default();
    page.field("target", names.label(&assignment.target))
        .field("policy", names.label(&assignment.os_update_policy_id))
        .field("updating", format_usage(assignment.slots_in_use, assignment.max_concurrent))
        .field("failures", failures_cell(assignment.failures, assignment.stop_after_failures))
        .field("since", format_time(assignment.since));
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
    const COMMAND: &'static str = "assignment";
    const SINGULAR: &'static str = "assignment";
    const PLURAL: &'static str = "assignments";
    /// Assignments have no IDs of their own.
    const ID_PREFIX: &'static str = "";
    const PATH: &'static str = "assignments";
    const LIST_KEYS: &'static [&'static str] = &["assignments"];
    const NAME_FIELD: Option<&'static str> = None;
    const HEADER: &'static [&'static str] = &["TARGET", "POLICY", "UPDATING", "FAILURES", "SINCE"];

    fn id(&self) -> &str {
        &self.target
    }

    fn name(&self) -> &str {
        &self.target
    }

    fn row(&self) -> Vec<Cell> {
        build_row(self, &Names::default())
    }

    fn page(&self) -> DetailPage {
        build_page(self, &Names::default())
    }
}
