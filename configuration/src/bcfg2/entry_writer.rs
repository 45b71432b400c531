//! Writes entries as elements of a bundle.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::entries::has_unit_suffix;
use super::structure_writer::{PathElement, PathPermissions, SYSTEM_FILE, StructureWriter};
use crate::document::{
    ActionCondition, ActionSpec, ActionStatusCheck, ActionTiming, Desired, Entry, FileContent,
    FileKind, FileState, PackageSourceState, PackageState, SysctlState, UNIT_FOLDER, UnitCommand,
    UnitState, UserGroupState, UserState,
};
use crate::shell::quote;
use crate::validation::{is_template, short};

impl StructureWriter {
    pub(super) fn write_entry(&mut self, entry: &Entry) {
        let name = &entry.name;
        match &entry.desired {
            Desired::File(state) => self.write_file_entry(name, state),
            Desired::Unit(state) => self.write_unit(name, state),
            Desired::Package(state) => self.write_package(name, state),
            Desired::PackageSource(state) => self.write_source(name, state),
            Desired::Action(spec) => self.write_action(name, spec),
            Desired::User(state) => self.write_user(name, state),
            Desired::UserGroup(state) => self.write_user_group(name, state),
            Desired::Sysctl(state) => self.write_sysctl(name, state),
        }
    }

    fn write_file_entry(&mut self, name: &str, state: &FileState) {
        let mode = state.mode.unwrap_or_else(|| state.default_mode()).to_string();
        let permissions = PathPermissions {
            mode: &mode,
            owner: state.owner.as_deref().unwrap_or("root"),
            group: state.group.as_deref().unwrap_or("root"),
        };
        let path = PathElement { name, ..PathElement::default() };
        let with_permissions = PathElement { permissions: Some(permissions), ..path };
        match state.kind {
            FileKind::File => self.write_file_content(name, permissions, state.content.as_ref()),
            FileKind::Directory => {
                let further = state.prune.then_some(("prune", "true"));
                self.write_path(PathElement { kind: "directory", further, ..with_permissions });
            }
            FileKind::Permissions => {
                self.refuse_absent_permissions(state);
                self.write_path(PathElement { kind: "permissions", ..with_permissions });
            }
            FileKind::Symlink => {
                self.refuse_link_owner(state);
                let further = state.target.as_deref().map(|target| ("to", target));
                if further.is_none() {
                    self.add_error("desired.target", "Bcfg2 requires a target; write it");
                }
                self.write_path(PathElement { kind: "symlink", further, ..path });
            }
            FileKind::Absent => {
                let further = state.prune.then_some(("recursive", "true"));
                self.write_path(PathElement { kind: "nonexistent", further, ..path });
            }
        }
    }

    /// Permissions that are absent do not change here, but Bcfg2 requires all of them.
    fn refuse_absent_permissions(&mut self, state: &FileState) {
        let fields = [
            ("mode", state.mode.is_none()),
            ("owner", state.owner.is_none()),
            ("group", state.group.is_none()),
        ];
        for (field, _) in fields.into_iter().filter(|(_, is_absent)| *is_absent) {
            let message = format!("Bcfg2 requires a {field} for the type permissions; write it");
            self.add_error(&format!("desired.{field}"), message);
        }
    }

    fn refuse_link_owner(&mut self, state: &FileState) {
        for (field, value) in [("owner", &state.owner), ("group", &state.group)] {
            if value.as_deref().is_some_and(|value| !matches!(value, "root" | "0")) {
                let message = format!("Bcfg2 does not set the {field} of links; accepted: root");
                self.add_error(&format!("desired.{field}"), message);
            }
        }
    }

    fn write_file_content(
        &mut self,
        name: &str,
        permissions: PathPermissions<'_>,
        content: Option<&FileContent>,
    ) {
        let Some(content) = content else {
            self.write_file(name, permissions, "");
            return;
        };
        if content.secret_ref.is_some() {
            let message = "Bcfg2's document has no secrets; write the content, or remove the entry";
            self.add_error("desired.content.secretRef", message);
        } else if content.uri.is_some() {
            let message = "Bcfg2 does not download contents; write the content";
            self.add_error("desired.content.uri", message);
        } else if let Some(digits) = &content.base64 {
            match STANDARD.decode(digits) {
                Ok(_) => self.write_base64_file(name, permissions, digits),
                Err(error) => {
                    let message = format!("the content is not base64: {error}");
                    self.add_error("desired.content.base64", message);
                }
            }
        } else {
            let text = content.inline.as_deref().unwrap_or_default();
            self.write_file(name, permissions, text);
        }
    }

    /// Writes the files of a unit, and the unit as a service.
    ///
    /// Bcfg2 restarts a service after any change in its bundle. So a unit restarts with its bundle
    /// only if it has files that restart it here.
    fn write_unit(&mut self, name: &str, state: &UnitState) {
        if name.contains('/') || !has_unit_suffix(name) {
            let message = "the name has no suffix of a unit; write, for example, nginx.service";
            self.add_error("name", message);
            return;
        }
        if let Some(content) = &state.content {
            self.write_file(&format!("{UNIT_FOLDER}/{name}"), SYSTEM_FILE, content);
        }
        for (file, text) in &state.drop_ins {
            if file.contains('/') || file.starts_with('.') || file.is_empty() {
                self.add_error("desired.dropIns", format!("{} is no file name", short(file)));
            }
            self.write_file(&format!("{UNIT_FOLDER}/{name}.d/{file}"), SYSTEM_FILE, text);
        }
        let has_files = state.content.is_some() || !state.drop_ins.is_empty();
        if has_files {
            self.add_load_command("daemon-reload", "systemctl daemon-reload");
        }
        for (index, path) in state.file_paths.iter().enumerate() {
            if !self.bundle_files.contains(path) {
                let message = "Bcfg2 restarts a service only for files of its bundle; \
                               move the entries into one bundle";
                self.add_error(&format!("desired.filePaths[{index}]"), message);
            }
        }
        if is_template(name) {
            if state.enable.is_some() {
                let message = "Bcfg2 would start the template; remove the field, or add a unit \
                               for an instance, such as name@instance.service";
                self.add_error("desired.enable", message);
            }
            return;
        }
        let is_enabled = state.enable.unwrap_or(true);
        let is_active = match state.command {
            Some(UnitCommand::Start | UnitCommand::Restart) => true,
            Some(UnitCommand::Stop) => false,
            None => is_enabled,
        };
        let restarts = is_active
            && state.command != Some(UnitCommand::Start)
            && (has_files || !state.file_paths.is_empty());
        let attributes = [
            ("type", "systemd"),
            ("status", on_or_off(is_active)),
            ("bootstatus", on_or_off(is_enabled)),
            ("restart", if restarts { "true" } else { "false" }),
        ];
        self.write_element("Service", service_name(name), &attributes, "");
    }

    fn write_package(&mut self, name: &str, state: &PackageState) {
        match state.version.as_str() {
            PackageState::ABSENT => {
                let message = "Bcfg2 cannot require that a package is absent; remove the entry";
                self.add_error("desired.version", message);
            }
            "auto" => {
                let message = "\"auto\" means the newest version in Bcfg2; write any or a version";
                self.add_error("desired.version", message);
            }
            version => {
                let attributes = [("type", "deb"), ("version", version)];
                self.write_element("Package", name, &attributes, "");
            }
        }
    }

    fn write_source(&mut self, name: &str, state: &PackageSourceState) {
        if !is_file_name(name) {
            let message = "the name has characters that names of files of apt do not have; \
                           accepted: letters, digits, \"-\", \"_\" and \".\"";
            self.add_error("name", message);
            return;
        }
        let mut source = state.source.trim_end().to_owned();
        source.push('\n');
        if let Some(key) = &state.key {
            if source.lines().any(|line| line.trim().is_empty()) {
                let message = "the source has several paragraphs; write an entry for each";
                self.add_error("desired.source", message);
            }
            let path = format!("/etc/apt/keyrings/{name}.asc");
            self.write_file(&path, SYSTEM_FILE, key);
            source.extend(["Signed-By: ", &path, "\n"]);
        }
        let path = format!("/etc/apt/sources.list.d/{name}.sources");
        self.write_file(&path, SYSTEM_FILE, &source);
        self.add_load_command("apt-get update", "apt-get update");
    }

    fn write_action(&mut self, name: &str, spec: &ActionSpec) {
        if spec.timeout != ActionSpec::DEFAULT_TIMEOUT {
            let message = format!(
                "actions of Bcfg2 have no timeout; accepted: {}, the default",
                ActionSpec::DEFAULT_TIMEOUT
            );
            self.add_error("desired.timeout", message);
        }
        let timing = match spec.timing {
            ActionTiming::Pre => "pre",
            ActionTiming::Post => "post",
            ActionTiming::Both => "both",
        };
        let when = match spec.when {
            ActionCondition::Modified => "modified",
            ActionCondition::Always => "always",
        };
        let status = match spec.status {
            ActionStatusCheck::Check => "check",
            ActionStatusCheck::Ignore => "ignore",
        };
        let attributes = [
            ("timing", timing),
            ("when", when),
            ("status", status),
            ("shell", "true"),
            ("command", &spec.command),
        ];
        self.write_element("Action", name, &attributes, "");
    }

    /// Writes a user. Bcfg2's client sets its own values for absent attributes.
    fn write_user(&mut self, name: &str, state: &UserState) {
        if state.absent {
            self.refuse_absent("user");
            return;
        }
        let uid = state.uid.map(|uid| uid.to_string());
        let optional = [
            ("uid", uid.as_deref()),
            ("group", state.group.as_deref()),
            ("gecos", state.comment.as_deref()),
            ("home", state.home.as_deref()),
            ("shell", state.shell.as_deref()),
        ];
        let present = optional.into_iter().filter_map(|(key, value)| Some((key, value?)));
        let attributes: Vec<_> = present.collect();
        if state.groups.is_empty() {
            self.write_element("POSIXUser", name, &attributes, "");
            return;
        }
        let groups = state.groups.iter();
        let members: Vec<_> = groups.map(|group| ("MemberOf", vec![("group", &**group)])).collect();
        self.write_parent("POSIXUser", name, &attributes, &members);
    }

    fn write_user_group(&mut self, name: &str, state: &UserGroupState) {
        if state.absent {
            self.refuse_absent("group");
            return;
        }
        let gid = state.gid.map(|gid| gid.to_string());
        let attributes: Vec<_> = gid.iter().map(|gid| ("gid", gid.as_str())).collect();
        self.write_element("POSIXGroup", name, &attributes, "");
    }

    fn refuse_absent(&mut self, kind: &str) {
        let message = format!("Bcfg2 cannot require that a {kind} is absent; remove the entry");
        self.add_error("desired.absent", message);
    }

    /// Writes a file for the next start of the machine, and an action for the running kernel.
    fn write_sysctl(&mut self, name: &str, state: &SysctlState) {
        if name.is_empty() || !name.split('/').all(is_file_name) {
            let message = "the name is no key of the kernel; write, for example, vm.swappiness";
            self.add_error("name", message);
            return;
        }
        if state.value.contains(['\n', '\r']) {
            self.add_error("desired.value", "the value has several lines; write one");
        }
        let path = format!("/etc/sysctl.d/99-{}.conf", name.replace('/', "."));
        let text = format!("{name} = {}\n", state.value);
        self.write_file(&path, SYSTEM_FILE, &text);
        let command = format!("sysctl -p {}", quote(&path, false));
        self.write_load_action(&format!("sysctl {name}"), &command);
    }

    fn add_load_command(&mut self, purpose: &'static str, command: &'static str) {
        if !self.load_commands.contains(&(purpose, command)) {
            self.load_commands.push((purpose, command));
        }
    }
}

fn on_or_off(is_on: bool) -> &'static str {
    if is_on { "on" } else { "off" }
}

/// The name of a service. Old clients append `.service` to every name.
fn service_name(unit: &str) -> &str {
    let service = unit.strip_suffix(".service").filter(|name| !name.is_empty());
    service.filter(|name| !has_unit_suffix(name)).unwrap_or(unit)
}

fn is_file_name(name: &str) -> bool {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    !name.is_empty() && !name.starts_with('.') && name.chars().all(is_allowed)
}
