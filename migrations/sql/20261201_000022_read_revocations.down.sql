DROP FUNCTION read_revocations();
