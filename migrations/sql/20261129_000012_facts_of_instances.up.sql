-- Summary of what a node reports about itself, for lists and filters. Null as long as the node has not reported it; the
-- next report of facts sets it.
ALTER TABLE node_states
    ADD COLUMN kernel_release             text,
    ADD COLUMN reboot_required            boolean,
    ADD COLUMN package_lists_refreshed_at timestamptz,
    -- Why the package lists are not current; empty if the last refresh succeeded.
    ADD COLUMN package_lists_error        text,
    ADD COLUMN security_updates           integer,
    ADD COLUMN held_back_updates          integer,
    ADD COLUMN stale_services             integer;
