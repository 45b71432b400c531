//! A registry in this process, with profiles and one image.

use bytes::Bytes;
use evenkeel_registry::copy::FILES_TYPE;
use evenkeel_registry::testing::TestRegistry;
use evenkeel_registry::{Digest, Layer, Manifest};

/// Name of the registry in the configuration of the server.
pub const REGISTRY_NAME: &str = "bench";

/// Prefix of the repositories with profiles.
const REPOSITORY_PREFIX: &str = "os/";

/// The registry and its content.
#[derive(Debug)]
pub struct PublishedRegistry {
    registry: TestRegistry,
    profiles: u32,
    revisions: u32,
    image: Bytes,
}

impl PublishedRegistry {
    /// Publishes `revisions` revisions of each of `profiles` profiles. The last revision of the
    /// first profile has an image.
    pub fn new(profiles: u32, revisions: u32, image_mib: u32) -> Self {
        let registry = TestRegistry::start();
        let image = random_image(image_mib);
        for profile in 0..profiles {
            for revision in 0..revisions {
                let is_last = (profile, revision + 1) == (0, revisions);
                let digest = if is_last {
                    Digest::compute(&image)
                } else {
                    Digest::compute(format!("{profile}/{revision}").as_bytes())
                };
                let repository = format!("{REPOSITORY_PREFIX}{}", profile_name(profile));
                let (tag, file) =
                    (revision_tag(revision), format!("{}.yaml", profile_name(profile)));
                let yaml = profile_yaml(profile, revision, digest);
                registry.put_profile(&repository, &tag, &file, &yaml);
                if is_last {
                    let files = format!("{repository}/files");
                    let blob = registry.put_blob(&files, image.clone());
                    let path = image_path(profile, revision);
                    let layer = Layer::file(blob, "application/octet-stream", &path);
                    let manifest = Manifest::artifact(FILES_TYPE, vec![layer]);
                    registry.put_manifest(&files, &tag, &manifest);
                }
            }
        }
        Self { registry, profiles, revisions, image }
    }

    /// Settings with which the server selects all of the profiles.
    pub fn settings(&self) -> String {
        let profiles: Vec<_> = (0..self.profiles).map(profile_name).collect();
        format!(
            "[os_resource_manager.default]\nregistry = {REGISTRY_NAME:?}\nrevision = \"~1.0\"\nenabled = {profiles:?}\n\
             [os_resource_manager.registries.{REGISTRY_NAME}]\naddress = \"http://{}\"\nplain_http = true\n\
             prefix = {REPOSITORY_PREFIX:?}\nproxy = \"none\"\ntrust = \"off\"\n\
             [files]\nlisten = \"127.0.0.1:0\"\nauth = \"open\"\n",
            self.registry.host()
        )
    }

    /// Number of published profile artefacts.
    pub const fn artefact_count(&self) -> u32 {
        self.profiles * self.revisions
    }

    /// Number of requests to the registry since the last call.
    pub fn take_request_count(&self) -> usize {
        let count = self.registry.requests().len();
        self.registry.forget_requests();
        count
    }

    /// The image of the first profile.
    pub const fn image(&self) -> &Bytes {
        &self.image
    }
}

fn profile_name(profile: u32) -> String {
    format!("edge-{profile:03}")
}

fn revision_tag(revision: u32) -> String {
    format!("1.0.{revision}")
}

fn image_path(profile: u32, revision: u32) -> String {
    format!("files/{}-3.0.{revision}.raw.gz", profile_name(profile))
}

fn profile_yaml(profile: u32, revision: u32, image: Digest) -> String {
    format!(
        "appVersion: apps/v1\nmetadata:\n  release: {}\nspec:\n  name: {name} 3.0.{revision}\n  \
         type: OS_TYPE_IMMUTABLE\n  provider: OS_PROVIDER_KIND_INFRA\n  architecture: x86_64\n  \
         profileName: {name}\n  osImageUrl: {}\n  osImageVersion: 3.0.{revision}\n  osImageSha256: {}\n  \
         securityFeature: SECURITY_FEATURE_NONE\n",
        revision_tag(revision),
        image_path(profile, revision),
        image.hex(),
        name = profile_name(profile),
    )
}

/// Pseudo-random bytes, which cannot be compressed.
fn random_image(mib: u32) -> Bytes {
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
