//! Fields of valid resources that the product does not offer.

use super::manifest::{Manifest, with_paths};
use crate::validation::ErrorList;

/// Adds the fields, in the order of the resource.
pub(super) fn add(manifest: &Manifest, errors: &mut ErrorList) {
    let mut add = |is_present: bool, path: &str, instead: &str| {
        if is_present {
            errors.add_not_offered(path, format!("not offered: {instead}"));
        }
    };
    let update = "update the operating system with an update policy";
    if let Some(spec) = &manifest.spec {
        let cri = "write the files and units of the container runtime as files and units";
        add(spec.cri_config.is_some(), "spec.criConfig", cri);
        add(spec.old_cri.is_some(), "spec.cri", cri);
        add(spec.has_os_updates, "spec.inPlaceUpdates", update);
        let provider = "the settings of a provider have no meaning without its extension";
        add(spec.has_provider_config, "spec.providerConfig", provider);
    }
    for (path, unit) in with_paths(manifest.units()) {
        let instead = "write the files below spec.files and their paths in filePaths";
        add(unit.has_files, &format!("{path}.files"), instead);
    }
    for (path, file) in with_paths(manifest.files()) {
        let image = file.content.as_ref().is_some_and(|content| content.image_ref.is_some());
        let instead = "a file cannot come from a container image; write inline or secretRef";
        add(image, &format!("{path}.content.imageRef"), instead);
        let instead = "a document is for every host that it is assigned to; assign another \
                       document to the host";
        add(file.host_name.is_some(), &format!("{path}.hostName"), instead);
    }
    if let Some(status) = &manifest.status {
        add(status.has_os_updates, "status.inPlaceUpdates", update);
    }
}
