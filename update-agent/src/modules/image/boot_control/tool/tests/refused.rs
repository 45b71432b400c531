//! Files and paths that the tool does not accept.

use super::*;

#[tokio::test]
async fn an_unsupported_file_is_refused_before_the_tool_is_called() {
    let (fake, boot) = FakeTool::new().into_tool();
    let stop = CancellationToken::new();
    let mut spooled = fake.spool(ImageFormat::Zstd);
    let failure = boot.write(Slot::B, &spooled, &stop).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Unsupported);
    assert!(failure.reason.contains("zstd"), "{failure}");

    fake.machine.write("with space/file", "an image");
    spooled.format = ImageFormat::Xz;
    spooled.path = fake.machine.path("with space/file");
    let failure = boot.write(Slot::B, &spooled, &stop).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Unsupported);
    assert!(failure.reason.contains("with space/image.raw.xz"), "{failure}");

    let failure = boot.write(Slot::A, &spooled, &stop).await.unwrap_err();
    assert!(failure.reason.contains("slot a is not that slot"), "{failure}");
    stop.cancel();
    let spooled = fake.spool(ImageFormat::Raw);
    let failure = boot.write(Slot::B, &spooled, &stop).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Interrupted);
    assert_eq!(fake.changing_calls(), [""; 0]);
    assert_eq!(fake::file_names(&fake.machine.path("spool")), ["file"]);
}

#[test]
fn an_image_in_an_unsupported_format_is_refused_before_the_download() {
    let (_fake, boot) = FakeTool::new().into_tool();
    let refused = |url: &str| {
        let url = url.to_owned();
        boot.refuse_spec(&ImageSpec { url, ..ImageSpec::sample("1.1") })
    };
    for url in ["https://images.example/edge-1.1.raw.zst", "edge-1.1.raw.ZST?token=1"] {
        let failure = refused(url).expect("it is compressed with zstd");
        assert_eq!(failure.kind, FailureKind::Unsupported);
        assert!(failure.reason.contains("zstd"), "{failure}");
    }
    for url in ["edge-1.1.raw.xz", "edge-1.1.raw.gz?of=x.zst", "zst"] {
        assert_eq!(refused(url), None, "{url}");
    }
}
