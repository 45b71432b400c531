//! Prints how long check, plan and writing of 2,000 files take: `cargo run --release --example
//! files [FOLDER]`. The files are in a temporary directory below the folder.

use std::error::Error;
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Instant;

use evenkeel_configuration::document::{Bundle, Desired, Document, Entry, FileContent, FileState};
use evenkeel_reconcile::files::{
    EmptyContentSource, FileChanger, FileContext, FilePlan, FileSpec, ManagedPaths, NoFaults,
    RootFolder, check, plan,
};
use evenkeel_reconcile::report::Verdict;

const FILES: usize = 2_000;
const FILE_BYTES: usize = 1_200;

fn main() -> Result<(), Box<dyn Error>> {
    let parent = std::env::args().nth(1).map_or_else(std::env::temp_dir, PathBuf::from);
    let folder = tempfile::tempdir_in(parent)?;
    let root_path = folder.path().join("root");
    std::fs::create_dir(&root_path)?;
    let root = RootFolder::open(&root_path)?;
    let changer = FileChanger {
        root: &root,
        saved_folder: folder.path().join("saved"),
        source: &EmptyContentSource,
        faults: &NoFaults,
    };

    let first = document('a');
    let creation = measure("plan, no file exists", || plan_files(&root, &first))?;
    measure("first apply", || changer.apply(&creation.files, &specs(&first)))?;
    measure("second apply of the plan", || changer.apply(&creation.files, &specs(&first)))?;
    measure("check, all good", || count_bad(&root, &first))?;

    let second = document('b');
    let update = measure("plan, all files differ", || plan_files(&root, &second))?;
    measure("apply, all files change", || changer.apply(&update.files, &specs(&second)))?;
    measure("revert", || changer.revert())?;
    Ok(())
}

fn document(letter: char) -> Document {
    let entry = |number: usize| {
        let mut text = format!("{letter}{number}\n");
        text.extend(std::iter::repeat_n(letter, FILE_BYTES - text.len()));
        let content = FileContent { inline: Some(text), ..FileContent::default() };
        Entry {
            name: format!("/etc/app/{}/{number}.conf", number % 20),
            desired: Desired::File(FileState { content: Some(content), ..FileState::default() }),
        }
    };
    let entries = (0..FILES).map(entry).collect();
    Document { bundles: vec![Bundle { name: "files".to_owned(), entries }], ..Document::default() }
}

fn specs(document: &Document) -> Vec<FileSpec<'_>> {
    FileSpec::from_document(document).collect()
}

fn plan_files(root: &RootFolder, document: &Document) -> Result<FilePlan, Box<dyn Error>> {
    let managed = ManagedPaths::from_document(document);
    let context = FileContext::new(root, &EmptyContentSource, &managed)?;
    Ok(plan(&context, &specs(document), "example")?)
}

fn count_bad(root: &RootFolder, document: &Document) -> Result<usize, Box<dyn Error>> {
    let managed = ManagedPaths::from_document(document);
    let context = FileContext::new(root, &EmptyContentSource, &managed)?;
    let report = check(&context, document);
    let bad = report.iter().filter(|entry| entry.report.verdict != Verdict::Good).count();
    if bad == 0 { Ok(bad) } else { Err(format!("{bad} files are bad").into()) }
}

fn measure<T, E>(name: &str, step: impl FnOnce() -> Result<T, E>) -> Result<T, Box<dyn Error>>
where
    Box<dyn Error>: From<E>,
{
    let start = Instant::now();
    let result = step()?;
    writeln!(io::stdout(), "{name}: {} ms", start.elapsed().as_millis())?;
    Ok(result)
}
