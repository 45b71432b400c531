//! `evenkeel account`: who may log in to instances.

use std::path::PathBuf;

use clap::{ArgGroup, Args, Subcommand};
use evenkeel_api::local_account::{LocalAccountInput, LocalAccountResource};

use crate::Failure;
use crate::client::Client;
use crate::pages::{self, ListOptions};
use crate::resource::{self, Resource};
use crate::view::{Cell, Page, Printer};

/// How many letters of a key a list shows.
const SHORT: usize = 24;

/// Local accounts: who may log in to instances, with which key.
#[derive(Debug, Subcommand)]
pub enum AccountCommand {
    /// List the local accounts.
    List(ListOptions),
    /// Show a local account.
    Get {
        /// Its id or user name.
        account: String,
    },
    /// Add a local account.
    Create(CreateAccount),
    /// Delete a local account that no instance has.
    Delete {
        /// Its id or user name.
        account: String,
    },
}

/// A new local account.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("with").required(true).args(["ssh_key", "ssh_key_file"]))]
pub struct CreateAccount {
    /// The user name: lower-case letters, digits and dashes; unique in its project.
    username: String,
    /// The public key that it logs in with, one line as in `authorized_keys`.
    #[arg(long, value_name = "KEY")]
    ssh_key: Option<String>,
    /// The file with the public key, such as `~/.ssh/id_ed25519.pub`.
    #[arg(long, value_name = "FILE")]
    ssh_key_file: Option<PathBuf>,
}

impl AccountCommand {
    pub async fn run(self, client: &Client, printer: &mut Printer<'_>) -> Result<(), Failure> {
        type Account = LocalAccountResource;
        match self {
            Self::List(options) => pages::show::<Account>(client, &options.query(), printer).await,
            Self::Get { account } => {
                printer.one(&resource::find::<Account>(client, &account).await?)
            }
            Self::Create(create) => {
                let made: Account = client.post(Account::PATH, &create.input()?).await?;
                printer.one(&made)
            }
            Self::Delete { account } => {
                let id = resource::delete::<Account>(client, &account).await?;
                printer.done(Account::WORD, &id, "deleted")
            }
        }
    }
}

impl CreateAccount {
    fn input(self) -> Result<LocalAccountInput, Failure> {
        let key = match (self.ssh_key, self.ssh_key_file) {
            (Some(key), _) => key,
            (None, Some(path)) => {
                std::fs::read_to_string(&path).map_err(|source| Failure::File { path, source })?
            }
            (None, None) => return Err(Failure::usage("give the key of the account")),
        };
        Ok(LocalAccountInput {
            username: self.username,
            ssh_key: key.trim().to_owned(),
        })
    }
}

impl Resource for LocalAccountResource {
    const NOUN: &'static str = "account";
    const WORD: &'static str = "local account";
    const MANY: &'static str = "local accounts";
    const PREFIX: &'static str = "localaccount";
    const PATH: &'static str = "localAccounts";
    const KEYS: &'static [&'static str] = &["localAccounts"];
    const NAMED_BY: Option<&'static str> = Some("username");
    const FREE: Option<&'static str> = Some(
        "delete the instances that have it first: `evenkeel instance list --filter 'localaccount.username = \"NAME\"'` shows them",
    );
    const HEADER: &'static [&'static str] = &["ID", "USER NAME", "KEY"];

    fn id(&self) -> &str {
        &self.resource_id
    }

    fn name(&self) -> &str {
        &self.username
    }

    fn row(&self) -> Vec<Cell> {
        vec![
            self.resource_id.clone().into(),
            self.username.clone().into(),
            short(&self.ssh_key).into(),
        ]
    }

    fn page(&self) -> Page {
        let mut page = Page::default();
        page.field("id", self.resource_id.clone())
            .field("user name", self.username.clone())
            .field("key", self.ssh_key.clone())
            .created(self.timestamps.as_ref());
        page
    }
}

/// A key so short that it can be told from others: its kind, and its end with the comment.
fn short(key: &str) -> String {
    let (kind, rest) = key.split_once(' ').unwrap_or(("", key));
    let before = rest.chars().count().saturating_sub(SHORT);
    let end: String = rest.chars().skip(before).collect();
    let cut = if before > 0 { "…" } else { "" };
    format!("{kind} {cut}{end}").trim_start().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_key_has_the_end_of_the_long_one() {
        assert_eq!(short("ssh-ed25519 AAAA a@b"), "ssh-ed25519 AAAA a@b");
        let long = format!("ssh-ed25519 {} alice@desk", "A".repeat(68));
        assert_eq!(short(&long), "ssh-ed25519 …AAAAAAAAAAAAA alice@desk");
        assert_eq!(short(""), "");
    }
}
