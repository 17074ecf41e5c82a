"""From jobs to tokens in a process of its own. Knows no queue."""
