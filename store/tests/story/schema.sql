-- The schema as text: one line per sequence, table, column, constraint, index, trigger, policy, comment and grant, and the
-- definition of each function.
--
-- Columns are sorted by name, because no query depends on their order. Indexes keep the order of their creation: of two
-- that look equally good, Postgres uses the newer one (docs/adr/0023).
SELECT line FROM (
    SELECT 'sequences' AS part, s.sequencename::text AS owner, '' AS name,
        format('sequence %s %s from %s to %s by %s%s', s.sequencename, s.data_type, s.start_value, s.max_value, s.increment_by,
            CASE WHEN s.cycle THEN ' cycle' ELSE '' END) AS line
    FROM pg_sequences s WHERE s.schemaname = 'public'
    UNION ALL
    SELECT 'tables', c.relname, '1',
        format('%stable %s%s%s%s', E'\n', c.relname, ' (' || array_to_string(c.reloptions, ', ') || ')',
            CASE WHEN c.relrowsecurity THEN ' row security' END, CASE WHEN c.relforcerowsecurity THEN ' forced' END)
    FROM pg_class c WHERE c.relkind IN ('r', 'p', 'v', 'm') AND c.relnamespace = 'public'::regnamespace
    UNION ALL
    SELECT 'tables', c.relname, '2 ' || a.attname,
        format('  column %s %s%s%s%s%s%s', a.attname, format_type(a.atttypid, a.atttypmod),
            CASE WHEN a.attcollation <> t.typcollation THEN (SELECT ' collate ' || collname FROM pg_collation o WHERE o.oid = a.attcollation) END,
            CASE a.attcompression WHEN 'l' THEN ' lz4' WHEN 'p' THEN ' pglz' END,
            CASE WHEN a.attnotnull THEN ' not null' END,
            CASE a.attidentity WHEN 'a' THEN ' identity always' WHEN 'd' THEN ' identity' END,
            CASE WHEN a.attgenerated = 's' THEN ' generated ' WHEN a.atthasdef THEN ' default ' END
                || pg_get_expr(d.adbin, d.adrelid))
    FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid JOIN pg_type t ON t.oid = a.atttypid
    LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
    WHERE c.relkind IN ('r', 'p') AND c.relnamespace = 'public'::regnamespace AND a.attnum > 0 AND NOT a.attisdropped
    UNION ALL
    SELECT 'tables', c.relname, '3 ' || n.conname, format('  constraint %s %s', n.conname, pg_get_constraintdef(n.oid))
    FROM pg_constraint n JOIN pg_class c ON c.oid = n.conrelid
    WHERE c.relnamespace = 'public'::regnamespace AND n.contype IN ('c', 'f', 'p', 'u', 'x')
    UNION ALL
    SELECT 'tables', c.relname, '4 ' || lpad(i.indexrelid::text, 10, '0'), '  ' || pg_get_indexdef(i.indexrelid)
    FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid WHERE c.relnamespace = 'public'::regnamespace
    UNION ALL
    SELECT 'tables', c.relname, '5 ' || t.tgname,
        '  ' || pg_get_triggerdef(t.oid) || CASE WHEN t.tgenabled <> 'O' THEN ' disabled' ELSE '' END
    FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid WHERE c.relnamespace = 'public'::regnamespace AND NOT t.tgisinternal
    UNION ALL
    SELECT 'tables', p.tablename, '6 ' || p.policyname,
        format('  policy %s %s for %s to %s using %s%s', p.policyname, lower(p.permissive), lower(p.cmd), p.roles, p.qual,
            ' with check ' || p.with_check)
    FROM pg_policies p WHERE p.schemaname = 'public'
    UNION ALL
    SELECT 'functions', p.proname, p.oid::regprocedure::text, E'\n' || pg_get_functiondef(p.oid)
    FROM pg_proc p WHERE p.pronamespace = 'public'::regnamespace AND p.prokind <> 'a'
    UNION ALL
    SELECT 'grants', c.relname, '', format('grants on %s %s', c.relname, c.relacl)
    FROM pg_class c WHERE c.relnamespace = 'public'::regnamespace AND c.relacl IS NOT NULL
    UNION ALL
    SELECT 'grants', p.proname, '', format('grants on %s %s', p.proname, p.proacl)
    FROM pg_proc p WHERE p.pronamespace = 'public'::regnamespace AND p.proacl IS NOT NULL
    UNION ALL
    SELECT 'types', t.typname, '', format('type %s', t.typname)
    FROM pg_type t LEFT JOIN pg_class c ON c.oid = t.typrelid
    WHERE t.typnamespace = 'public'::regnamespace AND t.typelem = 0 AND coalesce(c.relkind, 'c') = 'c'
    UNION ALL
    SELECT 'comments', coalesce(c.relname, p.proname, s.objoid::text), s.objsubid::text,
        format('comment on %s %s', coalesce(c.relname, p.proname, s.objoid::text), s.description)
    FROM pg_description s LEFT JOIN pg_class c ON s.classoid = 'pg_class'::regclass AND c.oid = s.objoid
    LEFT JOIN pg_proc p ON s.classoid = 'pg_proc'::regclass AND p.oid = s.objoid
    WHERE 'public'::regnamespace IN (c.relnamespace, p.pronamespace)
) parts
WHERE owner <> 'seaql_migrations'
ORDER BY array_position(ARRAY['types', 'sequences', 'tables', 'functions', 'grants', 'comments'], part), owner COLLATE "C", name COLLATE "C"
