//! Reads and writes the literal `<Configuration>` of Bcfg2.
