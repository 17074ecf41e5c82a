"""Trains sparkle-tiny, the bundled model, from text of ordinary packages and generated alert chats."""
