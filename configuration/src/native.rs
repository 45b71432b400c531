//! Reads and writes documents in YAML and JSON.
