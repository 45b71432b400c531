//! Removal of unused kernels and packages.

use std::fs;

use evenkeel_tests::lab::{Member, Repository, describe_output};
use serde_json::{Value, json};

use super::scenario::{Stage, scenarios, write_file};

scenarios![
    after_three_kernel_updates_the_running_kernel_and_the_one_before_remain,
    the_kernel_that_ran_before_stays_although_it_is_not_the_second_newest,
    unused_kernels_stay_if_the_policy_or_the_owner_requires_it,
    a_kernel_that_does_not_fit_into_boot_is_held_back_and_the_rest_is_updated,
    what_does_not_fit_into_boot_firmware_is_held_back_until_there_is_space,
    a_kernel_is_held_back_while_boot_is_read_only_and_the_rest_is_updated,
    grub_is_held_back_while_its_disk_does_not_exist,
    automatic_removals_in_the_settings_of_apt_do_not_change_the_plan,
];

/// A node that boots `linux-image-6.0.1-demo`, with a source of its own for kernels.
struct KernelNode<'a> {
    member: Member<'static>,
    repository: Repository,
    stage: &'a Stage,
    /// The rules of its policies.
    rules: Value,
}

impl<'a> KernelNode<'a> {
    fn new(stage: &'a Stage) -> Self {
        let repository = stage.repository();
        publish_kernel(&repository, 1);
        let member = stage.member_with_source(&repository);
        member.node.sh("apt-get -q update --error-on=any; apt-get -q -y install linux-image-demo");
        let mut node = Self { member, repository, stage, rules: json!({ "reboot": "NEVER" }) };
        node.boot(1);
        node
    }

    /// Boots a kernel from now on.
    fn boot(&mut self, number: u32) {
        let node = self.stage.node("node").with_kernel(&format!("6.0.{number}-demo"));
        self.member.node = node.with_file(self.repository.folder(), self.repository.inside());
    }

    /// Publishes a kernel and updates the node.
    fn update_to(&self, number: u32) {
        publish_kernel(&self.repository, number);
        self.update();
    }

    /// Updates the node under a new policy.
    fn update(&self) {
        self.member.assign_latest(&self.rules);
        self.member.order_now();
        let output = self.member.agent_once();
        assert!(output.status.success(), "{}", describe_output(&output));
        let runs = self.member.runs();
        assert!(runs.iter().all(|run| run["state"] == "succeeded"), "{runs:#?}");
    }

    /// Updates the node to the second kernel and another package, of which only the latter is installed.
    #[track_caller]
    fn assert_second_kernel_is_held_back(&self) {
        self.repository.publish("demo-hello_1.1");
        self.update_to(2);
        self.assert_kernels(&[1]);
        let status = self.member.node.dpkg_status();
        assert_eq!(status.package("linux-image-demo"), "6.0.1 installed", "{status:#?}");
        assert_eq!(status.package("demo-hello"), "1.1 installed", "{status:#?}");
        let plan = self.member.agent(&["plan"]);
        let text = describe_output(&plan);
        assert!(text.contains("linux-image-demo"), "{text}");
        assert!(text.contains("too little space in /boot, or /boot is read-only"), "{text}");
    }

    /// The installed kernels.
    #[track_caller]
    fn assert_kernels(&self, numbers: &[u32]) {
        let status = self.member.node.dpkg_status();
        let is_installed = |number: &u32| {
            let state = status.package(&format!("linux-image-6.0.{number}-demo"));
            state.ends_with(" installed")
        };
        let installed: Vec<u32> = (1..=4).filter(is_installed).collect();
        assert_eq!(installed, numbers, "{status:#?}");
        assert_eq!(status.audit, "");
    }
}

fn publish_kernel(repository: &Repository, number: u32) {
    repository.publish(&format!("linux-image-6.0.{number}-demo_"));
    repository.publish(&format!("linux-image-demo_6.0.{number}_"));
}

fn after_three_kernel_updates_the_running_kernel_and_the_one_before_remain(stage: &Stage) {
    let mut node = KernelNode::new(stage);
    for number in 2..=4 {
        node.update_to(number);
        node.boot(number);
    }
    // When the last update began, the third kernel was running and the second had run before.
    node.assert_kernels(&[2, 3, 4]);
    node.update();
    node.assert_kernels(&[3, 4]);
    let runs = node.member.runs();
    let removes = |run: &&Value| {
        let packages = run["packages"].as_array().expect("packages");
        packages.iter().any(|package| package["name"] == "linux-image-6.0.2-demo")
            && packages.len() == 1
    };
    assert_eq!(runs.iter().filter(removes).count(), 1, "the run lists the removal: {runs:#?}");
}

fn the_kernel_that_ran_before_stays_although_it_is_not_the_second_newest(stage: &Stage) {
    let mut node = KernelNode::new(stage);
    node.update();
    // Two updates without a reboot.
    node.update_to(2);
    node.update_to(3);
    node.assert_kernels(&[1, 2, 3]);
    node.boot(3);
    node.update();
    // apt alone would retain the kernels 2 and 3.
    node.assert_kernels(&[1, 2, 3]);
    // At first apt also retains the second newest of the installed kernels.
    node.update_to(4);
    node.assert_kernels(&[1, 2, 3, 4]);
    node.update();
    node.assert_kernels(&[1, 3, 4]);
}

fn unused_kernels_stay_if_the_policy_or_the_owner_requires_it(stage: &Stage) {
    let mut node = KernelNode::new(stage);
    node.member.install_files(&["demo-extra_1.0"]);
    node.member.node.sh("apt-mark auto demo-extra");
    node.rules = json!({ "reboot": "NEVER", "unusedPackages": "KEEP" });
    for number in 2..=4 {
        node.update_to(number);
        node.boot(number);
    }
    node.update();
    node.assert_kernels(&[1, 2, 3, 4]);

    node.rules = json!({ "reboot": "NEVER" });
    let limits = "/etc/evenkeel/limits.toml";
    write_file(&node.member.node, limits, "protected_packages = [\"linux-image-6.0.1-*\"]\n");
    node.update();
    node.assert_kernels(&[1, 3, 4]);
    write_file(&node.member.node, limits, "removals = false\n");
    node.update();
    node.assert_kernels(&[1, 3, 4]);
    // By default only kernels are removed.
    let status = node.member.node.dpkg_status();
    assert_eq!(status.package("demo-extra"), "1.0 installed", "{status:#?}");
}

fn a_kernel_that_does_not_fit_into_boot_is_held_back_and_the_rest_is_updated(stage: &Stage) {
    let mut node = KernelNode::new(stage);
    let small = stage.node("node").with_small_filesystem("/boot", "1m");
    node.member.node = small.with_file(node.repository.folder(), node.repository.inside());
    node.assert_second_kernel_is_held_back();
}

fn what_does_not_fit_into_boot_firmware_is_held_back_until_there_is_space(stage: &Stage) {
    let mut node = KernelNode::new(stage);
    node.member.install_files(&["demo-initramfs_1.0"]);
    node.repository.publish("demo-initramfs_1.1");
    let files = [("kernel8.img", 4 << 20), ("initramfs8", 1 << 20)].map(|(name, bytes)| {
        let file = stage.lab.path(name);
        fs::write(&file, vec![0_u8; bytes]).expect("a file");
        (file, format!("/boot/firmware/{name}"))
    });
    let with_firmware = |size: &str| {
        let small = stage.node("node").with_small_filesystem("/boot/firmware", size);
        let small = small.with_kernel("6.0.1-demo");
        let small = files.iter().fold(small, |small, (file, inside)| small.with_file(file, inside));
        small.with_file(node.repository.folder(), node.repository.inside())
    };
    let [too_small, small, large] = ["4m", "16m", "64m"].map(with_firmware);
    let version = |node: &KernelNode<'_>| node.member.node.package("demo-initramfs");

    node.member.node = too_small;
    node.assert_second_kernel_is_held_back();
    assert_eq!(version(&node), "1.0 installed");
    // The rebuild needs 1 MiB and 4 MiB stay free; a kernel needs 13 MiB more.
    node.member.node = small;
    node.update();
    assert_eq!(version(&node), "1.1 installed");
    node.assert_kernels(&[1]);
    node.member.node = large;
    node.update();
    node.assert_kernels(&[1, 2]);
}

fn a_kernel_is_held_back_while_boot_is_read_only_and_the_rest_is_updated(stage: &Stage) {
    let mut node = KernelNode::new(stage);
    node.member.node = node.member.node.with_readonly("/boot");
    node.assert_second_kernel_is_held_back();

    node.member.node = node.member.node.writable();
    node.update();
    node.assert_kernels(&[1, 2]);
}

fn grub_is_held_back_while_its_disk_does_not_exist(stage: &Stage) {
    // As on a machine with a BIOS: `/sys/firmware/efi` does not exist.
    let member = stage.join(stage.node("node").with_small_filesystem("/sys/firmware", "1m"));
    member.install_files(&["grub-pc_1.0"]);
    member.node.sh("printf '\\nName: grub-pc/install_devices\\nValue: /opt/disk\\n' \
                    >> /var/cache/debconf/config.dat");
    let rules = json!({ "reboot": "NEVER" });
    member.assign_latest(&rules);
    member.update_to("succeeded");
    member.assert_packages(&[("demo-hello", "1.1 installed"), ("grub-pc", "1.0 installed")]);
    let text = describe_output(&member.agent(&["plan"]));
    assert!(text.contains("the disk of the boot loader does not exist"), "{text}");

    member.node.sh("touch /opt/disk");
    member.assign_latest(&rules);
    member.order_now();
    let output = member.agent_once();
    assert!(output.status.success(), "{}", describe_output(&output));
    member.assert_packages(&[("grub-pc", "1.1 installed")]);
}

fn automatic_removals_in_the_settings_of_apt_do_not_change_the_plan(stage: &Stage) {
    let member = stage.member();
    member.install_files(&["demo-extra_1.1"]);
    member.node.sh("apt-mark auto demo-extra");
    let settings = "APT::Get::AutomaticRemove \"true\";\n";
    write_file(&member.node, "/etc/apt/apt.conf.d/90remove", settings);
    member.assign_latest(&Value::Null);
    member.update_to("succeeded");
    member.assert_packages(&[("demo-extra", "1.1 installed"), ("demo-hello", "1.1 installed")]);
}
