//! Converts specs from protocol messages, and reports to them.

use evenkeel_proto::agent as pb;

use super::ImageReport;
use crate::model::{ImageRules, ImageSpec};

/// Parses the spec of an image. Without a valid digest there is no spec: the image file could not
/// be identified. The numbers are not changed, so that the same message gives the same spec.
pub(super) fn parse_image(image: pb::Image) -> Option<ImageSpec> {
    let rules = image.rules.map(|rules| ImageRules {
        download_bytes_per_second: rules.download_bytes_per_second,
        max_bytes: rules.max_bytes,
        attempts: rules.attempts,
    });
    Some(ImageSpec {
        sha256: image.sha256.parse().ok()?,
        os_id: image.os_id,
        name: image.name,
        profile_name: image.profile_name,
        image_id: image.image_id,
        architecture: image.architecture,
        url: image.url,
        signatures: image.signatures,
        rules: rules.unwrap_or_default(),
        allow_retry: image.is_retry,
    })
}

/// Writes the report into an event.
pub(super) fn write_event(report: &ImageReport, event: &mut pb::Event) {
    use pb::event::Kind;
    let booted = report.booted.clone().unwrap_or_default();
    match &mut event.kind {
        Some(Kind::Downloading(downloading)) => {
            let change = report.change.as_ref().map(|change| pb::ImageChange {
                profile_name: change.profile_name.clone(),
                before: change.before.clone(),
                desired: change.after.clone(),
            });
            downloading.plan.get_or_insert_default().image = change;
        }
        Some(Kind::Finished(end)) => end.booted_image_id = booted,
        Some(Kind::Failed(end)) => end.booted_image_id = booted,
        Some(Kind::Reverted(end)) => end.booted_image_id = booted,
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{ImageChange, Sha256};

    fn edge() -> pb::Image {
        pb::Image {
            os_id: "os-2".into(),
            name: "Edge 1.1".into(),
            image_id: "1.1".into(),
            url: "edge-1.1.raw.zst".into(),
            sha256: Sha256::hash(b"1.1").to_string(),
            profile_name: "edge".into(),
            ..pb::Image::default()
        }
    }

    #[test]
    fn every_image_field_is_read() {
        let message = pb::Image {
            architecture: "x86_64".into(),
            signatures: vec!["k:s".into(), "l:t".into()],
            rules: Some(pb::ImageRules {
                download_bytes_per_second: 1_000,
                max_bytes: 2_000,
                attempts: 3,
            }),
            is_retry: true,
            ..edge()
        };
        let expected = ImageSpec {
            os_id: "os-2".into(),
            name: "Edge 1.1".into(),
            profile_name: "edge".into(),
            image_id: "1.1".into(),
            architecture: "x86_64".into(),
            url: "edge-1.1.raw.zst".into(),
            sha256: Sha256::hash(b"1.1"),
            signatures: vec!["k:s".into(), "l:t".into()],
            rules: ImageRules { download_bytes_per_second: 1_000, max_bytes: 2_000, attempts: 3 },
            allow_retry: true,
        };
        assert_eq!(parse_image(message), Some(expected));
    }

    #[test]
    fn missing_image_fields_have_defaults() {
        let spec = parse_image(edge()).unwrap();
        assert_eq!(spec.rules, ImageRules::default());
        assert_eq!(spec.architecture, "");
        assert!(spec.signatures.is_empty() && !spec.allow_retry);
    }

    #[test]
    fn an_image_without_a_valid_digest_is_an_unknown_spec() {
        let upper = edge().sha256.to_uppercase();
        for sha256 in [String::new(), "1.1".into(), upper] {
            assert_eq!(parse_image(pb::Image { sha256, ..edge() }), None);
        }
    }

    #[test]
    fn every_final_event_names_the_booted_image() {
        use pb::event::Kind;
        for (booted, expected) in [(Some("1.0"), "1.0"), (None, "")] {
            let report =
                ImageReport { booted: booted.map(str::to_owned), ..ImageReport::default() };
            for kind in [
                Kind::Finished(pb::Finished::default()),
                Kind::Failed(pb::Failed::default()),
                Kind::Reverted(pb::Reverted::default()),
            ] {
                let mut event = pb::Event { kind: Some(kind), ..pb::Event::default() };
                write_event(&report, &mut event);
                let image_id = match event.kind.unwrap() {
                    Kind::Finished(end) => end.booted_image_id,
                    Kind::Failed(end) => end.booted_image_id,
                    Kind::Reverted(end) => end.booted_image_id,
                    other => panic!("{other:?}"),
                };
                assert_eq!(image_id, expected);
            }
        }
    }

    #[test]
    fn a_plan_names_the_image_before_and_after() {
        let planned = |change: Option<ImageChange>| {
            let kind = pb::event::Kind::Downloading(pb::Downloading::default());
            let mut event = pb::Event { kind: Some(kind), ..pb::Event::default() };
            write_event(&ImageReport { change, booted: None }, &mut event);
            match event.kind {
                Some(pb::event::Kind::Downloading(downloading)) => downloading.plan.unwrap().image,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(planned(None), None);
        let change =
            ImageChange { profile_name: "edge".into(), before: "1.0".into(), after: "1.1".into() };
        let expected = pb::ImageChange {
            profile_name: "edge".into(),
            before: "1.0".into(),
            desired: "1.1".into(),
        };
        assert_eq!(planned(Some(change)), Some(expected));
    }

    /// The journal keeps the report as JSON, and an older agent may read it.
    #[test]
    fn unknown_report_fields_of_a_newer_agent_are_ignored() {
        let change =
            ImageChange { profile_name: "edge".into(), before: "1.0".into(), after: "1.1".into() };
        let report = ImageReport { change: Some(change), booted: Some("1.0".into()) };
        for pointer in ["", "/change"] {
            let mut newer = serde_json::to_value(&report).unwrap();
            let object = newer.pointer_mut(pointer).unwrap().as_object_mut().unwrap();
            object.insert("more".into(), 1.into());
            let read: ImageReport = serde_json::from_value(newer).unwrap();
            assert_eq!(read, report, "{pointer}");
        }
    }
}
