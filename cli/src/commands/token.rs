//! `evenkeel token`: tokens for the REST API.

use clap::{ArgGroup, Subcommand};
use evenkeel_api::operator_token::{
    OperatorTokenResource, SubjectRevocationInput, SubjectRevocationResult,
};

use crate::Failure;
use crate::client::Client;
use crate::output::Printer;
use crate::page::{Cell, Tone, cells};
use crate::time::format_time;

/// List and revoke tokens of operators. Only for administrators.
#[derive(Debug, Subcommand)]
pub enum TokenCommand {
    /// List the tokens that `evenkeeld token operator` and the first start have issued.
    List,
    /// Revoke tokens. All servers refuse them within a second.
    #[command(group = ArgGroup::new("tokens").required(true).args(["ids", "subject"]))]
    Revoke {
        /// IDs of the tokens.
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

const HEADER: &[&str] = &["ID", "SUBJECT", "ROLES", "ISSUED", "EXPIRES", "STATE"];

impl TokenCommand {
    pub async fn run(self, client: &Client, printer: &mut Printer<'_>) -> Result<(), Failure> {
        match self {
            Self::List => {
                let tokens: Vec<OperatorTokenResource> =
                    client.get_global(&["v1", "operator-tokens"]).await?;
                let ids: Vec<_> = tokens.iter().map(|token| token.token_id.as_str()).collect();
                printer.print_rows(&tokens, &ids, HEADER, tokens.iter().map(build_row))
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
                    let _: serde_json::Value = client.put_global(&path, &body).await?;
                    printer.print_result("token", id, "revoked")?;
                }
                Ok(())
            }
        }
    }
}

/// The revocation is in effect, but it probably revoked nothing.
fn unknown_subject(subject: &str) -> Failure {
    Failure::usage_with(
        format!("the server has no record of a token or a login of `{subject}`"),
        "check the name: `evenkeel token list` lists subjects, and --issuer names an identity provider; \
         tokens of this name that were issued until now are refused, and --force accepts this result",
    )
}

fn build_row(token: &OperatorTokenResource) -> Vec<Cell> {
    let state = match token.revoked_at {
        Some(_) => Cell::toned("revoked", Tone::Bad),
        None => Cell::toned("valid", Tone::Good),
    };
    cells![
        &token.token_id,
        &token.subject,
        token.roles.join(", "),
        format_time(token.issued_at),
        format_time(token.expires_at),
        state
    ]
}
