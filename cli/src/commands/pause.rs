//! `evenkeel pause` and `evenkeel resume`: stop new updates for a while.

use clap::{Args, Subcommand};
use evenkeel_api::pause::{PauseInput, PauseResource};
use evenkeel_api::policy::OsUpdatePolicy;
use evenkeel_api::site::SiteResource;

use super::names::Names;
use crate::Failure;
use crate::client::Client;
use crate::listing::{self, LimitOptions};
use crate::output::{Cell, DetailPage, Printer};
use crate::resource::{self, Resource};
use crate::time::format_time;

/// Pause updates in the project, at a site or for a policy.
///
/// `evenkeel resume` ends the pause. Until then no new update starts. Updates that have begun
/// continue.
#[derive(Debug, Args)]
#[command(subcommand_negates_reqs = true)]
pub struct Pause {
    #[command(subcommand)]
    command: Option<PauseCommand>,
    #[command(flatten)]
    scope: PauseScope,
    /// Reason, stored with the pause.
    #[arg(long, value_name = "TEXT", required = true)]
    reason: Option<String>,
}

/// Subcommands of `pause`.
#[derive(Debug, Subcommand)]
pub enum PauseCommand {
    /// List pauses.
    List(LimitOptions),
}

/// End a pause. Pauses of other scopes remain.
///
/// `evenkeel assignment resume` resumes an assignment that stopped after failures.
#[derive(Debug, Args)]
pub struct Resume {
    #[command(flatten)]
    scope: PauseScope,
}

/// Scope of a pause.
#[derive(Debug, Args)]
struct PauseScope {
    /// Only at this site (ID or name) [default: whole project].
    #[arg(long)]
    site: Option<String>,
    /// Only for this policy (ID or name) [default: whole project].
    #[arg(long, conflicts_with = "site")]
    policy: Option<String>,
}

impl PauseScope {
    const fn is_set(&self) -> bool {
        self.site.is_some() || self.policy.is_some()
    }

    /// Resolves the scope to the last path segment of the pause.
    async fn resolve(&self, client: &Client) -> Result<String, Failure> {
        match (&self.site, &self.policy) {
            (Some(site), _) => resource::resolve_id::<SiteResource>(client, site).await,
            (None, Some(policy)) => resource::resolve_id::<OsUpdatePolicy>(client, policy).await,
            (None, None) => Ok("project".to_owned()),
        }
    }
}

impl Pause {
    pub async fn run(self, client: &Client, printer: &mut Printer<'_>) -> Result<(), Failure> {
        if let Some(PauseCommand::List(limit)) = self.command {
            // With clap's own conflict rules, `--project` would be rejected as well.
            if self.scope.is_set() || self.reason.is_some() {
                return Err(Failure::usage_with(
                    "`pause list` accepts neither --site, --policy nor --reason",
                    "`evenkeel pause list` lists all pauses",
                ));
            }
            return list_pauses(limit, client, printer).await;
        }
        let scope = self.scope.resolve(client).await?;
        let body = PauseInput { reason: self.reason.unwrap_or_default() };
        let address = PauseResource::address(&scope);
        let pause: PauseResource = client.replace(&address, &body).await?;
        printer.print_resource(&pause)
    }
}

impl Resume {
    pub async fn run(self, client: &Client, printer: &mut Printer<'_>) -> Result<(), Failure> {
        let scope = self.scope.resolve(client).await?;
        let done = client.delete(&PauseResource::address(&scope)).await;
        done.map_err(|error| {
            if error.is_not_found() {
                Failure::usage_with(
                    format!("there is no pause of {}", describe_scope(&scope)),
                    "`evenkeel pause list` lists the pauses; resume an assignment that stopped after failures with `evenkeel assignment resume`",
                )
            } else {
                error
            }
        })?;
        printer.print_result("pause of", &scope, "removed")
    }
}

async fn list_pauses(
    limit: LimitOptions,
    client: &Client,
    printer: &mut Printer<'_>,
) -> Result<(), Failure> {
    let pauses =
        listing::fetch_with_progress::<PauseResource>(client, &limit.query(), printer).await?;
    if pauses.is_empty() || !printer.is_human_readable() {
        return printer.print_list(&pauses);
    }
    let ids: Vec<_> = pauses.iter().map(|pause| pause.scope.as_str()).collect();
    let names = Names::fetch(client, &ids).await?;
    let rows = pauses.iter().map(|pause| build_row(pause, names.label(&pause.scope)));
    printer.print_rows(&pauses, &[], PauseResource::HEADER, rows.collect())
}

fn describe_scope(scope: &str) -> &str {
    if scope == "project" { "the project" } else { scope }
}

/// Row of a pause with a label of its scope.
pub fn build_row(pause: &PauseResource, scope: String) -> Vec<Cell> {
    vec![
        scope.into(),
        pause.reason.clone().into(),
        pause.by.clone().into(),
        format_time(pause.since).into(),
    ]
}

impl Resource for PauseResource {
    const COMMAND: &'static str = "pause";
    const SINGULAR: &'static str = "pause";
    const PLURAL: &'static str = "pauses";
    /// Pauses have no IDs of their own.
    const ID_PREFIX: &'static str = "";
    const PATH: &'static str = "pauses";
    const LIST_KEYS: &'static [&'static str] = &["pauses"];
    const NAME_FIELD: Option<&'static str> = None;
    const HEADER: &'static [&'static str] = &["PAUSED", "REASON", "BY", "SINCE"];

    fn id(&self) -> &str {
        &self.scope
    }

    fn name(&self) -> &str {
        &self.scope
    }

    fn row(&self) -> Vec<Cell> {
        build_row(self, self.scope.clone())
    }

    fn page(&self) -> DetailPage {
        let mut page = DetailPage::default();
        page.field("paused", describe_scope(&self.scope))
            .field("reason", self.reason.clone())
            .field("by", self.by.clone())
            .field("since", format_time(self.since));
        page
    }
}
