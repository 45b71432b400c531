//! Hardware in folders that look like `/proc` and `/sys`.

use std::fs;
use std::os::unix::fs::symlink;

use super::*;

/// A number of interfaces above the limit of those that are followed.
const MANY_INTERFACES: usize = 300;

/// A root with files of the kernel.
struct FakeRoot(tempfile::TempDir);

impl FakeRoot {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn write(&self, path: &str, content: &str) {
        let path = self.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    /// Creates a symbolic link, with the target relative to the root.
    fn link(&self, path: &str, target: &str) {
        let path = self.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(self.path().join(target), path).unwrap();
    }

    fn read(&self) -> Hardware {
        Hardware::read(self.path(), "x86_64".to_owned())
    }

    fn processor(&self, number: u32, socket: &str, siblings: &str) {
        let folder = format!("sys/devices/system/cpu/cpu{number}/topology");
        self.write(&format!("{folder}/physical_package_id"), socket);
        self.write(&format!("{folder}/core_cpus_list"), siblings);
    }

    fn disk(&self, name: &str, files: &[(&str, &str)]) {
        let defaults = [("size", "2048\n"), ("removable", "0\n"), ("device/model", "Disk\n")];
        for (file, content) in defaults.iter().chain(files) {
            self.write(&format!("sys/block/{name}/{file}"), content);
        }
    }

    /// An interface with a PCI device.
    fn device_interface(&self, name: &str, address: &str) {
        let device = format!("sys/devices/pci0000:00/{address}");
        self.write(&format!("{device}/vendor"), "0x8086\n");
        self.link(&format!("{device}/net/{name}/device"), &device);
        self.link(&format!("sys/class/net/{name}"), &format!("{device}/net/{name}"));
    }
}

fn names(hardware: &Hardware) -> (Vec<&str>, Vec<&str>) {
    let disks = hardware.disks.iter().map(|disk| disk.name.as_str());
    let interfaces = hardware.network_interfaces.iter();
    (disks.collect(), interfaces.map(|interface| interface.name.as_str()).collect())
}

#[test]
fn a_machine_without_any_file_has_no_hardware_but_its_architecture() {
    let processors = Processors { architecture: "x86_64".to_owned(), ..Processors::default() };
    assert_eq!(FakeRoot::new().read(), Hardware { processors, ..Hardware::default() });
}

#[test]
fn processors_memory_and_firmware_are_read() {
    let root = FakeRoot::new();
    root.write("proc/cpuinfo", "processor\t: 0\ncpu family\t: 6\nmodel name\t: Xeon D-1736\n");
    root.write("proc/meminfo", "MemTotal:       16284404 kB\nMemFree: 1 kB\n");
    for (number, socket, siblings) in
        [(0, "0\n", "0-1\n"), (1, "0\n", "0-1\n"), (2, "1\n", "2\n"), (3, "1\n", "3\n")]
    {
        root.processor(number, socket, siblings);
    }
    root.write("sys/devices/system/cpu/cpu4/online", "0\n");
    root.write("sys/devices/system/cpu/cpufreq/boost", "1\n");
    for (file, text) in [
        ("sys_vendor", "Dell Inc.\n"),
        ("product_name", "PowerEdge R650\n"),
        ("bios_vendor", "Dell Inc.\n"),
        ("bios_version", "1.6.5\n"),
        ("bios_date", "03/14/2026\n"),
    ] {
        root.write(&format!("sys/class/dmi/id/{file}"), text);
    }
    let hardware = root.read();
    let processors = &hardware.processors;
    assert_eq!(processors.model, "Xeon D-1736");
    assert_eq!((processors.sockets, processors.cores, processors.threads), (2, 3, 4));
    assert_eq!(hardware.memory_bytes, 16_284_404 * 1_024);
    assert_eq!(hardware.product_vendor, "Dell Inc.");
    assert_eq!(hardware.product_name, "PowerEdge R650");
    let firmware = &hardware.firmware;
    assert_eq!(firmware.vendor, "Dell Inc.");
    assert_eq!(
        (firmware.version.as_str(), firmware.release_date.as_str()),
        ("1.6.5", "03/14/2026")
    );
}

#[test]
fn a_board_without_smbios_has_the_name_of_its_device_tree() {
    let root = FakeRoot::new();
    root.write("proc/device-tree/model", "Raspberry Pi 4 Model B Rev 1.4\0");
    root.write("proc/cpuinfo", "processor\t: 0\nModel\t\t: Raspberry Pi 4 Model B Rev 1.4\n");
    let hardware = root.read();
    assert_eq!(hardware.product_name, "Raspberry Pi 4 Model B Rev 1.4");
    assert_eq!(hardware.processors.model, "Raspberry Pi 4 Model B Rev 1.4");
}

#[test]
fn disks_of_the_machine_are_read_and_other_block_devices_are_not() {
    let root = FakeRoot::new();
    root.disk(
        "nvme0n1",
        &[("device/model", "PM9A3\n"), ("device/serial", "S4EW \n"), ("wwid", "eui.0025\n")],
    );
    root.disk("sda", &[("device/vendor", "ATA     \n"), ("device/wwid", "naa.5002\n")]);
    fs::write(root.path().join("sys/block/sda/device/vpd_pg80"), b"\x00\x80\x00\x04S1N2").unwrap();
    root.disk("vda", &[("serial", "virtual-1\n")]);
    root.disk("sdb", &[("removable", "1\n")]);
    root.disk("sr0", &[("size", "0\n")]);
    root.disk("nvme0c0n1", &[("hidden", "1\n")]);
    root.disk("mmcblk0boot0", &[]);
    for name in ["dm-0", "loop0", "md0", "ram0", "zram0"] {
        root.write(&format!("sys/block/{name}/size"), "2048\n");
    }
    let hardware = root.read();
    assert_eq!(names(&hardware).0, ["nvme0n1", "sda", "vda"]);
    let [nvme, sata, virtio] = hardware.disks.as_slice() else {
        panic!("{hardware:?}");
    };
    let texts =
        |disk: &Disk| [&disk.model, &disk.vendor, &disk.serial, &disk.wwid].map(Clone::clone);
    assert_eq!(texts(nvme), ["PM9A3", "", "S4EW", "eui.0025"]);
    assert_eq!(texts(sata), ["Disk", "ATA", "S1N2", "naa.5002"]);
    assert_eq!(texts(virtio), ["Disk", "", "virtual-1", ""]);
    assert_eq!(nvme.size_bytes, 1 << 20);
}

#[test]
fn interfaces_with_a_device_and_those_on_them_are_read() {
    let root = FakeRoot::new();
    root.device_interface("eth0", "0000:00:1f.6");
    for (file, text) in
        [("address", "52:54:00:12:34:56\n"), ("mtu", "1500\n"), ("operstate", "up\n")]
    {
        root.write(&format!("sys/class/net/eth0/{file}"), text);
    }
    root.write("sys/class/net/eth0/device/sriov_numvfs", "2\n");
    root.write("sys/class/net/eth0/device/sriov_totalvfs", "64\n");
    root.write("sys/class/net/br0/operstate", "down\n");
    root.link("sys/class/net/br0/lower_bond0", "sys/class/net/bond0");
    root.link("sys/class/net/bond0/lower_eth0", "sys/class/net/eth0");
    root.write("sys/class/net/lo/operstate", "unknown\n");
    root.write("sys/class/net/docker0/operstate", "up\n");
    root.link("sys/class/net/docker0/lower_veth1", "sys/class/net/veth1");
    root.write("sys/class/net/veth1/operstate", "up\n");
    root.write(
        "proc/net/route",
        "Iface\tDestination\nbr0\t000200C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n",
    );
    root.write(
        "proc/net/fib_trie",
        "Local:\n |-- 192.0.2.7\n /32 host LOCAL\n |-- 127.0.0.1\n /32 host LOCAL\n",
    );
    root.write("proc/net/if_inet6", "20010db8000000000000000000000007 02 40 00 80 eth0\n");
    let hardware = root.read();
    assert_eq!(names(&hardware).1, ["bond0", "br0", "eth0"]);
    let [aggregate, bridge, eth0] = hardware.network_interfaces.as_slice() else {
        panic!("{hardware:?}");
    };
    assert_eq!(
        (aggregate.has_link, bridge.has_link, eth0.has_link),
        (None, Some(false), Some(true))
    );
    assert_eq!((eth0.pci_address.as_str(), eth0.mtu), ("0000:00:1f.6", 1_500));
    assert_eq!((bridge.pci_address.as_str(), bridge.mtu), ("", 0));
    assert_eq!(eth0.mac_address, "52:54:00:12:34:56");
    assert_eq!((eth0.virtual_functions, eth0.max_virtual_functions), (2, 64));
    assert_eq!(eth0.addresses, ["2001:db8::7/64"]);
    assert_eq!(bridge.addresses, ["192.0.2.7/24"]);
}

#[test]
fn a_bridge_of_many_virtual_machines_is_reported_if_one_interface_has_a_device() {
    let root = FakeRoot::new();
    root.device_interface("eno1", "0000:00:1f.6");
    for number in 0..MANY_INTERFACES {
        let name = format!("tap{number}");
        root.write(&format!("sys/class/net/{name}/operstate"), "up\n");
        root.link(&format!("sys/class/net/br0/lower_{name}"), &format!("sys/class/net/{name}"));
        root.link(&format!("sys/class/net/br1/lower_{name}"), &format!("sys/class/net/{name}"));
    }
    root.link("sys/class/net/br0/lower_eno1", "sys/class/net/eno1");
    assert_eq!(names(&root.read()).1, ["br0", "eno1"]);
}

#[test]
fn display_controllers_are_read_with_the_names_of_the_usual_vendors() {
    let root = FakeRoot::new();
    for (address, class, vendor) in [
        ("0000:00:02.0", "0x030000", "0x8086"),
        ("0000:00:1f.6", "0x020000", "0x8086"),
        ("0000:01:00.0", "0x030200", "0x1234"),
    ] {
        let device = format!("sys/bus/pci/devices/{address}");
        root.write(&format!("{device}/class"), &format!("{class}\n"));
        root.write(&format!("{device}/vendor"), &format!("{vendor}\n"));
        root.write(&format!("{device}/device"), "0x46a6\n");
    }
    root.write("sys/bus/pci/devices/0000:00:02.0/drm/card0/dev", "226:0\n");
    root.write("sys/bus/pci/devices/0000:00:02.0/drm/renderD128/dev", "226:128\n");
    let processors = root.read().graphics_processors;
    let texts = |one: &GraphicsProcessor| {
        [&one.pci_address, &one.vendor, &one.product, &one.device_name].map(Clone::clone)
    };
    let processors: Vec<_> = processors.iter().map(texts).collect();
    assert_eq!(
        processors,
        [["0000:00:02.0", "Intel", "0x46a6", "card0"], ["0000:01:00.0", "0x1234", "0x46a6", ""]]
    );
}

/// Devices and containers choose names and contents.
#[test]
fn hostile_files_end_in_bounded_texts_and_lists() {
    let root = FakeRoot::new();
    root.write("proc/meminfo", "MemTotal: 99999999999999999999999 kB\n");
    root.write("proc/cpuinfo", &format!("model name: {}\n", "x\u{1b}".repeat(1 << 20)));
    for number in 0..300 {
        let serial = format!("{number}\u{7}{}\n", "ä".repeat(500));
        root.disk(&format!("sd{number:03}"), &[("device/serial", serial.as_str())]);
    }
    root.disk("sdz", &[("size", "18446744073709551615\n")]);
    // Interfaces that are stacked on themselves and on each other.
    for (name, lower) in [("a", "b"), ("b", "a"), ("c", "c")] {
        for copy in 0..30 {
            let link = format!("sys/class/net/{name}/lower_{lower}{copy}");
            root.link(&link, "sys/class/net/a");
        }
        root.link(&format!("sys/class/net/{name}/lower_{lower}"), "sys/class/net/a");
    }
    root.link("sys/class/net/looped", "sys/class/net/looped");
    root.link("sys/class/dmi/id/product_name", "sys/class/dmi/id/product_name");
    let hardware = root.read();
    assert_eq!(hardware.memory_bytes, 0);
    assert_eq!(hardware.product_name, "");
    assert_eq!(names(&hardware).1, [""; 0]);
    assert_eq!(hardware.disks.len(), 128);
    let model = &hardware.processors.model;
    let serials = hardware.disks.iter().map(|disk| &disk.serial);
    for text in serials.chain([model]) {
        assert!(!text.is_empty() && text.len() <= 128, "{text}");
        assert!(!text.contains(char::is_control), "{text:?}");
    }
}

#[test]
fn the_size_of_a_disk_does_not_overflow() {
    let root = FakeRoot::new();
    root.disk("sda", &[("size", "18446744073709551615\n")]);
    root.disk("sdb", &[("size", "-1\n")]);
    root.disk("sdc", &[("size", "many\n")]);
    let hardware = root.read();
    assert_eq!(names(&hardware).0, ["sda"]);
    assert_eq!(hardware.disks[0].size_bytes, u64::MAX);
}

#[test]
fn the_hardware_of_this_machine_can_be_read() {
    let hardware = Hardware::read(Path::new("/"), crate::os::machine());
    assert!(hardware.memory_bytes > 0, "{hardware:?}");
}
