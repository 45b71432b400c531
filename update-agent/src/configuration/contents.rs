//! Contents of files that a document does not contain.

use std::io::Read;

use evenkeel_configuration::document::SecretRef;
use evenkeel_reconcile::files::{ContentDigest, ContentError, ContentSource};

use super::SecretValues;

/// Secrets from a file of the operator.
#[derive(Debug)]
pub struct OperatorContents {
    secrets: SecretValues,
}

impl OperatorContents {
    pub fn new(secrets: SecretValues) -> Self {
        Self { secrets }
    }
}

impl ContentSource for OperatorContents {
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
        _: ContentDigest,
    ) -> Result<Box<dyn Read + '_>, ContentError> {
        Err(ContentError(format!("{uri} is not downloaded")))
    }
}
