//! How registries are entered, and what of them is meant.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use evenkeel_registry::layout::Layout;
use evenkeel_registry::{
    Access, Address, Credentials, Limits, Proxy, Registry, RegistryError, SigningKey, Upstream,
    Wanted, Web, open,
};
use reqwest::Url;

use crate::Failure;

/// The largest file with a password, a token, a key or certificates, in bytes.
const LARGEST: u64 = 1024 * 1024;

/// How a registry is entered.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Registry options")]
pub struct Entry {
    /// As which user to enter the registry.
    #[arg(long, value_name = "NAME", requires = "password_file")]
    username: Option<String>,
    /// A file that holds the user's password.
    #[arg(long, value_name = "FILE", requires = "username")]
    password_file: Option<PathBuf>,
    /// A file that holds a token for the registry.
    #[arg(long, value_name = "FILE", conflicts_with = "username")]
    token_file: Option<PathBuf>,
    /// The only authorities that may vouch for the registry, as a PEM file [default: the system's].
    #[arg(long, value_name = "FILE")]
    registry_ca: Option<PathBuf>,
    /// Ask a registry at `http://` without TLS.
    #[arg(long)]
    plain_http: bool,
    /// Through what to reach it [default: as the environment says].
    #[arg(long, value_name = "URL|none")]
    proxy: Option<Proxy>,
}

/// How the registry is entered that something is copied to.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Options of the registry that is copied to")]
#[expect(
    clippy::struct_field_names,
    reason = "they are called as the options are"
)]
pub struct TargetEntry {
    /// As which user to enter it.
    #[arg(long, value_name = "NAME", requires = "to_password_file")]
    to_username: Option<String>,
    /// A file that holds that user's password.
    #[arg(long, value_name = "FILE", requires = "to_username")]
    to_password_file: Option<PathBuf>,
    /// A file that holds a token for it.
    #[arg(long, value_name = "FILE", conflicts_with = "to_username")]
    to_token_file: Option<PathBuf>,
    /// The only authorities that may vouch for it, as a PEM file [default: the system's].
    #[arg(long, value_name = "FILE")]
    to_registry_ca: Option<PathBuf>,
    /// Ask it without TLS if it is at `http://`.
    #[arg(long)]
    to_plain_http: bool,
    /// Through what to reach it [default: as the environment says].
    #[arg(long, value_name = "URL|none")]
    to_proxy: Option<Proxy>,
}

impl From<TargetEntry> for Entry {
    fn from(target: TargetEntry) -> Self {
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

impl Entry {
    /// All that is needed to enter the registry at an address.
    ///
    /// # Errors
    /// A file that is named cannot be read.
    pub fn access(&self, address: &Address) -> Result<Access, Failure> {
        let credentials = match (&self.username, &self.password_file, &self.token_file) {
            (Some(username), Some(file), _) => Credentials::basic(username, secret(file)?),
            (_, _, Some(file)) => Credentials::token(secret(file)?),
            _ => Credentials::None,
        };
        let ca_pem = self.registry_ca.as_deref().map(read).transpose()?;
        Ok(Access {
            plain_http: self.plain_http,
            credentials,
            ca_pem,
            proxy: self.proxy.clone().unwrap_or_default(),
            ..Access::to(address.clone())
        })
    }

    /// Opens the registry at an address. Nothing is asked yet.
    ///
    /// # Errors
    /// A file that is named cannot be read, or the address cannot be used so.
    pub fn open(&self, address: &Address) -> Result<Arc<dyn Registry>, Failure> {
        open(&self.access(address)?).map_err(unusable(address))
    }
}

/// Where the profiles lie in a registry.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Registry options")]
pub struct Prefix {
    /// What stands before the name of a profile to make its repository, with the slash at its end, such as `os/`. It is the
    /// same as the server's setting of this name.
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "",
        hide_default_value = true
    )]
    pub prefix: String,
}

/// Which profiles are meant, and what lies beside them.
#[derive(Clone, Debug, Args)]
pub struct Choice {
    /// The name of a profile; may be given more than once [default: all that lie in a folder].
    #[arg(long = "profile", value_name = "NAME")]
    pub profiles: Vec<String>,
    /// Leave the images out: only profiles, lists of packages and documents about vulnerabilities.
    #[arg(long)]
    pub no_images: bool,
    #[command(flatten)]
    pub place: Prefix,
}

/// Where files lie that profiles name and no registry has.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Registry options")]
pub struct Beside {
    /// Where files lie that profiles name without a host.
    #[arg(long, value_name = "URL")]
    files_url: Option<Url>,
    /// Another host that files may be fetched from; may be given more than once.
    #[arg(long = "allow-host", value_name = "HOST")]
    allow_hosts: Vec<String>,
}

impl Beside {
    /// What fetches these files.
    ///
    /// # Errors
    /// The way to them cannot be set up.
    pub fn web(&self, access: &Access) -> Result<Web, Failure> {
        let mut hosts = self.allow_hosts.clone();
        hosts.extend(self.files_url.as_ref().and_then(host_of));
        Web::new(access, &hosts).map_err(unusable(&access.address))
    }

    /// What is copied from: a registry, and these files beside it.
    pub fn upstream<'a>(
        &'a self,
        registry: &'a dyn Registry,
        web: &'a Web,
        choice: &'a Choice,
    ) -> Upstream<'a> {
        Upstream {
            registry,
            web: Some(web),
            prefix: &choice.place.prefix,
            files_url: self.files_url.as_ref(),
        }
    }
}

fn host_of(url: &Url) -> Option<String> {
    let host = url.host_str()?;
    Some(
        url.port()
            .map_or_else(|| host.to_owned(), |port| format!("{host}:{port}")),
    )
}

/// The names of the profiles that are meant: those that were named, else all that lie in a folder.
///
/// # Errors
/// None was named and a registry in the network does not list them, or the folder has none.
pub async fn profiles(choice: &Choice, at: &Address) -> Result<Vec<String>, Failure> {
    if !choice.profiles.is_empty() {
        return Ok(choice.profiles.clone());
    }
    let Address::Layout(folder) = at else {
        return Err(Failure::usage_with(
            "a registry in the network does not tell which profiles it has",
            "name them: `--profile NAME`, as often as needed",
        ));
    };
    let layout = Layout::open(folder, &Limits::default()).map_err(unusable(at))?;
    let tags = layout.all_tags().await.map_err(unusable(at))?;
    let prefix = choice.place.prefix.as_str();
    let mut names: Vec<String> = tags
        .iter()
        .filter_map(|(repository, _)| repository.as_str().strip_prefix(prefix))
        .filter(|name| !name.is_empty() && !name.contains('/'))
        .map(str::to_owned)
        .collect();
    names.dedup();
    if names.is_empty() {
        return Err(Failure::usage_with(
            format!("there is no profile in {at} whose repository begins with `{prefix}`"),
            "look at --prefix; `evenkeel os publish` puts profiles in",
        ));
    }
    Ok(names)
}

/// Says that a registry cannot be used.
pub fn unusable(at: &Address) -> impl FnOnce(RegistryError) -> Failure {
    let address = at.to_string();
    move |source| Failure::Registry {
        address,
        source: Box::new(source),
    }
}

/// Reads which revisions are wanted.
pub fn wanted(text: &str) -> Result<Wanted, String> {
    Wanted::parse(text).map_err(|invalid| invalid.to_string())
}

/// Reads a key that signs, if one is named.
///
/// # Errors
/// The file cannot be read, or holds no such key.
pub fn signing_key(file: Option<&Path>) -> Result<Option<SigningKey>, Failure> {
    let Some(file) = file else { return Ok(None) };
    let key = SigningKey::read(&text(file)?).map_err(|finding| Failure::Content {
        path: file.to_owned(),
        expected: "a key that signs",
        source: Box::new(finding),
    })?;
    Ok(Some(key))
}

/// A secret in a file: the text without what ends its line.
fn secret(file: &Path) -> Result<String, Failure> {
    let secret = text(file)?.trim_end_matches(['\r', '\n']).to_owned();
    if secret.is_empty() {
        return Err(Failure::usage(format!("{} is empty", file.display())));
    }
    Ok(secret)
}

/// A small file with text.
///
/// # Errors
/// It cannot be read, is larger than 1 MiB, or is no text.
pub fn text(file: &Path) -> Result<String, Failure> {
    String::from_utf8(read(file)?).map_err(|error| Failure::Content {
        path: file.to_owned(),
        expected: "a text",
        source: Box::new(error),
    })
}

fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    let mut content = Vec::new();
    let failed = |source| Failure::File {
        path: path.to_owned(),
        source,
    };
    let file = File::open(path).map_err(failed)?;
    let length = file.take(LARGEST + 1).read_to_end(&mut content);
    if length.map_err(failed)? as u64 > LARGEST {
        let what = format!("{} is larger than {LARGEST} bytes", path.display());
        return Err(Failure::usage(what));
    }
    Ok(content)
}
