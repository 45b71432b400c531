//! `evenkeel login`: logs in to a server and saves the token.

mod methods;

use std::io::{self, Read};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use evenkeel_api::project::ProjectResource;
use evenkeel_kit::{Secret, chain};

use crate::certificate;
use crate::client::{Client, DEFAULT_PROJECT, DEFAULT_SERVER, Target};
use crate::contexts::{Context, Contexts, absolute_path};
use crate::http::{build_realm_client, parse_server_address};
use crate::login::oidc::{BrowserOptions, ProviderClient, ProviderSettings};
use crate::login::{IssuedToken, LoginRequest, OWN_CLIENT_ID, PROVIDER_CLIENT_ID, realm_of_server};
use crate::options::GlobalOptions;
use crate::time::parse_duration;
use crate::{Failure, System, sanitize_text};
use methods::{LoginMethods, fetch_login_methods};

/// Maximum size of a token.
const MAX_TOKEN_BYTES: u64 = 64 * 1024;

/// Maximum length of a password.
const MAX_PASSWORD_BYTES: u64 = 1_024;

/// Maximum length of the name of a user.
const MAX_NAME_BYTES: u64 = 1_024;

/// Byte that Ctrl-C sends while a secret is typed.
const CTRL_C: u8 = 3;

/// Note that the saved token is not used.
pub(super) const VARIABLE_NOTE: &str =
    "commands use the token of the variable EVENKEEL_TOKEN, not the saved one, until you unset it";

const EXAMPLES: &str = "Examples:
  evenkeel login                                  # the only login that the server accepts
  evenkeel login --web                            # in the browser, at the only identity provider of the server
  evenkeel login --issuer staff --device          # enter a code in a browser on another machine
  evenkeel login --issuer https://keycloak.example.org/realms/master --client-id evenkeel
  evenkeel login --username alice                 # with a password
  evenkeel login < token                          # with a token";

/// Log in to a server and save the token.
///
/// On a terminal without options, the command uses the only login that the server accepts: an
/// identity provider, or a password. If there are several, it lists them. Without a terminal, the
/// token is read from standard input. Tokens of logins are renewed automatically.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct LoginCommand {
    /// Token. Other users of this machine can see it while the command runs; prefer --token-file.
    #[arg(long, conflicts_with = "token_file")]
    pub token: Option<String>,
    /// File with the token.
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Log in as this user with a password from standard input. Tokens are then renewed automatically.
    #[arg(long, value_name = "NAME", conflicts_with_all = ["token", "token_file"])]
    pub username: Option<String>,
    /// File with the password.
    #[arg(long, value_name = "FILE", requires = "username")]
    pub password_file: Option<PathBuf>,
    /// Realm of another identity provider, such as `https://keycloak.example.org/realms/master`
    /// [default: realm of the server].
    #[arg(long, value_name = "URL", requires = "username")]
    pub realm: Option<String>,
    /// OAuth client ID [default: that of the server's list for an identity provider; with a password,
    /// `evenkeel` at the realm of the server, `system-client` at another one].
    #[arg(long = "client-id", alias = "client", value_name = "ID", conflicts_with_all = ["token", "token_file"])]
    pub client: Option<String>,
    /// Log in at this identity provider: its URL, or its name in the server's list.
    #[arg(long, value_name = "URL|NAME", conflicts_with_all = ["token", "token_file", "username"])]
    pub issuer: Option<String>,
    /// Log in with a browser on this machine [default if there is a desktop].
    #[arg(long, conflicts_with_all = ["token", "token_file", "username", "device"])]
    pub web: bool,
    /// Log in with a code that you enter in a browser on any machine [default without a desktop].
    #[arg(long, conflicts_with_all = ["token", "token_file", "username"])]
    pub device: bool,
    /// Scope to request at the identity provider in addition to `openid`; repeatable [default: those of
    /// the server's list].
    #[arg(long, value_name = "SCOPE", conflicts_with_all = ["token", "token_file", "username"])]
    pub scope: Vec<String>,
    /// Print the address of the login instead of opening the browser.
    #[arg(long, conflicts_with_all = ["token", "token_file", "username", "device"])]
    pub no_browser: bool,
    /// How long to wait for the login at the identity provider.
    #[arg(long, value_parser = parse_duration, default_value = "5m", value_name = "DURATION")]
    pub timeout: Duration,
}

impl LoginCommand {
    pub async fn run(
        self,
        globals: &GlobalOptions,
        system: &mut System<'_>,
    ) -> Result<(), Failure> {
        let path = system.environment.contexts.clone();
        let mut context = resolve_context(&Contexts::load(&path)?, globals)?;
        let issued = self.obtain_token(&context, system).await?;
        context.token = Some(issued.token.clone());
        context.login = issued.login;

        let project = context.project.clone();
        let target = Target {
            server: context.server.clone(),
            project: project.unwrap_or_else(|| DEFAULT_PROJECT.to_owned()),
            token: Some(issued.token),
            renewal: None,
            ca: context.ca.clone(),
            retry_for: globals.retry_for,
        };
        let verified = verify_token(&Client::new(target)?, system).await;
        let is_new = context.login.is_some();
        let is_verified = verified
            .map_err(|error| if is_new { explain_revoked_new_token(error) } else { error })?;

        let done = if is_verified { "logged in to" } else { "saved the unverified token for" };
        let text = format!("{done} {} as context {}", context.server, context.name);
        // Another command may have changed the file in the meantime.
        let mut contexts = Contexts::load(&path)?;
        contexts.upsert(context);
        contexts.save(&path)?;
        if system.environment.token.is_some() {
            writeln!(system.notes, "note: {VARIABLE_NOTE}")?;
        }
        Ok(writeln!(system.out, "{text}")?)
    }

    /// The given token, or a new one from the identity provider.
    async fn obtain_token(
        self,
        context: &Context,
        system: &mut System<'_>,
    ) -> Result<IssuedToken, Failure> {
        if let Some(username) = self.username.clone() {
            return self.log_in_with_password(username, context, system).await;
        }
        let has_token = self.token.is_some() || self.token_file.is_some();
        if has_token || !(self.names_provider() || system.environment.interactive) {
            let token = Secret::new(self.read_token(system)?);
            return Ok(IssuedToken { token, login: None });
        }
        let methods = fetch_login_methods(&context.server, context.ca.as_deref()).await;
        let methods = match methods {
            // The provider may be reachable while the server is not.
            Err(Failure::Unreachable { .. }) if self.issuer.is_some() && self.client.is_some() => {
                LoginMethods::default()
            }
            other => other?,
        };
        if self.names_provider() {
            let settings =
                methods.select_provider(self.issuer.as_deref(), self.client.as_deref())?;
            return self.log_in_at_provider(settings, context, system).await;
        }
        match methods.only_provider() {
            Some(settings) => self.log_in_at_provider(settings, context, system).await,
            None if methods.are_passwords_only() => {
                let username = read_username(system)?;
                self.log_in_with_password(username, context, system).await
            }
            None if methods.are_none() => {
                write!(system.notes, "the server lists no logins; paste a token: ")?;
                let token = Secret::new(self.read_token(system)?);
                Ok(IssuedToken { token, login: None })
            }
            None => Err(methods.several_logins_error()),
        }
    }

    /// Whether an option means a login at an identity provider.
    fn names_provider(&self) -> bool {
        self.issuer.is_some()
            || self.web
            || self.device
            || self.no_browser
            || self.client.is_some()
            || !self.scope.is_empty()
    }

    /// Logs in at an identity provider, in the browser or on another device.
    async fn log_in_at_provider(
        self,
        mut settings: ProviderSettings,
        context: &Context,
        system: &mut System<'_>,
    ) -> Result<IssuedToken, Failure> {
        if let Some(client_id) = self.client {
            settings.client_id = client_id;
        }
        if !self.scope.is_empty() {
            settings.scopes = self.scope;
        }
        let server = parse_server_address(&context.server)?;
        let http = build_realm_client(&settings.issuer, &server, context.ca.as_deref())?;
        let provider = ProviderClient::discover(&http, settings).await?;
        let has_display = system.environment.has_display;
        let needs_device = !has_display && !self.no_browser && provider.offers_device_login();
        if self.device || (needs_device && !self.web) {
            return provider.log_in_with_device(self.timeout, system).await;
        }
        let open_browser = has_display && !self.no_browser;
        let options = BrowserOptions { open_browser, timeout: self.timeout };
        provider.log_in_with_browser(options, system).await
    }

    /// Logs in with a password.
    async fn log_in_with_password(
        self,
        username: String,
        context: &Context,
        system: &mut System<'_>,
    ) -> Result<IssuedToken, Failure> {
        let (realm, default_client) = match self.realm {
            Some(realm) => (realm, PROVIDER_CLIENT_ID),
            None => (realm_of_server(&context.server)?, OWN_CLIENT_ID),
        };
        let client = self.client.unwrap_or_else(|| default_client.to_owned());
        let server = parse_server_address(&context.server)?;
        let http = build_realm_client(&realm, &server, context.ca.as_deref())?;
        let password = read_password(&username, self.password_file, system)?;
        let request = LoginRequest { username, realm, client };
        request.log_in(&http, &password).await
    }

    fn read_token(self, system: &mut System<'_>) -> Result<String, Failure> {
        let mut text = String::new();
        if let Some(token) = self.token {
            text = token;
        } else if let Some(path) = self.token_file {
            text = super::read_file(&path)?;
        } else if system.environment.interactive {
            // A terminal has no end of the input: the token is one line.
            let line = read_hidden_line(MAX_TOKEN_BYTES, system)?;
            text = String::from_utf8(line).unwrap_or_default();
        } else {
            system.input.take(MAX_TOKEN_BYTES).read_to_string(&mut text)?;
        }
        let token = text.trim();
        if token.is_empty() {
            return Err(Failure::usage_with(
                "the token is empty",
                "give it with --token-file FILE, or on standard input",
            ));
        }
        if !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(Failure::usage_with(
                "this is not a token: a token has no spaces",
                "give it with --token-file FILE, or on standard input",
            ));
        }
        Ok(token.to_owned())
    }
}

/// Reads the name of the user.
fn read_username(system: &mut System<'_>) -> Result<String, Failure> {
    write!(system.notes, "user name: ")?;
    system.notes.flush()?;
    let name = String::from_utf8(read_line(system.input, MAX_NAME_BYTES)?).unwrap_or_default();
    let name = name.trim();
    if name.is_empty() {
        return Err(Failure::usage_with(
            "the user name is empty",
            "type it, or use --username NAME",
        ));
    }
    Ok(name.to_owned())
}

/// Reads the password from a file or from standard input.
fn read_password(
    username: &str,
    file: Option<PathBuf>,
    system: &mut System<'_>,
) -> Result<Secret, Failure> {
    read_secret(&format!("password for {username}"), ("--password-file", file), system)
}

/// Reads a password from the file of an option, after a prompt on a terminal, or else as a line of
/// standard input.
pub(super) fn read_secret(
    prompt: &str,
    (option, file): (&str, Option<PathBuf>),
    system: &mut System<'_>,
) -> Result<Secret, Failure> {
    let line = match file {
        Some(path) => {
            let file = std::fs::File::open(&path);
            let read = file.and_then(|mut file| read_line(&mut file, MAX_PASSWORD_BYTES));
            read.map_err(|source| Failure::File { path, source })?
        }
        None if system.environment.interactive => {
            write!(system.notes, "{prompt}: ")?;
            read_hidden_line(MAX_PASSWORD_BYTES, system)?
        }
        None => read_line(system.input, MAX_PASSWORD_BYTES)?,
    };
    let text = String::from_utf8(line).unwrap_or_default();
    let text = text.trim_end_matches('\r');
    if text.is_empty() {
        return Err(Failure::usage_with(
            "the password is empty",
            format!("type it, or give it with {option} FILE"),
        ));
    }
    Ok(Secret::new(text))
}

/// Reads a new password, on a terminal twice, because the terminal does not show it.
pub(super) fn read_new_password(
    username: &str,
    file: Option<PathBuf>,
    system: &mut System<'_>,
) -> Result<Secret, Failure> {
    let must_repeat = file.is_none() && system.environment.interactive;
    let new =
        read_secret(&format!("new password for {username}"), ("--password-file", file), system)?;
    if must_repeat {
        let again = read_secret("new password again", ("--password-file", None), system)?;
        if again.reveal() != new.reveal() {
            return Err(Failure::usage("the new passwords differ; nothing was done"));
        }
    }
    Ok(new)
}

/// Reads a line after a prompt on a terminal, which does not show it.
fn read_hidden_line(max_bytes: u64, system: &mut System<'_>) -> Result<Vec<u8>, Failure> {
    system.notes.flush()?;
    (system.hide_input)(true);
    let typed = read_line(system.input, max_bytes);
    (system.hide_input)(false);
    writeln!(system.notes)?;
    let line = typed?;
    if line.contains(&CTRL_C) {
        return Err(Failure::usage("nothing was done"));
    }
    Ok(line)
}

/// Reads a line without its line break, up to a maximum length.
fn read_line(input: &mut dyn Read, max_bytes: u64) -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    let mut byte = [0];
    let mut rest = input.take(max_bytes);
    while rest.read(&mut byte)? == 1 && byte[0] != b'\n' {
        line.push(byte[0]);
    }
    Ok(line)
}

/// The context to log in with: the requested context, else the current one if it belongs to the
/// server, else the first one of the server, else a new one. A new context copies the project and
/// the CA of the old one, where they fit.
fn resolve_context(contexts: &Contexts, globals: &GlobalOptions) -> Result<Context, Failure> {
    let old = match (&globals.context, &globals.server) {
        (Some(name), Some(_)) => contexts.find_by_name(name),
        (requested, _) => contexts.select(requested.as_deref())?,
    };
    let server = globals
        .server
        .clone()
        .or_else(|| old.map(|old| old.server.clone()))
        .unwrap_or_else(|| DEFAULT_SERVER.to_owned());
    parse_server_address(&server)?;
    let old = old
        .filter(|old| globals.context.is_some() || old.server == server)
        .or_else(|| contexts.find_by_server(&server));
    let same = old.filter(|old| old.server == server);
    let name = globals.context.clone().or_else(|| old.map(|old| old.name.clone()));
    Ok(Context {
        name: name.unwrap_or_else(|| unused_name(contexts, &server)),
        project: globals.project.clone().or_else(|| old.and_then(|old| old.project.clone())),
        ca: absolute_path(globals.ca.as_deref())?.or_else(|| same.and_then(|old| old.ca.clone())),
        token: None,
        login: None,
        server,
    })
}

/// An unused name for a context: `default`, else the URL of the server, else the URL with a number.
fn unused_name(contexts: &Contexts, server: &str) -> String {
    let numbered = (2_usize..).map(|number| format!("{server}#{number}"));
    ["default".to_owned(), server.to_owned()]
        .into_iter()
        .chain(numbered)
        .find(|name| contexts.find_by_name(name).is_none())
        .expect("the numbers never run out")
}

/// Adds a hint to the error of a new token that the server refuses as revoked.
fn explain_revoked_new_token(error: Failure) -> Failure {
    match error {
        Failure::Refused { status: 401, message, .. } if message.contains("revoked") => {
            Failure::usage_with(
                message,
                "the user was changed, or its tokens were revoked, less than a second ago: log in again",
            )
        }
        error => error,
    }
}

/// Verifies the token with the server. Returns whether the server has accepted it. A server that is
/// away says nothing about the token, so that is only noted; a server whose certificate is refused
/// never gets the token.
async fn verify_token(client: &Client, system: &mut System<'_>) -> Result<bool, Failure> {
    match client.get_global::<Vec<ProjectResource>>(&["v1", "projects"]).await {
        Ok(_) => Ok(true),
        Err(Failure::Unreachable { server, source }) if !certificate::is_refused(&source) => {
            let why = sanitize_text(&chain(&source).to_string());
            let text = format!("{server} is unreachable, so the token was not verified: {why}");
            writeln!(system.notes, "note: {text}")?;
            Ok(false)
        }
        Err(error) => Err(error),
    }
}
