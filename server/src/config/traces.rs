//! Section `tracing`: traces for an OpenTelemetry collector.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use tonic::transport::Uri;

/// Traces of requests and updates, sent to an OpenTelemetry collector.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct TracingConfig {
    /// Address of a collector that receives OTLP over gRPC, such as
    /// `https://collector.example.org:4317`. Without it, nothing is sent.
    pub(crate) otlp_endpoint: Option<String>,
    /// Percentage of the traces that are sent, from 1 to 100. All replicas choose the same traces.
    pub(crate) sample_percentage: u8,
    /// File with the certificate of the authority of the collector in PEM. If not set: the
    /// authorities of the system.
    pub(crate) ca: Option<PathBuf>,
    /// File with headers for the collector, one `name: value` per line, for example with a token. It
    /// is read at the start.
    pub(crate) headers_file: Option<PathBuf>,
}

impl Default for TracingConfig {
    fn default() -> Self {
        Self { otlp_endpoint: None, sample_percentage: 100, ca: None, headers_file: None }
    }
}

impl TracingConfig {
    /// Checks what needs no file. A message does not contain the address.
    pub(super) fn check(&self) -> Result<(), String> {
        if !(1..=100).contains(&self.sample_percentage) {
            let percentage = self.sample_percentage;
            return Err(format!("tracing.sample_percentage ({percentage}) must be from 1 to 100"));
        }
        let Some(endpoint) = &self.otlp_endpoint else {
            return match self.headers_file {
                Some(_) => Err("tracing.headers_file: set tracing.otlp_endpoint as well: the \
                                headers are for the collector"
                    .to_owned()),
                None => Ok(()),
            };
        };
        let form = "tracing.otlp_endpoint must have the form https://collector.example:4317";
        let uri: Uri = endpoint.parse().map_err(|_| form.to_owned())?;
        let has_user = uri.authority().is_some_and(|authority| authority.as_str().contains('@'));
        if has_user {
            return Err("tracing.otlp_endpoint contains a user or a password: use \
                        tracing.headers_file"
                .to_owned());
        }
        let is_local = matches!(uri.host(), Some("127.0.0.1" | "[::1]" | "localhost"));
        match uri.scheme_str() {
            Some("https") => Ok(()),
            Some("http") if self.headers_file.is_some() && !is_local => {
                Err("tracing.headers_file needs an otlp_endpoint with https, so that the network \
                     does not see the headers"
                    .to_owned())
            }
            Some("http") => Ok(()),
            _ => Err(form.to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(endpoint: &str, headers_file: Option<&str>) -> Result<(), String> {
        let config = TracingConfig {
            otlp_endpoint: Some(endpoint.to_owned()),
            headers_file: headers_file.map(PathBuf::from),
            ..TracingConfig::default()
        };
        config.check()
    }

    #[test]
    fn headers_are_only_sent_over_tls_or_to_this_machine() {
        for endpoint in ["https://otel.example:4317", "http://127.0.0.1:4317", "http://[::1]:4317"]
        {
            assert_eq!(check(endpoint, Some("headers")), Ok(()), "{endpoint}");
        }
        assert_eq!(check("http://otel.example:4317", None), Ok(()));
        assert!(check("http://otel.example:4317", Some("headers")).is_err());
    }

    #[test]
    fn headers_without_a_collector_are_refused() {
        let config =
            TracingConfig { headers_file: Some("headers".into()), ..TracingConfig::default() };
        let error = config.check().unwrap_err();
        assert!(error.contains("set tracing.otlp_endpoint as well"), "{error}");
    }

    #[test]
    fn an_address_with_a_password_or_another_scheme_is_refused() {
        for endpoint in ["https://u:HUSH@otel.example", "ftp://HUSH.example", "HUSH", "", "a b"] {
            let error = check(endpoint, None).unwrap_err();
            assert!(!error.contains("HUSH"), "{error}");
        }
    }

    #[test]
    fn a_percentage_of_zero_is_refused() {
        let config = TracingConfig { sample_percentage: 0, ..TracingConfig::default() };
        assert!(config.check().is_err());
    }
}
