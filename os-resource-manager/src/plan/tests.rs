//! The plan by examples, and what holds of every plan.

use evenkeel_domain::os::catalogue::{File, Wish};
use proptest::prelude::*;

use super::*;

const PREFIX: &str = "os-profile/";

const NOON: Time = Time::from_timestamp_nanos(1_800_000_000_000_000_000);

/// A revision as a test knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Revision {
    profile: &'static str,
    tag: String,
    /// The version of its image.
    image: u8,
    /// Which content it has; of that follows the digest.
    content: u8,
    /// How it is: 0 gone, 1 not readable, 2 without a signature, else as it should be.
    way: u8,
}

impl Revision {
    fn of(profile: &'static str, tag: &str, image: u8) -> Self {
        Self {
            profile,
            tag: tag.to_owned(),
            image,
            content: 0,
            way: 3,
        }
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
            document: (self.way != 1).then(|| self.yaml()),
            findings: Vec::new(),
            trust: match self.way {
                2 => Trusted::Unsigned,
                _ => Trusted::Good,
            },
            signature: None,
            files: Vec::new(),
            gone_at: (self.way == 0).then_some(NOON),
        }
    }
}

fn catalogue(revision: &str, enabled: &[&str]) -> Catalogue {
    let wish = Wish {
        registry: Some("release".to_owned()),
        revision: Some(revision.to_owned()),
        enabled: Some(enabled.iter().copied().map(str::to_owned).collect()),
        default_profile: enabled.first().copied().map(str::to_owned),
    };
    wish.whole().expect("a good wish").expect("a whole one")
}

fn planned(catalogue: &Catalogue, trust: Trust, artifacts: &[Artifact]) -> Plan {
    let stock = Stock {
        prefix: PREFIX,
        trust,
        artifacts,
        sides: &[],
    };
    plan(catalogue, &stock, NOON)
}

fn taken(plan: &Plan) -> Vec<(&str, &str, &str)> {
    let made = plan.made.iter();
    made.map(|made| {
        let (profile, image) = key_of(made);
        (profile, image, made.inside.revision.as_str())
    })
    .collect()
}

fn told(plan: &Plan) -> Vec<(&str, &str)> {
    let told = plan.told.iter();
    told.map(|told| (told.tag.as_str(), told.finding.kind.name()))
        .collect()
}

fn artifacts(revisions: &[Revision]) -> Vec<Artifact> {
    revisions.iter().map(Revision::artifact).collect()
}

#[test]
fn a_range_takes_its_patches_and_one_tag_that_very_one() {
    let tags = ["0.3.1", "0.3.2", "0.4.0", "main"];
    let revisions: Vec<_> = (1..)
        .zip(tags)
        .map(|(image, tag)| Revision::of("edge", tag, image))
        .collect();
    let there = artifacts(&revisions);
    let of = |revision: &str| {
        let plan = planned(&catalogue(revision, &["edge"]), Trust::Off, &there);
        assert_eq!((told(&plan), plan.refused), (vec![], 0), "{revision}");
        let taken = taken(&plan).into_iter();
        taken.map(|(_, _, tag)| tag.to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(of("~0.3.1"), ["0.3.1", "0.3.2"]);
    assert_eq!(of("0.3.1"), ["0.3.1"]);
    assert_eq!(of("main"), ["main"]);
    let other = planned(&catalogue("~0.3.1", &["other"]), Trust::Off, &there);
    assert!(other.made.is_empty());
    assert_eq!(told(&other), [("", "not_there")]);
}

#[test]
fn of_revisions_with_one_image_the_highest_says_what_is_inside() {
    let tags = ["0.3.9", "0.3.10", "0.3.2"];
    let there = artifacts(&tags.map(|tag| Revision::of("edge", tag, 7)));
    let plan = planned(&catalogue("~0.3", &["edge"]), Trust::Off, &there);
    assert_eq!(taken(&plan), [("edge", "3.7", "0.3.10")]);
    assert_eq!((plan.refused, told(&plan)), (0, vec![]));
}

#[test]
fn one_version_of_an_image_is_one_image() {
    let newer = Revision::of("edge", "0.3.2", 7).artifact();
    let mut older = Revision::of("edge", "0.3.1", 7).artifact();
    let document = older.document.take().unwrap_or_default();
    older.document = Some(document.replace(&"08".repeat(32), &"99".repeat(32)));
    let there = [older, newer];
    let plan = planned(&catalogue("~0.3", &["edge"]), Trust::Off, &there);
    assert_eq!(taken(&plan), [("edge", "3.7", "0.3.2")]);
    assert_eq!(told(&plan), [("0.3.1", "same_image_other_digest")]);
    assert_eq!(plan.refused, 1);
}

#[test]
fn of_two_that_mean_the_same_revision_neither_is_taken() {
    let one = Revision::of("edge", "0.3.1", 7);
    let other = Revision {
        tag: "v0.3.1".to_owned(),
        ..one.clone()
    };
    let wanted = catalogue("~0.3", &["edge"]);
    let same = planned(
        &wanted,
        Trust::Off,
        &artifacts(&[one.clone(), other.clone()]),
    );
    assert_eq!(taken(&same), [("edge", "3.7", "0.3.1")]);
    assert!(told(&same).is_empty());
    let other = Revision {
        content: 9,
        ..other
    };
    let plan = planned(&wanted, Trust::Off, &artifacts(&[one, other]));
    assert!(plan.made.is_empty());
    assert_eq!(
        told(&plan),
        [("0.3.1", "ambiguous"), ("v0.3.1", "ambiguous")]
    );
    assert_eq!(plan.refused, 2);
}

#[test]
fn without_a_good_signature_it_depends_on_what_is_demanded() {
    for (found, trust, is_taken, said) in [
        (Trusted::Good, Trust::Require, true, None),
        (Trusted::Unsigned, Trust::Require, false, Some("unsigned")),
        (Trusted::Off, Trust::Require, false, Some("unsigned")),
        (Trusted::Bad, Trust::Require, false, Some("bad_signature")),
        (Trusted::Unsigned, Trust::Warn, true, Some("unsigned")),
        (Trusted::Bad, Trust::Warn, true, Some("bad_signature")),
        (Trusted::Off, Trust::Warn, true, None),
        (Trusted::Bad, Trust::Off, true, None),
    ] {
        let mut one = Revision::of("edge", "0.3.1", 1).artifact();
        one.trust = found;
        let plan = planned(&catalogue("0.3.1", &["edge"]), trust, &[one]);
        assert_eq!(plan.made.len() == 1, is_taken, "{found} {trust:?}");
        assert_eq!(plan.refused, u32::from(!is_taken), "{found} {trust:?}");
        let kinds: Vec<_> = told(&plan).into_iter().map(|(_, kind)| kind).collect();
        assert_eq!(kinds, Vec::from_iter(said), "{found} {trust:?}");
    }
}

#[test]
fn what_lies_in_the_place_of_another_is_refused() {
    let other = Revision::of("other", "0.3.1", 1).artifact();
    let wrong_place = Artifact {
        repository: format!("{PREFIX}edge"),
        ..other
    };
    let plan = planned(&catalogue("~0.3", &["edge"]), Trust::Off, &[wrong_place]);
    assert_eq!(told(&plan), [("0.3.1", "other_profile")]);
    let mut wrong_tag = Revision::of("edge", "0.3.2", 1).artifact();
    let document = wrong_tag.document.take().unwrap_or_default();
    wrong_tag.document = Some(document.replace("release: \"\"", "release: 0.3.1"));
    let mut branch = wrong_tag.clone();
    branch.tag = "main".to_owned();
    let plan = planned(&catalogue("~0.3", &["edge"]), Trust::Off, &[wrong_tag]);
    assert_eq!(told(&plan), [("0.3.2", "revision_mismatch")]);
    assert_eq!((plan.made.len(), plan.refused), (0, 1));
    let plan = planned(&catalogue("main", &["edge"]), Trust::Off, &[branch]);
    assert_eq!((plan.made.len(), plan.refused), (1, 0));
}

#[test]
fn a_revision_that_moved_is_told_and_a_branch_that_did_is_not() {
    for (tag, said) in [("0.3.1", vec![("0.3.1", "tag_moved")]), ("main", vec![])] {
        let mut one = Revision::of("edge", tag, 1).artifact();
        one.moved_from = Some([7; 32]);
        let plan = planned(&catalogue(tag, &["edge"]), Trust::Off, &[one]);
        assert_eq!((told(&plan), plan.made.len()), (said, 1));
    }
}

#[test]
fn why_something_was_not_fetched_is_told_once() {
    let mut one = Revision::of("edge", "0.3.1", 1).artifact();
    one.document = None;
    let finding = |kind, why| serde_json::to_value(Finding::new(kind, why)).expect("JSON");
    one.findings = vec![
        finding(FindingKind::SeveralLayers, "two layers"),
        finding(FindingKind::Yaml, "a tag"),
    ];
    let wanted = catalogue("0.3.1", &["edge"]);
    let plan = planned(&wanted, Trust::Off, &[one.clone()]);
    assert_eq!(
        told(&plan),
        [("0.3.1", "several_layers"), ("0.3.1", "yaml")]
    );
    assert_eq!(plan.refused, 1);
    one.findings.clear();
    let plan = planned(&wanted, Trust::Off, &[one]);
    assert_eq!(told(&plan), [("0.3.1", "not_a_profile")]);
}

#[test]
fn why_tags_could_not_be_listed_is_told_and_what_is_known_stays() {
    let known = Revision::of("edge", "0.3.1", 1).artifact();
    let finding = Finding::new(FindingKind::NotAProfile, "a web page");
    let listing = Artifact {
        tag: LISTING.to_owned(),
        document: None,
        findings: vec![serde_json::to_value(finding).expect("JSON")],
        ..known.clone()
    };
    let wanted = catalogue("~0.3", &["edge"]);
    let plan = planned(&wanted, Trust::Off, &[listing.clone(), known]);
    assert_eq!(
        (told(&plan), plan.made.len()),
        (vec![("", "not_a_profile")], 1)
    );
    let plan = planned(&wanted, Trust::Off, std::slice::from_ref(&listing));
    assert_eq!(told(&plan), [("", "not_a_profile")]);
    let over = Artifact {
        gone_at: Some(NOON),
        ..listing
    };
    let plan = planned(&wanted, Trust::Off, &[over]);
    assert_eq!(told(&plan), [("", "not_there")]);
}

#[test]
fn a_revision_that_is_gone_is_told_only_if_nothing_else_has_its_image() {
    let gone = |tag, image| Revision {
        way: 0,
        ..Revision::of("edge", tag, image)
    };
    let there = [
        gone("0.3.1", 1),
        gone("0.3.2", 2),
        Revision::of("edge", "0.3.3", 2),
    ];
    let plan = planned(
        &catalogue("~0.3", &["edge"]),
        Trust::Off,
        &artifacts(&there),
    );
    assert_eq!(taken(&plan), [("edge", "3.2", "0.3.3")]);
    let gone: Vec<_> = plan.gone.iter().map(|gone| gone.tag.as_str()).collect();
    assert_eq!(gone, ["0.3.1"]);
    assert_eq!(plan.gone[0].image_id, "3.1");
}

/// A document beside profiles whose digest is made of one number.
fn side(place: &str, kind: SideKind, filtered_by: Option<u8>, digest: Option<u8>) -> Side {
    Side {
        key: SideKey {
            place: place.to_owned(),
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
fn what_lies_beside_a_profile_belongs_to_it() {
    let file = |role, place: &str| File {
        role,
        path: place.to_owned(),
        place: place.to_owned(),
        sha256: None,
        size: None,
    };
    let mut one = Revision::of("edge", "0.3.1", 1).artifact();
    one.files = vec![
        file(FileRole::Packages, "packages"),
        file(FileRole::ExistingCves, "cves"),
        file(FileRole::FixedCves, "fixed"),
    ];
    let mut fixed = side("fixed", SideKind::Cves, None, None);
    let finding = Finding::new(FindingKind::Cves, "it is a web page");
    fixed.findings = vec![serde_json::to_value(finding).expect("JSON")];
    let sides = [
        side("packages", SideKind::Packages, None, Some(1)),
        side("cves", SideKind::Cves, None, Some(2)),
        side("cves", SideKind::Cves, Some(1), Some(3)),
        side("cves", SideKind::Cves, Some(9), Some(4)),
        fixed,
    ];
    let stock = Stock {
        prefix: PREFIX,
        trust: Trust::Off,
        artifacts: &[one],
        sides: &sides,
    };
    let plan = plan(&catalogue("0.3.1", &["edge"]), &stock, NOON);
    let inside = &plan.made[0].inside;
    assert_eq!(inside.packages, Some([1; 32]));
    assert_eq!(inside.existing_cves, Some([3; 32]));
    assert_eq!(inside.fixed_cves, None);
    let found: Vec<_> = plan
        .bodies
        .iter()
        .map(|(digest, key)| (digest[0], key))
        .collect();
    assert_eq!(found, [(1, &sides[0].key), (3, &sides[2].key)]);
    let told = &plan.told[0].finding;
    assert_eq!(told.field.as_deref(), Some("spec.osFixedCvesURL"));
    assert_eq!((plan.told.len(), plan.refused), (1, 0));
}

const PROFILES: [&str; 3] = ["edge", "edge-rt", "ubuntu"];

fn revisions() -> impl Strategy<Value = Vec<Revision>> {
    let version = (prop::bool::ANY, 2u8..5, 0u8..4);
    let one = (0..PROFILES.len(), version, 0u8..3, 0u8..2, 0u8..6);
    let one = one.prop_map(
        |(profile, (v, minor, patch), image, content, way)| Revision {
            profile: PROFILES[profile],
            tag: format!("{}0.{minor}.{patch}", if v { "v" } else { "" }),
            image,
            content,
            way,
        },
    );
    prop::collection::vec(one, 0..24).prop_map(|all| {
        // A tag leads to one thing.
        let mut seen = HashSet::new();
        let is_new = |one: &Revision| seen.insert((one.profile, one.tag.clone()));
        all.into_iter().filter(is_new).collect()
    })
}

/// The numbers of a tag.
fn numbers(tag: &str) -> Vec<u64> {
    let tag = tag.trim_start_matches('v');
    let numbers = tag.split('.').map(str::parse);
    numbers.collect::<Result<_, _>>().expect("numbers")
}

proptest! {
    #[test]
    fn the_order_in_which_things_are_found_does_not_matter(
        (there, shuffled) in revisions().prop_flat_map(|all| (Just(all.clone()), Just(all).prop_shuffle())),
    ) {
        let wanted = catalogue("~0.3.1", &PROFILES);
        let one = planned(&wanted, Trust::Require, &artifacts(&there));
        let other = planned(&wanted, Trust::Require, &artifacts(&shuffled));
        prop_assert_eq!(format!("{one:?}"), format!("{other:?}"));
    }

    #[test]
    fn each_image_is_made_once_by_the_highest_revision_that_may(there in revisions()) {
        let wanted = catalogue("~0.3.1", &["edge", "ubuntu"]);
        let plan = planned(&wanted, Trust::Require, &artifacts(&there));
        // Said again, without the plan: what is wanted and there, each revision once.
        let admitted = there.iter().filter(|one| {
            let numbers = numbers(&one.tag);
            one.profile != "edge-rt" && numbers[1] == 3 && numbers[2] >= 1 && one.way != 0
        });
        let admitted: Vec<&Revision> = admitted.collect();
        let twin = |one: &Revision| admitted.iter().find(|other| {
            other.profile == one.profile && other.tag != one.tag && numbers(&other.tag) == numbers(&one.tag)
        });
        let is_ambiguous = |one: &Revision| twin(one).is_some_and(|twin| twin.content != one.content);
        let is_second = |one: &Revision| twin(one).is_some_and(|twin| twin.tag < one.tag);
        let mut expected: BTreeMap<(&str, String), &Revision> = BTreeMap::new();
        for one in &admitted {
            if is_ambiguous(one) || is_second(one) || matches!(one.way, 1 | 2) {
                continue;
            }
            let highest = expected.entry((one.profile, format!("3.{}", one.image))).or_insert(one);
            if numbers(&one.tag) > numbers(&highest.tag) {
                *highest = one;
            }
        }
        let expected: Vec<_> = expected
            .iter()
            .map(|((profile, image), one)| (*profile, image.as_str(), one.tag.as_str()))
            .collect();
        prop_assert_eq!(taken(&plan), expected);
        let refused = admitted.iter().filter(|one| {
            is_ambiguous(one) || (!is_second(one) && matches!(one.way, 1 | 2))
        });
        prop_assert_eq!(plan.refused as usize, refused.count());
    }

    #[test]
    fn all_that_is_refused_is_told(there in revisions()) {
        let wanted = catalogue("~0.3.1", &PROFILES);
        let plan = planned(&wanted, Trust::Require, &artifacts(&there));
        let of_tags = plan.told.iter().filter(|told| !told.tag.is_empty());
        let tags: HashSet<_> = of_tags.map(|told| (&told.repository, &told.tag)).collect();
        prop_assert_eq!(tags.len(), plan.refused as usize);
        let made = plan.made.iter().map(|made| (&made.inside.repository, &made.inside.revision));
        prop_assert!(made.clone().all(|one| !tags.contains(&one)));
    }
}
