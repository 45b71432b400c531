//! Configuration documents on one machine: what `evenkeel-agent configuration` does, without the
//! command line.

mod contents;
mod document_change;
mod document_file;
mod image_paths;
mod program_queue;
mod progress;
mod secret_values;
mod state_binding;
mod store;
mod trusted_paths;

pub use self::contents::{Downloads, OperatorContents};
pub use self::document_change::DocumentChange;
pub use self::document_file::{DocumentError, DocumentFile, DocumentSource, EXIT_UNREADABLE};
pub use self::image_paths::check_image_paths;
pub use self::program_queue::run_with_programs;
pub use self::secret_values::{SecretFileError, SecretValues};
