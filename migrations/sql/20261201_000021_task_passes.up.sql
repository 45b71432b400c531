-- When a pass of a task began that one server does for all, so that the others do not repeat it at once. A row of each task, of
-- no tenant.
CREATE TABLE task_passes (
    task     text PRIMARY KEY CHECK (char_length(task) BETWEEN 1 AND 100),
    began_at timestamptz NOT NULL
);

ALTER TABLE task_passes ENABLE ROW LEVEL SECURITY;
ALTER TABLE task_passes FORCE ROW LEVEL SECURITY;
CREATE POLICY fleet ON task_passes USING ((SELECT current_setting('evenkeel.tenant', true)) = '*');
