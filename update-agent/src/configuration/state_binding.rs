//! Binds a state directory to the image that it belongs to. With the state of another machine, a
//! change would remove files that it has not created.

use std::fs;
use std::path::PathBuf;

use uuid::Uuid;

use super::store::StoreError;
use crate::durable;
use crate::paths::AgentPaths;

/// Name of the file with the identifier of the image, in the agent's folder of the image.
const IMAGE_MARK: &str = "configuration-state";

/// Name of the file with the same identifier, in the folder with the state.
const STATE_MARK: &str = "image";

/// Checks that the state belongs to the machine, and binds a new state directory outside of an image
/// to this image. `is_used` says whether the state directory has a state.
///
/// # Errors
/// The state belongs to another machine, or a file cannot be read or written.
pub fn bind_state(paths: &AgentPaths, is_used: bool) -> Result<(), StoreError> {
    let state_mark = paths.configuration().join(STATE_MARK);
    let bound = durable::read_file(&state_mark)?;
    let of_another_machine = || StoreError::OfAnotherMachine { folder: paths.state().to_owned() };
    if paths.is_own_system() || is_in_image(paths) {
        // A system may be replaced while its state stays, so it has no identifier of its own.
        return if bound.is_none() { Ok(()) } else { Err(of_another_machine()) };
    }
    let image_mark = paths.apt_folder().join(IMAGE_MARK);
    let image = durable::read_file(&image_mark)?;
    match (image, bound) {
        (Some(image), Some(bound)) if image == bound => Ok(()),
        (_, Some(_)) => Err(of_another_machine()),
        (_, None) if is_used => Err(of_another_machine()),
        (image, None) => {
            let image = if let Some(image) = image {
                image
            } else {
                let image = Uuid::new_v4().simple().to_string().into_bytes();
                durable::replace_file(&image_mark, &image, 0o644)?;
                image
            };
            Ok(durable::replace_file(&state_mark, &image, 0o600)?)
        }
    }
}

/// Whether the state directory is a part of the image.
fn is_in_image(paths: &AgentPaths) -> bool {
    let canonical: fn(&std::path::Path) -> Option<PathBuf> = |path| fs::canonicalize(path).ok();
    canonical(paths.state()).is_some_and(|state| state.starts_with(paths.root()))
}
