DROP TRIGGER note_security_updates ON node_states;
DROP FUNCTION note_security_updates;
DROP TABLE notified_certificates;
DROP TABLE notified_security_updates;
