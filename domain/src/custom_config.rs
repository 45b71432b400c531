//! Cloud-init configuration for the first boot.

use crate::Time;
use crate::id::CustomConfigId;
use crate::invalid::Invalid;
use crate::text;

/// Cloud-init configuration for the first boot. Immutable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CustomConfig {
    pub id: CustomConfigId,
    pub spec: CustomConfigSpec,
    pub created_at: Time,
    pub updated_at: Time,
}

/// Content of a cloud-init configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CustomConfigSpec {
    /// Unique in its project.
    pub name: String,
    /// For users; may be empty.
    pub description: String,
    /// The cloud-init document.
    pub config: String,
}

impl CustomConfigSpec {
    /// Maximum length of the description, in bytes.
    pub const MAX_DESCRIPTION_BYTES: usize = 256;
    /// Maximum length of the configuration, in characters.
    pub const MAX_CONFIG_CHARS: usize = 16_384;

    /// Parses a configuration.
    ///
    /// # Errors
    /// The name is invalid, the configuration is empty, or a text is too long or has characters that are not allowed.
    pub fn parse(name: &str, description: &str, config: &str) -> Result<Self, Invalid> {
        const ALLOWED_PUNCTUATION: &str = text::TEXT_PUNCTUATION_AND_QUOTE;
        text::check_identifier("name", name)?;
        text::check("description", description, Self::MAX_DESCRIPTION_BYTES, ALLOWED_PUNCTUATION)?;
        if config.is_empty() {
            return Err(Invalid::new("config", "must not be empty"));
        }
        text::check_printable("config", config, Self::MAX_CONFIG_CHARS, "\t\n\r")?;
        Ok(Self {
            name: name.to_owned(),
            description: description.to_owned(),
            config: config.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_has_a_name_and_a_text() {
        let text = "#cloud-config\nntp:\n\tenabled: true # für alle\r\n";
        let read = CustomConfigSpec::parse("ntp-1", "", text).expect("a configuration");
        assert_eq!((read.name.as_str(), read.config.as_str()), ("ntp-1", text));
        let longest = "ä".repeat(CustomConfigSpec::MAX_CONFIG_CHARS);
        assert!(CustomConfigSpec::parse("n", "of \"all\" nodes", &longest).is_ok());
    }

    #[test]
    fn an_invalid_configuration_names_its_field() {
        let (long, longer) = ("a".repeat(257), "a".repeat(16_385));
        for (name, description, config, field) in [
            ("", "", "x", "name"),
            ("NTP", "", "x", "name"),
            ("1st", "", "x", "name"),
            ("ntp", long.as_str(), "x", "description"),
            ("ntp", "a\nb", "x", "description"),
            ("ntp", "", "", "config"),
            ("ntp", "", longer.as_str(), "config"),
            ("ntp", "", "a\0b", "config"),
        ] {
            let read = CustomConfigSpec::parse(name, description, config);
            assert_eq!(read.expect_err(field).field, field);
        }
    }
}
