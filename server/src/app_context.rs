//! Application context: what the services share. Services communicate only through it and the
//! database, and never call each other.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use evenkeel_auth::{Authority, CertificateAuthority, ExternalIssuer};
use evenkeel_kit::{Clock, SystemClock};
use evenkeel_store::Store;

use crate::config::{Config, HttpSecurity, HttpTlsSettings, IssuerConfig};
use crate::shared_keys::KeyFolders;
use crate::tls::{Certificates, certificate_names};

/// Error of a certificate for nodes without its key, or the reverse.
const CERTIFICATE_WITHOUT_KEY: &str =
    "set both southbound.certificate and southbound.key, or neither";

/// Warning of an issuer whose tokens may be meant for other programs.
pub(crate) const WITHOUT_AUDIENCE: &str = "auth.issuers.audience is not set: tokens of this issuer for every other program are accepted as well";

#[derive(Clone, Debug)]
pub(crate) struct AppContext {
    pub(crate) store: Store,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) authority: Arc<Authority>,
    /// Authenticator of the REST API. Differs from `authority` if `auth.disabled` is set; nodes
    /// always authenticate with `authority`.
    pub(crate) rest_authenticator: Arc<Authority>,
    /// Certificates of the listeners for nodes.
    pub(crate) certificates: Arc<Certificates>,
    /// Issues the certificates of nodes.
    pub(crate) ca: Arc<CertificateAuthority>,
}

impl AppContext {
    pub(crate) fn open(config: &Config, data_dir: &Path, store: Store) -> anyhow::Result<Self> {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        warn_without_audience(&config.auth.issuers);
        let authority = Arc::new(open_authority(config, data_dir)?);
        let rest_authenticator = if config.auth.disabled {
            tracing::warn!(
                rest = %config.rest.listen,
                "auth.disabled is set: every request to the REST API has administrator rights"
            );
            let open = open_own_authority(config, data_dir)?.allow_anonymous();
            Arc::new(open)
        } else {
            Arc::clone(&authority)
        };
        let ca = Arc::new(KeyFolders::new(config, data_dir).open_ca(clock.now())?);
        let south = &config.southbound;
        let certificates = match (&south.certificate, &south.key) {
            (Some(certificate), Some(key)) => {
                Certificates::from_files(certificate, key, south.ca.as_deref())?
            }
            (None, None) => {
                let names = certificate_names(south.listen, &[&south.server_names]);
                Certificates::from_authority(Arc::clone(&ca), names, clock.now())?
            }
            _ => anyhow::bail!(CERTIFICATE_WITHOUT_KEY),
        };
        Ok(Self {
            store,
            clock,
            authority,
            rest_authenticator,
            certificates: Arc::new(certificates),
            ca,
        })
    }

    /// Opens the certificates of a listener for HTTP; `None` for plain HTTP.
    pub(crate) fn open_http_certificates(
        &self,
        settings: &HttpTlsSettings<'_>,
    ) -> anyhow::Result<Option<Arc<Certificates>>> {
        let section = settings.section;
        let certificates = match settings.security().map_err(anyhow::Error::msg)? {
            HttpSecurity::PlainHttp => return Ok(None),
            HttpSecurity::OwnAuthority => {
                let names = certificate_names(settings.listen, &settings.server_names);
                Certificates::from_authority(Arc::clone(&self.ca), names, self.clock.now())
                    .with_context(|| format!("cannot issue the certificate of {section}.listen"))?
            }
            HttpSecurity::Files { certificate, key } => {
                Certificates::from_files(certificate, key, None).with_context(|| {
                    format!(
                        "the certificate of {section}.listen ({section}.certificate) is not usable"
                    )
                })?
            }
        };
        Ok(Some(Arc::new(certificates)))
    }
}

/// Opens the authority that issues and verifies tokens, including those of the external issuers.
pub(crate) fn open_authority(config: &Config, data_dir: &Path) -> anyhow::Result<Authority> {
    let mut authority = open_own_authority(config, data_dir)?;
    for issuer in &config.auth.issuers {
        let outside = open_issuer(issuer)
            .with_context(|| format!("the keys of {} are not usable", issuer.issuer))?;
        authority = authority.accept(outside);
    }
    Ok(authority)
}

/// Opens the authority that accepts only tokens of this server.
fn open_own_authority(config: &Config, data_dir: &Path) -> anyhow::Result<Authority> {
    let keys = KeyFolders::new(config, data_dir).open_keys()?;
    Ok(Authority::new(keys, config.auth.tokens.clone()))
}

pub(crate) fn open_issuer(config: &IssuerConfig) -> anyhow::Result<ExternalIssuer> {
    let (issuer, audience) = (config.issuer.as_str(), config.audience.as_deref());
    let outside = match &config.jwks {
        Some(file) => ExternalIssuer::open(issuer, audience, file)?,
        None => ExternalIssuer::discover(issuer, audience)?,
    };
    let outside = match &config.roles {
        Some(claim) => outside.with_roles_claim(claim),
        None => outside,
    };
    let binding = config.node_binding().map_err(anyhow::Error::msg)?;
    let mappings = config.role_mappings().map_err(anyhow::Error::msg)?;
    let outside = outside
        .with_role_limits(config.role_limits())
        .with_role_mappings(mappings)
        .with_node_binding(binding);
    Ok(match &config.node_claim {
        Some(claim) => outside.with_node_claim(claim),
        None => outside,
    })
}

fn warn_without_audience(issuers: &[IssuerConfig]) {
    for issuer in issuers.iter().filter(|issuer| issuer.audience.is_none()) {
        tracing::warn!(issuer = issuer.issuer, "{WITHOUT_AUDIENCE}");
    }
}
