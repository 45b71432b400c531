//! Rows of `host_hardware`. The column `parts_json` is generated from the lists and is not written.

use evenkeel_domain::hardware::{Gpu, Nic, Storage, Usb};
use sea_orm::entity::prelude::*;

use crate::rows::JsonColumn;

table! {
    "host_hardware";
    pub struct Model {
        #[sea_orm(primary_key, auto_increment = false)]
        pub host_id: i32,
        pub serial_number: String,
        pub memory_bytes: i64,
        pub cpu_model: String,
        pub cpu_capabilities: String,
        pub cpu_architecture: String,
        pub cpu_topology: String,
        pub cpu_sockets: i64,
        pub cpu_cores: i64,
        pub cpu_threads: i64,
        pub product_name: String,
        pub product_vendor: String,
        pub bios_version: String,
        pub bios_release_date: String,
        pub bios_vendor: String,
        pub bmc_kind: String,
        pub bmc_ip: String,
        pub storages: JsonColumn<Vec<Storage>>,
        pub nics: JsonColumn<Vec<Nic>>,
        pub usbs: JsonColumn<Vec<Usb>>,
        pub gpus: JsonColumn<Vec<Gpu>>,
        pub digest: Vec<u8>,
        pub created_at: DateTimeUtc,
        pub updated_at: DateTimeUtc,
    }
}
