"""Between text and tokens: tokenizer, chat template, incremental text. Knows no model."""
