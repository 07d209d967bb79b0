"""What several tests share: small worlds, second implementations, and ways to look on."""
