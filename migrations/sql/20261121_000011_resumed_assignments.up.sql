-- Who let an assignment go on that had stopped after failures, when and why. Forgotten when the policy is assigned anew.
ALTER TABLE assignments
    ADD COLUMN resumed_at timestamptz,
    ADD COLUMN resumed_by text,
    ADD COLUMN resume_reason text,
    ADD CONSTRAINT a_resumption_is_whole CHECK (num_nulls(resumed_at, resumed_by, resume_reason) IN (0, 3));
