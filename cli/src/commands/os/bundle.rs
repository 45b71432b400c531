//! `evenkeel os bundle` and `import`: operating systems in one file, for sites without a network.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;
use evenkeel_registry::copy::everything;
use evenkeel_registry::layout::Layout;
use evenkeel_registry::{Address, Limits, MoveError, Selection, Wanted, copy, pack, unpack};

use super::entry::{Beside, Choice, Entry, profiles, signing_key, unusable, wanted};
use super::mirror::{Between, show};
use super::steps::{size, watched};
use crate::view::{Page, Printer};
use crate::{Ending, Failure};

/// Put operating systems into one file that can be carried to a site without a network.
///
/// The file is an OCI image layout in a tar (`oci-archive`). The same line carries on with one that was interrupted. Exits
/// with 3 if something had to be left out.
#[derive(Debug, Args)]
pub struct MakeBundle {
    /// The file to write.
    file: PathBuf,
    /// Where from: `https://HOST`, `http://HOST`, or `oci:FOLDER` for a folder in OCI image layout.
    #[arg(long, value_name = "REGISTRY")]
    from: Address,
    /// Which revisions: one such as `0.3.1`, or `~0.3.1` for it and all later patches of 0.3 [default: all of a folder].
    #[arg(long, value_parser = wanted)]
    revision: Option<Wanted>,
    /// Sign what is put in with this key. Signatures that are there are put in in any case.
    #[arg(long, value_name = "FILE", requires = "revision")]
    key: Option<PathBuf>,
    /// The folder in which all is gathered; that needs as much room as the file [default: the one that the file lies in].
    #[arg(long, value_name = "FOLDER")]
    work: Option<PathBuf>,
    #[command(flatten)]
    choice: Choice,
    #[command(flatten)]
    beside: Beside,
    #[command(flatten)]
    entry: Entry,
}

/// Take what a bundle holds into a registry.
///
/// The whole bundle is checked before anything is copied, and tags come last: a bundle that is cut off or damaged changes
/// nothing. What is there already is not copied again.
#[derive(Debug, Args)]
pub struct Import {
    /// The bundle.
    file: PathBuf,
    /// Where to: `https://HOST`, `http://HOST`, or `oci:FOLDER` for a folder in OCI image layout.
    #[arg(long, value_name = "REGISTRY")]
    to: Address,
    /// The folder in which it is unpacked; that needs as much room as the bundle [default: the one that the bundle lies in].
    #[arg(long, value_name = "FOLDER")]
    work: Option<PathBuf>,
    /// Check the bundle, say what would be copied, and copy nothing.
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    entry: Entry,
}

impl MakeBundle {
    pub async fn run(self, printer: &mut Printer<'_>) -> Result<Ending, Failure> {
        let Some(revision) = &self.revision else {
            return self.whole_folder(printer);
        };
        let access = self.entry.access(&self.from)?;
        let from = self.entry.open(&self.from)?;
        let web = self.beside.web(&access)?;
        let work = own_folder(&self.file, ".work", self.work.as_deref());
        let layout = work.join("layout");
        let at = Address::Layout(layout.clone());
        let to = Layout::open(&layout, &Limits::default()).map_err(unusable(&at))?;
        let upstream = self.beside.upstream(&*from, &web, &self.choice);
        let selection = Selection {
            profiles: profiles(&self.choice, &self.from).await?,
            wanted: revision.clone(),
            images: !self.choice.no_images,
            work: work.join("parts"),
            key: signing_key(self.key.as_deref())?,
        };
        let copied = watched(printer, async |tell| {
            copy(&upstream, &to, &selection, tell).await
        });
        let copied = copied.await?.map_err(|source| self.failed(source))?;
        pack(&layout, &self.file).map_err(|source| self.failed(source))?;
        // It is ours alone. If it cannot be removed, the bundle is as good.
        let _ = fs::remove_dir_all(&work);
        let ending = show(&copied, &self.from, printer)?;
        self.written(printer)?;
        Ok(ending)
    }

    /// Packs all that lies in a folder, as it is.
    fn whole_folder(&self, printer: &mut Printer<'_>) -> Result<Ending, Failure> {
        let is_cut = !self.choice.profiles.is_empty() || self.choice.no_images;
        let Address::Layout(folder) = &self.from else {
            return Err(Failure::usage_with(
                "a registry in the network is not bundled as a whole",
                "say which revisions: `--revision ~0.3.1`, and which profiles: `--profile NAME`",
            ));
        };
        if is_cut {
            return Err(Failure::usage_with(
                "without --revision all that lies in the folder is bundled",
                "say which revisions: `--revision ~0.3.1`",
            ));
        }
        pack(folder, &self.file).map_err(|source| self.failed(source))?;
        let mut page = Page::default();
        page.field("from", self.from.to_string())
            .field("bundle", self.file.display().to_string());
        let told = serde_json::json!({ "registry": self.from.to_string(), "file": self.file });
        printer.page(&told, &self.file.display().to_string(), &page)?;
        Ok(Ending::Done)
    }

    fn written(&self, printer: &mut Printer<'_>) -> Result<(), Failure> {
        let length = fs::metadata(&self.file).map_or(0, |file| file.len());
        printer.line(&format!(
            "{} is written, {}",
            self.file.display(),
            size(length)
        ))
    }

    fn failed(&self, source: MoveError) -> Failure {
        Failure::Moving {
            doing: format!("bundle {} as {}", self.from, self.file.display()),
            source: Box::new(source),
        }
    }
}

impl Import {
    pub async fn run(self, printer: &mut Printer<'_>) -> Result<Ending, Failure> {
        let to = self.entry.open(&self.to)?;
        let unpacked = Unpacked::of(&self.file, self.work.as_deref())?;
        let layout = unpacked.layout()?;
        if self.dry_run {
            let at = unpacked.address();
            let between = Between {
                from: (&layout, &at),
                to: (&*to, &self.to),
            };
            let tags = layout.all_tags().await.map_err(unusable(&at))?;
            return between.compare(tags, printer).await;
        }
        let copied = watched(printer, async |tell| everything(&layout, &*to, tell).await);
        let copied = copied.await?.map_err(|source| Failure::Moving {
            doing: format!("import {} to {}", self.file.display(), self.to),
            source: Box::new(source),
        })?;
        show(&copied, &self.to, printer)
    }
}

/// A bundle that was unpacked and checked. It is removed when it is not needed any more.
#[derive(Debug)]
pub struct Unpacked {
    folder: PathBuf,
}

impl Unpacked {
    /// Unpacks a bundle into a folder of its own below `work`, which is the one that the bundle lies in if none is named.
    ///
    /// # Errors
    /// The bundle is not whole, or there is no room.
    pub fn of(file: &Path, work: Option<&Path>) -> Result<Self, Failure> {
        let folder = own_folder(file, ".unpacked", work);
        // Another import that was killed may have left it.
        if folder.exists() && !is_unpacked(&folder) {
            return Err(Failure::usage_with(
                format!("{} holds something else than a bundle", folder.display()),
                "remove it, or name another folder with --work",
            ));
        }
        let unpacked = Self { folder };
        unpacked.remove();
        unpack(file, &unpacked.folder, &Limits::default()).map_err(|source| Failure::Moving {
            doing: format!("unpack {}", file.display()),
            source: Box::new(source),
        })?;
        Ok(unpacked)
    }

    /// What was in the bundle, as a registry.
    ///
    /// # Errors
    /// Somebody removed it meanwhile.
    pub fn layout(&self) -> Result<Layout, Failure> {
        let opened = Layout::open(&self.folder, &Limits::default());
        opened.map_err(unusable(&self.address()))
    }

    /// Where it is.
    pub fn address(&self) -> Address {
        Address::Layout(self.folder.clone())
    }

    fn remove(&self) {
        // If it is not there, all is well; if it cannot be removed, whoever comes next is told so.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

impl Drop for Unpacked {
    fn drop(&mut self) {
        self.remove();
    }
}

/// Whether a folder holds nothing but what unpacking a bundle puts there.
fn is_unpacked(folder: &Path) -> bool {
    let of_a_layout = |name: &OsStr| {
        let name = name.to_str().unwrap_or_default();
        let whole = name.strip_suffix(".part").unwrap_or(name);
        matches!(whole, "oci-layout" | "index.json" | "blobs" | ".lock")
    };
    let mut entries = fs::read_dir(folder).into_iter().flatten();
    folder.is_dir() && entries.all(|entry| entry.is_ok_and(|entry| of_a_layout(&entry.file_name())))
}

/// A folder of our own for a file: its name with an end, in the folder that was named, else beside it.
fn own_folder(file: &Path, end: &str, named: Option<&Path>) -> PathBuf {
    let mut name = file.file_name().unwrap_or_default().to_owned();
    name.push(end);
    named.map_or_else(|| file.with_file_name(&name), |named| named.join(&name))
}
