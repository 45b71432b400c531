//! Outputs of systemctl.

use super::LETTERS;
use crate::fuzz_driver::{fuzz, text};
use crate::modules::packages::services::{
    ServiceCondition, UnitProperties, parse_properties, parse_units, unit_condition,
};

const UNITS: &[&str] = &[
    "cron.service                  loaded active running Regular background program processing daemon\n\
     getty@tty1.service            loaded active running Getty on tty1\n\
     demo\\x2dunit.service          loaded active exited  demo\n",
    "\u{25cf} ssh.service not-found inactive dead\n  x.socket\n",
];

const PROPERTIES: &[&str] = &[
    "Result=success\nTriggeredBy=x.socket\nId=a.service\nLoadState=loaded\nActiveState=inactive\nUnitFileState=static\n\
     Transient=no\n\nId=b.service\nLoadState=not-found\nActiveState=failed\n",
    "LoadState=loaded\nActiveState=activating\nA==\n=\n\n\n\nLoadState=masked\n",
];

#[test]
fn units_are_names_of_services() {
    fuzz("systemctl list-units", |rng| {
        let output = text(rng, UNITS, LETTERS);
        let units = parse_units(&output);
        for unit in &units {
            assert!(unit.strip_suffix(".service").is_some(), "{unit:?}");
            assert!(!unit.contains(char::is_whitespace), "{unit:?}");
        }
        let lines: Vec<_> = units.iter().map(|unit| format!("{unit} loaded\n")).collect();
        assert_eq!(parse_units(&lines.concat()), units);
    });
}

#[test]
fn properties_are_parsed_as_they_are_printed() {
    fuzz("systemctl show", |rng| {
        let output = text(rng, PROPERTIES, LETTERS).replace('\r', "");
        let mut units = parse_properties(&output);
        for unit in &units {
            if unit_condition(unit) == ServiceCondition::Starting {
                assert_eq!(unit["LoadState"], "loaded");
            }
        }
        units.retain(|unit| !unit.is_empty());
        let printed: Vec<_> = units.iter().map(print_unit).collect();
        assert_eq!(parse_properties(&printed.join("\n")), units);
    });
}

fn print_unit(unit: &UnitProperties) -> String {
    let lines: Vec<_> = unit.iter().map(|(name, value)| format!("{name}={value}\n")).collect();
    lines.concat()
}
