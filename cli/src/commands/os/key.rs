//! `evenkeel os key`: keys that sign what is published.

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use clap::Args;
use evenkeel_registry::SigningKey;
use serde::Serialize;

use super::entry::signing_key;
use crate::Failure;
use crate::view::{Page, Printer};

/// Make a key that signs what is published, and its public half beside it.
///
/// The key is for `--key` of `publish` and `mirror` and is kept secret. Its public half is for servers, which trust what is
/// signed by it, and for `evenkeel os verify`.
#[derive(Debug, Args)]
pub struct MakeKey {
    /// Where to put the key. It is not encrypted: keep it where only you can read it. The public half is put into a file
    /// with this name and `.pub`.
    file: PathBuf,
    /// Print the public half of a key that is there, and make none.
    #[arg(long)]
    public: bool,
}

/// What was made, as programs read it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Made<'a> {
    key: &'a Path,
    public_key: &'a Path,
    id: String,
}

impl MakeKey {
    pub fn run(self, printer: &mut Printer<'_>) -> Result<(), Failure> {
        if self.public
            && let Some(key) = signing_key(Some(&self.file))?
        {
            return printer.text(key.public_pem().trim_end());
        }
        let mut public = self.file.clone().into_os_string();
        public.push(".pub");
        let public = PathBuf::from(public);
        let key = SigningKey::make();
        write_new(&self.file, 0o600, &key.pem())?;
        if let Err(failure) = write_new(&public, 0o644, &key.public_pem()) {
            // Half a pair is of no use; that it cannot be written says more than that it cannot be removed.
            let _ = std::fs::remove_file(&self.file);
            return Err(failure);
        }
        let made = Made {
            key: &self.file,
            public_key: &public,
            id: key.id(),
        };
        let mut page = Page::default();
        page.field("key", self.file.display().to_string())
            .field("public half", public.display().to_string())
            .field("id", made.id.clone());
        printer.page(&made, &made.id, &page)
    }
}

/// Writes a file that must not be there yet.
fn write_new(path: &Path, mode: u32, text: &str) -> Result<(), Failure> {
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(path);
    let written = file.and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        file.sync_all()
    });
    written.map_err(|source| match source.kind() {
        io::ErrorKind::AlreadyExists => Failure::usage_with(
            format!("{} is there already", path.display()),
            "choose another name; a key that was replaced cannot be had back",
        ),
        _ => Failure::File {
            path: path.to_owned(),
            source,
        },
    })
}
