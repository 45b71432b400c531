DROP TABLE projects, project_settings, contents, package_versions, join_tokens, regions, sites, providers, hosts, host_hardware,
    node_tokens, os_profiles, os_inside, image_lines, local_accounts, custom_configs, instances, instance_custom_configs,
    update_policies, assignments, single_schedules, repeated_schedules, pauses, update_orders, brake_slots, node_states,
    last_contacts, update_runs, run_events, os_cycles, os_artifacts, os_sides, os_settings, os_sync_reports, os_sync_findings,
    change_log, log_state, tallies;

DROP FUNCTION enter_project, told_time, told_times, told_storages, told_addresses, told_nics, told_usbs, told_texts, told_gpus,
    note_image_line, record_change, record_failure,
    raise_epoch, keep_tally, forget_tallies, forget_all_tallies;

DROP SEQUENCE custom_config_numbers, host_numbers, instance_numbers, join_token_numbers, local_account_numbers, os_numbers,
    policy_numbers, provider_numbers, region_numbers, repeated_schedule_numbers, run_numbers, single_schedule_numbers,
    site_numbers, ip_address_numbers;
