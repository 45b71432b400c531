DROP TABLE node_tokens;
