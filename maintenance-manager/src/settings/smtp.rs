//! The mail server for notifications by e-mail.

use std::net::IpAddr;
use std::path::PathBuf;

use evenkeel_domain::notification::is_email_address;
use serde::{Deserialize, Serialize};

/// The mail server that takes notifications by e-mail. Without `host` the server sends no e-mail.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SmtpSettings {
    /// Host name or address of the mail server. It may be in a private network.
    pub host: Option<String>,
    /// Port; usually 587 for `starttls`, 465 for `implicit`, 25 for `none`.
    pub port: u16,
    /// Encryption of the connection.
    pub tls: SmtpTls,
    /// File with the only CA certificates to trust, in PEM. If not set: the certificates of the
    /// system.
    pub ca: Option<PathBuf>,
    /// User name. Needs `password_file`.
    pub user: Option<String>,
    /// File with the password of the user. It is read for each message.
    pub password_file: Option<PathBuf>,
    /// Address of the sender, such as `evenkeel@example.org`. Its domain is also the name by which the
    /// server introduces itself.
    pub from: Option<String>,
}

/// Encryption of the connection to the mail server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SmtpTls {
    /// The connection begins without TLS, and nothing is sent before it changes to TLS.
    #[default]
    Starttls,
    /// The connection begins with TLS.
    Implicit,
    /// No TLS. Only for a mail server on this machine.
    None,
}

impl Default for SmtpSettings {
    fn default() -> Self {
        Self {
            host: None,
            port: 587,
            tls: SmtpTls::default(),
            ca: None,
            user: None,
            password_file: None,
            from: None,
        }
    }
}

/// A setting of the mail server is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("maintenance_manager.smtp.{key}: {why}")]
pub struct InvalidSmtpSettings {
    pub key: &'static str,
    pub why: &'static str,
}

impl SmtpSettings {
    /// Checks the settings. Does not read files.
    ///
    /// # Errors
    /// Names the first invalid setting.
    pub fn check(&self) -> Result<(), InvalidSmtpSettings> {
        let bad = |key, why| Err(InvalidSmtpSettings { key, why });
        match (&self.user, &self.password_file) {
            (Some(_), None) => {
                return bad("user", "set smtp.password_file as well: the user needs a password");
            }
            (None, Some(_)) => {
                return bad("password_file", "set smtp.user as well: the password needs a user");
            }
            _ => {}
        }
        match (&self.host, &self.from) {
            (_, Some(from)) if !is_email_address(from) => {
                return bad("from", "must be an address such as evenkeel@example.org");
            }
            (Some(_), None) => {
                return bad("host", "set smtp.from as well: an e-mail needs a sender");
            }
            (None, Some(_)) => {
                return bad("from", "set smtp.host as well: without it the server sends no e-mail");
            }
            _ => {}
        }
        if self.host.as_deref().is_some_and(|host| !is_host(host)) {
            let why = "must be the name or the address of the mail server, without a scheme and \
                       without a port";
            return bad("host", why);
        }
        if self.port == 0 {
            return bad("port", "must be from 1 to 65535");
        }
        let host = self.host.as_deref().unwrap_or("localhost");
        let is_loopback = host == "localhost"
            || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
        if self.tls == SmtpTls::None && !is_loopback {
            let why = "\"none\" is allowed only if host is localhost or a loopback address";
            return bad("tls", why);
        }
        Ok(())
    }
}

/// Whether a text is an IP address or can be the name of a host.
fn is_host(text: &str) -> bool {
    let is_in_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    text.parse::<IpAddr>().is_ok() || (!text.is_empty() && text.bytes().all(is_in_name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_a_name_or_an_address_without_a_scheme_and_without_a_port() {
        for good in ["mail", "mail.example.org", "mail_1.example.org.", "192.0.2.1", "2001:db8::1"]
        {
            assert!(is_host(good), "{good}");
        }
        for bad in [
            "",
            " ",
            "smtps://mail.example.org",
            "mail.example.org:587",
            "192.0.2.1:25",
            "a/b",
            "[::1]",
        ] {
            assert!(!is_host(bad), "{bad}");
        }
    }

    #[test]
    fn each_fault_names_its_setting() {
        let good = || SmtpSettings {
            host: Some("mail.example.org".to_owned()),
            from: Some("evenkeel@example.org".to_owned()),
            ..SmtpSettings::default()
        };
        let fault = |settings: SmtpSettings| settings.check().err().map(|fault| fault.key);
        let (user, file) = (Some("evenkeel".to_owned()), Some(PathBuf::from("/password")));
        let host =
            |host: &str| SmtpSettings { host: Some(host.to_owned()), tls: SmtpTls::None, ..good() };
        for (settings, expected) in [
            (good(), None),
            (SmtpSettings::default(), None),
            (SmtpSettings { user: user.clone(), password_file: file.clone(), ..good() }, None),
            (SmtpSettings { user, ..good() }, Some("user")),
            (SmtpSettings { password_file: file, ..good() }, Some("password_file")),
            (SmtpSettings { from: None, ..good() }, Some("host")),
            (SmtpSettings { host: None, ..good() }, Some("from")),
            (SmtpSettings { host: Some(String::new()), ..good() }, Some("host")),
            (SmtpSettings { port: 0, ..good() }, Some("port")),
            (SmtpSettings { from: Some("a@b.c\r\nBcc: d".to_owned()), ..good() }, Some("from")),
            (host("mail.example.org"), Some("tls")),
            (host("10.0.0.1"), Some("tls")),
            (host("localhost.example.org"), Some("tls")),
            (host("localhost"), None),
            (host("127.0.0.1"), None),
            (host("::1"), None),
        ] {
            assert_eq!(fault(settings.clone()), expected, "{settings:?}");
        }
    }
}
