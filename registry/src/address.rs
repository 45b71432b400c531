//! Where a registry is and how it is entered.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use secrecy::SecretString;
use url::Url;

use crate::error::{Got, RegistryError, malformed};
use crate::layout::Layout;
use crate::limits::Limits;
use crate::oci::OciRegistry;
use crate::source::Registry;

/// Where a registry is. It is written `https://host`, `http://host` or `oci:/folder`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// In the network.
    Http(Url),
    /// A folder in OCI image layout.
    Layout(PathBuf),
}

impl FromStr for Address {
    type Err = RegistryError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.strip_prefix("oci:") {
            Some("") => Err(malformed("address", "it names no folder")),
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

/// Whether an address can be the base of others.
pub(crate) fn check_base(url: &Url) -> Got<()> {
    let why = if !matches!(url.scheme(), "https" | "http") {
        "it must begin with https://, http:// or oci:"
    } else if url.host_str().is_none_or(str::is_empty) {
        "it names no host"
    } else if !url.username().is_empty() || url.password().is_some() {
        "it must not name a user or a password; they have their own settings"
    } else if url.query().is_some() || url.fragment().is_some() {
        "it must have neither `?` nor `#`"
    } else {
        return Ok(());
    };
    Err(malformed("address", why))
}

/// As whom a registry is asked.
#[derive(Clone, Debug, Default)]
pub enum Credentials {
    /// As nobody.
    #[default]
    None,
    /// As a user with a password, whether the registry takes them itself or gives a token for them.
    Basic {
        /// The user.
        username: String,
        /// The password.
        password: SecretString,
    },
    /// With a token that was given beforehand.
    Token(SecretString),
}

impl Credentials {
    /// As a user with a password.
    pub fn basic(username: impl Into<String>, password: impl Into<String>) -> Self {
        Self::Basic {
            username: username.into(),
            password: SecretString::from(password.into()),
        }
    }

    /// With a token that was given beforehand.
    pub fn token(token: impl Into<String>) -> Self {
        Self::Token(SecretString::from(token.into()))
    }
}

/// Through what the network is reached. This machine itself is always reached directly.
#[derive(Clone, Default, PartialEq, Eq)]
pub enum Proxy {
    /// As `HTTP_PROXY`, `HTTPS_PROXY` and `NO_PROXY` say.
    #[default]
    Environment,
    /// Directly.
    None,
    /// Through this one.
    Through(Url),
}

/// The address of a proxy may have a password in it, which is not shown.
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

    /// Reads `none` or the address of a proxy.
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

/// All that is needed to enter a registry.
#[derive(Clone, Debug)]
pub struct Access {
    /// Where it is.
    pub address: Address,
    /// Whether it may be asked without TLS.
    pub plain_http: bool,
    /// As whom.
    pub credentials: Credentials,
    /// The only authorities that may vouch for it, as PEM; without, those of the system.
    pub ca_pem: Option<Vec<u8>>,
    /// Through what it is reached.
    pub proxy: Proxy,
    /// How much is taken from it.
    pub limits: Limits,
}

impl Access {
    /// The usual way into what is at an address: as nobody, with TLS.
    pub fn to(address: Address) -> Self {
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

/// Opens a registry. Nothing is asked yet.
pub fn open(access: &Access) -> Got<Arc<dyn Registry>> {
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
    fn an_address_names_no_secrets_and_nothing_else_than_a_place() {
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
        let shown = format!("{:?}", Credentials::basic("somebody", "open sesame"));
        assert!(!shown.contains("sesame"), "{shown}");
        let shown = format!("{:?}", Credentials::token("open sesame"));
        assert!(!shown.contains("sesame"), "{shown}");
        let proxy = "http://somebody:sesame@proxy.example:3128".parse::<Proxy>();
        let shown = format!("{:?}", proxy.unwrap());
        assert_eq!(shown, "Through(http://proxy.example:3128)");
    }

    #[test]
    fn a_proxy_is_an_address_or_none() {
        assert_eq!("none".parse::<Proxy>().unwrap(), Proxy::None);
        assert!(matches!(
            "http://proxy.example:3128".parse(),
            Ok(Proxy::Through(_))
        ));
        assert!("socks5://proxy.example".parse::<Proxy>().is_err());
        assert!("".parse::<Proxy>().is_err());
    }
}
