-- What machines are made of, letter by letter as the REST API tells it: nobody reads and writes it anew on the way to an
-- answer. Filters go on looking into the lists. The text follows from them, whoever writes them: a server of the last release
-- may still do so beside this one. All of it is one column, for the change log is told of no more than one to leave out.

-- JSON as the API writes it: without spaces, members in the order of its types, instants to the millisecond. The functions
-- that the column calls keep the path of schemas, for whoever restores a dump has none.

CREATE FUNCTION told_time(kept jsonb) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT replace(regexp_replace(kept::text, '(\.\d{3})\d+', '\1'), '.000Z', 'Z')
$$;

CREATE FUNCTION told_times(kept jsonb) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE jsonb_typeof(kept) WHEN 'object' THEN '{"createdAt":' || told_time(kept -> 'createdAt')
        || ',"updatedAt":' || told_time(kept -> 'updatedAt') || '}' ELSE 'null' END
$$;

CREATE FUNCTION told_storages(kept jsonb) RETURNS text LANGUAGE plpgsql IMMUTABLE SET search_path FROM CURRENT AS $$
BEGIN
    RETURN (
        SELECT '[' || coalesce(string_agg('{"wwid":' || (e -> 'wwid')::text
            || ',"serial":' || (e -> 'serial')::text
            || ',"vendor":' || (e -> 'vendor')::text
            || ',"model":' || (e -> 'model')::text
            || ',"capacityBytes":' || (e -> 'capacityBytes')::text
            || ',"deviceName":' || (e -> 'deviceName')::text
            || ',"timestamps":' || told_times(e -> 'timestamps') || '}', ',' ORDER BY place), '') || ']'
        FROM jsonb_array_elements(kept) WITH ORDINALITY AS parts (e, place)
    );
END
$$;

CREATE FUNCTION told_addresses(kept jsonb) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN (
        SELECT '[' || coalesce(string_agg('{"resourceId":' || CASE jsonb_typeof(e -> 'resourceId')
                WHEN 'string' THEN (e -> 'resourceId')::text ELSE '""' END
            || ',"address":' || (e -> 'address')::text
            || ',"status":' || (e -> 'status')::text
            || ',"statusDetail":' || (e -> 'statusDetail')::text
            || ',"configMethod":' || (e -> 'configMethod')::text
            || ',"timestamps":' || told_times(e -> 'timestamps') || '}', ',' ORDER BY place), '') || ']'
        FROM jsonb_array_elements(kept) WITH ORDINALITY AS parts (e, place)
    );
END
$$;

CREATE FUNCTION told_nics(kept jsonb) RETURNS text LANGUAGE plpgsql IMMUTABLE SET search_path FROM CURRENT AS $$
BEGIN
    RETURN (
        SELECT '[' || coalesce(string_agg('{"deviceName":' || (e -> 'deviceName')::text
            || ',"pciIdentifier":' || (e -> 'pciIdentifier')::text
            || ',"macAddr":' || (e -> 'macAddr')::text
            || ',"sriovEnabled":' || (e -> 'sriovEnabled')::text
            || ',"sriovVfsNum":' || (e -> 'sriovVfsNum')::text
            || ',"sriovVfsTotal":' || (e -> 'sriovVfsTotal')::text
            || ',"mtu":' || (e -> 'mtu')::text
            || ',"linkState":{"type":' || (e -> 'linkState' -> 'type')::text
            || ',"timestamps":' || told_times(e -> 'linkState' -> 'timestamps')
            || '},"bmcInterface":' || (e -> 'bmcInterface')::text
            || ',"ipaddresses":' || told_addresses(e -> 'ipaddresses')
            || ',"timestamps":' || told_times(e -> 'timestamps') || '}', ',' ORDER BY place), '') || ']'
        FROM jsonb_array_elements(kept) WITH ORDINALITY AS parts (e, place)
    );
END
$$;

CREATE FUNCTION told_usbs(kept jsonb) RETURNS text LANGUAGE plpgsql IMMUTABLE SET search_path FROM CURRENT AS $$
BEGIN
    RETURN (
        SELECT '[' || coalesce(string_agg('{"idVendor":' || (e -> 'idVendor')::text
            || ',"idProduct":' || (e -> 'idProduct')::text
            || ',"bus":' || (e -> 'bus')::text
            || ',"addr":' || (e -> 'addr')::text
            || ',"class":' || (e -> 'class')::text
            || ',"serial":' || (e -> 'serial')::text
            || ',"deviceName":' || (e -> 'deviceName')::text
            || ',"timestamps":' || told_times(e -> 'timestamps') || '}', ',' ORDER BY place), '') || ']'
        FROM jsonb_array_elements(kept) WITH ORDINALITY AS parts (e, place)
    );
END
$$;

CREATE FUNCTION told_texts(kept jsonb) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN (
        SELECT '[' || coalesce(string_agg(e::text, ',' ORDER BY place), '') || ']'
        FROM jsonb_array_elements(kept) WITH ORDINALITY AS parts (e, place)
    );
END
$$;

CREATE FUNCTION told_gpus(kept jsonb) RETURNS text LANGUAGE plpgsql IMMUTABLE SET search_path FROM CURRENT AS $$
BEGIN
    RETURN (
        SELECT '[' || coalesce(string_agg('{"pciId":' || (e -> 'pciId')::text
            || ',"product":' || (e -> 'product')::text
            || ',"vendor":' || (e -> 'vendor')::text
            || ',"description":' || (e -> 'description')::text
            || ',"deviceName":' || (e -> 'deviceName')::text
            || ',"capabilities":' || told_texts(e -> 'capabilities')
            || ',"timestamps":' || told_times(e -> 'timestamps') || '}', ',' ORDER BY place), '') || ']'
        FROM jsonb_array_elements(kept) WITH ORDINALITY AS parts (e, place)
    );
END
$$;

-- The change log does not repeat it.
DROP TRIGGER record_change ON host_hardware;
ALTER TABLE host_hardware ADD COLUMN told text COMPRESSION lz4 NOT NULL GENERATED ALWAYS AS (
    '{"storages":' || told_storages(storages) || ',"nics":' || told_nics(nics) || ',"usbs":' || told_usbs(usbs)
    || ',"gpus":' || told_gpus(gpus) || '}'
) STORED;
CREATE TRIGGER record_change AFTER INSERT OR UPDATE OR DELETE ON host_hardware
    FOR EACH ROW EXECUTE FUNCTION record_change('host_hardware', 'host_id', 'told');
