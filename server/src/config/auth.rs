//! The section `auth`: who may.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Auth {
    /// Every request to the REST API is an administrator's. Only for a listener that nobody but this machine reaches.
    pub(crate) disabled: bool,
    /// The claims of our own tokens, and how many verified tokens are remembered.
    pub(crate) tokens: evenkeel_auth::Settings,
    /// The folder of the signing keys, if not `keys` in the data directory.
    pub(crate) keys: Option<PathBuf>,
    /// The folder of the certificate authority, if not `ca` in the data directory.
    pub(crate) ca: Option<PathBuf>,
    /// How long the token of the first start counts.
    #[serde(with = "humantime_serde")]
    pub(crate) first_token_for: Duration,
    /// Others whose tokens count.
    pub(crate) issuers: Vec<Outside>,
    /// Tokens for people who log in with a password; none if nobody can.
    pub(crate) login: Option<Login>,
}

impl Default for Auth {
    fn default() -> Self {
        Self {
            disabled: false,
            tokens: evenkeel_auth::Settings::default(),
            keys: None,
            ca: None,
            first_token_for: Duration::from_hours(30 * 24),
            issuers: Vec::new(),
            login: None,
        }
    }
}

/// An issuer outside, such as the identity provider of the organisation.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Outside {
    /// The claim `iss` of its tokens.
    pub(crate) issuer: String,
    /// The claim `aud` that its tokens must have; without it any will do.
    #[serde(default)]
    pub(crate) audience: Option<String>,
    /// A file with its JSON Web Key Set.
    #[serde(default)]
    pub(crate) jwks: Option<PathBuf>,
    /// Whether the issuer itself is asked for its keys.
    #[serde(default)]
    pub(crate) discovery: bool,
    /// The claim with the roles, if not `realm_access.roles`: names with dots between them, or a JSON pointer.
    #[serde(default)]
    pub(crate) roles: Option<String>,
}

/// The endpoint for tokens on the REST listener.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Login {
    /// The file of users: names, hashes of passwords, roles.
    pub(crate) users: PathBuf,
    /// How long a token for the API counts.
    #[serde(with = "humantime_serde", default = "quarter_of_an_hour")]
    pub(crate) access_for: Duration,
    /// How long further ones are given without the password.
    #[serde(with = "humantime_serde", default = "week")]
    pub(crate) refresh_for: Duration,
    /// The address of the server as its clients know it, if they do not reach it by plain HTTP.
    #[serde(default)]
    pub(crate) url: Option<String>,
    /// Proxies whose word counts about whom they speak for.
    #[serde(default)]
    pub(crate) proxies: Vec<IpAddr>,
}

fn quarter_of_an_hour() -> Duration {
    Duration::from_mins(15)
}

fn week() -> Duration {
    Duration::from_hours(7 * 24)
}

impl Auth {
    /// What is wrong with the section, if anything is, for a REST listener at an address.
    pub(crate) fn check(&self, rest: SocketAddr) -> Result<(), String> {
        if self.disabled && !rest.ip().to_canonical().is_loopback() {
            return Err(format!(
                "auth.disabled lets everybody in who reaches {rest}: it goes only with a rest.listen that nobody but \
                 this machine reaches, such as 127.0.0.1:8080"
            ));
        }
        let mut known = vec![self.tokens.issuer.as_str()];
        for outside in &self.issuers {
            let issuer = &outside.issuer;
            match (&outside.jwks, outside.discovery) {
                (Some(_), false) | (None, true) => {}
                (None, false) => {
                    return Err(format!(
                        "where are the keys of {issuer:?}? Name a file with jwks, or set discovery = true"
                    ));
                }
                (Some(_), true) => {
                    return Err(format!(
                        "the keys of {issuer:?} are in a file (jwks) or asked for (discovery), not both"
                    ));
                }
            }
            if known.contains(&issuer.as_str()) {
                return Err(format!("{issuer:?} is an issuer twice"));
            }
            known.push(issuer);
        }
        self.login.as_ref().map_or(Ok(()), Login::check)
    }
}

impl Login {
    fn check(&self) -> Result<(), String> {
        if let Some(url) = &self.url
            && !is_origin(url)
        {
            return Err(format!(
                "auth.login.url is {url:?}; it must look like https://updates.example"
            ));
        }
        if self.access_for.is_zero() || self.refresh_for.is_zero() {
            return Err("auth.login: a token must count for some time".to_owned());
        }
        Ok(())
    }
}

/// Whether a text is a scheme and a host, perhaps with a port, and nothing more.
pub(crate) fn is_origin(text: &str) -> bool {
    let host = text
        .strip_prefix("https://")
        .or_else(|| text.strip_prefix("http://"));
    host.is_some_and(|host| {
        let fits = |b: u8| {
            b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_' | b':' | b'[' | b']')
        };
        !host.is_empty() && host.bytes().all(fits)
    })
}

#[cfg(test)]
mod tests {
    use figment::Figment;
    use figment::providers::{Format, Toml};

    use super::*;

    fn checked(text: &str, rest: &str) -> Result<(), String> {
        let auth: Auth = Figment::from(Toml::string(text)).extract().unwrap();
        auth.check(rest.parse().unwrap())
    }

    #[test]
    fn everybody_is_let_in_only_from_this_machine() {
        for here in [
            "127.0.0.1:8080",
            "127.9.9.9:1",
            "[::1]:8080",
            "[::ffff:127.0.0.1]:1",
        ] {
            assert_eq!(checked("disabled = true", here), Ok(()), "{here}");
        }
        for elsewhere in ["0.0.0.0:8080", "[::]:8080", "192.0.2.1:8080"] {
            let error = checked("disabled = true", elsewhere).unwrap_err();
            assert!(error.contains(elsewhere), "{error}");
            assert_eq!(checked("", elsewhere), Ok(()));
        }
    }

    #[test]
    fn the_keys_of_an_issuer_are_in_one_place() {
        for (keys, expected) in [
            ("jwks = '/keys.json'", None),
            ("discovery = true", None),
            ("discovery = false", Some("where are the keys")),
            ("", Some("where are the keys")),
            ("jwks = '/keys.json'\ndiscovery = true", Some("not both")),
        ] {
            let text = format!("[[issuers]]\nissuer = 'https://login.example'\n{keys}");
            let answer = checked(&text, "0.0.0.0:80");
            match (answer, expected) {
                (Ok(()), None) => {}
                (Err(error), Some(part)) => assert!(error.contains(part), "{error}"),
                (answer, _) => panic!("{text}: {answer:?}"),
            }
        }
    }

    #[test]
    fn an_issuer_is_there_once() {
        let one = "[[issuers]]\nissuer = 'urn:one'\ndiscovery = true\n";
        assert_eq!(checked(one, "0.0.0.0:80"), Ok(()));
        for twice in [
            format!("{one}{one}"),
            one.replace("urn:one", "urn:evenkeel:issuer"),
        ] {
            let error = checked(&twice, "0.0.0.0:80").unwrap_err();
            assert!(error.contains("is an issuer twice"), "{error}");
        }
    }

    #[test]
    fn people_log_in_at_an_address_and_for_some_time() {
        let login = |more: &str| {
            let text = format!("[login]\nusers = '/users.toml'\n{more}");
            checked(&text, "0.0.0.0:80")
        };
        for good in [
            "",
            "url = 'https://updates.example'",
            "url = 'http://127.0.0.1:8080'",
            "proxies = ['127.0.0.1', '::1']",
            "access_for = '5m'\nrefresh_for = '12h'",
        ] {
            assert_eq!(login(good), Ok(()), "{good}");
        }
        for bad in [
            "url = 'https://updates.example/'",
            "url = 'updates.example'",
            "url = 'https://'",
            "access_for = '0s'",
        ] {
            assert!(login(bad).is_err(), "{bad}");
        }
    }
}
