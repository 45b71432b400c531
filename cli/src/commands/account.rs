//! `evenkeel account`: local accounts, the SSH users of instances.

use std::path::PathBuf;

use clap::{ArgGroup, Args, Subcommand};
use evenkeel_api::local_account::{LocalAccountInput, LocalAccountResource};
use evenkeel_api::timestamps::Timestamps;

use crate::Failure;
use crate::client::Client;
use crate::listing::ListOptions;
use crate::output::Printer;
use crate::page::{Cell, DetailPage, cells};
use crate::requests::{self, ResourceArg};
use crate::resource::{Resource, ResourceKind};

/// How many characters of a key a list shows.
const KEY_SUFFIX_CHARS: usize = 24;

/// Manage local accounts: SSH users of instances.
#[derive(Debug, Subcommand)]
pub enum AccountCommand {
    /// List local accounts.
    List(ListOptions),
    /// Show a local account.
    Get(ResourceArg<LocalAccountResource>),
    /// Create a local account from options or from a file.
    Create(CreateAccount),
    /// Delete a local account that no instance uses.
    Delete(ResourceArg<LocalAccountResource>),
}

/// Create a local account from options or from a file.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("with").required(true).args(["ssh_key", "ssh_key_file", "file"]))]
pub struct CreateAccount {
    /// Username: lower-case letters, digits and dashes; unique in the project.
    #[arg(required_unless_present = "file")]
    username: Option<String>,
    /// File with a local account as `get -o yaml` or `get -o json` prints it.
    #[arg(long, short, value_name = "FILE", conflicts_with_all = ["username"])]
    file: Option<PathBuf>,
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
            Self::List(options) => requests::list::<Account>(options, client, printer).await,
            Self::Get(account) => account.print(client, printer).await,
            Self::Create(create) => {
                requests::create::<Account>(&create.build_input()?, client, printer).await
            }
            Self::Delete(account) => account.delete(client, printer).await,
        }
    }
}

impl CreateAccount {
    fn build_input(self) -> Result<LocalAccountInput, Failure> {
        if let Some(path) = &self.file {
            return super::read_input(path, "a local account");
        }
        let key = match (self.ssh_key, self.ssh_key_file) {
            (Some(key), _) => key,
            (None, Some(path)) => super::read_file(&path)?,
            (None, None) => return Err(Failure::usage("give a key: --ssh-key or --ssh-key-file")),
        };
        let username = self.username.unwrap_or_default();
        Ok(LocalAccountInput { username, ssh_key: key.trim().to_owned() })
    }
}

impl Resource for LocalAccountResource {
    const KIND: ResourceKind = ResourceKind {
        command: "account",
        argument_noun: "account",
        id_prefix: "localaccount",
        path: "localAccounts",
        list_key: "localAccounts",
        name_field: Some("username"),
        in_use_hint: Some(
            "delete the instances that use it first: `evenkeel instance list --filter 'localaccount.username = \"NAME\"'` lists them",
        ),
        key_titles: &["ID", "USERNAME"],
        titles: &["KEY"],
        ..ResourceKind::new("ACCOUNT", "local account", "local accounts")
    };

    fn key(&self) -> [&str; 2] {
        [&self.resource_id, &self.username]
    }

    fn timestamps(&self) -> Option<&Timestamps> {
        self.timestamps.as_ref()
    }

    fn columns(&self) -> Vec<Cell> {
        cells![shorten_key(&self.ssh_key)]
    }

    fn add_details(&self, page: &mut DetailPage) {
        page.field("key", &self.ssh_key).created(self.timestamps.as_ref());
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
