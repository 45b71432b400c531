//! `evenkeel token`: tokens for the REST API.

use std::time::Duration;

use chrono::{DateTime, Utc};
use clap::{ArgGroup, Subcommand};
use evenkeel_api::operator_token::{
    OperatorTokenInput, OperatorTokenResource, SubjectRevocationInput, SubjectRevocationResult,
};

use crate::Failure;
use crate::client::Client;
use crate::output::Printer;
use crate::page::{Cell, DetailPage, Tone, cells};
use crate::resource::{Resource, ResourceKind};
use crate::time::{format_optional_time, format_time, parse_token_lifetime};

/// Create, list and revoke tokens for automation. Only for administrators.
#[derive(Debug, Subcommand)]
pub enum TokenCommand {
    /// Create a token for a program. The token is shown only once.
    #[command(after_help = "Examples:\n  \
        evenkeel token create dashboard --role viewer --project default\n  \
        evenkeel token create ci --role operator --expires 30d --quiet > token")]
    Create {
        /// Name of the token.
        name: String,
        /// Role of the token in the project: viewer, operator, approver or administrator.
        #[arg(long, default_value = "viewer")]
        role: String,
        /// Lifetime of the token, at most one year.
        #[arg(long, value_parser = parse_token_lifetime, default_value = "90d", value_name = "DURATION")]
        expires: Duration,
    },
    /// List the tokens of the projects that you administrate. Administrators of all projects see also
    /// the tokens that `evenkeeld token operator` and the first start have issued.
    List,
    /// Revoke tokens. All servers refuse them within a second.
    #[command(group = ArgGroup::new("tokens").required(true).args(["ids", "subject"]))]
    Revoke {
        /// IDs of the tokens, as `evenkeel token list` shows them.
        #[arg(value_name = "ID")]
        ids: Vec<String>,
        /// Revoke all tokens of this subject that were issued until now, and end its logins.
        #[arg(long, value_name = "NAME")]
        subject: Option<String>,
        /// Issuer of the tokens of the subject, if it is an identity provider.
        #[arg(long, value_name = "URL", requires = "subject", conflicts_with = "ids")]
        issuer: Option<String>,
        /// Succeed also if the server has no record of a token or a login of the subject.
        #[arg(long, requires = "subject", conflicts_with = "ids")]
        force: bool,
    },
}

/// Options of the fields that the server may name.
const CREATE_OPTIONS: [(&str, &str); 3] =
    [("lifetimeSeconds", "--expires"), ("role", "--role"), ("name", "NAME")];

impl TokenCommand {
    pub async fn run(self, client: &Client, printer: &mut Printer<'_>) -> Result<(), Failure> {
        match self {
            Self::Create { name, role, expires } => {
                let lifetime_seconds = u32::try_from(expires.as_secs()).unwrap_or(u32::MAX);
                let body = OperatorTokenInput { name, role, lifetime_seconds };
                let created = client.post("operator-tokens", &body).await;
                let created: OperatorTokenResource =
                    created.map_err(|error: Failure| error.with_option(&CREATE_OPTIONS))?;
                print_created(&created, printer)
            }
            Self::List => {
                let tokens: Vec<OperatorTokenResource> =
                    client.get_global(&["v1", "operator-tokens"]).await?;
                printer.print_list(&tokens)
            }
            Self::Revoke { subject: Some(subject), issuer, force, .. } => {
                let issuer = issuer.unwrap_or_default();
                let body = SubjectRevocationInput { subject: subject.clone(), issuer };
                let path = ["v1", "operator-tokens", "revoke"];
                let result: SubjectRevocationResult = client.put_global(&path, &body).await?;
                if result.unknown_subject && !force {
                    return Err(unknown_subject(&subject));
                }
                printer.print_result("all tokens of", &subject, "revoked")
            }
            Self::Revoke { ids, .. } => {
                for id in &ids {
                    let path = ["v1", "operator-tokens", id.as_str(), "revoke"];
                    let body = serde_json::json!({});
                    let done = client.put_global::<serde_json::Value>(&path, &body).await;
                    done.map_err(|error| error.with_option(&[("tokenId", "ID")]))?;
                    printer.print_result("token", id, "revoked")?;
                }
                Ok(())
            }
        }
    }
}

/// Prints a new token. With `--quiet` only the token itself.
fn print_created(
    created: &OperatorTokenResource,
    printer: &mut Printer<'_>,
) -> Result<(), Failure> {
    let token = created.token.as_deref().unwrap_or_default();
    if printer.is_ids_only() {
        return printer.print_text(token);
    }
    let mut page = DetailPage::default();
    page.field("id", &created.token_id)
        .field("name", &created.name)
        .field("roles", format_roles(created))
        .field("expires", format_time(created.expires_at))
        .field("token", token);
    printer.print_page(created, &created.token_id, &page)
}

/// The roles with the names of their projects, if the server reports them.
fn format_roles(token: &OperatorTokenResource) -> String {
    let roles = if token.named_roles.is_empty() { &token.roles } else { &token.named_roles };
    roles.join(", ")
}

/// The revocation is in effect, but it probably revoked nothing.
fn unknown_subject(subject: &str) -> Failure {
    Failure::usage_with(
        format!("the server has no record of a token or a login of `{subject}`"),
        "check the name: `evenkeel token list` lists subjects, and --issuer names an identity provider; \
         tokens of this name that were issued until now are refused, and --force accepts this result",
    )
}

impl Resource for OperatorTokenResource {
    const KIND: ResourceKind = ResourceKind {
        titles: &["SUBJECT", "ROLES", "EXPIRES", "LAST USED", "STATE"],
        wide_titles: &["ISSUED"],
        optional_titles: &["AGE", "LAST USED", "SUBJECT", "EXPIRES", "ROLES", "STATE", "NAME"],
        ..ResourceKind::new("ID", "token", "tokens")
    };

    fn key(&self) -> [&str; 2] {
        [&self.token_id, &self.name]
    }

    fn columns(&self) -> Vec<Cell> {
        let state = match self.revoked_at {
            Some(_) => Cell::toned("revoked", Tone::Bad),
            None => Cell::toned("valid", Tone::Good),
        };
        cells![
            &self.subject,
            format_roles(self),
            format_time(self.expires_at),
            format_optional_time(self.last_used_at),
            state
        ]
    }

    fn wide_columns(&self) -> Vec<Cell> {
        cells![format_time(self.issued_at)]
    }

    fn created_at(&self) -> Option<DateTime<Utc>> {
        Some(self.issued_at)
    }
}
