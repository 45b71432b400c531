//! Hardware of the machine, read from `/proc` and `/sys` without any program.

mod disks;
mod graphics;
mod network;
mod system_files;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::path::Path;

use self::system_files::{clean_text, list_names, read_lines, read_text};

pub use self::disks::Disk;
pub use self::graphics::GraphicsProcessor;
pub use self::network::NetworkInterface;

/// Keys of `/proc/cpuinfo` that name the model of a processor, on x86, MIPS, POWER and ARM.
const MODEL_KEYS: [&str; 4] = ["model name", "cpu model", "cpu", "Model"];

/// Hardware of a machine. What is unknown is empty or 0.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hardware {
    pub processors: Processors,
    /// Memory that the kernel can use.
    pub memory_bytes: u64,
    pub product_name: String,
    pub product_vendor: String,
    pub firmware: Firmware,
    /// Sorted by name.
    pub disks: Vec<Disk>,
    /// Sorted by name.
    pub network_interfaces: Vec<NetworkInterface>,
    /// Sorted by PCI address.
    pub graphics_processors: Vec<GraphicsProcessor>,
}

/// The processors of a machine together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Processors {
    pub model: String,
    /// The kernel's name of the architecture.
    pub architecture: String,
    pub sockets: u32,
    pub cores: u32,
    pub threads: u32,
}

/// The firmware of a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Firmware {
    pub vendor: String,
    pub version: String,
    /// Date in the vendor's own form.
    pub release_date: String,
}

impl Hardware {
    /// Reads the hardware from the folders `proc` and `sys` below `root`. Files that are missing or
    /// cannot be read leave their fields empty.
    pub fn read(root: &Path, architecture: String) -> Self {
        let firmware_text = |name: &str| read_text(&root.join("sys/class/dmi/id").join(name));
        let product_name = match firmware_text("product_name") {
            // Machines without SMBIOS describe themselves by a device tree.
            name if name.is_empty() => read_text(&root.join("proc/device-tree/model")),
            name => name,
        };
        Self {
            processors: Processors::read(root, architecture),
            memory_bytes: parse_memory(&read_lines(&root.join("proc/meminfo"))),
            product_name,
            product_vendor: firmware_text("sys_vendor"),
            firmware: Firmware {
                vendor: firmware_text("bios_vendor"),
                version: firmware_text("bios_version"),
                release_date: firmware_text("bios_date"),
            },
            disks: disks::read_disks(root),
            network_interfaces: network::read_network_interfaces(root),
            graphics_processors: graphics::read_graphics_processors(root),
        }
    }
}

impl Processors {
    /// Counts the processors that are online.
    fn read(root: &Path, architecture: String) -> Self {
        let cpu_info = read_lines(&root.join("proc/cpuinfo"));
        let folder = root.join("sys/devices/system/cpu");
        let (mut sockets, mut cores, mut threads) = (BTreeSet::new(), BTreeSet::new(), 0_usize);
        for name in list_names(&folder).iter().filter(|name| is_processor(name)) {
            let topology = folder.join(name).join("topology");
            let socket = read_text(&topology.join("physical_package_id"));
            if socket.is_empty() {
                continue;
            }
            // Kernels before 5.7 have only the old name.
            let siblings = ["core_cpus_list", "thread_siblings_list"];
            let siblings = siblings.map(|name| read_text(&topology.join(name)));
            let siblings = siblings.into_iter().find(|text| !text.is_empty());
            cores.insert(siblings.unwrap_or_else(|| name.clone()));
            sockets.insert(socket);
            threads += 1;
        }
        let to_count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        Self {
            model: parse_model(&cpu_info),
            architecture,
            sockets: to_count(sockets.len()),
            cores: to_count(cores.len()),
            threads: to_count(threads),
        }
    }
}

/// Whether a name in the folder of processors is one, such as `cpu0`.
fn is_processor(name: &str) -> bool {
    let number = name.strip_prefix("cpu").unwrap_or_default();
    !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
}

/// The model in `/proc/cpuinfo`; empty if the kernel does not name it, as on most ARM machines.
fn parse_model(cpu_info: &str) -> String {
    let lines = cpu_info.lines().filter_map(|line| line.split_once(':'));
    let lines: Vec<_> = lines.map(|(key, value)| (key.trim(), value)).collect();
    let model = MODEL_KEYS.iter().find_map(|key| lines.iter().find(|line| line.0 == *key));
    model.map(|(_, value)| clean_text(value.as_bytes())).unwrap_or_default()
}

/// The total memory in `/proc/meminfo`, which has it in KiB.
fn parse_memory(mem_info: &str) -> u64 {
    let mut lines = mem_info.lines();
    let total = lines.find_map(|line| line.strip_prefix("MemTotal:"));
    let kilobytes = total.and_then(|line| line.split_ascii_whitespace().next()?.parse().ok());
    kilobytes.map_or(0, |kilobytes: u64| kilobytes.saturating_mul(1_024))
}
