//! What the tool does not take.

use super::*;

#[tokio::test]
async fn what_the_tool_does_not_take_is_refused_before_it_is_called() {
    let (fake, boot) = FakeTool::new().boot();
    let stop = CancellationToken::new();
    let mut spooled = fake.spooled(Form::Zstd);
    let failure = boot.write(Slot::B, &spooled, &stop).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Unsupported);
    assert!(failure.reason.contains("zstd"), "{failure}");

    fake.machine.write("with space/file", "an image");
    spooled.form = Form::Xz;
    spooled.path = fake.machine.path("with space/file");
    let failure = boot.write(Slot::B, &spooled, &stop).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Unsupported);
    assert!(
        failure.reason.contains("with space/image.raw.xz"),
        "{failure}"
    );

    let failure = boot.write(Slot::A, &spooled, &stop).await.unwrap_err();
    assert!(failure.reason.contains("that is not slot a"), "{failure}");
    stop.cancel();
    let spooled = fake.spooled(Form::Raw);
    let failure = boot.write(Slot::B, &spooled, &stop).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Interrupted);
    assert_eq!(fake.changes(), [""; 0]);
    assert_eq!(fake::names(&fake.machine.path("spool")), ["file"]);
}

#[test]
fn an_image_that_the_tool_cannot_unpack_is_refused_before_it_is_fetched() {
    let (_fake, boot) = FakeTool::new().boot();
    let refused = |url: &str| {
        let url = url.to_owned();
        boot.refuses(&ImageWish {
            url,
            ..ImageWish::sample("1.1")
        })
    };
    for url in [
        "https://images.example/edge-1.1.raw.zst",
        "edge-1.1.raw.ZST?token=1",
    ] {
        let failure = refused(url).expect("it is packed with zstd");
        assert_eq!(failure.kind, FailureKind::Unsupported);
        assert!(failure.reason.contains("zstd"), "{failure}");
    }
    for url in ["edge-1.1.raw.xz", "edge-1.1.raw.gz?of=x.zst", "zst"] {
        assert_eq!(refused(url), None, "{url}");
    }
}
