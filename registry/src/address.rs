//! Address of a registry and the credentials, proxy and limits to use with it.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use secrecy::SecretString;
use url::Url;

use crate::error::{RegistryError, RegistryResult, malformed};
use crate::layout::Layout;
use crate::limits::Limits;
use crate::oci::OciRegistry;
use crate::source::Registry;

/// Address of a registry, written as `https://host`, `http://host` or `oci:/folder`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// Base URL of a registry that speaks the OCI distribution protocol.
    Http(Url),
    /// A folder in OCI image layout.
    Layout(PathBuf),
}

impl FromStr for Address {
    type Err = RegistryError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.strip_prefix("oci:") {
            Some("") => Err(malformed("address", "it does not name a folder")),
            Some(folder) => Ok(Self::Layout(PathBuf::from(folder))),
            None => {
                let url =
                    Url::parse(text).map_err(|error| malformed("address", error.to_string()))?;
                check_base(&url)?;
                Ok(Self::Http(url))
            }
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Http(url) => write!(f, "{url}"),
            Self::Layout(folder) => write!(f, "oci:{}", folder.display()),
        }
    }
}

/// Checks that a URL can be the base of other addresses.
pub(crate) fn check_base(url: &Url) -> RegistryResult<()> {
    let why = if !matches!(url.scheme(), "https" | "http") {
        "it must begin with https://, http:// or oci:"
    } else if url.host_str().is_none_or(str::is_empty) {
        "it does not name a host"
    } else if !url.username().is_empty() || url.password().is_some() {
        "it must not name a user or a password; they have their own settings"
    } else if url.query().is_some() || url.fragment().is_some() {
        "it must have neither `?` nor `#`"
    } else {
        return Ok(());
    };
    Err(malformed("address", why))
}

/// Credentials for a registry.
#[derive(Clone, Debug, Default)]
pub enum Credentials {
    /// Anonymous access.
    #[default]
    None,
    /// User and password. They are sent to the registry itself or to its token server, whichever
    /// the registry asks for.
    Basic {
        /// Name of the user.
        username: String,
        /// Password of the user.
        password: SecretString,
    },
    /// A bearer token that was obtained beforehand.
    Token(SecretString),
}

impl Credentials {
    /// Credentials of a user with a password.
    pub fn basic(username: impl Into<String>, password: impl Into<String>) -> Self {
        Self::Basic { username: username.into(), password: SecretString::from(password.into()) }
    }

    /// Credentials that consist of a bearer token.
    pub fn token(token: impl Into<String>) -> Self {
        Self::Token(SecretString::from(token.into()))
    }
}

/// Proxy for connections to other machines. Loopback addresses are always reached directly.
#[derive(Clone, Default, PartialEq, Eq)]
pub enum Proxy {
    /// Use `HTTP_PROXY`, `HTTPS_PROXY` and `NO_PROXY`.
    #[default]
    Environment,
    /// Connect directly.
    None,
    /// Use the proxy at this URL.
    Through(Url),
}

/// Prints only the origin of the proxy: its URL may contain a password.
impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Environment => f.write_str("Environment"),
            Self::None => f.write_str("None"),
            Self::Through(url) => write!(f, "Through({})", url.origin().ascii_serialization()),
        }
    }
}

impl FromStr for Proxy {
    type Err = RegistryError;

    /// Reads `none` or the URL of a proxy.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "none" {
            return Ok(Self::None);
        }
        let url = Url::parse(text).map_err(|error| malformed("proxy", error.to_string()))?;
        if matches!(url.scheme(), "http" | "https") && url.has_host() {
            Ok(Self::Through(url))
        } else {
            Err(malformed("proxy", "it must begin with http:// or https://"))
        }
    }
}

/// Everything that is needed to connect to a registry.
#[derive(Clone, Debug)]
pub struct Access {
    /// Address of the registry.
    pub address: Address,
    /// Whether connections without TLS are allowed.
    pub plain_http: bool,
    /// Credentials to use.
    pub credentials: Credentials,
    /// CA certificates (PEM) that replace the system roots, if set.
    pub ca_pem: Option<Vec<u8>>,
    /// Proxy to use.
    pub proxy: Proxy,
    /// Limits on sizes, times and retries.
    pub limits: Limits,
}

impl Access {
    /// Anonymous access to an address, with TLS and the default limits.
    pub fn new(address: Address) -> Self {
        Self {
            address,
            plain_http: false,
            credentials: Credentials::None,
            ca_pem: None,
            proxy: Proxy::Environment,
            limits: Limits::default(),
        }
    }
}

/// Opens a registry. This sends no request yet.
pub fn open(access: &Access) -> RegistryResult<Arc<dyn Registry>> {
    match &access.address {
        Address::Http(_) => Ok(Arc::new(OciRegistry::new(access)?)),
        Address::Layout(folder) => Ok(Arc::new(Layout::open(folder, &access.limits)?)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_read_as_it_is_written() {
        for text in [
            "https://registry.example/",
            "http://127.0.0.1:5000/",
            "https://registry.example/under/",
            "oci:/srv/catalogue",
            "oci:catalogue",
        ] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn an_address_holds_no_secrets_and_nothing_but_a_location() {
        for text in [
            "",
            "oci:",
            "registry.example",
            "ftp://registry.example",
            "https://",
            "https://user:word@registry.example",
            "https://user@registry.example",
            "https://registry.example/?a=b",
            "https://registry.example/#a",
            "file:///etc/passwd",
        ] {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_password_is_not_shown() {
        let text = format!("{:?}", Credentials::basic("somebody", "open sesame"));
        assert!(!text.contains("sesame"), "{text}");
        let text = format!("{:?}", Credentials::token("open sesame"));
        assert!(!text.contains("sesame"), "{text}");
        let proxy = "http://somebody:sesame@proxy.example:3128".parse::<Proxy>();
        let text = format!("{:?}", proxy.unwrap());
        assert_eq!(text, "Through(http://proxy.example:3128)");
    }

    #[test]
    fn a_proxy_is_an_address_or_none() {
        assert_eq!("none".parse::<Proxy>().unwrap(), Proxy::None);
        assert!(matches!("http://proxy.example:3128".parse(), Ok(Proxy::Through(_))));
        assert!("socks5://proxy.example".parse::<Proxy>().is_err());
        assert!("".parse::<Proxy>().is_err());
    }
}
