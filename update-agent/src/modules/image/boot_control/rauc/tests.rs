use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::path::Path;

use chrono::DateTime;
use serde_json::json;

use super::super::fake::{BootMachine, SLOT_BYTES, slot_image};
use super::*;
use crate::model::Sha256;
use crate::modules::image::slots::{BootEntry, BootRepair, SlotState, Slots, reconcile};
use crate::modules::image::unpack::ImageFormat;
use crate::runner::{DeadlineAction, RunError};

mod confirm_script;
mod guard_script;
mod interrupted;
mod power_cuts;
mod refused;

/// Path of the boot ID, relative to the root.
const BOOT_ID: &str = "proc/sys/kernel/random/boot_id";

/// The kind of the machine, as RAUC names it.
const COMPATIBLE: &str = "evenkeel-test";

/// Content of the image in the bundle.
const CONTENT: &[u8] = b"an image";

/// What the boot loader and RAUC store.
struct RaucState {
    running: Slot,
    /// The slot that is tried first.
    first: Slot,
    /// Boots that each slot has left.
    left: [u8; 2],
    installed: Option<RawImage>,
    boots: u32,
}

/// RAUC, mount and umount on a machine. Its boot loader counts the boots of both slots.
struct FakeRauc {
    machine: BootMachine,
    state: StdMutex<RaucState>,
    /// Number of boots of a slot that is marked as good. With 1, as with GRUB, the running slot is
    /// bad until it is marked.
    tries: u8,
    /// Subcommands that fail.
    failing: BTreeSet<&'static str>,
    /// Whether `install` activates the slot.
    activates_installed: bool,
    /// Whether it runs another command.
    is_busy: StdMutex<bool>,
    /// Number of changes after which each command fails, as if the agent had been killed.
    changes_left: StdMutex<Option<usize>>,
    /// Files of the image.
    files: Vec<&'static str>,
    commands: StdMutex<Vec<String>>,
}

fn index(slot: Slot) -> usize {
    usize::from(slot == Slot::B)
}

impl FakeRauc {
    fn new(tries: u8) -> Self {
        let machine = BootMachine::new();
        fs::remove_dir_all(machine.path("efi")).expect("the ESP");
        machine.write("usr/bin/rauc", "ELF");
        machine.write(
            "etc/rauc/system.conf",
            "[system]\nstatusfile=/data/rauc.status\nactivate-installed=false\n",
        );
        machine.write("usr/lib/systemd/system/rauc.service", "[Unit]");
        machine.write("sys/class/watchdog/watchdog0/identity", "");
        let running = RaucState {
            running: Slot::A,
            first: Slot::A,
            left: [tries, 0],
            installed: None,
            boots: 1,
        };
        Self {
            machine,
            state: StdMutex::new(running),
            tries,
            failing: BTreeSet::new(),
            activates_installed: false,
            is_busy: StdMutex::new(false),
            changes_left: StdMutex::new(None),
            files: Vec::new(),
            commands: StdMutex::default(),
        }
    }

    fn into_control(self) -> (Arc<Self>, RaucControl) {
        let fake = Arc::new(self);
        let control = fake.control();
        (fake, control)
    }

    /// The boot control of a new process, which is not killed.
    fn control(self: &Arc<Self>) -> RaucControl {
        *self.changes_left.lock().unwrap() = None;
        self.start_process()
    }

    /// The boot control of a new process.
    fn start_process(self: &Arc<Self>) -> RaucControl {
        let runner: Arc<dyn Runner> = Arc::<Self>::clone(self);
        RaucControl::new(self.machine.system(), runner, &self.machine.config)
    }

    fn state(&self) -> std::sync::MutexGuard<'_, RaucState> {
        self.state.lock().unwrap()
    }

    /// The slot that starts next.
    fn next(&self) -> Option<Slot> {
        let state = self.state();
        let slots = [state.first, state.first.other()];
        slots.into_iter().find(|slot| state.left[index(*slot)] > 0)
    }

    /// Boots the machine.
    fn reboot(&self) {
        let next = self.next().expect("something that starts");
        let mut state = self.state();
        state.left[index(next)] -= 1;
        state.running = next;
        state.boots += 1;
        self.machine.write(BOOT_ID, format!("boot-{}\n", state.boots));
    }

    /// The arguments of all changes so far.
    fn changes(&self) -> Vec<String> {
        let commands = self.commands.lock().unwrap();
        let changes = commands.iter().filter_map(|command| command.strip_prefix("rauc "));
        let is_change = |command: &&str| !command.contains("--output-format");
        changes.filter(is_change).map(|command| command.replace("status ", "")).collect()
    }

    fn spool(&self, content: &[u8]) -> SpooledImage {
        self.machine.write("spool/file", content);
        SpooledImage {
            path: self.machine.path("spool/file"),
            sha256: Sha256::hash(content),
            bytes: content.len() as u64,
            format: ImageFormat::Raw,
        }
    }

    fn spool_bundle(&self) -> SpooledImage {
        self.spool(&[COMPATIBLE.as_bytes(), b":", CONTENT].concat())
    }

    /// Splits the content of a bundle into what it is made for and its image.
    fn read_bundle(&self, path: &str) -> Option<(String, Vec<u8>)> {
        assert_eq!(Path::new(path).extension(), Some(OsStr::new("raucb")));
        let content = fs::read(self.machine.path(path.trim_start_matches('/'))).expect("a file");
        let colon = content.iter().position(|byte| *byte == b':')?;
        let compatible = String::from_utf8_lossy(&content[..colon]).into_owned();
        Some((compatible, content[colon + 1..].to_vec()))
    }

    fn status(&self) -> String {
        let primary = self.next().map(|slot| format!("rootfs.{}", index(slot)));
        let state = self.state();
        let slots = [Slot::B, Slot::A].map(|slot| {
            let checksum = match &state.installed {
                Some(image) if slot != state.running => {
                    json!({"sha256": image.sha256.to_string(), "size": image.bytes})
                }
                _ => json!(null),
            };
            let number = index(slot);
            json!({(format!("rootfs.{number}")): {
                "class": "rootfs",
                "device": format!("/dev/vda{}", number + 2),
                "type": "raw",
                "bootname": if slot == Slot::A { "A" } else { "B" },
                "state": if slot == state.running { "booted" } else { "inactive" },
                "parent": null,
                "boot_status": if state.left[number] > 0 { "good" } else { "bad" },
                "slot_status": {"checksum": checksum},
            }})
        });
        json!({"compatible": COMPATIBLE, "boot_primary": primary, "slots": slots}).to_string()
    }

    fn mark(&self, verb: &str, name: &str) {
        let slot = if name == "rootfs.0" { Slot::A } else { Slot::B };
        let mut state = self.state();
        match verb {
            "mark-active" => {
                state.first = slot;
                state.left[index(slot)] = self.tries;
            }
            "mark-good" => state.left[index(slot)] = self.tries,
            "mark-bad" => state.left[index(slot)] = 0,
            other => panic!("{other} was not expected"),
        }
    }

    fn install(&self, path: &str) -> Result<(), String> {
        let (compatible, image) = self.read_bundle(path).ok_or("Invalid bundle format")?;
        assert_eq!(compatible, COMPATIBLE, "it was checked before");
        let target = self.state().running.other();
        assert_ne!(self.next(), Some(target), "the slot that starts next is written");
        self.mark("mark-bad", &format!("rootfs.{}", index(target)));
        let mut content = image.clone();
        content.resize(SLOT_BYTES, 0);
        self.machine.write(&format!("dev/vda{}", index(target) + 2), content);
        let raw = RawImage { sha256: Sha256::hash(&image), bytes: image.len() as u64 };
        self.state().installed = Some(raw);
        if self.activates_installed {
            self.mark("mark-active", &format!("rootfs.{}", index(target)));
        }
        Ok(())
    }

    fn execute(&self, command: &Command) -> Result<String, String> {
        let arguments: Vec<&str> = command.arguments.iter().map(String::as_str).collect();
        let is_query = arguments.contains(&"--output-format=json");
        let is_killed = command.at_deadline == DeadlineAction::Kill;
        assert_eq!(is_killed, is_query, "{command}");
        let subcommand =
            if arguments.len() == 3 && !is_query { arguments[1] } else { arguments[0] };
        if *self.is_busy.lock().unwrap() && arguments[0] != "info" {
            return Err("D-Bus error: Already processing a different method".to_owned());
        }
        if self.failing.contains(subcommand) {
            return Err(format!("LastError: {subcommand} failed"));
        }
        match arguments.as_slice() {
            ["status", "--detailed", "--output-format=json"] => Ok(self.status()),
            ["status", verb, name] => {
                self.mark(verb, name);
                Ok(String::new())
            }
            ["info", "--output-format=json", path] => {
                let (compatible, _) = self.read_bundle(path).ok_or("Invalid bundle format")?;
                Ok(json!({"compatible": compatible, "version": "1.1"}).to_string())
            }
            ["install", path] => self.install(path).map(|()| String::new()),
            other => panic!("{other:?} was not expected"),
        }
    }

    /// Counts a change. Returns whether the agent is still alive.
    fn count_change(&self, command: &Command) -> bool {
        let mut left = self.changes_left.lock().unwrap();
        let Some(number) = left.as_mut() else { return true };
        if *number == 0 {
            return false;
        }
        if command.at_deadline != DeadlineAction::Kill {
            *number -= 1;
        }
        true
    }
}

#[async_trait::async_trait]
impl Runner for FakeRauc {
    async fn run(&self, command: &Command) -> Result<Output, RunError> {
        if !self.count_change(command) {
            let source = std::io::ErrorKind::Interrupted.into();
            return Err(RunError::Lost { program: command.program.clone(), source });
        }
        self.commands.lock().unwrap().push(command.to_string());
        let point = command.arguments.last().map(|point| self.machine.path(&point[1..]));
        let result = match (command.program.as_str(), point) {
            ("rauc", _) => self.execute(command),
            ("mount", Some(point)) => {
                for file in &self.files {
                    let file = point.join(file);
                    fs::create_dir_all(file.parent().expect("a folder")).expect("a folder");
                    fs::write(file, "of the image").expect("a file");
                }
                Ok(String::new())
            }
            ("umount", Some(point)) => {
                fs::remove_dir_all(point.join("usr")).ok();
                Ok(String::new())
            }
            ("blockdev", _) => Ok(String::new()),
            (other, _) => panic!("{other} was not expected"),
        };
        Ok(match result {
            Ok(stdout) => Output { status: Some(0), stdout, stderr: String::new() },
            Err(stderr) => Output { status: Some(1), stdout: String::new(), stderr },
        })
    }
}

fn installed_image(spooled: &SpooledImage) -> SlotImage {
    SlotImage { file: spooled.sha256, ..slot_image() }
}

/// The record of a machine whose slot B was armed in this boot.
fn armed_record(image: &SlotImage, boot_id: &str) -> Slots {
    Slots {
        a: SlotState::Good(slot_image()),
        b: SlotState::Armed { image: image.clone(), boot_id: boot_id.to_owned() },
        last_good: Some(Slot::A),
        ..Slots::default()
    }
}

async fn write_and_arm(fake: &FakeRauc, boot: &RaucControl) -> Result<SlotImage, Failure> {
    let spooled = fake.spool_bundle();
    let image = installed_image(&spooled);
    boot.withdraw(Slot::B).await?;
    boot.write(Slot::B, &spooled, &CancellationToken::new()).await?;
    boot.install_kernel(Slot::B, &image).await?;
    boot.arm(Slot::B, &image, 1).await?;
    Ok(image)
}

async fn entries(boot: &RaucControl) -> (Option<Slot>, BootEntry, BootEntry) {
    let observed = boot.observe().await.unwrap();
    (observed.booted, observed.a, observed.b)
}

#[tokio::test]
async fn a_bundle_is_installed_tried_and_kept() {
    for tries in [1, 3] {
        let (fake, boot) = FakeRauc::new(tries).into_control();
        assert_eq!(boot.faults().await, [""; 0]);
        assert_eq!(entries(&boot).await, (Some(Slot::A), BootEntry::Plain, BootEntry::Absent));
        let spooled = fake.spool_bundle();
        let image = installed_image(&spooled);
        boot.withdraw(Slot::B).await.unwrap();
        let raw = boot.write(Slot::B, &spooled, &CancellationToken::new()).await.unwrap();
        assert_eq!(raw, RawImage { sha256: Sha256::hash(CONTENT), bytes: CONTENT.len() as u64 });
        assert!(!fake.machine.path("spool/image.raucb").exists());
        boot.verify_slot(Slot::B, &raw).await.unwrap();
        boot.install_kernel(Slot::B, &image).await.unwrap();
        assert_eq!(entries(&boot).await, (Some(Slot::A), BootEntry::Plain, BootEntry::Absent));
        boot.arm(Slot::B, &image, 1).await.unwrap();
        boot.arm(Slot::B, &image, 1).await.unwrap();
        assert_eq!(entries(&boot).await, (Some(Slot::A), BootEntry::Plain, BootEntry::OneShot));

        fake.reboot();
        assert_eq!(entries(&boot).await, (Some(Slot::B), BootEntry::Plain, BootEntry::OneShot));
        boot.bless(Slot::B).await.unwrap();
        boot.bless(Slot::B).await.unwrap();
        assert_eq!(entries(&boot).await, (Some(Slot::B), BootEntry::Plain, BootEntry::Plain));
        let changes = fake.changes();
        let install = &changes[1];
        assert!(install.starts_with("install ") && install.ends_with("/spool/image.raucb"));
        assert_eq!(changes[0], "mark-bad rootfs.1");
        assert_eq!(
            changes[2..],
            [
                "mark-active rootfs.1",
                "mark-active rootfs.1",
                "mark-good rootfs.1",
                "mark-good rootfs.1"
            ]
        );
        assert_eq!(fake.next(), Some(Slot::B));
    }
}

#[tokio::test]
async fn a_rejected_image_is_not_started_again_although_boots_are_left() {
    let (fake, boot) = FakeRauc::new(3).into_control();
    write_and_arm(&fake, &boot).await.unwrap();
    fake.reboot();
    boot.withdraw(Slot::B).await.unwrap();
    // The mark is evidence until the old image has recorded the failure.
    assert_eq!(entries(&boot).await, (Some(Slot::B), BootEntry::Plain, BootEntry::OneShot));
    fake.reboot();
    assert_eq!(entries(&boot).await, (Some(Slot::A), BootEntry::Plain, BootEntry::OneShot));
    boot.withdraw(Slot::B).await.unwrap();
    assert_eq!(entries(&boot).await, (Some(Slot::A), BootEntry::Plain, BootEntry::Absent));
    let failure = boot.bless(Slot::B).await.unwrap_err();
    assert!(failure.reason.contains("rootfs.1 does not run"), "{failure}");
}

#[tokio::test]
async fn an_image_that_uses_up_its_boots_before_it_records_one_is_bad() {
    for tries in [1, 3] {
        let (fake, boot) = FakeRauc::new(tries).into_control();
        let image = write_and_arm(&fake, &boot).await.unwrap();
        for _ in 0..tries {
            fake.reboot();
            assert_eq!(fake.state().running, Slot::B);
        }
        fake.reboot();
        assert_eq!(fake.state().running, Slot::A);
        let observed = boot.observe().await.unwrap();
        assert_eq!((&observed.a, &observed.b), (&BootEntry::Plain, &BootEntry::OneShot));
        let (slots, repairs) =
            reconcile(&armed_record(&image, "boot-1"), &observed, DateTime::UNIX_EPOCH);
        assert!(matches!(slots.b, SlotState::Bad { .. }), "{slots:?}");
        assert_eq!(repairs, [BootRepair::Withdraw(Slot::B)]);
        boot.confirm_boot(Slot::A).await.unwrap();
        boot.withdraw(Slot::B).await.unwrap();
        let observed = boot.observe().await.unwrap();
        let settled = reconcile(&slots, &observed, DateTime::UNIX_EPOCH);
        assert_eq!(settled, (slots, vec![]));
    }
}

#[tokio::test]
async fn each_boot_of_a_good_image_is_confirmed() {
    let (fake, boot) = FakeRauc::new(1).into_control();
    fake.reboot();
    assert_eq!(entries(&boot).await, (Some(Slot::A), BootEntry::Plain, BootEntry::Absent));
    let faults = boot.faults().await;
    assert!(faults.len() == 1 && faults[0].contains("rootfs.0 as bad"), "{faults:?}");
    boot.confirm_boot(Slot::A).await.unwrap();
    assert_eq!(boot.faults().await, [""; 0]);
    // It does not run.
    boot.confirm_boot(Slot::B).await.unwrap();
    assert_eq!(fake.changes(), ["mark-good rootfs.0"]);
}

#[tokio::test]
async fn a_slot_that_a_person_activates_starts_permanently_and_can_be_withdrawn() {
    let (fake, boot) = FakeRauc::new(3).into_control();
    fake.mark("mark-active", "rootfs.1");
    assert_eq!(entries(&boot).await, (Some(Slot::A), BootEntry::Plain, BootEntry::Plain));
    boot.withdraw(Slot::B).await.unwrap();
    assert_eq!(entries(&boot).await, (Some(Slot::A), BootEntry::Plain, BootEntry::Absent));
    assert_eq!(fake.changes(), ["mark-active rootfs.0", "mark-bad rootfs.1"]);
}
