-- A server of the release before reads no row with a word that it does not know.
UPDATE node_states SET conditions = (
    SELECT coalesce(jsonb_agg(one ORDER BY place), '[]')
    FROM jsonb_array_elements(conditions) WITH ORDINALITY AS held (one, place)
    WHERE one ->> 'kind' <> 'agent_trouble'
) WHERE conditions @> '[{"kind": "agent_trouble"}]';
UPDATE update_runs SET failure_kind = 'unspecified' WHERE failure_kind = 'limits';
ALTER TABLE node_states DROP COLUMN waiting;
ALTER TABLE update_runs DROP COLUMN account;
