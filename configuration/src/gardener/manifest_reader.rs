//! Reads the fields of a resource.

use super::manifest::{
    ContainerdConfig, CriConfig, ImageRef, InlineContent, Manifest, ManifestContent,
    ManifestDropIn, ManifestFile, ManifestSpec, ManifestStatus, ManifestUnit, PluginConfig,
    RegistryConfig, RegistryHost, SecretKeyRef,
};
use crate::document::FileMode;
use crate::validation::{ErrorList, excerpt};
use crate::yaml::{Fields, Node, parse_document};

/// Maximum number of anchors, of aliases and of merge keys. Tools of Kubernetes accept them, and
/// people write some.
const MAX_ALIASES: usize = 32;

/// Fields of `metadata` that every resource of a cluster may have. They describe no node.
const IGNORED_METADATA: [&str; 14] = [
    "annotations",
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "finalizers",
    "generateName",
    "generation",
    "labels",
    "managedFields",
    "namespace",
    "ownerReferences",
    "resourceVersion",
    "selfLink",
    "uid",
];

/// Fields of `status` that describe no node.
const IGNORED_STATUS: [&str; 8] = [
    "cloudConfig",
    "conditions",
    "lastError",
    "lastOperation",
    "observedGeneration",
    "providerStatus",
    "resources",
    "state",
];

/// Reads a resource in YAML or JSON. Adds the fields that are unknown or have another type.
pub(super) fn read_manifest(text: &str, errors: &mut ErrorList) -> Manifest {
    let Some(root) = parse_document(text, MAX_ALIASES, errors) else {
        return Manifest::default();
    };
    let mut fields = Fields::open("the resource", String::new(), Some(root), errors);
    let manifest = Manifest {
        api_version: fields.text("apiVersion"),
        kind: fields.text("kind"),
        name: fields.object("metadata", "metadata").and_then(read_name),
        spec: fields.object("the spec", "spec").map(read_spec),
        status: fields.object("the status", "status").map(read_status),
    };
    fields.finish();
    manifest
}

fn read_name(mut fields: Fields<'_>) -> Option<String> {
    let name = fields.text("name");
    ignore(&mut fields, &IGNORED_METADATA);
    fields.finish();
    name
}

fn ignore(fields: &mut Fields<'_>, names: &[&'static str]) {
    for name in names {
        fields.take(name);
    }
}

fn read_spec(mut fields: Fields<'_>) -> ManifestSpec {
    let spec = ManifestSpec {
        kind: fields.text("type"),
        purpose: fields.text("purpose"),
        units: read_list(&mut fields, "units", "a unit", read_unit),
        files: read_list(&mut fields, "files", "a file", read_file),
        cri_config: fields.object("criConfig", "criConfig").map(read_cri),
        old_cri: fields.object("cri", "cri").map(read_old_cri),
        has_os_updates: fields.is_present("inPlaceUpdates"),
        has_provider_config: fields.is_present("providerConfig"),
        has_reload_path: fields.is_present("reloadConfigFilePath"),
    };
    ignore(&mut fields, &["class"]);
    fields.finish();
    spec
}

fn read_status(mut fields: Fields<'_>) -> ManifestStatus {
    let status = ManifestStatus {
        units: read_list(&mut fields, "extensionUnits", "a unit", read_unit),
        files: read_list(&mut fields, "extensionFiles", "a file", read_file),
        has_os_updates: fields.is_present("inPlaceUpdates"),
        old_fields: ["command", "units", "files"]
            .into_iter()
            .filter(|name| fields.is_present(name))
            .collect(),
    };
    ignore(&mut fields, &IGNORED_STATUS);
    fields.finish();
    status
}

/// Reads the objects of a list.
fn read_list<T>(
    fields: &mut Fields<'_>,
    name: &'static str,
    owner: &str,
    read: fn(&mut Fields<'_>) -> T,
) -> Vec<T> {
    let mut items = Vec::new();
    for (path, node) in fields.list(name) {
        let mut item = Fields::open(owner, path, Some(node), fields.errors());
        items.push(read(&mut item));
        item.finish();
    }
    items
}

fn read_unit(fields: &mut Fields<'_>) -> ManifestUnit {
    ManifestUnit {
        name: fields.text("name"),
        command: fields.text("command"),
        enable: fields.boolean("enable"),
        content: fields.text("content"),
        drop_ins: read_list(fields, "dropIns", "a drop-in", read_drop_in),
        file_paths: fields.texts("filePaths"),
        has_files: fields.is_present("files"),
    }
}

fn read_drop_in(fields: &mut Fields<'_>) -> ManifestDropIn {
    ManifestDropIn { name: fields.text("name"), content: fields.text("content") }
}

fn read_file(fields: &mut Fields<'_>) -> ManifestFile {
    ManifestFile {
        path: fields.text("path"),
        permissions: read_permissions(fields),
        content: fields.object("content", "content").map(read_content),
        host_name: fields.text("hostName"),
        has_encoding: fields.is_present("encoding"),
    }
}

fn read_content(mut fields: Fields<'_>) -> ManifestContent {
    let content = ManifestContent {
        inline: fields.object("inline", "inline").map(read_inline),
        secret_ref: fields.object("secretRef", "secretRef").map(read_secret_ref),
        image_ref: fields.object("imageRef", "imageRef").map(read_image_ref),
        transmit_unencoded: fields.boolean("transmitUnencoded"),
    };
    fields.finish();
    content
}

fn read_inline(mut fields: Fields<'_>) -> InlineContent {
    let inline = InlineContent { encoding: fields.text("encoding"), data: fields.text("data") };
    fields.finish();
    inline
}

fn read_secret_ref(mut fields: Fields<'_>) -> SecretKeyRef {
    let secret = SecretKeyRef { name: fields.text("name"), data_key: fields.text("dataKey") };
    fields.finish();
    secret
}

fn read_image_ref(mut fields: Fields<'_>) -> ImageRef {
    let image = ImageRef {
        image: fields.text("image"),
        file_path_in_image: fields.text("filePathInImage"),
    };
    fields.finish();
    image
}

fn read_cri(mut fields: Fields<'_>) -> CriConfig {
    let cri = CriConfig {
        name: fields.text("name"),
        cgroup_driver: fields.text("cgroupDriver"),
        containerd: fields.object("containerd", "containerd").map(read_containerd),
    };
    fields.finish();
    cri
}

fn read_old_cri(mut fields: Fields<'_>) -> CriConfig {
    let cri = CriConfig { name: fields.text("name"), ..CriConfig::default() };
    fields.finish();
    cri
}

fn read_containerd(mut fields: Fields<'_>) -> ContainerdConfig {
    let containerd = ContainerdConfig {
        sandbox_image: fields.text("sandboxImage"),
        registries: read_list(&mut fields, "registries", "a registry", read_registry),
        plugins: read_list(&mut fields, "plugins", "a plugin", read_plugin),
    };
    fields.finish();
    containerd
}

fn read_registry(fields: &mut Fields<'_>) -> RegistryConfig {
    fields.boolean("readinessProbe");
    RegistryConfig {
        upstream: fields.text("upstream"),
        server: fields.text("server"),
        hosts: read_list(fields, "hosts", "a host", read_host),
    }
}

fn read_host(fields: &mut Fields<'_>) -> RegistryHost {
    fields.texts("caCerts");
    RegistryHost { url: fields.text("url"), capabilities: fields.texts("capabilities") }
}

fn read_plugin(fields: &mut Fields<'_>) -> PluginConfig {
    PluginConfig {
        op: fields.text("op"),
        path: fields.texts("path"),
        values: fields.take_value("values"),
    }
}

/// Permissions of a file. Kubernetes accepts an integer only. In its YAML, `0644` and `0o644` are
/// octal and `420` is decimal.
fn read_permissions(fields: &mut Fields<'_>) -> Option<FileMode> {
    let node = fields.take_value("permissions")?;
    let mode = match &node {
        Node::Plain(text) => parse_permissions(text),
        Node::Text(text) => Err(format!("{} is text; {ACCEPTED}", excerpt(text))),
        node => Err(format!("expected an integer, not {}; {ACCEPTED}", node.kind())),
    };
    mode.map_err(|message| fields.error("permissions", message)).ok()
}

const ACCEPTED: &str = "write an integer without quotes, such as 0644 (octal) or 420";

fn parse_permissions(text: &str) -> Result<FileMode, String> {
    let Some(value) = parse_integer(text) else {
        return Err(format!("{} is not an integer; {ACCEPTED}", excerpt(text)));
    };
    let mode = u32::try_from(value).ok().map(FileMode).filter(|mode| mode.0 <= FileMode::MAX.0);
    mode.ok_or_else(|| {
        format!(
            "{value} is octal {value:o}; permissions are at most octal 7777. An octal number \
             begins with 0, such as 0644; in JSON, write its value: 420"
        )
    })
}

/// An integer that is not negative, as YAML 1.1 and 1.2 write it.
fn parse_integer(text: &str) -> Option<u64> {
    let (digits, radix) = match text.as_bytes() {
        [b'0', b'x', ..] => (&text[2..], 16),
        [b'0', b'o', ..] => (&text[2..], 8),
        [b'0', b'b', ..] => (&text[2..], 2),
        [b'0', _, ..] => (&text[1..], 8),
        _ => (text, 10),
    };
    let digits = digits.replace('_', "");
    let is_number = digits.bytes().all(|byte| byte.is_ascii_alphanumeric());
    is_number.then(|| u64::from_str_radix(&digits, radix).ok()).flatten()
}
