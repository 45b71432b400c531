DROP TABLE join_tokens, instances, os_profiles, hosts;
