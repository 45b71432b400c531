//! Providers of hosts.

use crate::Time;
use crate::id::ProviderId;
use crate::invalid::Invalid;
use crate::text::{self, Name};

named! {
    /// What a provider provides.
    ProviderKind {
        /// Not set.
        Unspecified = "unspecified",
        Baremetal = "baremetal",
    }
}

named! {
    /// Vendor of a provider's tools.
    ProviderVendor {
        /// No vendor in particular.
        Unspecified = "unspecified",
        /// Lenovo `XClarity` Administrator.
        LenovoLxca = "lenovo_lxca",
        /// Lenovo Open Cloud Automation.
        LenovoLoca = "lenovo_loca",
    }
}

/// A provider of hosts. Immutable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Provider {
    pub id: ProviderId,
    pub spec: ProviderSpec,
    pub created_at: Time,
    pub updated_at: Time,
}

/// Content of a provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProviderSpec {
    pub kind: ProviderKind,
    pub vendor: ProviderVendor,
    /// Unique in its project.
    pub name: Name,
    /// URL of its API.
    pub api_endpoint: String,
    pub api_credentials: Vec<String>,
    /// Configuration for its tools, usually JSON; may be empty.
    pub config: String,
}

impl ProviderSpec {
    /// Maximum length of the name, in bytes.
    pub const MAX_NAME_BYTES: usize = 40;
    /// Maximum number of credentials.
    pub const MAX_CREDENTIALS: usize = 100;
    /// Maximum length of the endpoint in bytes and of a credential in characters.
    pub const MAX_TEXT: usize = 500;
    /// Maximum length of the configuration, in characters.
    pub const MAX_CONFIG_CHARS: usize = 2_000;

    /// Parses a provider.
    ///
    /// # Errors
    /// The kind is not set, the name or the endpoint is empty or invalid, there are too many credentials, or a text is
    /// too long or has characters that are not allowed.
    pub fn parse(
        (kind, vendor): (ProviderKind, ProviderVendor),
        name: &str,
        api_endpoint: &str,
        api_credentials: Vec<String>,
        config: &str,
    ) -> Result<Self, Invalid> {
        if kind == ProviderKind::Unspecified {
            let why = "must be PROVIDER_KIND_BAREMETAL";
            return Err(Invalid::new("providerKind", why));
        }
        if name.is_empty() {
            return Err(Invalid::new("name", "must not be empty"));
        }
        let name = Name::parse_up_to("name", name, Self::MAX_NAME_BYTES)?;
        if api_endpoint.is_empty() {
            return Err(Invalid::new("apiEndpoint", "must not be empty"));
        }
        text::check("apiEndpoint", api_endpoint, Self::MAX_TEXT, text::TEXT_PUNCTUATION)?;
        if api_credentials.len() > Self::MAX_CREDENTIALS {
            return Err(Invalid::new("apiCredentials", "more than 100 credentials"));
        }
        for credential in &api_credentials {
            text::check_printable("apiCredentials", credential, Self::MAX_TEXT, "")?;
        }
        text::check_printable("config", config, Self::MAX_CONFIG_CHARS, "\t\n\r")?;
        Ok(Self {
            kind,
            vendor,
            name,
            api_endpoint: api_endpoint.to_owned(),
            api_credentials,
            config: config.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(
        name: &str,
        endpoint: &str,
        credentials: Vec<String>,
        config: &str,
    ) -> Result<ProviderSpec, Invalid> {
        let kind = (ProviderKind::Baremetal, ProviderVendor::LenovoLoca);
        ProviderSpec::parse(kind, name, endpoint, credentials, config)
    }

    #[test]
    fn a_provider_is_read_as_it_was_given() {
        let config = r#"{"defaultOs": "os-00000001", "autoProvision": true}"#;
        let credentials = vec!["user".to_owned(), "päss \\ word".to_owned()];
        let read = parse("LOCA 1", "https://loca:8080/api", credentials.clone(), config);
        let read = read.expect("a provider");
        assert_eq!(read.name.as_str(), "LOCA 1");
        assert_eq!(read.api_credentials, credentials);
        assert_eq!(read.config, config);
        assert!(parse("x", "y", Vec::new(), "").is_ok(), "only the required fields");
    }

    #[test]
    fn an_invalid_provider_names_its_field() {
        let long = "a".repeat(501);
        let many = vec![String::new(); 101];
        for (read, field) in [
            (parse("", "x", Vec::new(), ""), "name"),
            (parse(&"a".repeat(41), "x", Vec::new(), ""), "name"),
            (parse("a;b", "x", Vec::new(), ""), "name"),
            (parse("a", "", Vec::new(), ""), "apiEndpoint"),
            (parse("a", &long, Vec::new(), ""), "apiEndpoint"),
            (parse("a", "a\"b", Vec::new(), ""), "apiEndpoint"),
            (parse("a", "x", many, ""), "apiCredentials"),
            (parse("a", "x", vec![long.clone()], ""), "apiCredentials"),
            (parse("a", "x", vec!["\0".to_owned()], ""), "apiCredentials"),
            (parse("a", "x", Vec::new(), &"a".repeat(2_001)), "config"),
            (parse("a", "x", Vec::new(), "\u{1b}"), "config"),
        ] {
            assert_eq!(read.expect_err(field).field, field);
        }
        let kind = (ProviderKind::Unspecified, ProviderVendor::Unspecified);
        let unsaid = ProviderSpec::parse(kind, "a", "x", Vec::new(), "");
        assert_eq!(unsaid.expect_err("no kind").field, "providerKind");
    }

    #[test]
    fn every_name_is_read_back() {
        for kind in ProviderKind::ALL {
            assert_eq!(ProviderKind::from_name(kind.name()), Some(*kind));
        }
        for vendor in ProviderVendor::ALL {
            assert_eq!(ProviderVendor::from_name(vendor.name()), Some(*vendor));
        }
    }
}
