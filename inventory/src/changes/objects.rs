//! REST form of changes and of their objects.

use evenkeel_api::change::ChangeResource;
use evenkeel_domain::id::{
    CustomConfigId, HostId, InstanceId, JoinTokenId, LocalAccountId, NotificationTargetId, OsId,
    PolicyId, ProviderId, RegionId, RepeatedScheduleId, RunId, SingleScheduleId, SiteId,
};
use evenkeel_store::changes::{ChangeObject, EventKind, RecordedChange};
use serde_json::Value;

/// A kind of objects with an ID, and the kinds of their changes.
struct ObjectKind {
    /// The text before the dash of an ID.
    prefix: &'static str,
    kinds: &'static [&'static str],
    /// The level of scopes that name the object.
    level: Option<&'static str>,
}

const fn object_kind(
    prefix: &'static str,
    kinds: &'static [&'static str],
    level: Option<&'static str>,
) -> ObjectKind {
    ObjectKind { prefix, kinds, level }
}

static OBJECT_KINDS: [ObjectKind; 14] = [
    object_kind(HostId::PREFIX, &["host", "host_hardware"], Some("host")),
    object_kind(
        InstanceId::PREFIX,
        &["instance", "update_order", "instance_custom_config"],
        Some("instance"),
    ),
    object_kind(SiteId::PREFIX, &["site"], Some("site")),
    object_kind(RegionId::PREFIX, &["region"], Some("region")),
    object_kind(OsId::PREFIX, &["os", "os_details"], None),
    object_kind(PolicyId::PREFIX, &["policy"], None),
    object_kind(RunId::PREFIX, &["run"], None),
    object_kind(SingleScheduleId::PREFIX, &["single_schedule"], None),
    object_kind(RepeatedScheduleId::PREFIX, &["repeated_schedule"], None),
    object_kind(ProviderId::PREFIX, &["provider"], None),
    object_kind(CustomConfigId::PREFIX, &["custom_config"], None),
    object_kind(LocalAccountId::PREFIX, &["local_account"], None),
    object_kind(JoinTokenId::PREFIX, &["join_token"], None),
    object_kind(NotificationTargetId::PREFIX, &["notification_target"], None),
];

/// The object of what exists once per project, and the scope of the whole project.
const PROJECT: &str = "project";

const KINDS_OF_PROJECTS: &[&str] = &["project", "project_settings", "os_settings", "refusal"];

/// Kinds of changes whose object is a scope.
static KINDS_BY_SCOPE: [&str; 3] = ["assignment", "pause", "slot"];

/// Kinds whose objects have no ID of 32 bits, with the column of the row that names the object.
static KINDS_BY_ROW: [(&str, &str); 6] = [
    ("operator_token", "id"),
    ("user", "name"),
    ("login", "name"),
    ("login_failure", "name"),
    ("subject_revocation", "subject"),
    ("password_change", "name"),
];

/// All kinds of changes.
pub fn kinds() -> impl Iterator<Item = &'static str> {
    let with_id = OBJECT_KINDS.iter().flat_map(|object| object.kinds);
    let by_row = KINDS_BY_ROW.iter().map(|(kind, _)| kind);
    with_id.chain(KINDS_OF_PROJECTS).chain(&KINDS_BY_SCOPE).chain(by_row).copied()
}

pub fn is_kind(kind: &str) -> bool {
    kinds().any(|known| known == kind)
}

/// Parses `project` or the ID of an object; none if it is neither.
pub fn parse_object(text: &str) -> Option<ChangeObject> {
    if text == PROJECT {
        return Some(ChangeObject { kinds: KINDS_OF_PROJECTS, level: Some(PROJECT), id: 0 });
    }
    let (prefix, digits) = text.rsplit_once('-')?;
    let object = OBJECT_KINDS.iter().find(|object| object.prefix == prefix)?;
    let is_hex = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    let is_id = digits.len() == 8 && digits.bytes().all(is_hex);
    let id = u32::from_str_radix(digits, 16).ok().filter(|_| is_id)?;
    Some(ChangeObject { kinds: object.kinds, level: object.level, id })
}

/// REST form of a change.
pub fn resource(change: RecordedChange) -> ChangeResource {
    let rows = [&change.after, &change.before];
    // A token of a user has no name.
    let names = ["name", "subject"];
    let name = rows
        .into_iter()
        .flatten()
        .find_map(|row| names.iter().find_map(|name| row[*name].as_str()));
    ChangeResource {
        change_id: change.id.to_string(),
        time: change.at,
        object_id: object_id(&change),
        object_name: name.unwrap_or_default().to_owned(),
        operation: operation(&change).to_owned(),
        actor: change.actor.unwrap_or_default(),
        kind: change.kind,
        before: change.before.filter(Value::is_object),
        after: change.after.filter(Value::is_object),
        rows_omitted: change.is_cut,
        request_id: change.request_id.unwrap_or_default(),
        client_address: change.client_address.unwrap_or_default(),
    }
}

/// The object of a change, as the API writes its ID. For a kind that only a newer server knows, its
/// digits. Empty if only the row names the object, and the change has none.
fn object_id(change: &RecordedChange) -> String {
    if let Some((_, column)) = KINDS_BY_ROW.iter().find(|(kind, _)| change.kind == *kind) {
        let row = change.after.as_ref().or(change.before.as_ref());
        return row.and_then(|row| row[*column].as_str()).unwrap_or_default().to_owned();
    }
    let id = change.object;
    let object = if KINDS_BY_SCOPE.contains(&change.kind.as_str()) {
        match change.level.as_deref() {
            Some(PROJECT) => return PROJECT.to_owned(),
            Some(level) => OBJECT_KINDS.iter().find(|object| object.level == Some(level)),
            // The log has no level for a pause of a policy.
            None => OBJECT_KINDS.iter().find(|object| object.prefix == PolicyId::PREFIX),
        }
    } else if KINDS_OF_PROJECTS.contains(&change.kind.as_str()) {
        return PROJECT.to_owned();
    } else {
        OBJECT_KINDS.iter().find(|object| object.kinds.contains(&change.kind.as_str()))
    };
    match object {
        Some(object) => format!("{}-{id:08x}", object.prefix),
        None => format!("{id:08x}"),
    }
}

/// REST form of an operation.
fn operation(change: &RecordedChange) -> &str {
    match change.operation.as_str() {
        "insert" if EventKind::ALL.iter().any(|event| change.kind == event.name()) => "record",
        "insert" => "create",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;
    use evenkeel_store::changes::ChangeId;
    use serde_json::json;

    use super::*;

    fn change(kind: &str, level: Option<&str>) -> RecordedChange {
        RecordedChange {
            id: ChangeId { xid: 26, seq: 10 },
            at: DateTime::UNIX_EPOCH,
            kind: kind.to_owned(),
            object: 0x0a1b_2c3d,
            operation: "insert".to_owned(),
            level: level.map(str::to_owned),
            actor: Some("alice".to_owned()),
            request_id: None,
            client_address: None,
            before: None,
            after: Some(json!({"name": "edge-01"})),
            is_cut: false,
        }
    }

    #[test]
    fn an_object_has_the_id_that_the_api_writes() {
        for (kind, level, expected) in [
            ("host", Some("host"), "host-0a1b2c3d"),
            ("host_hardware", None, "host-0a1b2c3d"),
            ("update_order", Some("instance"), "inst-0a1b2c3d"),
            ("run", Some("instance"), "osupdaterun-0a1b2c3d"),
            ("assignment", Some("site"), "site-0a1b2c3d"),
            ("assignment", Some("project"), "project"),
            ("pause", Some("site"), "site-0a1b2c3d"),
            ("pause", None, "osupdatepolicy-0a1b2c3d"),
            ("os_settings", None, "project"),
            ("something_new", None, "0a1b2c3d"),
        ] {
            assert_eq!(resource(change(kind, level)).object_id, expected, "{kind} {level:?}");
        }
    }

    #[test]
    fn a_change_names_its_object_and_its_operation() {
        let resource = resource(change("host", Some("host")));
        assert_eq!((resource.change_id.as_str(), resource.operation.as_str()), ("1a-a", "create"));
        assert_eq!(resource.object_name, "edge-01");
    }

    #[test]
    fn a_user_and_a_token_are_named_by_their_rows() {
        let token = json!({"id": "3f2504e0", "name": null, "subject": "alice"});
        let program = json!({"id": "3f2504e1", "name": "nightly", "subject": "alice"});
        for (kind, row, expected) in [
            ("user", json!({"name": "alice"}), ["alice", "alice", "create"]),
            ("operator_token", token, ["3f2504e0", "alice", "create"]),
            ("operator_token", program, ["3f2504e1", "nightly", "create"]),
            ("login", json!({"name": "alice"}), ["alice", "alice", "record"]),
            ("login_failure", json!({"reason": "unknown-user"}), ["", "", "record"]),
        ] {
            let resource = resource(RecordedChange { after: Some(row), ..change(kind, None) });
            let found = [&resource.object_id, &resource.object_name, &resource.operation];
            assert_eq!(found, expected, "{kind}");
        }
        // Changes of the server itself have no rows.
        let without_rows = RecordedChange { after: None, ..change("user", None) };
        assert_eq!(resource(without_rows).object_id, "");
    }

    #[test]
    fn every_id_is_parsed_as_it_is_written() {
        for object in &OBJECT_KINDS {
            let parsed = parse_object(&format!("{}-0a1b2c3d", object.prefix)).expect("an object");
            assert_eq!((parsed.kinds, parsed.id), (object.kinds, 0x0a1b_2c3d));
        }
        assert_eq!(parse_object("project").map(|object| object.id), Some(0));
        for bad in ["", "host", "host-", "host-0A1B2C3D", "host-0a1b2c3d4", "car-0a1b2c3d"] {
            assert_eq!(parse_object(bad), None, "{bad}");
        }
    }
}
