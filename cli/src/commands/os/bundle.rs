//! `evenkeel os bundle` and `import`: operating systems in one file, for sites without a network.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;
use evenkeel_registry::copy::copy_layout;
use evenkeel_registry::layout::Layout;
use evenkeel_registry::{
    Address, CopyError, CopyOptions, Limits, RevisionSelector, copy, pack, unpack,
};

use super::mirror::{Comparison, print_copied};
use super::progress::{format_size, with_progress};
use super::registry_options::{
    ExternalFiles, ProfileSelection, RegistryOptions, parse_revisions, read_signing_key,
    registry_failure, resolve_profiles,
};
use crate::output::Printer;
use crate::page::DetailPage;
use crate::{Ending, Failure};

/// Write operating systems to one file, for sites without a network.
///
/// The file is a tar archive of an OCI image layout (`oci-archive`). Repeat the same command to
/// continue an interrupted one. Exits with status 3 if something was left out.
#[derive(Debug, Args)]
pub struct CreateBundle {
    /// File to write.
    file: PathBuf,
    /// Source: `https://HOST`, `http://HOST`, or `oci:FOLDER` for an OCI image layout.
    #[arg(long, value_name = "REGISTRY")]
    from: Address,
    /// Revisions to include: one such as `0.3.1`, or `~0.3.1` for it and later patches of 0.3
    /// [default: everything in the folder].
    #[arg(long, value_parser = parse_revisions)]
    revision: Option<RevisionSelector>,
    /// Sign the contents with this private key, in addition to existing signatures.
    #[arg(long, value_name = "FILE", requires = "revision")]
    key: Option<PathBuf>,
    /// Working folder; needs as much space as FILE [default: next to FILE].
    #[arg(long, value_name = "FOLDER")]
    work: Option<PathBuf>,
    #[command(flatten)]
    selection: ProfileSelection,
    #[command(flatten)]
    external_files: ExternalFiles,
    #[command(flatten)]
    registry_options: RegistryOptions,
}

/// Import a bundle into a registry.
///
/// The whole bundle is checked before anything is copied, and tags are written last: a truncated or
/// damaged bundle changes nothing. Existing contents are not copied again.
#[derive(Debug, Args)]
pub struct Import {
    /// Bundle to import.
    file: PathBuf,
    /// Target: `https://HOST`, `http://HOST`, or `oci:FOLDER` for an OCI image layout.
    #[arg(long, value_name = "REGISTRY")]
    to: Address,
    /// Folder to unpack the bundle in; needs as much space as FILE [default: next to FILE].
    #[arg(long, value_name = "FOLDER")]
    work: Option<PathBuf>,
    /// Check the bundle and show what would be copied, without copying.
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    registry_options: RegistryOptions,
}

impl CreateBundle {
    pub async fn run(self, printer: &mut Printer<'_>) -> Result<Ending, Failure> {
        let Some(revision) = &self.revision else {
            return self.bundle_folder(printer);
        };
        let access = self.registry_options.access(&self.from)?;
        let from = self.registry_options.open(&self.from)?;
        let web = self.external_files.web_client(&access)?;
        let work = work_folder(&self.file, ".work", self.work.as_deref());
        let layout = work.join("layout");
        let at = Address::Layout(layout.clone());
        let to = Layout::open(&layout, &Limits::default()).map_err(registry_failure(&at))?;
        let upstream = self.external_files.upstream(&*from, &web, &self.selection);
        let selection = CopyOptions {
            profiles: resolve_profiles(&self.selection, &self.from).await?,
            revision_filter: revision.clone(),
            with_images: !self.selection.no_images,
            work_dir: work.join("parts"),
            key: read_signing_key(self.key.as_deref())?,
        };
        let copied = with_progress(printer, async |progress| {
            copy(&upstream, &to, &selection, progress).await
        });
        let copied = copied.await?.map_err(|source| self.transfer_error(source))?;
        pack(&layout, &self.file).map_err(|source| self.transfer_error(source))?;
        // If the work folder cannot be removed, the bundle is still complete.
        let _ = fs::remove_dir_all(&work);
        let ending = print_copied(&copied, &self.from, printer)?;
        self.print_written(printer)?;
        Ok(ending)
    }

    /// Packs a whole folder as it is.
    fn bundle_folder(&self, printer: &mut Printer<'_>) -> Result<Ending, Failure> {
        let has_selection = !self.selection.profiles.is_empty() || self.selection.no_images;
        let Address::Layout(folder) = &self.from else {
            return Err(Failure::usage_with(
                "a registry in the network cannot be bundled as a whole",
                "select revisions with `--revision ~0.3.1` and profiles with `--profile NAME`",
            ));
        };
        if has_selection {
            return Err(Failure::usage_with(
                "--profile and --no-images need --revision: without it the whole folder is bundled",
                "select revisions with `--revision ~0.3.1`",
            ));
        }
        pack(folder, &self.file).map_err(|source| self.transfer_error(source))?;
        let mut page = DetailPage::default();
        page.field("from", self.from.to_string()).field("bundle", self.file.display().to_string());
        let report = serde_json::json!({ "registry": self.from.to_string(), "file": self.file });
        printer.print_page(&report, &self.file.display().to_string(), &page)?;
        Ok(Ending::Done)
    }

    fn print_written(&self, printer: &mut Printer<'_>) -> Result<(), Failure> {
        let length = fs::metadata(&self.file).map_or(0, |file| file.len());
        printer.print_line(&format!("wrote {} ({})", self.file.display(), format_size(length)))
    }

    fn transfer_error(&self, source: CopyError) -> Failure {
        Failure::Transfer {
            action: format!("bundle {} as {}", self.from, self.file.display()),
            source: Box::new(source),
        }
    }
}

impl Import {
    pub async fn run(self, printer: &mut Printer<'_>) -> Result<Ending, Failure> {
        let to = self.registry_options.open(&self.to)?;
        let unpacked = UnpackedBundle::from_file(&self.file, self.work.as_deref())?;
        let layout = unpacked.layout()?;
        if self.dry_run {
            let at = unpacked.address();
            let comparison = Comparison { from: (&layout, &at), to: (&*to, &self.to) };
            let tags = layout.all_tags().await.map_err(registry_failure(&at))?;
            return comparison.compare(tags, printer).await;
        }
        let copied =
            with_progress(printer, async |progress| copy_layout(&layout, &*to, progress).await);
        let copied = copied.await?.map_err(|source| Failure::Transfer {
            action: format!("import {} to {}", self.file.display(), self.to),
            source: Box::new(source),
        })?;
        print_copied(&copied, &self.to, printer)
    }
}

/// An unpacked and verified bundle. Dropping it removes the folder.
#[derive(Debug)]
pub struct UnpackedBundle {
    folder: PathBuf,
}

impl UnpackedBundle {
    /// Unpacks a bundle into a new folder below `work`, by default next to the bundle.
    ///
    /// # Errors
    /// The bundle is damaged, or the disk is full.
    pub fn from_file(file: &Path, work: Option<&Path>) -> Result<Self, Failure> {
        let folder = work_folder(file, ".unpacked", work);
        // A killed import may have left the folder behind.
        if folder.exists() && !is_unpacked_bundle(&folder) {
            return Err(Failure::usage_with(
                format!("{} holds other files than an unpacked bundle", folder.display()),
                "remove it, or choose another folder with --work",
            ));
        }
        let unpacked = Self { folder };
        unpacked.remove();
        unpack(file, &unpacked.folder, &Limits::default()).map_err(|source| Failure::Transfer {
            action: format!("unpack {}", file.display()),
            source: Box::new(source),
        })?;
        Ok(unpacked)
    }

    /// Opens the contents of the bundle as a registry.
    pub fn layout(&self) -> Result<Layout, Failure> {
        let opened = Layout::open(&self.folder, &Limits::default());
        opened.map_err(registry_failure(&self.address()))
    }

    /// Address of the unpacked bundle.
    pub fn address(&self) -> Address {
        Address::Layout(self.folder.clone())
    }

    fn remove(&self) {
        // The folder may not exist. If it cannot be removed, the next import reports that.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

impl Drop for UnpackedBundle {
    fn drop(&mut self) {
        self.remove();
    }
}

/// Whether a folder contains only files that unpacking a bundle creates.
fn is_unpacked_bundle(folder: &Path) -> bool {
    let of_a_layout = |name: &OsStr| {
        let name = name.to_str().unwrap_or_default();
        let base_name = name.strip_suffix(".part").unwrap_or(name);
        matches!(base_name, "oci-layout" | "index.json" | "blobs" | ".lock")
    };
    let mut entries = fs::read_dir(folder).into_iter().flatten();
    folder.is_dir() && entries.all(|entry| entry.is_ok_and(|entry| of_a_layout(&entry.file_name())))
}

/// Path of a work folder for a file: its name with a suffix, in `parent` or next to the file.
fn work_folder(file: &Path, end: &str, parent: Option<&Path>) -> PathBuf {
    let mut name = file.file_name().unwrap_or_default().to_owned();
    name.push(end);
    parent.map_or_else(|| file.with_file_name(&name), |parent| parent.join(&name))
}
