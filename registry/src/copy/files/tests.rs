use super::*;

#[test]
fn every_address_gives_its_file_a_name() {
    assert_eq!(file_title("files/a.raw"), "files/a.raw");
    assert_eq!(file_title("/files/a.raw"), "files/a.raw");
    assert_eq!(file_title("https://files.example/b/a.raw?v=1"), "b/a.raw");
    assert_eq!(file_title("https://files.example?v=1"), "files.example");
}

/// The files of a profile with these URLs: image, package list and both CVE documents.
fn profile_files(urls: [&str; 4]) -> (Vec<ProfileFile>, Vec<ProfileFile>) {
    let [image, packages, existing, fixed] = urls;
    let yaml = format!(
        "spec:
  name: a
  type: OS_TYPE_MUTABLE
  provider: OS_PROVIDER_KIND_INFRA
  architecture: x86_64
  profileName: a
  osImageVersion: 3.0.20260602.2200
  securityFeature: SECURITY_FEATURE_NONE
  osImageUrl: {image:?}
  osPackageManifestURL: {packages:?}
  osExistingCvesURL: {existing:?}
  osFixedCvesURL: {fixed:?}
"
    );
    collect_profile_files(&read_profile("a.yaml", yaml.as_bytes()).expect("a profile"))
}

fn urls(files: &[ProfileFile]) -> Vec<&str> {
    files.iter().map(|file| file.url.as_str()).collect()
}

#[test]
fn a_repeated_file_counts_once_and_two_files_of_one_name_are_ambiguous() {
    let (one, other) = ("https://one.example/c", "https://other.example/c");
    let (all, doubles) = profile_files(["files/a", "files/a", one, one]);
    assert_eq!((urls(&all), urls(&doubles)), (vec!["files/a", one], vec![]));
    let (all, doubles) = profile_files(["", "", one, other]);
    assert_eq!((urls(&all), urls(&doubles)), (vec![one], vec![other]));
    let (one, other) = ("https://one.example/c?v=1", "https://one.example/c?v=2");
    let (all, doubles) = profile_files([other, one, other, one]);
    assert_eq!((urls(&all), urls(&doubles)), (vec![other], vec![one]));
    let finding = doubles[0].ambiguous_finding();
    assert_eq!(finding.kind, FindingKind::Ambiguous);
    assert_eq!(finding.field.as_deref(), Some("c"));
}
