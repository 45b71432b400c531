//! Machines that are emulated from the firmware on: a boot loader that counts, two slots, and releases that come up or
//! do not. Whatever a release is, and whenever the power goes, the machine rests on the old one or on the new one.
//!
//! | variable | what it is |
//! | --- | --- |
//! | `EVENKEEL_VM` | `all` tells every story; else a sample of them is told |
//! | `EVENKEEL_VM_CUTS` | how many times the power is cut in several boots in a row |
//! | `EVENKEEL_VM_SEED` | in which instants |

mod boot_chain;
mod esp;
mod machine;
mod monitor;
mod serial;
mod tools;
mod workshop;
