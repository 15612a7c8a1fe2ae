"""The command line: one file a verb. What is heavy is imported inside the verbs."""
