DROP TABLE task_passes;
