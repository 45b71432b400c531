//! Configuration of a first start, for cloud-init (northbound section 1.3).

use crate::Time;
use crate::id::CustomConfigId;
use crate::invalid::Invalid;
use crate::text;

/// Configuration of a first start. It is never changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CustomConfig {
    /// Its id.
    pub id: CustomConfigId,
    /// What it is.
    pub spec: CustomConfigSpec,
    /// When it was made.
    pub created_at: Time,
    /// When it was last changed.
    pub updated_at: Time,
}

/// What configuration of a first start is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CustomConfigSpec {
    /// Unique in its project.
    pub name: String,
    /// For people; may be empty.
    pub description: String,
    /// What cloud-init reads.
    pub config: String,
}

impl CustomConfigSpec {
    /// The longest description, in bytes.
    pub const MAX_DESCRIPTION: usize = 256;
    /// The longest configuration, in characters.
    pub const MAX_CONFIG: usize = 16_384;

    /// Reads configuration.
    ///
    /// # Errors
    /// The name is not one, the configuration is empty, or a text is too long or has characters that are not allowed.
    pub fn parse(name: &str, description: &str, config: &str) -> Result<Self, Invalid> {
        const BESIDES: &str = text::TEXT_WITH_QUOTE;
        text::check_word("name", name)?;
        text::check("description", description, Self::MAX_DESCRIPTION, BESIDES)?;
        if config.is_empty() {
            return Err(Invalid::new("config", "must not be empty"));
        }
        text::check_printable("config", config, Self::MAX_CONFIG, "\t\n\r")?;
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
        let longest = "ä".repeat(CustomConfigSpec::MAX_CONFIG);
        assert!(CustomConfigSpec::parse("n", "of \"all\" nodes", &longest).is_ok());
    }

    #[test]
    fn what_is_wrong_with_a_configuration_is_said_of_its_field() {
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
