//! `evenkeel passwd`: the own password.

use std::path::PathBuf;

use clap::Args;
use evenkeel_api::Empty;
use evenkeel_api::user::{OwnPasswordInput, Password};
use evenkeel_api::whoami::WhoamiResource;
use evenkeel_kit::{Secret, chain};

use super::login::{read_new_password, read_secret};
use crate::client::Client;
use crate::options::GlobalOptions;
use crate::output::Printer;
use crate::{Failure, System, sanitize_text};

const EXAMPLES: &str = "Examples:
  evenkeel passwd                                             # on a terminal
  evenkeel passwd --old-password-file old --password-file new
  printf '%s\\n' \"$OLD\" \"$NEW\" | evenkeel passwd";

/// Change your password.
///
/// The old and the new password are read from the terminal, or as two lines from standard input. The
/// command logs in again with the new password; your other logins end. Passwords of a file of users or
/// of an identity provider are changed there.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct PasswdCommand {
    /// File with the old password.
    #[arg(long, value_name = "FILE")]
    old_password_file: Option<PathBuf>,
    /// File with the new password.
    #[arg(long, value_name = "FILE")]
    password_file: Option<PathBuf>,
}

impl PasswdCommand {
    pub async fn run(
        self,
        client: &Client,
        globals: &GlobalOptions,
        system: &mut System<'_>,
    ) -> Result<(), Failure> {
        let caller: WhoamiResource = client.get_global(&["v1", "whoami"]).await?;
        let name = sanitize_text(&caller.subject);
        let old = ("--old-password-file", self.old_password_file);
        let old = read_secret(&format!("old password for {name}"), old, system)?;
        let new = read_new_password(&name, self.password_file, system)?;
        let to_password = |secret: &Secret| Password::new(secret.reveal().to_owned());
        let body =
            OwnPasswordInput { old_password: to_password(&old), password: to_password(&new) };
        let changed = client.put_global(&["v1", "whoami", "password"], &body).await;
        let _: Empty = changed.map_err(explain_refusal)?;
        if let Err(error) = client.log_in_again(&new).await {
            let why = sanitize_text(&chain(&error).to_string());
            writeln!(system.notes, "note: log in again with the new password: {why}")?;
        }
        let printer = &mut Printer::new(system, globals.output, globals.ids_only);
        printer.print_result("password of", &name, "changed")
    }
}

/// Names the password that the server refuses, in place of the field of the API.
fn explain_refusal(error: Failure) -> Failure {
    let Failure::Refused { field: Some(field), message, .. } = &error else {
        return error;
    };
    let why = message.strip_prefix(&format!("{field}: ")).unwrap_or(message);
    match field.as_str() {
        "oldPassword" => Failure::usage(format!("the old password {why}; nothing was changed")),
        "password" => Failure::usage(format!("the new password is refused: {why}")),
        _ => error,
    }
}
