//! `evenkeel login`: keeps a token for a server.

use std::io::{self, Read};
use std::path::PathBuf;

use clap::Args;
use evenkeel_api::project::ProjectResource;
use evenkeel_kit::Secret;

use super::{DEFAULT_PROJECT, DEFAULT_SERVER};
use crate::args::Globals;
use crate::client::{Client, Target, parse_server, realm_connection};
use crate::contexts::{Context, Contexts, absolute};
use crate::login::{CLIENT, Fresh, Person, own_realm};
use crate::{Failure, World};

/// A token is never longer than this.
const LONGEST: u64 = 64 * 1024;

/// The longest password that is read.
const LONGEST_PASSWORD: usize = 1_024;
/// What Ctrl-C is while a password is typed.
const CTRL_C: u8 = 3;

/// Keep a token for a server. Without an option the token is read from the standard input.
#[derive(Debug, Args)]
pub struct Login {
    /// The token itself; others on this machine may see it while the command runs.
    #[arg(long, conflicts_with = "token_file")]
    pub token: Option<String>,
    /// A file that holds the token.
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Log in by name, with a password from the standard input. New tokens are then got without being asked for.
    #[arg(long, value_name = "NAME", conflicts_with_all = ["token", "token_file"])]
    pub username: Option<String>,
    /// A file that holds the password.
    #[arg(long, value_name = "FILE", requires = "username")]
    pub password_file: Option<PathBuf>,
    /// The realm of another identity provider, such as `https://keycloak.example.org/realms/master` [default: that of the
    /// server].
    #[arg(long, value_name = "URL", requires = "username")]
    pub realm: Option<String>,
    /// As which client to log in there.
    #[arg(long, value_name = "ID", default_value = CLIENT, requires = "username")]
    pub client: String,
}

impl Login {
    pub async fn run(self, globals: &Globals, world: &mut World<'_>) -> Result<(), Failure> {
        let path = world.environment.contexts.clone();
        let mut context = chosen(&Contexts::load(&path)?, globals)?;
        let fresh = self.fresh(&context, world).await?;
        context.token = Some(fresh.token.clone());
        context.login = fresh.login;

        let project = context.project.clone();
        let target = Target {
            server: context.server.clone(),
            project: project.unwrap_or_else(|| DEFAULT_PROJECT.to_owned()),
            token: Some(fresh.token),
            renewal: None,
            ca: context.ca.clone(),
            retry_for: globals.retry_for,
        };
        check(&Client::new(target)?, world).await?;

        let text = format!(
            "logged in to {} as context {}",
            context.server, context.name
        );
        // Another command may have changed the file while somebody typed a password.
        let mut contexts = Contexts::load(&path)?;
        contexts.put(context);
        contexts.save(&path)?;
        Ok(writeln!(world.out, "{text}")?)
    }

    /// The token that was given, or the one that the identity provider gives to somebody.
    async fn fresh(self, context: &Context, world: &mut World<'_>) -> Result<Fresh, Failure> {
        let Some(username) = self.username.clone() else {
            let token = Secret::new(self.token(world)?);
            return Ok(Fresh { token, login: None });
        };
        let realm = match self.realm {
            Some(realm) => realm,
            None => own_realm(&context.server)?,
        };
        let server = parse_server(&context.server)?;
        let http = realm_connection(&realm, &server, context.ca.as_deref())?;
        let password = password(&username, self.password_file, world)?;
        let person = Person {
            username,
            realm,
            client: self.client,
        };
        person.log_in(&http, &password).await
    }

    fn token(self, world: &mut World<'_>) -> Result<String, Failure> {
        let mut text = String::new();
        if let Some(token) = self.token {
            text = token;
        } else if let Some(path) = self.token_file {
            text =
                std::fs::read_to_string(&path).map_err(|source| Failure::File { path, source })?;
        } else {
            world.input.take(LONGEST).read_to_string(&mut text)?;
        }
        let token = text.trim();
        if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(Failure::usage_with(
                "this is not a token: a token is one word",
                "give it with --token-file FILE, or on the standard input",
            ));
        }
        Ok(token.to_owned())
    }
}

/// The password in a file, else the one that somebody types or sends.
fn password(
    username: &str,
    file: Option<PathBuf>,
    world: &mut World<'_>,
) -> Result<Secret, Failure> {
    let line = match file {
        Some(path) => {
            let read = std::fs::File::open(&path).and_then(|mut file| line(&mut file));
            read.map_err(|source| Failure::File { path, source })?
        }
        None if world.environment.interactive => {
            write!(world.notes, "password of {username}: ")?;
            world.notes.flush()?;
            (world.hide)(true);
            let typed = line(world.input);
            (world.hide)(false);
            writeln!(world.notes)?;
            typed?
        }
        None => line(world.input)?,
    };
    if line.contains(&CTRL_C) {
        return Err(Failure::usage("nothing was done"));
    }
    let text = String::from_utf8(line).unwrap_or_default();
    let text = text.trim_end_matches('\r');
    if text.is_empty() {
        return Err(Failure::usage_with(
            "there is no password",
            "type it, or give it with --password-file FILE",
        ));
    }
    Ok(Secret::new(text))
}

/// The bytes of a line, without its end.
fn line(input: &mut dyn Read) -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    let mut byte = [0];
    while line.len() < LONGEST_PASSWORD && input.read(&mut byte)? == 1 && byte[0] != b'\n' {
        line.push(byte[0]);
    }
    Ok(line)
}

/// The context that the token is for: the one that was asked for, else the current one if it is of that server, else
/// another one of that server, else a new one. A new one takes over what is known of its server.
fn chosen(contexts: &Contexts, globals: &Globals) -> Result<Context, Failure> {
    let old = match (&globals.context, &globals.server) {
        (Some(name), Some(_)) => contexts.named(name),
        (wanted, _) => contexts.chosen(wanted.as_deref())?,
    };
    let server = globals
        .server
        .clone()
        .or_else(|| old.map(|old| old.server.clone()))
        .unwrap_or_else(|| DEFAULT_SERVER.to_owned());
    parse_server(&server)?;
    let old = old
        .filter(|old| globals.context.is_some() || old.server == server)
        .or_else(|| contexts.of_server(&server));
    let same = old.filter(|old| old.server == server);
    let name = globals
        .context
        .clone()
        .or_else(|| old.map(|old| old.name.clone()));
    Ok(Context {
        name: name.unwrap_or_else(|| free_name(contexts, &server)),
        project: globals
            .project
            .clone()
            .or_else(|| old.and_then(|old| old.project.clone())),
        ca: absolute(globals.ca.as_deref())?.or_else(|| same.and_then(|old| old.ca.clone())),
        token: None,
        login: None,
        server,
    })
}

/// A name that no context has: `default`, else the server's address, else that with a number.
fn free_name(contexts: &Contexts, server: &str) -> String {
    let numbered = (2_usize..).map(|number| format!("{server}#{number}"));
    ["default".to_owned(), server.to_owned()]
        .into_iter()
        .chain(numbered)
        .find(|name| contexts.named(name).is_none())
        .expect("there are more numbers than contexts")
}

/// Keeps no token that the server does not take. A server that does not answer says nothing about the token.
async fn check(client: &Client, world: &mut World<'_>) -> Result<(), Failure> {
    match client
        .get_global::<Vec<ProjectResource>>(&["v1", "projects"])
        .await
    {
        Ok(_) => Ok(()),
        Err(Failure::Unreachable { server, .. }) => {
            let text = "cannot be reached now, so the token was not tried";
            Ok(writeln!(world.notes, "note: {server} {text}")?)
        }
        Err(error) => Err(error),
    }
}
