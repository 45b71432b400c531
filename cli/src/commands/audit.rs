//! `evenkeel audit`: who changed what.

mod show;
mod watch;

use chrono::{DateTime, Utc};
use clap::{Args, Subcommand};
use evenkeel_api::change::{ChangeList, ChangeResource};
use evenkeel_api::host::HostResource;
use evenkeel_api::policy::OsUpdatePolicy;

use crate::Failure;
use crate::client::Client;
use crate::event_stream::EventStream;
use crate::output::Printer;
use crate::page::{Cell, cells};
use crate::requests;
use crate::resource::{Resource, ResourceKind};
use crate::time::{PastTime, format_time};

/// Path of the changes in the project.
const PATH: &str = "changes";

/// Path of the changes outside of projects.
const FLEET_PATH: [&str; 2] = ["v1", "changes"];

/// Option of the parameter that the server may name.
const UUID_OPTION: [(&str, &str); 1] = [("projectUuid", "--project-uuid")];

/// Largest page of the server.
const MAX_PAGE_SIZE: u32 = 100;

/// Number of changes that are shown without `--limit`.
const DEFAULT_LIMIT: u32 = 100;

/// Number of earlier changes that `--watch` shows without `--limit`.
const DEFAULT_WATCH_LIMIT: u32 = 10;

const EXAMPLES: &str = "Examples:
  evenkeel audit --since 2h
  evenkeel audit --host edge-01 --by alice
  evenkeel audit --kind update_order --watch
  evenkeel audit --fleet --kind login_failure
  evenkeel audit --project-uuid 11111111-2222-3333-4444-555555555555
  evenkeel audit show 2f1c-8a3";

/// Show who changed what, the latest changes first.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Audit {
    #[command(subcommand)]
    command: Option<AuditCommand>,
    #[command(flatten)]
    filter: AuditFilter,
    /// Show what belongs to no project: changes of users and tokens, created and deleted projects, and
    /// logins with a password. Only for administrators of all projects.
    #[arg(long, global = true)]
    fleet: bool,
    /// Show the changes of the project with this UUID, which may be deleted: `evenkeel audit --fleet
    /// --kind project` lists deleted projects. Only for administrators of all projects.
    #[arg(long, value_name = "UUID", global = true, conflicts_with = "fleet")]
    project_uuid: Option<String>,
    /// Show the latest changes, the oldest of them first, and then each change as it happens.
    #[arg(long, short)]
    watch: bool,
    /// Maximum number of changes to show [default: 100, with --watch 10 earlier ones].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    limit: Option<u32>,
}

#[derive(Debug, Subcommand)]
enum AuditCommand {
    /// Show one change with the fields that differ.
    #[command(after_help = "Examples:\n  \
        evenkeel audit show 2f1c-8a3\n  \
        evenkeel audit show 2f1c-8a3 --fleet")]
    Show {
        /// ID of the change, as the list shows it; on a narrow terminal with -o wide.
        id: String,
    },
}

/// Which changes to show.
#[derive(Debug, Default, Args)]
struct AuditFilter {
    /// Only changes of this host (ID or name) and of its instance.
    #[arg(long)]
    host: Option<String>,
    /// Only changes of this policy (ID or name).
    #[arg(long)]
    policy: Option<String>,
    /// Only changes of these objects: an ID, or `project`.
    #[arg(long, value_name = "ID")]
    object: Vec<String>,
    /// Only changes of this kind, such as `host` or `update_order`.
    #[arg(long)]
    kind: Option<String>,
    /// Only changes of this user.
    #[arg(long, value_name = "ACTOR")]
    by: Option<String>,
    /// Only changes since this time: an age such as `2h`, or a time such as `2026-01-31T22:00:00Z`.
    #[arg(long, value_name = "TIME")]
    since: Option<PastTime>,
    /// Only changes before this time, as --since.
    #[arg(long, value_name = "TIME")]
    until: Option<PastTime>,
    /// Also show what the server changed by itself.
    #[arg(long)]
    include_server: bool,
}

/// Query parameters of a request.
type QueryParams = Vec<(&'static str, String)>;

/// Where changes are read: in the project, outside of projects, or in a project that may be deleted.
struct ChangeSource<'a> {
    client: &'a Client,
    is_fleet: bool,
    /// UUID of a project that may be deleted.
    project_uuid: Option<String>,
}

impl ChangeSource<'_> {
    async fn page(&self, params: &[(&'static str, String)]) -> Result<ChangeList, Failure> {
        if let Some(uuid) = &self.project_uuid {
            let mut params = params.to_vec();
            params.push(("projectUuid", uuid.clone()));
            let page = self.client.get_global_with_params(&FLEET_PATH, &params).await;
            page.map_err(|error: Failure| error.with_option(&UUID_OPTION))
        } else if self.is_fleet {
            self.client.get_global_with_params(&FLEET_PATH, params).await
        } else {
            self.client.get_with_params(PATH, params).await
        }
    }

    async fn change(&self, id: &str) -> Result<ChangeResource, Failure> {
        let [version, name] = FLEET_PATH;
        if let Some(uuid) = &self.project_uuid {
            let params = [("projectUuid", uuid.clone())];
            let change = self.client.get_global_with_params(&[version, name, id], &params).await;
            change.map_err(|error: Failure| error.with_option(&UUID_OPTION))
        } else if self.is_fleet {
            self.client.get_global(&[version, name, id]).await
        } else {
            self.client.get(&format!("{PATH}/{id}")).await
        }
    }

    async fn open_stream(&self, params: &[(&'static str, String)]) -> Result<EventStream, Failure> {
        if self.is_fleet {
            self.client.open_global_stream(&FLEET_PATH, params).await
        } else {
            self.client.open_stream(PATH, params).await
        }
    }
}

impl AuditFilter {
    fn is_set(&self) -> bool {
        self.host.is_some()
            || self.policy.is_some()
            || self.kind.is_some()
            || self.by.is_some()
            || self.since.is_some()
            || self.until.is_some()
            || self.include_server
            || !self.object.is_empty()
    }

    /// The query parameters for these options.
    async fn params(&self, client: &Client, printer: &Printer<'_>) -> Result<QueryParams, Failure> {
        let mut objects = self.object.clone();
        if let Some(host) = &self.host {
            let host: HostResource = requests::find(client, host).await?;
            objects.extend(host.instance.map(|instance| instance.resource_id));
            objects.push(host.resource_id);
        }
        if let Some(policy) = &self.policy {
            objects.push(requests::resolve_id::<OsUpdatePolicy>(client, policy).await?);
        }
        let time = |time: Option<PastTime>| {
            time.map(|time| time.instant(printer.now()).to_rfc3339()).unwrap_or_default()
        };
        let include_server = if self.include_server { "true" } else { "" };
        let all = [
            ("object", objects.join(",")),
            ("kind", self.kind.clone().unwrap_or_default()),
            ("actor", self.by.clone().unwrap_or_default()),
            ("since", time(self.since)),
            ("until", time(self.until)),
            ("includeServer", include_server.to_owned()),
        ];
        Ok(all.into_iter().filter(|(_, value)| !value.is_empty()).collect())
    }
}

impl Audit {
    /// Whether a UUID selects the project.
    pub fn has_project_uuid(&self) -> bool {
        self.project_uuid.is_some()
    }

    pub async fn run(self, client: &Client, printer: &mut Printer<'_>) -> Result<(), Failure> {
        let is_elsewhere = self.fleet || self.project_uuid.is_some();
        let project_uuid = self.project_uuid.clone();
        if self.watch && project_uuid.is_some() {
            return Err(Failure::usage_with(
                "--project-uuid lists changes and does not watch them",
                "watch the changes of a project by its name: `evenkeel audit --watch --project NAME`",
            ));
        }
        let source = ChangeSource { client, is_fleet: self.fleet, project_uuid };
        if let Some(AuditCommand::Show { id }) = self.command {
            // With clap's own conflict rules, `--project` would be rejected as well.
            if self.filter.is_set() || self.watch || self.limit.is_some() {
                return Err(Failure::usage_with(
                    "`audit show` accepts no filter, --watch or --limit",
                    "`evenkeel audit` lists changes",
                ));
            }
            return show::run(&id, &source, printer).await;
        }
        if is_elsewhere && (self.filter.host.is_some() || self.filter.policy.is_some()) {
            return Err(Failure::usage(if self.project_uuid.is_none() {
                "--fleet shows what belongs to no project; leave out --host and --policy"
            } else {
                "with --project-uuid, names are not looked up: use --object ID for --host and --policy"
            }));
        }
        if self.watch && self.filter.until.is_some() {
            return Err(Failure::usage("--watch shows changes to come; leave out --until"));
        }
        let params = self.filter.params(client, printer).await?;
        let default_limit = if self.watch { DEFAULT_WATCH_LIMIT } else { DEFAULT_LIMIT };
        let limit = self.limit.unwrap_or(default_limit);
        let (changes, cursor) = fetch(&params, limit, &source).await?;
        if self.watch {
            return Box::pin(watch::run(params, (changes, cursor), &source, printer)).await;
        }
        printer.print_list(&changes)
    }
}

/// The latest changes, at most `limit`, and the cursor after them.
async fn fetch(
    params: &[(&'static str, String)],
    limit: u32,
    source: &ChangeSource<'_>,
) -> Result<(Vec<ChangeResource>, String), Failure> {
    let (mut changes, mut first_cursor, mut token) = (Vec::new(), None, String::new());
    let mut left = limit;
    loop {
        let mut query = params.to_vec();
        query.push(("pageSize", left.min(MAX_PAGE_SIZE).to_string()));
        if !token.is_empty() {
            query.push(("pageToken", token));
        }
        let page: ChangeList = source.page(&query).await?;
        let cursor = first_cursor.get_or_insert(page.cursor).clone();
        left = left.saturating_sub(u32::try_from(page.changes.len()).unwrap_or(left));
        let is_empty = page.changes.is_empty();
        changes.extend(page.changes);
        if !page.has_next || left == 0 || is_empty {
            return Ok((changes, cursor));
        }
        token = page.next_page_token;
    }
}

impl Resource for ChangeResource {
    const KIND: ResourceKind = ResourceKind {
        key_titles: &["ID"],
        titles: &["TIME", "ACTOR", "WHAT", "OBJECT"],
        wide_titles: &["ADDRESS", "REASON", "REQUEST"],
        // Who changed what, and when, matters more than the ID. The age is shorter than the time.
        optional_titles: &["ID", "TIME", "AGE", "ACTOR"],
        ..ResourceKind::new("ID", "change", "changes")
    };

    fn key(&self) -> [&str; 2] {
        [&self.change_id, ""]
    }

    fn columns(&self) -> Vec<Cell> {
        cells![format_time(self.time), actor(self), what(self), object(self)]
    }

    fn wide_columns(&self) -> Vec<Cell> {
        cells![&self.client_address, reason(self), &self.request_id]
    }

    fn created_at(&self) -> Option<DateTime<Utc>> {
        Some(self.time)
    }
}

/// Who made a change.
fn actor(change: &ChangeResource) -> &str {
    if change.actor.is_empty() { "server" } else { &change.actor }
}

fn what(change: &ChangeResource) -> String {
    format!("{} {}", change.operation, change.kind)
}

/// Why a login failed, or the reason that a user gave for a pause or an order.
fn reason(change: &ChangeResource) -> &str {
    let reason = change.after.as_ref().and_then(|row| row["reason"].as_str());
    reason.unwrap_or_default()
}

fn object(change: &ChangeResource) -> String {
    if change.object_name.is_empty() || change.object_name == change.object_id {
        change.object_id.clone()
    } else {
        format!("{} ({})", change.object_name, change.object_id)
    }
}
