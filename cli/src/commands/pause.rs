//! `evenkeel pause` and `evenkeel resume`: stop new updates for a while.

use clap::{Args, Subcommand};
use evenkeel_api::pause::{PauseInput, PauseResource};
use evenkeel_api::policy::OsUpdatePolicy;
use evenkeel_api::site::SiteResource;

use super::names::{Names, list_with_names};
use crate::Failure;
use crate::client::Client;
use crate::listing::LimitOptions;
use crate::output::Printer;
use crate::page::{Cell, DetailPage, cells};
use crate::requests;
use crate::resource::{Resource, ResourceKind};
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
            (Some(site), _) => requests::resolve_id::<SiteResource>(client, site).await,
            (None, Some(policy)) => requests::resolve_id::<OsUpdatePolicy>(client, policy).await,
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
            return list_with_names(limit, scope_ids, build_row, client, printer).await;
        }
        let scope = self.scope.resolve(client).await?;
        let body = PauseInput { reason: self.reason.unwrap_or_default() };
        let address = PauseResource::address(&scope);
        let pause: PauseResource = client.replace(&address, &body).await?;
        let names = Names::fetch_if_shown(client, &scope_ids(&pause), printer).await?;
        printer.print_page(&pause, pause.id(), &build_page(&pause, &names))
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
        if !printer.is_human_readable() {
            return printer.print_result("pause of", &scope, "removed");
        }
        let names = Names::fetch(client, &[scope.as_str()]).await?;
        printer.print_line(&format!("pause of {} removed", names.label(&scope)))
    }
}

fn scope_ids(pause: &PauseResource) -> Vec<&str> {
    vec![&pause.scope]
}

/// Row of a pause with the name of its scope.
fn build_row(pause: &PauseResource, names: &Names) -> Vec<Cell> {
    [cells![names.label(&pause.scope)], pause.columns()].concat()
}

fn build_page(pause: &PauseResource, names: &Names) -> DetailPage {
    let mut page = DetailPage::default();
    let scope = names.label(&pause.scope);
    page.field("paused", describe_scope(&scope));
    pause.add_details(&mut page);
    page
}

fn describe_scope(scope: &str) -> &str {
    if scope == "project" { "the project" } else { scope }
}

impl Resource for PauseResource {
    const KIND: ResourceKind = ResourceKind {
        id_prefix: "",
        name_field: None,
        has_age: false,
        key_titles: &["PAUSED"],
        titles: &["REASON", "BY", "SINCE"],
        ..ResourceKind::new("PAUSE", "pause", "pauses")
    };

    fn key(&self) -> [&str; 2] {
        [&self.scope, &self.scope]
    }

    fn columns(&self) -> Vec<Cell> {
        cells![&self.reason, &self.by, format_time(self.since)]
    }

    fn add_details(&self, page: &mut DetailPage) {
        self.add_columns(page);
    }

    fn page(&self) -> DetailPage {
        build_page(self, &Names::default())
    }
}
