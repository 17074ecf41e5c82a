"""Everything that speaks NATS: nothing else imports it. Knows no engine."""
