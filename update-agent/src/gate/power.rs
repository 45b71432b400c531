//! Checks the power supply.

use std::fs;
use std::path::{Path, PathBuf};

use crate::os::first_line;

/// Power supplies as reported by the kernel.
pub const POWER_SUPPLY_FOLDER: &str = "/sys/class/power_supply";

/// Fails unless the machine has external power or enough charge in its batteries. A machine without
/// data about batteries has external power.
pub fn check_power(supplies: &Path, min_percent: u8) -> Result<(), String> {
    let Ok(folder) = fs::read_dir(supplies) else {
        return Ok(());
    };
    let supplies: Vec<PowerSupply> =
        folder.filter_map(|entry| PowerSupply::read(entry.ok()?.path())).collect();
    if supplies.iter().any(PowerSupply::provides_power) {
        return Ok(());
    }
    let charges: Vec<u32> = supplies.iter().filter_map(|supply| supply.charge).collect();
    let Ok(count) = u32::try_from(charges.len()) else {
        return Ok(());
    };
    // The average counts: two half-full batteries are as good as a full one and an empty one.
    if charges.iter().sum::<u32>() >= count * u32::from(min_percent) {
        return Ok(());
    }
    Err(format!("the machine runs on batteries with less than {min_percent} % left"))
}

struct PowerSupply {
    is_battery: bool,
    is_online: bool,
    is_charged: bool,
    /// Charge of a battery, in percent.
    charge: Option<u32>,
}

impl PowerSupply {
    /// Reads a supply; `None` if it supplies another device, such as a mouse.
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
            is_charged: matches!(read("status").as_str(), "Charging" | "Full" | "Not charging"),
            charge: charge.filter(|charge| is_battery && *charge <= 100),
        })
    }

    /// Whether there is external power. Some boards report no mains, only a battery that does not
    /// discharge.
    fn provides_power(&self) -> bool {
        if self.is_battery { self.is_charged } else { self.is_online }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_supplies(supplies: &[&[(&str, &str)]]) -> Result<(), String> {
        let folder = tempfile::tempdir().unwrap();
        for (number, files) in supplies.iter().enumerate() {
            let supply = folder.path().join(number.to_string());
            fs::create_dir(&supply).unwrap();
            for (name, text) in *files {
                fs::write(supply.join(name), format!("{text}\n")).unwrap();
            }
        }
        check_power(folder.path(), 30)
    }

    const MAINS: &[(&str, &str)] = &[("type", "Mains"), ("online", "1")];
    const UNPLUGGED: &[(&str, &str)] = &[("type", "Mains"), ("online", "0")];
    const LOW_BATTERY: &[(&str, &str)] =
        &[("type", "Battery"), ("status", "Discharging"), ("capacity", "29")];
    const CHARGED_BATTERY: &[(&str, &str)] =
        &[("type", "Battery"), ("status", "Discharging"), ("capacity", "31")];

    #[test]
    fn a_low_battery_without_mains_blocks_a_change() {
        let why = check_supplies(&[UNPLUGGED, LOW_BATTERY]).unwrap_err();
        assert_eq!(why, "the machine runs on batteries with less than 30 % left");
        check_supplies(&[LOW_BATTERY]).unwrap_err();
        let ups: &[(&str, &str)] = &[("type", "UPS"), ("status", "Discharging"), ("capacity", "5")];
        check_supplies(&[ups]).unwrap_err();
    }

    #[test]
    fn mains_power_or_enough_charge_lets_a_change_begin() {
        check_supplies(&[]).unwrap();
        check_supplies(&[MAINS]).unwrap();
        check_supplies(&[UNPLUGGED]).unwrap();
        check_supplies(&[LOW_BATTERY, MAINS]).unwrap();
        check_supplies(&[UNPLUGGED, CHARGED_BATTERY]).unwrap();
        check_supplies(&[UNPLUGGED, LOW_BATTERY, CHARGED_BATTERY]).unwrap();
        check_power(Path::new("/no/such/folder"), 30).unwrap();
    }

    #[test]
    fn a_charging_battery_counts_as_external_power() {
        for status in ["Charging", "Full", "Not charging"] {
            check_supplies(&[&[("type", "Battery"), ("status", status), ("capacity", "5")]])
                .unwrap();
        }
    }

    #[test]
    fn device_batteries_and_batteries_without_data_are_ignored() {
        let mouse: &[(&str, &str)] = &[
            ("type", "Battery"),
            ("scope", "Device"),
            ("status", "Discharging"),
            ("capacity", "3"),
        ];
        check_supplies(&[mouse]).unwrap();
        check_supplies(&[&[("type", "Battery"), ("status", "Unknown")]]).unwrap();
        check_supplies(&[&[("type", "Battery"), ("capacity", "high")], &[]]).unwrap();
    }
}
