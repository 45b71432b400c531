//! What the services share. They meet here and in the database, and never call each other.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use evenkeel_auth::{Authority, CertificateAuthority, Keys, OutsideIssuer};
use evenkeel_kit::{Clock, SystemClock};
use evenkeel_store::Store;

use crate::config::{Config, Outside};
use crate::tls::Certificates;

#[derive(Clone, Debug)]
pub(crate) struct House {
    pub(crate) store: Store,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) authority: Arc<Authority>,
    /// Who lets people in. Nodes always prove who they are.
    pub(crate) doorkeeper: Arc<Authority>,
    pub(crate) certificates: Arc<Certificates>,
}

impl House {
    pub(crate) fn open(config: &Config, data_dir: &Path, store: Store) -> anyhow::Result<Self> {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let authority = Arc::new(authority(config, data_dir)?);
        let doorkeeper = if config.auth.disabled {
            tracing::warn!(
                rest = %config.rest.listen,
                "auth.disabled is set: every request to the REST API is an administrator's"
            );
            let open = own_authority(config, data_dir)?.open_to_everybody();
            Arc::new(open)
        } else {
            Arc::clone(&authority)
        };
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
            doorkeeper,
            certificates: Arc::new(certificates),
        })
    }
}

/// Who makes and verifies tokens.
pub(crate) fn authority(config: &Config, data_dir: &Path) -> anyhow::Result<Authority> {
    let mut authority = own_authority(config, data_dir)?;
    for issuer in &config.auth.issuers {
        let outside = outside(issuer)
            .with_context(|| format!("the keys of {} are not usable", issuer.issuer))?;
        authority = authority.accept(outside);
    }
    Ok(authority)
}

/// One that accepts nobody's tokens but our own.
fn own_authority(config: &Config, data_dir: &Path) -> anyhow::Result<Authority> {
    let folder = config
        .auth
        .keys
        .clone()
        .unwrap_or_else(|| data_dir.join("keys"));
    let keys = Keys::open(&folder).context("the signing keys are not usable")?;
    Ok(Authority::new(keys, config.auth.tokens.clone()))
}

fn outside(config: &Outside) -> anyhow::Result<OutsideIssuer> {
    let (issuer, audience) = (config.issuer.as_str(), config.audience.as_deref());
    let outside = match &config.jwks {
        Some(file) => OutsideIssuer::open(issuer, audience, file)?,
        None => OutsideIssuer::discover(issuer, audience)?,
    };
    Ok(match &config.roles {
        Some(claim) => outside.with_roles_in(claim),
        None => outside,
    })
}
