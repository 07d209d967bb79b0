"""What is kept on disk: files whole or not at all, databases, texts, the journal."""
