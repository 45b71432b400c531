//! Canonical JSON of a document, and its digest.
