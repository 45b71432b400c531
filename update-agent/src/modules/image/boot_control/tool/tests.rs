use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use chrono::DateTime;

use super::super::fake::{self, Machine, SLOT, uki, what};
use super::*;
use crate::model::Sha256;
use crate::modules::image::slots::{Mend, SlotState, Slots, reconcile};
use crate::modules::image::unpack::Form;
use crate::runner::{Command, Output, RunError};

mod refused;
mod unfinished;

const PROGRAM: &str = "/usr/bin/os-update-tool.sh";

/// What its images are started with.
const LINE: &str = "root=/dev/mapper/rootfs panic=10 rd.emergency=reboot";

/// Where the kernel tells which boot this is, below the root.
const BOOT_ID: &str = "proc/sys/kernel/random/boot_id";

/// What the tool writes into a slot.
const SYSTEM: u8 = 0x5a;

/// The tool, and bootctl, on a machine.
struct FakeTool {
    machine: Machine,
    runs: std::sync::Mutex<Slot>,
    boots: AtomicU32,
    /// How a call ends, by its first option; else well.
    ends: BTreeMap<&'static str, i32>,
    /// It copies half of each kernel.
    tears: AtomicBool,
    asked: std::sync::Mutex<Vec<String>>,
}

impl FakeTool {
    fn new() -> Self {
        let machine = Machine::new();
        machine.partition(2, "rootfs");
        machine.partition(6, "rootfs");
        std::fs::remove_dir_all(machine.path("sys/class/block/vda3")).expect("the old slot");
        machine.write("boot/efi/EFI/Linux/linux.efi", uki(LINE));
        machine.write("sys/class/watchdog/watchdog0/identity", "");
        machine.variable("LoaderEntrySelected", "linux.efi");
        Self {
            machine,
            runs: std::sync::Mutex::new(Slot::A),
            boots: AtomicU32::new(1),
            ends: BTreeMap::new(),
            tears: AtomicBool::new(false),
            asked: std::sync::Mutex::default(),
        }
    }

    fn boot(self) -> (Arc<Self>, Tool) {
        let fake = Arc::new(self);
        let runner: Arc<dyn Runner> = Arc::<Self>::clone(&fake);
        let tool = Tool::new(
            fake.machine.system(),
            runner,
            Path::new(PROGRAM),
            &fake.machine.config,
        );
        (fake, tool)
    }

    /// The options of the calls so far that change something.
    fn changes(&self) -> Vec<String> {
        let asked = self.asked.lock().expect("the lock");
        let options = asked
            .iter()
            .map(|command| match command.rsplit_once(PROGRAM) {
                Some((_, options)) => options.trim().to_owned(),
                None => command.trim().to_owned(),
            });
        options.filter(|options| options != "-v").collect()
    }

    /// The next boot: what was to start once starts.
    fn reset(&self) {
        let efi = &self.machine.system().efi;
        let once = efi.text("LoaderEntryOneShot").expect("a text");
        let default = efi.text("LoaderEntryDefault").expect("a text");
        if once.is_some() {
            self.machine.unset("LoaderEntryOneShot");
        }
        let starts = once.or(default).expect("something that starts");
        let slot = if starts == "linux.efi" {
            Slot::A
        } else {
            Slot::B
        };
        *self.runs.lock().expect("the lock") = slot;
        self.machine.variable("LoaderEntrySelected", &starts);
        let boot = self.boots.fetch_add(1, Ordering::Relaxed) + 1;
        self.machine.write(BOOT_ID, format!("boot-{boot}\n"));
    }

    /// What is noted on the disk.
    fn note(&self) -> Option<Note> {
        let file = self.machine.place.state().join("image-tool.json");
        Note::read(&file).expect("a file that can be read")
    }

    fn spooled(&self, form: Form) -> Spooled {
        self.machine.write("spool/file", "an image");
        Spooled {
            path: self.machine.path("spool/file"),
            sha256: Sha256::of(b"an image"),
            bytes: 8,
            form,
        }
    }

    fn act(&self, options: &[&str]) -> String {
        let aside = format!("boot/efi/{ASIDE}");
        match options {
            ["-v"] => {
                let number = match *self.runs.lock().expect("the lock") {
                    Slot::A => 2,
                    Slot::B => 6,
                };
                return format!("Active partition: /dev/vda{number}, IMAGE_UUID=1234\n");
            }
            ["-w", "-u", path, "-s", digest] => {
                let path = self.machine.path(path.trim_start_matches('/'));
                let given = std::fs::read(path).expect("the image");
                assert_eq!(Sha256::of(&given).to_string(), *digest);
                assert!(!self.machine.path(&aside).exists(), "of another image");
                self.machine.write("dev/vda6", vec![SYSTEM; SLOT]);
                self.machine.write(&aside, uki(LINE));
            }
            ["-a"] => {
                let mark = self.note().and_then(|note| note.mark);
                assert_eq!(mark.expect("it goes before the order").slot, Slot::B);
                let mut kernel = std::fs::read(self.machine.path(&aside)).expect("the kernel");
                if self.tears.load(Ordering::Relaxed) {
                    kernel.truncate(kernel.len() / 2);
                }
                self.machine.write("boot/efi/EFI/Linux/linux-2.efi", kernel);
                self.machine.variable("LoaderEntryDefault", "linux.efi");
                self.machine.variable("LoaderEntryOneShot", "linux-2.efi");
            }
            ["-c"] => {
                let selected = self.machine.system().efi.text("LoaderEntrySelected");
                let selected = selected.expect("a text").expect("set");
                self.machine.variable("LoaderEntryDefault", &selected);
                std::fs::remove_file(self.machine.path(&aside)).expect("the kernel");
            }
            ["set-oneshot", ""] => {
                self.machine.variable("LoaderEntryOneShot", "");
            }
            other => panic!("{other:?} was not expected"),
        }
        String::new()
    }
}

#[async_trait::async_trait]
impl Runner for FakeTool {
    async fn run(&self, command: &Command) -> Result<Output, RunError> {
        self.asked
            .lock()
            .expect("the lock")
            .push(command.to_string());
        let mut options: Vec<&str> = command.arguments.iter().map(String::as_str).collect();
        let is_alone = command.program == "flock";
        if is_alone {
            let program = options.iter().position(|word| *word == PROGRAM);
            options.drain(..=program.expect("the tool"));
        }
        let changes = matches!(options.first(), Some(&("-w" | "-a" | "-c")));
        assert_eq!(is_alone, changes, "{command}");
        let status = options.first().and_then(|first| self.ends.get(*first));
        let stdout = match status {
            Some(status) => format!("no, {status}\n"),
            None => self.act(&options),
        };
        Ok(Output {
            status: Some(status.copied().unwrap_or(0)),
            stdout,
            stderr: String::new(),
        })
    }
}

async fn written(fake: &FakeTool, boot: &Tool) -> Raw {
    let stop = CancellationToken::new();
    let spooled = fake.spooled(Form::Gzip);
    boot.write(Slot::B, &spooled, &stop).await.expect("written")
}

/// The image that was spooled.
fn spooled_what() -> What {
    What {
        file: Sha256::of(b"an image"),
        ..what()
    }
}

#[tokio::test]
async fn an_image_is_written_tried_once_and_kept() {
    let (fake, boot) = FakeTool::new().boot();
    let seen = boot.look().await.unwrap();
    assert_eq!(seen.booted, Some(Slot::A));
    assert_eq!((seen.a, seen.b), (Entry::Plain, Entry::Absent));
    assert_eq!(boot.faults().await, [""; 0]);

    let raw = written(&fake, &boot).await;
    assert_eq!(raw.sha256, Sha256::of(&vec![SYSTEM; SLOT]));
    assert_eq!(fake::names(&fake.machine.path("spool")), ["file"]);
    boot.reread(Slot::B, &raw).await.unwrap();
    boot.kernel(Slot::B, &spooled_what()).await.unwrap();
    boot.arm(Slot::B, &spooled_what(), 1).await.unwrap();
    let seen = boot.look().await.unwrap();
    assert_eq!((seen.a, seen.b), (Entry::Plain, Entry::Once));

    fake.reset();
    let seen = boot.look().await.unwrap();
    assert_eq!(seen.booted, Some(Slot::B));
    assert_eq!((seen.a, seen.b), (Entry::Plain, Entry::Once));
    boot.bless(Slot::B).await.unwrap();
    boot.bless(Slot::B).await.unwrap();
    let seen = boot.look().await.unwrap();
    assert_eq!((seen.a, seen.b), (Entry::Absent, Entry::Plain));

    let changes = fake.changes();
    let path = fake.machine.path("spool/image.raw.gz");
    let inside = path.strip_prefix(fake.machine.path("")).unwrap();
    let write = format!("-w -u /{} -s {}", inside.display(), Sha256::of(b"an image"));
    assert_eq!(changes, [write.as_str(), "-a", "-c"]);
}

#[tokio::test]
async fn a_slot_that_is_not_blessed_is_left_at_the_next_reset() {
    let (fake, boot) = FakeTool::new().boot();
    written(&fake, &boot).await;
    boot.arm(Slot::B, &spooled_what(), 1).await.unwrap();
    fake.reset();
    boot.withdraw(Slot::B).await.unwrap();
    fake.reset();
    let seen = boot.look().await.unwrap();
    assert_eq!(seen.booted, Some(Slot::A));
    assert_eq!((seen.a, seen.b), (Entry::Plain, Entry::Once));
    boot.withdraw(Slot::B).await.unwrap();
    assert_eq!(boot.look().await.unwrap().b, Entry::Absent);
    // The tool would now keep what it fell back to as if it were new.
    let failure = boot.bless(Slot::B).await.unwrap_err();
    assert!(failure.reason.contains("that is not slot b"), "{failure}");
    assert!(!fake.changes().contains(&"-c".to_owned()));
}

#[tokio::test]
async fn an_image_that_ends_before_it_writes_down_that_it_runs_is_not_armed_again() {
    let (fake, boot) = FakeTool::new().boot();
    written(&fake, &boot).await;
    boot.arm(Slot::B, &spooled_what(), 1).await.unwrap();
    let armed = Slots {
        a: SlotState::Good(what()),
        b: SlotState::Armed {
            what: spooled_what(),
            boot_id: "boot-1".to_owned(),
        },
        last_good: Some(Slot::A),
        ..Slots::default()
    };
    fake.reset();
    assert_eq!(boot.look().await.unwrap().booted, Some(Slot::B));
    // Its kernel panics, and no agent has run.
    fake.reset();
    let seen = boot.look().await.unwrap();
    assert_eq!(seen.booted, Some(Slot::A));
    assert_eq!((&seen.a, &seen.b), (&Entry::Plain, &Entry::Once));
    let (slots, mends) = reconcile(&armed, &seen, DateTime::UNIX_EPOCH);
    assert!(matches!(slots.b, SlotState::Bad { .. }), "{slots:?}");
    assert_eq!(mends, [Mend::Withdraw(Slot::B)]);

    boot.withdraw(Slot::B).await.unwrap();
    let seen = boot.look().await.unwrap();
    assert_eq!(seen.b, Entry::Absent);
    let settled = reconcile(&slots, &seen, DateTime::UNIX_EPOCH);
    assert_eq!(settled, (slots, vec![]));
}

#[tokio::test]
async fn a_power_cut_before_the_order_looks_like_a_try_and_the_end_of_an_agent_there_does_not() {
    let (fake, boot) = FakeTool::new().boot();
    written(&fake, &boot).await;
    let mark = Mark {
        slot: Slot::B,
        boot_id: "boot-1".to_owned(),
    };
    let note = Note {
        mark: Some(mark),
        ..fake.note().unwrap()
    };
    note.write(&boot.note()).unwrap();
    assert_eq!(boot.look().await.unwrap().b, Entry::Absent);
    fake.machine.write(BOOT_ID, "boot-2\n");
    let seen = boot.look().await.unwrap();
    assert_eq!((seen.a, seen.b), (Entry::Plain, Entry::Once));
}

#[tokio::test]
async fn what_is_armed_can_be_withdrawn_and_armed_again() {
    let (fake, boot) = FakeTool::new().boot();
    written(&fake, &boot).await;
    boot.arm(Slot::B, &spooled_what(), 1).await.unwrap();
    boot.withdraw(Slot::B).await.unwrap();
    assert_eq!(boot.look().await.unwrap().b, Entry::Absent);
    boot.withdraw(Slot::B).await.unwrap();
    assert_eq!(fake.changes().last().unwrap(), "bootctl set-oneshot");
    // Nothing started it, whatever boots come.
    fake.reset();
    let seen = boot.look().await.unwrap();
    assert_eq!((seen.booted, seen.b), (Some(Slot::A), Entry::Absent));
    boot.arm(Slot::B, &spooled_what(), 2).await.unwrap();
    assert_eq!(boot.look().await.unwrap().b, Entry::Once);
}

#[tokio::test]
async fn a_slot_that_was_not_written_to_its_end_is_not_armed() {
    let mut fake = FakeTool::new();
    fake.ends.insert("-w", 3);
    let (fake, boot) = fake.boot();
    let stop = CancellationToken::new();
    let spooled = fake.spooled(Form::Raw);
    let failure = boot.write(Slot::B, &spooled, &stop).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Apply);
    assert_eq!(failure.log, "no, 3\n");
    // As the tool leaves it when it fails after it set the kernel aside.
    fake.machine.write(&format!("boot/efi/{ASIDE}"), uki(LINE));
    boot.kernel(Slot::B, &spooled_what()).await.unwrap_err();
    let failure = boot.arm(Slot::B, &spooled_what(), 1).await.unwrap_err();
    assert!(failure.reason.contains("was not written by"), "{failure}");
    assert_eq!(fake.changes().len(), 1, "{:?}", fake.changes());

    let (fake, boot) = FakeTool::new().boot();
    written(&fake, &boot).await;
    let failure = boot.arm(Slot::B, &what(), 1).await.unwrap_err();
    assert!(
        failure.reason.contains("was not written by"),
        "another image"
    );
    fake.machine
        .write(&format!("boot/efi/{ASIDE}"), uki("panic=1"));
    let failure = boot.arm(Slot::B, &spooled_what(), 1).await.unwrap_err();
    assert!(
        failure.reason.contains("is not the kernel that"),
        "{failure}"
    );
}

#[tokio::test]
async fn a_kernel_that_was_not_copied_whole_is_not_started() {
    let (fake, boot) = FakeTool::new().boot();
    fake.tears.store(true, Ordering::Relaxed);
    written(&fake, &boot).await;
    let failure = boot.arm(Slot::B, &spooled_what(), 1).await.unwrap_err();
    assert!(
        failure.reason.contains("did not copy it whole"),
        "{failure}"
    );
    // Nor does it look later as if it had been.
    fake.reset();
    let seen = boot.look().await.unwrap();
    assert_eq!((seen.a, seen.b), (Entry::Plain, Entry::Absent));
}

#[tokio::test]
async fn a_kernel_that_does_not_reset_the_machine_is_refused() {
    let (fake, boot) = FakeTool::new().boot();
    written(&fake, &boot).await;
    let kernel = uki("rd.emergency=reboot");
    fake.machine.write(&format!("boot/efi/{ASIDE}"), &kernel);
    let note = Note {
        file: Sha256::of(b"an image"),
        kernel: Sha256::of(&kernel),
        mark: None,
    };
    note.write(&boot.note()).unwrap();
    let failure = boot.kernel(Slot::B, &spooled_what()).await.unwrap_err();
    assert!(failure.reason.contains("no panic=N"), "{failure}");
}

#[tokio::test]
async fn how_the_tool_ends_is_told_with_its_words() {
    let cases = [
        (1, FailureKind::Unsupported),
        (3, FailureKind::Apply),
        (4, FailureKind::Apply),
    ];
    for (status, kind) in cases {
        let mut fake = FakeTool::new();
        fake.ends.insert("-v", status);
        let (_fake, boot) = fake.boot();
        let failure = boot.look().await.unwrap_err();
        assert_eq!(failure.kind, kind);
        assert_eq!(
            failure.reason,
            format!("{PROGRAM} -v ended with status {status}")
        );
        assert_eq!(failure.log, format!("no, {status}\n"));
    }
    let mut fake = FakeTool::new();
    fake.ends.insert("-a", 3);
    let (fake, boot) = fake.boot();
    written(&fake, &boot).await;
    let failure = boot.arm(Slot::B, &spooled_what(), 1).await.unwrap_err();
    assert_eq!(failure.log, "no, 3\n");
    assert_eq!(fake.changes().last().unwrap(), "bootctl set-oneshot");
}

#[tokio::test]
async fn without_what_resets_the_machine_nothing_is_tried() {
    let (fake, boot) = FakeTool::new().boot();
    std::fs::remove_dir_all(fake.machine.path("sys/class/watchdog")).unwrap();
    fake.machine.write("proc/cmdline", "quiet\n");
    let faults = boot.faults().await;
    assert_eq!(faults.len(), 2, "{faults:?}");
    assert!(
        faults[0].contains("without counting its boots") && faults[1].contains("panic=N"),
        "{faults:?}"
    );

    let mut fake = FakeTool::new();
    fake.ends.insert("-v", 1);
    let (fake, boot) = fake.boot();
    fake.machine.unset("LoaderEntrySelected");
    assert_eq!(boot.faults().await.len(), 2);
}

#[tokio::test]
async fn the_image_is_known_by_its_version_or_else_by_when_it_was_built() {
    let (fake, boot) = FakeTool::new().boot();
    let image = async || boot.look().await.unwrap().image;
    let said = |id: &str| Some(("edge".to_owned(), id.to_owned()));
    fake.machine.write(
        "etc/image-id",
        "IMAGE_UUID=1\nIMAGE_BUILD_DATE=\"20260602\"\n",
    );
    assert_eq!(image().await, said("1.0"));
    fake.machine.write("etc/os-release", "IMAGE_ID=edge\n");
    assert_eq!(image().await, said("20260602"));
    fake.machine.write("etc/os-release", "ID=edge\n");
    assert_eq!(image().await, None);
}

#[test]
fn there_is_room_or_it_is_said_how_much_is_wanted() {
    must_suffice(ROOM).unwrap();
    let failure = must_suffice(ROOM - 1).unwrap_err();
    assert_eq!(failure.kind, FailureKind::Storage);
    assert_eq!(
        failure.reason,
        "the image tool wants 2500 MiB free below /opt/OS/abupdate, and there are 2499: remove what is not needed there"
    );
}
