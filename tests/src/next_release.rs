//! The release after this one in tests of upgrades. The program `evenkeeld-next` stands for it: the same server with another
//! version and one more step of the schema.

use evenkeel_store::testing::{NextRelease, Step};

/// The next release.
pub const NEXT_RELEASE: NextRelease = NextRelease { version: "99.0.0", step: STEP };

/// A step that changes each row of the largest table, checks it, and indexes it.
const STEP: Step = Step {
    name: "29990101_000001_length_of_details",
    up: "-- part: transaction
ALTER TABLE update_runs ADD COLUMN label text;
-- part: transaction
ALTER TABLE run_events ADD COLUMN detail_length integer;
CREATE FUNCTION set_detail_length() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.detail_length := length(NEW.detail);
    RETURN NEW;
END
$$;
CREATE TRIGGER set_detail_length BEFORE INSERT OR UPDATE ON run_events
    FOR EACH ROW EXECUTE FUNCTION set_detail_length();
-- part: batches run_events
UPDATE run_events SET detail_length = length(detail)
WHERE detail_length IS NULL AND ctid >= :first AND ctid < :end;
-- part: transaction
ALTER TABLE run_events ADD CONSTRAINT detail_length_is_set CHECK (detail_length IS NOT NULL) NOT VALID;
-- part: transaction
ALTER TABLE run_events VALIDATE CONSTRAINT detail_length_is_set;
-- part: transaction
ALTER TABLE run_events ALTER COLUMN detail_length SET NOT NULL;
-- part: index run_events_by_length
CREATE INDEX CONCURRENTLY run_events_by_length ON run_events (tenant_id, detail_length);
",
    down: "ALTER TABLE run_events DROP COLUMN detail_length; ALTER TABLE update_runs DROP COLUMN label;",
};
