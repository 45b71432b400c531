//! The graphics processors of the machine.

use std::path::Path;

use super::system_files::{clean_text, list_names, read_text};

/// Maximum number of reported graphics processors.
const MAX_GRAPHICS_PROCESSORS: usize = 32;

/// First digits of the class of a PCI device that is a display controller.
const DISPLAY_CLASS: &str = "0x03";

/// Names of the usual vendors by their PCI number.
const VENDORS: [(&str, &str); 5] = [
    ("0x1002", "AMD"),
    ("0x102b", "Matrox"),
    ("0x10de", "NVIDIA"),
    ("0x1a03", "ASPEED"),
    ("0x8086", "Intel"),
];

/// A graphics processor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GraphicsProcessor {
    /// Address of the PCI device such as `0000:00:02.0`.
    pub pci_address: String,
    /// Name of the vendor, or its PCI number such as `0x1234`.
    pub vendor: String,
    /// PCI number of the product such as `0x46a6`. The kernel does not know its name.
    pub product: String,
    /// Device name such as `card0`; empty if no driver uses the device.
    pub device_name: String,
}

/// Reads the display controllers on the PCI buses below a root, sorted by address.
pub fn read_graphics_processors(root: &Path) -> Vec<GraphicsProcessor> {
    let folder = root.join("sys/bus/pci/devices");
    let names = list_names(&folder).into_iter();
    let processors = names.filter_map(|name| read_graphics_processor(&folder.join(&name), &name));
    processors.take(MAX_GRAPHICS_PROCESSORS).collect()
}

fn read_graphics_processor(device: &Path, name: &str) -> Option<GraphicsProcessor> {
    if !read_text(&device.join("class")).starts_with(DISPLAY_CLASS) {
        return None;
    }
    let vendor = read_text(&device.join("vendor"));
    let known = VENDORS.iter().find(|(number, _)| *number == vendor).map(|(_, name)| *name);
    let cards = list_names(&device.join("drm"));
    let card = cards.iter().find(|card| card.starts_with("card"));
    Some(GraphicsProcessor {
        pci_address: clean_text(name.as_bytes()),
        vendor: known.map_or(vendor, str::to_owned),
        product: read_text(&device.join("device")),
        device_name: card.map(|card| clean_text(card.as_bytes())).unwrap_or_default(),
    })
}
