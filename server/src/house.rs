//! What the services share. They meet here and in the database, and never call each other.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use evenkeel_auth::{Authority, CertificateAuthority, Keys, OutsideIssuer};
use evenkeel_kit::{Clock, SystemClock};
use evenkeel_store::Store;

use crate::config::Config;
use crate::tls::Certificates;

#[derive(Clone, Debug)]
pub(crate) struct House {
    pub(crate) store: Store,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) authority: Arc<Authority>,
    pub(crate) certificates: Arc<Certificates>,
}

impl House {
    pub(crate) fn open(config: &Config, data_dir: &Path, store: Store) -> anyhow::Result<Self> {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let authority = Arc::new(authority(config, data_dir)?);
        let south = &config.southbound;
        let certificates = match (&south.certificate, &south.key) {
            (Some(certificate), Some(key)) => {
                Certificates::from_files(certificate, key, south.ca.as_deref())?
            }
            (None, None) => {
                let folder = config
                    .auth
                    .ca
                    .clone()
                    .unwrap_or_else(|| data_dir.join("ca"));
                let ca = CertificateAuthority::open(&folder, clock.now());
                let ca = ca.context("the certificate authority is not usable")?;
                Certificates::from_authority(ca, south, clock.now())?
            }
            _ => anyhow::bail!("southbound.certificate and southbound.key go together"),
        };
        Ok(Self {
            store,
            clock,
            authority,
            certificates: Arc::new(certificates),
        })
    }
}

/// Who makes and verifies tokens.
pub(crate) fn authority(config: &Config, data_dir: &Path) -> anyhow::Result<Authority> {
    let folder = config
        .auth
        .keys
        .clone()
        .unwrap_or_else(|| data_dir.join("keys"));
    let keys = Keys::open(&folder).context("the signing keys are not usable")?;
    let mut authority = Authority::new(keys, config.auth.tokens.clone());
    for issuer in &config.auth.issuers {
        let outside = OutsideIssuer::open(&issuer.issuer, issuer.audience.as_deref(), &issuer.jwks);
        let outside =
            outside.with_context(|| format!("the keys of {} are not usable", issuer.issuer))?;
        authority = authority.accept(outside);
    }
    Ok(authority)
}
