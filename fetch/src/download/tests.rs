use std::fs;

use futures_util::future::join_all;
use futures_util::stream;
use tempfile::TempDir;

use super::*;

const CONTENT: &[u8] = b"0123456789";

#[derive(Clone, Debug, PartialEq, thiserror::Error)]
enum TestError {
    #[error("interrupted")]
    Interrupted,
    #[error("wrong response")]
    WrongResponse,
}

impl SourceError for TestError {
    fn is_wrong_content(&self) -> bool {
        *self == Self::WrongResponse
    }
}

type TestResult<T> = Result<T, FillError<TestError>>;

/// A folder with a partial file, and a server of the test content.
struct Bench {
    folder: TempDir,
    /// Offsets of the requests.
    offsets: Vec<u64>,
    /// What is served in the first responses instead of the content.
    first: Vec<&'static [u8]>,
    /// Bytes after which each response breaks off.
    break_after: usize,
}

impl Bench {
    fn new(left: &[u8]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join("part"), left).expect("a part");
        Self { folder, offsets: Vec::new(), first: Vec::new(), break_after: usize::MAX }
    }

    fn part(&self) -> Option<Vec<u8>> {
        fs::read(self.folder.path().join("part")).ok()
    }

    async fn lock(&self) -> Download {
        Download::lock(self.folder.path().join("part")).await.expect("a part")
    }

    fn respond(&mut self, from: u64) -> BoxStream<'static, Result<Bytes, TestError>> {
        let content = self.first.get(self.offsets.len()).copied().unwrap_or(CONTENT);
        self.offsets.push(from);
        let start = usize::try_from(from).expect("an offset").min(content.len());
        let end = content.len().min(start.saturating_add(self.break_after));
        let chunks = content[start..end].chunks(3).map(|chunk| Ok(Bytes::from_static(chunk)));
        let broken = (end < content.len()).then_some(Err(TestError::Interrupted));
        stream::iter(chunks.chain(broken)).boxed()
    }

    async fn fill(&mut self, part: &mut Download, expected: &ExpectedContent) -> TestResult<()> {
        part.fill(expected, |from| std::future::ready(Ok(self.respond(from)))).await
    }

    /// Fills the part as a process does that ends then. Returns the content if it is right.
    async fn run(&mut self, expected: &ExpectedContent) -> TestResult<Vec<u8>> {
        let mut part = self.lock().await;
        let file = self.folder.path().join("file");
        match self.fill(&mut part, expected).await {
            Ok(()) => part.persist_as(&file).await?,
            Err(error) => {
                part.release().await;
                return Err(error);
            }
        }
        assert_eq!(self.part(), None);
        Ok(fs::read(file)?)
    }
}

fn expected(size: Option<u64>) -> ExpectedContent {
    ExpectedContent { digest: Digest::compute(CONTENT), size, limit: 1_000 }
}

#[track_caller]
fn assert_interrupted<T: std::fmt::Debug>(filled: TestResult<T>) {
    assert!(matches!(filled, Err(FillError::Source(TestError::Interrupted))), "{filled:?}");
}

#[tokio::test]
async fn an_interrupted_download_is_resumed_by_the_same_or_another_process() {
    for size in [Some(10), None] {
        let mut bench = Bench { break_after: 3, ..Bench::new(b"") };
        let mut part = bench.lock().await;
        for length in [3, 6] {
            assert_interrupted(bench.fill(&mut part, &expected(size)).await);
            assert_eq!(bench.part().unwrap(), CONTENT[..length]);
        }
        part.release().await;
        assert_interrupted(bench.run(&expected(size)).await);
        assert_eq!(bench.run(&expected(size)).await.unwrap(), CONTENT);
        assert_eq!(bench.offsets, [0, 3, 6, 9]);
    }
}

#[tokio::test]
async fn whatever_a_killed_process_left_becomes_the_right_content() {
    let too_long = [0; 1_001];
    let cases: [(&[u8], &[u64], &[u64]); 8] = [
        (b"", &[0], &[0]),
        (b"0", &[1], &[1]),
        (b"012345678", &[9], &[9]),
        (b"0123456789", &[], &[]),
        (b"01x", &[3, 0], &[3, 0]),
        (b"012345678x", &[0], &[10, 0]),
        (b"0123456789 and more", &[0], &[19, 0]),
        (&too_long, &[0], &[0]),
    ];
    for (left, with_size, without_size) in cases {
        for (size, offsets) in [(Some(10), with_size), (None, without_size)] {
            let mut bench = Bench::new(left);
            assert_eq!(bench.run(&expected(size)).await.unwrap(), CONTENT);
            assert_eq!(bench.offsets, offsets, "{} {size:?}", left.len());
        }
    }
}

#[tokio::test]
async fn wrong_content_is_refused_and_removed() {
    let (right, other) = (expected(None).digest, Digest::compute(b"something else"));
    for (digest, size, limit, why) in [
        (other, Some(10), 10, "its digest is"),
        (other, None, 10, "its digest is"),
        (other, Some(5), 10, "larger than 5 bytes"),
        (right, None, 9, "larger than 9 bytes"),
        (right, Some(u64::MAX), 9, "larger than 9 bytes"),
        (right, Some(20), 20, "its size differs"),
    ] {
        let mut bench = Bench::new(b"");
        let error = bench.run(&ExpectedContent { digest, size, limit }).await.unwrap_err();
        assert!(error.is_wrong_content() && error.to_string().contains(why), "{error}");
        assert_eq!((bench.offsets.len(), bench.part()), (1, None));
    }
}

#[tokio::test]
async fn content_that_ended_early_is_preserved() {
    let mut bench = Bench { first: vec![b"0123"], ..Bench::new(b"") };
    let filled = bench.run(&expected(Some(10))).await;
    assert!(matches!(filled, Err(FillError::Incomplete)), "{filled:?}");
    assert_eq!(bench.run(&expected(Some(10))).await.unwrap(), CONTENT);
    assert_eq!(bench.offsets, [0, 4]);
}

#[tokio::test]
async fn a_changed_file_is_downloaded_again_but_a_bad_server_cannot_restart_it_forever() {
    let wrong: &[u8] = b"abcdefghij";
    let mut bench = Bench { first: vec![wrong], break_after: 6, ..Bench::new(b"") };
    let mut part = bench.lock().await;
    for _ in 0..2 {
        assert_interrupted(bench.fill(&mut part, &expected(None)).await);
    }
    bench.fill(&mut part, &expected(None)).await.unwrap();
    assert_eq!(bench.offsets, [0, 6, 0, 6]);

    let mut bench = Bench { first: vec![wrong; 9], break_after: 6, ..Bench::new(b"") };
    let mut part = bench.lock().await;
    for _ in 0..2 {
        assert_interrupted(bench.fill(&mut part, &expected(None)).await);
    }
    let filled = bench.fill(&mut part, &expected(None)).await;
    let refused = matches!(filled, Err(FillError::WrongDigest { .. }));
    assert!(refused && part.length() == 0, "{filled:?}");
    assert_eq!(bench.offsets, [0, 6, 0, 6]);
}

#[tokio::test]
async fn content_is_preserved_if_the_rest_is_unavailable_or_the_response_is_wrong() {
    let bench = Bench::new(b"0123");
    for (error, requested) in
        [(TestError::Interrupted, vec![4]), (TestError::WrongResponse, vec![4, 0])]
    {
        let (mut part, mut offsets) = (bench.lock().await, Vec::new());
        let open = |from| {
            offsets.push(from);
            std::future::ready(Err(error.clone()))
        };
        let filled = part.fill(&expected(None), open).await;
        assert!(matches!(&filled, Err(FillError::Source(one)) if *one == error), "{filled:?}");
        part.release().await;
        assert_eq!((offsets, bench.part().unwrap()), (requested, b"0123".to_vec()));
    }
}

#[tokio::test]
async fn a_download_restarts_if_only_the_request_for_the_rest_has_a_wrong_response() {
    let mut bench = Bench::new(b"0123");
    let mut part = bench.lock().await;
    let open = |from| {
        let chunks = bench.respond(from);
        std::future::ready(if from == 0 { Ok(chunks) } else { Err(TestError::WrongResponse) })
    };
    part.fill(&expected(None), open).await.unwrap();
    assert_eq!((bench.offsets.as_slice(), bench.part().unwrap()), (&[4, 0][..], CONTENT.to_vec()));
}

#[tokio::test]
async fn a_wrong_response_does_not_remove_the_bytes_before_it() {
    let mut bench = Bench::new(b"");
    let mut part = bench.lock().await;
    let open = |_| {
        let chunks = [Ok(Bytes::from_static(&CONTENT[..3])), Err(TestError::WrongResponse)];
        std::future::ready(Ok(stream::iter(chunks).boxed()))
    };
    let filled = part.fill(&expected(None), open).await;
    assert!(matches!(filled, Err(FillError::Source(TestError::WrongResponse))), "{filled:?}");
    part.release().await;
    assert_eq!(bench.part().unwrap(), CONTENT[..3]);
    assert_eq!(bench.run(&expected(None)).await.unwrap(), CONTENT);
    assert_eq!(bench.offsets, [3]);
}

#[tokio::test]
async fn concurrent_downloads_of_one_file_take_turns() {
    let bench = Bench::new(b"");
    let path = bench.folder.path().join("part");
    let requests = std::sync::Mutex::new(bench);
    join_all((0..8).map(|_| async {
        let mut part = Download::lock(path.clone()).await.expect("a part");
        let open = |from| std::future::ready(Ok(requests.lock().unwrap().respond(from)));
        part.fill(&expected(None), open).await.expect("the content");
    }))
    .await;
    let bench = requests.into_inner().unwrap();
    assert_eq!((bench.part().unwrap(), bench.offsets), (CONTENT.to_vec(), vec![0]));
}

#[tokio::test]
async fn a_full_disk_is_reported() {
    let mut part = Download::new(PartialFile::open(Path::new("/dev/full"), 0o600).unwrap());
    let Err(FillError::Disk(error)) = Bench::new(b"").fill(&mut part, &expected(None)).await else {
        panic!("it was written");
    };
    assert_eq!((error.kind(), part.length()), (io::ErrorKind::StorageFull, 0));
}
