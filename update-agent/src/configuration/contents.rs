//! Contents of files that a document does not contain.

use std::error::Error;
use std::fs::File;
use std::io::Read;
use std::path::PathBuf;

use evenkeel_configuration::document::SecretRef;
use evenkeel_fetch::Digest;
use evenkeel_reconcile::files::{ContentDigest, ContentError, ContentSource};
use tokio::runtime::Handle;

use super::SecretValues;
use crate::durable;
use crate::modules::image::FileDownloader;

/// Secrets from a file of the operator, and downloads.
#[derive(Debug)]
pub struct OperatorContents<'a> {
    pub secrets: &'a SecretValues,
    /// None in a check, which compares the digests.
    pub downloads: Option<Downloads<'a>>,
}

/// Downloads into a folder, from the thread of a run.
#[derive(Debug)]
pub struct Downloads<'a> {
    pub downloader: &'a FileDownloader,
    pub folder: PathBuf,
    pub handle: &'a Handle,
}

impl ContentSource for OperatorContents<'_> {
    fn open_secret(&self, secret: &SecretRef) -> Result<Box<dyn Read + '_>, ContentError> {
        let value = self.secrets.find(secret).ok_or_else(|| {
            let SecretRef { name, key, .. } = secret;
            ContentError(format!("the secret {name}/{key} has no value; give it with --secrets"))
        })?;
        Ok(Box::new(value.as_bytes()))
    }

    fn open_download(
        &self,
        uri: &str,
        digest: ContentDigest,
    ) -> Result<Box<dyn Read + '_>, ContentError> {
        let downloads = self.downloads.as_ref();
        let downloads =
            downloads.ok_or_else(|| ContentError(format!("{uri} is not downloaded")))?;
        Ok(Box::new(downloads.open(uri, digest).map_err(ContentError)?))
    }
}

impl Downloads<'_> {
    fn open(&self, uri: &str, digest: ContentDigest) -> Result<File, String> {
        durable::create_folder(&self.folder, 0o700).map_err(|error| describe(&error))?;
        let name = digest.to_string();
        let path = self.folder.join(&name);
        let digest = Digest::from_hex(&name).map_err(|error| describe(&error))?;
        self.handle.block_on(self.downloader.download(uri, digest, &path))?;
        File::open(&path).map_err(|error| describe(&error))
    }
}

fn describe(error: &(dyn Error + 'static)) -> String {
    evenkeel_kit::chain(error).to_string()
}
