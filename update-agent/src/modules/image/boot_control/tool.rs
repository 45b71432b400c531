//! The image tool of an earlier system, `os-update-tool.sh`, which writes whole-disk images and starts a slot once.
//!
//! The tool has faults that are answered here:
//!
//! | Fault | Answer |
//! | --- | --- |
//! | `-c` keeps whatever runs | called only when the slot to keep is the one that runs |
//! | `-a` takes a half prepared slot | what it set aside is removed before `-w`, noted then, compared before `-a` |
//! | kernels are copied by dd | compared after `-a`; if they differ, the order to start it is taken back |
//! | it goes on when nobody waits for it any longer | it holds a lock ([`calls`]); while it does, nothing is begun |
//! | a slot is started once and nothing counts | `panic=` and a watchdog are required |
//! | nothing tells afterwards that it was to be started | that is noted before `-a`, until it is taken back or kept |
//! | letters of paths, `.zst`, room | refused before it is called, and at the plan as far as that can be told |
//! | `--dev`, `-r` | never used |

mod calls;
mod link;
mod names;
mod note;
mod told;

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio_util::sync::CancellationToken;

use self::link::{Link, is_taken};
use self::names::{is, kernels, slot_of, slot_of_partition};
use self::note::{Mark, Note};
use self::told::Told;
use super::files::{self, broken};
use super::mounts::{self, Partition};
use super::{BootControl, System, blocking, checks, failed, read_again};
use crate::config::ImageConfig;
use crate::durable;
use crate::model::{Failure, FailureKind, ImageWish};
use crate::modules::image::device::storage;
use crate::modules::image::slots::{Entry, Raw, Seen, Slot, What};
use crate::modules::image::spool::Spooled;
use crate::modules::image::uki;
use crate::os::OsRelease;
use crate::runner::Runner;

/// Where the ESP is mounted, unless it is configured.
const ESP: &str = "/boot/efi";

/// The folder of the two kernels, below the ESP.
const KERNELS: &str = "EFI/Linux";

/// The kernel of the slot that was written last, until it is kept.
const ASIDE: &str = "EFI/Linux/os-update-tool-data/linux.bak";

/// Where the tool unpacks, and the bytes that it wants to be free there.
const UNPACKS: &str = "/opt/OS/abupdate";
const ROOM: u64 = 2500 << 20;

/// What says when the image was built, where os-release(5) names no version of it.
const IMAGE: &str = "/etc/image-id";

/// Why a machine must have a watchdog.
const NO_COUNT: &str = "the image tool starts a slot without counting its boots, so that nothing else ends one that hangs";

/// How long the tool may take to answer, to set something, and to write.
const LOOK: Duration = Duration::from_mins(2);
const SET: Duration = Duration::from_mins(5);
const WRITE: Duration = Duration::from_hours(1);

/// How long a look may take together with what is set after it: to keep a slot the tool copies kernels.
const PATIENCE: Duration = Duration::from_mins(6);

/// The tool.
pub struct Tool {
    system: System,
    runner: Arc<dyn Runner>,
    program: String,
    esp: PathBuf,
    /// Held by the work on a slot itself, which goes on when nobody waits for it any longer: never two of it.
    work: Arc<Mutex<()>>,
}

impl fmt::Debug for Tool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tool")
            .field("program", &self.program)
            .field("esp", &self.esp)
            .finish_non_exhaustive()
    }
}

impl Tool {
    /// Boot control by the program at `tool`, as seen from inside the managed root.
    pub fn new(system: System, runner: Arc<dyn Runner>, tool: &Path, config: &ImageConfig) -> Self {
        let esp = config.esp.as_deref().unwrap_or(Path::new(ESP));
        Self {
            esp: system.inside(esp),
            system,
            runner,
            program: tool.display().to_string(),
            work: Arc::default(),
        }
    }

    async fn alone(&self) -> OwnedMutexGuard<()> {
        Arc::clone(&self.work).lock_owned().await
    }

    /// Does work on the ESP, which may hang.
    async fn on_esp<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Path) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        let esp = self.esp.clone();
        blocking(move || work(&esp)).await
    }

    /// The slot that runs: as the tool shows it, else by the partition of the root.
    async fn booted(&self) -> Result<Option<Slot>, Failure> {
        let shown = self.run(&self.command(LOOK, &["-v"])).await?.words();
        let partitions = mounts::partitions(&self.system.sys);
        let named =
            shown.split(|letter: char| letter.is_whitespace() || ":,;()'\"".contains(letter));
        let mut slots = named
            .filter_map(|word| word.strip_prefix("/dev/"))
            .filter_map(|node| slot_of(node, &partitions));
        if let Some(slot) = slots.next() {
            if slots.any(|other| other != slot) {
                return Err(failed(format!("{} -v names both slots", self.program)));
            }
            return Ok(Some(slot));
        }
        let root = mounts::of_root(&self.system.mounts()?, &self.system.sys);
        Ok(root.and_then(|root| slot_of(&root.node, &partitions)))
    }

    fn told(&self) -> Result<Told, Failure> {
        Told::read(&self.system.efi)
    }

    /// The device of a slot, below the `dev` of the managed root.
    fn device(&self, slot: Slot) -> Result<PathBuf, Failure> {
        let dev = self.system.place.inside("/dev");
        // With an encrypted disk the slots are behind these.
        let mapped = dev.join(format!("mapper/rootfs_{}", super::entries::letter(slot)));
        if mapped.exists() {
            return Ok(mapped);
        }
        let found: Vec<Partition> = mounts::partitions(&self.system.sys)
            .into_iter()
            .filter(|partition| slot_of_partition(partition) == Some(slot))
            .collect();
        match found.as_slice() {
            [one] => Ok(dev.join(&one.node)),
            _ => Err(storage(format!(
                "slot {} has {} partitions named rootfs, and should have one",
                super::entries::letter(slot),
                found.len()
            ))),
        }
    }

    fn image(&self) -> Option<(String, String)> {
        self.system.image().or_else(|| {
            let profile = OsRelease::of(&self.system.place).image_id;
            let text = fs::read_to_string(self.system.place.inside(IMAGE)).ok()?;
            let mut lines = text.lines().map(str::trim);
            let built = lines.find_map(|line| line.strip_prefix("IMAGE_BUILD_DATE="))?;
            let built = built.trim_matches('"').to_owned();
            (!profile.is_empty() && !built.is_empty()).then_some((profile, built))
        })
    }

    fn note(&self) -> PathBuf {
        self.system.place.state().join("image-tool.json")
    }

    /// Fails unless the kernel that was set aside is the one of this image, whole.
    async fn must_be_noted(&self, what: &What) -> Result<Note, Failure> {
        let note = Note::read(&self.note())?;
        let note = note.filter(|note| note.file == what.file).ok_or_else(|| {
            failed(format!(
                "the image {} was not written by {} to its end: let it be written again",
                what.image_id, self.program
            ))
        })?;
        let aside = self.on_esp(|esp| files::digest(&esp.join(ASIDE))).await?;
        if aside == note.kernel {
            return Ok(note);
        }
        Err(failed(format!(
            "{ASIDE} is not the kernel that {} set aside: let the image be written again",
            self.program
        )))
    }

    /// The entry of a slot that the loader is to start once. What was ordered in this boot is compared whenever it is
    /// looked at: an agent that ended before it had compared left an order that may start half a kernel.
    async fn ordered(&self, slot: Slot, boot_id: &str) -> Result<Entry, Failure> {
        let note = Note::read(&self.note())?;
        let Some(note) = note.filter(|note| note.is_ordered(slot, boot_id)) else {
            return Ok(Entry::Once);
        };
        let judged = match self.must_be_free() {
            Ok(()) => self.judge(&note).await,
            busy => busy,
        };
        Ok(match judged {
            Ok(()) => Entry::Once,
            Err(failure) => Entry::Strange(failure.reason),
        })
    }

    /// What the loader does with the slot that does not run.
    async fn waiting(&self, slot: Slot, boot_id: &str, told: &Told) -> Result<Entry, Failure> {
        let (_, other) = kernels(&told.selected);
        if is(told.once.as_deref(), other) {
            return self.ordered(slot, boot_id).await;
        }
        if is(told.default.as_deref(), other) {
            return Ok(Entry::Plain);
        }
        // The loader forgets its order when it follows it. If the image ended before it wrote down that it runs, this
        // is all that tells it from one that nothing ever started.
        match Note::read(&self.note())? {
            Some(note) if note.was_tried(slot, boot_id) => Ok(Entry::Once),
            _ => Ok(Entry::Absent),
        }
    }

    /// Whether the next boot, and only that, starts the kernel that was noted.
    async fn judge(&self, note: &Note) -> Result<(), Failure> {
        let (told, kernel) = (self.told()?, note.kernel);
        self.on_esp(move |esp| told.judge(esp, &kernel)).await
    }
}

/// Fails if the tool wants more room than there is.
fn must_suffice(free: u64) -> Result<(), Failure> {
    if free >= ROOM {
        return Ok(());
    }
    Err(storage(format!(
        "the image tool wants {} MiB free below {UNPACKS}, and there are {}: remove what is not needed there",
        ROOM >> 20,
        free >> 20
    )))
}

#[async_trait::async_trait]
impl BootControl for Tool {
    fn name(&self) -> &'static str {
        "os-update-tool"
    }

    fn patience(&self) -> Duration {
        PATIENCE
    }

    async fn look(&self) -> Result<Seen, Failure> {
        let booted = self.booted().await?;
        let boot_id = self.system.boot_id()?;
        let told = self.told()?;
        let (_, other) = kernels(&told.selected);
        // Without a default there was no update yet: what runs is what starts.
        let runs = if is(told.default.as_deref(), other) {
            Entry::Once
        } else {
            Entry::Plain
        };
        let (a, b) = match booted {
            Some(Slot::A) => (runs, self.waiting(Slot::B, &boot_id, &told).await?),
            Some(Slot::B) => (self.waiting(Slot::A, &boot_id, &told).await?, runs),
            None => (Entry::Absent, Entry::Absent),
        };
        Ok(Seen {
            booted,
            boot_id,
            image: self.image(),
            a,
            b,
            foreign: Vec::new(),
        })
    }

    async fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        if let Err(failure) = self.booted().await {
            faults.push(failure.reason);
        }
        if let Err(failure) = self.told() {
            faults.push(failure.reason);
        }
        // Nothing counts boots here: a machine that hangs comes back only by these.
        faults.extend(checks::watchdog(&self.system.sys, NO_COUNT));
        if let Err(why) = checks::panics(&self.system.cmdline()) {
            faults.push(format!("of the kernel that runs: {why}"));
        }
        if !is_taken(self.system.place.state()) {
            faults.push(format!(
                "the image tool takes no path such as {}: put the state folder where names have letters, digits and ._/- \
                 only",
                self.system.place.state().display()
            ));
        }
        faults
    }

    /// What the file really is, its first bytes tell when it is there. A name that says so saves a download.
    fn refuses(&self, wish: &ImageWish) -> Option<Failure> {
        let path = wish.url.split(['?', '#']).next().unwrap_or_default();
        let ending = Path::new(path).extension()?;
        ending.eq_ignore_ascii_case("zst").then(link::no_zstd)
    }

    async fn room(&self, _slot: Slot) -> Result<u64, Failure> {
        let folder = self.system.place.inside(UNPACKS);
        let there = folder.ancestors().find(|folder| folder.is_dir());
        let there = there.unwrap_or(Path::new("/"));
        let found = rustix::fs::statvfs(there)
            .map_err(|error| storage(format!("cannot look at {}: {error}", there.display())))?;
        let free = found.f_bavail.saturating_mul(found.f_frsize);
        must_suffice(free)?;
        Ok(free)
    }

    async fn withdraw(&self, slot: Slot) -> Result<(), Failure> {
        // One that is at work might give the order when it was taken back.
        self.must_be_free()?;
        let seen = self.look().await?;
        // While the slot itself runs there is no order, and its mark stays: it may be all that says that it was tried.
        if seen.booted == Some(slot.other()) {
            match seen.entry(slot) {
                Entry::Once | Entry::Strange(_) => self.take_back().await?,
                Entry::Plain => {
                    return Err(failed(
                        "the slot is the one that starts by default: without it there would be nothing to start",
                    ));
                }
                Entry::Absent | Entry::Counted { .. } => {}
            }
            // The order first: while it may stand, so does its mark.
            Note::unmark(&self.note(), slot)?;
        }
        self.on_esp(files::flush).await
    }

    async fn write(
        &self,
        slot: Slot,
        from: &Spooled,
        stop: &CancellationToken,
    ) -> Result<Raw, Failure> {
        let alone = self.alone().await;
        self.must_be_free()?;
        if self.booted().await? != Some(slot.other()) {
            return Err(failed(format!(
                "{} writes the slot that does not run, and that is not slot {}",
                self.program,
                super::entries::letter(slot)
            )));
        }
        let link = Link::make(from)?;
        // What an earlier image set aside must not be taken for that of this one.
        self.withdraw(slot).await?;
        durable::remove(&self.note()).map_err(broken)?;
        self.on_esp(|esp| {
            durable::remove(&esp.join(ASIDE)).map_err(broken)?;
            files::flush(esp)
        })
        .await?;
        if stop.is_cancelled() {
            return Err(Failure::new(
                FailureKind::Interrupted,
                "the agent was told to stop before the image was written",
            ));
        }
        let path = self.system.as_seen(link.path()).display().to_string();
        // The tool hashes what it writes: this is what was signed, not what the disk gives now.
        let digest = from.sha256.to_string();
        self.change(WRITE, &["-w", "-u", &path, "-s", &digest])
            .await?;
        let aside = self.esp.join(ASIDE);
        let device = self.device(slot)?;
        let (kernel, raw) = blocking(move || {
            let _alone = alone;
            Ok((files::digest(&aside)?, files::raw(&device)?))
        })
        .await?;
        // From here on the slot may be armed: the tool came to its end.
        let note = Note {
            file: from.sha256,
            kernel,
            mark: None,
        };
        note.write(&self.note())?;
        Ok(raw)
    }

    async fn reread(&self, slot: Slot, raw: &Raw) -> Result<(), Failure> {
        let alone = self.alone().await;
        let device = self.device(slot)?;
        read_again(alone, device, *raw).await
    }

    async fn kernel(&self, slot: Slot, what: &What) -> Result<(), Failure> {
        // The tool set the kernel aside when it wrote the slot; `-a` puts it in its place.
        self.must_be_noted(what).await?;
        let judged = self
            .on_esp(|esp| Ok(uki::cmdline(&esp.join(ASIDE))))
            .await?;
        judged
            .and_then(|cmdline| checks::cmdline(&cmdline, slot))
            .map_err(|why| {
                failed(format!(
                    "the kernel of the image {} cannot be tried: {why}",
                    what.image_id
                ))
            })
    }

    async fn arm(&self, slot: Slot, what: &What, _sequence: u32) -> Result<(), Failure> {
        self.must_be_free()?;
        let mut note = self.must_be_noted(what).await?;
        if self.booted().await? != Some(slot.other()) {
            return Err(failed(format!(
                "{} arms the slot that does not run, and that is not slot {}",
                self.program,
                super::entries::letter(slot)
            )));
        }
        // Left by an agent that ended before it had compared: while a kernel is copied nothing may start it.
        if self.told()?.once.is_some() {
            self.take_back().await?;
        }
        // The mark before the order, on the disk: without it an image that panics before it writes down that it runs
        // (W8) would be taken for one that was never started, and be armed again without end. The price: if the power
        // goes between the two, an image that was not started looks as if it had failed, and only a person has it tried
        // again. An agent alone that ends there costs nothing: the mark says nothing in its own boot.
        note.mark = Some(Mark {
            slot,
            boot_id: self.system.boot_id()?,
        });
        note.write(&self.note())?;
        let judged = match self.change(SET, &["-a"]).await {
            Ok(()) => self.judge(&note).await,
            error => error,
        };
        // A call that is still at work could give its order after it was taken back. So the mark stays, and what is
        // ordered is compared whenever it is looked at.
        if judged.is_err() && self.must_be_free().is_ok() {
            // Half armed is not armed, and was not tried. The order first: while it may stand, so does its mark.
            self.take_back().await?;
            Note::unmark(&self.note(), slot)?;
        }
        judged
    }

    async fn bless(&self, slot: Slot) -> Result<(), Failure> {
        let seen = self.look().await?;
        if seen.booted != Some(slot) {
            return Err(failed(format!(
                "{} would keep the slot that runs, and that is not slot {}",
                self.program,
                super::entries::letter(slot)
            )));
        }
        // If it starts by default already, an earlier try came so far.
        if *seen.entry(slot) != Entry::Plain {
            self.change(SET, &["-c"]).await?;
            let told = self.told()?;
            if !is(told.default.as_deref(), kernels(&told.selected).0) {
                return Err(failed(format!(
                    "{} -c ended well, and the kernel that runs is not the one that starts by default",
                    self.program
                )));
            }
        }
        // With its mark: what starts by default is on trial no longer.
        durable::remove(&self.note()).map_err(broken)?;
        self.on_esp(files::flush).await
    }
}

#[cfg(test)]
mod tests;
