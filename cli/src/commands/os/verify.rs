//! `evenkeel os verify`: verifies the contents of a registry, a folder or a bundle.

use std::path::PathBuf;

use clap::Args;
use evenkeel_registry::copy::{file_title, files_repository, image_digest, to_finding};
use evenkeel_registry::{
    Address, Blob, Digest, ErrorClass, Finding, FindingKind, Hasher, KeySet, Layer, Limits,
    Manifest, ManifestRef, Profile, Registry, RegistryError, RegistryResult, Release, Repository,
    RevisionSelector, Tag, Verdict, read_cves, read_packages, read_profile,
};
use futures_util::StreamExt as _;
use serde::Serialize;

use super::bundle::UnpackedBundle;
use super::progress::with_progress;
use super::registry_options::{
    ProfileSelection, RegistryOptions, parse_revisions, read_text, registry_failure,
    resolve_profiles,
};
use crate::output::Printer;
use crate::page::{Cell, Tone, cells};
use crate::{Ending, Failure};

/// Revision to check a folder with that has not been published yet.
const PLACEHOLDER_REVISION: &str = "0.0.0";

/// Verify a registry, a bundle or a folder: digests, profiles, documents and signatures.
///
/// A folder with profiles is checked like `evenkeel os publish` does. Exits with status 3 if
/// something is wrong.
#[derive(Debug, Args)]
pub struct Verify {
    /// Registry (`https://HOST`, `http://HOST`, `oci:FOLDER`), bundle, or folder with profiles.
    source: PathBuf,
    /// Revisions to verify: one such as `0.3.1`, or `~0.3.1` for it and later patches of 0.3
    /// [default: all].
    #[arg(long, value_parser = parse_revisions)]
    revision: Option<RevisionSelector>,
    /// Public key; everything must be signed by one of the given keys. Can be repeated [default:
    /// signatures are not verified].
    #[arg(long = "key", value_name = "FILE")]
    keys: Vec<PathBuf>,
    #[command(flatten)]
    selection: ProfileSelection,
    #[command(flatten)]
    registry_options: RegistryOptions,
}

/// JSON form of a verified revision of a profile.
#[derive(Debug, Serialize)]
struct VerifiedRevision {
    repository: String,
    tag: String,
    digest: Option<Digest>,
    /// ID of the key of the valid signature.
    key: Option<String>,
    findings: Vec<Finding>,
}

impl Verify {
    pub async fn run(self, printer: &mut Printer<'_>) -> Result<Ending, Failure> {
        let text = self.source.to_string_lossy();
        let is_address = ["https://", "http://", "oci:"];
        if is_address.iter().any(|begin| text.starts_with(begin)) {
            let at: Result<Address, RegistryError> = text.parse();
            let at = at.map_err(|error| Failure::usage(error.to_string()))?;
            return self.verify_registry(&at, printer).await;
        }
        if self.source.join("oci-layout").is_file() {
            let at = Address::Layout(self.source.clone());
            return self.verify_registry(&at, printer).await;
        }
        if self.source.is_dir() {
            return self.verify_folder(printer);
        }
        if self.source.is_file() {
            let unpacked = UnpackedBundle::from_file(&self.source, None)?;
            return self.verify_registry(&unpacked.address(), printer).await;
        }
        Err(Failure::usage_with(
            format!("{text} does not exist"),
            "give a registry such as https://registry.example or oci:FOLDER, a bundle, or a folder with profiles",
        ))
    }

    /// Verifies a folder that has not been published yet.
    fn verify_folder(&self, printer: &mut Printer<'_>) -> Result<Ending, Failure> {
        let (names, findings): (Vec<String>, Vec<Finding>) =
            match Release::from_folder(&self.source, PLACEHOLDER_REVISION) {
                Ok(release) => {
                    for remark in release.remarks() {
                        printer.print_note(&remark.to_string())?;
                    }
                    (release.profiles().map(str::to_owned).collect(), Vec::new())
                }
                Err(findings) => (Vec::new(), findings),
            };
        let ids: Vec<&str> = names.iter().map(String::as_str).collect();
        let report = serde_json::json!({ "profiles": names, "findings": findings });
        if findings.is_empty() {
            let rows = ids.iter().map(|name| cells![*name]);
            printer.print_rows(&report, &ids, &["CAN BE PUBLISHED"], rows)?;
        } else {
            let row = |finding: &Finding| -> Vec<Cell> {
                cells![finding.kind.name(), finding.to_string()]
            };
            let rows = findings.iter().map(row);
            printer.print_rows(&report, &ids, &["FINDING", "MESSAGE"], rows)?;
        }
        Ok(Ending::from_checks(findings.is_empty()))
    }

    /// Verifies the contents of a registry.
    async fn verify_registry(
        &self,
        at: &Address,
        printer: &mut Printer<'_>,
    ) -> Result<Ending, Failure> {
        let verifier = Verifier {
            registry: &*self.registry_options.open(at)?,
            keys: self.key_set()?,
            images: !self.selection.no_images,
        };
        let mut all = Vec::new();
        for name in resolve_profiles(&self.selection, at).await? {
            let repository = format!("{}{name}", self.selection.prefix_option.prefix);
            let repository: Repository = repository.parse().map_err(registry_failure(at))?;
            let tags = verifier.registry.tags(&repository).await;
            let tags = tags.map_err(registry_failure(at))?.into_iter();
            let tags = tags.filter(|tag| self.is_selected(tag));
            all.extend(tags.map(|tag| (repository.clone(), tag)));
        }
        if all.is_empty() {
            return Err(Failure::usage_with(
                format!("{at} has nothing that matches"),
                "check --profile, --revision and --prefix",
            ));
        }
        let results = with_progress(printer, async |progress| {
            let mut results = Vec::new();
            let of = all.len() as u64;
            for (done, (repository, tag)) in (0..).zip(&all) {
                progress.report(&format!("{repository}:{tag}"), done, of);
                results.push(verifier.verify_tag(repository, tag).await?);
            }
            RegistryResult::Ok(results)
        });
        let results = results.await?.map_err(registry_failure(at))?;
        print_results(&results, !self.keys.is_empty(), printer)
    }

    fn key_set(&self) -> Result<KeySet, Failure> {
        let pems: Result<Vec<String>, Failure> =
            self.keys.iter().map(|file| read_text(file)).collect();
        KeySet::read(&pems?).map_err(|finding| Failure::Findings {
            what: "the keys cannot be used".to_owned(),
            findings: vec![finding.to_string()],
        })
    }

    /// Whether a tag is a selected revision or branch, and not a signature.
    fn is_selected(&self, tag: &Tag) -> bool {
        let is_signature = tag.as_str().starts_with("sha256-");
        let is_in_range =
            self.revision.as_ref().is_none_or(|selector| selector.admits(tag.as_str()));
        !is_signature && is_in_range
    }
}

fn print_results(
    results: &[VerifiedRevision],
    checks_signatures: bool,
    printer: &mut Printer<'_>,
) -> Result<Ending, Failure> {
    let row = |one: &VerifiedRevision| -> Vec<Cell> {
        let state = match one.findings.len() {
            0 => Cell::toned("good", Tone::Good),
            1 => Cell::toned("1 finding", Tone::Bad),
            many => Cell::toned(format!("{many} findings"), Tone::Bad),
        };
        let signed = match &one.key {
            Some(key) => format!("by {}", key.get(..16).unwrap_or(key)),
            None if checks_signatures => "no".to_owned(),
            None => "not checked".to_owned(),
        };
        cells![
            &one.repository,
            &one.tag,
            state,
            signed,
            one.digest.map_or_else(String::new, |digest| digest.to_string())
        ]
    };
    let names: Vec<&str> = results.iter().map(|one| one.repository.as_str()).collect();
    let header = &["REPOSITORY", "TAG", "STATE", "SIGNED", "DIGEST"];
    printer.print_rows(&results, &names, header, results.iter().map(row))?;
    for one in results {
        for finding in &one.findings {
            let (repository, tag, kind) = (&one.repository, &one.tag, finding.kind);
            printer.print_line(&format!("{repository}:{tag}: {kind}: {finding}"))?;
        }
    }
    Ok(Ending::from_checks(results.iter().all(|one| one.findings.is_empty())))
}

/// Verifies the contents of a registry, revision by revision.
struct Verifier<'a> {
    registry: &'a dyn Registry,
    keys: KeySet,
    /// Whether to verify images.
    images: bool,
}

impl Verifier<'_> {
    /// Verifies a revision of a profile and its files.
    async fn verify_tag(
        &self,
        repository: &Repository,
        tag: &Tag,
    ) -> RegistryResult<VerifiedRevision> {
        let mut result = VerifiedRevision {
            repository: repository.to_string(),
            tag: tag.to_string(),
            digest: None,
            key: None,
            findings: Vec::new(),
        };
        let findings = &mut result.findings;
        let Some(manifest) = record_finding(self.manifest(repository, tag).await, findings)? else {
            return Ok(result);
        };
        result.digest = Some(manifest.digest);
        result.key = self.check_signature(repository, &manifest, tag, findings).await?;
        let Some(profile) = self.read_profile(repository, &manifest, findings).await? else {
            return Ok(result);
        };
        let files = files_repository(repository)?;
        let at = ManifestRef::Tag(tag.clone());
        // The files repository is optional: files may be outside of the registry.
        let files_manifest = match self.registry.manifest(&files, &at).await {
            Err(RegistryError::Denied) => None,
            files_manifest => record_finding(files_manifest, findings)?.flatten(),
        };
        if let Some(files_manifest) = files_manifest {
            self.check_signature(&files, &files_manifest, tag, findings).await?;
            for layer in &files_manifest.layers {
                let mut file_findings = Vec::new();
                let checked = self.check_file(&files, layer, &profile).await;
                let wrong = record_finding(checked, &mut file_findings)?.flatten();
                file_findings.extend(wrong);
                findings.extend(
                    file_findings
                        .into_iter()
                        .map(|finding| Finding { field: layer.title.clone(), ..finding }),
                );
            }
        }
        Ok(result)
    }

    async fn manifest(&self, repository: &Repository, tag: &Tag) -> RegistryResult<Manifest> {
        let manifest = self.registry.manifest(repository, &ManifestRef::Tag(tag.clone())).await?;
        manifest.ok_or(RegistryError::NotFound)
    }

    /// Reads the profile of a manifest. Adds a finding if there is no valid one.
    async fn read_profile(
        &self,
        repository: &Repository,
        manifest: &Manifest,
        findings: &mut Vec<Finding>,
    ) -> RegistryResult<Option<Profile>> {
        let Some(layer) = manifest.layers.first() else {
            findings.push(Finding::new(FindingKind::NotAProfile, "it has no layer"));
            return Ok(None);
        };
        let Some(title) = &layer.title else {
            findings.push(Finding::new(FindingKind::NoTitle, "its layer has no title"));
            return Ok(None);
        };
        let limit = Limits::default().profile_bytes;
        let yaml = self.registry.blob(repository, &layer.blob, limit).await;
        let Some(yaml) = record_finding(yaml, findings)? else {
            return Ok(None);
        };
        let profile = read_profile(title, &yaml).map_err(|finding| findings.push(finding));
        Ok(profile.ok())
    }

    /// Returns the key that signed a manifest. Adds a finding if there is no valid signature.
    async fn check_signature(
        &self,
        repository: &Repository,
        manifest: &Manifest,
        tag: &Tag,
        findings: &mut Vec<Finding>,
    ) -> RegistryResult<Option<String>> {
        if self.keys.is_empty() {
            return Ok(None);
        }
        let digest = &manifest.digest;
        let verdict = self.keys.verify(self.registry, repository, digest, tag.as_str());
        let (kind, why) = match verdict.await? {
            Verdict::Good(signature) => return Ok(Some(signature.key)),
            Verdict::Unsigned => (FindingKind::Unsigned, "it has no signature".to_owned()),
            Verdict::Bad(why) => (FindingKind::BadSignature, why),
        };
        findings.push(Finding::new(kind, format!("{repository}: {why}")));
        Ok(None)
    }

    /// Returns what is wrong with a file of a profile.
    async fn check_file(
        &self,
        files: &Repository,
        layer: &Layer,
        of: &Profile,
    ) -> RegistryResult<Option<Finding>> {
        let limits = Limits::default();
        let title = layer.title.as_deref().unwrap_or_default();
        if title == file_title(&of.spec.image_url) {
            return self.check_image(files, &layer.blob, of).await;
        }
        if title == file_title(&of.manifest_url) {
            let content = self.registry.blob(files, &layer.blob, limits.packages_bytes).await?;
            return Ok(read_packages(&content).err());
        }
        let documents = [&of.spec.existing_cves_url, &of.spec.fixed_cves_url];
        if documents.iter().any(|url| title == file_title(url)) {
            let content = self.registry.blob(files, &layer.blob, limits.cves_bytes).await?;
            return Ok(read_cves(&content, None).err());
        }
        self.check_blob(files, &layer.blob).await.map(|()| None)
    }

    async fn check_image(
        &self,
        files: &Repository,
        blob: &Blob,
        of: &Profile,
    ) -> RegistryResult<Option<Finding>> {
        match image_digest(&of.spec.sha256) {
            Some(expected) if expected != blob.digest => {
                let why =
                    format!("the profile has digest {expected}, the registry has {}", blob.digest);
                Ok(Some(Finding::new(FindingKind::WrongDigest, why)))
            }
            _ if self.images => self.check_blob(files, blob).await.map(|()| None),
            _ => Ok(None),
        }
    }

    /// Reads a whole blob and checks its length and digest.
    async fn check_blob(&self, files: &Repository, blob: &Blob) -> RegistryResult<()> {
        let (mut hasher, mut length) = (Hasher::default(), 0);
        let mut pieces = self.registry.open_blob(files, blob, 0).await?;
        while let Some(piece) = pieces.next().await {
            let piece = piece?;
            length += piece.len() as u64;
            if length > blob.size {
                return Err(RegistryError::TooLarge { limit: blob.size });
            }
            hasher.update(&piece);
        }
        let (expected, actual) = (blob.digest, hasher.finish());
        if expected == actual && length == blob.size {
            Ok(())
        } else {
            Err(RegistryError::WrongDigest { expected, actual })
        }
    }
}

/// Separates permanent errors, which become findings, from temporary ones.
fn record_finding<T>(
    got: RegistryResult<T>,
    findings: &mut Vec<Finding>,
) -> RegistryResult<Option<T>> {
    match got {
        Ok(got) => Ok(Some(got)),
        Err(error) if error.class() == ErrorClass::Permanent => {
            findings.push(to_finding(&error));
            Ok(None)
        }
        Err(error) => Err(error),
    }
}
