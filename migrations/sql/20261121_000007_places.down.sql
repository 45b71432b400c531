ALTER TABLE hosts DROP COLUMN site_id;
DROP TABLE sites, regions;
DROP SEQUENCE region_numbers, site_numbers, repeated_schedule_numbers;
