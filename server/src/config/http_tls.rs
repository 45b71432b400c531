//! Whether a listener for HTTP, the REST API or the admin listener, uses TLS.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Config;

/// Listener for health, readiness and metrics.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct AdminConfig {
    /// Listen address. The listener has no authentication: bind it to a local or private address.
    pub(crate) listen: SocketAddr,
    /// Whether the listener uses TLS; see `rest.tls`.
    pub(crate) tls: Option<bool>,
    /// Additional DNS names and IP addresses of the certificate from the server's own authority;
    /// see `rest.server_names`.
    pub(crate) server_names: Vec<String>,
    /// File with a certificate chain in PEM; see `rest.certificate`.
    pub(crate) certificate: Option<PathBuf>,
    /// File with the key of that certificate in PEM.
    pub(crate) key: Option<PathBuf>,
    /// Interval at which one replica counts the fleet for the metrics `evenkeel_fleet_*` of all
    /// replicas. At least one second. A count that takes long lets the next one begin later: it
    /// begins after at least twenty times the duration of the last one.
    #[serde(with = "humantime_serde")]
    pub(crate) fleet_count_interval: Duration,
}

impl Default for AdminConfig {
    fn default() -> Self {
        Self {
            listen: (Ipv4Addr::LOCALHOST, 9464).into(),
            tls: None,
            server_names: Vec::new(),
            certificate: None,
            key: None,
            fleet_count_interval: Duration::from_mins(1),
        }
    }
}

/// How a listener for HTTP secures its connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HttpSecurity<'a> {
    PlainHttp,
    /// TLS with a certificate of the server's own authority.
    OwnAuthority,
    /// TLS with certificate files.
    Files {
        certificate: &'a Path,
        key: &'a Path,
    },
}

/// The settings of a listener for HTTP that decide about TLS.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HttpTlsSettings<'a> {
    pub(crate) section: &'static str,
    pub(crate) listen: SocketAddr,
    tls: Option<bool>,
    certificate: Option<&'a Path>,
    key: Option<&'a Path>,
    /// Names that nodes use, and those of this listener.
    pub(crate) server_names: [&'a [String]; 2],
}

impl<'a> HttpTlsSettings<'a> {
    /// Decides how the listener secures its connections. Other machines reach it without TLS only if
    /// that is set explicitly.
    pub(crate) fn security(&self) -> Result<HttpSecurity<'a>, String> {
        let (section, listen) = (self.section, self.listen);
        match (self.tls, self.certificate, self.key) {
            (_, Some(_), None) | (_, None, Some(_)) => {
                Err(format!("set both {section}.certificate and {section}.key, or neither"))
            }
            (Some(false), Some(_), Some(_)) => Err(format!(
                "{section}.tls is false, but {section}.certificate is set: remove one of them"
            )),
            (_, Some(certificate), Some(key)) => Ok(HttpSecurity::Files { certificate, key }),
            (Some(true), None, None) => Ok(HttpSecurity::OwnAuthority),
            (Some(false), None, None) => Ok(HttpSecurity::PlainHttp),
            (None, None, None) if listen.ip().to_canonical().is_loopback() => {
                Ok(HttpSecurity::PlainHttp)
            }
            (None, None, None) => Err(format!(
                "other machines can reach {section}.listen ({listen}), but it has no TLS: set {section}.tls = true for a \
                 certificate of the server's own authority, or {section}.certificate and {section}.key for your own \
                 certificate; {section}.tls = false permits plain HTTP, for example behind a proxy that terminates TLS"
            )),
        }
    }

    /// Returns whether the listener uses TLS.
    pub(crate) fn is_tls(&self) -> bool {
        !matches!(self.security(), Ok(HttpSecurity::PlainHttp))
    }
}

impl Config {
    pub(crate) fn rest_tls(&self) -> HttpTlsSettings<'_> {
        let rest = &self.rest;
        HttpTlsSettings {
            section: "rest",
            listen: rest.listen,
            tls: rest.tls,
            certificate: rest.certificate.as_deref(),
            key: rest.key.as_deref(),
            server_names: [&self.southbound.server_names, &rest.server_names],
        }
    }

    pub(crate) fn admin_tls(&self) -> HttpTlsSettings<'_> {
        let admin = &self.admin;
        HttpTlsSettings {
            section: "admin",
            listen: admin.listen,
            tls: admin.tls,
            certificate: admin.certificate.as_deref(),
            key: admin.key.as_deref(),
            server_names: [&self.southbound.server_names, &admin.server_names],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOOPBACK: [&str; 3] = ["127.0.0.1:8080", "[::1]:8080", "[::ffff:127.0.0.1]:8080"];
    const REACHABLE: [&str; 4] = ["0.0.0.0:8080", "[::]:8080", "192.0.2.1:8080", "[2001:db8::1]:1"];

    fn security(
        listen: &str,
        tls: Option<bool>,
        (certificate, key): (Option<&str>, Option<&str>),
    ) -> Result<String, String> {
        let settings = HttpTlsSettings {
            section: "rest",
            listen: listen.parse().unwrap(),
            tls,
            certificate: certificate.map(Path::new),
            key: key.map(Path::new),
            server_names: [&[], &[]],
        };
        settings.security().map(|security| match security {
            HttpSecurity::PlainHttp => "plain".to_owned(),
            HttpSecurity::OwnAuthority => "own".to_owned(),
            HttpSecurity::Files { certificate, key } => {
                format!("{} {}", certificate.display(), key.display())
            }
        })
    }

    #[test]
    fn only_a_loopback_address_has_plain_http_by_default() {
        for listen in LOOPBACK {
            assert_eq!(security(listen, None, (None, None)).as_deref(), Ok("plain"), "{listen}");
        }
        for listen in REACHABLE {
            let error = security(listen, None, (None, None)).unwrap_err();
            for part in [listen, "rest.tls = true", "rest.certificate", "rest.tls = false"] {
                assert!(error.contains(part), "{part}: {error}");
            }
        }
    }

    #[test]
    fn each_address_has_what_is_set_explicitly() {
        for listen in LOOPBACK.into_iter().chain(REACHABLE) {
            assert_eq!(
                security(listen, Some(false), (None, None)).as_deref(),
                Ok("plain"),
                "{listen}"
            );
            assert_eq!(
                security(listen, Some(true), (None, None)).as_deref(),
                Ok("own"),
                "{listen}"
            );
            for tls in [None, Some(true)] {
                let files = (Some("/chain"), Some("/key"));
                assert_eq!(security(listen, tls, files).as_deref(), Ok("/chain /key"), "{listen}");
            }
        }
    }

    #[test]
    fn settings_that_contradict_each_other_are_refused() {
        for tls in [None, Some(true), Some(false)] {
            for files in [(Some("/chain"), None), (None, Some("/key"))] {
                let error = security("127.0.0.1:0", tls, files).unwrap_err();
                assert!(error.contains("set both rest.certificate and rest.key"), "{error}");
            }
        }
        let files = (Some("/chain"), Some("/key"));
        let error = security("127.0.0.1:0", Some(false), files).unwrap_err();
        assert!(error.contains("rest.tls is false"), "{error}");
    }
}
