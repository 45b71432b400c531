//! Machines that are emulated from the firmware on, with a boot loader that counts tries, two slots,
//! the real agent in good and bad releases, and the real server. With any release and any power cut,
//! the machine ends on the old or the new release, and the server records which. The boot loader is
//! systemd-boot, or in `rauc` GRUB.
//!
//! | variable | meaning |
//! | --- | --- |
//! | `EVENKEEL_VM` | `all` runs all tests; otherwise a sample runs |
//! | `EVENKEEL_VM_CUTS` | number of updates with power cuts, and of trials with power cuts in successive boots |
//! | `EVENKEEL_VM_REPLAYS` | number of disks after a power cut that are started |
//! | `EVENKEEL_VM_SEED` | seed of the random instants |

mod again;
mod artefacts;
mod away;
mod boot_chain;
mod cuts;
mod fleet;
mod node;
mod rauc;
mod releases;
mod replay;
mod sample;

/// Version of the release that each machine runs first, in slot A.
const OLD_VERSION: &str = "1.0";

/// Version of the release in the other slot.
const NEW_VERSION: &str = "1.1";
