use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use chrono::DateTime;

use super::super::fake::{self, BootMachine, SLOT_BYTES, slot_image, uki_with_cmdline};
use super::*;
use crate::model::Sha256;
use crate::modules::image::slots::{BootRepair, SlotState, Slots, reconcile};
use crate::modules::image::unpack::ImageFormat;
use crate::runner::{Command, Output, RunError};

mod incomplete;
mod refused;
mod unfinished;

const PROGRAM: &str = "/usr/bin/os-update-tool.sh";

/// Command line of the images.
const CMDLINE: &str = "root=/dev/mapper/rootfs panic=10 rd.emergency=reboot";

/// Path of the boot ID, relative to the root.
const BOOT_ID: &str = "proc/sys/kernel/random/boot_id";

/// Byte with which the tool fills a slot.
const SLOT_FILL_BYTE: u8 = 0x5a;

/// The tool and bootctl on a machine.
struct FakeTool {
    machine: BootMachine,
    running: std::sync::Mutex<Slot>,
    boots: AtomicU32,
    /// Exit status of a call, by its first option. Calls with other options succeed.
    exit_codes: BTreeMap<&'static str, i32>,
    /// Whether it copies only half of each kernel.
    truncates_kernels: AtomicBool,
    commands: std::sync::Mutex<Vec<String>>,
}

impl FakeTool {
    fn new() -> Self {
        let machine = BootMachine::new();
        machine.add_partition(2, "rootfs");
        machine.add_partition(6, "rootfs");
        std::fs::remove_dir_all(machine.path("sys/class/block/vda3")).expect("the old slot");
        machine.write("boot/efi/EFI/Linux/linux.efi", uki_with_cmdline(CMDLINE));
        machine.write("sys/class/watchdog/watchdog0/identity", "");
        machine.set_variable("LoaderEntrySelected", "linux.efi");
        Self {
            machine,
            running: std::sync::Mutex::new(Slot::A),
            boots: AtomicU32::new(1),
            exit_codes: BTreeMap::new(),
            truncates_kernels: AtomicBool::new(false),
            commands: std::sync::Mutex::default(),
        }
    }

    fn into_tool(self) -> (Arc<Self>, ImageTool) {
        let fake = Arc::new(self);
        let runner: Arc<dyn Runner> = Arc::<Self>::clone(&fake);
        let tool =
            ImageTool::new(fake.machine.system(), runner, Path::new(PROGRAM), &fake.machine.config);
        (fake, tool)
    }

    /// The options of all calls that change something.
    fn changing_calls(&self) -> Vec<String> {
        let commands = self.commands.lock().expect("the lock");
        let options = commands.iter().map(|command| match command.rsplit_once(PROGRAM) {
            Some((_, options)) => options.trim().to_owned(),
            None => command.trim().to_owned(),
        });
        options.filter(|options| options != "-v").collect()
    }

    /// Boots the machine: the one-shot order is followed first.
    fn reboot(&self) {
        let efi = &self.machine.system().efi;
        let once = efi.read_text("LoaderEntryOneShot").expect("a text");
        let default = efi.read_text("LoaderEntryDefault").expect("a text");
        if once.is_some() {
            self.machine.unset_variable("LoaderEntryOneShot");
        }
        let starts = once.or(default).expect("something that starts");
        let slot = if starts == "linux.efi" { Slot::A } else { Slot::B };
        *self.running.lock().expect("the lock") = slot;
        self.machine.set_variable("LoaderEntrySelected", &starts);
        let boot = self.boots.fetch_add(1, Ordering::Relaxed) + 1;
        self.machine.write(BOOT_ID, format!("boot-{boot}\n"));
    }

    /// The stored record.
    fn record(&self) -> Option<ToolRecord> {
        let file = self.machine.paths.state().join("image-tool.json");
        ToolRecord::read(&file).expect("a file that can be read")
    }

    fn spool(&self, form: ImageFormat) -> SpooledImage {
        self.machine.write("spool/file", "an image");
        SpooledImage {
            path: self.machine.path("spool/file"),
            sha256: Sha256::hash(b"an image"),
            bytes: 8,
            format: form,
        }
    }

    fn execute(&self, options: &[&str]) -> String {
        let backup_kernel = format!("boot/efi/{BACKUP_KERNEL}");
        match options {
            ["-v"] => {
                let number = match *self.running.lock().expect("the lock") {
                    Slot::A => 2,
                    Slot::B => 6,
                };
                return format!("Active partition: /dev/vda{number}, IMAGE_UUID=1234\n");
            }
            ["-w", "-u", path, "-s", digest] => {
                let path = self.machine.path(path.trim_start_matches('/'));
                let content = std::fs::read(path).expect("the image");
                assert_eq!(Sha256::hash(&content).to_string(), *digest);
                assert!(!self.machine.path(&backup_kernel).exists(), "of another image");
                self.machine.write("dev/vda6", vec![SLOT_FILL_BYTE; SLOT_BYTES]);
                self.machine.write(&backup_kernel, uki_with_cmdline(CMDLINE));
            }
            ["-a"] => {
                let mark = self.record().and_then(|note| note.mark);
                assert_eq!(mark.expect("it is stored before the order").slot, Slot::B);
                let mut kernel =
                    std::fs::read(self.machine.path(&backup_kernel)).expect("the kernel");
                if self.truncates_kernels.load(Ordering::Relaxed) {
                    kernel.truncate(kernel.len() / 2);
                }
                self.machine.write("boot/efi/EFI/Linux/linux-2.efi", kernel);
                self.machine.set_variable("LoaderEntryDefault", "linux.efi");
                self.machine.set_variable("LoaderEntryOneShot", "linux-2.efi");
            }
            ["-c"] => {
                let selected = self.machine.system().efi.read_text("LoaderEntrySelected");
                let selected = selected.expect("a text").expect("set");
                self.machine.set_variable("LoaderEntryDefault", &selected);
                std::fs::remove_file(self.machine.path(&backup_kernel)).expect("the kernel");
            }
            ["set-oneshot", ""] => {
                self.machine.set_variable("LoaderEntryOneShot", "");
            }
            other => panic!("{other:?} was not expected"),
        }
        String::new()
    }
}

#[async_trait::async_trait]
impl Runner for FakeTool {
    async fn run(&self, command: &Command) -> Result<Output, RunError> {
        self.commands.lock().expect("the lock").push(command.to_string());
        let mut options: Vec<&str> = command.arguments.iter().map(String::as_str).collect();
        let is_alone = command.program == "flock";
        if is_alone {
            let program = options.iter().position(|argument| *argument == PROGRAM);
            options.drain(..=program.expect("the tool"));
        }
        let changes = matches!(options.first(), Some(&("-w" | "-a" | "-c")));
        assert_eq!(is_alone, changes, "{command}");
        let status = options.first().and_then(|first| self.exit_codes.get(*first));
        let stdout = match status {
            Some(status) => format!("no, {status}\n"),
            None => self.execute(&options),
        };
        Ok(Output { status: Some(status.copied().unwrap_or(0)), stdout, stderr: String::new() })
    }
}

async fn write_image(fake: &FakeTool, boot: &ImageTool) -> RawImage {
    let stop = CancellationToken::new();
    let spooled = fake.spool(ImageFormat::Gzip);
    boot.write(Slot::B, &spooled, &stop).await.expect("written")
}

fn spooled_image() -> SlotImage {
    SlotImage { file: Sha256::hash(b"an image"), ..slot_image() }
}

#[tokio::test]
async fn an_image_is_written_tried_and_blessed() {
    let (fake, boot) = FakeTool::new().into_tool();
    let observed = boot.observe().await.unwrap();
    assert_eq!(observed.booted, Some(Slot::A));
    assert_eq!((observed.a, observed.b), (BootEntry::Plain, BootEntry::Absent));
    assert_eq!(boot.faults().await, [""; 0]);

    let raw = write_image(&fake, &boot).await;
    assert_eq!(raw.sha256, Sha256::hash(&vec![SLOT_FILL_BYTE; SLOT_BYTES]));
    assert_eq!(fake::file_names(&fake.machine.path("spool")), ["file"]);
    boot.verify_slot(Slot::B, &raw).await.unwrap();
    boot.install_kernel(Slot::B, &spooled_image()).await.unwrap();
    boot.arm(Slot::B, &spooled_image(), 1).await.unwrap();
    let observed = boot.observe().await.unwrap();
    assert_eq!((observed.a, observed.b), (BootEntry::Plain, BootEntry::OneShot));

    fake.reboot();
    let observed = boot.observe().await.unwrap();
    assert_eq!(observed.booted, Some(Slot::B));
    assert_eq!((observed.a, observed.b), (BootEntry::Plain, BootEntry::OneShot));
    boot.bless(Slot::B).await.unwrap();
    boot.bless(Slot::B).await.unwrap();
    let observed = boot.observe().await.unwrap();
    assert_eq!((observed.a, observed.b), (BootEntry::Absent, BootEntry::Plain));

    let changes = fake.changing_calls();
    let path = fake.machine.path("spool/image.raw.gz");
    let inside = path.strip_prefix(fake.machine.path("")).unwrap();
    let write = format!("-w -u /{} -s {}", inside.display(), Sha256::hash(b"an image"));
    assert_eq!(changes, [write.as_str(), "-a", "-c"]);
}

#[tokio::test]
async fn a_slot_that_is_not_blessed_is_not_started_again() {
    let (fake, boot) = FakeTool::new().into_tool();
    write_image(&fake, &boot).await;
    boot.arm(Slot::B, &spooled_image(), 1).await.unwrap();
    fake.reboot();
    boot.withdraw(Slot::B).await.unwrap();
    fake.reboot();
    let observed = boot.observe().await.unwrap();
    assert_eq!(observed.booted, Some(Slot::A));
    assert_eq!((observed.a, observed.b), (BootEntry::Plain, BootEntry::OneShot));
    boot.withdraw(Slot::B).await.unwrap();
    assert_eq!(boot.observe().await.unwrap().b, BootEntry::Absent);
    // The tool would now bless the old slot to which it fell back.
    let failure = boot.bless(Slot::B).await.unwrap_err();
    assert!(failure.reason.contains("slot b is not that slot"), "{failure}");
    assert!(!fake.changing_calls().contains(&"-c".to_owned()));
}

#[tokio::test]
async fn an_image_that_fails_before_it_records_its_boot_is_not_armed_again() {
    let (fake, boot) = FakeTool::new().into_tool();
    write_image(&fake, &boot).await;
    boot.arm(Slot::B, &spooled_image(), 1).await.unwrap();
    let armed = Slots {
        a: SlotState::Good(slot_image()),
        b: SlotState::Armed { image: spooled_image(), boot_id: "boot-1".to_owned() },
        last_good: Some(Slot::A),
        ..Slots::default()
    };
    fake.reboot();
    assert_eq!(boot.observe().await.unwrap().booted, Some(Slot::B));
    // The kernel panics before the agent runs.
    fake.reboot();
    let observed = boot.observe().await.unwrap();
    assert_eq!(observed.booted, Some(Slot::A));
    assert_eq!((&observed.a, &observed.b), (&BootEntry::Plain, &BootEntry::OneShot));
    let (slots, repairs) = reconcile(&armed, &observed, DateTime::UNIX_EPOCH);
    assert!(matches!(slots.b, SlotState::Bad { .. }), "{slots:?}");
    assert_eq!(repairs, [BootRepair::Withdraw(Slot::B)]);

    boot.withdraw(Slot::B).await.unwrap();
    let observed = boot.observe().await.unwrap();
    assert_eq!(observed.b, BootEntry::Absent);
    let settled = reconcile(&slots, &observed, DateTime::UNIX_EPOCH);
    assert_eq!(settled, (slots, vec![]));
}

#[tokio::test]
async fn a_power_cut_before_the_one_shot_is_set_counts_as_a_trial_and_a_killed_agent_does_not() {
    let (fake, boot) = FakeTool::new().into_tool();
    write_image(&fake, &boot).await;
    let mark = TrialMark { slot: Slot::B, boot_id: "boot-1".to_owned() };
    let note = ToolRecord { mark: Some(mark), ..fake.record().unwrap() };
    note.write(&boot.record_path()).unwrap();
    assert_eq!(boot.observe().await.unwrap().b, BootEntry::Absent);
    fake.machine.write(BOOT_ID, "boot-2\n");
    let observed = boot.observe().await.unwrap();
    assert_eq!((observed.a, observed.b), (BootEntry::Plain, BootEntry::OneShot));
}

#[tokio::test]
async fn an_armed_slot_can_be_withdrawn_and_armed_again() {
    let (fake, boot) = FakeTool::new().into_tool();
    write_image(&fake, &boot).await;
    boot.arm(Slot::B, &spooled_image(), 1).await.unwrap();
    boot.withdraw(Slot::B).await.unwrap();
    assert_eq!(boot.observe().await.unwrap().b, BootEntry::Absent);
    boot.withdraw(Slot::B).await.unwrap();
    assert_eq!(fake.changing_calls().last().unwrap(), "bootctl set-oneshot");
    // Nothing starts it in later boots.
    fake.reboot();
    let observed = boot.observe().await.unwrap();
    assert_eq!((observed.booted, observed.b), (Some(Slot::A), BootEntry::Absent));
    boot.arm(Slot::B, &spooled_image(), 2).await.unwrap();
    assert_eq!(boot.observe().await.unwrap().b, BootEntry::OneShot);
}

#[tokio::test]
async fn a_kernel_that_does_not_reset_the_machine_is_refused() {
    let (fake, boot) = FakeTool::new().into_tool();
    write_image(&fake, &boot).await;
    let kernel = uki_with_cmdline("rd.emergency=reboot");
    fake.machine.write(&format!("boot/efi/{BACKUP_KERNEL}"), &kernel);
    let note =
        ToolRecord { file: Sha256::hash(b"an image"), kernel: Sha256::hash(&kernel), mark: None };
    note.write(&boot.record_path()).unwrap();
    let failure = boot.install_kernel(Slot::B, &spooled_image()).await.unwrap_err();
    assert!(failure.reason.contains("no panic=N"), "{failure}");
}

#[tokio::test]
async fn a_failed_call_is_reported_with_its_output() {
    let cases = [(1, FailureKind::Unsupported), (3, FailureKind::Apply), (4, FailureKind::Apply)];
    for (status, kind) in cases {
        let mut fake = FakeTool::new();
        fake.exit_codes.insert("-v", status);
        let (_fake, boot) = fake.into_tool();
        let failure = boot.observe().await.unwrap_err();
        assert_eq!(failure.kind, kind);
        assert_eq!(failure.reason, format!("{PROGRAM} -v ended with status {status}"));
        assert_eq!(failure.log, format!("no, {status}\n"));
    }
    let mut fake = FakeTool::new();
    fake.exit_codes.insert("-a", 3);
    let (fake, boot) = fake.into_tool();
    write_image(&fake, &boot).await;
    let failure = boot.arm(Slot::B, &spooled_image(), 1).await.unwrap_err();
    assert_eq!(failure.log, "no, 3\n");
    assert_eq!(fake.changing_calls().last().unwrap(), "bootctl set-oneshot");
}

#[tokio::test]
async fn without_a_reset_on_failure_no_trial_is_allowed() {
    let (fake, boot) = FakeTool::new().into_tool();
    std::fs::remove_dir_all(fake.machine.path("sys/class/watchdog")).unwrap();
    fake.machine.write("proc/cmdline", "quiet\n");
    let faults = boot.faults().await;
    assert_eq!(faults.len(), 2, "{faults:?}");
    assert!(
        faults[0].contains("without counting its boots") && faults[1].contains("panic=N"),
        "{faults:?}"
    );

    let mut fake = FakeTool::new();
    fake.exit_codes.insert("-v", 1);
    let (fake, boot) = fake.into_tool();
    fake.machine.unset_variable("LoaderEntrySelected");
    assert_eq!(boot.faults().await.len(), 2);
}

#[tokio::test]
async fn the_image_is_identified_by_its_version_or_its_build_date() {
    let (fake, boot) = FakeTool::new().into_tool();
    let image = async || boot.observe().await.unwrap().image;
    let expected = |id: &str| Some(("edge".to_owned(), id.to_owned()));
    fake.machine.write("etc/image-id", "IMAGE_UUID=1\nIMAGE_BUILD_DATE=\"20260602\"\n");
    assert_eq!(image().await, expected("1.0"));
    fake.machine.write("etc/os-release", "IMAGE_ID=edge\n");
    assert_eq!(image().await, expected("20260602"));
    fake.machine.write("etc/os-release", "ID=edge\n");
    assert_eq!(image().await, None);
}

#[test]
fn a_slot_of_the_tool_is_on_the_disk_of_the_running_system() {
    let (fake, boot) = FakeTool::new().into_tool();
    fake.machine.add_partition_of_other_disk(6, "rootfs");
    assert_eq!(boot.find_device(Slot::B).unwrap(), fake.machine.path("dev/vda6"));
    assert_eq!(boot.find_device(Slot::A).unwrap(), fake.machine.path("dev/vda2"));
    std::fs::remove_dir_all(fake.machine.path("sys/class/block/vda6")).unwrap();
    let why = boot.find_device(Slot::B).unwrap_err().reason;
    assert!(why.contains("has 0 partitions"), "{why}");
}

#[test]
fn missing_unpack_space_is_reported_with_the_required_size() {
    check_unpack_space(MIN_UNPACK_BYTES).unwrap();
    let failure = check_unpack_space(MIN_UNPACK_BYTES - 1).unwrap_err();
    assert_eq!(failure.kind, FailureKind::Storage);
    assert_eq!(
        failure.reason,
        "the image tool needs 2500 MiB free below /opt/OS/abupdate, and 2499 MiB are free: remove files that are not needed"
    );
}
