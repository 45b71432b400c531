//! Properties of every plan.

use proptest::prelude::*;

use super::*;

const PROFILES: [&str; 3] = ["edge", "edge-rt", "ubuntu"];

fn revisions() -> impl Strategy<Value = Vec<TestRevision>> {
    let version = (prop::bool::ANY, 2u8..5, 0u8..4);
    let one = (0..PROFILES.len(), version, 0u8..3, 0u8..2, 0u8..6);
    let one = one.prop_map(|(profile, (v, minor, patch), image, content, state)| TestRevision {
        profile: PROFILES[profile],
        tag: format!("{}0.{minor}.{patch}", if v { "v" } else { "" }),
        image,
        content,
        state,
    });
    prop::collection::vec(one, 0..24).prop_map(|all| {
        // A tag has one content.
        let mut seen = HashSet::new();
        let is_new = |one: &TestRevision| seen.insert((one.profile, one.tag.clone()));
        all.into_iter().filter(is_new).collect()
    })
}

fn numbers(tag: &str) -> Vec<u64> {
    let tag = tag.trim_start_matches('v');
    let numbers = tag.split('.').map(str::parse);
    numbers.collect::<Result<_, _>>().expect("numbers")
}

proptest! {
    #[test]
    fn the_plan_does_not_depend_on_the_input_order(
        (available, shuffled) in revisions().prop_flat_map(|all| (Just(all.clone()), Just(all).prop_shuffle())),
    ) {
        let selection = resolved_selection("~0.3.1", &PROFILES);
        let one = plan_artifacts(&selection, SignaturePolicy::Require, &artifacts(&available));
        let other = plan_artifacts(&selection, SignaturePolicy::Require, &artifacts(&shuffled));
        prop_assert_eq!(format!("{one:?}"), format!("{other:?}"));
    }

    #[test]
    fn each_image_comes_from_its_highest_acceptable_revision(available in revisions()) {
        let selection = resolved_selection("~0.3.1", &["edge", "ubuntu"]);
        let plan = plan_artifacts(&selection, SignaturePolicy::Require, &artifacts(&available));
        // An independent calculation: the selected revisions that exist, each once.
        let admitted = available.iter().filter(|one| {
            let numbers = numbers(&one.tag);
            one.profile != "edge-rt" && numbers[1] == 3 && numbers[2] >= 1 && one.state != 0
        });
        let admitted: Vec<&TestRevision> = admitted.collect();
        let twin = |one: &TestRevision| admitted.iter().find(|other| {
            other.profile == one.profile && other.tag != one.tag && numbers(&other.tag) == numbers(&one.tag)
        });
        let is_ambiguous = |one: &TestRevision| twin(one).is_some_and(|twin| twin.content != one.content);
        let is_second = |one: &TestRevision| twin(one).is_some_and(|twin| twin.tag < one.tag);
        let mut expected: BTreeMap<(&str, String), &TestRevision> = BTreeMap::new();
        for one in &admitted {
            if is_ambiguous(one) || is_second(one) || matches!(one.state, 1 | 2) {
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
        prop_assert_eq!(planned_profiles(&plan), expected);
        let refused = admitted.iter().filter(|one| {
            is_ambiguous(one) || (!is_second(one) && matches!(one.state, 1 | 2))
        });
        prop_assert_eq!(plan.refused as usize, refused.count());
    }

    #[test]
    fn every_refused_revision_has_a_finding(available in revisions()) {
        let selection = resolved_selection("~0.3.1", &PROFILES);
        let plan = plan_artifacts(&selection, SignaturePolicy::Require, &artifacts(&available));
        let of_tags = plan.findings.iter().filter(|entry| !entry.tag.is_empty());
        let tags: HashSet<_> = of_tags.map(|entry| (&entry.repository, &entry.tag)).collect();
        prop_assert_eq!(tags.len(), plan.refused as usize);
        let profiles = plan.profiles.iter().map(|planned| (&planned.details.repository, &planned.details.revision));
        prop_assert!(profiles.clone().all(|one| !tags.contains(&one)));
    }
}
