//! `evenkeel join-token`: leave for machines to join.

use std::time::Duration;

use clap::Subcommand;
use evenkeel_api::join_token::{JoinTokenInput, JoinTokenResource};

use crate::Failure;
use crate::client::Client;
use crate::pages::{self, Limit};
use crate::resource::{self, Resource};
use crate::time::{duration, show, show_option};
use crate::view::{Cell, Page, Printer, Tone};

/// Join tokens: leave for machines to join.
#[derive(Debug, Subcommand)]
pub enum JoinTokenCommand {
    /// Make a join token. It is shown once and never again.
    Create {
        /// What to call it.
        #[arg(default_value = "", hide_default_value = true)]
        name: String,
        /// How long it is worth something.
        #[arg(long, value_parser = duration, default_value = "1h", value_name = "SPAN")]
        expires: Duration,
        /// It is for one machine.
        #[arg(long)]
        one_time: bool,
        /// Only machines that were registered may join with it.
        #[arg(long)]
        no_create_hosts: bool,
    },
    /// List the join tokens, without the tokens themselves.
    List(Limit),
    /// Take a join token back.
    Revoke {
        /// Its id or name.
        token: String,
    },
}

impl JoinTokenCommand {
    pub async fn run(self, client: &Client, printer: &mut Printer<'_>) -> Result<(), Failure> {
        type Token = JoinTokenResource;
        match self {
            Self::List(limit) => pages::show::<Token>(client, &limit.query(), printer).await,
            Self::Create {
                name,
                expires,
                one_time,
                no_create_hosts,
            } => {
                let body = JoinTokenInput {
                    name,
                    lifetime_seconds: u32::try_from(expires.as_secs()).unwrap_or(u32::MAX),
                    one_time,
                    may_create_hosts: !no_create_hosts,
                };
                let made: Token = client.post(Token::PATH, &body).await?;
                if printer.is_quiet() {
                    return printer.text(made.token.as_deref().unwrap_or_default());
                }
                printer.one(&made)
            }
            Self::Revoke { token } => {
                let id = resource::id_of::<Token>(client, &token).await?;
                let done = client.put(&format!("{}/{id}/revoke", Token::PATH)).await;
                done.map_err(|error| resource::gone::<Token>(error, &token))?;
                printer.done(Token::WORD, &id, "revoked")
            }
        }
    }
}

impl Resource for JoinTokenResource {
    const NOUN: &'static str = "join-token";
    const WORD: &'static str = "join token";
    const MANY: &'static str = "join tokens";
    const PREFIX: &'static str = "jointoken";
    const PATH: &'static str = "join-tokens";
    const KEYS: &'static [&'static str] = &["joinTokens"];
    const NAMED_BY: Option<&'static str> = None;
    const HEADER: &'static [&'static str] = &[
        "ID",
        "NAME",
        "STATE",
        "EXPIRES",
        "ONE-TIME",
        "CREATES HOSTS",
        "USED",
    ];

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
            state(self),
            show(self.expires_at).into(),
            yes_no(self.one_time).into(),
            yes_no(self.may_create_hosts).into(),
            self.used_count.to_string().into(),
        ]
    }

    fn page(&self) -> Page {
        let mut page = Page::default();
        page.field("id", self.resource_id.clone())
            .field("name", self.name.clone())
            .field("state", state(self))
            .field("expires", show(self.expires_at))
            .field("one-time", yes_no(self.one_time))
            .field("creates hosts", yes_no(self.may_create_hosts))
            .field("used", self.used_count.to_string())
            .field("last used", show_option(self.last_used_at));
        if let Some(token) = &self.token {
            page.field("token", token.clone());
        }
        page
    }
}

fn state(token: &JoinTokenResource) -> Cell {
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
