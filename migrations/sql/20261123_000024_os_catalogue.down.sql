LOCK TABLE projects, os_profiles, contents IN SHARE ROW EXCLUSIVE MODE;

DROP TRIGGER image_line_gone ON os_profiles;
DROP TRIGGER image_line_changed ON os_profiles;
DROP TRIGGER image_line_made ON os_profiles;
DROP FUNCTION note_image_line();
DROP TABLE image_lines, os_sync_findings, os_sync_reports, os_inside, os_settings, os_sides, os_artifacts, os_cycles;
