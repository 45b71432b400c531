//! The parts of hosts: objects in JSON arrays of the host's row, as the REST API renders them.

use super::{Column, Link, ResourceTable};

const fn part_table(
    rows: &'static str,
    columns: &'static [Column],
    links: &'static [Link],
) -> ResourceTable {
    ResourceTable {
        rows,
        joined: "",
        tenant: "@h.tenant_id = $1",
        id: "0::integer",
        labels: None,
        tally: None,
        columns,
        links,
        references: &[],
    }
}

pub const NIC: ResourceTable = part_table(
    "host_hardware @h CROSS JOIN LATERAL jsonb_array_elements(@h.nics) AS @ (e)",
    &[
        Column::new("device_name", "(@.e ->> 'deviceName')").nullable(),
        Column::new("pci_identifier", "(@.e ->> 'pciIdentifier')").nullable(),
        Column::new("mac_addr", "(@.e ->> 'macAddr')").nullable(),
        Column::new("sriov_enabled", "(@.e ->> 'sriovEnabled')::boolean").nullable(),
        Column::new("sriov_vfs_num", "(@.e ->> 'sriovVfsNum')::numeric").nullable(),
        Column::new("sriov_vfs_total", "(@.e ->> 'sriovVfsTotal')::numeric").nullable(),
        Column::new("mtu", "(@.e ->> 'mtu')::numeric").nullable(),
        Column::new(
            "link_state",
            "lower(replace(@.e -> 'linkState' ->> 'type', 'NETWORK_INTERFACE_LINK_STATE_', ''))",
        )
        .nullable(),
        Column::new("bmc_interface", "(@.e ->> 'bmcInterface')::boolean").nullable(),
    ],
    &[Link::through(
        "ipaddresses",
        "jsonb_array_elements(CASE WHEN jsonb_typeof(@.e -> 'ipaddresses') = 'array' \
         THEN @.e -> 'ipaddresses' ELSE '[]' END) AS # (e)",
        "TRUE",
    )],
);

pub const STORAGE: ResourceTable = part_table(
    "host_hardware @h CROSS JOIN LATERAL jsonb_array_elements(@h.storages) AS @ (e)",
    &[
        Column::new("wwid", "(@.e ->> 'wwid')").nullable(),
        Column::new("serial", "(@.e ->> 'serial')").nullable(),
        Column::new("vendor", "(@.e ->> 'vendor')").nullable(),
        Column::new("model", "(@.e ->> 'model')").nullable(),
        // JSON renders 64-bit numbers as text.
        Column::new("capacity_bytes", "(@.e ->> 'capacityBytes')::numeric").nullable(),
        Column::new("device_name", "(@.e ->> 'deviceName')").nullable(),
    ],
    &[],
);

pub const USB: ResourceTable = part_table(
    "host_hardware @h CROSS JOIN LATERAL jsonb_array_elements(@h.usbs) AS @ (e)",
    &[
        Column::new("id_vendor", "(@.e ->> 'idVendor')").nullable(),
        Column::new("id_product", "(@.e ->> 'idProduct')").nullable(),
        Column::new("bus", "(@.e ->> 'bus')::numeric").nullable(),
        Column::new("addr", "(@.e ->> 'addr')::numeric").nullable(),
        Column::new("class", "(@.e ->> 'class')").nullable(),
        Column::new("serial", "(@.e ->> 'serial')").nullable(),
        Column::new("device_name", "(@.e ->> 'deviceName')").nullable(),
    ],
    &[],
);

pub const GPU: ResourceTable = part_table(
    "host_hardware @h CROSS JOIN LATERAL jsonb_array_elements(@h.gpus) AS @ (e)",
    &[
        Column::new("pci_id", "(@.e ->> 'pciId')").nullable(),
        Column::new("product", "(@.e ->> 'product')").nullable(),
        Column::new("vendor", "(@.e ->> 'vendor')").nullable(),
        Column::new("description", "(@.e ->> 'description')").nullable(),
        Column::new("device_name", "(@.e ->> 'deviceName')").nullable(),
    ],
    &[],
);

/// An address is reached through its network interface, which has already been checked for the
/// project.
pub const IP_ADDRESS: ResourceTable = ResourceTable {
    tenant: "TRUE",
    ..part_table(
        "(SELECT NULL::jsonb AS e WHERE FALSE) AS @",
        &[
            Column::new("resource_id", "(@.e ->> 'resourceId')").nullable(),
            Column::new("address", "(@.e ->> 'address')").nullable(),
            Column::new("status", "lower(replace(@.e ->> 'status', 'IP_ADDRESS_STATUS_', ''))")
                .nullable(),
            Column::new("status_detail", "(@.e ->> 'statusDetail')").nullable(),
            Column::new(
                "config_method",
                "lower(replace(@.e ->> 'configMethod', 'IP_ADDRESS_CONFIG_METHOD_', ''))",
            )
            .nullable(),
        ],
        &[],
    )
};

/// A resource that never exists.
pub const NOTHING: ResourceTable = ResourceTable {
    tenant: "TRUE",
    ..part_table(
        "(SELECT NULL::text AS id WHERE FALSE) AS @",
        &[Column::new("resource_id", "@.id").nullable()],
        &[],
    )
};
