//! The configured registries by name, opened and ready for requests.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use evenkeel_domain::os::catalogue::CatalogSelection;
use evenkeel_registry::{
    Access, Address, Credentials, Digest, Hasher, KeySet, Proxy, Registry, Repository,
    SignaturePolicy, WebClient, open,
};
use secrecy::SecretString;
use serde_json::Value;
use url::Url;

use crate::settings::{InvalidSettings, RegistrySettings};

/// An open registry.
pub struct Source {
    /// Name by which projects select it.
    pub name: String,
    /// Prefix of a profile name that makes its repository name.
    pub prefix: String,
    /// Client of the registry.
    pub registry: Arc<dyn Registry>,
    /// Client for files outside the registry.
    pub web: Arc<WebClient>,
    /// Base URL of files that a profile names without a host.
    pub files_url: Option<Url>,
    /// What to do with profiles without a valid signature.
    pub trust: SignaturePolicy,
    /// The trusted keys.
    pub keys: KeySet,
    /// Ids of these keys, as signatures have them.
    key_names: Vec<String>,
}

impl Source {
    /// Whether a verified signature was made with a key that is still trusted.
    pub(crate) fn has_key(&self, signature: &Value) -> bool {
        let name = signature.get("key").and_then(Value::as_str);
        name.is_some_and(|name| self.key_names.iter().any(|key| key == name))
    }
}

/// Credentials are not printed.
impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Source")
            .field("name", &self.name)
            .field("prefix", &self.prefix)
            .field("trust", &self.trust)
            .finish_non_exhaustive()
    }
}

/// All configured registries.
#[derive(Debug)]
pub struct Sources {
    entries: BTreeMap<String, RegistryEntry>,
}

struct RegistryEntry {
    settings: RegistrySettings,
    /// The registry, or why it is disabled.
    current: Mutex<Result<CurrentSource, InvalidSettings>>,
}

struct CurrentSource {
    /// Digest of all files that it was opened with.
    files_digest: Digest,
    source: Arc<Source>,
}

impl fmt::Debug for RegistryEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.lock() {
            Ok(current) => current.source.fmt(f),
            Err(problem) => problem.fmt(f),
        }
    }
}

impl RegistryEntry {
    fn lock(&self) -> MutexGuard<'_, Result<CurrentSource, InvalidSettings>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sources {
    /// Opens all registries. It contacts none of them. A registry with an invalid setting, or with a file that cannot be
    /// read, is disabled until its files are usable (see [`Self::problems`]).
    #[must_use]
    pub fn open(registries: &BTreeMap<String, RegistrySettings>) -> Self {
        let entry = |(name, settings): (&String, &RegistrySettings)| {
            let settings = settings.clone();
            let current = Mutex::new(CurrentSource::open(name, &settings));
            (name.clone(), RegistryEntry { settings, current })
        };
        Self { entries: registries.iter().map(entry).collect() }
    }

    /// Why registries are disabled.
    #[must_use]
    pub fn problems(&self) -> Vec<InvalidSettings> {
        self.entries.values().filter_map(|entry| entry.lock().as_ref().err().cloned()).collect()
    }

    /// Why a registry is disabled; `None` if it is not.
    #[must_use]
    pub fn problem(&self, name: &str) -> Option<InvalidSettings> {
        self.entries.get(name)?.lock().as_ref().err().cloned()
    }

    /// An open registry; `None` if it is not configured or disabled.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<Arc<Source>> {
        let entry = self.entries.get(name)?;
        let current = entry.lock();
        Some(Arc::clone(&current.as_ref().ok()?.source))
    }

    /// Reads the secrets, keys and CA certificates of a registry again, and returns it. If a file cannot be read or used,
    /// the registry stays as it is, and the error is logged. If nothing changed, it is the same object as before.
    #[must_use]
    pub fn refresh(&self, name: &str) -> Option<Arc<Source>> {
        let entry = self.entries.get(name)?;
        match entry.reload_if_changed(name) {
            Ok(Some(current)) => *entry.lock() = Ok(current),
            Ok(None) => {}
            Err(error) => {
                let mut current = entry.lock();
                if current.is_ok() {
                    tracing::warn!(registry = name, %error, "cannot reload the secrets of a registry; it keeps the old ones");
                } else {
                    tracing::warn!(registry = name, %error, "the registry is still disabled");
                    *current = Err(error);
                }
            }
        }
        self.find(name)
    }

    /// The names of all registries.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }
}

impl RegistryEntry {
    /// The reopened registry, if its files changed.
    fn reload_if_changed(&self, name: &str) -> Result<Option<CurrentSource>, InvalidSettings> {
        let files = LoadedFiles::load(name, &self.settings)?;
        let is_same = |current: &CurrentSource| current.files_digest == files.digest();
        if self.lock().as_ref().is_ok_and(is_same) {
            return Ok(None);
        }
        CurrentSource::build(name, &self.settings, &files).map(Some)
    }
}

impl CurrentSource {
    fn open(name: &str, settings: &RegistrySettings) -> Result<Self, InvalidSettings> {
        let registry = Some(name.to_owned());
        let selection = CatalogSelection { registry, ..CatalogSelection::default() };
        selection
            .validated()
            .map_err(|invalid| InvalidSettings::new(format!("registries.{name:?}"), invalid.why))?;
        Self::build(name, settings, &LoadedFiles::load(name, settings)?)
    }

    fn build(
        name: &str,
        settings: &RegistrySettings,
        files: &LoadedFiles,
    ) -> Result<Self, InvalidSettings> {
        let source = Arc::new(build_source(name, settings, files)?);
        Ok(Self { files_digest: files.digest(), source })
    }
}

/// Contents of the files that the settings of a registry name.
#[derive(Default)]
struct LoadedFiles {
    password: Option<SecretText>,
    token: Option<SecretText>,
    ca: Option<Vec<u8>>,
    keys: Vec<String>,
}

/// A secret, and its digest for detecting changes.
struct SecretText {
    text: SecretString,
    digest: Digest,
}

impl LoadedFiles {
    fn load(name: &str, settings: &RegistrySettings) -> Result<Self, InvalidSettings> {
        let bad = |key: &str, why: String| Err(InvalidSettings::new(setting_key(name, key), why));
        match (&settings.username, &settings.password_file) {
            (Some(_), Some(_)) if settings.token_file.is_some() => {
                return bad("token_file", "password_file is set as well; set only one".to_owned());
            }
            (Some(_), None) => {
                return bad("password_file", "username is set without it".to_owned());
            }
            (None, Some(_)) => {
                return bad("username", "password_file is set without it".to_owned());
            }
            _ => {}
        }
        let text = |key: &str, file: &Path| -> Result<String, InvalidSettings> {
            std::fs::read_to_string(file).map_err(|error| {
                let why = format!("cannot read {}: {error}", file.display());
                InvalidSettings::new(setting_key(name, key), why)
            })
        };
        let secret = |key: &str, file: &Path| -> Result<SecretText, InvalidSettings> {
            let text = text(key, file)?;
            let secret = text.trim_end_matches(['\r', '\n']);
            let digest = Digest::compute(secret.as_bytes());
            let text = SecretString::from(secret.to_owned());
            Ok(SecretText { text, digest })
        };
        let (password, token) = (&settings.password_file, &settings.token_file);
        let password = password.as_deref().map(|file| secret("password_file", file));
        let token = token.as_deref().map(|file| secret("token_file", file));
        let ca = settings.ca.as_deref().map(|file| text("ca", file));
        let keys = settings.keys.iter().map(|file| text("keys", file));
        Ok(Self {
            password: password.transpose()?,
            token: token.transpose()?,
            ca: ca.transpose()?.map(String::into_bytes),
            keys: keys.collect::<Result<_, _>>()?,
        })
    }

    /// Digest of all contents.
    fn digest(&self) -> Digest {
        let secrets = [&self.password, &self.token].map(|secret| {
            let none = Digest::from([0; 32]);
            secret.as_ref().map_or(none, |secret| secret.digest)
        });
        let ca = Digest::compute(self.ca.as_deref().unwrap_or_default());
        let keys = self.keys.iter().map(|key| Digest::compute(key.as_bytes()));
        let mut hasher = Hasher::default();
        for digest in secrets.into_iter().chain([ca]).chain(keys) {
            hasher.update(digest.bytes());
        }
        hasher.finish()
    }
}

fn build_source(
    name: &str,
    settings: &RegistrySettings,
    files: &LoadedFiles,
) -> Result<Source, InvalidSettings> {
    let bad =
        |key: &'static str| move |why: String| InvalidSettings::new(setting_key(name, key), why);
    let access = build_access(name, settings, files)?;
    let files_url = match &settings.files_url {
        Some(text) => Some(parse_files_url(text, settings.plain_http).map_err(bad("files_url"))?),
        None => None,
    };
    let mut allow = settings.allow_hosts.clone();
    allow.extend(files_url.as_ref().and_then(host_and_port));
    let keys = KeySet::read(&files.keys).map_err(|finding| bad("keys")(finding.to_string()))?;
    if settings.trust == SignaturePolicy::Require && keys.is_empty() {
        let why = "only signed profiles are to be taken, but keys is empty";
        return Err(bad("trust")(why.to_owned()));
    }
    if let Err(error) = format!("{}a", settings.prefix).parse::<Repository>() {
        return Err(bad("prefix")(error.to_string()));
    }
    let usable = |error: evenkeel_registry::RegistryError| bad("address")(error.to_string());
    Ok(Source {
        name: name.to_owned(),
        prefix: settings.prefix.clone(),
        registry: open(&access).map_err(usable)?,
        web: Arc::new(WebClient::new(&access, &allow).map_err(usable)?),
        files_url,
        trust: settings.trust,
        keys,
        key_names: files.keys.iter().filter_map(|pem| key_name(pem)).collect(),
    })
}

/// The id of a PEM key in signatures: the SHA-256 of its DER content.
fn key_name(pem: &str) -> Option<String> {
    let inside = pem.lines().map(str::trim).filter(|line| !line.starts_with("-----"));
    let der = STANDARD.decode(inside.collect::<String>()).ok()?;
    Some(Digest::compute(&der).hex())
}

fn build_access(
    name: &str,
    settings: &RegistrySettings,
    files: &LoadedFiles,
) -> Result<Access, InvalidSettings> {
    let bad = |key: &str, why: String| InvalidSettings::new(setting_key(name, key), why);
    let address: Address = settings
        .address
        .parse()
        .map_err(|error: evenkeel_registry::RegistryError| bad("address", error.to_string()))?;
    if let Address::Http(url) = &address
        && url.scheme() == "http"
        && !settings.plain_http
    {
        let why = "access without TLS is allowed only if plain_http is true";
        return Err(bad("address", why.to_owned()));
    }
    let proxy = match &settings.proxy {
        None => Proxy::Environment,
        Some(proxy) => {
            let read = proxy.reveal().parse::<Proxy>();
            read.map_err(|error| bad("proxy", error.to_string()))?
        }
    };
    let credentials = match (&settings.username, &files.password, &files.token) {
        (Some(username), Some(password), _) => {
            Credentials::Basic { username: username.clone(), password: password.text.clone() }
        }
        (_, _, Some(token)) => Credentials::Token(token.text.clone()),
        _ => Credentials::None,
    };
    Ok(Access {
        address,
        plain_http: settings.plain_http,
        credentials,
        ca_pem: files.ca.clone(),
        proxy,
        limits: settings.limits.clone(),
    })
}

/// Parses the base URL of files.
fn parse_files_url(text: &str, plain_http: bool) -> Result<Url, String> {
    let url = Url::parse(text).map_err(|error| error.to_string())?;
    let why = match url.scheme() {
        "https" => None,
        "http" if plain_http => None,
        "http" => Some("access without TLS is allowed only if plain_http is true"),
        _ => Some("it must begin with https:// or http://"),
    };
    let has_more = url.query().is_some() || url.fragment().is_some();
    let why = why.or(match &url {
        url if !url.username().is_empty() || url.password().is_some() => {
            Some("it must not name a user or a password")
        }
        _ if has_more => Some("it must have neither `?` nor `#`"),
        _ => None,
    });
    why.map_or(Ok(url), |why| Err(why.to_owned()))
}

/// `host:port`, the form of allowed hosts.
fn host_and_port(url: &Url) -> Option<String> {
    let host = url.host_str()?;
    let port = url.port_or_known_default()?;
    Some(format!("{host}:{port}"))
}

fn setting_key(name: &str, key: &str) -> String {
    format!("registries.{name}.{key}")
}

/// Where to fetch a file. The catalogue stores it as `blob:<repository>@sha256:<hex>` or `web:<url>`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum FileLocation {
    /// A blob of the registry.
    Blob(Repository, Digest),
    /// A file on a web server.
    Web(Url),
}

impl FileLocation {
    /// Parses the stored form; `None` if it is malformed.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        if let Some(url) = text.strip_prefix("web:") {
            return Url::parse(url).ok().map(Self::Web);
        }
        let (repository, digest) = text.strip_prefix("blob:")?.split_once('@')?;
        Some(Self::Blob(repository.parse().ok()?, digest.parse().ok()?))
    }
}

impl fmt::Display for FileLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Blob(repository, digest) => write!(f, "blob:{repository}@{digest}"),
            Self::Web(url) => write!(f, "web:{url}"),
        }
    }
}

#[cfg(test)]
mod tests;
