//! The keys that all servers on one database share: the keys that sign tokens of operators and
//! credentials of nodes, and the certificate authority of nodes and their listeners. The database
//! records their fingerprints. A server with other keys would issue tokens and certificates that the
//! other servers and the nodes do not accept, so it does not start.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use chrono::{DateTime, Utc};
use evenkeel_auth::{CertificateAuthority, KeyPurpose, Keys, ca};
use evenkeel_store::server_keys::{self, SharedKey};
use evenkeel_store::{FleetTx, Store};

use crate::config::Config;

/// The keys that sign, as the database records them.
const SIGNING_KEYS: [(KeyPurpose, SharedKey); 2] =
    [(KeyPurpose::Nodes, SharedKey::Nodes), (KeyPurpose::Operators, SharedKey::Operators)];

/// The folders of the keys of this server.
#[derive(Debug)]
pub(crate) struct KeyFolders {
    pub(crate) keys: PathBuf,
    /// Folder of the certificate authority. It issues the certificates of nodes, also if the
    /// listeners for nodes use certificate files.
    pub(crate) ca: PathBuf,
}

impl KeyFolders {
    pub(crate) fn new(config: &Config, data_dir: &Path) -> Self {
        Self {
            keys: config.auth.keys.clone().unwrap_or_else(|| data_dir.join("keys")),
            ca: config.auth.ca.clone().unwrap_or_else(|| data_dir.join("ca")),
        }
    }

    pub(crate) fn open_keys(&self) -> anyhow::Result<Keys> {
        Keys::open(&self.keys).context("the signing keys are not usable")
    }

    pub(crate) fn open_ca(&self, now: DateTime<Utc>) -> anyhow::Result<CertificateAuthority> {
        CertificateAuthority::open(&self.ca, now).context("the certificate authority is not usable")
    }

    /// Refuses to continue if the database records other keys than those of this server. Creates
    /// keys only if the database records none, so that a server with the wrong folder leaves no
    /// traces.
    pub(crate) async fn check(&self, store: &Store, now: DateTime<Utc>) -> anyhow::Result<()> {
        let tx = store.fleet().await.context("cannot read the fingerprints of the keys")?;
        self.check_signing_keys(&tx, now).await?;
        self.check_ca(&tx, now).await?;
        tx.commit().await.context("cannot record the fingerprints of the keys")
    }

    /// A folder may also have a new signing key, as long as it keeps the recorded one.
    async fn check_signing_keys(&self, tx: &FleetTx, now: DateTime<Utc>) -> anyhow::Result<()> {
        for (purpose, key) in SIGNING_KEYS {
            if let Some(known) = server_keys::find(tx, key).await? {
                self.check_contains(purpose, &known)?;
            }
        }
        let keys = self.open_keys()?;
        for (purpose, key) in SIGNING_KEYS {
            let own = keys.signing_id(purpose);
            let recorded = server_keys::record_first(tx, key, own, now).await?;
            if recorded == own {
                continue;
            }
            // Another server may have recorded its key since the look above.
            self.check_contains(purpose, &recorded)?;
            tracing::info!(?purpose, old = recorded, new = own, "the signing key was changed");
            server_keys::replace(tx, key, own, now).await?;
        }
        Ok(())
    }

    /// Refuses a folder of keys without the recorded key.
    fn check_contains(&self, purpose: KeyPurpose, known: &str) -> anyhow::Result<()> {
        let ids = Keys::ids_in(&self.keys, purpose).context("the signing keys are not usable")?;
        if ids.iter().any(|id| id == known) {
            return Ok(());
        }
        let folder = purpose.folder(&self.keys);
        bail!(self.other_keys("other signing keys", known, &folder, "auth.keys"))
    }

    async fn check_ca(&self, tx: &FleetTx, now: DateTime<Utc>) -> anyhow::Result<()> {
        const KEY: SharedKey = SharedKey::Authority;
        let folder = &self.ca;
        let known = server_keys::find(tx, KEY).await?;
        let file = folder.join("ca.pem");
        let own = if file.exists() { Some(ca::chain_digest(&file)?) } else { None };
        if let Some(known) = known.filter(|known| own.as_ref() != Some(known)) {
            bail!(self.other_keys("another certificate authority", &known, folder, "auth.ca"));
        }
        let ca = self.open_ca(now)?;
        let recorded = server_keys::record_first(tx, KEY, &ca.digest(), now).await?;
        if recorded != ca.digest() {
            bail!(self.other_keys("another certificate authority", &recorded, folder, "auth.ca"));
        }
        Ok(())
    }

    /// Records the keys of this server in place of those that the database records. Creates missing
    /// keys.
    pub(crate) async fn accept(&self, store: &Store, now: DateTime<Utc>) -> anyhow::Result<()> {
        let tx = store.fleet().await?;
        let keys = self.open_keys()?;
        for (purpose, key) in SIGNING_KEYS {
            server_keys::replace(&tx, key, keys.signing_id(purpose), now).await?;
        }
        let ca = self.open_ca(now)?;
        server_keys::replace(&tx, SharedKey::Authority, &ca.digest(), now).await?;
        Ok(tx.commit().await?)
    }

    fn other_keys(&self, what: &str, known: &str, folder: &Path, setting: &str) -> String {
        format!(
            "the servers on this database have {what} (fingerprint {known}), which {} ({setting}) does not \
             contain: copy {} and {} from such a server or from a backup. If these keys are lost, \
             `evenkeeld accept-keys` makes the database accept the keys of this server; then tokens of the old \
             signing keys are invalid, and nodes of the old certificate authority must enrol again",
            folder.display(),
            self.keys.display(),
            self.ca.display(),
        )
    }
}
