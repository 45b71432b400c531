DROP TABLE run_events, update_runs, last_contacts, node_states;
