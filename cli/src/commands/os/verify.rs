//! `evenkeel os verify`: whether what lies in a registry, a folder or a bundle is what it should be.

use std::path::PathBuf;

use clap::Args;
use evenkeel_registry::copy::{files_of, finding_of, image_digest, title_of};
use evenkeel_registry::{
    Address, At, Blob, Class, Digest, Finding, FindingKind, Got, Hasher, KeySet, Layer, Limits,
    Manifest, Profile, Registry, RegistryError, Release, Repository, Tag, Verdict, Wanted, cves,
    packages, profile,
};
use futures_util::StreamExt as _;
use serde::Serialize;

use super::bundle::Unpacked;
use super::entry::{Choice, Entry, profiles, text, unusable, wanted};
use super::steps::watched;
use crate::view::{Cell, Printer, Tone};
use crate::{Ending, Failure};

/// As what a folder is checked that is to be published.
const SOME_REVISION: &str = "0.0.0";

/// Say whether what lies in a registry, a bundle or a folder is what it should be: digests, profiles, documents, signatures.
///
/// A folder with profiles is checked as `evenkeel os publish` does it. Exits with 3 if something is wrong.
#[derive(Debug, Args)]
pub struct Verify {
    /// A registry (`https://HOST`, `http://HOST`, `oci:FOLDER`), a bundle, or a folder with profiles.
    what: PathBuf,
    /// Which revisions: one such as `0.3.1`, or `~0.3.1` for it and all later patches of 0.3 [default: all].
    #[arg(long, value_parser = wanted)]
    revision: Option<Wanted>,
    /// A public key by one of which all must be signed; may be given more than once [default: nobody looks at signatures].
    #[arg(long = "key", value_name = "FILE")]
    keys: Vec<PathBuf>,
    #[command(flatten)]
    choice: Choice,
    #[command(flatten)]
    entry: Entry,
}

/// One revision of a profile that was looked at, as programs read it.
#[derive(Debug, Serialize)]
struct Looked {
    repository: String,
    tag: String,
    digest: Option<Digest>,
    /// Which key made the signature that is good.
    key: Option<String>,
    findings: Vec<Finding>,
}

impl Verify {
    pub async fn run(self, printer: &mut Printer<'_>) -> Result<Ending, Failure> {
        let text = self.what.to_string_lossy();
        let is_address = ["https://", "http://", "oci:"];
        if is_address.iter().any(|begin| text.starts_with(begin)) {
            let at: Result<Address, RegistryError> = text.parse();
            let at = at.map_err(|error| Failure::usage(error.to_string()))?;
            return self.registry(&at, printer).await;
        }
        if self.what.join("oci-layout").is_file() {
            let at = Address::Layout(self.what.clone());
            return self.registry(&at, printer).await;
        }
        if self.what.is_dir() {
            return self.folder(printer);
        }
        if self.what.is_file() {
            let unpacked = Unpacked::of(&self.what, None)?;
            return self.registry(&unpacked.address(), printer).await;
        }
        Err(Failure::usage_with(
            format!("there is nothing at {text}"),
            "name a registry such as https://registry.example or oci:FOLDER, a bundle, or a folder with profiles",
        ))
    }

    /// Looks at a folder that is to be published.
    fn folder(&self, printer: &mut Printer<'_>) -> Result<Ending, Failure> {
        let (names, findings): (Vec<String>, Vec<Finding>) =
            match Release::of_folder(&self.what, SOME_REVISION) {
                Ok(release) => {
                    for remark in release.remarks() {
                        printer.note(&remark.to_string())?;
                    }
                    (release.profiles().map(str::to_owned).collect(), Vec::new())
                }
                Err(findings) => (Vec::new(), findings),
            };
        let ids: Vec<&str> = names.iter().map(String::as_str).collect();
        let told = serde_json::json!({ "profiles": names, "findings": findings });
        if findings.is_empty() {
            let rows = ids.iter().map(|name| vec![(*name).into()]).collect();
            printer.rows(&told, &ids, &["CAN BE PUBLISHED"], rows)?;
        } else {
            let row = |finding: &Finding| -> Vec<Cell> {
                vec![finding.kind.name().into(), finding.to_string().into()]
            };
            let rows = findings.iter().map(row).collect();
            printer.rows(&told, &ids, &["FINDING", "MESSAGE"], rows)?;
        }
        Ok(Ending::of(findings.is_empty()))
    }

    /// Looks at what lies in a registry.
    async fn registry(&self, at: &Address, printer: &mut Printer<'_>) -> Result<Ending, Failure> {
        let looking = Looking {
            registry: &*self.entry.open(at)?,
            keys: self.key_set()?,
            images: !self.choice.no_images,
        };
        let mut all = Vec::new();
        for name in profiles(&self.choice, at).await? {
            let repository = format!("{}{name}", self.choice.place.prefix);
            let repository: Repository = repository.parse().map_err(unusable(at))?;
            let tags = looking.registry.tags(&repository).await;
            let tags = tags.map_err(unusable(at))?.into_iter();
            let tags = tags.filter(|tag| self.is_meant(tag));
            all.extend(tags.map(|tag| (repository.clone(), tag)));
        }
        if all.is_empty() {
            return Err(Failure::usage_with(
                format!("there is nothing in {at} that fits"),
                "look at --profile, --revision and --prefix",
            ));
        }
        let looked = watched(printer, async |tell| {
            let mut looked = Vec::new();
            let of = all.len() as u64;
            for (done, (repository, tag)) in (0..).zip(&all) {
                tell.step(&format!("{repository}:{tag}"), done, of);
                looked.push(looking.at(repository, tag).await?);
            }
            Got::Ok(looked)
        });
        let looked = looked.await?.map_err(unusable(at))?;
        show(&looked, !self.keys.is_empty(), printer)
    }

    fn key_set(&self) -> Result<KeySet, Failure> {
        let pems: Result<Vec<String>, Failure> = self.keys.iter().map(|file| text(file)).collect();
        KeySet::read(&pems?).map_err(|finding| Failure::Findings {
            what: "the keys cannot be used".to_owned(),
            findings: vec![finding.to_string()],
        })
    }

    /// Whether a tag is a revision or a branch that is asked for, and no signature.
    fn is_meant(&self, tag: &Tag) -> bool {
        let is_signature = tag.as_str().starts_with("sha256-");
        let is_wanted = self
            .revision
            .as_ref()
            .is_none_or(|wanted| wanted.admits(tag.as_str()));
        !is_signature && is_wanted
    }
}

fn show(looked: &[Looked], are_judged: bool, printer: &mut Printer<'_>) -> Result<Ending, Failure> {
    let row = |one: &Looked| -> Vec<Cell> {
        let state = match one.findings.len() {
            0 => Cell::toned("good", Tone::Good),
            1 => Cell::toned("1 finding", Tone::Bad),
            many => Cell::toned(format!("{many} findings"), Tone::Bad),
        };
        let signed = match &one.key {
            Some(key) => format!("by {}", key.get(..16).unwrap_or(key)),
            None if are_judged => "no".to_owned(),
            None => "nobody looked".to_owned(),
        };
        vec![
            one.repository.clone().into(),
            one.tag.clone().into(),
            state,
            signed.into(),
            one.digest
                .map_or_else(String::new, |digest| digest.to_string())
                .into(),
        ]
    };
    let names: Vec<&str> = looked.iter().map(|one| one.repository.as_str()).collect();
    let header = &["REPOSITORY", "TAG", "STATE", "SIGNED", "DIGEST"];
    printer.rows(&looked, &names, header, looked.iter().map(row).collect())?;
    for one in looked {
        for finding in &one.findings {
            let (repository, tag, kind) = (&one.repository, &one.tag, finding.kind);
            printer.line(&format!("{repository}:{tag}: {kind}: {finding}"))?;
        }
    }
    Ok(Ending::of(looked.iter().all(|one| one.findings.is_empty())))
}

/// Looks at one thing after the other.
struct Looking<'a> {
    registry: &'a dyn Registry,
    keys: KeySet,
    /// Whether images are read.
    images: bool,
}

impl Looking<'_> {
    /// Looks at a revision of a profile, and at its files.
    async fn at(&self, repository: &Repository, tag: &Tag) -> Got<Looked> {
        let mut looked = Looked {
            repository: repository.to_string(),
            tag: tag.to_string(),
            digest: None,
            key: None,
            findings: Vec::new(),
        };
        let found = &mut looked.findings;
        let Some(manifest) = own(self.manifest(repository, tag).await, found)? else {
            return Ok(looked);
        };
        looked.digest = Some(manifest.digest);
        looked.key = self.judge(repository, &manifest, tag, found).await?;
        let read = own(self.profile(repository, &manifest).await, found)?;
        let read = match read {
            Some(Ok(read)) => read,
            Some(Err(finding)) => {
                found.push(finding);
                return Ok(looked);
            }
            None => return Ok(looked),
        };
        let files = files_of(repository)?;
        let at = At::Tag(tag.clone());
        // Files need not be there: they may lie beside the registry.
        let there = match self.registry.manifest(&files, &at).await {
            Err(RegistryError::Denied) => None,
            there => own(there, found)?.flatten(),
        };
        if let Some(there) = there {
            self.judge(&files, &there, tag, found).await?;
            for layer in &there.layers {
                let mut of_file = Vec::new();
                let checked = self.file(&files, layer, &read).await;
                let wrong = own(checked, &mut of_file)?.flatten();
                of_file.extend(wrong);
                found.extend(of_file.into_iter().map(|finding| Finding {
                    field: layer.title.clone(),
                    ..finding
                }));
            }
        }
        Ok(looked)
    }

    async fn manifest(&self, repository: &Repository, tag: &Tag) -> Got<Manifest> {
        let manifest = self
            .registry
            .manifest(repository, &At::Tag(tag.clone()))
            .await?;
        manifest.ok_or(RegistryError::NotThere)
    }

    /// The profile of a manifest, or what is wrong with it.
    async fn profile(
        &self,
        repository: &Repository,
        manifest: &Manifest,
    ) -> Got<Result<Profile, Finding>> {
        let Some(layer) = manifest.layers.first() else {
            let finding = Finding::new(FindingKind::NotAProfile, "it has no layer");
            return Ok(Err(finding));
        };
        let Some(title) = &layer.title else {
            return Ok(Err(Finding::new(
                FindingKind::NoTitle,
                "its layer has no title",
            )));
        };
        let limit = Limits::default().profile;
        let yaml = self.registry.small(repository, &layer.blob, limit).await?;
        Ok(profile(title, &yaml))
    }

    /// Which key signed something. Says so if none did that counts.
    async fn judge(
        &self,
        repository: &Repository,
        manifest: &Manifest,
        tag: &Tag,
        found: &mut Vec<Finding>,
    ) -> Got<Option<String>> {
        if self.keys.is_empty() {
            return Ok(None);
        }
        let digest = &manifest.digest;
        let verdict = self
            .keys
            .judge(self.registry, repository, digest, tag.as_str());
        let (kind, why) = match verdict.await? {
            Verdict::Good(signature) => return Ok(Some(signature.key)),
            Verdict::Unsigned => (FindingKind::Unsigned, "nobody signed it".to_owned()),
            Verdict::Bad(why) => (FindingKind::BadSignature, why),
        };
        found.push(Finding::new(kind, format!("{repository}: {why}")));
        Ok(None)
    }

    /// What is wrong with a file of a profile.
    async fn file(&self, files: &Repository, layer: &Layer, of: &Profile) -> Got<Option<Finding>> {
        let limits = Limits::default();
        let title = layer.title.as_deref().unwrap_or_default();
        if title == title_of(&of.spec.image_url) {
            return self.image(files, &layer.blob, of).await;
        }
        if title == title_of(&of.manifest_url) {
            let content = self
                .registry
                .small(files, &layer.blob, limits.packages)
                .await?;
            return Ok(packages(&content).err());
        }
        let documents = [&of.spec.existing_cves_url, &of.spec.fixed_cves_url];
        if documents.iter().any(|url| title == title_of(url)) {
            let content = self.registry.small(files, &layer.blob, limits.cves).await?;
            return Ok(cves(&content, None).err());
        }
        self.whole(files, &layer.blob).await.map(|()| None)
    }

    async fn image(&self, files: &Repository, blob: &Blob, of: &Profile) -> Got<Option<Finding>> {
        match image_digest(&of.spec.sha256) {
            Some(said) if said != blob.digest => {
                let why = format!("the profile says {said}, and here is {}", blob.digest);
                Ok(Some(Finding::new(FindingKind::WrongDigest, why)))
            }
            _ if self.images => self.whole(files, blob).await.map(|()| None),
            _ => Ok(None),
        }
    }

    /// Reads the whole of something, which must be what it is called.
    async fn whole(&self, files: &Repository, blob: &Blob) -> Got<()> {
        let (mut hasher, mut length) = (Hasher::default(), 0);
        let mut pieces = self.registry.open(files, blob, 0).await?;
        while let Some(piece) = pieces.next().await {
            let piece = piece?;
            length += piece.len() as u64;
            if length > blob.size {
                return Err(RegistryError::TooLarge { limit: blob.size });
            }
            hasher.update(&piece);
        }
        let (said, found) = (blob.digest, hasher.finish());
        if said == found && length == blob.size {
            Ok(())
        } else {
            Err(RegistryError::WrongDigest { said, found })
        }
    }
}

/// What was got; none and a finding where something is wrong with the thing itself.
fn own<T>(got: Got<T>, found: &mut Vec<Finding>) -> Got<Option<T>> {
    match got {
        Ok(got) => Ok(Some(got)),
        Err(error) if error.class() == Class::Lasting => {
            found.push(finding_of(&error));
            Ok(None)
        }
        Err(error) => Err(error),
    }
}
