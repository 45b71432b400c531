//! Reads `OperatingSystemConfig` of Gardener.
