//! `evenkeel os key`: generates keys to sign published operating systems.

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use clap::Args;
use evenkeel_registry::SigningKey;
use serde::Serialize;

use super::registry_options::read_signing_key;
use crate::Failure;
use crate::output::Printer;
use crate::page::DetailPage;

/// Generate a key pair to sign operating systems.
///
/// Use the private key with `--key` of `publish` and `mirror`, and keep it secret. Servers and
/// `evenkeel os verify` use the public key to verify signatures.
#[derive(Debug, Args)]
pub struct GenerateKey {
    /// File for the private key. It is not encrypted: keep it where only you can read it. The public
    /// key is written to a file with this name and the suffix `.pub`.
    file: PathBuf,
    /// Print the public key of an existing private key, and generate none.
    #[arg(long)]
    public: bool,
}

/// JSON form of a generated key.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct CreatedKey<'a> {
    key: &'a Path,
    public_key: &'a Path,
    id: String,
}

impl GenerateKey {
    pub fn run(self, printer: &mut Printer<'_>) -> Result<(), Failure> {
        if self.public
            && let Some(key) = read_signing_key(Some(&self.file))?
        {
            return printer.print_text(key.public_pem().trim_end());
        }
        let mut public = self.file.clone().into_os_string();
        public.push(".pub");
        let public = PathBuf::from(public);
        let key = SigningKey::generate();
        write_new(&self.file, 0o600, &key.pem())?;
        if let Err(failure) = write_new(&public, 0o644, &key.public_pem()) {
            // Do not leave half a pair. The first error matters more than one of the removal.
            let _ = std::fs::remove_file(&self.file);
            return Err(failure);
        }
        let created = CreatedKey { key: &self.file, public_key: &public, id: key.id() };
        let mut page = DetailPage::default();
        page.field("key", self.file.display().to_string())
            .field("public key", public.display().to_string())
            .field("id", &created.id);
        printer.print_page(&created, &created.id, &page)
    }
}

/// Writes a new file; fails if it exists.
fn write_new(path: &Path, mode: u32, text: &str) -> Result<(), Failure> {
    let file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path);
    let written = file.and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        file.sync_all()
    });
    written.map_err(|source| match source.kind() {
        io::ErrorKind::AlreadyExists => Failure::usage_with(
            format!("{} already exists", path.display()),
            "choose another name: a replaced key cannot be recovered",
        ),
        _ => Failure::File { path: path.to_owned(), source },
    })
}
