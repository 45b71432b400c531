//! Parses the properties of units that `systemctl show` prints.

use std::str;

/// The properties that a check needs, as the argument of `systemctl show`.
pub(super) const PROPERTY_ARGUMENT: &str = "--property=Id,Names,LoadState,ActiveState,SubState,\
                                            UnitFileState,NeedDaemonReload,Type,TriggeredBy,\
                                            ConditionResult,ConditionTimestampMonotonic";

/// The state of a unit in systemd.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct UnitProperties {
    pub id: String,
    /// All names, with those of aliases; at least `id`.
    pub names: Vec<String>,
    /// `loaded`, `not-found`, `masked`, `bad-setting`, `error`, `merged` or `stub`.
    pub load_state: String,
    /// `active`, `reloading`, `inactive`, `failed`, `activating`, `deactivating` and others.
    pub active_state: String,
    pub sub_state: String,
    /// As `systemctl is-enabled` prints it; empty if the unit has no file.
    pub unit_file_state: String,
    /// Whether files of the unit have changed since systemd read them.
    pub needs_reload: bool,
    /// Type of a service; empty for other units.
    pub service_type: String,
    /// Whether a socket, timer or path starts the unit.
    pub is_triggered: bool,
    /// Whether the last start was skipped because of a condition of the unit.
    pub is_skipped: bool,
}

/// Parses the blocks of properties, which empty lines separate.
///
/// A block is ignored if it has a line that is not a property in UTF-8, the same property twice, or
/// no `Id`, `LoadState` or `ActiveState`: its units count as not reported. Other properties are
/// ignored.
pub(super) fn parse_properties(output: &[u8]) -> Vec<UnitProperties> {
    let mut units = Vec::new();
    let mut block = Vec::new();
    let lines = output.split(|byte| *byte == b'\n').chain([&b""[..]]);
    for line in lines {
        if !line.is_empty() {
            block.push(line);
            continue;
        }
        units.extend(parse_block(&block));
        block.clear();
    }
    units
}

fn parse_block(lines: &[&[u8]]) -> Option<UnitProperties> {
    let mut properties: Vec<(&str, &str)> = Vec::with_capacity(lines.len());
    for line in lines {
        let (name, value) = str::from_utf8(line).ok()?.split_once('=')?;
        if properties.iter().any(|(other, _)| *other == name) {
            return None;
        }
        properties.push((name, value));
    }
    let find = |name: &str| properties.iter().find(|(other, _)| *other == name);
    let value = |name: &str| find(name).map_or("", |(_, value)| *value);
    let text = |name: &str| value(name).to_owned();
    let required = |name: &str| Some(text(name)).filter(|value| !value.is_empty());
    let id = required("Id")?;
    let mut names: Vec<String> = value("Names").split(' ').map(str::to_owned).collect();
    names.retain(|name| !name.is_empty());
    if !names.contains(&id) {
        names.push(id.clone());
    }
    // Before the first start, the result is `no` and the time is 0.
    let has_tried = !matches!(value("ConditionTimestampMonotonic"), "" | "0");
    Some(UnitProperties {
        id,
        names,
        load_state: required("LoadState")?,
        active_state: required("ActiveState")?,
        sub_state: text("SubState"),
        unit_file_state: text("UnitFileState"),
        needs_reload: value("NeedDaemonReload") == "yes",
        service_type: text("Type"),
        is_triggered: !value("TriggeredBy").trim().is_empty(),
        is_skipped: has_tried && value("ConditionResult") == "no",
    })
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn print_unit(unit: &UnitProperties) -> String {
        let word = |is_set: bool| if is_set { "yes" } else { "no" };
        format!(
            "Type={}\nTriggeredBy={}\nId={}\nNames={}\nLoadState={}\nActiveState={}\n\
             SubState={}\nUnitFileState={}\nNeedDaemonReload={}\nConditionResult={}\n\
             ConditionTimestampMonotonic=17\n",
            unit.service_type,
            if unit.is_triggered { "a.timer b.socket" } else { "" },
            unit.id,
            unit.names.join(" "),
            unit.load_state,
            unit.active_state,
            unit.sub_state,
            unit.unit_file_state,
            word(unit.needs_reload),
            word(!unit.is_skipped),
        )
    }

    #[test]
    fn a_damaged_block_does_not_affect_its_neighbours() {
        let first = b"Id=a.service\nLoadState=loaded\nActiveState=active\n";
        let last = b"Id=b.service\nLoadState=loaded\nActiveState=active\n";
        let damaged: [&[u8]; 7] = [
            b"Id=x.service\nLoadState=loaded\n",
            b"Id=x.service\nLoadState=loaded\nActiveState=\n",
            b"Id=x.service\nLoadState=loaded\nActiveState=active\nActiveState=failed\n",
            b"Id=x.service\nLoadState=loaded\nActiveState=active\nno property\n",
            b"Id=x.service\nLoadState=loaded\nActiveState=active\nSubState=\xff\n",
            b"LoadState=loaded\nActiveState=active\n",
            b"\n\n\n",
        ];
        for block in damaged {
            let output = [&first[..], block, &last[..]].join(&b'\n');
            let units = parse_properties(&output);
            let ids: Vec<_> = units.iter().map(|unit| unit.id.as_str()).collect();
            let block = String::from_utf8_lossy(block);
            assert_eq!(ids, ["a.service", "b.service"], "{block}");
        }
    }

    #[test]
    fn a_unit_that_was_never_started_is_not_skipped() {
        let print = |time: &str| {
            let unit = "Id=a.service\nLoadState=loaded\nActiveState=inactive\n";
            format!("{unit}ConditionResult=no\nConditionTimestampMonotonic={time}\n")
        };
        assert!(!parse_properties(print("0").as_bytes())[0].is_skipped);
        assert!(parse_properties(print("5").as_bytes())[0].is_skipped);
    }

    prop_compose! {
        fn properties()(
            (id, others, load_state, active_state) in
                ("[a-z@.-]{1,9}", vec("[A-Z.]{1,9}", 0..3), "[a-z-]{1,9}", "[a-z]{1,9}"),
            (sub_state, unit_file_state, service_type) in
                ("[a-z]{0,9}", "[a-z]{0,9}", "[a-z]{0,9}"),
            flags in any::<[bool; 3]>(),
        ) -> UnitProperties {
            let [needs_reload, is_triggered, is_skipped] = flags;
            let names = [vec![id.clone()], others].concat();
            UnitProperties {
                id, names, load_state, active_state, sub_state, unit_file_state, needs_reload,
                service_type, is_triggered, is_skipped,
            }
        }
    }

    proptest! {
        #[test]
        fn properties_are_parsed_as_they_are_printed(units in vec(properties(), 0..5)) {
            let printed: Vec<_> = units.iter().map(print_unit).collect();
            prop_assert_eq!(parse_properties(printed.join("\n").as_bytes()), units);
        }

        #[test]
        fn arbitrary_bytes_are_parsed_without_a_panic(output in vec(any::<u8>(), 0..300)) {
            parse_properties(&output);
        }

        #[test]
        fn damaged_output_gives_only_complete_units(
            output in "(Id|Names|LoadState|ActiveState|=|\n|loaded| |a\\.service|\u{e9}|\0){0,60}"
        ) {
            for unit in parse_properties(output.as_bytes()) {
                prop_assert!(!unit.id.is_empty() && unit.names.contains(&unit.id));
                prop_assert!(!unit.load_state.is_empty() && !unit.active_state.is_empty());
            }
        }
    }
}
