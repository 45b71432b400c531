ALTER TABLE assignments
    DROP CONSTRAINT a_resumption_is_whole,
    DROP COLUMN resumed_at,
    DROP COLUMN resumed_by,
    DROP COLUMN resume_reason;
