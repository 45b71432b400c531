ALTER TABLE update_runs DROP COLUMN granted_kind, DROP COLUMN granted_id, DROP COLUMN packages_digest;
DROP INDEX update_runs_ended;
ALTER TABLE node_states
    ADD COLUMN sample_kind text,
    ADD COLUMN sample_detail_digest text,
    ADD COLUMN delivered_start_at timestamptz,
    ADD COLUMN delivered_end_at timestamptz,
    ADD COLUMN delivered_policy_id integer,
    ADD COLUMN delivery_cleared_at timestamptz,
    ADD CONSTRAINT sample_is_whole CHECK (num_nulls(sample_kind, sample_detail_digest) IN (0, 2)),
    ADD CONSTRAINT delivery_is_whole CHECK (num_nulls(delivered_start_at, delivered_end_at) IN (0, 2));
UPDATE node_states SET
    sample_kind = sample ->> 'kind',
    sample_detail_digest = sample ->> 'detail_digest',
    delivered_start_at = (delivered -> 'single' ->> 0)::timestamptz,
    delivered_end_at = (delivered -> 'single' ->> 1)::timestamptz,
    delivered_policy_id = ('x' || right(delivered ->> 'policy', 8))::bit(32)::integer,
    delivery_cleared_at = (delivered ->> 'cleared_at')::timestamptz;
ALTER TABLE node_states
    DROP COLUMN sample,
    DROP COLUMN delivered,
    DROP COLUMN conditions,
    DROP COLUMN previous_boot_id,
    DROP COLUMN packages_digest,
    DROP COLUMN booted_profile,
    DROP COLUMN booted_image;
DROP TABLE contents, brake_slots;
