//! `evenkeel account`: local accounts, the SSH users of instances.

use std::path::PathBuf;

use clap::{ArgGroup, Args, Subcommand};
use evenkeel_api::local_account::{LocalAccountInput, LocalAccountResource};

use crate::Failure;
use crate::client::Client;
use crate::listing::{self, ListOptions};
use crate::output::{Cell, DetailPage, Printer};
use crate::resource::{self, Resource};

/// How many characters of a key a list shows.
const KEY_SUFFIX_CHARS: usize = 24;

/// Manage local accounts: SSH users of instances.
#[derive(Debug, Subcommand)]
pub enum AccountCommand {
    /// List local accounts.
    List(ListOptions),
    /// Show a local account.
    Get {
        /// ID or username of the account.
        account: String,
    },
    /// Create a local account.
    Create(CreateAccount),
    /// Delete a local account that no instance uses.
    Delete {
        /// ID or username of the account.
        account: String,
    },
}

/// Create a local account.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("with").required(true).args(["ssh_key", "ssh_key_file"]))]
pub struct CreateAccount {
    /// Username: lower-case letters, digits and dashes; unique in the project.
    username: String,
    /// SSH public key, one line as in `authorized_keys`.
    #[arg(long, value_name = "KEY")]
    ssh_key: Option<String>,
    /// File with the SSH public key, such as `~/.ssh/id_ed25519.pub`.
    #[arg(long, value_name = "FILE")]
    ssh_key_file: Option<PathBuf>,
}

impl AccountCommand {
    pub async fn run(self, client: &Client, printer: &mut Printer<'_>) -> Result<(), Failure> {
        type Account = LocalAccountResource;
        match self {
            Self::List(options) => {
                listing::fetch_and_print::<Account>(client, &options.query(), printer).await
            }
            Self::Get { account } => {
                printer.print_resource(&resource::find::<Account>(client, &account).await?)
            }
            Self::Create(create) => {
                let created: Account = client.post(Account::PATH, &create.build_input()?).await?;
                printer.print_resource(&created)
            }
            Self::Delete { account } => {
                let id = resource::delete::<Account>(client, &account).await?;
                printer.print_result(Account::SINGULAR, &id, "deleted")
            }
        }
    }
}

impl CreateAccount {
    fn build_input(self) -> Result<LocalAccountInput, Failure> {
        let key = match (self.ssh_key, self.ssh_key_file) {
            (Some(key), _) => key,
            (None, Some(path)) => {
                std::fs::read_to_string(&path).map_err(|source| Failure::File { path, source })?
            }
            (None, None) => return Err(Failure::usage("give a key: --ssh-key or --ssh-key-file")),
        };
        Ok(LocalAccountInput { username: self.username, ssh_key: key.trim().to_owned() })
    }
}

impl Resource for LocalAccountResource {
    const COMMAND: &'static str = "account";
    const SINGULAR: &'static str = "local account";
    const PLURAL: &'static str = "local accounts";
    const ID_PREFIX: &'static str = "localaccount";
    const PATH: &'static str = "localAccounts";
    const LIST_KEYS: &'static [&'static str] = &["localAccounts"];
    const NAME_FIELD: Option<&'static str> = Some("username");
    const IN_USE_HINT: Option<&'static str> = Some(
        "delete the instances that use it first: `evenkeel instance list --filter 'localaccount.username = \"NAME\"'` lists them",
    );
    const HEADER: &'static [&'static str] = &["ID", "USERNAME", "KEY"];

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
            shorten_key(&self.ssh_key).into(),
        ]
    }

    fn page(&self) -> DetailPage {
        let mut page = DetailPage::default();
        page.field("id", self.resource_id.clone())
            .field("username", self.username.clone())
            .field("key", self.ssh_key.clone())
            .created(self.timestamps.as_ref());
        page
    }
}

/// Shortens a key to its type and its end with the comment, enough to tell keys apart.
fn shorten_key(key: &str) -> String {
    let (kind, rest) = key.split_once(' ').unwrap_or(("", key));
    let skipped = rest.chars().count().saturating_sub(KEY_SUFFIX_CHARS);
    let end: String = rest.chars().skip(skipped).collect();
    let cut = if skipped > 0 { "…" } else { "" };
    format!("{kind} {cut}{end}").trim_start().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shortened_key_ends_like_the_full_one() {
        assert_eq!(shorten_key("ssh-ed25519 AAAA a@b"), "ssh-ed25519 AAAA a@b");
        let long = format!("ssh-ed25519 {} alice@desk", "A".repeat(68));
        assert_eq!(shorten_key(&long), "ssh-ed25519 …AAAAAAAAAAAAA alice@desk");
        assert_eq!(shorten_key(""), "");
    }
}
