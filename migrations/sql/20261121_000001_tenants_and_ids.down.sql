DROP SEQUENCE host_numbers, instance_numbers, os_numbers, policy_numbers, run_numbers, single_schedule_numbers,
    join_token_numbers;
DROP TABLE projects;
