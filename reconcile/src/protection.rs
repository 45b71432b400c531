//! Entries that would remove or stop the agent. No run applies them: nothing could apply the next
//! document.

use evenkeel_configuration::Component;
use evenkeel_configuration::document::{Desired, Entry, FileKind, PackageState};

use crate::check::{must_be_enabled, must_run};
use crate::finding::EntryKey;
use crate::names::{AGENT_PACKAGE, AGENT_UNIT, is_in_unit_folder, package_base_name};

/// Why an entry is refused, as a sentence.
pub(crate) fn refuse_entry(entry: &Entry) -> Option<&'static str> {
    let is_agent = is_part_of_agent(&EntryKey::from_entry(entry));
    match &entry.desired {
        Desired::Unit(state) if is_agent && !(must_run(state) && must_be_enabled(state)) => {
            Some("the unit of the agent cannot be disabled or stopped by a document")
        }
        Desired::Package(state) if is_agent && state.version == PackageState::ABSENT => {
            Some("the package of the agent cannot be removed by a document")
        }
        Desired::File(state)
            if is_agent && !matches!(state.kind, FileKind::File | FileKind::Permissions) =>
        {
            Some("the unit file of the agent cannot be removed or replaced by a document")
        }
        _ => None,
    }
}

/// Whether an object is the unit, the unit file or the package of the agent.
pub(crate) fn is_part_of_agent(key: &EntryKey) -> bool {
    match key.component {
        Component::Unit => key.name == AGENT_UNIT,
        Component::Package => package_base_name(&key.name) == AGENT_PACKAGE,
        Component::File => {
            let is_unit = key.name.rsplit_once('/').is_some_and(|(_, name)| name == AGENT_UNIT);
            is_unit && is_in_unit_folder(&key.name)
        }
        _ => false,
    }
}
