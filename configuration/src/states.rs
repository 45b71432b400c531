//! Reads the desired state of each component.

use crate::document::{
    ActionSpec, Component, Desired, FileContent, FileState, MAX_ACCOUNT_ID, PackageSourceState,
    PackageState, SecretRef, SysctlState, UnitState, UserGroupState, UserState,
};
use crate::validation::ErrorList;
use crate::yaml::{Fields, Node};

/// Reads `desired` of an entry. Wrong fields get their default, and an error.
pub(crate) fn read_desired(
    component: Component,
    path: String,
    node: Option<Node>,
    errors: &mut ErrorList,
) -> Desired {
    let mut fields = Fields::open(component.name(), path, node, errors);
    let desired = match component {
        Component::File => Desired::File(read_file(&mut fields)),
        Component::Unit => Desired::Unit(read_unit(&mut fields)),
        Component::Package => Desired::Package(read_package(&mut fields)),
        Component::PackageSource => Desired::PackageSource(read_source(&mut fields)),
        Component::Action => Desired::Action(read_action(&mut fields)),
        Component::User => Desired::User(read_user(&mut fields)),
        Component::UserGroup => Desired::UserGroup(read_group(&mut fields)),
        Component::Sysctl => Desired::Sysctl(read_sysctl(&mut fields)),
    };
    fields.finish();
    desired
}

fn read_file(fields: &mut Fields<'_>) -> FileState {
    FileState {
        kind: fields.choice("type").unwrap_or_default(),
        mode: fields.mode("mode"),
        owner: fields.text("owner"),
        group: fields.text("group"),
        content: fields.object("content", "content").map(read_content),
        target: fields.text("target"),
        prune: fields.boolean("prune").unwrap_or_default(),
    }
}

fn read_content(mut fields: Fields<'_>) -> FileContent {
    let content = FileContent {
        inline: fields.literal_text("inline"),
        base64: fields.text("base64").map(without_line_breaks),
        secret_ref: fields.object("secretRef", "secretRef").map(read_secret_ref),
        uri: fields.text("uri"),
        sha256: fields.text("sha256"),
    };
    fields.finish();
    content
}

/// `base64` and PEM tools break lines.
fn without_line_breaks(mut base64: String) -> String {
    base64.retain(|c| !c.is_ascii_whitespace());
    base64
}

fn read_secret_ref(mut fields: Fields<'_>) -> SecretRef {
    let secret_ref = SecretRef {
        name: fields.required_text("name"),
        key: fields.required_text("key"),
        version: fields.number("version", SecretRef::MAX_VERSION),
    };
    fields.finish();
    secret_ref
}

fn read_unit(fields: &mut Fields<'_>) -> UnitState {
    UnitState {
        content: fields.text("content"),
        drop_ins: fields.text_map("dropIns"),
        enable: fields.boolean("enable"),
        command: fields.choice("command"),
        file_paths: fields.texts("filePaths"),
    }
}

fn read_package(fields: &mut Fields<'_>) -> PackageState {
    PackageState { version: fields.text("version").unwrap_or_else(PackageState::any_version) }
}

fn read_source(fields: &mut Fields<'_>) -> PackageSourceState {
    PackageSourceState { source: fields.required_text("source"), key: fields.text("key") }
}

fn read_action(fields: &mut Fields<'_>) -> ActionSpec {
    ActionSpec {
        command: fields.required_text("command"),
        timing: fields.choice("timing").unwrap_or_default(),
        when: fields.choice("when").unwrap_or_default(),
        status: fields.choice("status").unwrap_or_default(),
        timeout: fields
            .small_number("timeout", ActionSpec::MAX_TIMEOUT)
            .unwrap_or(ActionSpec::DEFAULT_TIMEOUT),
    }
}

fn read_user(fields: &mut Fields<'_>) -> UserState {
    UserState {
        absent: fields.boolean("absent").unwrap_or_default(),
        uid: fields.small_number("uid", MAX_ACCOUNT_ID),
        group: fields.text("group"),
        groups: fields.texts("groups"),
        comment: fields.text("comment"),
        home: fields.text("home"),
        shell: fields.text("shell"),
    }
}

fn read_group(fields: &mut Fields<'_>) -> UserGroupState {
    UserGroupState {
        absent: fields.boolean("absent").unwrap_or_default(),
        gid: fields.small_number("gid", MAX_ACCOUNT_ID),
    }
}

fn read_sysctl(fields: &mut Fields<'_>) -> SysctlState {
    let value = fields.literal_text("value");
    if value.is_none() {
        fields.missing("value");
    }
    SysctlState { value: value.unwrap_or_default() }
}
