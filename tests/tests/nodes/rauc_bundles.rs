//! Bundles for a Debian root whose two slots are files, and the server's catalogue entries for
//! them.

use std::path::Path;

use evenkeel_tests::lab::{Fleet, Node, Web};
use serde_json::json;

/// Packages that a node needs to install bundles and to make them.
pub const RAUC_PACKAGES: &[&str] =
    &["rauc", "rauc-service", "squashfs-tools", "openssl", "e2fsprogs", "mount"];

/// Folder of the bundles on the node.
pub const BUNDLES: &str = "srv/bundles";

/// Image of the bundle that was made last.
pub const LAST_IMAGE: &str = "/srv/build/bundle/rootfs.img";

/// Configuration of RAUC for two slots in `/srv/slots`. `/usr/lib/test-backend` controls the boot
/// loader.
pub const SYSTEM_CONF: &str = "[system]
compatible=evenkeel-test
bootloader=custom
statusfile=/srv/rauc.status
activate-installed=false
[keyring]
path=/srv/keys/good.pem
[handlers]
bootloader-custom-backend=/usr/lib/test-backend
[slot.rootfs.0]
device=/srv/slots/rootfs.0
type=raw
bootname=A
[slot.rootfs.1]
device=/srv/slots/rootfs.1
type=raw
bootname=B
";

/// Writes a file on a node.
pub fn write_file(node: &Node, path: &str, content: &str) {
    node.sh(&format!("mkdir -p \"$(dirname {path})\"; cat > {path} << 'END'\n{content}END\n"));
}

/// Makes a key of this name that signs bundles. RAUC trusts only the key `good`.
pub fn make_key(node: &Node, key: &str) {
    node.sh(&format!(
        "mkdir -p /srv/keys
         openssl req -x509 -newkey rsa:2048 -nodes -days 3650 -subj /CN={key} -keyout /srv/keys/{key}.key \
         -out /srv/keys/{key}.pem"
    ));
}

/// Makes the bundle of a version of a profile, signed with a key. Its image contains noise of this
/// size.
pub fn make_bundle(node: &Node, profile: &str, version: &str, key: &str, noise_mib: u32) {
    node.sh(&format!(
        "rm -rf /srv/build
         mkdir -p /{BUNDLES} /srv/build/root/etc /srv/build/bundle
         cd /srv/build
         grep -v '^IMAGE_' /usr/lib/os-release > root/etc/os-release
         printf 'IMAGE_ID={profile}\\nIMAGE_VERSION={version}\\n' >> root/etc/os-release
         head -c {noise_mib}M /dev/urandom > root/noise
         mksquashfs root bundle/rootfs.img -quiet -no-progress
         printf '[update]\\ncompatible=evenkeel-test\\nversion={version}\\n[image.rootfs]\\nfilename=rootfs.img\\n' \
           > bundle/manifest.raucm
         rauc --cert=/srv/keys/{key}.pem --key=/srv/keys/{key}.key bundle bundle /{BUNDLES}/{version}.raucb"
    ));
}

/// The catalogue entries of the bundles, and the web server that has them.
pub struct Bundles<'a> {
    fleet: &'a Fleet,
    /// A fleet has one image for each version of a profile.
    profile: &'a str,
    web: Web,
}

impl<'a> Bundles<'a> {
    pub fn serve(fleet: &'a Fleet, profile: &'a str, folder: &Path) -> Self {
        Self { fleet, profile, web: Web::serve(folder) }
    }

    /// Adds a version to the catalogue. Returns its ID.
    pub fn publish(&self, node: &Node, version: &str) -> String {
        let digest = node.sh(&format!("sha256sum /{BUNDLES}/{version}.raucb | cut -d ' ' -f 1"));
        let created = self.fleet.rest.post(
            "compute/os",
            &json!({
                "name": format!("{} {version}", self.profile),
                "osType": "OS_TYPE_IMMUTABLE",
                "osProvider": "OS_PROVIDER_KIND_INFRA",
                "securityFeature": "SECURITY_FEATURE_NONE",
                "architecture": std::env::consts::ARCH,
                "profileName": self.profile,
                "imageId": version,
                "sha256": digest.trim(),
                "imageUrl": format!("http://{}/{version}.raucb", self.web.address()),
            }),
        );
        created["resourceId"].as_str().expect("an id").to_owned()
    }
}
