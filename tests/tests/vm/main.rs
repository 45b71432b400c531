//! Machines that are emulated from the firmware on: a boot loader that counts, two slots, the real agent in releases that
//! come up or do not, and the real server that wants them. Whatever a release is, and whenever the power goes, the machine
//! comes to rest on the old one or on the new one, and the server's record says which.
//!
//! | variable | what it is |
//! | --- | --- |
//! | `EVENKEEL_VM` | `all` tells every story; else a sample of them is told |
//! | `EVENKEEL_VM_CUTS` | how many updates have the power cut, and how many trials in several boots in a row |
//! | `EVENKEEL_VM_REPLAYS` | how many disks are started that a power cut left |
//! | `EVENKEEL_VM_SEED` | in which instants |

mod again;
mod artefacts;
mod away;
mod boot_chain;
mod cuts;
mod fleet;
mod node;
mod releases;
mod replay;
mod sample;

/// The release that each machine begins with, in slot A.
const OLD: &str = "1.0";

/// The release that comes beside it.
const NEW: &str = "1.1";
