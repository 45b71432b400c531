//! Reads the elements of a bundle except `Path`.

use std::collections::HashSet;

use super::entry_reader::{EntryReader, refusal};
use super::shell;
use crate::document::{
    ActionCondition, ActionSpec, ActionStatusCheck, ActionTiming, PackageState, UnitCommand,
    UnitState, UserGroupState, UserState,
};
use crate::validation::{UNIT_SUFFIXES, excerpt, short};

/// A service of Bcfg2.
#[derive(Debug)]
pub(super) struct ServiceUnit {
    pub state: UnitState,
    /// Whether a change in its bundle restarts it.
    pub restarts_with_bundle: bool,
}

/// Whether the name has the suffix of a unit. Bcfg2's client appends `.service` to all other names.
pub(super) fn has_unit_suffix(name: &str) -> bool {
    name.rsplit_once('.').is_some_and(|(_, suffix)| UNIT_SUFFIXES.contains(&suffix))
}

/// The name of the unit of a service.
pub(super) fn unit_name(service: String) -> String {
    if has_unit_suffix(&service) { service } else { format!("{service}.service") }
}

/// Reads a package. None if there is an error.
pub(super) fn read_package(reader: &mut EntryReader<'_>) -> Option<PackageState> {
    require_type(reader, "deb");
    // Packages is the plugin of the server that added the package.
    reader.take("origin");
    // debsums are not compared, so both values have the same effect.
    reader.take_flag("verify");
    let version = reader.require("version")?;
    match version.as_str() {
        // Update policies decide on newer versions.
        "auto" => Some(PackageState { version: PackageState::ANY.to_owned() }),
        PackageState::ABSENT => {
            let message =
                "\"absent\" is not a version; Bcfg2 cannot require that a package is absent";
            reader.add_error_at("@version", message);
            None
        }
        _ => Some(PackageState { version }),
    }
}

/// Reads a service. None if there is an error.
pub(super) fn read_service(reader: &mut EntryReader<'_>) -> Option<ServiceUnit> {
    require_type(reader, "systemd");
    let restarts = [("true", true), ("false", false), ("interactive", false)];
    let restarts = reader.take_choice("restart", &restarts).unwrap_or(true);
    if reader.take("target").is_some_and(|target| target != "restart") {
        reader.refuse_at("@target", "services are only restarted; accepted: restart");
    }
    if reader.take_choice("install", &[("true", true), ("false", false)]) == Some(false) {
        reader.refuse_at("@install", "a service is more than restarted; remove the attribute");
    }
    let statuses = [("on", Some(true)), ("off", Some(false)), ("ignore", None)];
    let boot = reader.take_choice("bootstatus", &[("on", true), ("off", false)]);
    let Some(is_active) = reader.require_choice("status", &statuses)? else {
        let message = "the agent starts or stops each unit of the document; accepted: on, off";
        reader.refuse_at("@status", message);
        return None;
    };
    let enable = boot.unwrap_or(is_active);
    let command = match (is_active, enable) {
        (true, _) if !restarts => Some(UnitCommand::Start),
        (true, true) | (false, false) => None,
        (true, false) => Some(UnitCommand::Restart),
        (false, true) => Some(UnitCommand::Stop),
    };
    let state = UnitState { enable: Some(enable), command, ..UnitState::default() };
    Some(ServiceUnit { state, restarts_with_bundle: is_active && restarts })
}

/// Reads an action. None if there is an error.
pub(super) fn read_action(
    reader: &mut EntryReader<'_>,
    is_independent: bool,
) -> Option<ActionSpec> {
    let timings =
        [("pre", ActionTiming::Pre), ("post", ActionTiming::Post), ("both", ActionTiming::Both)];
    let conditions = [("modified", ActionCondition::Modified), ("always", ActionCondition::Always)];
    let statuses = [("check", ActionStatusCheck::Check), ("ignore", ActionStatusCheck::Ignore)];
    let timing = reader.require_choice("timing", &timings);
    let when = reader.require_choice("when", &conditions);
    let status = reader.require_choice("status", &statuses);
    let command = reader.require("command");
    let is_shell = reader.take_flag("shell");
    // The mode of the client in which an action can be deferred is not offered.
    reader.take_flag("build");
    let (timing, when, status, command) = (timing?, when?, status?, command?);
    if is_independent && (timing, when) != (ActionTiming::Post, ActionCondition::Always) {
        let message = "an action without a bundle does not depend on other entries; accepted: \
                       timing=\"post\" with when=\"always\"";
        reader.refuse(message);
        return None;
    }
    let command = if is_shell {
        command
    } else {
        match shell::quote_words(&command) {
            Ok(command) => command,
            Err(message) => {
                reader.add_error_at("@command", message);
                return None;
            }
        }
    };
    // Bcfg2's actions have no time limit of their own.
    Some(ActionSpec { command, timing, when, status, timeout: ActionSpec::DEFAULT_TIMEOUT })
}

/// Reads a user. Absent attributes get the values that Bcfg2's client gives them.
pub(super) fn read_user(reader: &mut EntryReader<'_>, name: &str) -> Option<UserState> {
    let uid = reader.take_number("uid");
    let group = reader.take("group");
    let comment = reader.take("gecos").unwrap_or_else(|| name.to_owned());
    let home = reader.take("home").unwrap_or_else(|| default_home(name));
    let shell = reader.take("shell").unwrap_or_else(|| "/bin/bash".to_owned());
    let groups = read_groups(reader)?;
    Some(UserState {
        absent: false,
        uid,
        group,
        groups,
        comment: Some(comment),
        home: Some(home),
        shell: Some(shell),
    })
}

fn default_home(name: &str) -> String {
    if name == "root" { "/root".to_owned() } else { format!("/home/{name}") }
}

/// The groups of `MemberOf` elements: an attribute or, in older documents, the text.
fn read_groups(reader: &mut EntryReader<'_>) -> Option<Vec<String>> {
    let mut groups = Vec::new();
    let mut names = HashSet::new();
    let mut is_valid = true;
    for (index, child) in reader.take_children().into_iter().enumerate() {
        let mut member = reader.child(child, index + 1);
        if member.element_name() != "MemberOf" {
            let message = refusal(member.element_name());
            member.refuse(message);
            is_valid = false;
            continue;
        }
        let text = member.take_text().trim().to_owned();
        let group = member.take("group").map(|group| group.trim().to_owned());
        let group = group.unwrap_or_else(|| text.clone());
        if group.is_empty() {
            member.add_error("the group is missing; write group=\"NAME\"");
        } else if !text.is_empty() && text != group {
            member.add_error("the attribute group and the text are different");
        } else if !names.insert(group.clone()) {
            member.add_error(format!("the group {} is listed twice", short(&group)));
        }
        groups.push(group);
        is_valid &= member.finish();
    }
    if !is_valid {
        reader.mark_invalid();
    }
    is_valid.then_some(groups)
}

/// Reads a group of users.
pub(super) fn read_user_group(reader: &mut EntryReader<'_>) -> UserGroupState {
    UserGroupState { absent: false, gid: reader.take_number("gid") }
}

fn require_type(reader: &mut EntryReader<'_>, accepted: &str) {
    let Some(name) = reader.require("type") else {
        return;
    };
    if name != accepted {
        let message = format!("{} is another system; accepted: {accepted}", excerpt(&name));
        reader.refuse_at("@type", &message);
    }
}
