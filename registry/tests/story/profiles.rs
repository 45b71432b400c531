//! The nine profiles that EIM publishes and the operating systems that they describe. Only the
//! first digits of their digests are the published ones.

use evenkeel_domain::os::OsKind;
use evenkeel_registry::{Profile, read_profile};

const PROFILES: [(&str, &str); 9] = [
    ("microvisor-nonrt.yaml", include_str!("profiles/microvisor-nonrt.yaml")),
    ("microvisor-rt.yaml", include_str!("profiles/microvisor-rt.yaml")),
    ("microvisor-standalone.yaml", include_str!("profiles/microvisor-standalone.yaml")),
    ("microvisor-idv.yaml", include_str!("profiles/microvisor-idv.yaml")),
    ("ubuntu-22.04-lts-generic.yaml", include_str!("profiles/ubuntu-22.04-lts-generic.yaml")),
    (
        "ubuntu-22.04-lts-generic-ext.yaml",
        include_str!("profiles/ubuntu-22.04-lts-generic-ext.yaml"),
    ),
    ("ubuntu-24.04-lts.yaml", include_str!("profiles/ubuntu-24.04-lts.yaml")),
    (
        "ubuntu-24.04-lts-generic-ext.yaml",
        include_str!("profiles/ubuntu-24.04-lts-generic-ext.yaml"),
    ),
    ("ubuntu-lenovo.yaml", include_str!("profiles/ubuntu-lenovo.yaml")),
];

fn read_all() -> Vec<Profile> {
    let read = |(file, yaml): (&str, &str)| match read_profile(file, yaml.as_bytes()) {
        Ok(profile) => profile,
        Err(finding) => panic!("{file}: {finding}"),
    };
    PROFILES.into_iter().map(read).collect()
}

fn render_profile(profile: &Profile) -> String {
    let spec = &profile.spec;
    let fields: [(&str, &str); 15] = [
        ("name", spec.name.as_str()),
        ("kind", spec.kind.name()),
        ("provider", spec.provider.name()),
        ("architecture", &spec.architecture),
        ("image_id", &spec.image_id),
        ("image_url", &spec.image_url),
        ("sha256", spec.sha256.as_str()),
        ("security_feature", spec.security_feature.name()),
        ("description", &spec.description),
        ("metadata", &spec.metadata),
        ("existing_cves_url", &spec.existing_cves_url),
        ("fixed_cves_url", &spec.fixed_cves_url),
        ("manifest_url", &profile.manifest_url),
        ("platform_bundle", &profile.platform_bundle),
        ("release", &profile.release),
    ];
    let line = |(name, value): (&str, &str)| {
        format!("\n  {name}: {}", if value.is_empty() { "-" } else { value })
    };
    let lines: String = fields.into_iter().map(line).collect();
    spec.profile_name.clone() + &lines
}

#[test]
fn each_published_profile_is_read() {
    let rendered: Vec<_> = read_all().iter().map(render_profile).collect();
    let rendered = rendered.join("\n");
    insta::assert_snapshot!("nine_profiles", rendered);
}

#[test]
fn no_published_profile_has_remarks() {
    for profile in read_all() {
        assert!(profile.remarks.is_empty(), "{:?}", profile.remarks);
        assert_eq!(profile.spec.repo_url, "");
        assert_eq!(profile.spec.installed_packages_url, "");
        let is_image = profile.spec.kind == OsKind::Immutable;
        assert_eq!(is_image, !profile.manifest_url.is_empty());
    }
}

#[test]
fn the_names_of_all_profiles_differ() {
    let mut names: Vec<_> = read_all().into_iter().map(|profile| profile.spec.name).collect();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), PROFILES.len());
}
