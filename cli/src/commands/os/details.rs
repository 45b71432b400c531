//! Details of an operating system.

use evenkeel_api::os::{OperatingSystemResource, SecurityFeature};
use serde::Deserialize;

use super::NO_IMAGE;
use crate::commands::host::count_packages;
use crate::page::{Cell, DetailPage, cells};

/// A vulnerability in the lists of an operating system.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Vulnerability {
    cve_id: String,
    priority: String,
    affected_packages: Vec<String>,
}

const VULNERABILITY_HEADER: &[&str] = &["CVE", "PRIORITY", "PACKAGES"];

pub fn add_details(page: &mut DetailPage, os: &OperatingSystemResource) {
    let sha256 = if os.sha256 == NO_IMAGE { "" } else { &os.sha256 };
    page.field_if("profile version", &os.profile_version)
        .field_if("image", &os.image_url)
        .field_if("sha256", sha256)
        .field_if("security", security_label(os.security_feature))
        .field_if("description", &os.description)
        .field_if("metadata", &os.metadata);
    if !os.registry.is_empty() {
        let signature = os.signature.as_ref();
        let signature = signature.map(|signature| format!("of key {}", signature.key));
        page.field("registry", &os.registry)
            .field("revision", &os.revision)
            .field("artifact", &os.artifact_digest)
            .field("signature", signature.unwrap_or_else(|| "none".to_owned()));
    }
    let packages = match count_packages(&os.installed_packages) {
        0 => String::new(),
        count => format!("{count}, listed with -o json"),
    };
    page.field_if("packages", &packages)
        .created(os.timestamps.as_ref())
        .table("Image signatures:", &["KEY"], os.image_signatures.iter().map(|one| key_row(one)))
        .table("Open vulnerabilities:", VULNERABILITY_HEADER, vulnerability_rows(&os.existing_cves))
        .table("Fixed vulnerabilities:", VULNERABILITY_HEADER, vulnerability_rows(&os.fixed_cves));
}

/// The key of a signature. The signature itself is not shown.
fn key_row(signature: &str) -> Vec<Cell> {
    let (key, _) = signature.split_once(':').unwrap_or((signature, ""));
    cells![key]
}

fn vulnerability_rows(text: &str) -> Vec<Vec<Cell>> {
    let all: Vec<Vulnerability> = serde_json::from_str(text).unwrap_or_default();
    let row =
        |one: &Vulnerability| cells![&one.cve_id, &one.priority, one.affected_packages.join(", ")];
    all.iter().map(row).collect()
}

const fn security_label(feature: SecurityFeature) -> &'static str {
    match feature {
        SecurityFeature::Unspecified | SecurityFeature::None => "",
        SecurityFeature::SecureBootAndFullDiskEncryption => "secure boot and full disk encryption",
    }
}
