//! Options to access registries and to select profiles.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use evenkeel_registry::layout::Layout;
use evenkeel_registry::{
    Access, Address, Credentials, Limits, Proxy, Registry, RegistryError, RevisionSelector,
    SigningKey, Upstream, WebClient, open,
};
use reqwest::Url;

use crate::Failure;

/// Maximum size in bytes of a file with a password, a token, a key or certificates.
const MAX_FILE_BYTES: u64 = 1024 * 1024;

/// Access to a registry.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Registry options")]
pub struct RegistryOptions {
    /// User of the registry.
    #[arg(long, value_name = "NAME", requires = "password_file")]
    username: Option<String>,
    /// File with the password of the user.
    #[arg(long, value_name = "FILE", requires = "username")]
    password_file: Option<PathBuf>,
    /// File with a token for the registry.
    #[arg(long, value_name = "FILE", conflicts_with = "username")]
    token_file: Option<PathBuf>,
    /// CA certificates (PEM file) to verify the registry [default: system roots].
    #[arg(long, value_name = "FILE")]
    registry_ca: Option<PathBuf>,
    /// Use plain HTTP for a registry at `http://`.
    #[arg(long)]
    plain_http: bool,
    /// Proxy to reach the registry [default: proxy of the environment].
    #[arg(long, value_name = "URL|none")]
    proxy: Option<Proxy>,
}

/// Access to the target registry.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Target registry options")]
#[expect(clippy::struct_field_names, reason = "the fields are named like their options")]
pub struct TargetRegistryOptions {
    /// User of the target registry.
    #[arg(long, value_name = "NAME", requires = "to_password_file")]
    to_username: Option<String>,
    /// File with the password of the user.
    #[arg(long, value_name = "FILE", requires = "to_username")]
    to_password_file: Option<PathBuf>,
    /// File with a token for the target registry.
    #[arg(long, value_name = "FILE", conflicts_with = "to_username")]
    to_token_file: Option<PathBuf>,
    /// CA certificates (PEM file) to verify the target registry [default: system roots].
    #[arg(long, value_name = "FILE")]
    to_registry_ca: Option<PathBuf>,
    /// Use plain HTTP for a target registry at `http://`.
    #[arg(long)]
    to_plain_http: bool,
    /// Proxy to reach the target registry [default: proxy of the environment].
    #[arg(long, value_name = "URL|none")]
    to_proxy: Option<Proxy>,
}

impl From<TargetRegistryOptions> for RegistryOptions {
    fn from(target: TargetRegistryOptions) -> Self {
        Self {
            username: target.to_username,
            password_file: target.to_password_file,
            token_file: target.to_token_file,
            registry_ca: target.to_registry_ca,
            plain_http: target.to_plain_http,
            proxy: target.to_proxy,
        }
    }
}

impl RegistryOptions {
    /// Reads the credentials and certificates for the registry at an address.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn access(&self, address: &Address) -> Result<Access, Failure> {
        let credentials = match (&self.username, &self.password_file, &self.token_file) {
            (Some(username), Some(file), _) => Credentials::basic(username, read_secret(file)?),
            (_, _, Some(file)) => Credentials::token(read_secret(file)?),
            _ => Credentials::None,
        };
        let ca_pem = self.registry_ca.as_deref().map(read_limited).transpose()?;
        Ok(Access {
            plain_http: self.plain_http,
            credentials,
            ca_pem,
            proxy: self.proxy.clone().unwrap_or_default(),
            ..Access::new(address.clone())
        })
    }

    /// Opens the registry at an address, without a request.
    ///
    /// # Errors
    /// A file cannot be read, or the address does not fit the options.
    pub fn open(&self, address: &Address) -> Result<Arc<dyn Registry>, Failure> {
        open(&self.access(address)?).map_err(registry_failure(address))
    }
}

/// Prefix of the repositories in a registry.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Registry options")]
pub struct PrefixOption {
    /// Prefix of repository names before the profile name, including the slash, such as `os/`. Must
    /// equal the `prefix` setting of the server.
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub prefix: String,
}

/// Selection of profiles and their contents.
#[derive(Clone, Debug, Args)]
pub struct ProfileSelection {
    /// Profile to include. Can be repeated [default: all profiles in a folder].
    #[arg(long = "profile", value_name = "NAME")]
    pub profiles: Vec<String>,
    /// Skip the images; include only profiles, package lists and vulnerability documents.
    #[arg(long)]
    pub no_images: bool,
    #[command(flatten)]
    pub prefix_option: PrefixOption,
}

/// Source of files that profiles refer to and that are not in the registry.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Registry options")]
pub struct ExternalFiles {
    /// Base URL of files that profiles name without a host.
    #[arg(long, value_name = "URL")]
    files_url: Option<Url>,
    /// Additional host that files may be fetched from. Can be repeated.
    #[arg(long = "allow-host", value_name = "HOST")]
    allow_hosts: Vec<String>,
}

impl ExternalFiles {
    /// Creates the client that fetches these files.
    pub fn web_client(&self, access: &Access) -> Result<WebClient, Failure> {
        let mut hosts = self.allow_hosts.clone();
        hosts.extend(self.files_url.as_ref().and_then(host_and_port));
        WebClient::new(access, &hosts).map_err(registry_failure(&access.address))
    }

    /// Source to copy from: a registry and its external files.
    pub fn upstream<'a>(
        &'a self,
        registry: &'a dyn Registry,
        web: &'a WebClient,
        choice: &'a ProfileSelection,
    ) -> Upstream<'a> {
        Upstream {
            registry,
            web: Some(web),
            prefix: &choice.prefix_option.prefix,
            files_url: self.files_url.as_ref(),
        }
    }
}

fn host_and_port(url: &Url) -> Option<String> {
    let host = url.host_str()?;
    Some(url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}")))
}

/// Names of the selected profiles, by default all profiles in a folder.
///
/// # Errors
/// No profile is selected and the registry is not a folder, or the folder has no profiles.
pub async fn resolve_profiles(
    choice: &ProfileSelection,
    at: &Address,
) -> Result<Vec<String>, Failure> {
    if !choice.profiles.is_empty() {
        return Ok(choice.profiles.clone());
    }
    let Address::Layout(folder) = at else {
        return Err(Failure::usage_with(
            "a registry in the network does not list its profiles",
            "name them with `--profile NAME`; the option can be repeated",
        ));
    };
    let layout = Layout::open(folder, &Limits::default()).map_err(registry_failure(at))?;
    let tags = layout.all_tags().await.map_err(registry_failure(at))?;
    let prefix = choice.prefix_option.prefix.as_str();
    let mut names: Vec<String> = tags
        .iter()
        .filter_map(|(repository, _)| repository.as_str().strip_prefix(prefix))
        .filter(|name| !name.is_empty() && !name.contains('/'))
        .map(str::to_owned)
        .collect();
    names.dedup();
    if names.is_empty() {
        return Err(Failure::usage_with(
            format!("{at} has no profile whose repository starts with `{prefix}`"),
            "check --prefix; `evenkeel os publish` publishes profiles",
        ));
    }
    Ok(names)
}

/// Error for a registry that cannot be used.
pub fn registry_failure(at: &Address) -> impl FnOnce(RegistryError) -> Failure {
    let address = at.to_string();
    move |source| Failure::Registry { address, source: Box::new(source) }
}

/// Parses a range of revisions.
pub fn parse_revisions(text: &str) -> Result<RevisionSelector, String> {
    RevisionSelector::parse(text).map_err(|invalid| invalid.to_string())
}

/// Reads an optional private key.
///
/// # Errors
/// The file cannot be read or is not a private key.
pub fn read_signing_key(file: Option<&Path>) -> Result<Option<SigningKey>, Failure> {
    let Some(file) = file else { return Ok(None) };
    let key = SigningKey::read(&read_text(file)?).map_err(|finding| Failure::Content {
        path: file.to_owned(),
        expected: "a private key",
        source: Box::new(finding),
    })?;
    Ok(Some(key))
}

/// Reads a secret from a file, without trailing line breaks.
fn read_secret(file: &Path) -> Result<String, Failure> {
    let secret = read_text(file)?.trim_end_matches(['\r', '\n']).to_owned();
    if secret.is_empty() {
        return Err(Failure::usage(format!("{} is empty", file.display())));
    }
    Ok(secret)
}

/// Reads a small text file.
///
/// # Errors
/// The file cannot be read, is larger than 1 MiB, or is not UTF-8.
pub fn read_text(file: &Path) -> Result<String, Failure> {
    String::from_utf8(read_limited(file)?).map_err(|error| Failure::Content {
        path: file.to_owned(),
        expected: "a text file (UTF-8)",
        source: Box::new(error),
    })
}

fn read_limited(path: &Path) -> Result<Vec<u8>, Failure> {
    let mut content = Vec::new();
    let failed = |source| Failure::File { path: path.to_owned(), source };
    let file = File::open(path).map_err(failed)?;
    let length = file.take(MAX_FILE_BYTES + 1).read_to_end(&mut content);
    if length.map_err(failed)? as u64 > MAX_FILE_BYTES {
        let what = format!("{} is larger than {MAX_FILE_BYTES} bytes", path.display());
        return Err(Failure::usage(what));
    }
    Ok(content)
}
