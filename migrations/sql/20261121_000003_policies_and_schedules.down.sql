DROP TABLE single_schedules, assignments, update_policies;
