//! `evenkeel pause` and `evenkeel resume`: nothing new starts for a while.

use clap::{Args, Subcommand};
use evenkeel_api::pause::{PauseInput, PauseResource};
use evenkeel_api::policy::OsUpdatePolicy;
use evenkeel_api::site::SiteResource;

use super::names::Names;
use crate::Failure;
use crate::client::Client;
use crate::pages::{self, Limit};
use crate::resource::{self, Resource};
use crate::time::show;
use crate::view::{Cell, Page, Printer};

/// Let nothing new start in the project, at a site or for a policy.
///
/// Updates that go on are not touched. `evenkeel resume` takes the pause back.
#[derive(Debug, Args)]
#[command(subcommand_negates_reqs = true)]
pub struct Pause {
    #[command(subcommand)]
    command: Option<PauseCommand>,
    #[command(flatten)]
    scope: PauseScope,
    /// Why, for people. It is kept and shown.
    #[arg(long, value_name = "TEXT", required = true)]
    reason: Option<String>,
}

/// What else can be done with pauses.
#[derive(Debug, Subcommand)]
pub enum PauseCommand {
    /// List the pauses.
    List(Limit),
}

/// Take a pause back. Pauses of other scopes stay.
///
/// An assignment that stopped after failures stays stopped: `evenkeel assignment resume` lets it go on.
#[derive(Debug, Args)]
pub struct Resume {
    #[command(flatten)]
    scope: PauseScope,
}

/// Where a pause holds.
#[derive(Debug, Args)]
struct PauseScope {
    /// At this site alone, by its id or name [default: in the whole project].
    #[arg(long)]
    site: Option<String>,
    /// For this policy alone, by its id or name [default: in the whole project].
    #[arg(long, conflicts_with = "site")]
    policy: Option<String>,
}

impl PauseScope {
    const fn is_given(&self) -> bool {
        self.site.is_some() || self.policy.is_some()
    }

    /// The last part of the address of the pause.
    async fn text(&self, client: &Client) -> Result<String, Failure> {
        match (&self.site, &self.policy) {
            (Some(site), _) => resource::id_of::<SiteResource>(client, site).await,
            (None, Some(policy)) => resource::id_of::<OsUpdatePolicy>(client, policy).await,
            (None, None) => Ok("project".to_owned()),
        }
    }
}

impl Pause {
    pub async fn run(self, client: &Client, printer: &mut Printer<'_>) -> Result<(), Failure> {
        if let Some(PauseCommand::List(limit)) = self.command {
            // Clap could refuse this, but then it would refuse `--project` as well.
            if self.scope.is_given() || self.reason.is_some() {
                return Err(Failure::usage_with(
                    "a list of pauses takes neither --site, --policy nor --reason",
                    "`evenkeel pause list` lists them all",
                ));
            }
            return list(limit, client, printer).await;
        }
        let scope = self.scope.text(client).await?;
        let body = PauseInput {
            reason: self.reason.unwrap_or_default(),
        };
        let address = PauseResource::address(&scope);
        let pause: PauseResource = client.replace(&address, &body).await?;
        printer.one(&pause)
    }
}

impl Resume {
    pub async fn run(self, client: &Client, printer: &mut Printer<'_>) -> Result<(), Failure> {
        let scope = self.scope.text(client).await?;
        let done = client.delete(&PauseResource::address(&scope)).await;
        done.map_err(|error| {
            if error.is_not_found() {
                Failure::usage_with(
                    format!("there is no pause of {}", place(&scope)),
                    "`evenkeel pause list` shows the pauses; what stopped after failures goes on with `evenkeel assignment resume`",
                )
            } else {
                error
            }
        })?;
        printer.done("pause of", &scope, "taken back")
    }
}

async fn list(limit: Limit, client: &Client, printer: &mut Printer<'_>) -> Result<(), Failure> {
    let pauses = pages::read::<PauseResource>(client, &limit.query(), printer).await?;
    if pauses.is_empty() || !printer.is_for_people() {
        return printer.list(&pauses);
    }
    let ids: Vec<_> = pauses.iter().map(|pause| pause.scope.as_str()).collect();
    let names = Names::of(client, &ids).await?;
    let rows = pauses
        .iter()
        .map(|pause| row(pause, names.label(&pause.scope)));
    printer.rows(&pauses, &[], PauseResource::HEADER, rows.collect())
}

fn place(scope: &str) -> &str {
    if scope == "project" {
        "the project"
    } else {
        scope
    }
}

/// What a list shows of a pause with this label of its scope.
pub fn row(pause: &PauseResource, scope: String) -> Vec<Cell> {
    vec![
        scope.into(),
        pause.reason.clone().into(),
        pause.by.clone().into(),
        show(pause.since).into(),
    ]
}

impl Resource for PauseResource {
    const NOUN: &'static str = "pause";
    const WORD: &'static str = "pause";
    const MANY: &'static str = "pauses";
    /// It has no id of its own.
    const PREFIX: &'static str = "";
    const PATH: &'static str = "pauses";
    const KEYS: &'static [&'static str] = &["pauses"];
    const NAMED_BY: Option<&'static str> = None;
    const HEADER: &'static [&'static str] = &["PAUSED", "REASON", "BY", "SINCE"];

    fn id(&self) -> &str {
        &self.scope
    }

    fn name(&self) -> &str {
        &self.scope
    }

    fn row(&self) -> Vec<Cell> {
        row(self, self.scope.clone())
    }

    fn page(&self) -> Page {
        let mut page = Page::default();
        page.field("paused", place(&self.scope))
            .field("reason", self.reason.clone())
            .field("by", self.by.clone())
            .field("since", show(self.since));
        page
    }
}
