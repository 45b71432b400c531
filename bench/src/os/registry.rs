//! A registry in this process, with profiles and the image of one of them.

use bytes::Bytes;
use evenkeel_registry::copy::FILES_TYPE;
use evenkeel_registry::testing::SmallRegistry;
use evenkeel_registry::{Digest, Layer, Manifest};

/// What the server calls the registry.
pub const NAME: &str = "bench";

/// Where the profiles lie in the registry.
const PREFIX: &str = "os/";

/// What is in the registry.
#[derive(Debug)]
pub struct Published {
    registry: SmallRegistry,
    profiles: u32,
    revisions: u32,
    image: Bytes,
}

impl Published {
    /// Publishes so many revisions of so many profiles. The last revision of the first one has an image.
    pub fn new(profiles: u32, revisions: u32, image_mib: u32) -> Self {
        let registry = SmallRegistry::start();
        let image = image(image_mib);
        for profile in 0..profiles {
            for revision in 0..revisions {
                let is_last = (profile, revision + 1) == (0, revisions);
                let digest = if is_last {
                    Digest::of(&image)
                } else {
                    Digest::of(format!("{profile}/{revision}").as_bytes())
                };
                let repository = format!("{PREFIX}{}", name(profile));
                let (tag, file) = (tag(revision), format!("{}.yaml", name(profile)));
                let yaml = yaml(profile, revision, digest);
                registry.put_profile(&repository, &tag, &file, &yaml);
                if is_last {
                    let files = format!("{repository}/files");
                    let blob = registry.put_blob(&files, image.clone());
                    let path = path(profile, revision);
                    let layer = Layer::file(blob, "application/octet-stream", &path);
                    let manifest = Manifest::artifact(FILES_TYPE, vec![layer]);
                    registry.put_manifest(&files, &tag, &manifest);
                }
            }
        }
        Self {
            registry,
            profiles,
            revisions,
            image,
        }
    }

    /// The lines of a server's configuration that let it take all of them.
    pub fn settings(&self) -> String {
        let profiles: Vec<_> = (0..self.profiles).map(name).collect();
        format!(
            "[os_resource_manager.default]\nregistry = {NAME:?}\nrevision = \"~1.0\"\nenabled = {profiles:?}\n\
             [os_resource_manager.registries.{NAME}]\naddress = \"http://{}\"\nplain_http = true\n\
             prefix = {PREFIX:?}\nproxy = \"none\"\ntrust = \"off\"\n\
             [files]\nlisten = \"127.0.0.1:0\"\nauth = \"open\"\n",
            self.registry.host()
        )
    }

    /// How many artefacts there are with profiles.
    pub const fn artefacts(&self) -> u32 {
        self.profiles * self.revisions
    }

    /// How often it was asked since this was said last.
    pub fn asked(&self) -> usize {
        let asked = self.registry.requests().len();
        self.registry.forget_requests();
        asked
    }

    /// The image.
    pub const fn image(&self) -> &Bytes {
        &self.image
    }
}

fn name(profile: u32) -> String {
    format!("edge-{profile:03}")
}

fn tag(revision: u32) -> String {
    format!("1.0.{revision}")
}

fn path(profile: u32, revision: u32) -> String {
    format!("files/{}-3.0.{revision}.raw.gz", name(profile))
}

fn yaml(profile: u32, revision: u32, image: Digest) -> String {
    format!(
        "appVersion: apps/v1\nmetadata:\n  release: {}\nspec:\n  name: {name} 3.0.{revision}\n  \
         type: OS_TYPE_IMMUTABLE\n  provider: OS_PROVIDER_KIND_INFRA\n  architecture: x86_64\n  \
         profileName: {name}\n  osImageUrl: {}\n  osImageVersion: 3.0.{revision}\n  osImageSha256: {}\n  \
         securityFeature: SECURITY_FEATURE_NONE\n",
        tag(revision),
        path(profile, revision),
        image.hex(),
        name = name(profile),
    )
}

/// Bytes that do not repeat themselves soon.
fn image(mib: u32) -> Bytes {
    let length = usize::try_from(mib).unwrap_or(1) << 20;
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes.into()
}
