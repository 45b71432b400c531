//! Where the notifications of a project go: a webhook, or e-mail addresses.

use std::fmt;

use crate::invalid::Invalid;
use crate::text::check_printable;

/// Where a target receives its messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TargetAddress {
    Webhook(WebhookUrl),
    Email(EmailAddresses),
}

impl TargetAddress {
    /// A stored address: a URL, or `mailto:` and e-mail addresses. The sender of a message checks it again.
    #[must_use]
    pub fn from_stored(text: String) -> Self {
        match text.strip_prefix(MAILTO) {
            Some(list) => Self::Email(EmailAddresses(list.split(',').map(str::to_owned).collect())),
            None => Self::Webhook(WebhookUrl(text)),
        }
    }
}

/// The text that is stored.
impl fmt::Display for TargetAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Webhook(url) => f.write_str(url.as_str()),
            Self::Email(addresses) => write!(f, "{MAILTO}{}", addresses.0.join(",")),
        }
    }
}

/// Begins the stored text of e-mail addresses.
const MAILTO: &str = "mailto:";

/// The URL of a webhook: `https` or `http`, a host, and no credentials. Whether the server connects to
/// its address is decided when it connects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhookUrl(String);

impl WebhookUrl {
    /// Maximum length in characters.
    pub const MAX_CHARS: usize = 2_000;

    /// Parses a URL.
    ///
    /// # Errors
    /// It has another scheme, no host, credentials, a fragment, spaces or control characters.
    pub fn parse(field: &'static str, text: &str) -> Result<Self, Invalid> {
        check_printable(field, text, Self::MAX_CHARS, "")?;
        let rest = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
        let Some(rest) = rest else {
            return Err(Invalid::new(field, "must begin with https://, or with http://"));
        };
        if text.contains(|c: char| c.is_whitespace() || c == '\\' || c == '#') {
            return Err(Invalid::new(field, "must not contain spaces, backslashes or `#`"));
        }
        let authority = rest.split(['/', '?']).next().unwrap_or_default();
        if authority.contains('@') {
            let why = "must not contain credentials; receivers verify the signature of a message";
            return Err(Invalid::new(field, why));
        }
        if authority.is_empty() || authority.starts_with(':') {
            return Err(Invalid::new(field, "must have a host"));
        }
        Ok(Self(text.to_owned()))
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The e-mail addresses of a target: at least one. They have no name, no quotes and no comments, and
/// only letters, digits and few signs, so that none can be more than an address in a header or in a
/// command to a mail server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EmailAddresses(Vec<String>);

impl EmailAddresses {
    /// Maximum number of addresses of a target.
    pub const MAX: usize = 20;

    /// Parses addresses. Repeated ones are left out.
    ///
    /// # Errors
    /// There are none or too many, or one is not an address of the form `ops@example.org`.
    pub fn parse(field: &'static str, texts: &[String]) -> Result<Self, Invalid> {
        if texts.is_empty() || texts.len() > Self::MAX {
            let why = format!("must have from 1 to {} addresses", Self::MAX);
            return Err(Invalid::new(field, why));
        }
        let mut addresses: Vec<String> = Vec::new();
        for text in texts {
            if !is_email_address(text) {
                let why = "must be addresses such as `ops@example.org`: letters, digits and `.-_+=` \
                           before the `@`, and a domain after it";
                return Err(Invalid::new(field, why));
            }
            if !addresses.contains(text) {
                addresses.push(text.clone());
            }
        }
        Ok(Self(addresses))
    }

    #[must_use]
    pub fn as_slice(&self) -> &[String] {
        &self.0
    }
}

/// Whether a text is one e-mail address, without a name. The lengths are those of RFC 5321.
#[must_use]
pub fn is_email_address(text: &str) -> bool {
    let Some((user, host)) = text.split_once('@') else {
        return false;
    };
    let is_atom = |atom: &str, signs: &str| {
        !atom.is_empty() && atom.chars().all(|c| c.is_ascii_alphanumeric() || signs.contains(c))
    };
    let is_label = |label: &str| {
        label.len() <= 63 && is_atom(label, "-") && !label.starts_with('-') && !label.ends_with('-')
    };
    text.len() <= 254
        && user.len() <= 64
        && user.split('.').all(|atom| is_atom(atom, "-_+="))
        && host.split('.').all(is_label)
        // No address of a machine, such as 127.0.0.1.
        && host.ends_with(|c: char| c.is_ascii_alphabetic())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_urls_of_webhooks_are_accepted() {
        for good in
            ["https://hooks.example/a?b=c", "http://10.0.0.1:8080", "https://[2001:db8::1]/"]
        {
            assert_eq!(WebhookUrl::parse("url", good).expect(good).as_str(), good);
        }
        let long = format!("https://hooks.example/{}", "a".repeat(WebhookUrl::MAX_CHARS));
        for bad in [
            "",
            "hooks.example",
            "ftp://hooks.example",
            "mailto:ops@example.org",
            "https://",
            "https:///path",
            "https://:443/",
            "https://user:password@hooks.example/",
            "https://hooks.example/a b",
            "https://hooks.example\\@other.example/",
            "https://hooks.example/#part",
            "https://hooks.example/\n",
            &long,
        ] {
            assert!(WebhookUrl::parse("url", bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn an_address_cannot_be_more_than_an_address() {
        for good in ["ops@example.org", "on-call+edge@mail.shop.example", "a=b.c_d@localhost"] {
            assert!(is_email_address(good), "{good}");
        }
        let (long_user, long_label) = ("a".repeat(65), "b".repeat(64));
        for bad in [
            "",
            "ops",
            "@example.org",
            "ops@",
            "ops@127.0.0.1",
            "ops@[127.0.0.1]",
            "ops@-example.org",
            "ops@example..org",
            ".ops@example.org",
            "ops@example.org\n",
            "ops@example.org\r\nBcc: all@example.org",
            "ops@example.org>\r\nRCPT TO:<all@example.org",
            "ops\0@example.org",
            "ops@example.org,all@example.org",
            "ops@example.org@example.org",
            "Ops <ops@example.org>",
            "\"ops\"@example.org",
            "ops@example.org NOTIFY=SUCCESS",
            "öps@example.org",
            "ops@exämple.org",
            &format!("{long_user}@example.org"),
            &format!("ops@{long_label}.org"),
        ] {
            assert!(!is_email_address(bad), "{bad:?}");
            assert!(EmailAddresses::parse("emailAddresses", &[bad.to_owned()]).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_target_has_from_one_to_twenty_addresses() {
        let nth = |n| format!("ops{n}@example.org");
        let parse = |texts: Vec<String>| EmailAddresses::parse("emailAddresses", &texts);
        assert_eq!(parse(vec![nth(1), nth(2), nth(1)]).expect("two").as_slice(), [nth(1), nth(2)]);
        assert!(parse((0..20).map(nth).collect()).is_ok());
        assert!(parse((0..21).map(nth).collect()).is_err());
        assert!(parse(Vec::new()).is_err());
    }

    #[test]
    fn a_stored_address_is_read_as_it_was() {
        let emails = ["ops@example.org", "boss@example.org"].map(str::to_owned);
        let emails = EmailAddresses::parse("emailAddresses", &emails).expect("addresses");
        let url = WebhookUrl::parse("url", "https://hooks.example/a,b").expect("a URL");
        for address in [TargetAddress::Email(emails), TargetAddress::Webhook(url)] {
            assert_eq!(TargetAddress::from_stored(address.to_string()), address);
        }
    }
}
