-- Everything that is revoked, for the scope of no project: a process reads it twice a second, and one statement without a
-- transaction costs half as much as a transaction that sets its scope first.
CREATE FUNCTION read_revocations(OUT ids uuid[], OUT issuers text[], OUT subjects text[], OUT revoked_until timestamptz[])
LANGUAGE plpgsql AS $$
DECLARE
    outer_scope text := coalesce(current_setting('evenkeel.tenant', true), '');
BEGIN
    PERFORM set_config('evenkeel.tenant', '*', true);
    SELECT coalesce(array_agg(t.id), '{}') INTO ids FROM operator_tokens t WHERE t.revoked_at IS NOT NULL;
    SELECT coalesce(array_agg(s.issuer ORDER BY s.issuer, s.subject), '{}'),
           coalesce(array_agg(s.subject ORDER BY s.issuer, s.subject), '{}'),
           coalesce(array_agg(s.revoked_until ORDER BY s.issuer, s.subject), '{}')
    INTO issuers, subjects, revoked_until FROM revoked_subjects s;
    PERFORM set_config('evenkeel.tenant', outer_scope, true);
END
$$;
