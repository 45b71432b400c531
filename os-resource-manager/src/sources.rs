//! The registries by the names that projects know them by, ready to be asked.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use evenkeel_domain::os::catalogue::Wish;
use evenkeel_registry::{
    Access, Address, Credentials, Digest, Hasher, KeySet, Proxy, Registry, Repository, Trust, Web,
    open,
};
use secrecy::SecretString;
use serde_json::Value;
use url::Url;

use crate::settings::{BadSettings, RegistrySettings};

/// A registry that is ready to be asked.
pub struct Source {
    /// The name that projects know it by.
    pub name: String,
    /// What stands before the name of a profile to make its repository.
    pub prefix: String,
    /// The registry itself.
    pub registry: Arc<dyn Registry>,
    /// For files that lie beside it.
    pub web: Arc<Web>,
    /// Where files lie that a profile names without a host.
    pub files_url: Option<Url>,
    /// What is done with profiles that have no good signature.
    pub trust: Trust,
    /// The keys whose signatures count.
    pub keys: KeySet,
    /// How signatures name these keys.
    key_names: Vec<String>,
}

impl Source {
    /// Whether a signature that was good once was made by a key that still counts.
    pub(crate) fn has_key(&self, signature: &Value) -> bool {
        let name = signature.get("key").and_then(Value::as_str);
        name.is_some_and(|name| self.key_names.iter().any(|key| key == name))
    }
}

/// Who enters it and how is not shown.
impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Source")
            .field("name", &self.name)
            .field("prefix", &self.prefix)
            .field("trust", &self.trust)
            .finish_non_exhaustive()
    }
}

/// All registries.
#[derive(Debug)]
pub struct Sources {
    known: BTreeMap<String, Known>,
}

struct Known {
    settings: RegistrySettings,
    current: Mutex<Current>,
}

struct Current {
    /// Of all files that it was opened with.
    read: Digest,
    source: Arc<Source>,
}

impl fmt::Debug for Known {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lock().source.fmt(f)
    }
}

impl Known {
    fn lock(&self) -> MutexGuard<'_, Current> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sources {
    /// Makes all registries ready. None of them is asked yet.
    ///
    /// # Errors
    /// Names the first setting that cannot be kept: an address, a file that cannot be read, a registry that is to
    /// take only what is signed and has no keys.
    pub fn open(registries: &BTreeMap<String, RegistrySettings>) -> Result<Self, BadSettings> {
        let mut known = BTreeMap::new();
        for (name, settings) in registries {
            let registry = Some(name.clone());
            let wish = Wish {
                registry,
                ..Wish::default()
            };
            wish.checked()
                .map_err(|invalid| BadSettings::new(format!("registries.{name:?}"), invalid.why))?;
            let files = OnDisk::read(name, settings)?;
            let current = Mutex::new(Current {
                read: files.digest(),
                source: Arc::new(ready(name, settings, &files)?),
            });
            let settings = settings.clone();
            known.insert(name.clone(), Known { settings, current });
        }
        Ok(Self { known })
    }

    /// A registry as it is known; none if nobody named it in the settings.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<Arc<Source>> {
        let known = self.known.get(name)?;
        Some(Arc::clone(&known.lock().source))
    }

    /// A registry with its secrets, keys and authorities read anew. If one cannot be read or used, it stays as it
    /// was, and that is logged. What did not change stays the very same.
    #[must_use]
    pub fn refresh(&self, name: &str) -> Option<Arc<Source>> {
        let known = self.known.get(name)?;
        match known.newer(name) {
            Ok(Some(current)) => *known.lock() = current,
            Ok(None) => {}
            Err(error) => {
                tracing::warn!(registry = name, %error, "a registry is asked with the secrets that were read before");
            }
        }
        self.find(name)
    }

    /// The names of all registries.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.known.keys().map(String::as_str)
    }
}

impl Known {
    /// How it is if its files changed.
    fn newer(&self, name: &str) -> Result<Option<Current>, BadSettings> {
        let files = OnDisk::read(name, &self.settings)?;
        let read = files.digest();
        if read == self.lock().read {
            return Ok(None);
        }
        let source = Arc::new(ready(name, &self.settings, &files)?);
        Ok(Some(Current { read, source }))
    }
}

/// What the files say that the settings of a registry name.
#[derive(Default)]
struct OnDisk {
    password: Option<SecretText>,
    token: Option<SecretText>,
    ca: Option<Vec<u8>>,
    keys: Vec<String>,
}

/// A secret and the digest by which it is seen that it changed.
struct SecretText {
    text: SecretString,
    digest: Digest,
}

impl OnDisk {
    fn read(name: &str, settings: &RegistrySettings) -> Result<Self, BadSettings> {
        let bad = |key: &str, why: String| Err(BadSettings::new(key_of(name, key), why));
        match (&settings.username, &settings.password_file) {
            (Some(_), Some(_)) if settings.token_file.is_some() => {
                return bad("token_file", "there is a password as well".to_owned());
            }
            (Some(_), None) => return bad("password_file", "there is a name without".to_owned()),
            (None, Some(_)) => return bad("username", "there is a password without".to_owned()),
            _ => {}
        }
        let text = |key: &str, file: &Path| -> Result<String, BadSettings> {
            std::fs::read_to_string(file).map_err(|error| {
                let why = format!("cannot read {}: {error}", file.display());
                BadSettings::new(key_of(name, key), why)
            })
        };
        let secret = |key: &str, file: &Path| -> Result<SecretText, BadSettings> {
            let text = text(key, file)?;
            let secret = text.trim_end_matches(['\r', '\n']);
            let digest = Digest::of(secret.as_bytes());
            let text = SecretString::from(secret.to_owned());
            Ok(SecretText { text, digest })
        };
        let (password, token) = (&settings.password_file, &settings.token_file);
        let password = password
            .as_deref()
            .map(|file| secret("password_file", file));
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

    /// Of all of it.
    fn digest(&self) -> Digest {
        let secrets = [&self.password, &self.token].map(|secret| {
            let none = Digest::from([0; 32]);
            secret.as_ref().map_or(none, |secret| secret.digest)
        });
        let ca = Digest::of(self.ca.as_deref().unwrap_or_default());
        let keys = self.keys.iter().map(|key| Digest::of(key.as_bytes()));
        let mut hasher = Hasher::default();
        for digest in secrets.into_iter().chain([ca]).chain(keys) {
            hasher.update(digest.bytes());
        }
        hasher.finish()
    }
}

fn ready(name: &str, settings: &RegistrySettings, files: &OnDisk) -> Result<Source, BadSettings> {
    let bad = |key: &'static str| move |why: String| BadSettings::new(key_of(name, key), why);
    let access = access(name, settings, files)?;
    let files_url = match &settings.files_url {
        Some(text) => Some(files_url(text, settings.plain_http).map_err(bad("files_url"))?),
        None => None,
    };
    let mut allow = settings.allow_hosts.clone();
    allow.extend(files_url.as_ref().and_then(host_of));
    let keys = KeySet::read(&files.keys).map_err(|finding| bad("keys")(finding.to_string()))?;
    if settings.trust == Trust::Require && keys.is_empty() {
        let why = "only what is signed is to be taken, and there is no key in keys";
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
        web: Arc::new(Web::new(&access, &allow).map_err(usable)?),
        files_url,
        trust: settings.trust,
        keys,
        key_names: files.keys.iter().filter_map(|pem| key_name(pem)).collect(),
    })
}

/// How signatures name the key in a PEM: by the SHA-256 of what is in it.
fn key_name(pem: &str) -> Option<String> {
    let inside = pem
        .lines()
        .map(str::trim)
        .filter(|line| !line.starts_with("-----"));
    let der = STANDARD.decode(inside.collect::<String>()).ok()?;
    Some(Digest::of(&der).hex())
}

fn access(name: &str, settings: &RegistrySettings, files: &OnDisk) -> Result<Access, BadSettings> {
    let bad = |key: &str, why: String| BadSettings::new(key_of(name, key), why);
    let address: Address = settings
        .address
        .parse()
        .map_err(|error: evenkeel_registry::RegistryError| bad("address", error.to_string()))?;
    if let Address::Http(url) = &address
        && url.scheme() == "http"
        && !settings.plain_http
    {
        let why = "without TLS it is asked only if plain_http is true";
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
        (Some(username), Some(password), _) => Credentials::Basic {
            username: username.clone(),
            password: password.text.clone(),
        },
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

/// The base of the addresses of files.
fn files_url(text: &str, plain_http: bool) -> Result<Url, String> {
    let url = Url::parse(text).map_err(|error| error.to_string())?;
    let why = match url.scheme() {
        "https" => None,
        "http" if plain_http => None,
        "http" => Some("without TLS it is asked only if plain_http is true"),
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

/// A host as those that may be asked are written.
fn host_of(url: &Url) -> Option<String> {
    let host = url.host_str()?;
    let port = url.port_or_known_default()?;
    Some(format!("{host}:{port}"))
}

fn key_of(name: &str, key: &str) -> String {
    format!("registries.{name}.{key}")
}

/// Where a file is fetched from, as it is written in the catalogue: `blob:<repository>@sha256:<hex>` or `web:<url>`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Place {
    /// A content of the registry.
    Blob(Repository, Digest),
    /// A file beside it, or anywhere else.
    Web(Url),
}

impl Place {
    /// Reads what [`Place`] writes; none if it is something else.
    pub(crate) fn read(text: &str) -> Option<Self> {
        if let Some(url) = text.strip_prefix("web:") {
            return Url::parse(url).ok().map(Self::Web);
        }
        let (repository, digest) = text.strip_prefix("blob:")?.split_once('@')?;
        Some(Self::Blob(repository.parse().ok()?, digest.parse().ok()?))
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Blob(repository, digest) => write!(f, "blob:{repository}@{digest}"),
            Self::Web(url) => write!(f, "web:{url}"),
        }
    }
}

#[cfg(test)]
mod tests;
