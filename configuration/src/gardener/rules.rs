//! Gardener's rules of the resource.

use std::collections::{BTreeMap, BTreeSet};

use super::conversion::decode_base64;
use super::cri_rules;
use super::manifest::{
    ImageRef, InlineContent, Manifest, ManifestContent, ManifestFile, ManifestUnit, SecretKeyRef,
    with_paths,
};
use crate::validation::{ErrorList, excerpt};

const API_VERSION: &str = "extensions.gardener.cloud/v1alpha1";
const KIND: &str = "OperatingSystemConfig";

/// Longest DNS subdomain.
const MAX_SUBDOMAIN_LENGTH: usize = 253;
/// Longest part of a DNS subdomain between two dots.
const MAX_LABEL_LENGTH: usize = 63;

/// Fields that break a rule. Each message begins with the kind of the rule, as in Kubernetes.
#[derive(Debug)]
pub(super) struct Findings<'e>(pub &'e mut ErrorList);

impl Findings<'_> {
    pub fn add(&mut self, path: impl AsRef<str>, message: impl Into<String>) {
        self.0.add(path.as_ref(), message);
    }

    /// Reports a field without a value.
    pub fn require<'a>(
        &mut self,
        path: &str,
        field: &str,
        value: Option<&'a str>,
    ) -> Option<&'a str> {
        let value = value.filter(|value| !value.is_empty());
        if value.is_none() {
            self.add(format!("{path}.{field}"), "required: the field is absent or empty");
        }
        value
    }

    /// Reports a value that is not one of the accepted values.
    pub fn require_one_of(&mut self, path: &str, value: &str, accepted: &[&str]) {
        if !accepted.contains(&value) {
            let accepted = accepted.join(", ");
            self.add(
                path,
                format!("not supported: {}; accepted values: {accepted}", excerpt(value)),
            );
        }
    }
}

/// Adds the fields that break a rule, in the order of the resource.
pub(super) fn check(manifest: &Manifest, errors: &mut ErrorList) {
    let mut findings = Findings(errors);
    check_type(manifest, &mut findings);
    if let Some(name) = manifest.name.as_deref().filter(|name| !is_dns_subdomain(name)) {
        findings.add("metadata.name", not_a_subdomain(name));
    }
    if let Some(purpose) = manifest.purpose() {
        findings.require_one_of("spec.purpose", purpose, &["provision", "reconcile"]);
    }
    if let Some(spec) = &manifest.spec {
        let sections = [
            ("spec.criConfig", &spec.cri_config, cri_rules::NAMES),
            ("spec.cri", &spec.old_cri, cri_rules::OLD_NAMES),
        ];
        for (path, cri, names) in sections {
            if let Some(cri) = cri {
                cri_rules::check(path, cri, names, manifest.purpose(), &mut findings);
            }
        }
    }
    let files = with_paths(manifest.files());
    let file_paths = files.filter_map(|(_, file)| file.path.as_deref()).collect();
    for (path, unit) in with_paths(manifest.units()) {
        check_unit(&path, unit, &file_paths, &mut findings);
    }
    for (path, file) in with_paths(manifest.files()) {
        check_file(&path, file, &mut findings);
    }
    check_duplicates(manifest, &mut findings);
}

fn check_type(manifest: &Manifest, findings: &mut Findings<'_>) {
    let fields = [
        ("apiVersion", manifest.api_version.as_deref(), API_VERSION),
        ("kind", manifest.kind.as_deref(), KIND),
    ];
    for (path, value, accepted) in fields {
        match value.filter(|value| !value.is_empty()) {
            None => findings.add(path, format!("required: write {accepted}")),
            Some(value) => findings.require_one_of(path, value, &[accepted]),
        }
    }
    if manifest.spec.is_none() {
        findings.add("spec", "required: the resource has no spec");
    }
}

fn check_unit(
    path: &str,
    unit: &ManifestUnit,
    accepted_paths: &BTreeSet<&str>,
    findings: &mut Findings<'_>,
) {
    findings.require(path, "name", unit.name.as_deref());
    if let Some(command) = unit.command.as_deref() {
        let accepted = ["start", "restart", "stop"];
        findings.require_one_of(&format!("{path}.command"), command, &accepted);
    }
    for (index, drop_in) in unit.drop_ins.iter().enumerate() {
        let path = format!("{path}.dropIns[{index}]");
        findings.require(&path, "name", drop_in.name.as_deref());
        findings.require(&path, "content", drop_in.content.as_deref());
    }
    for (index, file_path) in unit.file_paths.iter().enumerate() {
        if !accepted_paths.contains(file_path.as_str()) {
            let message = format!(
                "invalid: neither spec.files nor status.extensionFiles has the path {}",
                excerpt(file_path)
            );
            findings.add(format!("{path}.filePaths[{index}]"), message);
        }
    }
}

fn check_file(path: &str, file: &ManifestFile, findings: &mut Findings<'_>) {
    findings.require(path, "path", file.path.as_deref());
    check_content(&format!("{path}.content"), file.content.as_ref(), findings);
    if let Some(host_name) = file.host_name.as_deref().filter(|name| !is_dns_subdomain(name)) {
        findings.add(format!("{path}.hostName"), not_a_subdomain(host_name));
    }
}

fn check_content(path: &str, content: Option<&ManifestContent>, findings: &mut Findings<'_>) {
    let empty = ManifestContent::default();
    let content = content.unwrap_or(&empty);
    match (&content.inline, &content.secret_ref, &content.image_ref) {
        (Some(inline), None, None) => check_inline(&format!("{path}.inline"), inline, findings),
        (None, Some(secret), None) => check_secret(&format!("{path}.secretRef"), secret, findings),
        (None, None, Some(image)) => check_image(&format!("{path}.imageRef"), image, findings),
        (None, None, None) => {
            findings.add(path, "required: write one of inline, secretRef and imageRef");
        }
        _ => findings.add(path, "invalid: only one of inline, secretRef and imageRef is accepted"),
    }
}

fn check_inline(path: &str, inline: &InlineContent, findings: &mut Findings<'_>) {
    let encoding = inline.encoding.as_deref().unwrap_or_default();
    if encoding != "b64" && !encoding.is_empty() {
        let message =
            format!("not supported: {}; write b64, or omit the field for text", excerpt(encoding));
        findings.add(format!("{path}.encoding"), message);
    }
    let Some(data) = findings.require(path, "data", inline.data.as_deref()) else {
        return;
    };
    if encoding == "b64"
        && let Err(error) = decode_base64(data)
    {
        findings.add(format!("{path}.data"), format!("invalid: it is not base64: {error}"));
    }
}

fn check_secret(path: &str, secret: &SecretKeyRef, findings: &mut Findings<'_>) {
    findings.require(path, "name", secret.name.as_deref());
    findings.require(path, "dataKey", secret.data_key.as_deref());
}

fn check_image(path: &str, image: &ImageRef, findings: &mut Findings<'_>) {
    findings.require(path, "image", image.image.as_deref());
    findings.require(path, "filePathInImage", image.file_path_in_image.as_deref());
}

/// The files of one path: the first, the first for every host, and the first for each host.
#[derive(Default)]
struct FilesOfPath<'a> {
    first: Option<String>,
    for_every_host: Option<String>,
    for_one_host: BTreeMap<&'a str, String>,
}

impl<'a> FilesOfPath<'a> {
    /// The earlier file that a file for a host, or for every host, repeats.
    fn repeated(&self, host_name: Option<&str>) -> Option<&str> {
        let repeated = match host_name {
            None => self.first.as_ref(),
            Some(host) => self.for_one_host.get(host).or(self.for_every_host.as_ref()),
        };
        repeated.map(String::as_str)
    }

    fn add(&mut self, path: String, host_name: Option<&'a str>) {
        self.first.get_or_insert_with(|| path.clone());
        match host_name {
            None => self.for_every_host.get_or_insert(path),
            Some(host) => self.for_one_host.entry(host).or_insert(path),
        };
    }
}

/// A path may occur more than once if each of its files is for another host.
fn check_duplicates(manifest: &Manifest, findings: &mut Findings<'_>) {
    let mut files_of_paths: BTreeMap<&str, FilesOfPath<'_>> = BTreeMap::new();
    for (path, file) in with_paths(manifest.files()) {
        let Some(file_path) = file.path.as_deref().filter(|path| !path.is_empty()) else {
            continue;
        };
        let files = files_of_paths.entry(file_path).or_default();
        let host_name = file.host_name.as_deref();
        if let Some(other) = files.repeated(host_name) {
            let message = format!(
                "duplicate: {other} has the path {}; a path may occur again only for another \
                 hostName",
                excerpt(file_path)
            );
            findings.add(format!("{path}.path"), message);
        }
        files.add(path, host_name);
    }
}

fn not_a_subdomain(text: &str) -> String {
    format!(
        "invalid: {} is not a DNS subdomain: lower-case letters, digits, - and ., and a letter or \
         digit at the start and the end of each part",
        excerpt(text)
    )
}

/// Whether a text is a DNS subdomain by RFC 1123, as Kubernetes reads it.
pub(super) fn is_dns_subdomain(text: &str) -> bool {
    let is_alphanumeric = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_label = |label: &str| {
        let bytes = label.as_bytes();
        let ends = [bytes.first(), bytes.last()];
        bytes.len() <= MAX_LABEL_LENGTH
            && ends.iter().all(|end| end.is_some_and(|byte| is_alphanumeric(*byte)))
            && bytes.iter().all(|byte| is_alphanumeric(*byte) || *byte == b'-')
    };
    text.len() <= MAX_SUBDOMAIN_LENGTH && text.split('.').all(is_label)
}
