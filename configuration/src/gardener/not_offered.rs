//! Fields of valid resources that the product does not offer.

use super::manifest::{Manifest, with_paths};
use crate::validation::FieldError;

/// The fields, in the order of the resource.
pub(super) fn find(manifest: &Manifest) -> Vec<FieldError> {
    let mut fields = Vec::new();
    let mut add = |is_present: bool, path: String, instead: &str| {
        if is_present {
            fields.push(FieldError::new(path, format!("not offered: {instead}")));
        }
    };
    if let Some(spec) = &manifest.spec {
        let cri = "write the files and units of the container runtime as files and units";
        add(spec.cri_config.is_some(), "spec.criConfig".to_owned(), cri);
        let update = "update the operating system with an update policy";
        add(spec.os_updates.is_some(), "spec.inPlaceUpdates".to_owned(), update);
        let provider = "the settings of a provider have no meaning without its extension";
        add(spec.provider_config.is_some(), "spec.providerConfig".to_owned(), provider);
        let reload = "the agent applies the files and units itself; remove the field";
        let is_present = spec.reload_config_file_path.is_some();
        add(is_present, "spec.reloadConfigFilePath".to_owned(), reload);
    }
    for (path, unit) in with_paths(manifest.units()) {
        let instead = "write the files below spec.files and their paths in filePaths";
        add(unit.files.is_some(), format!("{path}.files"), instead);
    }
    for (path, file) in with_paths(manifest.files()) {
        let image = file.content.as_ref().is_some_and(|content| content.image_ref.is_some());
        let instead = "a file cannot come from a container image; write inline or secretRef";
        add(image, format!("{path}.content.imageRef"), instead);
        let instead = "a document is for every host that it is assigned to; assign another \
                       document to the host";
        add(file.host_name.is_some(), format!("{path}.hostName"), instead);
    }
    if let Some(status) = &manifest.status {
        let instead = "update the operating system with an update policy";
        add(status.os_updates.is_some(), "status.inPlaceUpdates".to_owned(), instead);
        let instead = "the agent applies the files and units itself; remove the field";
        add(status.command.is_some(), "status.command".to_owned(), instead);
        add(status.units.is_some(), "status.units".to_owned(), instead);
        add(status.files.is_some(), "status.files".to_owned(), instead);
    }
    fields
}
