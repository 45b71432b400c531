//! Examples, and properties of every plan.

mod properties;

use evenkeel_domain::os::catalogue::{CatalogFile, CatalogSelection};

use super::*;

const PREFIX: &str = "os-profile/";

const NOON: Time = Time::from_timestamp_nanos(1_800_000_000_000_000_000);

#[derive(Clone, Debug, PartialEq, Eq)]
struct TestRevision {
    profile: &'static str,
    tag: String,
    /// Version of its image.
    image: u8,
    /// Its content; the digest follows from it.
    content: u8,
    /// 0: gone, 1: not readable, 2: without a signature, otherwise valid.
    state: u8,
}

impl TestRevision {
    fn new(profile: &'static str, tag: &str, image: u8) -> Self {
        Self { profile, tag: tag.to_owned(), image, content: 0, state: 3 }
    }

    fn yaml(&self) -> String {
        format!(
            "metadata:\n  release: \"\"\n\
             spec:\n  name: {0} {1}\n  type: OS_TYPE_IMMUTABLE\n  provider: OS_PROVIDER_KIND_INFRA\n  \
             architecture: x86_64\n  profileName: {0}\n  osImageUrl: images/{0}-{1}.raw\n  \
             osImageVersion: \"3.{1}\"\n  osImageSha256: {2}\n  securityFeature: SECURITY_FEATURE_NONE\n",
            self.profile,
            self.image,
            format!("{:02x}", self.image + 1).repeat(32),
        )
    }

    fn artifact(&self) -> Artifact {
        Artifact {
            repository: format!("{PREFIX}{}", self.profile),
            tag: self.tag.clone(),
            digest: [self.content; 32],
            moved_from: None,
            title: Some(format!("{}.yaml", self.profile)),
            manifest: Some("{}".to_owned()),
            document: (self.state != 1).then(|| self.yaml()),
            findings: Vec::new(),
            trust: match self.state {
                2 => SignatureStatus::Unsigned,
                _ => SignatureStatus::Good,
            },
            signature: None,
            files: Vec::new(),
            gone_at: (self.state == 0).then_some(NOON),
        }
    }
}

fn resolved_selection(revision: &str, enabled: &[&str]) -> ResolvedSelection {
    let selection = CatalogSelection {
        registry: Some("release".to_owned()),
        revision: Some(revision.to_owned()),
        enabled: Some(enabled.iter().copied().map(str::to_owned).collect()),
        default_profile: enabled.first().copied().map(str::to_owned),
    };
    selection.resolve().expect("a valid selection").expect("a complete one")
}

fn plan_artifacts(
    selection: &ResolvedSelection,
    trust: SignaturePolicy,
    artifacts: &[Artifact],
) -> Plan {
    let content = RegistryContent { prefix: PREFIX, trust, artifacts, attachments: &[] };
    plan(selection, &content, NOON)
}

fn planned_profiles(plan: &Plan) -> Vec<(&str, &str, &str)> {
    let profiles = plan.profiles.iter();
    profiles
        .map(|planned| {
            let (profile, image) = profile_key(planned);
            (profile, image, planned.details.revision.as_str())
        })
        .collect()
}

fn finding_kinds(plan: &Plan) -> Vec<(&str, &str)> {
    let findings = plan.findings.iter();
    findings.map(|entry| (entry.tag.as_str(), entry.finding.kind.name())).collect()
}

fn artifacts(revisions: &[TestRevision]) -> Vec<Artifact> {
    revisions.iter().map(TestRevision::artifact).collect()
}

#[test]
fn a_range_takes_its_patches_and_a_tag_only_itself() {
    let tags = ["0.3.1", "0.3.2", "0.4.0", "main"];
    let revisions: Vec<_> =
        (1..).zip(tags).map(|(image, tag)| TestRevision::new("edge", tag, image)).collect();
    let available = artifacts(&revisions);
    let tags_of = |revision: &str| {
        let plan = plan_artifacts(
            &resolved_selection(revision, &["edge"]),
            SignaturePolicy::Off,
            &available,
        );
        assert_eq!((finding_kinds(&plan), plan.refused), (vec![], 0), "{revision}");
        let profiles = planned_profiles(&plan).into_iter();
        profiles.map(|(_, _, tag)| tag.to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(tags_of("~0.3.1"), ["0.3.1", "0.3.2"]);
    assert_eq!(tags_of("0.3.1"), ["0.3.1"]);
    assert_eq!(tags_of("main"), ["main"]);
    let other =
        plan_artifacts(&resolved_selection("~0.3.1", &["other"]), SignaturePolicy::Off, &available);
    assert!(other.profiles.is_empty());
    assert_eq!(finding_kinds(&other), [("", "not_there")]);
}

#[test]
fn the_highest_revision_of_an_image_describes_it() {
    let tags = ["0.3.9", "0.3.10", "0.3.2"];
    let available = artifacts(&tags.map(|tag| TestRevision::new("edge", tag, 7)));
    let plan =
        plan_artifacts(&resolved_selection("~0.3", &["edge"]), SignaturePolicy::Off, &available);
    assert_eq!(planned_profiles(&plan), [("edge", "3.7", "0.3.10")]);
    assert_eq!((plan.refused, finding_kinds(&plan)), (0, vec![]));
}

#[test]
fn an_image_version_has_one_image() {
    let newer = TestRevision::new("edge", "0.3.2", 7).artifact();
    let mut older = TestRevision::new("edge", "0.3.1", 7).artifact();
    let document = older.document.take().unwrap_or_default();
    older.document = Some(document.replace(&"08".repeat(32), &"99".repeat(32)));
    let available = [older, newer];
    let plan =
        plan_artifacts(&resolved_selection("~0.3", &["edge"]), SignaturePolicy::Off, &available);
    assert_eq!(planned_profiles(&plan), [("edge", "3.7", "0.3.2")]);
    assert_eq!(finding_kinds(&plan), [("0.3.1", "same_image_other_digest")]);
    assert_eq!(plan.refused, 1);
}

#[test]
fn ambiguous_tags_of_one_revision_are_refused() {
    let one = TestRevision::new("edge", "0.3.1", 7);
    let other = TestRevision { tag: "v0.3.1".to_owned(), ..one.clone() };
    let selection = resolved_selection("~0.3", &["edge"]);
    let same =
        plan_artifacts(&selection, SignaturePolicy::Off, &artifacts(&[one.clone(), other.clone()]));
    assert_eq!(planned_profiles(&same), [("edge", "3.7", "0.3.1")]);
    assert!(finding_kinds(&same).is_empty());
    let other = TestRevision { content: 9, ..other };
    let plan = plan_artifacts(&selection, SignaturePolicy::Off, &artifacts(&[one, other]));
    assert!(plan.profiles.is_empty());
    assert_eq!(finding_kinds(&plan), [("0.3.1", "ambiguous"), ("v0.3.1", "ambiguous")]);
    assert_eq!(plan.refused, 2);
}

#[test]
fn the_signature_policy_decides_about_unsigned_profiles() {
    for (status, trust, is_selected, expected) in [
        (SignatureStatus::Good, SignaturePolicy::Require, true, None),
        (SignatureStatus::Unsigned, SignaturePolicy::Require, false, Some("unsigned")),
        (SignatureStatus::Unchecked, SignaturePolicy::Require, false, Some("unsigned")),
        (SignatureStatus::Bad, SignaturePolicy::Require, false, Some("bad_signature")),
        (SignatureStatus::Unsigned, SignaturePolicy::Warn, true, Some("unsigned")),
        (SignatureStatus::Bad, SignaturePolicy::Warn, true, Some("bad_signature")),
        (SignatureStatus::Unchecked, SignaturePolicy::Warn, true, None),
        (SignatureStatus::Bad, SignaturePolicy::Off, true, None),
    ] {
        let mut one = TestRevision::new("edge", "0.3.1", 1).artifact();
        one.trust = status;
        let plan = plan_artifacts(&resolved_selection("0.3.1", &["edge"]), trust, &[one]);
        assert_eq!(plan.profiles.len() == 1, is_selected, "{status} {trust:?}");
        assert_eq!(plan.refused, u32::from(!is_selected), "{status} {trust:?}");
        let kinds: Vec<_> = finding_kinds(&plan).into_iter().map(|(_, kind)| kind).collect();
        assert_eq!(kinds, Vec::from_iter(expected), "{status} {trust:?}");
    }
}

#[test]
fn a_profile_in_the_wrong_repository_is_refused() {
    let other = TestRevision::new("other", "0.3.1", 1).artifact();
    let wrong_repository = Artifact { repository: format!("{PREFIX}edge"), ..other };
    let plan = plan_artifacts(
        &resolved_selection("~0.3", &["edge"]),
        SignaturePolicy::Off,
        &[wrong_repository],
    );
    assert_eq!(finding_kinds(&plan), [("0.3.1", "other_profile")]);
    let mut wrong_tag = TestRevision::new("edge", "0.3.2", 1).artifact();
    let document = wrong_tag.document.take().unwrap_or_default();
    wrong_tag.document = Some(document.replace("release: \"\"", "release: 0.3.1"));
    let mut branch = wrong_tag.clone();
    branch.tag = "main".to_owned();
    let plan =
        plan_artifacts(&resolved_selection("~0.3", &["edge"]), SignaturePolicy::Off, &[wrong_tag]);
    assert_eq!(finding_kinds(&plan), [("0.3.2", "revision_mismatch")]);
    assert_eq!((plan.profiles.len(), plan.refused), (0, 1));
    let plan =
        plan_artifacts(&resolved_selection("main", &["edge"]), SignaturePolicy::Off, &[branch]);
    assert_eq!((plan.profiles.len(), plan.refused), (1, 0));
}

#[test]
fn a_moved_revision_is_reported_and_a_moved_branch_is_not() {
    for (tag, expected) in [("0.3.1", vec![("0.3.1", "tag_moved")]), ("main", vec![])] {
        let mut one = TestRevision::new("edge", tag, 1).artifact();
        one.moved_from = Some([7; 32]);
        let plan =
            plan_artifacts(&resolved_selection(tag, &["edge"]), SignaturePolicy::Off, &[one]);
        assert_eq!((finding_kinds(&plan), plan.profiles.len()), (expected, 1));
    }
}

#[test]
fn a_fetch_failure_is_reported_once() {
    let mut one = TestRevision::new("edge", "0.3.1", 1).artifact();
    one.document = None;
    let finding = |kind, why| serde_json::to_value(Finding::new(kind, why)).expect("JSON");
    one.findings = vec![
        finding(FindingKind::SeveralLayers, "two layers"),
        finding(FindingKind::Yaml, "a tag"),
    ];
    let selection = resolved_selection("0.3.1", &["edge"]);
    let plan = plan_artifacts(&selection, SignaturePolicy::Off, &[one.clone()]);
    assert_eq!(finding_kinds(&plan), [("0.3.1", "several_layers"), ("0.3.1", "yaml")]);
    assert_eq!(plan.refused, 1);
    one.findings.clear();
    let plan = plan_artifacts(&selection, SignaturePolicy::Off, &[one]);
    assert_eq!(finding_kinds(&plan), [("0.3.1", "not_a_profile")]);
}

#[test]
fn a_listing_failure_is_reported_and_known_revisions_stay() {
    let artifact = TestRevision::new("edge", "0.3.1", 1).artifact();
    let finding = Finding::new(FindingKind::NotAProfile, "a web page");
    let listing = Artifact {
        tag: LISTING_TAG.to_owned(),
        document: None,
        findings: vec![serde_json::to_value(finding).expect("JSON")],
        ..artifact.clone()
    };
    let selection = resolved_selection("~0.3", &["edge"]);
    let plan = plan_artifacts(&selection, SignaturePolicy::Off, &[listing.clone(), artifact]);
    assert_eq!((finding_kinds(&plan), plan.profiles.len()), (vec![("", "not_a_profile")], 1));
    let plan = plan_artifacts(&selection, SignaturePolicy::Off, std::slice::from_ref(&listing));
    assert_eq!(finding_kinds(&plan), [("", "not_a_profile")]);
    let gone_listing = Artifact { gone_at: Some(NOON), ..listing };
    let plan = plan_artifacts(&selection, SignaturePolicy::Off, &[gone_listing]);
    assert_eq!(finding_kinds(&plan), [("", "not_there")]);
}

#[test]
fn a_gone_revision_is_reported_only_if_no_other_has_its_image() {
    let gone = |tag, image| TestRevision { state: 0, ..TestRevision::new("edge", tag, image) };
    let available = [gone("0.3.1", 1), gone("0.3.2", 2), TestRevision::new("edge", "0.3.3", 2)];
    let plan = plan_artifacts(
        &resolved_selection("~0.3", &["edge"]),
        SignaturePolicy::Off,
        &artifacts(&available),
    );
    assert_eq!(planned_profiles(&plan), [("edge", "3.2", "0.3.3")]);
    let gone: Vec<_> = plan.gone.iter().map(|gone| gone.tag.as_str()).collect();
    assert_eq!(gone, ["0.3.1"]);
    assert_eq!(plan.gone[0].image_id, "3.1");
}

/// An attachment whose digest repeats one byte.
fn attachment(
    location: &str,
    kind: AttachmentKind,
    filtered_by: Option<u8>,
    digest: Option<u8>,
) -> Attachment {
    Attachment {
        key: AttachmentKey {
            location: location.to_owned(),
            kind,
            filtered_by: filtered_by.map(|number| [number; 32]),
        },
        digest: digest.map(|number| [number; 32]),
        etag: None,
        findings: Vec::new(),
        fetched_at: NOON,
    }
}

#[test]
fn attachments_belong_to_their_profile() {
    let file = |role, location: &str| CatalogFile {
        role,
        path: location.to_owned(),
        source: location.to_owned(),
        sha256: None,
        size: None,
    };
    let mut one = TestRevision::new("edge", "0.3.1", 1).artifact();
    one.files = vec![
        file(FileRole::Packages, "packages"),
        file(FileRole::ExistingCves, "cves"),
        file(FileRole::FixedCves, "fixed"),
    ];
    let mut fixed = attachment("fixed", AttachmentKind::Cves, None, None);
    let finding = Finding::new(FindingKind::Cves, "it is a web page");
    fixed.findings = vec![serde_json::to_value(finding).expect("JSON")];
    let attachments = [
        attachment("packages", AttachmentKind::Packages, None, Some(1)),
        attachment("cves", AttachmentKind::Cves, None, Some(2)),
        attachment("cves", AttachmentKind::Cves, Some(1), Some(3)),
        attachment("cves", AttachmentKind::Cves, Some(9), Some(4)),
        fixed,
    ];
    let content = RegistryContent {
        prefix: PREFIX,
        trust: SignaturePolicy::Off,
        artifacts: &[one],
        attachments: &attachments,
    };
    let plan = plan(&resolved_selection("0.3.1", &["edge"]), &content, NOON);
    let details = &plan.profiles[0].details;
    assert_eq!(details.packages, Some([1; 32]));
    assert_eq!(details.existing_cves, Some([3; 32]));
    assert_eq!(details.fixed_cves, None);
    let documents: Vec<_> = plan.documents.iter().map(|(digest, key)| (digest[0], key)).collect();
    assert_eq!(documents, [(1, &attachments[0].key), (3, &attachments[2].key)]);
    let reported = &plan.findings[0].finding;
    assert_eq!(reported.field.as_deref(), Some("spec.osFixedCvesURL"));
    assert_eq!((plan.findings.len(), plan.refused), (1, 0));
}
