-- part: transaction
-- Further facts of nodes, for lists and filters of hosts. Null as long as the node has not reported them; the next report of
-- facts sets them.
ALTER TABLE node_states
    -- When the kernel started, by the node's clock.
    ADD COLUMN boot_time          timestamptz,
    -- The first packages that require a reboot.
    ADD COLUMN reboot_required_by text[];
-- part: transaction
ALTER TABLE host_hardware ADD COLUMN product_vendor text NOT NULL DEFAULT '';
