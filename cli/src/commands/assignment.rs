//! `evenkeel assignment`: which policy applies to what, and how fast.

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
use crate::pages::{self, Limit};
use crate::resource::{self, Resource};
use crate::time::show;
use crate::view::{Cell, Page, Printer, Tone};

/// Assignments: which policy applies to what, and how fast.
#[derive(Debug, Subcommand)]
pub enum AssignmentCommand {
    /// List the assignments.
    List(Limit),
    /// Show the assignment of a target.
    Get {
        /// The target, as for `set`.
        target: String,
    },
    /// Assign a policy to a target, or change how fast it goes; what is not given stays.
    ///
    /// Another policy forgets the failures that were counted for the one before.
    Set(SetAssignment),
    /// Let an assignment go on that stopped after failures: they are counted from now.
    Resume {
        /// The target, as for `set`.
        target: String,
        /// Why, for people. It is kept and shown.
        #[arg(
            long,
            value_name = "TEXT",
            default_value = "",
            hide_default_value = true
        )]
        reason: String,
    },
    /// Take the assignment of a target away.
    Clear {
        /// The target, as for `set`.
        target: String,
    },
}

/// What to assign, and how fast it goes.
#[derive(Debug, Args)]
#[command(
    override_usage = "evenkeel assignment set [OPTIONS] <TARGET> [POLICY]",
    group = ArgGroup::new("what").required(true).multiple(true)
        .args(["policy", "max_concurrent", "stop_after_failures", "no_limits"]),
)]
pub struct SetAssignment {
    /// An id of an instance, host, site or region, or a name with its kind such as `site:berlin`, or `project`.
    target: String,
    /// The policy's id or name [default: the one that is assigned].
    policy: Option<String>,
    /// On how many nodes an update may go on at a time, or `none` for all.
    #[arg(long, value_name = "N|none")]
    max_concurrent: Option<AtMost>,
    /// After how many updates that failed no further one starts, or `none` for never.
    #[arg(long, value_name = "N|none")]
    stop_after_failures: Option<AtMost>,
    /// Without any limit.
    #[arg(long, conflicts_with_all = ["max_concurrent", "stop_after_failures"])]
    no_limits: bool,
}

/// A limit, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct AtMost(Option<u32>);

impl FromStr for AtMost {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "none" {
            return Ok(Self(None));
        }
        let number = text.parse().ok().filter(|number| *number > 0);
        match number {
            Some(_) => Ok(Self(number)),
            None => Err(format!(
                "`{text}` is neither a number from 1 on nor `none`; `evenkeel pause` stops everything"
            )),
        }
    }
}

impl SetAssignment {
    /// What changes; what is not named stays.
    async fn change(&self, client: &Client) -> Result<Map<String, Value>, Failure> {
        let mut change = Map::new();
        if let Some(policy) = &self.policy {
            let id = resource::id_of::<OsUpdatePolicy>(client, policy).await?;
            change.insert("osUpdatePolicyId".to_owned(), id.into());
        }
        let none = self.no_limits.then_some(AtMost(None));
        for (name, limit) in [
            ("maxConcurrent", self.max_concurrent.or(none)),
            ("stopAfterFailures", self.stop_after_failures.or(none)),
        ] {
            if let Some(AtMost(limit)) = limit {
                change.insert(name.to_owned(), limit.into());
            }
        }
        Ok(change)
    }
}

impl AssignmentCommand {
    pub async fn run(self, client: &Client, printer: &mut Printer<'_>) -> Result<(), Failure> {
        match self {
            Self::List(limit) => list(limit, client, printer).await,
            Self::Get { target } => {
                let target = meant(client, &target).await?;
                let found = client.get(&AssignmentResource::address(&target)).await;
                let found: AssignmentResource = found.map_err(|error| free(error, &target))?;
                show_one(&found, client, printer).await
            }
            Self::Set(set) => {
                let target = meant(client, &set.target).await?;
                let body = set.change(client).await?;
                let address = AssignmentResource::address(&target);
                let done = client.patch(&address, &body).await;
                let done: AssignmentResource = done.map_err(|error| free(error, &target))?;
                show_one(&done, client, printer).await
            }
            Self::Resume { target, reason } => {
                let target = meant(client, &target).await?;
                let address = format!("{}/resume", AssignmentResource::address(&target));
                let body = AssignmentResumptionInput { reason };
                let done = client.replace(&address, &body).await;
                let done: AssignmentResource = done.map_err(|error| free(error, &target))?;
                show_one(&done, client, printer).await
            }
            Self::Clear { target } => {
                let target = meant(client, &target).await?;
                let done = client.delete(&AssignmentResource::address(&target)).await;
                done.map_err(|error| free(error, &target))?;
                printer.done(AssignmentResource::WORD, &target, "cleared")
            }
        }
    }
}

/// The last part of the address of the assignment that a person means by its target.
async fn meant(client: &Client, text: &str) -> Result<String, Failure> {
    let is_id = [
        InstanceResource::is_id,
        HostResource::is_id,
        SiteResource::is_id,
        RegionResource::is_id,
    ];
    if text == "project" || is_id.iter().any(|is_id| is_id(text)) {
        return Ok(text.to_owned());
    }
    match text.split_once(':') {
        Some(("instance", name)) => instance::meant(client, name).await,
        Some(("host", name)) => resource::id_of::<HostResource>(client, name).await,
        Some(("site", name)) => resource::id_of::<SiteResource>(client, name).await,
        Some(("region", name)) => resource::id_of::<RegionResource>(client, name).await,
        _ => Err(Failure::usage_with(
            format!("`{text}` does not say what kind of target it is"),
            format!(
                "give an id, or the kind with the name: `instance:{text}`, `host:{text}`, `site:{text}` or `region:{text}`; \
                 `project` is the whole project"
            ),
        )),
    }
}

/// Says that nothing is assigned, if that is what the server says.
fn free(error: Failure, target: &str) -> Failure {
    if error.is_not_found() {
        Failure::usage_with(
            format!("no policy is assigned to {target} itself"),
            "`evenkeel assignment list` shows what is assigned; what applies may come from above",
        )
    } else {
        error
    }
}

async fn list(limit: Limit, client: &Client, printer: &mut Printer<'_>) -> Result<(), Failure> {
    let all = pages::read::<AssignmentResource>(client, &limit.query(), printer).await?;
    if all.is_empty() || !printer.is_for_people() {
        return printer.list(&all);
    }
    let ids: Vec<_> = all.iter().flat_map(ids).collect();
    let names = Names::of(client, &ids).await?;
    let rows = all.iter().map(|assignment| row(assignment, &names));
    printer.rows(&all, &[], AssignmentResource::HEADER, rows.collect())
}

async fn show_one(
    assignment: &AssignmentResource,
    client: &Client,
    printer: &mut Printer<'_>,
) -> Result<(), Failure> {
    let names = if printer.is_for_people() {
        Names::of(client, &ids(assignment)).await?
    } else {
        Names::default()
    };
    printer.page(assignment, &assignment.target, &page(assignment, &names))
}

fn ids(assignment: &AssignmentResource) -> [&str; 2] {
    [&assignment.target, &assignment.os_update_policy_id]
}

fn row(assignment: &AssignmentResource, names: &Names) -> Vec<Cell> {
    vec![
        names.label(&assignment.target).into(),
        names.label(&assignment.os_update_policy_id).into(),
        used(assignment.slots_in_use, assignment.max_concurrent).into(),
        failures(assignment.failures, assignment.stop_after_failures),
        show(assignment.since).into(),
    ]
}

fn page(assignment: &AssignmentResource, names: &Names) -> Page {
    let mut page = Page::default();
    page.field("target", names.label(&assignment.target))
        .field("policy", names.label(&assignment.os_update_policy_id))
        .field(
            "updating",
            used(assignment.slots_in_use, assignment.max_concurrent),
        )
        .field(
            "failures",
            failures(assignment.failures, assignment.stop_after_failures),
        )
        .field("since", show(assignment.since));
    if let Some(resumption) = &assignment.resumption {
        page.field("resumed", words_of_resumption(resumption));
    }
    page
}

fn words_of_resumption(resumption: &AssignmentResumption) -> String {
    let why = if resumption.reason.is_empty() {
        String::new()
    } else {
        format!(": {}", resumption.reason)
    };
    format!("by {} at {}{why}", resumption.by, show(resumption.at))
}

/// How many of how many nodes are being updated.
pub fn used(slots: u32, limit: Option<u32>) -> String {
    limit.map_or_else(|| slots.to_string(), |limit| format!("{slots} of {limit}"))
}

/// How many updates failed, and after how many it stops.
pub fn failures(failures: u32, limit: Option<u32>) -> Cell {
    match limit {
        None => Cell::from(failures.to_string()),
        Some(limit) if failures >= limit => {
            Cell::toned(format!("{failures} of {limit}: stopped"), Tone::Bad)
        }
        Some(limit) => Cell::from(format!("{failures} of {limit}")),
    }
}

impl Resource for AssignmentResource {
    const NOUN: &'static str = "assignment";
    const WORD: &'static str = "assignment";
    const MANY: &'static str = "assignments";
    /// It has no id of its own.
    const PREFIX: &'static str = "";
    const PATH: &'static str = "assignments";
    const KEYS: &'static [&'static str] = &["assignments"];
    const NAMED_BY: Option<&'static str> = None;
    const HEADER: &'static [&'static str] = &["TARGET", "POLICY", "UPDATING", "FAILURES", "SINCE"];

    fn id(&self) -> &str {
        &self.target
    }

    fn name(&self) -> &str {
        &self.target
    }

    fn row(&self) -> Vec<Cell> {
        row(self, &Names::default())
    }

    fn page(&self) -> Page {
        page(self, &Names::default())
    }
}
