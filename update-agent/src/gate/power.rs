//! Whether the power lasts.

use std::fs;
use std::path::{Path, PathBuf};

use crate::os::first_line;

/// What the kernel knows about sources of power.
pub const SUPPLIES: &str = "/sys/class/power_supply";

/// Whether the machine has power from outside, or enough in its batteries; else why not. A machine that tells nothing of
/// batteries has power from outside.
pub fn look(supplies: &Path, min_percent: u8) -> Result<(), String> {
    let Ok(folder) = fs::read_dir(supplies) else {
        return Ok(());
    };
    let supplies: Vec<Supply> = folder
        .filter_map(|entry| Supply::read(entry.ok()?.path()))
        .collect();
    if supplies.iter().any(Supply::is_from_outside) {
        return Ok(());
    }
    let charges: Vec<u32> = supplies.iter().filter_map(|supply| supply.charge).collect();
    let Ok(count) = u32::try_from(charges.len()) else {
        return Ok(());
    };
    // Two batteries with a half each are as good as a full one and an empty one.
    if charges.iter().sum::<u32>() >= count * u32::from(min_percent) {
        return Ok(());
    }
    Err(format!(
        "the machine runs on batteries with less than {min_percent} % left"
    ))
}

/// A source of power.
struct Supply {
    is_battery: bool,
    is_online: bool,
    is_charged: bool,
    /// Of a battery, in percent.
    charge: Option<u32>,
}

impl Supply {
    /// `None` for what supplies something else than the machine, such as the battery of a mouse.
    fn read(folder: PathBuf) -> Option<Self> {
        let read = |name: &str| first_line(&folder.join(name)).unwrap_or_default();
        if read("scope") == "Device" {
            return None;
        }
        let is_battery = matches!(read("type").as_str(), "Battery" | "UPS");
        let charge = read("capacity").parse::<u32>().ok();
        Some(Self {
            is_battery,
            is_online: !matches!(read("online").as_str(), "" | "0"),
            is_charged: matches!(
                read("status").as_str(),
                "Charging" | "Full" | "Not charging"
            ),
            charge: charge.filter(|charge| is_battery && *charge <= 100),
        })
    }

    /// Some boards know no mains and only that their battery does not run down.
    fn is_from_outside(&self) -> bool {
        if self.is_battery {
            self.is_charged
        } else {
            self.is_online
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(supplies: &[&[(&str, &str)]]) -> Result<(), String> {
        let folder = tempfile::tempdir().unwrap();
        for (number, files) in supplies.iter().enumerate() {
            let supply = folder.path().join(number.to_string());
            fs::create_dir(&supply).unwrap();
            for (name, text) in *files {
                fs::write(supply.join(name), format!("{text}\n")).unwrap();
            }
        }
        look(folder.path(), 30)
    }

    const MAINS: &[(&str, &str)] = &[("type", "Mains"), ("online", "1")];
    const UNPLUGGED: &[(&str, &str)] = &[("type", "Mains"), ("online", "0")];
    const LOW: &[(&str, &str)] = &[
        ("type", "Battery"),
        ("status", "Discharging"),
        ("capacity", "29"),
    ];
    const ENOUGH: &[(&str, &str)] = &[
        ("type", "Battery"),
        ("status", "Discharging"),
        ("capacity", "31"),
    ];

    #[test]
    fn a_low_battery_without_mains_holds_a_change_back() {
        let why = with(&[UNPLUGGED, LOW]).unwrap_err();
        assert_eq!(
            why,
            "the machine runs on batteries with less than 30 % left"
        );
        with(&[LOW]).unwrap_err();
        let ups: &[(&str, &str)] = &[
            ("type", "UPS"),
            ("status", "Discharging"),
            ("capacity", "5"),
        ];
        with(&[ups]).unwrap_err();
    }

    #[test]
    fn with_mains_or_charge_enough_a_change_may_begin() {
        with(&[]).unwrap();
        with(&[MAINS]).unwrap();
        with(&[UNPLUGGED]).unwrap();
        with(&[LOW, MAINS]).unwrap();
        with(&[UNPLUGGED, ENOUGH]).unwrap();
        with(&[UNPLUGGED, LOW, ENOUGH]).unwrap();
        look(Path::new("/no/such/folder"), 30).unwrap();
    }

    #[test]
    fn a_battery_that_is_charged_gets_power_from_somewhere() {
        for status in ["Charging", "Full", "Not charging"] {
            with(&[&[("type", "Battery"), ("status", status), ("capacity", "5")]]).unwrap();
        }
    }

    #[test]
    fn the_battery_of_a_mouse_and_one_that_tells_nothing_do_not_count() {
        let mouse: &[(&str, &str)] = &[
            ("type", "Battery"),
            ("scope", "Device"),
            ("status", "Discharging"),
            ("capacity", "3"),
        ];
        with(&[mouse]).unwrap();
        with(&[&[("type", "Battery"), ("status", "Unknown")]]).unwrap();
        with(&[&[("type", "Battery"), ("capacity", "high")], &[]]).unwrap();
    }
}
