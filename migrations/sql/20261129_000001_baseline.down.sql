DROP TABLE projects, project_settings, contents, package_versions, join_tokens, regions, sites, providers, hosts, host_hardware,
    node_tokens, os_profiles, os_details, image_series, local_accounts, custom_configs, instances, instance_custom_configs,
    update_policies, assignments, single_schedules, repeated_schedules, pauses, update_orders, update_slots, node_states,
    last_contacts, update_runs, run_events, os_cycles, os_artifacts, os_attachments, os_settings, os_sync_reports,
    os_sync_findings, change_log, log_state, tallies;

DROP FUNCTION set_tenant_scope, time_json, timestamps_json, storages_json, addresses_json, nics_json, usbs_json, texts_json,
    gpus_json, record_series_change, record_change, record_failure, raise_epoch, record_tally, delete_tallies,
    delete_all_tallies;

DROP SEQUENCE custom_config_numbers, host_numbers, instance_numbers, join_token_numbers, local_account_numbers, os_numbers,
    policy_numbers, provider_numbers, region_numbers, repeated_schedule_numbers, run_numbers, single_schedule_numbers,
    site_numbers, ip_address_numbers;
