//! `evenkeel join-token`: credentials that let machines enrol.

use std::time::Duration;

use clap::Subcommand;
use evenkeel_api::join_token::{JoinTokenInput, JoinTokenResource};

use crate::Failure;
use crate::client::Client;
use crate::listing::{self, LimitOptions};
use crate::output::Printer;
use crate::page::{Cell, DetailPage, Tone, cells};
use crate::requests;
use crate::resource::{self, Resource, ResourceKind};
use crate::time::{format_optional_time, format_time, parse_token_lifetime};

/// Manage join tokens, which let machines enrol.
#[derive(Debug, Subcommand)]
pub enum JoinTokenCommand {
    /// Create a join token. The token is shown only once.
    Create {
        /// Name of the join token.
        #[arg(default_value = "", hide_default_value = true)]
        name: String,
        /// Lifetime of the join token.
        #[arg(long, value_parser = parse_token_lifetime, default_value = "1h", value_name = "DURATION")]
        expires: Duration,
        /// Allow only one machine to enrol.
        #[arg(long)]
        one_time: bool,
        /// Allow only registered hosts to enrol.
        #[arg(long)]
        no_create_hosts: bool,
        /// Allow machines whose hosts an agent of EIM uses to enrol with Evenkeel's agent.
        #[arg(long)]
        replace_eim_agents: bool,
    },
    /// List join tokens, without their secrets.
    List(LimitOptions),
    /// Revoke a join token.
    Revoke {
        /// ID or name of the join token.
        token: String,
    },
}

impl JoinTokenCommand {
    pub async fn run(self, client: &Client, printer: &mut Printer<'_>) -> Result<(), Failure> {
        type Token = JoinTokenResource;
        match self {
            Self::List(limit) => {
                listing::fetch_and_print::<Token>(client, &limit.query(), printer).await
            }
            Self::Create { name, expires, one_time, no_create_hosts, replace_eim_agents } => {
                let body = JoinTokenInput {
                    name,
                    lifetime_seconds: u32::try_from(expires.as_secs()).unwrap_or(u32::MAX),
                    one_time,
                    may_create_hosts: !no_create_hosts,
                    may_replace_eim_agents: replace_eim_agents,
                };
                let created = client.post(Token::KIND.path, &body).await;
                let options = [("lifetimeSeconds", "--expires"), ("name", "NAME")];
                let created: Token =
                    created.map_err(|error: Failure| error.with_option(&options))?;
                if printer.is_ids_only() {
                    return printer.print_text(created.token.as_deref().unwrap_or_default());
                }
                printer.print_resource(&created)
            }
            Self::Revoke { token } => {
                let id = requests::resolve_id::<Token>(client, &token).await?;
                let done = client.put_empty(&format!("{}/{id}/revoke", Token::KIND.path)).await;
                done.map_err(|error| resource::explain_not_found::<Token>(error, &token))?;
                printer.print_result(Token::KIND.singular, &id, "revoked")
            }
        }
    }
}

impl Resource for JoinTokenResource {
    const KIND: ResourceKind = ResourceKind {
        command: "join-token",
        id_prefix: "jointoken",
        path: "join-tokens",
        list_key: "joinTokens",
        name_field: None,
        has_age: false,
        titles: &["STATE", "EXPIRES", "ONE-TIME", "CREATES HOSTS", "USED"],
        ..ResourceKind::new("TOKEN", "join token", "join tokens")
    };

    fn key(&self) -> [&str; 2] {
        [&self.resource_id, &self.name]
    }

    fn columns(&self) -> Vec<Cell> {
        cells![
            state_cell(self),
            format_time(self.expires_at),
            yes_no(self.one_time),
            yes_no(self.may_create_hosts),
            self.used_count.to_string()
        ]
    }

    fn add_details(&self, page: &mut DetailPage) {
        self.add_columns(page);
        if self.may_replace_eim_agents {
            page.field("eim agents", "replaced");
        }
        page.field("last used", format_optional_time(self.last_used_at));
        if let Some(token) = &self.token {
            page.field("token", token);
        }
    }
}

fn state_cell(token: &JoinTokenResource) -> Cell {
    if token.revoked_at.is_some() {
        Cell::toned("revoked", Tone::Bad)
    } else if token.usable {
        Cell::toned("usable", Tone::Good)
    } else if token.one_time && token.used_count > 0 {
        Cell::toned("used up", Tone::Plain)
    } else {
        Cell::toned("expired", Tone::Plain)
    }
}

fn yes_no(is: bool) -> &'static str {
    if is { "yes" } else { "no" }
}
